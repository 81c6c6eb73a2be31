"""Second runs: activation checkpointing runs a block again in the backward pass, after its pass has ended."""

from __future__ import annotations

import functools
import sys
import weakref
from contextlib import AbstractContextManager, ExitStack, nullcontext

import torch
from torch._C import _current_graph_task_id
from torch._C._autograd import _top_saved_tensors_default_hooks
from torch.utils import checkpoint as torch_checkpoint

from leanbayes._sampling.state import LOCAL, Sampling, current_frame, current_sampling, using

# Layers and weights whose last run found something that a second run would not find by itself: another state than the
# default one, or a draw that was made before. Of the whole process: autograd has threads of its own.
_DEPENDENT: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
# Gives the hooks by which a checkpoint, which runs again what eager code runs now, keeps tensors; None without them. No
# function of Python's, as every layer and weight asks.
may_run_again = functools.partial(_top_saved_tensors_default_hooks, True)
_ADVICE = "pass context_fn=lb.checkpoint_contexts (and use_reentrant=False) to the checkpoint"


def checkpoint_contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
    """Contexts for activation checkpointing of a converted model.

    Checkpointing runs parts of the forward pass again during backward, after the sampling context has ended and
    perhaps in another thread; pass this function so that the second run finds the state and the draws that the first
    one found, and draws the rest as the first did:
    ``checkpoint(block, x, use_reentrant=False, context_fn=lb.checkpoint_contexts)``.
    """
    return nullcontext(), _Rerun()


class _Rerun:
    """Context manager that puts in force, as often as it is entered, what there was when it was made."""

    def __init__(self) -> None:
        self.state = _with_copied_sources(current_sampling())
        frame = current_frame()
        self.frame = None if frame is None else frame.copy()
        self.undo = ExitStack()

    def __enter__(self) -> None:
        frame = None if self.frame is None else self.frame.copy()
        self.undo.enter_context(using(_with_copied_sources(self.state), frame))
        LOCAL.reruns += 1

    def __exit__(self, *error: object) -> None:
        LOCAL.reruns -= 1
        self.undo.close()


def _with_copied_sources(state: Sampling) -> Sampling:
    """The state with sources of noise that go on from here on their own."""
    one, stream, streams = state.generator, state.stream, state.streams
    return state.replace(
        generator=None if one is None else one.clone_state(),
        stream=None if stream is None else stream.copy(),
        streams=None if streams is None else tuple(each.copy() for each in streams),
    )


def note_dependence(owner: torch.nn.Module, depends: bool) -> None:
    """Note whether a run that `may_run_again` of a layer or weight found what a second one would not find by itself."""
    if not torch.is_grad_enabled():
        return
    if depends:
        _DEPENDENT.add(owner)
    else:
        _DEPENDENT.discard(owner)


def runs_blind() -> bool:
    """Whether eager code is a block that a backward pass runs again and that does not know what the first run found."""
    return _current_graph_task_id() != -1 and LOCAL.reruns == 0


def check_rerun(owner: torch.nn.Module) -> None:
    """Raise in a second run that would draw otherwise than the first did: gradients would be wrong without a word."""
    if _current_graph_task_id() == -1 or not runs_blind():  # asked of every layer and weight
        return
    if _is_reentrant():
        raise RuntimeError(
            f"reentrant activation checkpointing does not keep the draws of a converted model; {_ADVICE}"
        )
    if owner in _DEPENDENT:
        raise RuntimeError(f"activation checkpointing ran a layer again without its sampling state; {_ADVICE}")


def check_component_known() -> None:
    """Raise in a second run that does not know the component of the first: each layer would draw another one."""
    if not torch.compiler.is_compiling() and runs_blind():
        raise RuntimeError(f"activation checkpointing ran a layer again without its component; {_ADVICE}")


def _is_reentrant() -> bool:
    """Whether the second run under way is that of a reentrant checkpoint, which is an autograd function's backward."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == torch_checkpoint.__file__ and frame.f_code.co_name == "backward":
            return True
        frame = frame.f_back
    return False
