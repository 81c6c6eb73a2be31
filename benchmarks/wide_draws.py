"""Draws of whole weights, against the time that the bytes take which they must move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from benchmarks._recorded import recorded
from leanbayes.bench.figures import verdict
from leanbayes.bench.measuring import free, interleaved
from leanbayes.kernels.weight_sample import free_draws, free_draws_reference, tied_draws, tied_draws_reference

# Time of a k-tied draw, on a GPU, over that of its bytes at the bandwidth of a copy.
AT_MOST = 1.20
_RANK = 2
# From figures in float64, as a share of their size: what rounding the draws costs.
_TOLERANCE = {torch.bfloat16: 1e-2, torch.float32: 1e-3}
_CALLS = 20
_ROUND_S = 0.02
_COPIED = {"cuda": 1 << 30, "cpu": 1 << 22}


@dataclass(frozen=True)
class Family:
    """How the weights of one family are drawn.

    Attributes:
        name: Of the method.
        draw: Draws for parameters, keys and a dtype.
        reference: The same in plain torch.
        parameters: Makes them for a number of rows and of columns: the means, and what the deviations are made of.
    """

    name: str
    draw: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    parameters: Callable[[int, int], list[Tensor]]


def _means(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns) / columns**0.5


FAMILIES = (
    Family(
        "k-tied",
        tied_draws,
        tied_draws_reference,
        lambda rows, columns: [_means(rows, columns), *(torch.randn(n, _RANK) - 2 for n in (rows, columns))],
    ),
    Family(
        "mean-field",
        free_draws,
        free_draws_reference,
        lambda rows, columns: [_means(rows, columns), torch.randn(rows, columns) - 4],
    ),
)


def measure(width: int, repeats: int, device: torch.device) -> Iterator[dict]:
    """Forward and backward pass of a draw of two weights of a transformer block."""
    for columns in (width, 4 * width):
        for family in FAMILIES:
            for dtype in (torch.bfloat16, torch.float32):
                yield from _family(family, width, columns, dtype, repeats, device)
                free(device)


def _family(
    family: Family, rows: int, columns: int, dtype: torch.dtype, repeats: int, device: torch.device
) -> Iterator[dict]:
    torch.manual_seed(0)
    parameters = [tensor.to(device).requires_grad_() for tensor in family.parameters(rows, columns)]
    keys = torch.randint(1 << 60, (1,), device=device)
    grad = torch.randn(1, rows, columns, device=device).to(dtype)
    check(family, parameters, keys, grad)
    gradients = _gradients(family, parameters, keys, grad)()
    # Of one draw in float32, the gradient in the draw is that in the mean: nothing is written.
    written = [each for each in gradients if each.data_ptr() != grad.data_ptr()]
    moved = {
        "forward": _bytes([*parameters, keys]) + _bytes([grad]),  # a draw has the size of its gradient
        "backward": _bytes([grad, *parameters[1:], keys]) + _bytes(written),
    }
    functions = {
        "forward": recorded(lambda: lambda: family.draw(*parameters, keys, dtype=dtype), device, _CALLS),
        "backward": recorded(lambda: _gradients(family, parameters, keys, grad), device, _CALLS),
        "copy": _copy(device),
    }
    times = interleaved(functions, repeats, device, _ROUND_S if device.type == "cuda" else 0.0)
    bandwidth = 2 * _COPIED[device.type] / (median(times["copy"]) / _CALLS)
    for way, size in moved.items():
        seconds = median(times[way]) / _CALLS
        ratio = seconds * bandwidth / size
        about = {"name": f"{family.name}, {rows} x {columns}, {str(dtype).removeprefix('torch.')}", "pass": way}
        figures = {"bytes": size, "bandwidth": bandwidth, "seconds": seconds, "draw_over_bytes": ratio}
        limited = family.name == "k-tied" and device.type == "cuda"
        yield about | figures | verdict(ratio, AT_MOST if limited else None)


def _gradients(
    family: Family, parameters: Sequence[Tensor], keys: Tensor, grad: Tensor
) -> Callable[[], tuple[Tensor, ...]]:
    draw = family.draw(*parameters, keys, dtype=grad.dtype)
    return lambda: torch.autograd.grad(draw, parameters, grad, retain_graph=True)


def _copy(device: torch.device) -> Callable[[], Tensor]:
    """Copies within the device, too large for its caches."""
    source = torch.ones(_COPIED[device.type] // 4, device=device)
    target = torch.empty_like(source)
    # By a kernel: `copy_` leaves it to another part of a GPU, which is a third slower.
    return recorded(lambda: lambda: torch.neg(source, out=target), device, _CALLS)


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def check(family: Family, parameters: Sequence[Tensor], keys: Tensor, grad: Tensor) -> None:
    """Time is taken of right results only: draw and gradients against float64, with the same noise."""
    exact = [parameter.detach().double().requires_grad_() for parameter in parameters]
    expected = family.reference(*exact, keys, dtype=torch.float64)
    found = family.draw(*parameters, keys, dtype=grad.dtype)
    pairs = [("draw", found, expected)]
    gradients = torch.autograd.grad(found, parameters, grad), torch.autograd.grad(expected, exact, grad.double())
    pairs += [(f"gradient {number}", *pair) for number, pair in enumerate(zip(*gradients, strict=True))]
    for what, value, truth in pairs:
        apart = float((value.detach().double() - truth.detach()).norm() / truth.detach().norm())
        assert apart < _TOLERANCE[grad.dtype], (
            f"{family.name}: the {what} is {apart:.2g} of its size away from that in float64"
        )
