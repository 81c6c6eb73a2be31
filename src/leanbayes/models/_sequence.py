"""Lengths and last steps of padded sequences."""

import torch
from torch import Tensor


def match_rows(lengths: Tensor, rows: int) -> Tensor:
    """Repeats the lengths of B examples for the S * B rows of folded samples, sample index outermost.

    Args:
        lengths: Steps of each example, ``[B]``.
        rows: Rows that need a length, a multiple of B.

    Returns:
        Lengths, ``[rows]``.
    """
    if lengths.ndim != 1 or rows % max(lengths.shape[0], 1):
        raise ValueError(f"lengths must have one entry for each of the {rows} rows, not shape {tuple(lengths.shape)}")
    return lengths.repeat(rows // max(lengths.shape[0], 1))


def valid_steps(lengths: Tensor, steps: int) -> Tensor:
    """Which steps belong to the sequences, ``[B, steps]``, for lengths ``[B]``."""
    return torch.arange(steps, device=lengths.device) < lengths.unsqueeze(1)


def last_step(outputs: Tensor, lengths: Tensor) -> Tensor:
    """The output at the last step of each sequence; the first step stands for an empty one.

    Args:
        outputs: Outputs at all steps, ``[B, T, H]``.
        lengths: Steps of each sequence, ``[B]``, at most T.

    Returns:
        Outputs, ``[B, H]``.
    """
    index = lengths.clamp(1, outputs.shape[1]) - 1
    return outputs.take_along_dim(index.view(-1, 1, 1), dim=1).squeeze(1)
