"""Compiling models and objectives with torch's compiler, after rewrites of our own."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import fx, nn

from leanbayes.compiling.padding import pad_convolutions
from leanbayes.compiling.rewrite import fuse_scaled_norms

_LOG = logging.getLogger("leanbayes")


class _Inductor:
    """A backend of `torch.compile`: our rewrites, then torch's own compiler.

    Args:
        recorded: Whether calls are recorded as CUDA graphs, which suits models that are not trained.
    """

    def __init__(self, recorded: bool) -> None:
        self.recorded = recorded

    def __call__(self, graph_module: fx.GraphModule, inputs: list[Any]) -> Any:
        fuse_scaled_norms(graph_module)
        pad_convolutions(graph_module)
        compile_fx = import_module("torch._inductor.compile_fx").compile_fx
        patches = {"triton.cudagraphs": True} if self.recorded else None
        return compile_fx(graph_module, inputs, config_patches=patches)


def compiled(module: Any, backend: str | None = None, *, recorded: bool = False) -> Any:
    """A module that is compiled when it is first called, for the sizes of its first inputs.

    Args:
        module: A model or an objective.
        backend: Name of a backend of `torch.compile`, None for torch's own compiler.
        recorded: Whether calls are recorded as CUDA graphs; what one call returns is then gone after the next.
    """
    options: dict[str, Any] = {"backend": backend}
    if backend is None or backend == "inductor":
        options = {"backend": _Inductor(recorded), "dynamic": False}
    result: Any = torch.compile(module, **options)
    result.forward = torch.compile(_own_code(module), **options)
    if recorded:
        result.__dict__["_leanbayes_recorded"] = True
    return result


def _own_code(module: nn.Module) -> Callable[..., Any]:
    """A function that calls a module and shares its code with no other.

    Torch compiles the same code for at most eight modules, and the forward of all objectives is the same code: the
    ninth network trained in a process would run uncompiled.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    call.__code__ = call.__code__.replace()  # a copy
    return call


def falls_back(module: nn.Module, run: Callable[..., Any]) -> Callable[..., Any]:
    """What runs a compiled module, or the module itself from the first time on that this cannot be compiled."""

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal run
        try:
            return run(*args, **kwargs)
        except Exception as error:
            if run is module or not is_compile_error(error):
                raise
            _LOG.warning("this model cannot be compiled, and runs uncompiled: %s", first_line(error))
        run = module
        return module(*args, **kwargs)

    return call


def is_compile_error(error: BaseException) -> bool:
    """Whether something went wrong in compiling, or in what the compiler wrote, and not in what was compiled."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    # Importing the compiler takes seconds; where it has failed, it is there.
    found = sys.modules.get("torch._dynamo.exc")
    return (found is not None and isinstance(error, found.TorchDynamoException)) or _in_generated_code(error)


def _in_generated_code(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith("torch._inductor."):
            return True
        trace = trace.tb_next
    return False


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or of that of the compiler's backend where this raised it."""
    inner = getattr(error, "inner_exception", error)
    return (str(inner).strip().splitlines() or [type(inner).__name__])[0]


def is_recorded(model: nn.Module) -> bool:
    """Whether what a model returns is overwritten by its next call."""
    return model.__dict__.get("_leanbayes_recorded", False)
