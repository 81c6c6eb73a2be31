"""Calling models on tensors, mappings and tuples, and checking what goes in and comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence


def call(model: nn.Module, x: Any) -> Any:
    """Run a model on a tensor, a mapping (by keyword) or a tuple or list (by position)."""
    if isinstance(x, Mapping):
        return model(**x)
    if isinstance(x, (tuple, list)) and not isinstance(x, PackedSequence):
        return model(*x)
    return model(x)


def loader_input(batch: Any) -> Any:
    """The inputs in what a loader gives: without labels, or the first of a tuple or list."""
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key not in ("labels", "label")}
    several = isinstance(batch, (tuple, list)) and not isinstance(batch, PackedSequence)
    return batch[0] if several else batch


def output_tensor(output: Any) -> Tensor:
    """The tensor that a model predicts with: its output, the output's logits, or the only tensor in it."""
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    found = list(tensors(output))
    if len(found) == 1:
        return found[0]
    kind = type(output).__name__
    if not found:
        raise TypeError(f"the model returned {kind}; expected a tensor, or a mapping or tuple with one")
    raise TypeError(
        f"the model returned a {kind} with {len(found)} tensors, and only one can be predicted with; wrap the model to "
        "return that one, or a mapping in which it is called 'logits'"
    )


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
    found = find_rows(x, batch_dim)
    if found is None:
        raise TypeError(f"expected an input with a batch axis, got {type(x).__name__}")
    return found


def find_rows(x: Any, batch_dim: int = 0) -> int | None:
    """Number of examples of an input: the rows of its first tensor that has a batch axis, None where none has."""
    if isinstance(x, Tensor):
        return x.shape[batch_dim] if x.dim() > batch_dim else None
    if isinstance(x, PackedSequence):
        # Its sizes are values, which compiled code does not look at.
        return None if torch.compiler.is_compiling() else int(x.batch_sizes[0])
    values = x.values() if isinstance(x, Mapping) else x if isinstance(x, (tuple, list)) else ()
    for value in values:
        found = find_rows(value, batch_dim)
        if found is not None:
            return found
    return None


class NanCheck:
    """Looks for NaN in an input, without waiting for a GPU before the answer is wanted.

    Args:
        x: Anything that holds tensors.
    """

    def __init__(self, x: Any) -> None:
        self.pending: list[tuple[Tensor, Tensor, torch.cuda.Event | None]] = []
        for tensor in tensors(x):
            if tensor.is_floating_point():
                # NaN in the sum is NaN in the input, or infinities of both signs; a look at each element takes ten
                # times as long.
                flag, event = tensor.detach().sum().isnan(), None
                if tensor.is_cuda:
                    flag = torch.empty((), dtype=torch.bool, pin_memory=True).copy_(flag, non_blocking=True)
                    event = torch.cuda.Event()
                    event.record(torch.cuda.current_stream(tensor.device))
                self.pending.append((tensor, flag, event))

    def finish(self) -> None:
        """Raise where there is NaN."""
        for tensor, flag, event in self.pending:
            if event is not None:
                event.synchronize()
            if bool(flag) and bool((bad := torch.isnan(tensor)).any()):
                count = int(bad.flatten(1).any(1).sum()) if tensor.dim() > 1 else int(bad.sum())
                raise ValueError(
                    f"the input contains NaN in {count} of {tensor.shape[0]} rows; clean or impute it first"
                )
        self.pending.clear()


def check_no_nan(x: Any) -> None:
    """Raise where an input holds NaN, before it can reach a model's statistics."""
    NanCheck(x).finish()
