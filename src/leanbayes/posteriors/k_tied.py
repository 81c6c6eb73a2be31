"""The k-tied Normal: mean-field whose standard deviations are a product of two matrices of rank k."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leanbayes._checks import check_choice, check_count, check_positive
from leanbayes._registry import register_posterior
from leanbayes.groups import ComponentGroup
from leanbayes.kernels.gaussian_kl import tied_kl
from leanbayes.kernels.weight_sample import tied_draws, tied_draws_measured, tied_fit
from leanbayes.noise import exact_products, full_precision
from leanbayes.ops import LinearOp
from leanbayes.posteriors._base import Posterior, may_join
from leanbayes.posteriors._gaussian import GaussianPosterior
from leanbayes.posteriors._joined import memory_order, once_in_pass, pieces, places
from leanbayes.posteriors._method import Method, check_prior
from leanbayes.posteriors._tied_scales import Block, tied_scales
from leanbayes.posteriors.mean_field import SILENT, MeanField, MeanFieldPosterior
from leanbayes.priors import Normal, Prior

# Noise on the initial log factors, without which the k columns would stay equal (Swiatkowski et al. 2020).
_INIT_NOISE = 0.1
# Up to this rank compilers are given outer products, which they compute where the matrix is used, and no matrix.
_FEW_RANKS = 8
# Outputs get their variances by the factors where that takes so many times fewer products, as thin ones are slower.
_THIN = 8


class KTiedPosterior(GaussianPosterior):
    """N(loc, std^2) with the matrix of standard deviations ``std = exp(log_u) @ exp(log_v).T``.

    The weight is seen as a matrix, of output features by everything else (a convolution's inputs and kernel positions)
    unless other axes are given.

    Args:
        value: The mean.
        rank: Number k of columns of u and v.
        init_std: Initial standard deviation, on average.
        out_axis: Axis of the rows, or several; the others are the columns.
        narrow: See `GaussianPosterior`.
    """

    # Without a kernel, a product and its gradients take a dozen launches.
    fewest = 1

    # Of several that are joined to one.
    blocks: tuple[Block, ...] = ()

    def __init__(
        self, value: Tensor, rank: int, init_std: float, out_axis: int | tuple[int, ...] = 0, narrow: bool = False
    ) -> None:
        super().__init__(value)
        self.row_axes: tuple[int, ...] = out_axis if isinstance(out_axis, tuple) else (out_axis,)
        self.narrow = narrow
        rows = _size(value, self.row_axes)
        columns = self.loc.numel() // rows
        start = 0.5 * (math.log(init_std) - math.log(rank))
        like = self.loc.detach()
        self.log_u = nn.Parameter(start + _INIT_NOISE * torch.randn(rows, rank, dtype=like.dtype, device=like.device))
        self.log_v = nn.Parameter(
            start + _INIT_NOISE * torch.randn(columns, rank, dtype=like.dtype, device=like.device)
        )

    def scale(self) -> Tensor:
        """See `Elementwise`."""
        if self.blocks:
            return self._scales_of_all()
        if self._is_shared():
            return once_in_pass("scale", self.log_u, self._scale_by_hand)
        matrix = _product(full_precision(self.log_u).exp(), full_precision(self.log_v).exp())
        shape, count = self.loc.shape, len(self.row_axes)
        rest = [size for axis, size in enumerate(shape) if axis not in self.row_axes]
        if len(shape) > 2:
            matrix = matrix.view(*(shape[axis] for axis in self.row_axes), *rest)
        return matrix if self.row_axes == (0,) else matrix.movedim(tuple(range(count)), self.row_axes)

    def _is_shared(self) -> bool:
        """Whether the product is computed once for the draws and the divergence, as that of weights that are joined."""
        if type(self) is not KTiedPosterior or torch.compiler.is_compiling() or may_join(self.loc):
            return False
        return self.row_axes == (0,) and memory_order(self.loc)[0] == 0

    def _scale_by_hand(self, log_u: Tensor) -> Tensor:
        flat = tied_scales(full_precision(log_u).flatten(), full_precision(self.log_v).flatten(), (self._block(),))
        return pieces(flat, places([self.loc]))[0]

    def _scales_of_all(self) -> Tensor:
        """Those of all weights, computed once for draws and divergence."""
        assert self.known is not None
        if "scale" not in self.known:
            self.known["scale"] = tied_scales(full_precision(self.log_u), full_precision(self.log_v), self.blocks)
        return self.known["scale"]

    def thin_variance(self, out_axis: int) -> tuple[Tensor, Tensor] | None:
        """See `Posterior`.

        ``std^2 = sum_{a <= b} (2 - [a = b]) (u_a u_b) (v_a v_b)^T`` is of rank k (k + 1) / 2.
        """
        rows, rank = self.log_u.shape
        columns, pairs = self.log_v.shape[0], rank * (rank + 1) // 2
        if self.row_axes != (out_axis,) or _THIN * pairs * (rows + columns) > rows * columns:
            return None
        u, v = full_precision(self.log_u).mT.exp(), full_precision(self.log_v).mT.exp()
        both = [(a, b) for a in range(rank) for b in range(a, rank)]
        mix = torch.stack([u[a] * u[b] * (1 if a == b else 2) for a, b in both], 1)
        rest = [size for axis, size in enumerate(self.loc.shape) if axis != out_axis]
        channels = torch.stack([v[a] * v[b] for a, b in both]).view(pairs, *rest)
        return channels.movedim(0, out_axis), mix

    def fits_kernels(self) -> bool:
        """See `GaussianPosterior`; a subclass may compute something else."""
        if type(self) is not KTiedPosterior or self.blocks or len(self.row_axes) != 1:
            return False
        return tied_fit(self.loc, self.log_u, self.row_axes[0])

    def together_key(self, what: str) -> tuple[Any, ...] | None:
        """See `Posterior`; variances of low rank are used as such, each by its layer."""
        return None if what == "moments" else super().together_key(what)

    def join_key(self) -> tuple[Any, ...] | None:
        """See `Posterior`; compilers are given the weights one by one."""
        other = type(self) is not KTiedPosterior or torch.compiler.is_compiling()
        if other or not may_join(self.loc):
            return None
        if self.row_axes != (0,) or memory_order(self.loc)[0] != 0:
            return None
        return (KTiedPosterior, self.loc.dtype, self.loc.device)

    def joined_state(self, parts: list[Any]) -> dict[str, Any]:
        """See `Posterior`."""
        return {"blocks": tuple(part._block() for part in parts)}

    def _block(self) -> Block:
        loc = self.loc
        return _block(loc.shape, None if loc.is_contiguous() else loc.stride(), self.log_u.shape[1])

    def fused_draws(self, keys: Tensor, with_loc: bool, dtype: torch.dtype) -> Tensor:
        """See `GaussianPosterior`."""
        return tied_draws(
            self.loc, self.log_u, self.log_v, keys, out_axis=self.row_axes[0], with_loc=with_loc, dtype=dtype
        )

    def fused_kl(self, centre: Tensor | float, std: float) -> Tensor:
        """See `GaussianPosterior`."""
        return tied_kl(self.loc, self.log_u, self.log_v, centre, std, self.row_axes[0])

    def fused_draws_measured(
        self, keys: Tensor, with_loc: bool, dtype: torch.dtype, centre: Tensor | float, std: float
    ) -> tuple[Tensor, Tensor]:
        """See `GaussianPosterior`."""
        return tied_draws_measured(
            self.loc,
            self.log_u,
            self.log_v,
            keys,
            centre,
            std,
            out_axis=self.row_axes[0],
            with_loc=with_loc,
            dtype=dtype,
        )

    @torch.no_grad()
    def silence_(self) -> None:
        """See `Posterior`."""
        self.log_u.fill_(SILENT)
        self.log_v.fill_(SILENT)


@functools.lru_cache(maxsize=256)
def _block(shape: torch.Size, stride: tuple[int, ...] | None, rank: int) -> Block:
    """The block of a weight with output features in front, in memory too; no stride is that of a contiguous one."""
    rows, *rest = shape
    order = None if stride is None else tuple(sorted(range(len(rest)), key=lambda axis: -stride[axis + 1]))
    return Block(rows, tuple(rest), rank, order if order != tuple(range(len(rest))) else None)


def _size(value: Tensor, axes: tuple[int, ...]) -> int:
    """Number of elements along some axes."""
    return math.prod(value.shape[axis] for axis in axes)


def _product(u: Tensor, v: Tensor) -> Tensor:
    """``u @ v.T`` ``[out, rest]``."""
    if torch.compiler.is_compiling() and u.shape[1] <= _FEW_RANKS:
        matrix = u[:, :1] * v[:, 0]
        for j in range(1, u.shape[1]):
            matrix = matrix + u[:, j : j + 1] * v[:, j]
        return matrix
    # Factors whose long side is contiguous: the gradients of a product follow it, and thin ones are far quicker so.
    with exact_products(u.device):
        return u.mT.contiguous().mT @ v.mT.contiguous()


@register_posterior("KTied")
@dataclass(frozen=True)
class KTied(Method):
    """The k-tied Normal (Swiatkowski et al. 2020): w ~ N(loc, (u v^T)^2) with u [rows, k] and v [columns, k].

    A layer whose smaller side is below the rank becomes mean-field and is listed by `summary`.

    Args:
        rank: The number k.
        prior: Prior of each weight.
        estimator: "auto", "local" (local reparameterisation), "flipout", "weight", or your own.
        init_std: Initial standard deviation.
        bias: "point" leaves biases as they are, "same" makes them mean-field.
        flatten: How a weight becomes a matrix: "output", as in the paper, has output features as rows and everything
            else as columns; "input" has input features as rows; "positions" has the positions of a convolution's
            kernel. Weights without positions take "output" then. Of a matrix, "input" is the transpose, which is the
            same family.

    Example:
        >>> import torch, leanbayes as lb
        >>> conv = lb.bayesianize(torch.nn.Conv2d(3, 8, 5), lb.KTied(rank=2, flatten="input"))
        >>> conv.weight.posterior.log_u.shape, conv.weight.posterior.log_v.shape
        (torch.Size([3, 2]), torch.Size([200, 2]))
    """

    rank: int = 2
    prior: Prior = field(default_factory=lambda: Normal(0.0, 0.3))
    estimator: str = "auto"
    init_std: float = 0.01
    bias: str = "point"
    flatten: str = field(default="output", kw_only=True)

    offers: ClassVar[frozenset[str]] = KTiedPosterior.offers

    def __post_init__(self) -> None:
        check_count(self, rank=self.rank)
        check_prior(self, self.prior)
        self._check_estimator(self.estimator)
        check_positive(self, init_std=self.init_std)
        check_choice(self, ("point", "same"), bias=self.bias)
        check_choice(self, ("output", "input", "positions"), flatten=self.flatten)

    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """See `Method`."""
        narrow = op is not None and not op.index_input
        return KTiedPosterior(value, self.rank, self.init_std, self._row_axes(value, op), narrow)

    def build_bias(self, value: Tensor, group: ComponentGroup | None = None) -> Posterior | None:
        """See `Method`."""
        return MeanFieldPosterior(value, self.init_std) if self.bias == "same" else None

    def bind_prior(self, value: Tensor, fan: int) -> Prior:
        """See `Method`."""
        return self.prior.bind(value, fan)

    def fallback(self, value: Tensor, op: LinearOp | None) -> tuple[Method, str] | None:
        """See `Method`."""
        rows = _size(value, self._row_axes(value, op))
        smaller = min(rows, value.numel() // max(rows, 1))
        if smaller >= self.rank:
            return None
        plain = MeanField(prior=self.prior, estimator=self.estimator, init_std=self.init_std, bias=self.bias)
        return plain, f"its smaller side of {smaller} is under the rank {self.rank}, so it is mean-field"

    def _row_axes(self, value: Tensor, op: LinearOp | None) -> tuple[int, ...]:
        """Axes of a weight that are the rows of its matrix."""
        # The matrices that other kernels apply, as those of recurrent layers, are [out, in].
        out_axis, in_axis = (0, 1) if op is None else (op.out_axis, op.in_axis)
        if self.flatten == "positions" and op is not None and value.dim() > 2:
            return tuple(axis for axis in range(value.dim()) if axis not in (out_axis, in_axis))
        return (in_axis if self.flatten == "input" else out_axis,)
