"""What summary counts is what is there, and what the plain model had."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._summary import summary
from leanbayes.models import create
from tests.families import ALL, everywhere
from tests.networks import NETWORKS, SmallNet, build


def size(model):
    """Number of parameters, and bytes of parameters and buffers."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum(p.numel() for p in model.parameters()), sum(t.numel() * t.element_size() for t in tensors)


def assert_counts(model, plain_size):
    s = summary(model)
    assert (s.parameters, s.bytes) == size(model)
    assert (s.plain_parameters, s.plain_bytes) == plain_size
    assert s.overhead == s.parameters / s.plain_parameters
    assert s.bytes_overhead == s.bytes / s.plain_bytes
    assert sum(layer.parameters for layer in s.layers) <= s.parameters
    assert sum(layer.plain_parameters for layer in s.layers) <= s.plain_parameters
    return s


@pytest.mark.parametrize("family", ALL)
def test_every_family(family):
    plain = SmallNet()
    expected = size(plain)
    method = ALL[family]
    where = None if isinstance(method, lb.DeepEnsemble) and method.of is None else everywhere
    s = assert_counts(lb.bayesianize(plain, method, where=where), expected)
    assert s.model == "SmallNet"
    assert "SmallNet" in str(s)


@pytest.mark.parametrize("family", ["mean_field", "rank1", "emp", "ensemble_of_variance"])
@pytest.mark.parametrize("network", NETWORKS)
def test_every_network(network, family):
    plain, _ = build(network)
    expected = size(plain)
    s = assert_counts(lb.bayesianize(plain, ALL[family], where=everywhere), expected)
    assert len(str(s).splitlines()) < 60


def test_exact_rows():
    net = nn.Sequential(nn.Linear(20, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 10, bias=False))
    s = summary(lb.bayesianize(net, {"0": lb.KTied(rank=2), "1": lb.EMP(components=3, learn_mixing=True), "3": None}))
    assert [(r.name, r.type, r.method, r.estimator, r.parameters, r.plain_parameters) for r in s.layers] == [
        ("0", "Linear", lb.KTied(rank=2), "local", 1050 + 2 * (20 + 50), 1050),
        ("1", "BatchNorm1d", lb.EMP(components=3, learn_mixing=True), "weight", 3 * 100 + 3, 100),
    ]
    assert s.left == (("3", "Linear", "the rule '3' leaves it alone"),)
    assert (s.parameters, s.plain_parameters) == (1190 + 303 + 500, 1050 + 100 + 500)
    # The running mean and variance are floats, the count of batches is one int64.
    assert (s.bytes, s.plain_bytes) == (4 * (1993 + 100) + 8, 4 * (1650 + 100) + 8)


def test_estimators():
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(), nn.LayerNorm(4), nn.Bilinear(2, 2, 2))
    rules = {
        "0": lb.MeanField(estimator="flipout"),
        "1": lb.EMP(draw="example"),
        "2": lb.MCDropout(p=None),
        "3": lb.ECMP(),
        "4": lb.MeanField(),
    }
    s = summary(lb.bayesianize(net, rules))
    assert [layer.estimator for layer in s.layers] == ["flipout", "example", None, "weight", "weight"]
    assert [line.split()[3:] for line in str(s).splitlines() if "MCDropout" in line] == [["-", "0", "0"]]
    attention = summary(lb.bayesianize(nn.MultiheadAttention(4, 2), lb.Rank1()))
    assert [(layer.name, layer.type, layer.estimator) for layer in attention.layers] == [
        ("", "MultiheadAttention", "rank1")
    ]
    assert "(model)" in str(attention)


def test_pretrained_prior_means_count_as_bytes():
    s = summary(lb.bayesianize(nn.Linear(20, 10), lb.MeanField(prior=lb.Pretrained())))
    assert s.parameters == 2 * 200 + 10
    assert s.bytes == 4 * (3 * 200 + 10)
    assert s.plain_bytes == 4 * 210


def test_plain_model():
    plain = SmallNet()
    s = assert_counts(plain, size(plain))
    assert (s.layers, s.left, s.notes, s.overhead, s.bytes_overhead) == ((), (), (), 1.0, 1.0)
    assert str(s).startswith("SmallNet: nothing converted\n")
    assert summary(nn.ReLU()).overhead == summary(nn.ReLU()).bytes_overhead == 1.0


def test_tied_weights_count_once():
    plain, _ = build("gpt2")
    expected = size(plain)
    s = assert_counts(lb.bayesianize(plain, lb.MeanField(), where=everywhere), expected)
    rows = {layer.name: layer for layer in s.layers}
    table = rows["model.transformer.wte"]
    assert table.parameters == 2 * table.plain_parameters == 2 * 23 * 8
    assert (rows["model.lm_head"].parameters, rows["model.lm_head"].plain_parameters) == (0, 0)
    assert any("shared by model.transformer.wte, model.lm_head" in note for _, note in s.notes)


def test_one_layer_under_two_names_counts_once():
    layer = nn.Linear(4, 4)
    plain = nn.Sequential(layer, nn.ReLU(), layer)
    s = assert_counts(lb.bayesianize(plain, lb.MeanField()), (20, 80))
    assert [row.name for row in s.layers] == ["0"]


def test_dtypes_are_those_of_now():
    plain = SmallNet().half()
    expected = size(plain)
    assert_counts(lb.bayesianize(SmallNet(), lb.KTied(rank=1)).half(), expected)


def test_fallback_is_noted():
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2))
    s = summary(lb.bayesianize(net, lb.KTied(rank=3)))
    assert s.layers[1].parameters == 2 * 16 + 2
    assert [name for name, note in s.notes if "so it is mean-field" in note] == ["1"]


def test_ensembles():
    plain = create("mlp", in_features=4, hidden=[6], classes=3)
    expected = size(plain)
    s = assert_counts(lb.bayesianize(plain, lb.DeepEnsemble(members=3)), expected)
    assert s.overhead == s.bytes_overhead == 3
    (row,) = s.layers
    assert (row.name, row.type, row.parameters, row.plain_parameters) == ("", "MLP", 3 * expected[0], expected[0])
    s = assert_counts(lb.bayesianize(plain, lb.DeepEnsemble(members=3, of=lb.MeanField(bias="same"))), expected)
    assert s.overhead == 6
    assert all(layer.parameters == 6 * layer.plain_parameters for layer in s.layers)
    assert s.notes[0] == ("", "every parameter is stacked for the 3 members of the ensemble")


def test_parts_converted_apart():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)), nn.Linear(5, 2), nn.Linear(2, 2))
    expected = size(model)
    model[0] = lb.bayesianize(model[0], lb.MeanField())
    model[1] = lb.bayesianize(model[1], lb.DeepEnsemble(members=2))
    s = assert_counts(model, expected)
    assert [(layer.name, type(layer.method).__name__) for layer in s.layers] == [
        ("0.0", "MeanField"),
        ("1", "DeepEnsemble"),
    ]
    assert [name for name, *_ in s.left] == ["0.1"]


def test_nothing_is_changed_and_copies_agree():
    plain, inputs = build("small")
    model = lb.bayesianize(plain, lb.DeepEnsemble(members=2, of=lb.EMP()), where=everywhere)
    state = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    first = summary(model)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert summary(copy.deepcopy(model)) == first
    model(*inputs)


@pytest.mark.parametrize(
    "method, where, parameters, most",
    [
        # 4 components of a mean and a standard deviation for each input and output feature.
        (lb.Rank1(components=4), None, 11_689_512 + 8 * 10_155, 1.02),
        (lb.KTied(rank=2), None, None, 1.01),
        (lb.EMP(), lb.norms(), 11_689_512 + 4 * 9_600, 1.02),
        (lb.EMP(), None, 11_689_512 + 4 * (9_600 + 513_000), 1.18),
    ],
)
def test_bytes_over_a_plain_resnet18(method, where, parameters, most):
    plain = create("resnet18")
    expected = size(plain)
    s = assert_counts(lb.bayesianize(plain, method, where=where), expected)
    assert s.plain_parameters == 11_689_512
    assert 1 < s.bytes_overhead <= most
    assert parameters in (None, s.parameters)
    if where is None and not isinstance(method, lb.EMP):
        assert {reason for *_, reason in s.left} == {f"{type(method).__name__} does not support BatchNorm2d"}


def test_lazy_modules_that_have_not_run_count_nothing():
    model = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Linear(8, 3))
    found = lb.summary(lb.bayesianize(model, lb.MeanField()))
    assert (found.plain_parameters, found.parameters) == (27, 51)
    assert ("0", "LazyLinear", "it is lazy; run the model once first") in found.left


def test_table_of_a_short_model():
    net = nn.Sequential(nn.Linear(20, 50), nn.BatchNorm1d(50), nn.Linear(50, 10))
    text = str(summary(lb.bayesianize(net, lb.MeanField(prior=lb.Normal(0, 1)))))
    assert text.splitlines() == [
        "Sequential: 2 layers converted, 1 left alone",
        "",
        "             plain      now  overhead",
        "parameters   1,660    3,160    1.904x",
        "bytes       7.0 kB  13.0 kB    1.851x",
        "",
        "layer       type    method                                  estimator  plain    now",
        "0           Linear  MeanField(prior=Normal(mean=0, std=1))  local      1,050  2,050",
        "2           Linear  MeanField(prior=Normal(mean=0, std=1))  local        510  1,010",
        "(the rest)                                                               100    100",
        "",
        "left alone",
        "  BatchNorm1d: MeanField does not support BatchNorm1d [1]",
    ]


def test_table_of_a_long_model_groups_layers():
    text = str(summary(lb.bayesianize(create("resnet50", classes=10), lb.MeanField())))
    assert len(text.splitlines()) < 20
    assert "layer*.*.conv* (48 layers)" in text
    assert "[bn1, layer1.0.bn1, layer1.0.bn2 and 50 more]" in text
    assert max(map(len, text.splitlines())) < 120


def test_anything_else_is_an_error():
    with pytest.raises(TypeError, match="summary takes an nn.Module, not dict"):
        summary({})
