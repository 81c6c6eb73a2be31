"""State dicts: plain checkpoints into converted models, converted ones back, and what does not fit."""

import copy
import pickle

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.parameter import RandomParameter
from tests.families import ALL, CLOSE, ENSEMBLES, EXACT, LAYERWISE, NOT_RECURRENT, everywhere, marked
from tests.networks import NETWORKS, RECURRENT, SmallNet, build

X = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
SERVED = [(n, f) for n in NETWORKS for f in EXACT | CLOSE if not (f in NOT_RECURRENT and n in RECURRENT)]
QUICK = ("small", "lstm", "transformer", "bert")


def run(model, inputs, **options):
    with torch.no_grad(), lb.sampling(**options):
        return model(*inputs)


@pytest.fixture(autouse=True)
def no_fused_attention():
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize(("network", "family"), marked(SERVED, lambda n, f: n in QUICK))
def test_a_plain_checkpoint_moves_the_means(network, family):
    trained, inputs = build(network, seed=1)
    method = (EXACT | CLOSE)[family]
    model = lb.bayesianize(build(network)[0], method, where=everywhere)
    model.load_state_dict(trained.state_dict())
    close = {"rtol": 1e-5, "atol": 1e-5} if family in CLOSE else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(run(model, inputs, mean=True), run(trained, inputs), **close)
    again = lb.bayesianize(build(network)[0], method, where=everywhere)
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(run(again, inputs, seed=3), run(model, inputs, seed=3))


@pytest.mark.parametrize("family", LAYERWISE)
def test_it_keeps_what_the_method_added(family):
    """Standard deviations, factors and the copies' spread stay; only what came from the plain model moves."""
    torch.manual_seed(0)
    model = lb.bayesianize(SmallNet(), LAYERWISE[family], where=everywhere)
    other = lb.bayesianize(SmallNet(), LAYERWISE[family], where=everywhere)
    plain = SmallNet()
    other.load_state_dict(model.state_dict())
    other.load_state_dict(plain.state_dict())
    for first, second in zip(model.modules(), other.modules()):
        if not isinstance(first, RandomParameter):
            continue
        for name, parameter in first.posterior.named_parameters():
            new = second.posterior.get_parameter(name)
            if name == "copies":
                torch.testing.assert_close(new - new.mean(0), parameter - parameter.mean(0), rtol=1e-4, atol=1e-6)
            elif name in first.posterior.original or name == "signed_std":
                assert not torch.equal(new, parameter)
            else:
                assert torch.equal(new, parameter)


@pytest.mark.parametrize("family", [f for f in LAYERWISE if f.startswith("variance")])
def test_a_variance_layers_standard_deviations_are_the_checkpoints_weights(family):
    plain = SmallNet()
    model = lb.bayesianize(SmallNet(), LAYERWISE[family])
    model.load_state_dict(plain.state_dict())
    assert torch.equal(model.hidden.weight.posterior.std(), plain.hidden.weight.abs())


@pytest.mark.parametrize("family", ENSEMBLES)
def test_a_plain_checkpoint_goes_to_every_member(family):
    trained = SmallNet()
    model = lb.bayesianize(SmallNet(), ENSEMBLES[family])
    model.load_state_dict(trained.state_dict())
    if family == "ensemble":
        for k in range(2):
            assert torch.equal(run(model.eval(), (X,), component=k), run(trained.eval(), (X,)))
    again = lb.bayesianize(SmallNet(), ENSEMBLES[family])
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(run(again.eval(), (X,), seed=1), run(model.eval(), (X,), seed=1))


@pytest.mark.parametrize("family", ALL)
def test_a_converted_checkpoint_goes_back_exactly(family):
    torch.manual_seed(0)
    model, other = (lb.bayesianize(SmallNet(), ALL[family]) for _ in range(2))
    result = other.load_state_dict(model.state_dict())
    assert not result.missing_keys and not result.unexpected_keys
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize("family", ALL)
def test_a_model_converted_without_memory_takes_a_checkpoint(family):
    torch.manual_seed(0)
    model = lb.bayesianize(SmallNet(), ALL[family]).eval()
    with torch.device("meta"):
        empty = lb.bayesianize(SmallNet(), ALL[family]).eval()
    empty.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(run(empty, (X,), seed=3), run(model, (X,), seed=3))


@pytest.mark.parametrize("network", NETWORKS)
def test_each_parameter_is_in_the_state_dict_once_but_for_modules_in_two_places(network):
    plain, _ = build(network)
    model = lb.bayesianize(plain, lb.MeanField(), where=everywhere)
    random = [name for name in model.state_dict() if ".posterior." in name]
    pointers = [model.state_dict()[name].data_ptr() for name in random]
    assert len(set(pointers)) == len(random)
    assert all(name.rpartition(".posterior.")[0].split(".")[-1].startswith(("weight", "bias")) for name in random)


def test_a_checkpoint_of_other_shapes_is_refused():
    class Wider(SmallNet):
        def __init__(self):
            super().__init__()
            self.output = nn.Linear(6, 7)

    for family in ("mean_field", "rank1", "emp"):
        model = lb.bayesianize(SmallNet(), LAYERWISE[family], where=everywhere)
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(RuntimeError, match="output"):
            model.load_state_dict(Wider().state_dict())
        kept = model.state_dict()
        assert torch.equal(
            kept["output.weight.posterior." + _first(model)], before["output.weight.posterior." + _first(model)]
        )


def _first(model):
    return next(name for name, _ in model.output.weight.posterior.named_parameters())


def test_missing_and_unexpected_keys_are_reported():
    model = lb.bayesianize(SmallNet(), lb.MeanField())
    state = SmallNet().state_dict()
    del state["hidden.weight"]
    state["extra"] = torch.zeros(1)
    result = model.load_state_dict(state, strict=False)
    assert result.missing_keys == ["hidden.weight.posterior.loc", "hidden.weight.posterior.raw_std"]
    assert result.unexpected_keys == ["extra"]


def test_a_checkpoint_is_not_changed_by_loading_it():
    plain = SmallNet()
    state = plain.state_dict()
    before = {name: value.clone() for name, value in state.items()}
    lb.bayesianize(SmallNet(), lb.EMP()).load_state_dict(state)
    assert list(state) == list(before)
    assert all(torch.equal(before[name], value) for name, value in state.items())


@pytest.mark.parametrize("family", ALL)
def test_deep_copies_are_independent_and_equal(family):
    model = lb.bayesianize(SmallNet(), ALL[family]).eval()
    other = copy.deepcopy(model)
    expected = run(model, (X,), seed=1)
    assert torch.equal(run(other, (X,), seed=1), expected)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    assert torch.equal(run(model, (X,), seed=1), expected)
    assert lb.kl(other) != lb.kl(model) or lb.kl(model) == 0


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("network", ["small", "lstm", "transformer", "gpt2"])
def test_pickles(network, family):
    if family in NOT_RECURRENT and network in RECURRENT:
        family = "emp"
    plain, inputs = build(network)
    model = lb.bayesianize(plain, ALL[family])
    other = pickle.loads(pickle.dumps(model))
    assert torch.equal(run(other, inputs, seed=1), run(model, inputs, seed=1))
    assert [type(m) for m in other.modules()] == [type(m) for m in model.modules()]


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("network", ["small", "gpt2"])
def test_functional_call(network, family):
    plain, inputs = build(network)
    model = lb.bayesianize(plain, ALL[family])
    expected = run(model, inputs, seed=1)
    values = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad(), lb.sampling(seed=1):
        assert torch.equal(torch.func.functional_call(model, values, inputs), expected)
    moved = {name: value + 0.1 for name, value in values.items()}
    with torch.no_grad(), lb.sampling(seed=1):
        assert not torch.equal(torch.func.functional_call(model, moved, inputs), expected)
    assert torch.equal(run(model, inputs, seed=1), expected)
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())


@pytest.mark.parametrize("family", LAYERWISE)
def test_gradients_through_functional_call(family):
    torch.manual_seed(0)
    model = lb.bayesianize(SmallNet(), LAYERWISE[family]).eval()
    values = dict(model.named_parameters())

    def loss(values):
        with lb.sampling(seed=1):
            return torch.func.functional_call(model, values, (X,)).square().sum()

    with lb.sampling(seed=1):
        model(X).square().sum().backward()
    for name, grad in torch.func.grad(loss)({name: p.detach() for name, p in values.items()}).items():
        expected = values[name].grad
        torch.testing.assert_close(grad, torch.zeros_like(grad) if expected is None else expected, rtol=1e-4, atol=1e-5)
