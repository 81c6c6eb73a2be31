"""Where Triton kernels run: on a GPU, or anywhere in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

# Found out once: compilers do not follow these calls.
_INSTALLED = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
_SWITCHED_OFF = os.environ.get("LEANBAYES_KERNELS", "1") == "0"


def interpreted() -> bool:
    """Whether Triton interprets its kernels, which is slow and for tests, and works on the CPU."""
    return _INTERPRETED


def fused(x: Tensor) -> bool:
    """Whether kernels can work on a tensor; ``LEANBAYES_KERNELS=0`` in the environment turns all of them off."""
    if _SWITCHED_OFF or not _INSTALLED or x.dtype == torch.float64:
        return False
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return False  # for which they have no rules
    return x.is_cuda or _INTERPRETED
