"""Triton where it is installed; where it is not, kernels are left as plain functions that nobody calls."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from leanbayes.kernels._dispatch import interpreted


def _same(value: Any) -> Any:
    return value


# Without types: what a kernel calls means something else inside it.
tl: Any = None
libdevice: Any = None
jit: Any = _same
try:
    tl = import_module("triton.language")
    libdevice = import_module("triton.language.extra.libdevice")
    jit = import_module("triton").jit
except ImportError:
    pass

if TYPE_CHECKING:

    class constexpr(Any):
        """A constant of a kernel, and the annotation of arguments that are."""
else:
    constexpr = _same if tl is None else tl.constexpr

# Whether the fast functions of NVIDIA's hardware (logarithm, sine, cosine) can be called.
FAST_MATH: Any = constexpr(not interpreted() and torch.version.hip is None)

__all__ = ["FAST_MATH", "constexpr", "jit", "libdevice", "tl"]
