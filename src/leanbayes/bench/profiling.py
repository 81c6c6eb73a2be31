"""Where the time of a training step goes: what the device works on, by kind, and how long it waits for the host."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

from leanbayes.bench.measuring import synchronise

STEPS = 5
# The first that matches the name of a kernel, or of an operation on a CPU. What the compiler generates is named after
# all that it does, and so comes first.
KINDS = {
    "fused by the compiler": r"^triton",
    "kernels of leanbayes": (
        r"^(_(draw|tied|free)_\w+|_kernel|_sum|_choose|_choice_slopes|finish_factors"
        r"|row_sums|channel_moments|apply_norm|gradient_(sums|of_norm|of_input))$"
    ),
    "convolutions": r"conv|fprop|dgrad|wgrad|implicit|winograd|nchwtonhwc|nhwctonchw",
    "products": r"gemm|nvjet|cutlass|splitk|gemv|addmm|::b?mm|linear",
    "random numbers": r"philox|curand|normal_|rand|distribution|bernoulli|uniform",
    "optimiser": r"multi_tensor|fused_(sgd|adam)|_foreach",
    "norms": r"batch_norm|layer_norm|bn_fw|bn_bw|norm",
    "copies": r"memcpy|memset|copy",
}
OTHER = "elementwise and sums"


def kind_of(name: str) -> str:
    """What a kernel or operation does, by its name.

    Example:
        >>> kind_of("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32"), kind_of("vectorized_elementwise_kernel")
        ('convolutions', 'elementwise and sums')
    """
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE)), OTHER)


def profile(run: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Seconds of a call by kind of work, all of them together, and the number of kernels or operations.

    Args:
        run: A training step that has its speed already.
        device: Where its work is done.
    """
    cuda = device.type == "cuda"
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA] if cuda else [activity.CPU]) as found:
        for _ in range(STEPS):
            run()
        synchronise(device)
    return summed(_seconds(found.events() or (), cuda))


def _seconds(events: Iterable[Any], cuda: bool) -> Iterable[tuple[str, float]]:
    """Names and seconds of what the device did; operations on a CPU without those that they call."""
    for event in events:
        if (event.device_type.name == "CUDA") == cuda:
            micro = event.time_range.elapsed_us() if cuda else event.self_cpu_time_total
            yield event.name, 1e-6 * micro


def summed(work: Iterable[tuple[str, float]], steps: int = STEPS) -> dict[str, Any]:
    """Work of some steps as figures of one.

    Example:
        >>> summed([("aten::mm", 0.5), ("aten::mm", 0.5), ("aten::add", 1.0)], steps=2)
        {'kinds': {'products': 0.5, 'elementwise and sums': 0.5}, 'busy': 1.0, 'launches': 1.5}
    """
    kinds: dict[str, float] = dict.fromkeys((*KINDS, OTHER), 0.0)
    count = 0
    for name, seconds in work:
        kinds[kind_of(name)] += seconds / steps
        count += 1
    kept = {kind: seconds for kind, seconds in kinds.items() if seconds}
    return {"kinds": kept, "busy": sum(kept.values()), "launches": count / steps}
