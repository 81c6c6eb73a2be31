"""Parameter counts: of the plain models, and of published Bayesian ones by closed form from the plain shapes."""

import math

import pytest
import torch
from torch import nn

from leanbayes.models import create

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
KERNELS = (nn.Conv2d, nn.Linear)


def build(name, **options):
    """The model without memory behind it: shapes are all that a count needs."""
    with torch.device("meta"):
        return create(name, **options)


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def kernels(model, types=KERNELS):
    return [module for module in model.modules() if isinstance(module, types)]


def norm_count(model):
    return sum(count(module) for module in kernels(model, NORMS))


def tied(weight, rank):
    """Standard deviations of a k-tied weight, as a matrix [out, in * kernel height * kernel width]."""
    rows = weight.shape[0]
    return rank * (rows + math.prod(weight.shape[1:]))


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("mlp", {}, 478_410),
        ("lenet5", {}, 431_080),
        ("lenet5", {"batch_norm": "dense"}, 432_080),
        ("lenet5", {"bias": False}, 430_500),
        ("lenet5", {"bias": False, "batch_norm": "all"}, 431_640),
        ("vgg_like", {}, 14_991_946),
        ("vgg_like", {"classes": 20}, 14_997_076),
        ("resnet18", {}, 11_689_512),
        ("resnet18", {"classes": 10, "stem": "cifar"}, 11_173_962),
        ("resnet50", {}, 25_557_032),
        ("resnet50", {"classes": 10, "stem": "cifar"}, 23_520_842),
        ("ktied_resnet", {}, 4_908_490),
        ("wide_resnet", {}, 36_479_194),
        ("wide_resnet", {"classes": 100}, 36_536_884),
        ("pyramidnet", {}, 28_511_307),
        ("ktied_cnn", {}, 2_202_660),
        ("text_lstm", {}, 2_692_225),
        ("event_lstm", {}, 230 * 32 + 4 * 64 * (32 + 64 + 2) + 65 * 32 + 33),
        ("record_lstm", {}, 4 * 128 * (76 + 128 + 2) + 129),
    ],
)
def test_plain(name, options, expected):
    assert count(build(name, **options)) == expected


def test_variance_network_adds_one_log_alpha_for_each_of_four_layers():
    assert count(build("vgg_like")) + 4 == 14_991_950


def test_four_narrow_networks_have_the_size_of_a_wide_one():
    model = build("wide_resnet", width=5, classes=100)
    # The published 36.68M is met with 100 classes and the moving statistics, as many as scales and shifts.
    assert round(4 * (count(model) + norm_count(model)) / 1e6, 2) == 36.68


@pytest.mark.parametrize(
    ("name", "rank1", "batch_ensemble"),
    [("resnet50", 25_974_144, 25_765_588), ("wide_resnet", 36_635_842, 36_557_518)],
)
def test_four_rank1_components_on_every_layer(name, rank1, batch_ensemble):
    model = build(name)
    factors = 4 * sum(layer.weight.shape[0] + layer.weight.shape[1] for layer in kernels(model))
    assert count(model) + 2 * factors == rank1
    assert count(model) + factors == batch_ensemble


def test_five_patches_of_resnet18():
    model = build("resnet18")
    assert 4 * norm_count(model) == 38_400
    assert count(model) + 4 * (norm_count(model) + count(model.fc)) == 13_779_912


def test_five_patches_of_pyramidnet():
    model = build("pyramidnet")
    assert count(model) + 4 * (norm_count(model) + count(model.fc)) == 28_825_299


def test_five_patches_of_the_hundred_layer_mlp():
    model = build("mlp", in_features=100, hidden=[100] * 99, classes=100, batch_norm=True, output_bias=False)
    # The published totals leave the 99 norms out and add their patches.
    assert norm_count(model) == 19_800
    assert count(model) - norm_count(model) == 1_009_900
    assert 4 * (norm_count(model) + count(model.output)) == 119_200


@pytest.mark.parametrize(
    ("name", "tied_layers", "mean_field", "by_rank"),
    [
        ("mlp", ("dense1", "dense2", "output"), 956_820, (481_614, 484_008, 486_402)),
        ("ktied_cnn", ("dense1", "dense2"), 4_405_320, (2_262_188, 2_267_408, 2_272_628)),
    ],
)
def test_ktied_with_gaussian_biases(name, tied_layers, mean_field, by_rank):
    model = build(name)
    assert 2 * count(model) == mean_field
    weights = [model.get_submodule(layer).weight for layer in tied_layers]
    untied = 2 * count(model) - sum(weight.numel() for weight in weights)
    for rank, expected in enumerate(by_rank, start=1):
        assert untied + sum(tied(weight, rank) for weight in weights) == expected


def test_ktied_text_lstm():
    model = build("text_lstm")
    second_bias = model.lstm.bias_hh_l0.numel()
    lstm_kernels = (model.lstm.weight_ih_l0, model.lstm.weight_hh_l0)
    # The output kernel is mean-field whatever the rank; biases and embedding are points.
    points_and_output = count(model) + model.output.weight.numel()
    assert second_bias == 512
    assert points_and_output + sum(kernel.numel() for kernel in lstm_kernels) == 2_822_913 + second_bias
    for rank, expected in enumerate((2_693_121, 2_694_401, 2_695_681), start=1):
        assert points_and_output + sum(tied(kernel, rank) for kernel in lstm_kernels) == expected + second_bias


def test_ktied_resnet_with_moving_statistics_counted():
    model = build("ktied_resnet")
    weights = [layer.weight for layer in kernels(model)]
    statistics = sum(norm.running_mean.numel() + norm.running_var.numel() for norm in kernels(model, NORMS))
    mean_field = count(model) + sum(weight.numel() for weight in weights)
    assert mean_field == 9_810_058
    assert mean_field + statistics == 9_814_026
    for rank, expected in enumerate((4_929_711, 4_946_964, 4_964_217), start=1):
        assert count(model) + statistics + sum(tied(weight, rank) for weight in weights) == expected
