"""Calling models on tensors, mappings and tuples, and checking what goes in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def call(model: nn.Module, x: Any) -> Any:
    """Run a model on a tensor, a mapping (by keyword) or a tuple or list (by position)."""
    if isinstance(x, Mapping):
        return model(**x)
    if isinstance(x, (tuple, list)):
        return model(*x)
    return model(x)


def output_tensor(output: Any) -> Tensor:
    """The tensor that a model predicts with: its output, the output's logits, or its first tensor."""
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    values = output.values() if isinstance(output, Mapping) else output
    if isinstance(output, (Mapping, tuple, list)):
        for value in values:
            if isinstance(value, Tensor):
                return value
    raise TypeError(f"the model returned {type(output).__name__}; expected a tensor, or a mapping or tuple with one")


def tensors(x: Any) -> Iterator[Tensor]:
    """All tensors of a nested input."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Mapping):
        for value in x.values():
            yield from tensors(value)
    elif isinstance(x, (tuple, list)):
        for value in x:
            yield from tensors(value)


def rows(x: Any, batch_dim: int = 0) -> int:
    """Number of examples of an input."""
    for tensor in tensors(x):
        if tensor.dim() > batch_dim:
            return tensor.shape[batch_dim]
    raise TypeError(f"expected an input with a batch axis, got {type(x).__name__}")


def check_no_nan(x: Any) -> None:
    """Raise where an input holds NaN, before it can reach a model's statistics."""
    for tensor in tensors(x):
        if tensor.is_floating_point() and bool(torch.isnan(tensor).any()):
            bad = (
                int(torch.isnan(tensor).flatten(1).any(1).sum()) if tensor.dim() > 1 else int(torch.isnan(tensor).sum())
            )
            raise ValueError(f"the input contains NaN in {bad} of {tensor.shape[0]} rows; clean or impute it first")
