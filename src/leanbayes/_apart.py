"""Whether folded samples stay apart in a model, tried on a few rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from leanbayes._components import in_turn, mixture_parts
from leanbayes._inputs import call, output_tensor, rows, tensors
from leanbayes._rows import example_axes, map_rows
from leanbayes._sampling import Sampling, Stream, fold, one_pass, using
from leanbayes.nn._replica import replica

# What the forward of a model may raise that is given other rows than those it was made for.
ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)


def folds_apart(model: nn.Module, x: Any, batch_dim: int, unless_it_fails: bool = False) -> bool:
    """Whether two folded samples of a few rows are those that run alone, under the same noise, in eval mode.

    They are not where layers find the examples on an axis that the model has moved them from, or where rows meet.

    Args:
        model: The model.
        x: One batch.
        batch_dim: Axis of its examples.
        unless_it_fails: The answer where samples run alone, but folded ones fail.
    """
    running = replica(model).train(False)
    parts = mixture_parts(model)

    def run(*numbers: int) -> Tensor:
        n, streams = len(numbers), tuple(Stream(number) for number in numbers)
        # Other components for other samples: those that are equal would not be told apart.
        assigned = in_turn(parts, n, numbers[0])
        spec = Sampling(n=n, joint=True, streams=streams, assigned=assigned, batch_dim=batch_dim)
        some = copied(few_rows(x, rows(x, batch_dim), 3, batch_dim))
        with torch.no_grad(), one_pass(spec, 3 * n, running):
            return output_tensor(call(running, fold(some, n, batch_dim)))

    try:
        alone = [run(number) for number in (0, 1)]
    except ERRORS:
        return True  # a model that does not run on three rows
    if alone[0].dim() == 0:
        return True  # without rows there is nothing to keep apart; who runs it says what is wrong
    try:
        together = run(0, 1)
    except ERRORS:
        return unless_it_fails
    (axis, *_) = example_axes([alone[0].shape, together.shape], [3, 6], batch_dim) or [0]
    if together.shape != torch.cat(alone, axis).shape:
        return False
    error, spread = _rms(together - torch.cat(alone, axis)), _rms(alone[1] - alone[0])
    # Numbers of other products are rounded otherwise.
    return error <= 0.1 * spread + 8 * _coarsest(model, together) * _rms(together) + 1e-12


def draws_by_itself(model: nn.Module, x: Any, batch_dim: int) -> bool:
    """Whether a model draws from torch's generators, whatever its converted layers do; they are left as they were."""
    device = next(tensors(x)).device
    some = copied(few_rows(x, rows(x, batch_dim), 3, batch_dim))
    before = generator_state(device)
    try:
        with torch.no_grad(), using(Sampling(mean=True, batch_dim=batch_dim)):
            call(replica(model).train(False), some)
    except ERRORS:
        return True
    finally:
        after = generator_state(device)
        restore_generators(device, before)
    return any(not torch.equal(one, other) for one, other in zip(before, after))


def _rms(x: Tensor) -> float:
    """Root of the mean square of what is finite."""
    return float(torch.where(x.isfinite(), x, 0).double().square().mean().sqrt()) if x.numel() else 0.0


def _coarsest(model: nn.Module, output: Tensor) -> float:
    """The rounding error of the least precise numbers that a model computes with."""
    device = output.device.type
    dtypes = {output.dtype, *(parameter.dtype for parameter in model.parameters())}
    if torch.is_autocast_enabled(device):
        dtypes.add(torch.get_autocast_dtype(device))
    return max((torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point), default=0.0)


def generator_state(device: torch.device) -> list[Tensor]:
    """What torch's generators of the CPU and of a GPU draw next."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def restore_generators(device: torch.device, state: list[Tensor]) -> None:
    """The inverse of `generator_state`."""
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


def few_rows(x: Any, count: int, wanted: int, batch_dim: int = 0) -> Any:
    """A few rows of a batch, the last one repeated (and scaled, so that rows differ) where there are too few."""

    def take(t: Tensor) -> Tensor:
        if t.shape[batch_dim] != count:
            return t
        some = t.narrow(batch_dim, 0, min(wanted, count))
        last = t.narrow(batch_dim, count - 1, 1)
        for i in range(wanted - count):
            extra = last * (1.1 + 0.1 * i) if t.is_floating_point() else last
            some = torch.cat([some, extra], batch_dim)
        return some

    return map_rows(x, take, batch_dim)


def copied(x: Any) -> Any:
    """A nested input with copies of its tensors."""
    return tree_map_only(Tensor, torch.clone, x)
