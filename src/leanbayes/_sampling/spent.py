"""Draws that outlast a pass: torch differentiates each of them once, and what comes too late is told so."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import _top_saved_tensors_default_hooks

from leanbayes._inputs import tensors
from leanbayes._sampling.frames import Frame


def tell_when_spent(frame: Frame, drawn: Any) -> None:
    """Let a second backward pass through what was drawn say what is wrong, where the frame is for several passes.

    Torch itself lets go of what a gradient takes with the first backward pass, unless ``retain_graph=True`` keeps it,
    and its own message names neither `hold` nor the way out.
    """
    if not frame.lasting or not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return
    if _top_saved_tensors_default_hooks(True):  # as in a checkpointed block, which computes them anew when asked
        return
    for tensor in tensors(drawn if isinstance(drawn, (Tensor, tuple, dict)) else vars(drawn)):
        if tensor.grad_fn is not None:
            tensor.register_hook(_check)  # a function that holds nothing: with the tensor it would never be freed


def _check(grad: Tensor) -> None:
    if _is_spent(torch._C._current_autograd_node()):  # pyright: ignore[reportAttributeAccessIssue]
        raise RuntimeError(
            "a second backward pass goes through the draws that lb.sampling(hold=True) keeps, or their parameters have "
            "changed since: add the losses up and call backward once, or pass retain_graph=True to all but the last; "
            "after a step of the optimiser, open another context"
        )


def _is_spent(node: Any) -> bool:
    """Whether what the next formulas of a gradient take has been let go, or has changed."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        try:
            names = [name.removeprefix("_raw") for name in dir(node) if name.startswith("_raw_saved_")]
            saved = [getattr(node, name) for name in ("saved_tensors", *names) if hasattr(node, name)]
        except RuntimeError:
            return True
        if not any(isinstance(each, Tensor) or each for each in saved):
            waiting += [each for each, _ in node.next_functions if each is not None]
    return False
