"""Numbers of a table, encoded by where they lie between quantiles."""

from typing import Self

import torch
from torch import Tensor, nn

from leanbayes.models._options import check_positive

# Edges closer than this share of a column's range are one: float32 inputs could not tell them apart.
_CLOSEST = 1e-5
# A range below which a column is constant: one over it would overflow.
_NO_RANGE = 1e-30


class QuantileBins(nn.Module):
    r"""The piecewise-linear encoding of Gorishniy et al. (2022), along with the numbers themselves.

    A feature whose bins have the edges :math:`e_0 < \dots < e_T` becomes :math:`(x, c_1, \dots, c_T)` with

    .. math:: c_t = \min(\max((x - e_{t-1}) / (e_t - e_{t-1}), 0), 1),

    so that a dense layer on top can be any piecewise-linear function of the feature, smooth or with jumps. Beyond the
    edges the code stays at its value at the nearest edge, and only x itself continues.

    The edges start at the quantiles of a standard normal, for standardised features; :meth:`fit_` sets them to those of
    the training rows. They are a buffer, which moves and is saved with the model.

    Args:
        features: Number F of features.
        bins: Number T of bins.

    Shape:
        ``[B, F]`` to ``[B, F * (1 + T)]``: the features, then the T codes of each.

    Example:
        >>> rows = torch.tensor([[0.0], [1.0], [4.0]])
        >>> QuantileBins(1, bins=2).fit_(rows)(torch.tensor([[0.5], [2.5], [9.0]]))
        tensor([[0.5000, 0.5000, 0.0000],
                [2.5000, 1.0000, 0.5000],
                [9.0000, 1.0000, 1.0000]])
    """

    # What describes the data and not the training: an ensemble's members start anew, but keep these.
    describes_data = ("edges",)
    # Members of an ensemble may run as one: it looks at no values.
    runs_side_by_side = True
    edges: Tensor

    def __init__(self, features: int, bins: int = 16) -> None:
        check_positive(features=features, bins=bins)
        super().__init__()
        levels = torch.arange(1, bins + 2) / (bins + 2)
        self.register_buffer("edges", torch.special.ndtri(levels).repeat(features, 1))  # [F, T + 1]

    @property
    def out_features(self) -> int:
        """How many numbers an example becomes."""
        return self.edges.numel()

    @torch.no_grad()
    def fit_(self, rows: Tensor) -> Self:
        """Set the edges to the quantiles of training rows, or to the values of a feature that has few.

        If a feature has too few values for all bins, the others stay empty, with a code of 0; a constant feature has
        only empty bins.

        Args:
            rows: Training inputs ``[N, F]``, without missing values.

        Returns:
            The module.
        """
        features = len(self.edges)
        if rows.dim() != 2 or rows.shape[1] != features or not len(rows):
            raise ValueError(f"bins are fitted to rows of shape (N, {features}), not {tuple(rows.shape)}")
        if not bool(rows.isfinite().all()):
            raise ValueError("bins cannot be fitted to missing or infinite values; impute them first")
        for edges, column in zip(self.edges, rows.T):
            edges.copy_(_edges(column.double(), len(edges)))
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Maps features ``[B, F]`` to features and codes ``[B, F * (1 + T)]``."""
        width = self.edges.diff(dim=1)
        slope = torch.where(width > 0, 1 / width, 0)
        codes = ((x.unsqueeze(-1) - self.edges[:, :-1]) * slope).clamp(0, 1)  # [B, F, T]
        return torch.cat([x, codes.flatten(1)], dim=1)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"features={len(self.edges)}, bins={self.edges.shape[1] - 1}"


def _edges(column: Tensor, count: int) -> Tensor:
    """So many edges in rising order; the last is repeated where fewer will do."""
    values = column.unique()  # sorted
    if len(values) > count:
        levels = torch.linspace(0, 1, count, dtype=column.dtype, device=column.device)
        values = _quantiles(column, levels)
    span = values[-1] - values[0]
    apart = torch.cat([torch.ones_like(values[:1], dtype=torch.bool), values.diff() > max(_CLOSEST * span, _NO_RANGE)])
    kept = values[apart]
    return torch.cat([kept, kept[-1].expand(count - len(kept))])


def _quantiles(column: Tensor, levels: Tensor) -> Tensor:
    """Quantiles by linear interpolation; `torch.quantile` refuses long columns."""
    ordered = column.sort().values
    position = levels * (len(ordered) - 1)
    low = position.floor().long()
    return torch.lerp(ordered[low], ordered[(low + 1).clamp(max=len(ordered) - 1)], position - low)
