"""MC dropout and DropConnect."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._sampling import Sampling
from leanbayes.ops import op_for
from leanbayes.posteriors._divergence import kl_divergence
from leanbayes.posteriors.dropout import DropConnectPosterior, DropoutPosterior
from leanbayes.testing import PosteriorSuite, assert_probability_close


class TestDropConnect(PosteriorSuite):
    def make_posterior(self):
        torch.manual_seed(1)
        return DropConnectPosterior(torch.randn(3, 2), 0.3)


class TestDropout(PosteriorSuite):
    def make_posterior(self):
        torch.manual_seed(1)
        return DropoutPosterior(torch.randn(3, 2), 0.3, op_for(nn.Linear(2, 3)))


class TestNoDropout(TestDropConnect):
    def make_posterior(self):
        return DropConnectPosterior(torch.ones(2), 0.0)


def test_weights_are_dropped_alone_and_kept_ones_divided():
    posterior = DropConnectPosterior(torch.full((3, 4), 2.0), 0.25)
    draws = posterior.rsample(4000, Sampling(n=4000))
    assert draws.unique().tolist() == pytest.approx([0.0, 2 / 0.75])
    assert_probability_close(draws == 0, 0.25)
    both = (draws[:, 0, 0] == 0) & (draws[:, 1, 0] == 0)
    assert_probability_close(both, 0.25**2)


@pytest.mark.parametrize(
    ("module", "axis"), [(nn.Linear(4, 3), 1), (nn.Conv2d(4, 3, 2), 1), (nn.ConvTranspose1d(4, 3, 2), 0)], ids=str
)
def test_all_weights_of_an_input_feature_are_dropped_together(module, axis):
    posterior = lb.MCDropout(p=0.4).build(torch.ones_like(module.weight), op_for(module))
    kept = (posterior.rsample(2000, Sampling(n=2000)) != 0).movedim(axis + 1, 1).flatten(2)  # [n, in, rest]
    assert torch.equal(kept.all(2), kept.any(2))
    assert_probability_close(kept[..., 0], 0.6)


def test_features_of_a_group_are_dropped_for_that_group_only():
    module = nn.Conv1d(4, 4, 1, groups=2)
    posterior = lb.MCDropout(p=0.5).build(torch.ones_like(module.weight), op_for(module))
    factors = posterior.factors(500, Sampling())
    assert factors.in_scale.shape == (500, 4)
    draws = posterior.rsample(500, Sampling(n=500))[..., 0] != 0  # [n, out, 2]
    assert torch.equal(draws[:, 0], draws[:, 1]) and torch.equal(draws[:, 2], draws[:, 3])
    assert not torch.equal(draws[:, 0], draws[:, 2])


def test_a_mask_serves_one_example_at_all_its_positions():
    layer = lb.nn.BayesianLayer(nn.Conv1d(6, 2, 1, bias=False), lb.MCDropout(p=0.5))
    nn.init.ones_(layer.weight.posterior.weight)
    y = layer(torch.ones(40, 6, 5))
    assert torch.equal(y[..., :1].expand_as(y), y)
    assert y[:, 0, 0].unique().numel() > 2


def test_masks_are_exact_in_float64():
    posterior = DropConnectPosterior(torch.ones(50, dtype=torch.float64), 0.1)
    draws = posterior.rsample(1, Sampling())
    assert draws.max().item() == 1 / 0.9


@pytest.mark.parametrize("make", [lambda w: DropConnectPosterior(w, 0.2), lambda w: lb.MCDropout(0.2).build(w, _OP)])
def test_divergence_is_the_expected_square(make):
    weight = torch.tensor([[1.0, -2.0]])
    kl = kl_divergence(make(weight), lb.Normal(0, 0.5))
    assert kl.item() == pytest.approx(5 / (2 * 0.25 * 0.8))
    # With another centre it is E (w - c)^2 / (2 s^2).
    draws = make(weight).rsample(1, Sampling())
    kept, dropped = 1 / 0.8 * weight, torch.zeros_like(weight)
    expected = (0.8 * (kept - 0.3).square() + 0.2 * (dropped - 0.3).square()).sum() / (2 * 0.25)
    assert draws.shape == (1, 1, 2)
    assert kl_divergence(make(weight), lb.Normal(0.3, 0.5)).item() == pytest.approx(expected.item())


_OP = op_for(nn.Linear(2, 1))
