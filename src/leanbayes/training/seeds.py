"""Seeds that are functions of where training is, and the state of all random generators."""

from __future__ import annotations

import hashlib
import random
import threading
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor


def derive(*parts: int | str) -> int:
    """A seed for a purpose and a place, such as ``derive(seed, "order", epoch)``; unrelated for different parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(seed: int, device: torch.device) -> None:
    """Seed torch (on the CPU and the device), numpy and Python: just what `random_state` covers."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


class GlobalGenerators:
    """Context manager: the generators of the process may be seeded inside, and go on outside as if nothing was drawn.

    Where several threads are inside at once, the state comes back when the last of them leaves.
    """

    _lock = threading.Lock()
    _inside: ClassVar[list[GlobalGenerators]] = []

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.thread = 0
        self.before: dict[str, Any] = {}

    def __enter__(self) -> None:
        with self._lock:
            self.thread = threading.get_ident()
            self.before = random_state(self.device)
            self._inside.append(self)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            place = self._inside.index(self)
            del self._inside[place]
            others = [other for other in self._inside if other.thread != self.thread]
            if not others:
                restore_random_state(self.before, self.device)
            elif place == 0:
                # Whoever leaves last brings back what the first has found.
                others[0].before = self.before


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of torch's, numpy's and Python's generators, as tensors and plain values."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    version, numbers, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [str(name), torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached],
        "python": [version, list(numbers), gauss],
    }


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """The inverse of `random_state`."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and isinstance(state["cuda"], Tensor):
        torch.cuda.set_rng_state(state["cuda"], device)
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
