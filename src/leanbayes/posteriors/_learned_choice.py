"""Gradients of mixing probabilities: what a drawn choice says of the probabilities that it was drawn with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from leanbayes.noise import exact_products


class LearnedChoice(torch.autograd.Function):
    r"""What was chosen, parameters or outputs ``w_s`` of one of K copies ``M_k``, with a gradient for the choice.

    The gradient of an expected loss in the log-probabilities is ``E[(L_s - c_s) score_s] + grad E[c_s]`` for any
    baseline c_s that is independent of the choice of sample s. `ELBO` adds the first part with the loss of the other
    samples for c_s. This function refines c_s to the first order: with another sample t and its gradient g_t,

    .. math:: c_s = L_t + g_t \cdot (w_s - w_t), \qquad E[c_s] = L_t + g_t \cdot (\sum_k p_k M_k - w_t)

    so that the sum of both is unbiased, and its variance is of second order in the distance of the copies. Where
    nobody adds the first part, the gradient is that of the mean of the copies, which is right to the first order alone.

    Arguments of `apply`:
        drawn: ``[rows, *shape]``.
        copies: ``[K, 1, *shape]``, or ``[K, rows, *shape]`` where they differ between rows; without a gradient.
        log_probs: ``[K]``.
        index: The choice, ``[rows]`` or ``[rows, *shape]``.
        n: Number of samples that the rows belong to, samples outermost; 1 where the first part is not added.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(drawn: Tensor, copies: Tensor, log_probs: Tensor, index: Tensor, n: int) -> Tensor:  # pyright: ignore
        """See the class."""
        return drawn.view_as(drawn)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """See the class."""
        *tensors, ctx.n = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """See the class."""
        (grad,) = gradients
        drawn, copies, log_probs, index = ctx.saved_tensors
        with exact_products(drawn.device):
            precise = [t.to(log_probs.dtype) for t in (grad, drawn, copies)]
            slope = _first_order(precise[0], precise[1], precise[2], log_probs, index, ctx.n)
        return grad, None, slope, None, None


def _first_order(grad: Tensor, drawn: Tensor, copies: Tensor, log_probs: Tensor, index: Tensor, n: int) -> Tensor:
    """The gradient ``[K]`` of the log-probabilities."""
    # The same rows of the next sample; with one sample it is the row itself.
    step = grad.shape[0] // n
    other, away = grad.roll(step, 0), drawn - drawn.roll(step, 0)
    if copies.shape[1] == 1:
        each = other.flatten(1) @ copies.flatten(1).mT  # [rows, K]: g_t . M_k
    else:
        each = (other * copies).flatten(2).sum(2).mT
    predicted = (other * away).flatten(1).sum(1)  # [rows]: g_t . (w_s - w_t)
    return (each * log_probs.exp()).sum(0) - predicted @ counts(index, copies.shape[0], predicted.dtype)


def counts(index: Tensor, kinds: int, dtype: torch.dtype) -> Tensor:
    """How often each of K copies was chosen in each row: ``[rows, K]``."""
    flat = index.flatten(1) if index.dim() > 1 else index.unsqueeze(1)
    return torch.zeros(len(flat), kinds, dtype=dtype, device=index.device).scatter_add(
        1, flat, torch.ones(flat.shape, dtype=dtype, device=index.device)
    )
