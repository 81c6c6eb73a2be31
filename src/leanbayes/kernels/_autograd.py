"""What the autograd formulas of fused operations have in common."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def reverse_mode_alone() -> bool:
    """Whether there are neither tangents nor the transformations of `torch.func`, for which rules would be missing."""
    if torch.compiler.is_compiling():
        return True
    return forward_ad._current_level < 0 and not torch._C._are_functorch_transforms_active()


def first_order_only(op: Any) -> Any:
    """Make a custom op that computes gradients refuse to be differentiated itself."""

    def refuse(ctx: Any, *grads: Any) -> None:
        raise RuntimeError(
            f"{op._qualname} cannot be differentiated again; LEANBAYES_KERNELS=0 in the environment turns kernels off"
        )

    op.register_autograd(refuse)
    return op


def direct(op: Any) -> Callable[..., Any]:
    """What an op runs that autograd does not see into: the op itself where it is traced or may be differentiated.

    Elsewhere its function, as the way through torch's dispatcher takes longer than a small kernel.
    """
    return op if traced() or torch.is_grad_enabled() else op._init_fn


def traced() -> bool:
    """Whether somebody looks at the ops that run: a compiler, a transformation or a mode."""
    if torch.compiler.is_compiling():  # asked first: a compiler cannot follow the other questions
        return True
    return torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack() > 0


def keep_for_each(ctx: Any, *tensors: Tensor | None) -> None:
    """Save inputs of an op with several outputs, whose backward passes may come one after the other.

    What autograd itself saves is gone after the first of them.
    """
    ctx.inputs = tensors
    ctx.versions = [_version(each) for each in tensors]


def kept_for_each(ctx: Any) -> tuple[Any, ...]:
    """What `keep_for_each` has saved."""
    if any(_version(each) != version for each, version in zip(ctx.inputs, ctx.versions)):
        raise RuntimeError(
            "parameters were changed in place between the forward and the backward pass; run the backward pass before "
            "the optimiser's step"
        )
    return ctx.inputs


def _version(value: Tensor | None) -> int | None:
    """How often a tensor was changed in place; of what was made in inference mode nobody counts that."""
    return None if value is None or value.is_inference() else value._version


def where_needed(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """What a backward pass returns: gradients of the first inputs, where they are asked for, and none of the others."""
    return tuple(grad if needed else None for grad, needed in zip_longest(grads, ctx.needs_input_grad))


def with_gradients(op: Any, keep: Callable[..., None], gradients: Callable[..., Any]) -> Callable[..., Any]:
    """Give a custom op its gradients, and return what to call in its place.

    Args:
        op: The op.
        keep: ``keep(ctx, inputs, output)`` saves what the gradients need.
        gradients: ``gradients(ctx, *grads)``.

    Returns:
        A function that calls the op where it is traced, and elsewhere does the same without torch's dispatcher.
    """
    op.register_autograd(gradients, setup_context=keep)

    class Direct(torch.autograd.Function):
        """The op in eager code."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            """See the op."""
            output = op._init_fn(*inputs)
            keep(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            """See the op."""
            return gradients(ctx, *grads)

    def call(*inputs: Any) -> Any:
        return op(*inputs) if traced() else Direct.apply(*inputs)

    return call
