"""LSTM, GRU and RNN: weights drawn once per sequence and sample, whatever the form of the input."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import leanbayes as lb
from leanbayes import current_sampling
from leanbayes.testing import assert_folds, run_apart, run_folded
from tests.families import EXACT, ONE_OF_EACH, everywhere

KINDS = {
    "lstm": lambda **o: nn.LSTM(3, 4, num_layers=2, bidirectional=True, **o),
    "projected": lambda **o: nn.LSTM(3, 5, num_layers=2, bidirectional=True, proj_size=2, **o),
    "no_bias": lambda **o: nn.LSTM(3, 4, bias=False, **o),
    "gru": lambda **o: nn.GRU(3, 4, num_layers=2, **o),
    "rnn": lambda **o: nn.RNN(3, 4, nonlinearity="relu", bidirectional=True, **o),
}
LENGTHS = [4, 6, 2, 6]


def make(kind, method, **options):
    torch.manual_seed(0)
    plain = KINDS[kind](**options).eval()
    return plain, lb.bayesianize(copy.deepcopy(plain), method, where=everywhere)


def sequences(batch_first=False):
    x = torch.randn(4, 6, 3)
    return x if batch_first else x.transpose(0, 1)


def with_weights(plain, layer, pick):
    """The plain module with other weights: ``pick(name, parameter)`` for each."""
    other = copy.deepcopy(plain)
    for name, parameter in other.named_parameters():
        parameter.data = pick(getattr(layer, name)).detach().clone()
    return other


def held(owner, sample, n):
    """What the context in force holds for a parameter, and plain parameters as they are."""
    return owner if isinstance(owner, nn.Parameter) else owner.rsample(n, current_sampling())[sample]


def flat(result):
    output, state = result
    return (output, *(state if isinstance(state, tuple) else (state,)))


@pytest.mark.parametrize("family", ONE_OF_EACH)
@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_is_the_plain_module_with_the_drawn_weights(kind, family):
    plain, layer = make(kind, ONE_OF_EACH[family])
    x = sequences()
    with torch.no_grad(), lb.sampling(seed=1, hold=True):
        drawn = flat(layer(x))
        expected = flat(with_weights(plain, layer, lambda owner: held(owner, 0, 1))(x))
    for ours, torchs in zip(drawn, expected):
        torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(drawn[0], plain(x)[0], atol=1e-4)


@pytest.mark.parametrize("family", ONE_OF_EACH)
@pytest.mark.parametrize("kind", KINDS)
def test_a_point_estimate_by_draw_is_what_the_layer_draws_with_that_seed(kind, family):
    _, layer = make(kind, ONE_OF_EACH[family])
    x = sequences()
    with torch.no_grad():
        with lb.sampling(seed=3, joint=True):
            drawn, _ = layer(x)
        torch.testing.assert_close(drawn, lb.point_estimate(layer, seed=3)(x)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_each_folded_sample_runs_with_its_own_weights(kind, batch_first):
    plain, layer = make(kind, lb.MeanField(init_std=0.3), batch_first=batch_first)
    x, axis = sequences(batch_first), 0 if batch_first else 1
    start = torch.zeros_like(flat(plain(x))[1]).normal_()
    hx = (start, torch.randn_like(flat(plain(x))[2])) if plain.mode == "LSTM" else start
    with torch.no_grad(), lb.sampling(n=3, seed=1, hold=True):
        folded = flat(layer(lb.fold(x, 3, axis), lb.fold(hx, 3, 1)))
        for s in range(3):
            alone = flat(with_weights(plain, layer, lambda owner, s=s: held(owner, s, 3))(x, hx))
            torch.testing.assert_close(lb.split(folded[0], 3, axis)[s], alone[0], rtol=1e-5, atol=1e-6)
            for ours, torchs in zip(folded[1:], alone[1:]):
                torch.testing.assert_close(lb.split(ours, 3, 1)[s], torchs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", [lb.MeanField(init_std=0.2), lb.Rank1(components=2)])
def test_packed_sequences(kind, method):
    plain, layer = make(kind, method, batch_first=True)
    x = sequences(batch_first=True)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    with torch.no_grad(), lb.sampling(mean=True):
        for ours, torchs in zip(flat(layer(packed)), flat(plain(packed))):
            assert torch.equal(getattr(ours, "data", ours), getattr(torchs, "data", torchs))
    with torch.no_grad(), lb.sampling(n=2, seed=1, hold=True):
        folded = flat(layer(lb.fold(packed, 2)))
        padded, lengths = pad_packed_sequence(folded[0], batch_first=True)
        assert lengths.tolist() == LENGTHS * 2
        for s in range(2):
            alone = flat(with_weights(plain, layer, lambda owner, s=s: held(owner, s, 2))(packed))
            expected, _ = pad_packed_sequence(alone[0], batch_first=True)
            torch.testing.assert_close(lb.split(padded, 2)[s], expected, rtol=1e-5, atol=1e-6)
            for ours, torchs in zip(folded[1:], alone[1:]):
                torch.testing.assert_close(lb.split(ours, 2, 1)[s], torchs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_without_a_batch_axis(kind, batch_first):
    plain, layer = make(kind, lb.MeanField(), batch_first=batch_first)
    x = torch.randn(6, 3)
    with torch.no_grad(), lb.sampling(mean=True):
        for ours, torchs in zip(flat(layer(x)), flat(plain(x))):
            assert torch.equal(ours, torchs)
        with lb.sampling(n=1, mean=False):
            assert layer(x)[0].shape == plain(x)[0].shape
    with pytest.raises(ValueError, match="without a batch axis, but n=2"), lb.sampling(n=2):
        layer(x)


def test_rows_that_do_not_divide_into_samples_are_an_error():
    _, layer = make("gru", lb.MeanField())
    with pytest.raises(ValueError, match="5 rows does not divide into 2 samples"), lb.sampling(n=2):
        layer(torch.randn(6, 5, 3))


@pytest.mark.parametrize("kind", ["projected", "gru"])
def test_each_row_with_its_own_component(kind):
    plain, layer = make(kind, lb.BatchEnsemble(components=3, init_spread=0.5), batch_first=True)
    x = sequences(batch_first=True)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    components = [2, 0, 2, 1]
    with torch.no_grad(), lb.sampling(component=torch.tensor(components)):
        mixed, packed_mixed = flat(layer(x)), flat(layer(packed))
    for row, k in enumerate(components):
        member = lb.point_estimate(layer, component=k)
        with torch.no_grad():
            alone, packed_alone = flat(member(x)), flat(member(packed))
        torch.testing.assert_close(mixed[0][row], alone[0][row], rtol=1e-5, atol=1e-6)
        ours, torchs = (pad_packed_sequence(r[0], batch_first=True)[0] for r in (packed_mixed, packed_alone))
        torch.testing.assert_close(ours[row], torchs[row], rtol=1e-5, atol=1e-6)
        for ours, torchs in zip(mixed[1:], alone[1:]):
            torch.testing.assert_close(ours[:, row], torchs[:, row], rtol=1e-5, atol=1e-6)


def test_components_of_rows_say_nothing_of_a_family_without_them():
    _, layer = make("gru", lb.MeanField())
    x = sequences()
    with torch.no_grad(), lb.sampling(seed=1):
        expected, _ = layer(x)
    with torch.no_grad(), lb.sampling(seed=1, component=torch.tensor([0, 1, 0, 2])):
        assert torch.equal(layer(x)[0], expected)


@pytest.mark.parametrize("family", EXACT)
def test_folds(family):
    _, layer = make("projected", EXACT[family], batch_first=True)
    assert_folds(layer, sequences(batch_first=True))


def test_all_steps_see_one_weight():
    """The weights of a sequence are those of its prefix: nothing is drawn again on the way."""
    _, layer = make("no_bias", lb.MeanField(init_std=0.3))
    x = sequences()
    with torch.no_grad():
        with lb.sampling(seed=1):
            whole, _ = layer(x)
        with lb.sampling(seed=1):
            prefix, _ = layer(x[:2])
    torch.testing.assert_close(whole[:2], prefix)


def test_a_layer_on_its_own_uses_one_component_for_all_its_weights():
    torch.manual_seed(0)
    layer = lb.nn.RecurrentLayer(nn.GRU(3, 4, num_layers=2), lb.BatchEnsemble(components=4, init_spread=1.0))
    x = sequences()
    members = [lb.point_estimate(layer, component=k)(x)[0] for k in range(4)]
    for _ in range(10):
        drawn, _ = layer(x)
        assert any(torch.allclose(drawn, member, atol=1e-6) for member in members)


def test_dropout_between_layers_acts_in_training_only():
    torch.manual_seed(0)
    plain = nn.GRU(3, 4, num_layers=2, dropout=0.5).train()
    layer = lb.bayesianize(copy.deepcopy(plain), lb.MeanField())
    x = sequences()
    with lb.sampling(mean=True):
        torch.manual_seed(3)
        ours, _ = layer(x)
        torch.manual_seed(3)
        assert torch.equal(ours, plain(x)[0])
        layer.eval()
        assert torch.equal(layer(x)[0], plain.eval()(x)[0])


@pytest.mark.parametrize("kind", ["projected", "gru", "rnn"])
def test_gradients_of_folded_samples_are_those_of_single_ones(kind):
    _, layer = make(kind, lb.MeanField(init_std=0.2, bias="same"), batch_first=True)
    x, trained = sequences(batch_first=True), list(layer.parameters())
    folded = torch.autograd.grad(run_folded(layer, x, 3).square().sum(), trained)
    apart = torch.autograd.grad(run_apart(layer, x, 3).square().sum(), trained)
    for ours, expected in zip(folded, apart):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_what_third_party_code_asks_of_a_recurrent_module():
    plain, layer = make("projected", lb.MeanField())
    for name in ("input_size", "hidden_size", "num_layers", "bidirectional", "proj_size", "batch_first", "mode"):
        assert getattr(layer, name) == getattr(plain, name)
    layer.flatten_parameters()
    assert layer.weight_ih_l0.shape == plain.weight_ih_l0.shape


def test_an_estimator_that_does_not_apply():
    with pytest.raises(ValueError, match=r"'flipout' does not apply to MeanField on LSTM; it offers \('weight',\)"):
        lb.bayesianize(nn.LSTM(3, 4), lb.MeanField(estimator="flipout"))
