"""The definition in plain torch: draws of a weight whose noise is a function of keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.kernels._layout import matrix_layout
from leanbayes.kernels._philox import philox_normal_reference
from leanbayes.kernels.gaussian_kl.reference import tied_std
from leanbayes.noise import full_precision


def tied_draws_reference(
    loc: Tensor,
    log_u: Tensor,
    log_v: Tensor,
    keys: Tensor,
    *,
    out_axis: int = 0,
    with_loc: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``loc + (exp(log_u) @ exp(log_v).T) * eps_s``, see `leanbayes.kernels.weight_sample.tied_draws`."""
    draws = tied_std(log_u, log_v, loc, out_axis) * tied_noise(loc, keys, out_axis)
    return (full_precision(loc) + draws if with_loc else draws).to(dtype)


def free_draws_reference(
    loc: Tensor, raw_std: Tensor, keys: Tensor, *, with_loc: bool = True, dtype: torch.dtype = torch.float32
) -> Tensor:
    """``loc + softplus(raw_std) * eps_s``, see `leanbayes.kernels.weight_sample.free_draws`."""
    draws = F.softplus(full_precision(raw_std)) * free_noise(loc, keys)
    return (full_precision(loc) + draws if with_loc else draws).to(dtype)


def tied_noise(loc: Tensor, keys: Tensor, out_axis: int) -> Tensor:
    """Noise ``[n, *shape]``: each row of the matrix in memory begins at a multiple of four numbers of its key."""
    layout = matrix_layout(loc.shape, loc.stride(), out_axis)
    assert layout is not None
    padded = -(-layout.columns // 4) * 4
    rows = philox_normal_reference(keys, layout.rows * padded).view(-1, layout.rows, padded)[..., : layout.columns]
    memory = torch.empty(keys.shape[0], loc.numel(), device=loc.device)
    memory[:, layout.positions(loc.device).flatten()] = rows.flatten(1)
    return memory.as_strided((keys.shape[0], *loc.shape), (loc.numel(), *loc.stride()))


def free_noise(loc: Tensor, keys: Tensor) -> Tensor:
    """Noise ``[n, *shape]``: an element's number is its position in memory."""
    memory = philox_normal_reference(keys, loc.numel()).contiguous()
    return memory.as_strided((keys.shape[0], *loc.shape), (loc.numel(), *loc.stride()))
