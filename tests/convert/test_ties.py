"""Tied weights: one distribution for all their layers, one draw where one function is asked for."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import leanbayes as lb
from leanbayes import current_sampling
from leanbayes.testing import assert_folds
from tests.families import LAYERWISE, everywhere
from tests.networks import build

TOKENS = torch.randint(0, 9, (4, 6), generator=torch.Generator().manual_seed(0))


class LanguageModel(nn.Module):
    """A table and a dense layer with one weight, in either order, with or without a padding row."""

    def __init__(self, padding_idx=None, head_first=False):
        super().__init__()
        if head_first:
            self.head = nn.Linear(5, 9)
        self.table = nn.Embedding(9, 5, padding_idx=padding_idx)
        if not head_first:
            self.head = nn.Linear(5, 9)
        nn.init.normal_(self.table.weight)
        if padding_idx is not None:
            self.table.weight.data[padding_idx] = 0.5
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.table(tokens)))


VARIANTS = {
    "plain": {},
    "padded": {"padding_idx": 3},
    "head_first": {"head_first": True},
    "padded_head_first": {"padding_idx": 3, "head_first": True},
    "padded_at_the_end": {"padding_idx": 8},
}


def make(variant, method, where=None):
    torch.manual_seed(0)
    plain = LanguageModel(**VARIANTS[variant])
    return plain, lb.bayesianize(copy.deepcopy(plain), method, where=where)


@pytest.mark.parametrize("which", ["table", "head"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_rule_on_one_partner_serves_all(variant, which):
    _, model = make(variant, lb.MeanField(), lb.named(which))
    assert model.table.weight is model.head.weight
    assert model.table.weight.tied
    assert sum(p.numel() for p in model.parameters()) == 9 + 2 * 45 - (5 if "padded" in variant else 0)
    note = next(note for _, note in model.leanbayes_report.notes)
    assert note in ("one weight is shared by table, head", "one weight is shared by head, table")


@pytest.mark.parametrize("family", LAYERWISE)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_family_and_variant(variant, family):
    plain, model = make(variant, LAYERWISE[family], everywhere)
    assert model(TOKENS).shape == (4, 6, 9)
    model(TOKENS).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert_folds(model, TOKENS)
    point = lb.point_estimate(model, component=0)
    assert point.table.weight is point.head.weight
    assert list(point.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("family", LAYERWISE)
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_function_has_one_draw_for_all_partners(variant, family):
    """In joint and in hold mode the model is the plain one with the drawn weight in both places."""
    plain, model = make(variant, LAYERWISE[family], everywhere)
    with torch.no_grad(), lb.sampling(seed=1, hold=True):
        drawn = model(TOKENS)
        weight = model.table.weight.rsample(1, current_sampling())[0]
        bias = model.head.bias
        bias = bias if isinstance(bias, nn.Parameter) else bias.rsample(1, current_sampling())[0]
        values = {"table.weight": weight, "head.weight": weight, "head.bias": bias}
        expected = torch.func.functional_call(plain, values, (TOKENS,))
        torch.testing.assert_close(drawn, expected, rtol=1e-5, atol=1e-5)
    rows = TOKENS[:1].expand(4, -1)
    with torch.no_grad(), lb.sampling(n=2, joint=True):
        y = lb.split(model(lb.fold(rows, 2)), 2)
    torch.testing.assert_close(y, y[:, :1].expand_as(y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", ["padded", "padded_head_first", "padded_at_the_end"])
@pytest.mark.parametrize("family", LAYERWISE)
def test_padding_rows_carry_no_noise_and_no_kl(variant, family):
    plain, model = make(variant, LAYERWISE[family], everywhere)
    index = VARIANTS[variant]["padding_idx"]
    random = model.table.weight
    with torch.no_grad(), lb.sampling(n=3, hold=True):
        assert torch.equal(random.rsample(3, current_sampling())[:, index], plain.table.weight[index].expand(3, 5))
        assert torch.equal(random.deviation(3, current_sampling())[:, index], torch.zeros(3, 5))
    assert torch.equal(random.mean(0)[index], plain.table.weight[index])
    assert random.posterior.shape == (8, 5)
    rest = torch.cat([plain.table.weight[:index], plain.table.weight[index + 1 :]]).detach()
    torch.manual_seed(0)
    without = lb.bayesianize(nn.Embedding(8, 5, _weight=rest.clone()), LAYERWISE[family], where=everywhere)
    if family in ("mean_field", "vd_layer", "vd_neuron", "vd_weight", "drop_connect"):
        torch.testing.assert_close(random.kl(), without.weight.kl())


def test_a_padding_row_trains_as_the_plain_one_does():
    plain, model = make("padded", lb.MeanField(init_std=1e-9))
    plain(TOKENS).square().sum().backward()
    model(TOKENS).square().sum().backward()
    grad = model.table.weight.posterior.loc.grad
    torch.testing.assert_close(grad[:3], plain.table.weight.grad[:3], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grad[3:], plain.table.weight.grad[4:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.table.weight.padding_row.grad, plain.table.weight.grad[3], rtol=1e-4, atol=1e-5)


def test_a_frozen_table_stays_frozen():
    plain = LanguageModel(padding_idx=3)
    plain.table.weight.requires_grad_(False)
    model = lb.bayesianize(plain, lb.MeanField())
    assert not model.table.weight.posterior.loc.requires_grad
    assert not model.table.weight.padding_row.requires_grad


def test_the_kl_counts_once():
    _, model = make("plain", lb.MeanField())
    torch.testing.assert_close(lb.kl(model), model.head.weight.kl())


def test_two_methods_for_one_weight():
    rules = {"table": lb.MeanField(), "head": lb.Rank1()}
    with pytest.raises(ValueError, match=r"table \(Embedding\) and head \(Linear\) share one weight.* two methods"):
        lb.bayesianize(LanguageModel(), rules)


def test_one_converted_and_the_other_left_alone_by_a_rule():
    with pytest.raises(ValueError, match=r"head \(Linear\) and table \(Embedding\) share one weight.* leave the other"):
        lb.bayesianize(LanguageModel(), {"head": lb.MeanField(), "table": None})


def test_a_partner_that_cannot_be_served():
    model = LanguageModel()
    model.table.max_norm = 1.0
    with pytest.raises(
        ValueError, match=r"head \(Linear\) and table \(Embedding\) share one weight, but max_norm .* untie them"
    ):
        lb.bayesianize(model, lb.MeanField())


class Weird(nn.Module):
    """A module of one's own that uses another's weight."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return x @ self.weight.T


def test_a_partner_that_no_conversion_knows():
    layer = nn.Linear(4, 3)
    model = nn.Sequential(layer, nn.Linear(3, 4), Weird(layer.weight))
    with pytest.raises(ValueError, match=r"0 \(Linear\) and 2 \(Weird\) share one weight, but no conversion of Weird"):
        lb.bayesianize(model, lb.MeanField())
    kept = lb.bayesianize(model, lb.MeanField(), where=lb.named("1"))
    assert kept[0].weight is kept[2].weight


def test_a_kind_that_cannot_be_tied():
    lstm, layer = nn.LSTM(4, 4), nn.Linear(4, 16)
    layer.weight = lstm.weight_ih_l0
    with pytest.raises(ValueError, match="share one weight; only dense layers, convolutions and embeddings can be"):
        lb.bayesianize(nn.ModuleDict({"lstm": lstm, "layer": layer}), lb.MeanField())


def test_a_parametrised_partner():
    layer = nn.Linear(4, 4)
    other = nn.Linear(4, 4)
    other.weight = layer.weight
    parametrizations.weight_norm(other)
    model = lb.bayesianize(nn.Sequential(layer, other), lb.MeanField())  # no longer one parameter
    assert model[1] is other


def test_two_dense_layers_of_one_orientation_keep_their_feature_scales():
    layer = nn.Linear(4, 4)
    other = nn.Linear(4, 4)
    other.weight = layer.weight
    model = lb.bayesianize(nn.Sequential(layer, other), lb.Rank1(components=2))
    assert (model[0].estimator, model[1].estimator) == ("rank1", "rank1")
    assert model[0].weight is model[1].weight
    assert_folds(model, torch.randn(3, 4))


@pytest.mark.parametrize("family", ["mean_field", "rank1", "mc_dropout", "emp", "ecmp"])
@pytest.mark.parametrize("network", ["gpt2", "bert"])
def test_language_models_of_transformers(network, family):
    """The tables of GPT-2 and BERT and their decoders share one draw, BERT's with a padding row and a tied bias."""
    plain, (tokens,) = build(network)
    where = everywhere if family in ("emp", "ecmp") else None
    model = lb.bayesianize(copy.deepcopy(plain), LAYERWISE[family], where=where)
    table, head = model.model.get_input_embeddings(), model.model.get_output_embeddings()
    assert table.weight is head.weight
    assert table.weight.tied
    assert (table.weight.padding_row is None) == (plain.model.get_input_embeddings().padding_idx is None)
    if network == "bert":
        assert head.bias is model.model.cls.predictions.bias
    rows = tokens[:1].expand(3, -1)
    with torch.no_grad(), lb.sampling(seed=0, joint=True):
        y = model(rows)
    torch.testing.assert_close(y, y[:1].expand_as(y), rtol=1e-4, atol=1e-5)
    with torch.no_grad(), lb.sampling(seed=0, hold=True):
        y = model(tokens)
        assert torch.equal(model(tokens), y)
    again = lb.point_estimate(model, seed=3)
    assert again.model.get_input_embeddings().weight is again.model.get_output_embeddings().weight
