"""Frames: what the layers of a model share during one pass, so that an example meets one draw of each weight."""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch
from torch import Tensor


class Identity:
    """What stands for a module in the frames of passes: replicas of a module share it, copies have their own."""


class Frame:
    """What layers share during one pass through a model, or during one `sampling(hold=True)` context.

    Attributes:
        rows: Number of rows of the model's input, samples included; None where it is not known.
        kept: Draws that are the same wherever they are used, component indices among them, by who keeps them.
        uses: By ``id`` of a random weight's identity, the estimator that it was drawn by, and whether one draw serves
            all rows of a sample: all its uses have to agree.
        choices: Log-probabilities ``[n]`` or ``[rows]`` of the components that layers with learned mixing chose.
        held: Whether it lasts for a whole context and not for one pass.
        lasting: Whether what it keeps does: it is held itself, or within one that is.
        of_layer: Whether it is that of one layer that is called on its own.
        occasion: Stands for the pass: the same in all of its frames, another in each pass of a held context.
        runner: The Python frame that runs the pass, by which a pass is known to be over that Ctrl-C has cut short.
        root: The model that runs, whose weights can be drawn together; None where it is not known.
        grad: Whether the pass or context began with gradients, which parts of it may do without.
        divergences: By ``id`` of a posterior, a prior and the divergence from it, where that was computed with a draw;
            None where nobody asks for it.
        compiled: Whether it was opened in compiled code.
        joined: Posteriors that were put side by side during this pass, None in a context that outlasts it.
    """

    def __init__(self, rows: int | None = None, *, held: bool = False, of_layer: bool = False) -> None:
        self.rows = rows
        self.root: Any = None
        self.kept: dict[Any, Any] = {}
        self.uses: dict[int, tuple[str, bool]] = {}
        self.choices: list[Tensor] = []
        self.held = self.lasting = held
        self.of_layer = of_layer
        self.occasion = Identity()
        self.runner: FrameType | None = None
        self.grad = torch.is_grad_enabled()
        self.joined: dict[Any, Any] | None = None if held else {}
        self.divergences: dict[int, tuple[Any, Tensor]] | None = None
        self.compiled = torch.compiler.is_compiling()

    def within(self, rows: int | None) -> Frame:
        """A frame for a call inside this one, which shares all draws; the rows are those of the outermost call."""
        inner = Frame(rows if self.held or self.of_layer else self.rows)
        inner.kept, inner.uses, inner.choices = self.kept, self.uses, self.choices
        inner.joined = {} if self.joined is None else self.joined
        inner.grad = inner.grad or self.grad
        inner.lasting = self.lasting
        inner.occasion = inner.occasion if self.held else self.occasion
        inner.divergences, inner.compiled = self.divergences, self.compiled
        return inner

    def count_use(self, key: Any) -> int:
        """How often the pass has asked for this before; always 0 in a held context outside of any pass."""
        occasion, count = self.kept.get(key, (self.occasion, 0))
        if occasion is not self.occasion:
            count = 0
        self.kept[key] = (self.occasion, 0 if self.held else count + 1)
        return count

    def wants_gradients(self) -> bool:
        """Whether a part that runs without gradients is to draw with them, for later parts."""
        return self.grad and not torch.is_grad_enabled() and not torch.is_inference_mode_enabled()

    def copy(self) -> Frame:
        """A frame with the same entries whose later changes do not show here."""
        frame = Frame(self.rows, held=self.held, of_layer=self.of_layer)
        frame.root, frame.grad, frame.lasting = self.root, self.grad, self.lasting
        frame.occasion = self.occasion
        frame.kept = {key: value.copy() if isinstance(value, Frame) else value for key, value in self.kept.items()}
        frame.uses = dict(self.uses)
        return frame

    def is_over(self) -> bool:
        """Whether the call that opened it has ended without closing it, as after Ctrl-C."""
        if self.runner is None:
            return False
        try:
            self.runner.clear()  # refused for as long as it runs
        except RuntimeError:
            return False
        return True
