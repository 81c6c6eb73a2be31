"""How many threads of the CPU a network is worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

# Parameters of a multilayer perceptron below which one thread is as fast as several.
_SMALL = 200_000


@contextmanager
def suitable_threads(network: nn.Module) -> Iterator[None]:
    """One thread for a small multilayer perceptron, and as many as before for others and afterwards.

    The operations of a small network are over before a second thread has begun; where other programs run too, several
    threads would mostly wait for each other.

    Args:
        network: The plain network, built by `leanbayes.models`.
    """
    before = torch.get_num_threads()
    if _is_small(network):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_small(network: nn.Module) -> bool:
    is_mlp = getattr(network, "leanbayes_config", {}).get("name") in ("mlp", "tabular_mlp")
    return is_mlp and sum(parameter.numel() for parameter in network.parameters()) < _SMALL
