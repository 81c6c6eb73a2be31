"""Linear operators: the maps that are linear in their weight, apart from any distribution on it.

An op knows how to apply one weight (`op(x, weight, bias)`), one weight per sample (`op.stacked`), how to scale the
features of an input or output (`op.scale`), and which entry of the weight meets which input and output feature
(`op.outer`). It knows nothing of posteriors and estimators.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.noise import as_dtype

Gradients = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True)
class LinearOp(ABC):
    """A map y = op(x, w) + b that is linear in w.

    Attributes:
        in_features: Number of input features (channels; words of an embedding).
        out_features: Number of output features.
    """

    in_features: int
    out_features: int

    out_axis: ClassVar[int] = 0
    in_axis: ClassVar[int] = 1
    # Whether the class, and not one that maps otherwise, gives `gradients`.
    written_out: ClassVar[bool] = False
    # Whether inputs are indices, which have no features to scale.
    index_input: ClassVar[bool] = False
    # Whether outputs must come from whole weights, one for all rows of a sample.
    whole_weights: ClassVar[bool] = False
    groups = 1

    @abstractmethod
    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Apply one weight to all rows, by the kernel that the plain module uses."""

    @abstractmethod
    def batched(self, x: Tensor) -> bool:
        """Whether x has a batch axis."""

    def row_axis(self, x: Tensor, batch_dim: int) -> int:
        """Axis of the rows of x in a model whose sequences have theirs at `batch_dim`; 0 for what is no sequence."""
        return 0

    def one_position(self, x: Tensor) -> bool:
        """Whether each row of x meets each entry of the weight once, as a vector does in a dense layer."""
        return False

    def groups_vectors(self, x: Tensor) -> bool:
        """Whether the rows of x are vectors that may as well be positions of fewer rows: each is mapped by itself."""
        return False

    def add_feature_axis(self, values: Tensor, ndim: int, batch_dim: int) -> Tensor:
        """View ``[rows, features]`` so that it broadcasts with an input or output of `ndim` axes, features last.

        What has so many axes already is left alone.
        """
        if values.dim() == ndim:
            return values
        return values.view(*(1,) * batch_dim, values.shape[0], *(1,) * (ndim - 2 - batch_dim), values.shape[1])

    def stacked(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, batch_dim: int = 0) -> Tensor:
        """Apply ``weight[s]`` (and ``bias[s]``) to the rows of sample s.

        Args:
            x: ``[S * B, ...]`` at `batch_dim`, sample index outermost.
            weight: ``[S, *shape]``.
            bias: ``[S, out]`` or None.
            batch_dim: Axis of the rows.
        """
        parts = x.chunk(weight.shape[0], batch_dim)
        outputs = [self(part, w, None if bias is None else bias[s]) for s, (part, w) in enumerate(zip(parts, weight))]
        return torch.cat(outputs, batch_dim)

    def positions(self) -> int:
        """Number of axes of an input or output after that of its features, as an image has."""
        return 0

    def square(self, x: Tensor) -> Tensor:
        """The input of the variance map: entries squared (an index selects the same row of a variance)."""
        return x if self.index_input else x * x  # for `x.square()` autocast goes to float32

    def scale(self, x: Tensor, factor: Tensor, batch_dim: int = 0) -> Tensor:
        """Multiply the features of every row by ``factor`` ``[rows or samples, features]``, spread already or not."""
        return x * self.spread(factor, x, batch_dim)

    def spread(self, factor: Tensor, x: Tensor, batch_dim: int = 0) -> Tensor:
        """View ``[rows or samples, features]`` so that it broadcasts with an input or output, in its dtype."""
        rows = expand_rows(factor, x.shape[batch_dim])
        if rows.dim() != x.dim():
            rows = self.add_feature_axis(rows, x.dim(), batch_dim)
        return as_dtype(rows, x.dtype)

    def __init_subclass__(cls, **options: Any) -> None:
        # Gradients that were written for another map would be wrong without a word.
        super().__init_subclass__(**options)
        own = vars(cls)
        if "gradients" in own:
            cls.written_out = True
        elif not own.keys().isdisjoint(("__call__", "stacked", "square", "scale")):
            cls.written_out = False

    @property
    def has_gradients(self) -> bool:
        """Whether `gradients` and `output_shape` are written out, so that a caller may decide what is kept for them.

        A subclass that maps otherwise has those of its parent no longer.
        """
        return self.written_out

    def flat(self, x: Tensor) -> Tensor:
        """The input as its product takes it: vectors in rows for a matrix product."""
        return x

    def output_shape(self, x: Tensor, weight: Tensor) -> tuple[int, ...]:
        """Shape of ``op(x, weight)``."""
        raise NotImplementedError

    def gradients(self, grad: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool]) -> Gradients:
        """Gradients in x and in the weight for that of the output, None where they are not wanted.

        They are made of products that can be differentiated again.
        """
        raise NotImplementedError

    def stacked_gradients(
        self, grad: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool], batch_dim: int = 0
    ) -> Gradients:
        """The same for `stacked`."""
        n = weight.shape[0]
        if n == 1:
            grad_x, grad_weight = self.gradients(grad, x, weight.squeeze(0), wanted)
            return grad_x, None if grad_weight is None else grad_weight.unsqueeze(0)
        parts = zip(grad.chunk(n, batch_dim), x.chunk(n, batch_dim), weight)
        each_x, each_weight = zip(*(self.gradients(g, part, w, wanted) for g, part, w in parts))
        return (
            torch.cat(each_x, batch_dim) if wanted[0] else None,
            torch.stack(each_weight) if wanted[1] else None,
        )

    def mixing(self, matrix: Tensor) -> tuple[Tensor, LinearOp] | None:
        """What maps other features of an output, at each of its positions, to its own by a matrix ``[out, features]``.

        Returns:
            The matrix as a weight, and an op; None where there is none, or where it is slow.
        """
        return None

    def bias_gradient(self, grad: Tensor) -> Tensor:
        """Gradient ``[out]`` in a bias."""
        raise NotImplementedError

    def stacked_bias_gradient(self, grad: Tensor, n: int, batch_dim: int = 0) -> Tensor:
        """Gradient ``[n, out]`` in the biases of n samples."""
        return torch.stack([self.bias_gradient(part) for part in grad.chunk(n, batch_dim)])

    def add_bias(self, y: Tensor, bias: Tensor, batch_dim: int = 0) -> Tensor:
        """Add a bias ``[out]``, or one per sample ``[S, out]``."""
        rows = bias.unsqueeze(0) if bias.dim() == 1 else expand_rows(bias, y.shape[batch_dim])
        return y + as_dtype(self.add_feature_axis(rows, y.dim(), batch_dim), y.dtype)

    def outer(self, shape: torch.Size, in_factor: Tensor | None, out_factor: Tensor | None) -> Tensor:
        """The factor that each weight entry meets: ``in_factor[..., i] * out_factor[..., o]``.

        Args:
            shape: The weight's shape (its feature axes may be divided by the groups).
            in_factor: ``[n, in_features]`` or None for ones.
            out_factor: ``[n, out_features]`` or None for ones.

        Returns:
            A tensor that broadcasts against ``[n, *shape]``.
        """
        result = None
        for factor, axis in ((in_factor, self.in_axis), (out_factor, self.out_axis)):
            if factor is not None:
                spread = self._along(factor, shape, axis)
                result = spread if result is None else result * spread
        assert result is not None
        return result

    def same_axes(self, other: LinearOp) -> bool:
        """Whether input and output features lie on the same axes of the weight."""
        return (self.in_axis, self.out_axis) == (other.in_axis, other.out_axis)

    def features(self, shape: torch.Size, axis: int) -> int:
        """Number of features along one of the two feature axes of a weight of this shape.

        It follows the weight, not the op: a table without its padding row has one word fewer.
        """
        # A grouped convolution stores the features of one group on its second axis.
        return shape[axis] * (self.groups if axis == 1 else 1)

    def _along(self, factor: Tensor, shape: torch.Size, axis: int) -> Tensor:
        n, ndim = factor.shape[0], len(shape)
        if factor.shape[1] == shape[axis]:
            return factor.view(n, *(shape[axis] if i == axis else 1 for i in range(ndim)))
        # A grouped convolution stores the features of one group on this axis; the group is that of the other axis.
        other = self.in_axis if axis == self.out_axis else self.out_axis
        per_group = factor.view(n, self.groups, shape[axis])
        spread = per_group.repeat_interleave(shape[other] // self.groups, 1)  # [n, other, axis]
        return spread.reshape(*spread.shape, *(1 for _ in range(ndim - 2)))


def expand_rows(values: Tensor, rows: int) -> Tensor:
    """Repeat ``[k, ...]`` so that there is one entry per row, each for a run of rows // k neighbours."""
    count = values.shape[0]
    if count in (1, rows):
        return values
    return values.repeat_interleave(rows_per_sample(rows, count), 0)


class UnevenRowsError(ValueError):
    """It is unclear which of the folded samples a row belongs to."""


def rows_per_sample(rows: int, n: int) -> int:
    """Number of rows of each of n samples, or an error where the batch does not divide into them."""
    if rows % n:
        raise UnevenRowsError(
            f"a batch of {rows} rows does not divide into {n} samples; fold the input with lb.fold(x, {n}), or draw "
            "one sample at a time if the model gives some of its layers other rows"
        )
    return rows // n


@dataclass(frozen=True)
class Dense(LinearOp):
    """``x @ w.T + b`` over the last axis, any leading axes (`nn.Linear`)."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `LinearOp`."""
        return F.linear(x, weight, bias)

    def batched(self, x: Tensor) -> bool:
        """See `LinearOp`."""
        return x.dim() > 1

    def one_position(self, x: Tensor) -> bool:
        """See `LinearOp`."""
        return x.dim() == 2

    def groups_vectors(self, x: Tensor) -> bool:
        """See `LinearOp`."""
        return x.dim() == 2 and self.has_gradients  # what maps otherwise may count on its rows

    def row_axis(self, x: Tensor, batch_dim: int) -> int:
        """See `LinearOp`."""
        return batch_dim if x.dim() > batch_dim + 1 else 0

    def stacked(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, batch_dim: int = 0) -> Tensor:
        """See `LinearOp`; one batched matrix product for all samples."""
        matrix = self._matrix(weight)
        flat = _samples(x, weight.shape[0], batch_dim)
        y = torch.bmm(flat, matrix) if bias is None else torch.baddbmm(bias.unsqueeze(1), flat, matrix)
        return _unflatten(y, x, batch_dim)

    def flat(self, x: Tensor) -> Tensor:
        """See `LinearOp`."""
        return _rows(x)

    def output_shape(self, x: Tensor, weight: Tensor) -> tuple[int, ...]:
        """See `LinearOp`."""
        return (*x.shape[:-1], weight.shape[self.out_axis])

    def gradients(self, grad: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool]) -> Gradients:
        """See `LinearOp`."""
        grad_x = grad @ self._matrix_back(weight) if wanted[0] else None
        return grad_x, self._weight_gradient(_rows(x), _rows(grad)) if wanted[1] else None

    def stacked_gradients(
        self, grad: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool], batch_dim: int = 0
    ) -> Gradients:
        """See `LinearOp`; batched matrix products for all samples."""
        if weight.shape[0] == 1:
            return super().stacked_gradients(grad, x, weight, wanted, batch_dim)
        flat, flat_grad = (_samples(each, weight.shape[0], batch_dim) for each in (x, grad))
        grad_x = torch.bmm(flat_grad, self._matrix_back(weight)) if wanted[0] else None
        return (
            None if grad_x is None else _unflatten(grad_x, x, batch_dim),
            self._weight_gradient(flat, flat_grad) if wanted[1] else None,
        )

    def mixing(self, matrix: Tensor) -> tuple[Tensor, LinearOp] | None:
        """See `LinearOp`."""
        return matrix, Dense(matrix.shape[1], self.out_features)

    def bias_gradient(self, grad: Tensor) -> Tensor:
        """See `LinearOp`."""
        return _rows(grad).sum(0)

    def _matrix(self, weight: Tensor) -> Tensor:
        return weight.mT  # [..., in, out]

    def _matrix_back(self, weight: Tensor) -> Tensor:
        return weight  # [..., out, in]

    def _weight_gradient(self, x: Tensor, grad: Tensor) -> Tensor:
        return grad.mT @ x


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _samples(x: Tensor, n: int, batch_dim: int) -> Tensor:
    """The vectors of each sample ``[n, B * positions, features]``."""
    rows = x.movedim(batch_dim, 0)
    return rows.reshape(n, rows.shape[:-1].numel() // n, rows.shape[-1])


def _unflatten(y: Tensor, like: Tensor, batch_dim: int) -> Tensor:
    """Undo `_samples` for a tensor with the rows and positions of another."""
    return y.reshape(*like.movedim(batch_dim, 0).shape[:-1], y.shape[-1]).movedim(0, batch_dim)


@dataclass(frozen=True)
class DenseTransposed(Dense):
    """``x @ w + b``: a dense layer that stores its weight as ``[in, out]`` (transformers' Conv1D)."""

    out_axis: ClassVar[int] = 1
    in_axis: ClassVar[int] = 0
    gradients = Dense.gradients  # of `_matrix`, as this map is

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `LinearOp`."""
        flat = _rows(x)
        y = flat @ weight if bias is None else torch.addmm(bias, flat, weight)
        return y.view(*x.shape[:-1], weight.shape[-1])

    def _matrix(self, weight: Tensor) -> Tensor:
        return weight

    def _matrix_back(self, weight: Tensor) -> Tensor:
        return weight.mT

    def _weight_gradient(self, x: Tensor, grad: Tensor) -> Tensor:
        return x.mT @ grad


_CONV: dict[tuple[int, bool], Callable[..., Tensor]] = {
    (1, False): F.conv1d,
    (2, False): F.conv2d,
    (3, False): F.conv3d,
    (1, True): F.conv_transpose1d,
    (2, True): F.conv_transpose2d,
    (3, True): F.conv_transpose3d,
}


@dataclass(frozen=True)
class _Spatial(LinearOp):
    ndim: int
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int = 1

    def batched(self, x: Tensor) -> bool:
        """See `LinearOp`."""
        return x.dim() == self.ndim + 2

    def positions(self) -> int:
        """See `LinearOp`."""
        return self.ndim

    def add_feature_axis(self, values: Tensor, ndim: int, batch_dim: int) -> Tensor:
        """See `LinearOp`."""
        return values if values.dim() == ndim else values.view(*values.shape, *(1,) * self.ndim)

    @property
    def has_gradients(self) -> bool:
        """See `LinearOp`; not where the input is padded first."""
        return self.written_out and self._zeros() is not None

    def gradients(self, grad: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool]) -> Gradients:
        """See `LinearOp`."""
        padding = self._zeros()
        assert padding is not None
        transposed, extra = isinstance(self, ConvTransposed), self._extra()
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward.default(
            grad, x, weight, None, self.stride, padding, self.dilation, transposed, extra, self.groups, (*wanted, False)
        )
        return grad_x if wanted[0] else None, grad_weight if wanted[1] else None

    def mixing(self, matrix: Tensor) -> tuple[Tensor, LinearOp] | None:
        """See `LinearOp`; a convolution with kernels of one position, not where groups have channels of their own."""
        if self.groups > 1:
            return None
        ones = (1,) * self.ndim
        op = Conv(matrix.shape[1], self.out_features, self.ndim, stride=ones, padding=(0,) * self.ndim, dilation=ones)
        return matrix.view(*matrix.shape, *ones), op

    def bias_gradient(self, grad: Tensor) -> Tensor:
        """See `LinearOp`."""
        return grad.sum((0, *range(2, grad.dim())))

    def _zeros(self) -> tuple[int, ...] | None:
        """Zeros on either side of each axis, None where it is not such."""
        return None if isinstance(self.padding, str) else self.padding

    def _extra(self) -> tuple[int, ...]:
        """Positions that the output of a transposed convolution has more."""
        return (0,) * self.ndim


@dataclass(frozen=True)
class Conv(_Spatial):
    """Convolution in 1 to 3 dimensions, any stride, dilation, groups and padding mode."""

    padding_mode: str = "zeros"
    pad_amounts: tuple[int, ...] = ()
    gradients = _Spatial.gradients

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `LinearOp`."""
        padding = self.padding
        if self.padding_mode != "zeros":
            x = F.pad(x, self.pad_amounts, mode=self.padding_mode)
            padding = (0,) * self.ndim
        return _CONV[self.ndim, False](x, weight, bias, self.stride, padding, self.dilation, self.groups)

    def output_shape(self, x: Tensor, weight: Tensor) -> tuple[int, ...]:
        """See `LinearOp`."""
        padding = self._zeros()
        assert padding is not None
        axes = zip(x.shape[2:], weight.shape[2:], self.stride, padding, self.dilation)
        return x.shape[0], weight.shape[0], *((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in axes)

    def _zeros(self) -> tuple[int, ...] | None:
        if self.padding_mode != "zeros":
            return None
        if self.padding == "valid":
            return (0,) * self.ndim
        if self.padding == "same":
            # Last axis first, as `F.pad` takes them.
            before, after = self.pad_amounts[-2::-2], self.pad_amounts[::-2]
            return before if before and before == after else None
        return super()._zeros()


@dataclass(frozen=True)
class ConvTransposed(_Spatial):
    """Transposed convolution in 1 to 3 dimensions, with output padding."""

    out_axis: ClassVar[int] = 1
    in_axis: ClassVar[int] = 0

    output_padding: tuple[int, ...] = ()
    gradients = _Spatial.gradients

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `LinearOp`."""
        return _CONV[self.ndim, True](
            x, weight, bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )

    def output_shape(self, x: Tensor, weight: Tensor) -> tuple[int, ...]:
        """See `LinearOp`."""
        assert not isinstance(self.padding, str)
        axes = zip(x.shape[2:], weight.shape[2:], self.stride, self.padding, self.dilation, self._extra())
        sizes = ((size - 1) * s - 2 * p + d * (k - 1) + more + 1 for size, k, s, p, d, more in axes)
        return x.shape[0], weight.shape[1] * self.groups, *sizes

    def _extra(self) -> tuple[int, ...]:
        return self.output_padding or super()._extra()


@dataclass(frozen=True)
class Lookup(LinearOp):
    """Rows of a table by index: a one-hot input times the weight (`nn.Embedding`)."""

    padding_idx: int | None = None
    scale_grad_by_freq: bool = False

    out_axis: ClassVar[int] = 1
    in_axis: ClassVar[int] = 0
    index_input: ClassVar[bool] = True

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `LinearOp`."""
        return F.embedding(x, weight, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq)

    def batched(self, x: Tensor) -> bool:
        """See `LinearOp`."""
        return x.dim() > 0

    def row_axis(self, x: Tensor, batch_dim: int) -> int:
        """See `LinearOp`; indices have no feature axis."""
        return batch_dim if x.dim() > batch_dim else 0


@dataclass(frozen=True)
class BagLookup(Lookup):
    """Sums, means or maxima of rows of a table (`nn.EmbeddingBag`), with the offsets and weights of one call."""

    # A bag that holds a word twice adds its noise twice.
    whole_weights: ClassVar[bool] = True

    mode: str = "mean"
    include_last_offset: bool = False
    offsets: Tensor | None = None
    per_sample_weights: Tensor | None = None

    def row_axis(self, x: Tensor, batch_dim: int) -> int:
        """See `LinearOp`; a bag is no sequence."""
        return 0

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See `LinearOp`."""
        return F.embedding_bag(
            x,
            weight,
            self.offsets,
            scale_grad_by_freq=self.scale_grad_by_freq,
            mode=self.mode,
            per_sample_weights=self.per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )


_OPS: dict[type[nn.Module], Callable[[Any], LinearOp]] = {}


def register_op(*types: type[nn.Module]) -> Callable[[Callable[[Any], LinearOp]], Callable[[Any], LinearOp]]:
    """Register the function that reads an op off a module of these types (`forward` must be the type's own)."""

    def add(function: Callable[[Any], LinearOp]) -> Callable[[Any], LinearOp]:
        for kind in types:
            if kind in _OPS:
                raise ValueError(f"an op for {kind.__name__} is already registered")
            _OPS[kind] = function
        return function

    return add


def op_for(module: Any) -> LinearOp | None:
    """The op of a module, or None where it has none (a subclass with its own `forward` has none)."""
    for kind in type(module).__mro__:
        if kind in _OPS:
            return _OPS[kind](module) if type(module).forward is kind.forward else None
    if is_transformers_conv1d(module):
        return DenseTransposed(module.weight.shape[0], module.weight.shape[1])
    return None


def is_transformers_conv1d(module: nn.Module) -> bool:
    """Whether a module is transformers' Conv1D, without importing transformers."""
    library = sys.modules.get("transformers.pytorch_utils")
    return library is not None and type(module) is library.Conv1D


@register_op(nn.Linear)
def _dense(module: nn.Linear) -> LinearOp:
    return Dense(module.in_features, module.out_features)


@register_op(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _conv(module: Any) -> LinearOp:
    return Conv(
        module.in_channels,
        module.out_channels,
        ndim=len(module.kernel_size),
        stride=module.stride,
        padding=module.padding,
        dilation=module.dilation,
        groups=module.groups,
        padding_mode=module.padding_mode,
        pad_amounts=tuple(module._reversed_padding_repeated_twice),
    )


@register_op(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def _conv_transposed(module: Any) -> LinearOp:
    return ConvTransposed(
        module.in_channels,
        module.out_channels,
        ndim=len(module.kernel_size),
        stride=module.stride,
        padding=module.padding,
        dilation=module.dilation,
        groups=module.groups,
        output_padding=module.output_padding,
    )


@register_op(nn.Embedding)
def _lookup(module: nn.Embedding) -> LinearOp:
    return Lookup(module.num_embeddings, module.embedding_dim, module.padding_idx, module.scale_grad_by_freq)


@register_op(nn.EmbeddingBag)
def _bag(module: nn.EmbeddingBag) -> LinearOp:
    return BagLookup(
        module.num_embeddings,
        module.embedding_dim,
        module.padding_idx,
        module.scale_grad_by_freq,
        module.mode,
        module.include_last_offset,
    )
