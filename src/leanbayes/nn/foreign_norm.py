"""Norms of other libraries with K copies of their parameters: what they compute stays their own affair."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes._sampling import Sampling
from leanbayes.nn._replica import call_leaf
from leanbayes.nn.norm import NormLayer
from leanbayes.ops import rows_per_sample


class ForeignNormLayer(NormLayer):
    """A norm of another library that is called with drawn parameters, whatever it makes of them.

    Rows with different draws run under `torch.func.vmap`, or in a loop where the norm does not allow that.
    """

    def _prepare(self, template: nn.Module) -> None:
        """See `NormLayer`."""
        _, self.trailing, self.batches = behaviour_of(template)

    @property
    def core(self) -> Any:
        """See `NormLayer`; no part of the model, as it holds nothing beside its parameters."""
        return self.template

    def _by_rows(self, x: Tensor, scale: Tensor, shift: Tensor | None, spec: Sampling) -> Tensor:
        """See `NormLayer`; the parameters have the dtype that the norm knows."""
        values = {"weight": scale} if shift is None else {"weight": scale, "bias": shift}
        values = {name: value.to(self.weight.dtype) for name, value in values.items()}
        call = call_together if self.batches else call_in_turn
        return call(self.template, values, x, self.rows_axis(x, spec))


def is_foreign_norm(module: nn.Module) -> bool:
    """Whether a module looks like a norm that torch does not know; `behaviour_of` tries what it does.

    It is called a norm, computes something of its own from one input, and holds a scale ``[features]``, perhaps a shift
    of that shape, and nothing else.
    """
    kind = type(module)
    if not any("Norm" in base.__name__ for base in kind.__mro__) or not _takes_one_input(kind.forward):
        return False
    held = {name: value for name, value in module._parameters.items() if value is not None}
    lazy = any(isinstance(value, nn.UninitializedParameter) for value in held.values())
    if lazy or [*module.children(), *module.buffers()] or set(held) not in ({"weight"}, {"weight", "bias"}):
        return False
    return all(value.dim() == 1 and value.shape == held["weight"].shape for value in held.values())


def _takes_one_input(forward: Callable[..., Any]) -> bool:
    """Whether a class's forward is none of torch's, and has one argument."""
    if (forward.__module__ or "").startswith("torch."):
        return False
    try:
        kinds = [each.kind for each in inspect.signature(forward).parameters.values()]
    except (TypeError, ValueError):
        return False  # not written in Python
    return kinds[1:] == [inspect.Parameter.POSITIONAL_OR_KEYWORD]


class Behaviour(NamedTuple):
    """What a norm does with small inputs.

    Attributes:
        problem: Why its rows cannot have parameters of their own, None where they can.
        by_position: Whether it treats each vector of the last axis by itself, so that rows may lie on any other axis.
        batches: Whether `call_together` gives what `call_in_turn` does.
    """

    problem: str | None
    by_position: bool = False
    batches: bool = False


@torch.no_grad()
def behaviour_of(module: Any) -> Behaviour:
    """Try a norm with random parameters on random inputs, with the features on the last axis and on the second."""
    width = len(module.weight)
    # Sizes that differ, so that no axis passes for another.
    rows, side = [size for size in (3, 2, 4) if size != width][:2]
    generator = torch.Generator().manual_seed(0)
    device = torch.device("cpu") if module.weight.is_meta else module.weight.device

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").to(device)

    values = {name: 1 + 0.3 * random(rows, width) for name, held in module._parameters.items() if held is not None}
    one = {name: value[0] for name, value in values.items()}
    other_mode = copy.copy(module)
    other_mode.training = not module.training
    positions: list[bool] = []
    batches: list[bool] = []
    last = [(rows, *(side,) * count, width) for count in range(3)]
    second = [(rows, width, *(side,) * count) for count in (1, 2, 3)]
    for shape in (*last, *second):
        x = random(*shape)
        expected = _attempt(call_leaf, module, one, x)
        if not isinstance(expected, Tensor) or expected.shape != x.shape:
            continue  # not what the norm takes

        def alone(axis: int, x: Tensor = x, expected: Tensor = expected) -> bool:
            same = {name: value.expand(x.shape[axis], width) for name, value in one.items()}
            return _same(expected, _attempt(call_in_turn, module, same, x, axis))

        if not _same(expected, _attempt(call_leaf, other_mode, one, x)):
            return Behaviour("its output depends on more than its input")
        if not alone(0):
            return Behaviour("it treats the rows of a batch together")
        if shape in last:
            positions += [alone(axis) for axis in range(1, len(shape) - 1)]
        batches.append(_same(call_in_turn(module, values, x, 0), _attempt(call_together, module, values, x, 0)))
    if not batches:
        return Behaviour(f"no conversion of {type(module).__name__} is known")
    return Behaviour(None, bool(positions) and all(positions), all(batches))


def _attempt(function: Callable[..., Any], *args: Any) -> Any:
    """What comes of code that is not ours, None where it raises anything."""
    try:
        return function(*args)
    except Exception:
        return None


def _same(expected: Tensor, found: Any) -> bool:
    fits = isinstance(found, Tensor) and found.shape == expected.shape and found.dtype == expected.dtype
    return fits and torch.allclose(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def call_together(module: nn.Module, values: Mapping[str, Tensor], x: Tensor, axis: int) -> Tensor:
    """Call a norm on k equal parts of x along an axis, each with parameters of its own, in one go.

    Args:
        module: The norm.
        values: Its parameters, ``[k, features]`` or ``[features]`` for all parts.
        x: The input.
        axis: The axis of the rows, of which each part has a run.
    """
    axes = {name: 0 if value.dim() > 1 else None for name, value in values.items()}
    run = torch.func.vmap(lambda own, part: call_leaf(module, own, part), in_dims=(axes, axis), out_dims=axis)
    return run(dict(values), _parts(values, x, axis)).flatten(axis, axis + 1)


def call_in_turn(module: nn.Module, values: Mapping[str, Tensor], x: Tensor, axis: int) -> Tensor:
    """What `call_together` gives, for norms that `torch.func.vmap` cannot run."""
    outputs = []
    for number, part in enumerate(_parts(values, x, axis).unbind(axis)):
        own = {name: value[number] if value.dim() > 1 else value for name, value in values.items()}
        outputs.append(call_leaf(module, own, part))
    return torch.cat(outputs, axis)


def _parts(values: Mapping[str, Tensor], x: Tensor, axis: int) -> Tensor:
    """The parts of x on an axis of their own, at `axis`."""
    count = max(value.shape[0] for value in values.values() if value.dim() > 1)
    return x.unflatten(axis, (count, rows_per_sample(x.shape[axis], count)))
