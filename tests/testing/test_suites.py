"""The suites find what is wrong in posteriors, priors, ops and estimators that are broken on purpose."""

import math
import subprocess
import sys
from unittest import SkipTest

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import noise
from leanbayes.estimators import register_estimator
from leanbayes.estimators.weight import apply_draws
from leanbayes.ops import Conv, Dense
from leanbayes.posteriors.mean_field import MeanFieldPosterior
from leanbayes.priors import Prior
from leanbayes.testing import (
    EstimatorSuite,
    OpSuite,
    PosteriorSuite,
    PriorSuite,
    assert_folds,
    assert_gradients_match,
    assert_refused,
    check_kl,
)


def failures(suite):
    """Names of the checks of a suite that fail."""
    failed = set()
    for name in dir(suite):
        if name.startswith("test_") and getattr(suite, name) is not None:
            suite.setup_method() if hasattr(suite, "setup_method") else None
            try:
                getattr(suite, name)()
            except SkipTest:
                pass
            except Exception:
                failed.add(name)
    return failed


def posterior_suite(cls):
    class Suite(PosteriorSuite):
        def make_posterior(self):
            torch.manual_seed(1)
            return cls(torch.randn(3, 2), 0.3)

    return Suite()


class VarianceForStd(MeanFieldPosterior):
    def rsample(self, n, spec):
        return self.loc + self.std().square() * noise.normal((n, *self.shape), self.loc, spec)


class NoiseInABuffer(MeanFieldPosterior):
    def __init__(self, value, std):
        super().__init__(value, std)
        self.register_buffer("eps", torch.zeros(3, 2))

    def rsample(self, n, spec):
        self.eps = noise.normal((n, *self.shape), self.loc, spec)
        return self.loc + self.std() * self.eps


class DetachedScale(MeanFieldPosterior):
    def rsample(self, n, spec):
        return self.loc + self.std().detach() * noise.normal((n, *self.shape), self.loc, spec)


class GlobalNoise(MeanFieldPosterior):
    def rsample(self, n, spec):
        return self.loc + self.std() * torch.randn(n, *self.shape, dtype=self.loc.dtype)


class UnnormalisedDensity(MeanFieldPosterior):
    def log_prob(self, value):
        return super().log_prob(value) + 0.1


class ForgetsPoints(MeanFieldPosterior):
    def set_point_(self, value):
        pass


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (MeanFieldPosterior, set()),
        (VarianceForStd, {"test_draws_have_the_moments", "test_log_prob_is_the_density_of_the_draws"}),
        (NoiseInABuffer, {"test_a_draw_leaves_nothing_behind"}),
        (DetachedScale, {"test_gradients_are_those_of_the_draws"}),
        (GlobalNoise, {"test_seeds_repeat_draws"}),
        (UnnormalisedDensity, {"test_log_prob_is_the_density_of_the_draws"}),
        (ForgetsPoints, {"test_a_point_can_be_loaded"}),
    ],
    ids=lambda v: v.__name__ if isinstance(v, type) else "",
)
def test_posteriors(cls, expected):
    failed = failures(posterior_suite(cls))
    assert expected <= failed and bool(failed) == bool(expected)


def test_priors():
    class Unnormalised(lb.Cauchy):
        def log_prob(self, value):
            return super().log_prob(value) * 0.9

    class Suite(PriorSuite):
        bad_arguments = ({"scale": 0.0}, {"loc": 1.0})

        def make_prior(self):
            return Unnormalised(0.0, 1.0)

    assert {"test_density_integrates_to_one", "test_bad_arguments_are_refused"} <= failures(Suite())


def test_ops():
    class WrongOuter(Conv):
        def outer(self, shape, in_factor, out_factor):
            # Features of the first group for all groups.
            half = None if in_factor is None else in_factor[:, : shape[1]]
            return super().outer(shape, half, out_factor)

    class WrongStack(Dense):
        def stacked(self, x, weight, bias=None, batch_dim=0):
            return super().stacked(x, weight.flip(0), bias, batch_dim)

    class ConvSuite(OpSuite):
        def make_module(self):
            return nn.Conv1d(4, 4, 2, groups=2)

        def make_input(self, rows):
            return torch.randn(rows, 4, 3)

    class WrongConvSuite(ConvSuite):
        def make_op(self, module):
            good = super().make_op(module)
            return WrongOuter(**{f: getattr(good, f) for f in good.__dataclass_fields__})

    class WrongDenseSuite(OpSuite):
        def make_module(self):
            return nn.Linear(3, 2)

        def make_input(self, rows):
            return torch.randn(rows, 3)

        def make_op(self, module):
            return WrongStack(3, 2)

    assert not failures(ConvSuite())
    assert "test_outer_finds_the_features_of_each_entry" in failures(WrongConvSuite())
    assert "test_stacked_equals_the_loop" in failures(WrongDenseSuite())


@register_estimator("per-pixel", scales_input=True)
def per_pixel(op, x, weight, bias, spec, batch_dim, zero_mean):
    """Flipout with a sign per pixel: one image no longer sees one weight."""
    y = apply_draws(op, x, weight.deviation(spec.n, spec), None, batch_dim)
    y = y * noise.signs(y.shape, y, spec)
    return op(x, weight.mean(), bias) + y


@register_estimator("full-flipout", scales_input=True)
def full_flipout(op, x, weight, bias, spec, batch_dim, zero_mean):
    """Flipout that perturbs with the whole weight instead of its deviation."""
    signs = noise.signs((x.shape[0], op.out_features), x, spec)
    y = op.scale(apply_draws(op, x, weight.rsample(spec.n, spec), None, batch_dim), signs)
    return op(x, weight.mean(), bias) + y


class Offering(MeanFieldPosterior):
    estimators = ("weight", "per-pixel", "full-flipout")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("weight", set()),
        ("per-pixel", {"test_outputs_are_distributed_as_those_of_drawn_weights"}),
        ("full-flipout", {"test_without_noise_it_is_the_plain_op"}),
    ],
)
def test_estimators(name, expected):
    class Suite(EstimatorSuite):
        estimator = name

        def make_layer(self):
            layer = lb.nn.BayesianLayer(nn.Conv1d(2, 2, 2), lb.MeanField(init_std=0.3))
            layer.weight.posterior.__class__ = Offering
            return layer

        def make_input(self, rows):
            return torch.randn(rows, 2, 4)

    failed = failures(Suite())
    assert expected <= failed and bool(failed) == bool(expected)


def test_divergences():
    class Half(MeanFieldPosterior):
        pass

    @lb.register_kl(Half, lb.Normal)
    def half(q, p):
        return (
            0.5
            * torch.distributions.kl_divergence(
                torch.distributions.Normal(q.loc, q.std()), torch.distributions.Normal(p.mean, p.std)
            ).sum()
        )

    check_kl(MeanFieldPosterior(torch.randn(3), 0.3), lb.Normal())
    with pytest.raises(AssertionError, match="log q - log p"):
        check_kl(Half(torch.randn(3), 0.3), lb.Normal())
    with pytest.raises(ValueError, match="LogUniform has no normalised density"):
        check_kl(MeanFieldPosterior(torch.randn(3), 0.3), lb.LogUniform())


def test_gradients():
    parameter = nn.Parameter(torch.randn(5, dtype=torch.float64))
    assert_gradients_match(lambda: parameter.pow(3).sum(), [parameter])
    with pytest.raises(AssertionError, match="finite differences"):
        assert_gradients_match(lambda: (parameter * parameter.detach()).sum(), [parameter])


def test_folding():
    class MixesRows(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            y = self.layer(x)
            return y - y.mean(0)

    good = lb.bayesianize(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), lb.MeanField())
    x = torch.randn(5, 3)
    good.train()
    assert_folds(good, x)
    assert good.training and good[1].training and good[1].num_batches_tracked == 0
    bad = lb.bayesianize(MixesRows(), lb.MeanField(init_std=0.3))
    with pytest.raises(AssertionError, match="folded samples against separate runs"):
        assert_folds(bad, x)


@pytest.mark.parametrize(
    "method",
    [lb.MeanField(), lb.Rank1(components=2), lb.EMP(components=2), lb.DeepEnsemble(2), lb.DeepEnsemble(2, lb.Rank1(2))],
    ids=str,
)
def test_models_of_every_kind_fold(method):
    net = nn.Sequential(nn.Conv1d(2, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))
    assert_folds(lb.bayesianize(net, method), torch.randn(5, 2, 4))


def test_refusals():
    assert "std" in assert_refused(lb.Normal, std=-1.0)
    with pytest.raises(AssertionError, match="were accepted"):
        assert_refused(lb.Normal, std=1.0)


def test_an_improper_prior_is_of_use_only_with_a_registered_pair():
    class Useless(Prior):
        proper = False

    class Suite(PriorSuite):
        def make_prior(self):
            return Useless()

    assert "test_some_divergence_is_known" in failures(Suite())
    assert math.isfinite(lb.StudentT().limit())


def test_pytest_is_needed_neither_by_the_package_nor_by_its_suites():
    code = "import sys; sys.modules['pytest'] = None; import leanbayes; assert 'leanbayes.testing' not in sys.modules"
    subprocess.run([sys.executable, "-c", code + "; import leanbayes.testing"], check=True)
