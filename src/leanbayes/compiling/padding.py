"""Convolutions of odd widths in half precision: padded with channels of zeros, so that tensor cores take them whole."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

_HALF = (torch.bfloat16, torch.float16)
_MULTIPLE = 8  # elements of two bytes that tensor cores read at once


def pad_convolutions(graph_module: fx.GraphModule) -> int:
    """Give convolutions channels of zeros up to the next multiple of eight; returns how many.

    Tensor cores read channels in eights, and cuDNN copies images of other widths before and after every convolution.
    As part of the graph the zeros cost next to nothing: what is normalised or rectified is written between them. Values
    and gradients stay what they were. PyramidNets, whose blocks have 16, 21, 26, ... channels, gain the most.
    """
    graph, count = graph_module.graph, 0
    for node in list(graph.nodes):
        missing = _missing(node)
        if missing is not None:
            _pad(graph, node, *missing)
            count += 1
    if count:
        graph.lint()
        graph_module.recompile()
    return count


def _missing(node: fx.Node) -> tuple[int, int] | None:
    """How many channels a convolution's input and output lack, None where it stays as it is."""
    if node.op != "call_function" or node.target is not F.conv2d or len(node.args) != 7 or node.kwargs:
        return None
    y, weight = _value(node), _value(node.args[1])
    if y is None or weight is None or node.args[6] != 1 or y.dtype not in _HALF or not _on_tensor_cores(y):
        return None
    outputs, inputs = weight.shape[:2]
    if min(inputs, outputs) < _MULTIPLE:  # the pixels of an image, which have kernels of their own
        return None
    missing = -inputs % _MULTIPLE, -outputs % _MULTIPLE
    return missing if any(missing) else None


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) and value.dim() == 4 else None


def _on_tensor_cores(y: Tensor) -> bool:
    return y.is_cuda and y.is_contiguous(memory_format=torch.channels_last)


def _pad(graph: fx.Graph, node: fx.Node, inputs: int, outputs: int) -> None:
    x, weight, bias, *rest = node.args
    y = _value(node)
    assert y is not None
    with graph.inserting_before(node):
        if inputs:
            x = graph.call_function(F.pad, (x, (0, 0, 0, 0, 0, inputs)))
        weight = graph.call_function(F.pad, (weight, (0, 0, 0, 0, 0, inputs, 0, outputs)))
        if outputs and bias is not None:
            bias = graph.call_function(F.pad, (bias, (0, outputs)))
        wide = graph.call_function(F.conv2d, (x, weight, bias, *rest))
        new = graph.call_function(torch.narrow, (wide, 1, 0, y.shape[1])) if outputs else wide
    new.meta["example_value"] = y
    node.replace_all_uses_with(new)
    graph.erase_node(node)
