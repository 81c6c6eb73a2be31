"""The norm between two rank-1 layers: plain torch in float64 is the truth."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from leanbayes.kernels._dispatch import fused
from leanbayes.kernels.scaled_norm import scaled_norm, scaled_norm_eval
from leanbayes.kernels.scaled_norm.reference import Settings, backward_reference, forward_reference
from leanbayes.kernels.scaled_norm.triton import backward_triton, forward_triton

EPS = 1e-5


def make(shape=(5, 6, 3, 4), dtype=torch.float32, device="cpu", zero=False):
    generator = torch.Generator().manual_seed(0)

    def draw(*size):
        return torch.randn(*size, generator=generator).to(device)

    n, c = shape[:2]
    last = torch.channels_last
    values = {
        "y": (draw(*shape) + 3).to(dtype).contiguous(memory_format=last),
        "r": 1 + 0.3 * draw(n, c),
        "weight": draw(c),
        "bias": draw(c),
        "residual": draw(*shape).to(dtype).contiguous(memory_format=last),
        "s": 1 + 0.5 * draw(n, c),
    }
    if zero:
        values["s"][0, 0] = 0
    return {name: value.requires_grad_() for name, value in values.items()}


def truth(values, parts, relu):
    """Both outputs and their gradients, by plain torch in float64."""
    exact = {name: value.detach().double().requires_grad_() for name, value in values.items()}
    z = exact["y"]
    if "r" in parts:
        z = z * exact["r"][:, :, None, None]
    z = F.batch_norm(z, None, None, exact["weight"], exact["bias"], training=True, eps=EPS)
    if "residual" in parts:
        z = z + exact["residual"]
    a = z.relu() if relu else z
    scaled = a * exact["s"][:, :, None, None] if "s" in parts else None
    return exact, a, scaled


def arguments(values, parts):
    picked = {name: values[name] if name in parts else None for name in ("r", "residual", "s")}
    return values["y"], picked["r"], values["weight"], values["bias"], picked["residual"], picked["s"]


def check(got, want, tolerance):
    scale = want.abs().mean().clamp_min(1e-3)
    error = (got.double().cpu() - want.cpu()).square().mean().sqrt() / scale
    assert error < tolerance, f"relative error {error:.2g}"


CASES = [
    (parts, relu, plain)
    for parts in map(
        set, itertools.chain.from_iterable(itertools.combinations(["r", "residual", "s"], k) for k in range(4))
    )
    for relu in (True, False)
    for plain in (True, False)
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("parts", "relu", "plain"), CASES)
def test_values_and_gradients_are_those_of_plain_torch(parts, relu, plain, dtype, device="cpu", shape=(5, 6, 3, 4)):
    values = make(shape, dtype, device)
    exact, a, scaled = truth(values, parts, relu)
    first, second, mean, var, _, _ = scaled_norm(*arguments(values, parts), relu, EPS, plain)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-5
    uses_plain = plain or "s" not in parts
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device)
    loss, wanted = 0, 0
    if uses_plain:
        check(first, a, tolerance)
        loss, wanted = loss + (first * weights).sum(), wanted + (a * weights.double()).sum()
    if scaled is not None:
        check(second, scaled, tolerance)
        loss, wanted = loss + (second * weights.cos()).sum(), wanted + (scaled * weights.double().cos()).sum()
    y = exact["y"] * exact["r"][:, :, None, None] if "r" in parts else exact["y"]
    check(mean, y.mean((0, 2, 3)), 1e-5)
    check(var, y.var((0, 2, 3), correction=0), 1e-4)
    loss.backward()
    wanted.backward()
    for name in {"y", "weight", "bias"} | parts:
        check(values[name].grad, exact[name].grad, 2 * tolerance)


def test_a_factor_of_zero_has_its_gradient():
    values = make(zero=True)
    parts = {"r", "residual", "s"}
    exact, _, scaled = truth(values, parts, True)
    second = scaled_norm(*arguments(values, parts), True, EPS, False)[1]
    second.sum().backward()
    scaled.sum().backward()
    assert exact["s"].grad[0, 0].abs() > 0.1
    check(values["s"].grad, exact["s"].grad, 1e-4)
    check(values["residual"].grad, exact["residual"].grad, 1e-4)


@pytest.mark.skipif(not fused(torch.zeros(1)), reason="needs TRITON_INTERPRET=1")
@pytest.mark.parametrize(("parts", "relu", "plain"), CASES[::3] + CASES[-1:])
@pytest.mark.parametrize("shape", [(3, 5, 3, 3), (4, 70, 2, 1)])
def test_the_kernels_give_what_the_reference_gives(parts, relu, plain, shape):
    values = {name: value.detach() for name, value in make(shape).items()}
    settings = Settings(relu, EPS, plain)
    inputs = arguments(values, parts)
    one, other = forward_triton(*inputs, settings), forward_reference(*inputs, settings)
    for got, want in zip((*one[:2], *one[2]), (*other[:2], *other[2])):
        assert (got is None) == (want is None)
        if want is not None:
            check(got, want.double(), 1e-4)
    y, r, weight, bias, residual, s = inputs
    grads = [torch.randn_like(y) if each is not None else None for each in other[:2]]
    rest = (y, r, weight, bias, other[0] if s is None else other[1], s, other[2], settings, residual is not None)
    for got, want in zip(backward_triton(*grads, *rest), backward_reference(*grads, *rest)):
        assert (got is None) == (want is None)
        if want is not None:
            check(got, want.double(), 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("parts", "relu", "plain"), CASES)
def test_known_statistics_give_what_plain_torch_gives(parts, relu, plain, dtype, device="cpu", shape=(5, 6, 3, 4)):
    values = {name: value.detach() for name, value in make(shape, dtype, device).items()}
    mean, var = (torch.rand(shape[1], generator=torch.Generator().manual_seed(k)).to(device) + 1 for k in (2, 3))
    exact = {name: value.double() for name, value in values.items()}
    z = exact["y"] * exact["r"][:, :, None, None] if "r" in parts else exact["y"]
    z = F.batch_norm(z, mean.double(), var.double(), exact["weight"], exact["bias"], eps=EPS)
    z = z + exact["residual"] if "residual" in parts else z
    a = z.relu() if relu else z
    y, r, weight, bias, residual, s = arguments(values, parts)
    first, second = scaled_norm_eval(y, r, weight, bias, residual, s, mean, var, relu, EPS, plain)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-5
    if plain or s is None:
        check(first, a, tolerance)
    if s is not None:
        check(second, a * exact["s"][:, :, None, None], tolerance)


def test_a_second_derivative_is_refused():
    values = make()
    second = scaled_norm(*arguments(values, {"s"}), True, EPS, False)[1]
    (grad,) = torch.autograd.grad(second.sum(), values["y"], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated again"):
        grad.sum().backward()
