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
from leanbayes.estimators import applicable, register_estimator
from leanbayes.estimators.weight import apply_draws
from leanbayes.ops import Conv, Dense
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors import Posterior
from leanbayes.posteriors._divergence import kl_divergence
from leanbayes.posteriors.mean_field import MeanFieldPosterior
from leanbayes.priors import Prior
from leanbayes.testing import (
    EstimatorSuite,
    OpSuite,
    PosteriorSuite,
    PriorSuite,
    assert_folds,
    assert_gradients_match,
    assert_mean_close,
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


class HalfSilent(MeanFieldPosterior):
    def silence_(self):
        self.raw_std.data.sub_(1.0)


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
        (HalfSilent, {"test_without_noise_draws_are_the_mean"}),
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


# A view that no other posterior offers: what is wrong here is nobody's choice elsewhere.
@register_estimator("per-pixel", needs="broken", scales_input=True)
def per_pixel(call):
    """Flipout with a sign per pixel: one image no longer sees one weight."""
    y = apply_draws(call.op, call.x, call.weight.deviation(call.spec.n, call.spec), None, call.batch_dim)
    y = y * noise.signs(y.shape, y, call.spec)
    return call.op(call.x, call.weight.mean(), call.bias) + y


@register_estimator("full-flipout", needs="broken", scales_input=True)
def full_flipout(call):
    """Flipout that perturbs with the whole weight instead of its deviation."""
    signs = noise.signs((call.rows, call.op.out_features), call.x, call.spec)
    y = call.op.scale(apply_draws(call.op, call.x, call.weights(), None, call.batch_dim), signs)
    return call.op(call.x, call.weight.mean(), call.bias) + y


class Offering(MeanFieldPosterior):
    offers = frozenset({"draws", "broken"})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("weight", set()),
        (
            "per-pixel",
            {
                "test_outputs_are_distributed_as_those_of_drawn_weights",
                "test_a_weight_that_is_used_twice_is_drawn_once",
            },
        ),
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


class MatrixNormal(Posterior):
    """Rows with one covariance, columns with another: correlated elements, which only have a joint density."""

    def __init__(self, value):
        super().__init__()
        self.loc = nn.Parameter(value)
        self.rows = nn.Parameter(torch.tensor([[0.3, 0.0], [0.2, 0.4]]))  # lower triangles
        self.columns = nn.Parameter(torch.tensor([[1.0, 0.0, 0.0], [-0.5, 0.8, 0.0], [0.1, 0.3, 0.6]]))

    @property
    def shape(self):
        return self.loc.shape

    def mean(self, component=None):
        return self.loc

    def rsample(self, n, spec):
        rows, columns = noise.full_precision(self.rows), noise.full_precision(self.columns)
        return self.loc + rows @ noise.normal((n, *self.shape), self.loc, spec) @ columns.mT

    def set_point_(self, value):
        self.loc.data.copy_(value)

    def as_vector(self):
        """The same distribution over the flattened tensor."""
        return torch.distributions.MultivariateNormal(
            self.loc.flatten(), scale_tril=torch.kron(self.rows, self.columns)
        )

    def joint_log_prob(self, value):
        return self.as_vector().log_prob(value.flatten(-2))


class TestMatrixNormal(PosteriorSuite):
    def make_posterior(self):
        torch.manual_seed(0)
        return MatrixNormal(torch.randn(2, 3))


def test_correlated_elements_have_a_monte_carlo_divergence():
    torch.manual_seed(0)
    q, prior = MatrixNormal(torch.randn(2, 3)), lb.Normal(0.2, 0.7)
    p = torch.distributions.MultivariateNormal(torch.full((6,), 0.2), torch.eye(6) * 0.49)
    expected = torch.distributions.kl_divergence(q.as_vector(), p).item()
    with torch.no_grad():
        assert_mean_close(torch.stack([kl_divergence(q, prior) for _ in range(2000)]), expected)
    random = RandomParameter(q, prior)
    random.kl().backward()
    assert q.rows.grad.isfinite().all() and q.rows.grad.abs().sum() > 0
    assert [each.name for each in applicable(q, [Dense(3, 2)]) if each.preference] == ["weight"]


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
