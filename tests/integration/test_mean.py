"""At the means a converted network is the original: its output bit for bit, its state dict, its modules."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from tests.families import CLOSE, EXACT, NOT_RECURRENT, everywhere, marked
from tests.networks import NETWORKS, RECURRENT, build

SERVED = [(n, f) for n in NETWORKS for f in CLOSE if not (f in NOT_RECURRENT and n in RECURRENT)]


@pytest.fixture(autouse=True)
def no_fused_attention():
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def run(model, inputs):
    with torch.no_grad():
        return model(*inputs)


def same_states(first, second):
    first, second = first.state_dict(), second.state_dict()
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


def quick(network, family):
    return network != "resnet18" or family in ("mean_field", "rank1", "emp")


@pytest.mark.parametrize(("network", "family"), marked([(n, f) for n in NETWORKS for f in EXACT], quick))
def test_bit_for_bit(network, family):
    plain, inputs = build(network)
    expected = run(plain, inputs)
    model = lb.bayesianize(copy.deepcopy(plain), EXACT[family], where=everywhere)
    with lb.sampling(mean=True):
        assert torch.equal(run(model, inputs), expected)
        assert torch.equal(model(*inputs), plain(*inputs))  # with gradients, where torch takes other paths
    point = lb.point_estimate(model, component=0 if family == "batch_ensemble" else None)
    assert same_states(point, plain)
    assert [type(m) for m in point.modules()] == [type(m) for m in plain.modules()]
    assert torch.equal(run(point, inputs), expected)


@pytest.mark.parametrize(("network", "family"), marked(SERVED, quick))
def test_patches_are_close(network, family):
    plain, inputs = build(network)
    expected = run(plain, inputs)
    model = lb.bayesianize(copy.deepcopy(plain), CLOSE[family], where=everywhere)
    with lb.sampling(mean=True):
        torch.testing.assert_close(run(model, inputs), expected, rtol=1e-5, atol=1e-5)
    point = lb.point_estimate(model)
    torch.testing.assert_close(dict(point.state_dict()), dict(plain.state_dict()), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(run(point, inputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("noise", ["gaussian", "bernoulli", "uniform"])
def test_a_variance_layer_gives_its_bias(noise):
    x = torch.randn(5, 4, 6, 6)
    layer = lb.bayesianize(nn.Conv2d(4, 3, 3), lb.VarianceLayer(noise=noise))
    without = lb.bayesianize(nn.Conv2d(4, 3, 3, bias=False), lb.VarianceLayer(noise=noise))
    with lb.sampling(mean=True):
        assert torch.equal(layer(x), layer.bias.view(-1, 1, 1).expand(5, 3, 4, 4))
        assert torch.equal(without(x), torch.zeros(5, 3, 4, 4))


@pytest.mark.parametrize("network", ["lenet5", "gpt2", "lstm", "transformer"])
def test_a_network_with_a_variance_layer_at_its_end_gives_that_bias(network):
    plain, inputs = build(network)
    model = lb.bayesianize(plain, lb.VarianceLayer(), where=lb.output(plain))
    with lb.sampling(mean=True):
        y = run(model, inputs)
    bias = getattr(lb.point_estimate(model).get_submodule(model.leanbayes_report.converted[-1][0]), "bias", None)
    assert torch.equal(y, (torch.zeros(()) if bias is None else bias).expand_as(y))


def plain_with_factors(plain, model, component):
    """The plain network with ``W o r s^T`` written out by einsum, for its dense layers and ungrouped convolutions."""
    plain = copy.deepcopy(plain)
    for name, module in plain.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            posterior = model.get_submodule(name).weight.posterior
            r, s = posterior.output.loc[component], posterior.input.loc[component]
            module.weight.data = torch.einsum("oi...,o,i->oi...", module.weight, r, s)
    return plain


@pytest.mark.parametrize("method", [lb.Rank1(components=3, random_sign=0.5), lb.BatchEnsemble(random_sign=0.5)])
@pytest.mark.parametrize("network", ["small", "lenet5", "resnet18", "vit", "hf_resnet"])
def test_a_component_with_signs_is_the_network_with_scaled_weights(network, method):
    plain, inputs = build(network)
    model = lb.bayesianize(copy.deepcopy(plain), method)
    for k in range(method.components):
        expected = run(plain_with_factors(plain, model, k), inputs)
        with lb.sampling(mean=True, component=k):
            torch.testing.assert_close(run(model, inputs), expected, rtol=1e-4, atol=1e-5)
        point = lb.point_estimate(model, component=k)
        torch.testing.assert_close(run(point, inputs), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="components of .* differ; choose one with component="):
        lb.point_estimate(model)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_member_of_an_ensemble_is_that_member(network):
    plain, inputs = build(network)
    model = lb.bayesianize(plain, lb.DeepEnsemble(members=2))
    members = [lb.point_estimate(model, component=k) for k in range(2)]
    assert list(members[0].state_dict()) == list(plain.state_dict())
    assert not same_states(*members)
    for k, member in enumerate(members):
        with lb.sampling(component=k):
            assert torch.equal(run(model, inputs), run(member, inputs))
    with lb.sampling(mean=True):
        assert torch.equal(run(model, inputs), run(members[0], inputs))


@pytest.mark.parametrize("network", NETWORKS)
def test_an_ensemble_without_reinit_starts_as_copies(network):
    plain, inputs = build(network)
    model = lb.bayesianize(copy.deepcopy(plain), lb.DeepEnsemble(members=2, reinit=False))
    for k in range(2):
        assert same_states(lb.point_estimate(model, component=k), plain)
        with lb.sampling(component=k):
            assert torch.equal(run(model, inputs), run(plain, inputs))


@pytest.mark.parametrize("family", ["mean_field", "rank1", "mc_dropout"])
def test_an_ensemble_of_converted_networks(family):
    plain, inputs = build("small")
    model = lb.bayesianize(copy.deepcopy(plain), lb.DeepEnsemble(members=2, of=EXACT[family], reinit=False))
    with lb.sampling(mean=True, component=1):
        assert torch.equal(run(model, inputs), run(plain, inputs))
    assert same_states(lb.point_estimate(model, component=1), plain)
