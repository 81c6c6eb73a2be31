"""Using freed memory again."""

from __future__ import annotations

import torch

# glibc learns from blocks of up to 32 MB, what it writes in front of them included.
_LARGEST = 32 * 2**20 - 2**16


def use_freed_memory_again() -> None:
    """Show the C library that large blocks come and go, so that it keeps what a training step frees for the next one.

    glibc gives freed memory back to the system from twice the size of the largest block that it has seen freed, up to
    64 MB, and the system clears each page that it hands out again: about a tenth of the time of a fit on 7,000 rows,
    and more with larger batches. No setting of the process changes; any program that frees a block of this size has the
    same effect. Elsewhere it has none.
    """
    torch.empty(_LARGEST, dtype=torch.uint8)
