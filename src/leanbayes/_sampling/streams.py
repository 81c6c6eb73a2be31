"""Sources of noise with a seed of their own, which leave torch's generators alone."""

from __future__ import annotations

import operator
import threading
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

_GLOBAL_GENERATORS = threading.RLock()


class Stream:
    """A source of noise that depends on its seed alone: one `torch.Generator` per device, a counter in compiled code.

    A generator cannot enter a compiled graph. There, noise is a function of `key`, which every draw moves on by one.

    Args:
        seed: A whole number, or a tensor ``[]`` where the seed itself is drawn in a compiled graph.
    """

    def __init__(self, seed: int | Tensor) -> None:
        self.seed = seed
        self.generators: dict[torch.device, torch.Generator] = {}
        # Seeds of 64 bits are taken as they are; a neighbouring seed must not be a few draws further.
        self.key = seed if isinstance(seed, Tensor) else torch.tensor(_signed(seed * _SPREAD))

    def generator(self, device: torch.device) -> torch.Generator:
        """The generator of a device, for eager code."""
        if device not in self.generators:
            assert isinstance(self.seed, int)
            self.generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self.generators[device]

    def next_key(self) -> Tensor:
        """The key ``[]`` of one draw in compiled code."""
        key = self.key
        self.key = key + 1  # not in place: the backward pass may compute the noise again
        return key

    def copy(self) -> Stream:
        """A stream that goes on from here on its own."""
        stream = Stream(self.seed)
        stream.generators = {device: generator.clone_state() for device, generator in self.generators.items()}
        stream.key = self.key
        return stream

    def go_back_to(self, earlier: Stream) -> None:
        """Go on from where a copy was made."""
        again = earlier.copy()
        self.generators, self.key = again.generators, again.key


# An odd multiplier spreads neighbouring seeds over all keys.
_SPREAD = 0x9E3779B97F4A7C15


def _signed(value: int) -> int:
    """The 64 low bits as a signed number, as torch holds them."""
    return ((value + 2**63) % 2**64) - 2**63


def sample_seed(base: int, sample: int) -> int:
    """The seed of one sample among those that share a base seed."""
    # Odd multipliers spread neighbouring samples over the seeds; the modulus keeps them in torch's range.
    return (base * _SPREAD + (sample + 1) * 0xBF58476D1CE4E5B9) % (2**63)


def check_seed(seed: Any) -> None:
    """Raise unless a seed is a whole number that a `torch.Generator` takes."""
    try:
        torch.Generator().manual_seed(operator.index(seed))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"seed takes a whole number of up to 64 bits, not {seed!r}") from error


class SeededRandom:
    """Context manager: torch's own generators start from `seed` inside and continue outside as if nothing was drawn.

    For what draws from them without being asked, as the initialisation of modules does. They belong to the process:
    threads take turns, and other draws meanwhile are not those that they would have been.
    """

    def __init__(self, seed: int) -> None:
        self.seed = int(seed)
        self.fork: AbstractContextManager | None = None

    def __enter__(self) -> None:
        _GLOBAL_GENERATORS.acquire()
        devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
        self.fork = torch.random.fork_rng(devices=devices)
        self.fork.__enter__()
        torch.manual_seed(self.seed)

    def __exit__(self, *error: Any) -> None:
        assert self.fork is not None
        self.fork.__exit__(*error)
        _GLOBAL_GENERATORS.release()
