"""Passes: from the outermost call of a converted model to its end, one frame is open."""

from __future__ import annotations

import sys
from typing import Any

import torch

from leanbayes._inputs import find_rows
from leanbayes._sampling.frames import Frame
from leanbayes._sampling.reruns import check_rerun, may_run_again, note_dependence
from leanbayes._sampling.state import LOCAL, Sampling, current_frame, current_sampling, using


def one_pass(
    state: Sampling, rows: int | None, model: torch.nn.Module | None = None, *, measured: bool = False
) -> using:
    """A state in force for one pass through a model whose parts may have been converted one by one.

    Args:
        state: How to draw.
        rows: Number of rows of the model's input, samples included.
        model: The model, whose weights can then be drawn together.
        measured: Whether its divergence is asked for before the pass ends.
    """
    frame = current_frame()
    held = frame if frame is not None and frame.held else None
    inner = Frame(rows) if held is None else held.within(rows)
    # What is held for several passes would be measured once, whatever becomes of the parameters.
    inner.divergences = {} if measured and held is None else None
    if not torch.compiler.is_compiling():
        inner.root = model
    return using(state, inner)


class own_frame:  # noqa: N801 - reads as prose: with own_frame()
    """Context manager that opens a frame where none is open, for a layer that is called on its own."""

    def __enter__(self) -> None:
        self.opened = not LOCAL.frames
        if self.opened:
            LOCAL.frames.append(Frame(of_layer=True))

    def __exit__(self, *error: object) -> None:
        if self.opened:
            LOCAL.frames.pop()


class rows_seen:  # noqa: N801 - reads as prose: with rows_seen(1)
    """Context manager in which the pass in progress has so many rows, as where an input without a batch gets one."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __enter__(self) -> None:
        frame = current_frame()
        inner = Frame(of_layer=True) if frame is None else frame.within(self.rows)
        if frame is not None and not torch.compiler.is_compiling():
            inner.root = frame.root
        inner.rows = self.rows
        LOCAL.frames.append(inner)

    def __exit__(self, *error: object) -> None:
        LOCAL.frames.pop()


class FrameOpener:
    """Forward pre-hook of a converted root: begins a pass, or goes on with the one in progress."""

    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Open a frame."""
        compiling = torch.compiler.is_compiling()
        if not compiling:
            _drop_ended()
        frame = current_frame()
        # A recurrent layer knows its axis of examples; of a model it is said by the state.
        known = getattr(type(module), "input_rows", None)
        inputs = (*args, *kwargs.values())
        rows = find_rows(inputs, current_sampling().batch_dim) if known is None else known(module, inputs[0])
        inner = Frame(rows) if frame is None else frame.within(rows)
        if not compiling:
            inner.runner = sys._getframe(1)
            inner.root = module if frame is None or frame.root is None else frame.root
        LOCAL.frames.append(inner)


class FrameCloser:
    """Forward hook of a converted root: ends what the pre-hook has opened, also after an error."""

    def __call__(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        """Close the frame, if the pre-hook got to open one."""
        if LOCAL.frames:
            LOCAL.frames.pop().runner = None


def _drop_ended() -> None:
    """Close the frames of passes that Ctrl-C has cut short, for which no hook ran."""
    while LOCAL.frames and LOCAL.frames[-1].is_over():
        LOCAL.frames.pop()


def layer_state(layer: torch.nn.Module) -> Sampling:
    """The sampling state in force, for a layer that runs now."""
    state = current_sampling()
    if torch.compiler.is_compiling():
        return state
    _drop_ended()
    check_rerun(layer)
    if may_run_again():
        note_dependence(layer, not state.is_default())
    return state
