"""The sampling state: contexts, folding, seeds, held draws."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

import leanbayes as lb
from leanbayes._sampling.state import LOCAL


def test_fold_puts_the_sample_outermost_and_split_undoes_it():
    x = torch.arange(6).view(3, 2)
    folded = lb.fold(x, 4)
    assert torch.equal(folded, x.repeat(4, 1))
    assert torch.equal(lb.split(folded, 4), x.expand(4, 3, 2))


def test_fold_and_split_on_another_axis_and_in_structures():
    x = torch.arange(12).view(2, 3, 2)
    folded = lb.fold(x, 2, batch_dim=1)
    assert torch.equal(folded, torch.cat([x, x], 1))
    assert torch.equal(lb.split(folded, 2, batch_dim=1)[1], x)
    nested = lb.fold({"a": x, "b": (x, 3, torch.tensor(1.0))}, 2)
    assert nested["a"].shape == (4, 3, 2) and nested["b"][1] == 3 and nested["b"][2].dim() == 0


def test_fold_repeats_packed_sequences():
    packed = pack_sequence([torch.ones(3, 2), torch.zeros(1, 2)], enforce_sorted=False)
    padded, lengths = pad_packed_sequence(lb.fold(packed, 2), batch_first=True)
    assert lengths.tolist() == [3, 1, 3, 1] and torch.equal(padded[0], padded[2])


def test_split_refuses_rows_that_are_no_multiple():
    with pytest.raises(ValueError, match="not a multiple of the 4 samples"):
        lb.split(torch.zeros(6, 2), 4)


HELD = [lb.MeanField(), lb.KTied(rank=1), lb.VarianceLayer(), lb.Rank1(), lb.EMP(), lb.DeepEnsemble(2)]
HELD += [lb.EMP(draw="example", learn_mixing=True), lb.DeepEnsemble(2, of=lb.MeanField()), lb.DropConnect()]


@pytest.mark.parametrize("method", HELD, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("together", [False, True])
def test_a_second_backward_pass_through_held_draws_says_what_to_do(method, together):
    torch.manual_seed(0)
    model = lb.bayesianize(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), method)
    x = torch.randn(3, 4)
    with lb.sampling(hold=True):
        losses = [model(x).sum(), model(2 * x).square().sum()] if together else []
        (losses[0] if together else model(x).sum()).backward()
        with pytest.raises(RuntimeError, match=r"a second backward pass .*hold=True.* call backward once"):
            (losses[1] if together else model(2 * x).sum()).backward()
    # A graph that is retained is as good as one sum.
    gradients = []
    for apart in (False, True):
        model.zero_grad()
        with lb.sampling(hold=True, seed=3):
            losses = [model(x).sum(), model(2 * x).square().sum()]
            if apart:
                losses[0].backward(retain_graph=True)
            (losses[1] if apart else losses[0] + losses[1]).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("method", HELD, ids=lambda each: type(each).__name__)
def test_held_draws_have_gradients_although_the_first_use_did_without(method):
    torch.manual_seed(0)
    model = lb.bayesianize(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), method)
    x = torch.randn(3, 4)
    gradients = []
    for looks_first in (False, True):
        model.zero_grad()
        with lb.sampling(hold=True, seed=3):
            if looks_first:
                with torch.no_grad():
                    model(x)
            model(x).square().sum().backward()
        gradients.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_contexts_nest_and_restore():
    with lb.sampling(n=3, mean=True):
        with lb.sampling(component=1):
            state = lb.current_sampling()
            assert (state.n, state.mean, state.component) == (3, True, 1)
        assert lb.current_sampling().component == "random"
    assert lb.current_sampling().n == 1
    with pytest.raises(RuntimeError), lb.sampling(n=2):
        raise RuntimeError
    assert lb.current_sampling().n == 1


@pytest.mark.parametrize(
    "arguments",
    [{"n": 0}, {"n": 1.5}, {"mean": True, "zero_mean": True}, {"component": "some"}, {"component": -1}],
    ids=str,
)
def test_bad_arguments_are_errors_where_they_are_written(arguments):
    with pytest.raises(ValueError):
        lb.sampling(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mean": "0"}, TypeError, r"sampling\(mean=...\) takes True, False or a selector"),
        ({"zero_mean": 1}, TypeError, r"sampling\(zero_mean=...\) takes True, False or a selector"),
        ({"component": 1.5}, TypeError, "component is 'random', 'all' or an index"),
        ({"component": True}, TypeError, "component is 'random', 'all' or an index"),
        ({"batch_dim": -1}, ValueError, r"sampling\(batch_dim=...\) takes an axis, counted from 0, not -1"),
        ({"seed": 1.5}, ValueError, "seed takes a whole number of up to 64 bits, not 1.5"),
        ({"seed": "1"}, ValueError, "seed takes a whole number of up to 64 bits, not '1'"),
        ({"seed": 2**70}, ValueError, "seed takes a whole number of up to 64 bits"),
        ({"hold": 1}, TypeError, r"sampling\(hold=...\) takes True or False, not 1"),
        ({"joint": "all"}, TypeError, r"sampling\(joint=...\) takes True or False, not 'all'"),
        ({"generator": 3}, TypeError, r"sampling\(generator=...\) takes a torch.Generator, not 3"),
        ({"component": torch.tensor(1)}, ValueError, r"one whole number for each row, \[rows\], not shape \(\)"),
        ({"component": torch.zeros(2, 3).long()}, ValueError, r"not shape \(2, 3\)"),
        ({"component": torch.zeros(4)}, ValueError, r"not shape \(4,\) of torch.float32"),
    ],
    ids=str,
)
def test_arguments_of_other_types_are_errors_that_say_what_is_taken(arguments, error, message):
    with pytest.raises(error, match=message):
        lb.sampling(**arguments)


def test_a_seed_and_a_generator_are_one_too_many():
    with pytest.raises(ValueError, match="seed= or generator=, not both"):
        lb.sampling(seed=1, generator=torch.Generator())


@pytest.mark.parametrize(
    "method", [lb.MeanField(), lb.MCDropout(), lb.EMP(draw="example"), lb.DeepEnsemble(2)], ids=str
)
def test_rows_that_do_not_divide_into_the_samples_are_refused(method):
    with pytest.raises(ValueError, match="a batch of 4 rows does not divide into 3 samples"), lb.sampling(n=3):
        model_of(method)(torch.randn(4, 4))


def model_of(method):
    torch.manual_seed(0)
    return lb.bayesianize(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), method)


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def test_a_seed_repeats_draws_and_leaves_the_global_generator_alone():
    model = model_of(lb.MeanField(init_std=0.5))
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    with lb.sampling(seed=3):
        first = model(X)
    assert torch.equal(torch.rand(2), expected)
    with lb.sampling(seed=3):
        assert torch.equal(model(X), first)
    assert not torch.equal(model(X), first)


@pytest.mark.parametrize(
    "method",
    [
        lb.MeanField(init_std=0.5),
        lb.Rank1(random_sign=0.5),
        lb.MCDropout(p=0.5),
        lb.EMP(init_std=0.5),
        lb.ECMP(init_std=0.5),
    ],
    ids=lambda m: type(m).__name__,
)
def test_held_draws_are_one_function_for_the_whole_context(method):
    model = model_of(method).eval()
    with lb.sampling(hold=True):
        whole = model(X)
        rows = torch.cat([model(X[i : i + 1]) for i in range(5)])
        torch.testing.assert_close(rows, whole)
    draws = []
    for _ in range(8):
        with lb.sampling(hold=True):
            draws.append(model(X))
    assert not all(torch.equal(draws[0], other) for other in draws[1:])


def test_mean_and_zero_mean_take_selectors():
    model = model_of(lb.MeanField(init_std=0.5))
    hidden = model[0]
    with lb.sampling(mean=lb.named("0")):
        torch.testing.assert_close(hidden(X), nn.functional.linear(X, hidden.weight.mean(), hidden.bias))
        assert not torch.equal(model(X), model(X))
    with lb.sampling(zero_mean=True, seed=0):
        draws = torch.stack([hidden(X) for _ in range(4000)]) - hidden.bias
    error = draws.std(0) / 4000**0.5
    assert (draws.mean(0).abs() < 5 * error).all()


def test_components_by_index_all_and_random():
    model = model_of(lb.BatchEnsemble(components=3, random_sign=0.5)).eval()
    members = [lb.point_estimate(model, component=k)(X) for k in range(3)]
    for k in range(3):
        with lb.sampling(component=k):
            torch.testing.assert_close(model(X), members[k])
    with lb.sampling(n=6, component="all"):
        outputs = lb.split(model(lb.fold(X, 6)), 6)
    for s in range(6):
        torch.testing.assert_close(outputs[s], members[s % 3])
    seen = set()
    for _ in range(60):
        out = model(X)
        match = [k for k in range(3) if torch.allclose(out, members[k], atol=1e-5)]
        assert len(match) == 1  # one index serves both layers
        seen.add(match[0])
    assert seen == {0, 1, 2}
    with pytest.raises(ValueError, match="multiple of the 3 components"), lb.sampling(n=4, component="all"):
        model(lb.fold(X, 4))
    with pytest.raises(ValueError, match="component=3 does not exist"), lb.sampling(component=3):
        model(X)


def test_another_estimator_for_a_while():
    model = model_of(lb.MeanField(init_std=0.5))
    with lb.sampling(estimator="weight", seed=0):
        same = model(X[:1].expand(4, -1))
    torch.testing.assert_close(same, same[:1].expand_as(same))
    with pytest.raises(ValueError, match="it offers"), lb.sampling(estimator="rank1"):
        model(X)


def test_input_that_was_not_folded_is_a_clear_error():
    model = model_of(lb.MeanField(estimator="weight"))
    with pytest.raises(ValueError, match=r"fold the input with lb.fold\(x, 4\)"), lb.sampling(n=4):
        model(X)


@pytest.mark.parametrize("method", [lb.Rank1(components=2, init_std=0.5), lb.BatchEnsemble(2), lb.EMP(2, init_std=0.5)])
def test_held_draws_are_those_of_the_component_that_is_asked_for(method):
    torch.manual_seed(0)
    model, x = lb.bayesianize(nn.Sequential(nn.Linear(4, 3)), method, where=lb.named("0")), torch.randn(5, 4)
    with lb.sampling(hold=True):
        outputs = []
        for component in (0, 1, 0):
            with lb.sampling(component=component):
                outputs.append(model(x))
    assert torch.equal(outputs[0], outputs[2]) and not torch.allclose(outputs[0], outputs[1])


def test_held_members_of_an_ensemble_are_not_all_the_first():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 4)
    model = lb.bayesianize(net, lb.DeepEnsemble(3, of=lb.MeanField(init_std=1e-4)))
    with lb.sampling(hold=True):
        outputs = lb.predict(model, x, samples=6).outputs
        again = lb.predict(model, x, samples=6).outputs
    assert torch.equal(outputs, again)
    for sample in range(6):
        with lb.sampling(mean=True, component=sample % 3):
            torch.testing.assert_close(outputs[sample], model(x), rtol=0, atol=0.01)
    assert not torch.equal(outputs[0], outputs[3])  # two draws of one member


class Difference(nn.Module):
    """Calls a part twice."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return self.part(x) - self.part(x)


@pytest.mark.parametrize(
    "method",
    [lb.MeanField(init_std=0.5), lb.Rank1(init_std=0.5), lb.EMP(init_std=0.5), lb.DeepEnsemble(2, of=lb.MeanField())],
    ids=lambda method: type(method).__name__,
)
def test_a_joint_sample_is_one_function_of_a_part_that_is_called_twice(method):
    part = lb.bayesianize(nn.Sequential(nn.Linear(4, 3)), method)
    outputs = lb.predict(Difference(part), torch.randn(6, 4), samples=8, joint=True, seed=0).outputs
    assert not outputs.any()


class Interrupted(nn.Module):
    """Ctrl-C in the middle of a pass."""

    def __init__(self):
        super().__init__()
        self.stops = False

    def forward(self, x):
        if self.stops:
            raise KeyboardInterrupt
        return x


def test_ctrl_c_in_a_pass_leaves_nothing_changed():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), Interrupted(), nn.Linear(6, 3))
    model, x = lb.bayesianize(net, lb.MeanField()), torch.randn(6, 4)
    elbo = lb.ELBO(model, 100, samples=2)
    net[2].stops = True
    with pytest.raises(KeyboardInterrupt):
        elbo(x, torch.randint(3, (6,)))
    with pytest.raises(KeyboardInterrupt), lb.sampling(n=2):
        model(lb.fold(x, 2))
    assert LOCAL.frames == []
    with pytest.raises(KeyboardInterrupt):
        model(x)
    net[2].stops = False
    # No hook has closed the pass, but it is over: the next calls draw anew, also those of single layers.
    assert not torch.equal(net[0](x), net[0](x))
    assert not torch.equal(model(x), model(x))
    assert LOCAL.frames == []


def test_a_changed_state_has_a_joint_state_of_its_own():
    with lb.sampling(n=2) as state:
        assert state.jointly() is state.jointly()
        assert state.jointly().joint and state.jointly().n == 2
        assert state.replace(n=3).jointly().n == 3
        assert not state.joint


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_packed_sequences_are_folded_by_their_examples(batch_dim):
    sequences = [torch.randn(length, 3) for length in (2, 5, 4)]
    folded = lb.fold(nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False), 2, batch_dim)
    for one, other in zip(nn.utils.rnn.unpack_sequence(folded), 2 * sequences, strict=True):
        assert torch.equal(one, other)
