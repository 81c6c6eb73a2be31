"""Local reparameterisation in the dense layers of a transformer block, against its products alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb
from benchmarks._recorded import recorded
from leanbayes.bench.figures import verdict
from leanbayes.bench.measuring import free, interleaved
from leanbayes.bench.profiling import profile
from leanbayes.compiling import compiled

# Both passes of a layer over their products, on a GPU.
AT_MOST = 1.10
# Of figures in bfloat16 from those in float64, as a share of their size.
_TOLERANCE = 2e-2
_ROUND_S = 0.05


def layers(width: int) -> dict[str, tuple[int, int]]:
    """The dense layers of a transformer block of that width: inputs and outputs of each."""
    return {
        "in_proj": (width, 3 * width),
        "out_proj": (width, width),
        "linear1": (width, 4 * width),
        "linear2": (4 * width, width),
    }


def measure(width: int, sequences: int, tokens: int, repeats: int, device: torch.device) -> Iterator[dict]:
    """Forward and backward pass of each layer, and of all of them together."""
    rows = []
    for name, (inputs, outputs) in layers(width).items():
        rows.append(_layer(f"{name}, {inputs} to {outputs}", inputs, outputs, (sequences, tokens), repeats, device))
        yield rows[-1]
        free(device)
    seconds = {name: sum(row["seconds"][name] for row in rows) for name in rows[0]["seconds"]}
    yield _row("all four", seconds, sequences * tokens, device)


def _layer(name: str, inputs: int, outputs: int, rows: tuple[int, int], repeats: int, device: torch.device) -> dict:
    torch.manual_seed(0)
    plain = nn.Linear(inputs, outputs).to(device)
    # Noise of the size of the outputs: `check` reads it off them.
    method = lb.MeanField(estimator="local", init_std=inputs**-0.5)
    local = lb.bayesianize(nn.Linear(inputs, outputs), method).to(device)
    x = torch.randn(*rows, inputs, device=device, dtype=torch.bfloat16).requires_grad_()
    grad = torch.randn(*rows, outputs, device=device, dtype=torch.bfloat16)
    functions = {
        "local": recorded(lambda: _both_passes(local, x, grad), device),
        "products": recorded(lambda: _products(x, grad, outputs), device),
        "plain": recorded(lambda: _both_passes(plain, x, grad), device),
    }
    check(local, x, grad, functions["local"]())
    times = interleaved(functions, repeats, device, _ROUND_S if device.type == "cuda" else 0.0)
    row = _row(name, {kind: median(values) for kind, values in times.items()}, rows[0] * rows[1], device)
    return row | {"work": profile(functions["local"], device)}


def _row(name: str, seconds: Mapping[str, float], batch: int, device: torch.device) -> dict:
    ratio = seconds["local"] / seconds["products"]
    held = verdict(ratio, AT_MOST if device.type == "cuda" else None)
    row = {"name": name, "batch": batch, "local_over_products": ratio, **held}
    return row | {"local_over_plain": seconds["local"] / seconds["plain"], "seconds": seconds}


def _both_passes(layer: nn.Module, x: Tensor, grad: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Output, and gradients in the input and in all parameters, which are kept in float32."""
    forward, parameters = compiled(layer), tuple(layer.parameters())

    def run() -> tuple[Tensor, ...]:
        with torch.autocast(x.device.type, torch.bfloat16):
            y = forward(x)
        return y, *torch.autograd.grad(y, (x, *parameters), grad)

    return run


def _products(x: Tensor, grad: Tensor, outputs: int) -> Callable[[], tuple[Tensor, ...]]:
    """The products of both passes of mean and variance, of matrices that are there in bfloat16, and nothing else."""
    x, grad = x.detach().flatten(0, 1), grad.flatten(0, 1)
    squares, by_variance = x.square(), torch.randn_like(grad)
    mean = torch.randn(outputs, x.shape[1], device=x.device, dtype=x.dtype) / x.shape[1] ** 0.5
    var = 1e-4 * torch.rand_like(mean)

    def run() -> tuple[Tensor, ...]:
        forward = x @ mean.T, squares @ var.T
        to_input = grad @ mean, by_variance @ var
        to_weight = grad.T @ x, by_variance.T @ squares
        return *forward, *to_input, *to_weight

    return run


def check(layer: nn.Module, x: Tensor, grad: Tensor, found: tuple[Tensor, ...]) -> None:
    """Time is taken of right results only: against float64, with the noise that the output must have had."""
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, *layer.parameters())]
    named = dict(zip(["x", *(name.rpartition(".")[2] for name, _ in layer.named_parameters())], exact))
    mean = F.linear(named["x"], named["loc"], named["bias"])
    std = F.linear(named["x"].square(), F.softplus(named["raw_std"]).square()).sqrt()
    y, *gradients = found
    eps = ((y.double() - mean) / std).detach()
    moments = torch.stack([eps.mean(), eps.square().mean() - 1])
    # Six standard errors of the second moment, and room for the rounding of outputs.
    assert float(moments.abs().max()) < 6 * (2 / eps.numel()) ** 0.5 + 1e-3, f"noise has moments off by {moments}"
    expected = torch.autograd.grad(mean + std * eps, exact, grad.double())
    for name, value, truth in zip(named, gradients, expected, strict=True):
        apart = float((value.double() - truth).norm() / truth.norm())
        assert apart < _TOLERANCE, f"the gradient in {name} is {apart:.2g} of its size away from that in float64"
