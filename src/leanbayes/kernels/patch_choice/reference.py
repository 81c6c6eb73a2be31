"""The definition in plain torch: each element of a draw is that of one of K copies."""

from __future__ import annotations

import torch
from torch import Tensor

from leanbayes.kernels._philox import philox_uniform_reference


def choice_index(probs: Tensor, keys: Tensor, count: int) -> Tensor:
    """Indices ``[n, count]`` with probabilities `probs` ``[K]``: how many inner edges a uniform number has reached."""
    edges = edges_of(probs)
    return torch.bucketize(philox_uniform_reference(keys, count).contiguous(), edges, right=True)


def edges_of(probs: Tensor) -> Tensor:
    """Inner edges ``[K - 1]`` between the parts of [0, 1) that the copies own, in float32."""
    return probs.detach().to(torch.float32).cumsum(0)[:-1].contiguous()


def chosen_reference(copies: Tensor, probs: Tensor, keys: Tensor) -> Tensor:
    """See `leanbayes.kernels.patch_choice.chosen`."""
    index = choice_index(probs, keys, copies[0].numel()).view(keys.shape[0], *copies.shape[1:])
    drawn = copies.gather(0, index)
    return drawn.to(torch.promote_types(copies.dtype, torch.float32))
