"""Which layer gets which method: defaults, selectors, ordered rules, and what is left alone and why."""

import copy
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import leanbayes as lb
from leanbayes.convert import converters
from leanbayes.nn import (
    AttentionLayer,
    BayesianLayer,
    BilinearLayer,
    CellLayer,
    DropoutLayer,
    NormLayer,
    RecurrentLayer,
)
from leanbayes.nn._base import ConvertedLayer
from tests.families import LAYERWISE, NOT_RECURRENT, everywhere
from tests.networks import build


class Zoo(nn.Module):
    """One module of every kind that conversion knows."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.bag = nn.EmbeddingBag(5, 4)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.deconv = nn.ConvTranspose1d(4, 4, 1)
        self.norm = nn.LayerNorm(4)
        self.dropout = nn.Dropout(0.5)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.cell = nn.GRUCell(4, 4)
        self.bilinear = nn.Bilinear(4, 4, 4)
        self.hidden = nn.Linear(4, 4)
        self.output = nn.Linear(4, 2)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.bag(tokens).unsqueeze(1)
        x = self.deconv(self.conv(x.transpose(1, 2))).transpose(1, 2)
        x = self.dropout(self.norm(x))
        x = self.attention(x, x, x, need_weights=False)[0]
        x = self.lstm(x)[0][:, -1]
        x = self.hidden(self.bilinear(self.cell(x), x))
        return self.output(x)


MAPS = ["conv", "deconv", "attention", "lstm", "cell", "bilinear", "hidden", "output"]
TOKENS = torch.randint(0, 5, (3, 6), generator=torch.Generator().manual_seed(0))


def converted(model):
    return [name for name, m in model.named_modules() if isinstance(m, ConvertedLayer) and "_proj" not in name]


@pytest.mark.parametrize("family", [f for f in LAYERWISE if f not in NOT_RECURRENT and "emp" not in f and f != "ecmp"])
def test_by_default_all_layers_but_embeddings_and_norms(family):
    model = lb.bayesianize(Zoo(), LAYERWISE[family])
    assert converted(model) == MAPS
    assert model(TOKENS).shape == (3, 2)


@pytest.mark.parametrize("method", [lb.EMP(), lb.ECMP()])
def test_patches_take_norms_and_the_output_by_default(method):
    assert converted(lb.bayesianize(Zoo(), method)) == ["norm", "output"]


def test_the_models_own_dropout():
    assert converted(lb.bayesianize(Zoo(), lb.MCDropout(p=None))) == ["dropout"]


@pytest.mark.parametrize("family", [f for f in LAYERWISE if f not in NOT_RECURRENT])
def test_everything_that_a_method_can_serve(family):
    model = lb.bayesianize(Zoo(), LAYERWISE[family], where=everywhere)
    patched = family in ("emp", "ecmp")
    expected = sorted([*MAPS, "embedding", "bag", *(["norm"] if patched else [])])
    assert sorted(converted(model)) == expected
    assert model(TOKENS).shape == (3, 2)
    model(TOKENS).sum().backward()


def test_which_layer_a_module_becomes():
    model = lb.bayesianize(Zoo(), lb.EMP(), where=everywhere)
    kinds = {
        AttentionLayer: ["attention"],
        RecurrentLayer: ["lstm"],
        BilinearLayer: ["bilinear"],
        CellLayer: ["cell"],
        NormLayer: ["norm"],
        BayesianLayer: ["bag", "conv", "deconv", "embedding", "hidden", "output"],
    }
    for kind, names in kinds.items():
        assert sorted(n for n in converted(model) if type(model.get_submodule(n)) is kind) == names
    assert type(lb.bayesianize(Zoo(), lb.MCDropout(p=None)).dropout) is DropoutLayer


def test_selectors_and_predicates():
    assert converted(lb.bayesianize(Zoo(), lb.MeanField(), where=lb.types(nn.Linear))) == ["hidden", "output"]
    assert converted(lb.bayesianize(Zoo(), lb.Rank1(), where=lb.named("*conv") & ~lb.named("de*"))) == ["conv"]
    model = Zoo()
    assert converted(lb.bayesianize(model, lb.MeanField(), where=lb.output(model))) == ["output"]
    small = lb.bayesianize(Zoo(), lb.MeanField(), where=lambda name, m: getattr(m, "out_features", 0) == 2)
    assert converted(small) == ["output"]


def test_a_predicate_sees_names_and_modules():
    seen = {}
    lb.bayesianize(Zoo(), lb.MeanField(), where=lambda name, module: seen.setdefault(name, type(module)) is nn.Linear)
    assert seen["hidden"] is nn.Linear
    assert seen["attention"] is nn.MultiheadAttention
    assert "attention.out_proj" not in seen


def test_ordered_rules_the_first_match_wins():
    rules = {
        "output": lb.Rank1(),
        "attention": None,
        nn.Linear: lb.KTied(),
        lb.norms() | lb.types(nn.Embedding): lb.EMP(),
        (lambda name, module: "lstm" in name): lb.DropConnect(),
        "*": None,
    }
    model = lb.bayesianize(Zoo(), rules)
    methods = {name: model.get_submodule(name).method for name in converted(model)}
    assert methods == {
        "embedding": lb.EMP(),
        "norm": lb.EMP(),
        "lstm": lb.DropConnect(),
        "hidden": lb.KTied(),
        "output": lb.Rank1(),
    }
    left = dict((name, reason) for name, _, reason in model.leanbayes_report.left)
    assert left["attention"] == "the rule 'attention' leaves it alone"
    assert left["conv"] == "the rule '*' leaves it alone"
    assert model(TOKENS).shape == (3, 2)


def test_what_no_rule_speaks_of_is_left_alone():
    model = lb.bayesianize(Zoo(), {"output": lb.MeanField()})
    assert converted(model) == ["output"]
    left = dict((name, reason) for name, _, reason in model.leanbayes_report.left)
    assert left["conv"] == "no rule matches it"


def test_the_report():
    model = lb.bayesianize(Zoo(), lb.EMP())
    report = model.leanbayes_report
    assert report.converted == [("norm", "LayerNorm", lb.EMP()), ("output", "Linear", lb.EMP())]
    left = {name: (kind, reason) for name, kind, reason in report.left}
    assert left["conv"] == ("Conv1d", "EMP does not take it unless `where` asks for it")
    selected = lb.bayesianize(Zoo(), lb.MeanField(), where=lb.named("hidden")).leanbayes_report.left
    assert ("conv", "Conv1d", "not selected by `where`") in selected
    everything = lb.bayesianize(Zoo(), lb.MeanField(), where=everywhere).leanbayes_report.left
    assert ("norm", "LayerNorm", "MeanField does not support LayerNorm") in everything


def test_a_layer_under_the_rank_becomes_mean_field_and_is_listed():
    model = lb.bayesianize(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)), lb.KTied(rank=4))
    assert type(model[0].weight.posterior).__name__ == "KTiedPosterior"
    assert type(model[1].weight.posterior).__name__ == "MeanFieldPosterior"
    note = "its smaller side of 3 is under the rank 4, so it is mean-field"
    assert model.leanbayes_report.notes == [("1", note)]


def test_the_model_itself():
    plain = nn.Linear(3, 2)
    layer = lb.bayesianize(plain, lb.MeanField())
    assert layer is not plain
    assert isinstance(layer, BayesianLayer)
    assert layer.leanbayes_report.converted == [("", "Linear", lb.MeanField())]
    assert isinstance(lb.bayesianize(nn.LayerNorm(3), lb.EMP()), NormLayer)
    assert isinstance(lb.bayesianize(nn.Linear(3, 2), {"": lb.MeanField()}), BayesianLayer)


def test_a_model_that_is_not_its_own_layer_is_changed_in_place():
    model = Zoo()
    assert lb.bayesianize(model, lb.MeanField()) is model


class Parametrised(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight_norm = parametrizations.weight_norm(nn.Linear(4, 4))
        self.orthogonal = parametrizations.orthogonal(nn.Linear(4, 4))
        self.pruned = prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5)
        self.lazy = nn.LazyLinear(4)
        self.bounded = nn.Embedding(4, 4, max_norm=1.0)
        self.sparse = nn.Embedding(4, 4, sparse=True)
        self.masked = nn.Linear(4, 4)
        self.masked.register_buffer("mask", torch.ones(4), persistent=False)
        self.gated = nn.BatchNorm1d(4)
        self.gated.register_parameter("gate", nn.Parameter(torch.ones(4)))
        self.complex = nn.Linear(4, 4, dtype=torch.complex64)
        self.nested = nn.LSTM(4, 4)
        self.nested.add_module("extra", nn.Linear(2, 2))
        self.plain = nn.Linear(4, 4)


REASONS = {
    "weight_norm": "its weight is parametrised",
    "orthogonal": "its weight is parametrised",
    "pruned": "its weight is computed, not a parameter",
    "lazy": "it is lazy; run the model once first",
    "bounded": "max_norm rewrites its weight in place",
    "sparse": "sparse gradients need a plain weight",
    "masked": "it also holds mask, which would be lost",
    "gated": "it also holds gate, which would be lost",
    "complex": "its weight is complex",
    "nested": "it also holds extra.weight, which would be lost",
}


def test_what_cannot_be_served_is_left_alone_and_listed():
    model = Parametrised()
    before = {name: model.get_submodule(name) for name in REASONS}
    lb.bayesianize(model, lb.MeanField(), where=everywhere)
    assert converted(model) == ["plain"]
    assert all(model.get_submodule(name) is module for name, module in before.items())
    listed = {name: reason for name, _, reason in model.leanbayes_report.left}
    assert {name: listed[name] for name in REASONS} == REASONS


@pytest.mark.parametrize("name", REASONS)
def test_asking_for_it_by_name_is_an_error(name):
    with pytest.raises(ValueError, match=f"{name} .* was asked for by name, but {REASONS[name][:20]}"):
        lb.bayesianize(Parametrised(), lb.MeanField(), where=lb.named(name))
    with pytest.raises(ValueError, match=f"{name} .* was asked for by name"):
        lb.bayesianize(Parametrised(), {name: lb.MeanField(), "*": lb.MeanField()})


def test_a_module_with_a_weight_from_an_old_style_hook():
    with pytest.warns(FutureWarning):
        hooked = nn.utils.weight_norm(nn.Linear(4, 4))
    model = lb.bayesianize(nn.Sequential(hooked, nn.Linear(4, 2)), lb.MeanField())
    assert model[0] is hooked
    assert ("0", "Linear", "its weight is computed, not a parameter") in model.leanbayes_report.left


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Same(nn.Linear):
    pass


def test_a_subclass_with_a_forward_of_its_own_is_left_alone():
    model = lb.bayesianize(nn.Sequential(Scaled(3, 3), Same(3, 3)), lb.MeanField())
    assert converted(model) == ["1"]
    assert ("0", "Scaled", "Scaled defines its own forward") in model.leanbayes_report.left
    assert type(lb.point_estimate(model)[1]) is Same


class Called(nn.Linear):
    def __call__(self, x):
        return 2 * super().__call__(x)


def test_a_layer_whose_call_was_changed_is_left_alone():
    """By a tool that patches the instance, or by its class."""
    model = nn.Sequential(nn.Linear(3, 3), Called(3, 3), nn.MultiheadAttention(4, 2), nn.Linear(3, 3))
    plain = model[0].forward
    model[0].forward = lambda x: 2 * plain(x)
    model[2].out_proj.forward = lambda x: x
    model = lb.bayesianize(model, lb.MeanField())
    assert converted(model) == ["3"]
    assert model.leanbayes_report.left == [
        ("0", "Linear", "its forward was replaced"),
        ("1", "Called", "Called defines its own __call__"),
        ("2", "MultiheadAttention", "its forward was replaced"),
    ]


class Buffered(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.register_buffer("kept", torch.ones(3))


def test_who_registers_a_type_knows_what_it_holds(monkeypatch):
    monkeypatch.setattr(converters, "_CONVERTERS", dict(converters._CONVERTERS))

    @lb.register_conversion(Buffered, kind="linear")
    def convert(module, method, scope, path, batch_dim):
        layer = BayesianLayer(module, method, batch_dim=batch_dim, scope=scope, path=path)
        layer.register_buffer("kept", module.kept)
        return layer

    model = lb.bayesianize(nn.Sequential(Buffered()), lb.MeanField())
    assert isinstance(model[0], BayesianLayer) and "0.kept" in model.state_dict()


def test_a_lazy_module_that_has_run():
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyConv1d(2, 1))
    model(torch.randn(2, 3, 5))
    assert converted(lb.bayesianize(model, lb.MeanField())) == ["0", "1"]


@pytest.mark.parametrize(("method", "freeze"), [(lb.MeanField(), True), (lb.DeepEnsemble(2), False)], ids=str)
def test_what_has_no_shape_yet_cannot_be_frozen_or_stacked(method, freeze):
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="0.weight is lazy and has no shape yet; run the model once first"):
        lb.bayesianize(model, method, freeze=freeze)
    assert isinstance(model[1], nn.Linear)  # as it was


class Unregistered(nn.Module):
    """Layers that are also kept where torch does not look, in one way or another."""

    def __init__(self, keep):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
        self.__dict__["steps"] = keep(self.first, self.second)

    def forward(self, x):
        for layer in unpacked(self.steps):
            x = layer(x)
        return x


def unpacked(steps):
    if isinstance(steps, Mapping):
        steps = list(steps.values())
    if isinstance(steps, (list, tuple)):
        return [layer for step in steps for layer in unpacked(step)]
    return [steps]


Pair = namedtuple("Pair", "first second")
KEPT = {
    "a list": lambda a, b: [a, b],
    "a tuple": lambda a, b: (a, b),
    "a named tuple": Pair,
    "a dictionary": lambda a, b: {"a": a, "b": b},
    "containers in containers": lambda a, b: {"a": [(a,)], "b": ([b],)},
    "a module of its own": lambda a, b: nn.Sequential(a, b),
    "modules in a list": lambda a, b: [nn.Sequential(a), b],
}


@pytest.mark.parametrize("kind", KEPT)
def test_layers_that_are_also_kept_unregistered_are_converted_there_too(kind):
    model = lb.bayesianize(Unregistered(KEPT[kind]), lb.MeanField(init_std=0.5))
    x = torch.randn(6, 4)
    assert not torch.equal(model(x), model(x))
    again = copy.deepcopy(model)
    with lb.sampling(seed=0):
        drawn = model(x)
    with lb.sampling(seed=0):
        assert torch.equal(again(x), drawn)
    point = lb.point_estimate(model)
    assert not any(isinstance(module, ConvertedLayer) for module in point.modules())
    with torch.no_grad():
        point.first.weight.zero_(), point.first.bias.zero_(), point.second.weight.zero_()
    assert torch.equal(point(x), point.second.bias.expand(6, 2))


def test_a_plain_attribute_and_a_container_that_hold_each_other():
    model = Unregistered(lambda a, b: [a, b])
    model.__dict__["alias"] = model.first
    model.__dict__["whole"] = [model]
    model.steps.append(model.steps)
    lb.bayesianize(model, lb.MeanField())
    assert model.alias is model.first is model.steps[0] and model.whole == [model]


@dataclass(frozen=True)
class Frozen:
    layers: tuple


@pytest.mark.parametrize(
    ("keep", "kind"),
    [
        (lambda a, b: MappingProxyType({"a": a, "b": b}), "mappingproxy that holds a Linear"),
        (lambda a, b: [a.forward, b], "method that holds a Linear"),
        (lambda a, b: {"a": partial(a)}, "partial that holds a Linear"),
        (lambda a, b: Frozen((a, b)), "Frozen that holds a tuple"),
    ],
)
def test_a_container_that_cannot_be_changed_is_named_before_anything_changes(keep, kind):
    model = nn.Sequential(Unregistered(keep))
    with pytest.raises(ValueError, match=rf"^0\.steps is a {kind}, which cannot be replaced there"):
        lb.bayesianize(model, lb.MeanField())
    assert type(model[0].first) is type(model[0].second) is nn.Linear


class Twice(nn.Module):
    """One module in two places, one of them inside a module with parameters of its own."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.block = nn.ModuleDict({"inner": self.first})
        self.block.register_parameter("scale", nn.Parameter(torch.ones(3)))
        self.alias = self.block

    def forward(self, x):
        return self.alias["inner"](self.first(x)) * self.block.scale


@pytest.mark.parametrize("name", ["first", "block.inner", "alias.inner"])
def test_a_module_in_two_places_is_converted_in_all_by_any_of_its_names(name):
    model = lb.bayesianize(Twice(), lb.MeanField(init_std=0.3), where=lb.named(name))
    assert isinstance(model.first, BayesianLayer)
    assert model.first is model.block["inner"] is model.alias["inner"]
    assert len(model.leanbayes_report.converted) == 1
    torch.testing.assert_close(lb.kl(model), model.first.weight.kl())
    point = lb.point_estimate(model)
    assert point.first is point.block["inner"]


def test_every_weight_of_an_attention_layer_is_its_own():
    """Parts that are built on the way leave no trace by which another weight could pass for tied."""
    plain, _ = build("transformer")
    model = lb.bayesianize(plain, lb.EMP(), where=everywhere)
    weights = [m.weight for m in model.modules() if isinstance(m, BayesianLayer)]
    assert len({id(weight) for weight in weights}) == len(weights)
    assert not any(weight.tied for weight in weights)
    names = {name.rsplit(".", 1)[0] for name, _ in model.named_modules(remove_duplicate=False)}
    assert len(names) == len({name.rsplit(".", 1)[0] for name, _ in model.named_modules()})
