"""Gradients of a scaling by a kernel, in Triton's interpreter."""

import pytest
import torch

from leanbayes.kernels import scale_slopes as module
from leanbayes.kernels._dispatch import interpreted
from leanbayes.kernels.scale_slopes import scale_slopes, scale_slopes_reference
from leanbayes.kernels.scale_slopes.triton import scaled_layout
from tests.kernels.scale_slopes_checks import CASES, check, scaled

in_interpreter = pytest.mark.skipif(not interpreted(), reason="test_interpreted.py runs it in Triton's interpreter")
each_case = pytest.mark.parametrize("case", CASES)


@in_interpreter
@each_case
def test_gradients(case):
    check(case, "cpu")


@in_interpreter
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", ["image", "image, channels last"])
def test_half_precision(case, dtype):
    check(case, "cpu", dtype)


@in_interpreter
def test_registrations_are_right():
    torch.library.opcheck(module._slopes, scaled("image"))


@each_case
def test_the_definition_is_what_autograd_gives(case):
    grad, value, scale = (each.double() for each in scaled(case))
    leaves = value.clone().requires_grad_(), scale.clone().requires_grad_()
    expected = torch.autograd.grad(leaves[0] * leaves[1], leaves, grad)
    for found, truth in zip(scale_slopes_reference(grad, value, scale), expected):
        torch.testing.assert_close(found, truth)


def test_what_the_kernel_cannot_take_is_computed_by_torch():
    value = torch.randn(4, 6, 5, 5)
    rows_apart = torch.randn(1, 6, 1, 1)  # in this layout images of several rows do not follow each other
    for one, scale in ((value, rows_apart), (value[..., ::2], value[:, :, :1, :1]), (value, value[..., :1])):
        assert scaled_layout(one, scale) is None
        grad = torch.randn(one.shape)
        with torch.no_grad():
            found = scale_slopes(grad, one, scale)
        for ours, truth in zip(found, scale_slopes_reference(grad, one, scale)):
            torch.testing.assert_close(ours, truth)


def test_gradients_can_be_differentiated_again():
    values = [each.double().requires_grad_() for each in scaled("sequence")]
    assert torch.autograd.gradcheck(scale_slopes, values)
