"""bf16 autocast and half precision: finite outputs and gradients, KL in float32."""

import copy
import dataclasses

import pytest
import torch

import leanbayes as lb
from tests.families import ALL, ENSEMBLES, LAYERWISE, NOT_RECURRENT, ONE_OF_EACH, everywhere, marked
from tests.networks import RECURRENT, SmallNet, build

NETWORKS = ("small", "lstm", "cells", "transformer", "bert", "convnext")
SERVED = [(n, f) for n in NETWORKS for f in LAYERWISE if not (f in NOT_RECURRENT and n in RECURRENT)]
X = torch.randn(6, 2, 4, 4, generator=torch.Generator().manual_seed(0))


def assert_trains(model, inputs, n=1, batch_dim=0):
    """A finite loss with finite gradients for everything that trains."""
    with lb.sampling(n=n):
        output = model(*lb.fold(inputs, n))
        loss = output.float().square().mean() + 1e-3 * lb.kl(model)
    assert output.isfinite().all()
    assert loss.isfinite()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    return output


def quick(network, family):
    return network == "small" or family in ONE_OF_EACH


@pytest.mark.parametrize(("network", "family"), marked(SERVED, quick))
def test_autocast(network, family):
    plain, inputs = build(network)
    model = lb.bayesianize(plain, LAYERWISE[family], where=everywhere).train()
    with torch.autocast("cpu", torch.bfloat16):
        for n in (1, 2):
            assert_trains(model, inputs, n)
        kl = lb.kl(model)
    assert kl.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("family", LAYERWISE)
def test_autocast_at_the_means_is_the_plain_networks(family):
    plain, inputs = build("small")
    model = lb.bayesianize(copy.deepcopy(plain), LAYERWISE[family])
    if family.startswith(("variance", "rank1_signs", "batch_ensemble_signs")):
        plain = lb.point_estimate(model, component=0)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = plain(*inputs)
        with lb.sampling(mean=True):
            means = model(*inputs)
    assert means.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(means, expected, rtol=0.02, atol=0.01)


# Half-Cauchy factors give weights in the thousands, which float16 does not hold: they are clipped, as it is advised.
IN_HALF = LAYERWISE | {"rank1_halfcauchy": dataclasses.replace(LAYERWISE["rank1_halfcauchy"], clip=10.0)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("network", "family"), marked(SERVED, quick))
def test_half(network, family, dtype):
    plain, inputs = build(network)
    model = lb.bayesianize(plain, IN_HALF[family], where=everywhere).train().to(dtype)
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    for n in (1, 2):
        output = assert_trains(model, inputs, n)
    assert output.dtype == dtype


@pytest.mark.parametrize("family", ENSEMBLES)
def test_ensembles(family):
    model = lb.bayesianize(SmallNet(), ENSEMBLES[family])
    with torch.autocast("cpu", torch.bfloat16):
        assert_trains(copy.deepcopy(model), (X,), 2)
    assert_trains(model.half(), (X.half(),), 2)


@pytest.mark.parametrize("family", ALL)
def test_the_kl_of_a_half_model_is_that_of_its_values_within_a_percent(family):
    torch.manual_seed(0)
    model = lb.bayesianize(SmallNet(), ALL[family], where=None if "ensemble" in family else everywhere)
    expected = lb.kl(model)
    half = lb.kl(copy.deepcopy(model).half())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("family", LAYERWISE)
def test_double(family):
    plain, _ = build("small")
    model = lb.bayesianize(plain, LAYERWISE[family], where=everywhere).double().train()
    output = assert_trains(model, (X.double(),), 2)
    assert output.dtype == torch.float64
