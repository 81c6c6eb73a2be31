"""What the autograd formulas of fused operations have in common."""

from __future__ import annotations

from typing import Any


def first_order_only(op: Any) -> Any:
    """Make a custom op that computes gradients refuse to be differentiated itself."""

    def refuse(ctx: Any, *grads: Any) -> None:
        raise RuntimeError(
            f"{op._qualname} cannot be differentiated again; LEANBAYES_KERNELS=0 in the environment turns kernels off"
        )

    op.register_autograd(refuse)
    return op
