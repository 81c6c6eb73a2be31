"""Sums over large tensors on a CPU, block by block."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leanbayes.kernels._layout import same_layout

# Elements. What is computed on the way then stays in the cache and takes no memory from the system, which is what
# takes the time: the pages of a large tensor that is new cost several times as much as filling them.
_BLOCK = 2**16


def sum_in_blocks(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """The sum of ``function(*tensors)``, a function of each element.

    Args:
        function: From tensors of one shape to one of that shape, which it may have written into.
        *tensors: Of one shape; without gradients.
    """
    first, *others = tensors
    few = first.numel() <= 2 * _BLOCK or first.device.type != "cpu"
    if few or not all(same_layout(first, other) for other in (first, *others)):
        return function(*tensors).sum()
    in_memory = [each.as_strided((each.numel(),), (1,)) for each in tensors]
    blocks = zip(*(each.split(_BLOCK) for each in in_memory))
    return torch.stack([function(*block).sum() for block in blocks]).sum()
