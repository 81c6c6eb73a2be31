"""How many samples one pass of a prediction takes, and how many rows one block of a large input."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes._inputs import rows, tensors
from leanbayes._owners import instances
from leanbayes._prefix import Boundary
from leanbayes._sampling import Sampling
from leanbayes.estimators import estimator
from leanbayes.nn._replica import is_compiled
from leanbayes.nn.layer import BayesianLayer
from leanbayes.nn.norm import NormLayer
from leanbayes.ops import Dense


class _Limits(NamedTuple):
    """What one pass takes where `chunk` is not given: enough to fill the machine, little enough for its caches."""

    rows: int
    wide_rows: int  # rows of images and the like
    drawn_elements: int  # elements of the drawn weights of one layer
    block: int  # rows of one block of a large input


_CPU = _Limits(rows=512, wide_rows=32, drawn_elements=1 << 18, block=1024)
_CUDA = _Limits(rows=8192, wide_rows=1024, drawn_elements=1 << 28, block=4096)
_WIDE_ROW = 1024
# Memory that a pass takes beyond its input: so many times as much.
_ACTIVATIONS = 128


def block_rows(x: Tensor) -> int:
    """Rows of one block of a large input."""
    return (_CUDA if x.is_cuda else _CPU).block


def best_chunk(model: nn.Module, x: Any, state: Sampling, boundary: Boundary | None, every_copy: bool = False) -> int:
    """Samples that are worth folding: small passes cost overhead, large ones leave the caches.

    Args:
        model: A converted model.
        x: One batch.
        state: How it draws.
        boundary: Where samples are folded in.
        every_copy: Whether the layer there applies all its copies once, and draws no weight.
    """
    first = next(tensors(x))
    limits = _CUDA if first.device.type == "cuda" else _CPU
    count = rows(x, state.batch_dim)
    width = first.numel() // max(count, 1) if boundary is None else boundary.width
    rows_wanted = limits.wide_rows if width > _WIDE_ROW else limits.rows
    drawing = _drawing_layers(model, state, first)
    if every_copy and boundary is not None:
        drawing = [layer for layer in drawing if layer is not model.get_submodule(boundary.name)]
    # On the CPU, copies are not drawn but used where they are.
    in_place = first.device.type == "cpu" and not torch.is_grad_enabled()
    drawn = max((layer.weight.numel() for layer in drawing if not (in_place and layer.weight.draws_copies)), default=0)
    whole = first.device.type == "cuda" and is_compiled(model)
    norms = not whole and bool(instances(model, NormLayer))
    if width > _WIDE_ROW and (any(not isinstance(layer.op, Dense) for layer in drawing) or norms):
        # Convolutions apply drawn weights one after the other, and a norm with a scale per row reads more than one
        # with a scale for all, unless it is compiled: folding saves only the calls between.
        rows_wanted //= 4
    elif whole:
        # A compiled pass costs its host more than the device.
        rows_wanted = max(rows_wanted, min(limits.rows, _free_rows(first, count)))
    chunk = rows_wanted // max(count, 1)
    if drawn:
        chunk = min(chunk, limits.drawn_elements // drawn)
    return max(1, chunk)


def _drawing_layers(model: nn.Module, state: Sampling, x: Tensor) -> list[BayesianLayer]:
    """Layers that draw whole weights in a pass over such an input."""
    # A layer that is exact on one vector of each example gets one, unless the model takes sequences.
    vectors = x.is_floating_point() and x.dim() != 3

    def draws(layer: BayesianLayer) -> bool:
        chosen = estimator(layer.estimator if vectors else layer.estimator_otherwise)
        return chosen.draws_weight or (state.joint and not chosen.joint)

    return [layer for layer in instances(model, BayesianLayer) if draws(layer)]


def _free_rows(x: Tensor, count: int) -> int:
    """Rows whose activations fit the free memory of a GPU."""
    free, _ = torch.cuda.mem_get_info(x.device)
    return free // max(1, _ACTIVATIONS * x.element_size() * x.numel() // max(count, 1))
