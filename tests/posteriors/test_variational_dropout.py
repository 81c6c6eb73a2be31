"""Variational dropout."""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.ops import op_for
from leanbayes.posteriors._divergence import kl_divergence
from leanbayes.posteriors.variational_dropout import VariationalDropoutPosterior
from leanbayes.testing import PosteriorSuite


class VariationalDropoutSuite(PosteriorSuite):
    share = "layer"

    def make_posterior(self):
        torch.manual_seed(1)
        posterior = VariationalDropoutPosterior(torch.randn(3, 2), self.share, -1.0, op_for(nn.Linear(2, 3)))
        with torch.no_grad():
            posterior.raw_log_alpha += torch.randn_like(posterior.raw_log_alpha)
        return posterior


class TestPerLayer(VariationalDropoutSuite):
    pass


class TestPerNeuron(VariationalDropoutSuite):
    share = "neuron"


class TestPerWeight(VariationalDropoutSuite):
    share = "weight"


@pytest.mark.parametrize(
    "module",
    [nn.Linear(4, 3), nn.Conv2d(4, 6, 2, groups=2), nn.ConvTranspose1d(4, 6, 2, groups=2), nn.Embedding(5, 3)],
    ids=["dense", "conv", "transpose", "embedding"],
)
def test_one_alpha_per_output_neuron(module):
    op = op_for(module)
    posterior = lb.VariationalDropout(share="neuron").build(module.weight, op)
    assert posterior.raw_log_alpha.shape == (op.out_features,)
    with torch.no_grad():
        posterior.raw_log_alpha.copy_(torch.arange(op.out_features) / 2 - 2)
    alpha = (posterior.std() / module.weight.abs()).square()
    # Which weights reach an output: those that change it when the input is all ones.
    index = torch.ones(1, 1, dtype=torch.long) if op.index_input else None
    for out in range(op.out_features):
        weight = alpha.detach().clone().requires_grad_()
        x = index if op.index_input else torch.ones(1, op.in_features, *(3,) * (weight.dim() - 2))
        y = op(x, weight)
        y = y[..., out] if op.index_input or weight.dim() == 2 else y[:, out]
        (reached,) = torch.autograd.grad(y.sum(), weight)
        expected = torch.full((int((reached != 0).sum()),), math.exp(out / 2 - 2))
        torch.testing.assert_close(alpha[reached != 0], expected, rtol=1e-4, atol=0)


def test_log_alpha_stays_in_range():
    posterior = VariationalDropoutPosterior(torch.ones(2, 2), "weight", 0.0)
    with torch.no_grad():
        posterior.raw_log_alpha.copy_(torch.tensor([[1e4, -1e4], [3.0, -3.0]]))
    std = posterior.std()
    assert std.isfinite().all()
    assert std[0, 0].item() == pytest.approx(math.exp(10))
    assert std[0, 1].item() < 1e-8
    assert std[1, 0].item() == pytest.approx(math.exp(1.5))


@pytest.mark.parametrize("prior", [lb.LogUniform(), lb.LogUniform(exact=True), lb.StudentT(), lb.ARD()], ids=str)
@pytest.mark.parametrize("share", ["layer", "neuron"])
def test_a_shared_alpha_counts_once_per_weight(share, prior):
    op = op_for(nn.Conv2d(4, 6, 3, groups=2))
    value = torch.randn(6, 2, 3, 3)
    shared = VariationalDropoutPosterior(value, share, -1.5, op)
    apart = VariationalDropoutPosterior(value, "weight", -1.5, op)
    torch.testing.assert_close(kl_divergence(shared, prior), kl_divergence(apart, prior))


def test_mean_field_with_a_log_uniform_prior_is_the_additive_form():
    value = torch.randn(3, 4)
    dropout = VariationalDropoutPosterior(value, "weight", -1.0)
    additive = lb.MeanField(prior=lb.LogUniform()).build(value, None)
    with torch.no_grad():
        additive.raw_std.copy_(torch.log(torch.expm1(dropout.std())))
    expected = kl_divergence(dropout, lb.LogUniform())
    torch.testing.assert_close(kl_divergence(additive, lb.LogUniform()), expected)
