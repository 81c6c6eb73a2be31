"""Whether folded samples stay apart in a model, tried on a few rows."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from leanbayes._components import in_turn, mixture_parts
from leanbayes._inputs import call, output_tensor, rows, tensors
from leanbayes._rows import example_axes, map_rows
from leanbayes._sampling import (
    Assigned,
    Sampling,
    Stream,
    current_frame,
    current_sampling,
    fold,
    one_pass,
    using,
)
from leanbayes.nn._base import ConvertedLayer
from leanbayes.nn._replica import replica

# What the forward of a model may raise that is given other rows than those it was made for.
ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)

# What rounding may take off an output, as a share of it, in which hidden units cancel that are far larger.
_CANCELLED = 1e-4


def folds_apart(model: nn.Module, x: Any, batch_dim: int, when_in_doubt: bool = False) -> bool:
    """Whether two folded samples of a few rows are those that run alone, under the same noise, in eval mode.

    They are not where layers find the examples on an axis that the model has moved them from, or where rows meet.

    Args:
        model: The model.
        x: One batch.
        batch_dim: Axis of its examples.
        when_in_doubt: The answer where samples run alone, but folded ones fail, and where layers see only some of the
            rows, which need not be as many in every sample.
    """
    parts = mixture_parts(model)
    trial = _Trial(model, copied(few_rows(x, rows(x, batch_dim), 3, batch_dim)), batch_dim)

    def apart(*points: int) -> bool:
        picked = [in_turn(parts, 1, point) for point in points]
        try:
            alone = [trial.run((number,), [each]) for number, each in enumerate(picked)]
        except ERRORS:
            return True  # a model that does not run on three rows
        if alone[0].output.dim() == 0:
            return True  # without rows there is nothing to keep apart; who runs it says what is wrong
        try:
            together = trial.run(tuple(range(len(points))), picked)
        except ERRORS:
            return when_in_doubt
        if not when_in_doubt and any(run.sees_some_rows for run in alone):
            return False
        return _is_same(model, together, alone, batch_dim)

    # Samples of one component as well: an ensemble folds them apart from those of others.
    return apart(0, 1) and (not parts or apart(0, 0))


class _Run(NamedTuple):
    """What came out of a trial.

    Attributes:
        output: The model's output.
        rows: How many rows each random layer was given, in all its calls.
        sees_some_rows: Whether there were calls with some of the model's rows, or none of them.
    """

    output: Tensor
    rows: Counter[str]
    sees_some_rows: bool


class _Trial:
    """Runs samples of three rows through a replica in eval mode that counts the rows which layers are given."""

    def __init__(self, model: nn.Module, x: Any, batch_dim: int) -> None:
        self.x, self.batch_dim = x, batch_dim
        self.running = replica(model, own_hooks=True).train(False)
        self.rows: Counter[str] = Counter()
        self.sees_some_rows = False
        for name, module in self.running.named_modules():
            if isinstance(module, ConvertedLayer):
                module.register_forward_pre_hook(partial(self._count, name))

    def run(self, seeds: tuple[int, ...], points: list[dict[int, Assigned]]) -> _Run:
        """Samples that have these seeds, and these components in every group."""
        n = len(seeds)
        streams = tuple(Stream(seed) for seed in seeds)
        assigned = {group: Assigned(tuple(int(point[group].index[0]) for point in points)) for group in points[0]}
        spec = Sampling(n=n, joint=True, streams=streams, assigned=assigned, batch_dim=self.batch_dim)
        self.rows, self.sees_some_rows = Counter(), False
        with torch.no_grad(), one_pass(spec, 3 * n, self.running):
            output = output_tensor(call(self.running, fold(copied(self.x), n, self.batch_dim)))
        return _Run(output, self.rows, self.sees_some_rows)

    def _count(self, name: str, layer: ConvertedLayer, args: Any) -> None:
        x, frame = args[0] if args else None, current_frame()
        if not isinstance(x, Tensor) or not x.dim() or frame is None or frame.rows is None:
            return
        # Recurrent and attention layers know their axis of examples.
        known = getattr(layer, "input_rows", None)
        count = x.shape[layer.rows_axis(x, current_sampling())] if known is None else known(x)
        if count == 1:
            return  # what all rows share, such as positions
        self.rows[name] += count
        self.sees_some_rows |= count % frame.rows != 0


def _is_same(model: nn.Module, together: _Run, alone: list[_Run], batch_dim: int) -> bool:
    """Whether folded samples are those that ran alone, but for the rounding of other products."""
    first, second = (run.output for run in alone)
    (axis, *_) = example_axes([first.shape, together.output.shape], [3, 6], batch_dim) or [0]
    expected = torch.cat([first, second], axis)
    # Where two samples give a layer no more rows than one does, these are none of the samples' rows.
    if together.output.shape != expected.shape or together.rows != sum((run.rows for run in alone), Counter()):
        return False
    error, spread = _rms(together.output - expected), _rms(second - first)
    rounding = max(8 * _coarsest(model, expected), _CANCELLED)
    return error <= 0.1 * spread + rounding * _rms(expected) + 1e-12


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
