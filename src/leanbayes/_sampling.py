"""The sampling state: how the layers of a converted model draw, and the folding of samples in the batch."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.nn.utils.stateless import _reparametrize_module

from leanbayes._inputs import tensors

Where = bool | Callable[[str, torch.nn.Module], bool]


class Frame:
    """What the layers share during one forward pass, or during one `sampling(hold=True)` context.

    Attributes:
        components: The component index ``[n]`` of each mixture group, by ``id(group)`` and n.
        draws: Draws that must be the same wherever they are used, by ``id(owner)``, kind and n.
        changed_norms: Batch norms that use per-sample statistics while the frame lasts.
        of_layer: Whether it is one layer's own and not that of a whole model.
        spans: Whether models that are called while it is open, a part of a larger one, share its draws.
        rows: Number of rows of the model's input where samples are folded in it.
    """

    def __init__(
        self, components: dict[Any, Tensor] | None = None, draws: dict[Any, Any] | None = None, spans: bool = False
    ) -> None:
        self.components: dict[Any, Tensor] = {} if components is None else components
        self.draws: dict[Any, Any] = {} if draws is None else draws
        self.changed_norms: list[Any] = []
        self.of_layer = False
        self.spans = spans
        self.rows: int | None = None

    def end(self) -> None:
        """Undo what was changed for as long as the frame lasts."""
        if self.changed_norms:
            from leanbayes.nn.batchnorm import use_pooled_statistics

            use_pooled_statistics(self.changed_norms)
            self.changed_norms = []

    def copy(self) -> Frame:
        """A frame with the same entries whose later changes do not show here."""
        frame = Frame(dict(self.components), dict(self.draws), self.spans)
        frame.rows = self.rows
        return frame


# eq=False: a component may be a tensor, whose == is not a bool.
@dataclass(frozen=True, eq=False)
class Sampling:
    """How layers draw. Read it with `current_sampling`, change it with `sampling`.

    Attributes:
        n: Samples folded in the batch axis, sample index outermost.
        joint: One draw per sample for all rows; else the layer's estimator decides.
        mean: Use posterior means only, everywhere or where a selector says.
        zero_mean: Drop the posterior means, everywhere or where a selector says.
        estimator: Overrides the estimators of dense layers, convolutions and embeddings. Recurrent and bilinear layers
            always draw weights, and so do norms but for "example".
        component: A mixture component for all rows, ``"random"``, ``"all"`` (sample s uses component s % K),
            ``"stratified"`` (the same for the model's shared index, while layers with an index of their own draw it),
            or a tensor ``[rows]`` with the shared component of each row.
        offset: Index of the first of the n samples among all samples, where they are drawn in several passes.
        batch_dim: Axis of the examples in inputs of three and more axes (1 for sequence-first models).
        bn: Statistics of batch normalisation in training: ``"pooled"`` over samples, or ``"per_sample"``.
        generator: Source of all draws, eager only.
        generators: One source per sample, eager only, so that a sample does not depend on how samples are chunked.
        held: The draws of a `sampling(hold=True)` context.
        kept: Scales that do not change between the passes of one prediction, by the posterior's id; None computes them
            for every pass.
        swapped: Modules that run with other tensors for the moment, with these tensors by name: an ensemble's member.
    """

    n: int = 1
    joint: bool = False
    mean: Where = False
    zero_mean: Where = False
    estimator: str | None = None
    component: int | str | Tensor = "random"
    offset: int = 0
    batch_dim: int = 0
    bn: Literal["pooled", "per_sample"] = "pooled"
    generator: torch.Generator | None = None
    generators: tuple[torch.Generator, ...] | None = None
    held: Frame | None = None
    kept: dict[int, Tensor] | None = None
    swapped: tuple[tuple[torch.nn.Module, dict[str, Tensor]], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or isinstance(self.n, bool) or self.n < 1:
            raise ValueError(f"sampling(n=...) takes a whole number of samples from 1, not {self.n!r}")
        if self.mean is True and self.zero_mean is True:
            raise ValueError("sampling(mean=True, zero_mean=True) leaves nothing to compute; choose one of the two")
        if isinstance(self.component, str) and self.component not in ("random", "all", "stratified"):
            raise ValueError(f"component is 'random', 'all' or an index, not {self.component!r}")
        if isinstance(self.component, int) and self.component < 0:
            raise ValueError(f"component counts from 0; {self.component} is negative")

    def replace(self, **changes: Any) -> Sampling:
        """This state with some fields changed."""
        return dataclasses.replace(self, **changes)


# A plain list: context variables and thread-locals cannot be read in a compiled graph.
_STATES: list[Sampling] = [Sampling()]
_FRAMES: list[Frame] = []
# Layers whose last run had another state than the default.
_HAD_STATE: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


def current_sampling() -> Sampling:
    """The sampling state in force."""
    return _STATES[-1]


def sampling_of(layer: torch.nn.Module) -> Sampling:
    """The sampling state in force, for a layer that runs now.

    Activation checkpointing runs layers again in the backward pass, after the context of the first run has ended. Where
    that had another state than the default, the second run would draw otherwise, and gradients be wrong without a word.
    """
    state = _STATES[-1]
    if torch.compiler.is_compiling():
        return state
    if len(_STATES) == 1 and layer in _HAD_STATE and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            "activation checkpointing ran a layer again without its sampling state; pass "
            "context_fn=lb.checkpoint_contexts (and use_reentrant=False) to the checkpoint"
        )
    if len(_STATES) > 1 and not _as_default(state):
        _HAD_STATE.add(layer)
    else:
        _HAD_STATE.discard(layer)
    return state


def _as_default(state: Sampling) -> bool:
    plain = state.n == 1 and state.mean is False and state.zero_mean is False and state.component == "random"
    undirected = state.generator is None and state.generators is None and state.batch_dim == 0
    return plain and undirected and not state.joint and state.estimator is None and state.held is None


def current_frame() -> Frame | None:
    """The held frame, or that of the forward pass in progress; None for a layer that is called on its own."""
    held = _STATES[-1].held
    if held is not None:
        return held
    return _FRAMES[-1] if _FRAMES else None


class own_frame:  # noqa: N801 - reads as prose: with own_frame()
    """Context manager that begins a frame where none is open, for a layer that is called on its own."""

    def __enter__(self) -> None:
        self.opened = current_frame() is None
        if self.opened:
            frame = Frame()
            frame.of_layer = True
            _FRAMES.append(frame)

    def __exit__(self, *error: object) -> None:
        if self.opened:
            _FRAMES.pop()


class using:  # noqa: N801 - reads as prose: with using(state)
    """Context manager that puts a ready-made `Sampling` in force."""

    def __init__(self, state: Sampling, frame: Frame | None = None) -> None:
        self.state = state
        self.frame = frame
        self.frames = 0

    def __enter__(self) -> Sampling:
        _STATES.append(self.state)
        self.frames = len(_FRAMES)
        if self.frame is not None:
            _FRAMES.append(self.frame)
        return self.state

    def __exit__(self, *error: object) -> None:
        _end_frames(self.frames)
        _STATES.pop()


def _end_frames(number: int) -> None:
    """End all frames but so many; Ctrl-C skips the hooks that would have done so."""
    while len(_FRAMES) > number:
        _FRAMES.pop().end()


def one_pass(state: Sampling) -> using:
    """A state in force for one pass through a model, of which converted parts may be called several times.

    In joint mode a sample is one function, so that every call of a part draws the same weights.
    """
    return using(state, Frame(spans=True) if state.joint and state.held is None else None)


class FrameOpener:
    """Forward pre-hook of a converted root: begins the frame that its layers share."""

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Begin a frame."""
        frame = Frame()
        if _FRAMES and _FRAMES[-1].spans:
            frame = Frame(_FRAMES[-1].components, _FRAMES[-1].draws, spans=True)
        spec = _STATES[-1]
        if spec.n > 1:
            with_rows = (t for t in tensors((args, kwargs)) if t.dim() > spec.batch_dim)
            frame.rows = next((t.shape[spec.batch_dim] for t in with_rows), None)
            if spec.held is not None:
                spec.held.rows = frame.rows
        if spec.bn == "per_sample" and spec.n > 1:
            from leanbayes.nn.batchnorm import use_per_sample_statistics

            frame.changed_norms = use_per_sample_statistics(module.modules())
        _FRAMES.append(frame)


class FrameCloser:
    """Forward hook of a converted root: ends the frame, also after an error (after Ctrl-C `using` does)."""

    def __call__(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """End the frame, if the pre-hook got to begin one."""
        if _FRAMES:
            _FRAMES.pop().end()


class SeededRandom:
    """Context manager: torch's generators start from `seed` inside and continue outside as if nothing was drawn."""

    def __init__(self, seed: int) -> None:
        self.seed = int(seed)
        self.fork: AbstractContextManager | None = None

    def __enter__(self) -> None:
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
        self.fork = torch.random.fork_rng(devices=devices)
        self.fork.__enter__()
        torch.manual_seed(self.seed)

    def __exit__(self, *error: Any) -> None:
        assert self.fork is not None
        self.fork.__exit__(*error)


_INHERIT: Any = object()


class sampling:  # noqa: N801 - reads as prose: with sampling(n=8)
    """Changes how converted models draw while the context lasts.

    Arguments that are not given keep the value of an enclosing context.

    Args:
        n: Samples folded in the batch axis; the model's input must be folded with `fold`.
        mean: Use the posterior means: True for all layers, or a selector. Families with a shared component index
            use component 0 unless `component` says otherwise.
        zero_mean: Drop the means of the random weights: True for all layers, or a selector.
        seed: Draws are repeatable whatever ran before; torch's own generators go on afterwards as if untouched.
        component: ``"random"``, ``"all"`` (sample s uses component s % K, n must be a multiple of K) or an index.
        estimator: Overrides the estimators of dense layers, convolutions and embeddings. Recurrent and bilinear layers
            always draw weights, and so do norms but for "example".
        hold: One draw for the whole context: every call of the model uses the same weights (eager only).
        joint: One draw per sample for all rows, whatever the layers' estimators.
        batch_dim: Axis of the examples in inputs of three and more axes; 1 for sequence-first models.
        bn: ``"pooled"`` or ``"per_sample"`` statistics of batch normalisation in training mode.
        generator: A `torch.Generator` to draw from (eager only).

    Example:
        >>> import torch, leanbayes as lb
        >>> model = lb.bayesianize(torch.nn.Linear(3, 2), lb.MeanField())
        >>> x = torch.ones(5, 3)
        >>> with lb.sampling(n=4, seed=0):
        ...     outputs = lb.split(model(lb.fold(x, 4)), 4)
        >>> outputs.shape
        torch.Size([4, 5, 2])
    """

    def __init__(
        self,
        n: int = _INHERIT,
        *,
        mean: Where = _INHERIT,
        zero_mean: Where = _INHERIT,
        seed: int | None = None,
        component: int | str | Tensor = _INHERIT,
        estimator: str | None = _INHERIT,
        hold: bool = False,
        joint: bool = _INHERIT,
        batch_dim: int = _INHERIT,
        bn: Literal["pooled", "per_sample"] = _INHERIT,
        generator: torch.Generator | None = _INHERIT,
    ) -> None:
        given = {
            "n": n,
            "mean": mean,
            "zero_mean": zero_mean,
            "component": component,
            "estimator": estimator,
            "joint": joint,
            "batch_dim": batch_dim,
            "bn": bn,
            "generator": generator,
        }
        self.changes = {name: value for name, value in given.items() if value is not _INHERIT}
        self.hold = hold
        self.frames = 0
        self.seeded = None if seed is None else SeededRandom(seed)
        # Bad arguments are reported where they are written, not where the context is entered.
        current_sampling().replace(**self.changes)

    def __enter__(self) -> Sampling:
        state = current_sampling().replace(**self.changes)
        if self.hold:
            state = state.replace(held=Frame(spans=True), joint=True)
        if self.seeded is not None:
            self.seeded.__enter__()
        self.frames = len(_FRAMES)
        _STATES.append(state)
        return state

    def __exit__(self, *error: object) -> None:
        _end_frames(self.frames)
        _STATES.pop()
        if self.seeded is not None:
            self.seeded.__exit__(*error)


def checkpoint_contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
    """Contexts for activation checkpointing of a converted model.

    Checkpointing runs parts of the forward pass again during backward, after the sampling context has ended; pass
    this function so that the second run draws as the first did:
    ``checkpoint(block, x, use_reentrant=False, context_fn=lb.checkpoint_contexts)``.
    """
    return nullcontext(), _Rerun()


class _Rerun:
    """Context manager that puts in force, as often as it is entered, the state that there was when it was made."""

    def __init__(self) -> None:
        self.state = _with_copied_generators(current_sampling().replace(held=None))
        frame = current_frame()
        self.frame = None if frame is None else frame.copy()
        self.norms = [] if frame is None else list(frame.changed_norms)
        self.undo = ExitStack()

    def __enter__(self) -> None:
        from leanbayes.nn.batchnorm import use_per_sample_statistics, use_pooled_statistics

        frame = None if self.frame is None else self.frame.copy()
        self.undo.enter_context(using(_with_copied_generators(self.state), frame))
        for module, values in self.state.swapped:
            self.undo.enter_context(_reparametrize_module(module, dict(values)))
        self.undo.callback(use_pooled_statistics, use_per_sample_statistics(self.norms))

    def __exit__(self, *error: object) -> None:
        self.undo.close()


def _with_copied_generators(state: Sampling) -> Sampling:
    one, many = state.generator, state.generators
    return state.replace(
        generator=None if one is None else one.clone_state(),
        generators=None if many is None else tuple(generator.clone_state() for generator in many),
    )


def fold(x: Any, n: int, batch_dim: int = 0) -> Any:
    """Repeat a batch n times along its batch axis, sample index outermost.

    Args:
        x: A tensor ``[B, ...]`` (at `batch_dim`), a PackedSequence, or a mapping, tuple or list of these; anything
            else is passed through.
        n: Number of samples.
        batch_dim: Axis of the examples.

    Returns:
        The same structure with tensors ``[n * B, ...]``.
    """
    if n == 1:
        return x

    def repeat(t: Tensor) -> Tensor:
        if t.dim() <= batch_dim:
            return t
        shape = list(t.shape)
        return (
            t.unsqueeze(batch_dim).expand(*shape[:batch_dim], n, *shape[batch_dim:]).flatten(batch_dim, batch_dim + 1)
        )

    return _map_tensors(x, repeat)


def split(y: Any, n: int, batch_dim: int = 0) -> Any:
    """Undo `fold` on a model's output: ``[n * B, ...]`` becomes ``[n, B, ...]``.

    Args:
        y: A tensor, or a mapping, tuple or list of tensors.
        n: Number of samples.
        batch_dim: Axis of the examples.

    Returns:
        The same structure with the sample axis in front.
    """

    def unfold(t: Tensor) -> Tensor:
        if t.shape[batch_dim] % n:
            raise ValueError(
                f"the output has {t.shape[batch_dim]} rows, not a multiple of the {n} samples; fold the input with "
                f"lb.fold(x, {n}) and run the model inside lb.sampling(n={n})"
            )
        return t.unflatten(batch_dim, (n, -1)).movedim(batch_dim, 0)

    return _map_tensors(y, unfold)


def _map_tensors(x: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, PackedSequence):
        padded, lengths = pad_packed_sequence(x, batch_first=True)
        return pack_padded_sequence(change(padded), change(lengths), batch_first=True, enforce_sorted=False)
    if isinstance(x, Mapping):
        return {key: _map_tensors(value, change) for key, value in x.items()}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_map_tensors(value, change) for value in x))
    if isinstance(x, (tuple, list)):
        return type(x)(_map_tensors(value, change) for value in x)
    return x
