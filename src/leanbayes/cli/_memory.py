"""Keeping freed memory for what comes next."""

from __future__ import annotations

import ctypes
import os
import sys

# Parameters of glibc's `mallopt`.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MOST = 2**31 - 1
# The largest that glibc takes, in bytes; larger blocks go back to the system when they are freed.
_LARGE = 32 * 2**20


def keep_freed_memory() -> bool:
    """Have this process keep what a training step frees, as the next one needs as much.

    By default glibc returns large blocks to the system and asks for them again, and the system clears every page that
    it hands out: a sixth of the time that a mean-field ResNet-18 takes for a step on a CPU. A program does this for
    itself, and no library for others, hence here. Settings in the environment win.

    Returns:
        Whether the C library could be told so.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        [mallopt(parameter, value) for parameter, value in ((_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _MOST))]
    )
