"""Triton's interpreter, which tests run kernels in, with loops up to a bound that is an argument."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def mend() -> None:
    """Let the interpreter take a scalar for a whole number, which NumPy from 2.4 on refuses it."""
    interpreter: Any = import_module("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor
    if patch.__name__ == "mended":
        return

    def mended(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        # Triton up to 3.5 has no scope, and leaves what it has set.
        change = scope[0].set_attr if scope else setattr
        change(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = mended
