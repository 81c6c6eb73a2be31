"""Functions as they run in a captured step: recorded as a CUDA graph, so that the host's time does not count."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from leanbayes.training.graphs import own_workspaces

_WARM_UP = 3
T = TypeVar("T")


def recorded(prepare: Callable[[], Callable[[], T]], device: torch.device, calls: int = 1) -> Callable[[], T]:
    """A function that makes so many calls by one replay, and returns what the last one gave; on a CPU it calls.

    Args:
        prepare: Makes the function; called on the stream of the recording, as a backward pass goes to the stream that
            its forward pass ran on.
        device: Where it runs.
        calls: Of the function in a replay. More than one spares short kernels the time between replays.
    """
    if device.type != "cuda":
        return _several(prepare(), calls)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        run = _several(prepare(), calls)
        for _ in range(_WARM_UP):
            run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with own_workspaces(), torch.cuda.graph(graph, stream=stream):
        outputs = run()

    def replay() -> T:
        graph.replay()
        return outputs

    # A recording reads where its inputs lay: they must stay there as long as it does.
    replay.inputs = run  # pyright: ignore[reportFunctionMemberAccess]
    return replay


def _several(run: Callable[[], T], calls: int) -> Callable[[], T]:
    def all_of_them() -> T:
        for _ in range(calls - 1):
            run()
        return run()

    return all_of_them
