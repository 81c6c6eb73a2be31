"""Parameter counts of the published Bayesian networks, by converting the plain ones."""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.models import create


def convert(name, method, *, where=None, **options):
    """A converted model without memory behind it."""
    with torch.device("meta"):
        model = create(name, **options)
    plain = count(model)
    return lb.bayesianize(model, method, where=where), plain


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def statistics(model):
    return sum(b.numel() for name, b in model.named_buffers() if name.endswith(("running_mean", "running_var")))


@pytest.mark.parametrize("method", [lb.EMP(), lb.ECMP()])
def test_patches_of_resnet18(method):
    patched, plain = convert("resnet18", method, where=lb.norms())
    assert count(patched) - plain == 38_400
    with_output, _ = convert("resnet18", method)
    assert count(with_output) == 13_779_912


@pytest.mark.parametrize("method", [lb.EMP(), lb.ECMP()])
def test_patches_of_pyramidnet(method):
    model, _ = convert("pyramidnet", method)
    assert count(model) == 28_825_299


@pytest.mark.parametrize("method", [lb.EMP(), lb.ECMP()])
def test_patches_of_the_hundred_layer_mlp(method):
    options = {"in_features": 100, "hidden": [100] * 99, "classes": 100, "batch_norm": True, "output_bias": False}
    model, plain = convert("mlp", method, **options)
    assert count(model) - plain == 119_200


@pytest.mark.parametrize(
    ("name", "rank1", "batch_ensemble"),
    [("resnet50", 25_974_144, 25_765_588), ("wide_resnet", 36_635_842, 36_557_518)],
)
def test_four_rank1_components(name, rank1, batch_ensemble):
    assert count(convert(name, lb.Rank1(components=4))[0]) == rank1
    assert count(convert(name, lb.BatchEnsemble(components=4))[0]) == batch_ensemble


@pytest.mark.parametrize("method", [lb.VariationalDropout(), lb.VariationalDropout(share="layer", prior=lb.ARD())])
def test_one_log_alpha_per_layer(method):
    where = lb.named("conv12", "conv13", "dense1", "dense2")
    with torch.device("meta"):
        model = create("vgg_like")
    plain, names = count(model), [n for n, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    where = lb.named(*names[-4:])
    assert count(lb.bayesianize(model, method, where=where)) == plain + 4 == 14_991_950


def gaussian_with_biases(rank):
    return lb.MeanField(bias="same") if rank is None else lb.KTied(rank=rank, bias="same")


@pytest.mark.parametrize(("rank", "expected"), [(None, 956_820), (1, 481_614), (2, 484_008), (3, 486_402)])
def test_ktied_mlp(rank, expected):
    assert count(convert("mlp", gaussian_with_biases(rank))[0]) == expected


@pytest.mark.parametrize(("rank", "expected"), [(None, 4_405_320), (1, 2_262_188), (2, 2_267_408), (3, 2_272_628)])
def test_ktied_cnn(rank, expected):
    """Only the two hidden dense layers are k-tied; convolutions and the output are mean-field."""
    rules = {"dense[12]": gaussian_with_biases(rank), "*": lb.MeanField(bias="same")}
    assert count(convert("ktied_cnn", rules)[0]) == expected


@pytest.mark.parametrize(("rank", "expected"), [(None, 2_822_913), (1, 2_693_121), (2, 2_694_401), (3, 2_695_681)])
def test_ktied_text_lstm(rank, expected):
    """The output is mean-field whatever the rank; torch's LSTM has one more bias of 512 than the published one."""
    method = lb.MeanField() if rank is None else lb.KTied(rank=rank)
    model, _ = convert("text_lstm", {"lstm": method, "output": lb.MeanField(), "*": None})
    assert count(model) == expected + 512


@pytest.mark.parametrize(("rank", "expected"), [(None, 9_814_026), (1, 4_929_711), (2, 4_946_964), (3, 4_964_217)])
def test_ktied_resnet(rank, expected):
    """Biases and norms are points, and the published count has the moving statistics in it."""
    model, _ = convert("ktied_resnet", lb.MeanField() if rank is None else lb.KTied(rank=rank))
    assert count(model) + statistics(model) == expected


def size(model):
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize(
    ("method", "where", "limit"),
    [
        (lb.Rank1(components=4), None, 1.02),
        (lb.EMP(), lb.norms(), 1.02),
        (lb.KTied(), None, 1.01),
        (lb.EMP(), None, 1.18),
        (lb.MeanField(), None, 2.0),
    ],
)
def test_bytes_over_the_plain_resnet18(method, where, limit):
    with torch.device("meta"):
        plain = size(create("resnet18"))
    assert 1 < size(convert("resnet18", method, where=where)[0]) / plain <= limit


def test_a_model_without_memory_converts_as_one_with():
    for method in (
        lb.MeanField(),
        lb.KTied(),
        lb.VariationalDropout(share="neuron"),
        lb.Rank1(random_sign=0.5),
        lb.BatchEnsemble(),
        lb.EMP(),
        lb.ECMP(),
        lb.MCDropout(),
        lb.DropConnect(),
        lb.VarianceLayer(),
        lb.DeepEnsemble(members=2),
        lb.DeepEnsemble(members=2, of=lb.MeanField()),
    ):
        empty, _ = convert("lenet5", method, batch_norm="all")
        full = lb.bayesianize(create("lenet5", batch_norm="all"), method)
        shapes = {name: value.shape for name, value in full.state_dict().items()}
        assert {name: value.shape for name, value in empty.state_dict().items()} == shapes
        assert all(p.is_meta for p in empty.parameters())
        assert math.prod(empty.state_dict()[next(iter(shapes))].shape) > 0
