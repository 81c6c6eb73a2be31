"""When the products of a layer are differentiated by our own hand, and in which precision they are computed.

Autograd keeps the input of every product. An estimator computes two from one input, so that by hand only that input has
to be kept, in the precision of the products, and the other one is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from leanbayes.kernels._autograd import reverse_mode_alone
from leanbayes.noise import as_dtype
from leanbayes.ops import LinearOp


def writes_gradients(op: LinearOp, x: Tensor) -> bool:
    """Whether an op can be differentiated by hand here: in reverse mode, outside of `torch.func` and of exports."""
    if not op.has_gradients or not op.batched(x):
        return False
    # Not `is_exporting()`, which compilers before torch 2.13 take for true in all that they trace.
    return reverse_mode_alone() and not torch.compiler._is_exporting_flag


def wants_gradients(*values: Tensor | None) -> bool:
    """Whether a backward pass may follow."""
    return torch.is_grad_enabled() and any(value is not None and value.requires_grad for value in values)


def to_keep(op: LinearOp, x: Tensor) -> Tensor:
    """The input in the shape in which it is kept."""
    # A compiler keeps what a product takes. What another product takes must follow from that, or it is kept too.
    return op.flat(x) if torch.compiler.is_compiling() else x


def flat_as(op: LinearOp, x: Tensor, value: Tensor) -> Tensor:
    """An output or its gradient, flat where the input is."""
    return value if value.dim() == x.dim() else op.flat(value)


def with_shape(value: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor that may be flat in its own shape."""
    return value if value.dim() == len(shape) else value.view(shape)


def cast(value: Tensor | None, dtype: torch.dtype | None) -> Tensor | None:
    """A tensor in another dtype, where there are both."""
    return value if value is None or dtype is None else as_dtype(value, dtype)
