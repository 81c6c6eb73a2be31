"""Gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def assert_gradients_match(
    function: Callable[[], Tensor],
    parameters: Sequence[nn.Parameter],
    *,
    step: float = 1e-5,
    tolerance: float = 1e-4,
    entries: int = 4,
) -> None:
    """Fail where backward disagrees with central differences.

    Args:
        function: Gives a scalar from the parameters, the same one each time (fix its noise).
        parameters: float64 parameters.
        step: Half the distance of the two evaluations.
        tolerance: Error allowed, relative to the largest gradient.
        entries: How many entries of each parameter are tried, spread over it.
    """
    trained = [p for p in parameters if p.requires_grad]
    value = function()
    # A constant has no graph, and its gradient is zero.
    grads = torch.autograd.grad(value, trained, allow_unused=True) if value.requires_grad else [None] * len(trained)
    for number, (parameter, grad) in enumerate(zip(trained, grads)):
        grad = torch.zeros_like(parameter) if grad is None else grad
        flat = parameter.detach().view(-1)
        for i in range(0, flat.numel(), max(1, flat.numel() // entries)):
            start = float(flat[i])
            values = []
            for moved in (start + step, start - step):
                flat[i] = moved
                with torch.no_grad():
                    values.append(float(function()))
            flat[i] = start
            slope = (values[0] - values[1]) / (2 * step)
            got = float(grad.reshape(-1)[i])
            if not abs(got - slope) <= tolerance * max(1.0, float(grad.abs().max())):
                raise AssertionError(
                    f"gradient of parameter {number} {tuple(parameter.shape)}, entry {i}: backward gives {got:.6g}, "
                    f"finite differences {slope:.6g}"
                )
