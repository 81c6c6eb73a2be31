"""Weights in eight bits: rounding within its bound, rows on their own, and what falls back to floating products."""

import copy

import pytest
import torch
import torch.nn.functional as F

from leanbayes import _int8
from leanbayes._int8 import Int8Weight, has_int8_products, round_weight


@pytest.fixture(params=["whole numbers", "floating"])
def products(request, monkeypatch):
    """Both ways to multiply, where this CPU has both."""
    if request.param == "floating":
        monkeypatch.setattr(_int8, "has_int8_products", lambda: False)
    elif not has_int8_products():
        pytest.skip("this CPU has no products of whole numbers")
    monkeypatch.setattr(_int8, "_SMALLEST", 0)
    return request.param


def bound(x, weight, spread, reduce, rounded):
    """The largest error of ``spread(x, weight)``: half a step of each factor times the other one."""
    values, scale = round_weight(weight)
    step = scale.view(-1, *(1,) * (weight.dim() - 1))
    error = spread(x.abs(), step.expand_as(weight) / 2)
    if rounded:
        unit = reduce(x.abs()) / 127
        error = error + spread((unit / 2).expand_as(x), (values * step).abs())
    return error


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (64, 33), (300, 700)])
def test_dense_outputs_are_within_the_bound_of_the_rounding(shape, products):
    torch.manual_seed(0)
    weight, bias, x = torch.randn(shape), torch.randn(shape[0]), torch.randn(6, 3, shape[1])
    y = F.linear(x, Int8Weight(weight), bias)
    error = (y.double() - F.linear(x.double(), weight.double(), bias.double())).abs()
    limit = bound(x.double(), weight.double(), F.linear, lambda t: t.amax(-1, True), products == "whole numbers")
    assert (error <= limit * (1 + 1e-4) + 1e-5).all()
    assert error.max() > 0 or shape == (1, 1)


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2, "padding": 1}, {"padding": (2, 0), "dilation": (1, 2)}, {"padding": "same"}, {"groups": 2}],
    ids=str,
)
@pytest.mark.parametrize("channels", [3, 32])
def test_convolutions_are_within_the_bound_of_the_rounding(options, channels, products):
    torch.manual_seed(0)
    groups = options.get("groups", 1)
    weight, bias = torch.randn(8, channels // groups, 3, 3), torch.randn(8)
    x = torch.randn(4, channels // groups * groups, 9, 11)
    y = F.conv2d(x, Int8Weight(weight), bias, **options)
    assert y.is_contiguous()
    error = (y.double() - F.conv2d(x.double(), weight.double(), bias.double(), **options)).abs()

    def spread(a, b):
        return F.conv2d(a, b, **options)

    limit = bound(x.double(), weight.double(), spread, lambda t: t.amax((1, 2, 3), True), products == "whole numbers")
    assert (error <= limit * (1 + 1e-4) + 1e-5).all()


def test_rows_do_not_depend_on_each_other(products):
    torch.manual_seed(0)
    dense, conv = Int8Weight(torch.randn(20, 50)), Int8Weight(torch.randn(8, 32, 3, 3))
    x, images = torch.randn(5, 50), torch.randn(5, 32, 8, 8)
    x[3] *= 1e4
    images[3] *= 1e4
    torch.testing.assert_close(F.linear(x, dense)[:2], F.linear(x[:2], dense))
    torch.testing.assert_close(F.conv2d(images, conv)[:2], F.conv2d(images[:2], conv), rtol=1e-4, atol=1e-4)


def test_rows_of_zeros_and_weights_of_zeros(products):
    weight = Int8Weight(torch.zeros(4, 6))
    assert torch.equal(F.linear(torch.randn(3, 6), weight), torch.zeros(3, 4))
    bias = torch.randn(4)
    assert torch.equal(F.linear(torch.zeros(3, 6), Int8Weight(torch.randn(4, 6)), bias), bias.expand(3, 4))
    assert F.linear(torch.zeros(0, 6), weight).shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_outputs_have_the_dtype_of_inputs(dtype, products):
    x = torch.randn(3, 6, dtype=dtype)
    assert F.linear(x, Int8Weight(torch.randn(4, 6))).dtype == dtype


def test_gradients_are_those_of_the_floating_weight(products):
    torch.manual_seed(0)
    for weight, x, product in (
        (Int8Weight(torch.randn(4, 6)), torch.randn(3, 6), F.linear),
        (Int8Weight(torch.randn(4, 32, 3, 3)), torch.randn(2, 32, 5, 5), F.conv2d),
    ):
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        product(one, weight).sum().backward()
        product(other, weight.floating()).sum().backward()
        torch.testing.assert_close(one.grad, other.grad)


def test_other_functions_take_the_floating_weight():
    weight = Int8Weight(torch.randn(4, 6))
    assert torch.equal(torch.ones_like(weight), torch.ones(4, 6))
    assert torch.equal(weight * torch.full((2, 4, 6), 2.0), 2 * weight.floating().expand(2, 4, 6))
    volume = Int8Weight(torch.randn(2, 3, 2, 2, 2))
    x = torch.randn(1, 3, 4, 4, 4)
    torch.testing.assert_close(F.conv3d(x, volume), F.conv3d(x, volume.floating()))


def test_copies_stand_alone_and_follow_their_values(products):
    torch.manual_seed(0)
    x = torch.randn(2, 32, 6, 6)
    weight = Int8Weight(torch.randn(4, 32, 3, 3))
    before = F.conv2d(x, weight)
    copied = copy.deepcopy(weight)
    other = torch.randn(4, 32, 3, 3)
    copied.copy_(other)
    assert torch.equal(F.conv2d(x, copied), F.conv2d(x, Int8Weight(other)))
    assert torch.equal(F.conv2d(x, weight), before)
    copied.load_state_dict(weight.state_dict())
    assert torch.equal(F.conv2d(x, copied), before)
