"""The one place that knows how a step or a model is captured: compiled and, on a GPU, recorded."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import leanbayes as lb
from leanbayes.bench.bounds import start_up_bound
from leanbayes.bench.measuring import synchronise
from leanbayes.bench.setup import Setup
from leanbayes.objectives import ELBO

_PRECISIONS = {"32": "32", "bf16": "bf16-mixed"}
# The last of them is recorded.
_FIRST_CALLS = 4


def capture(*parts: Any, **options: Any) -> Any:
    """What `leanbayes.capture` makes of them, with nothing compiled before.

    A compiled call looks through the entries of earlier ones, and beyond a few of them it is no longer compiled.
    """
    torch._dynamo.reset()
    return lb.capture(*parts, **options)


def captured_step(setup: Setup, elbo: ELBO, optimizer: torch.optim.Optimizer) -> Any:
    """A function of inputs and targets that trains by one step; its ``how`` says in words how it runs."""
    return capture(elbo, optimizer, precision=_PRECISIONS[setup.precision])


def captured_model(model: nn.Module) -> nn.Module:
    """The model for predictions, compiled and recorded."""
    return capture(model.eval())


@contextlib.contextmanager
def nothing_on_disk() -> Iterator[None]:
    """Context in which the compiler finds nothing that it has compiled before."""
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        yield


def start_up(setup: Setup, run: Callable[[], object]) -> dict[str, Any]:
    """Seconds that a captured step takes until it has its speed, and whether a cache on disk spared it compiling.

    A bound is stated for what is compiled from scratch.
    """
    hits = _cache_hits()
    synchronise(setup.device)
    start = time.perf_counter()
    for _ in range(_FIRST_CALLS):
        run()
    synchronise(setup.device)
    seconds = time.perf_counter() - start
    cached = _cache_hits() > hits
    limit = None if cached else start_up_bound(setup)
    held = {} if limit is None else {"startup_at_most": limit, "startup_holds": seconds <= limit}
    return {"startup_s": seconds, "startup_cached": cached, **held}


def _cache_hits() -> int:
    """How many graphs this process has found compiled on disk."""
    from torch._dynamo.utils import counters

    return counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
