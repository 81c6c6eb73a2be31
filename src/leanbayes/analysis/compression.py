"""From mean-field to k-tied: standard deviations by a few factors, and what that costs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._sampling import SeededRandom
from leanbayes._summary import _table
from leanbayes.analysis._data import check_count
from leanbayes.analysis._layers import NoisyLayer, Which, as_matrix, noisy_layers, shown, uncompiled
from leanbayes.analysis._low_rank import Factors, divergence, kl_factors, svd_factors, truncated
from leanbayes.convert.conversions import find_conversions, join
from leanbayes.nn._base import ConvertedLayer
from leanbayes.nn.layer import BayesianLayer
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors._base import inverse_softplus
from leanbayes.posteriors.k_tied import KTied, KTiedPosterior
from leanbayes.posteriors.mean_field import MeanField, MeanFieldPosterior

_FACTORS = {"log": kl_factors, "reverse": partial(kl_factors, reverse=True), "svd": svd_factors}


@dataclass(frozen=True)
class CompressedLayer:
    """What compression made of one weight.

    Attributes:
        name: The layer's name in the model, followed by the weight's if the layer has several.
        rank: Number of columns of its factors, None if every weight has its own standard deviation.
        kl: KL(before || after) in nats per weight.
        before: Number of parameters of the distribution before.
        after: Number of parameters now.
    """

    name: str
    rank: int | None
    kl: float
    before: int
    after: int


@dataclass(frozen=True)
class CompressionReport:
    """What compression made of a model; `print` shows it as a table.

    Attributes:
        layers: The weights that have changed.
        kept: Names of the layers left as they were, with their method.
        before: Number of parameters of the whole model before.
        after: Number of parameters now.
    """

    layers: tuple[CompressedLayer, ...]
    kept: tuple[tuple[str, str], ...]
    before: int
    after: int

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        rows = [["layer", "rank", "KL per weight", "before", "after"]]
        for row in self.layers:
            rank = "-" if row.rank is None else str(row.rank)
            rows.append([shown(row.name), rank, f"{row.kl:.3g}", f"{row.before:,}", f"{row.after:,}"])
        rows.append(["(whole model)", "", "", f"{self.before:,}", f"{self.after:,}"])
        lines = [_table(rows, "<>>>>")]
        if self.kept:
            lines += ["", "as before", *(f"  {shown(name)} ({method})" for name, method in self.kept)]
        return "\n".join(lines)


@torch.no_grad()
def compress(
    model: nn.Module,
    rank: int | Mapping[str, int] | None = None,
    *,
    tolerance: float | None = None,
    how: str = "log",
    layer: Which = None,
) -> nn.Module:
    r"""A copy of a mean-field model whose standard deviations are k-tied: about half the parameters.

    The means stay. ``how="log"`` finds the factors u, v >= 0 that minimise

    .. math:: \sum_{ij} KL(N(m, s_{ij}^2) \,\|\, N(m, p_{ij}^2))
              = \sum_{ij} \log \frac{p_{ij}}{s_{ij}} + \frac{s_{ij}^2}{2 p_{ij}^2} - \frac{1}{2}, \quad p = u v^T,

    in their logarithms. ``how="reverse"`` minimises the divergence in the other direction, with s and p swapped: it
    widens no weight that is certain, and keeps predictions better at low ranks, where ``"log"`` covers everything the
    weights could be. A standard deviation of zero has no divergence in that direction. ``how="svd"`` takes the factors
    of the truncated singular value decomposition of s: the exact ones for rank 1, and for rank 2 without negative
    entries; otherwise the closest ones. `truncate_std` gives the truncated matrix itself.

    The copy is an ordinary `KTied` model: it predicts, trains, saves and loads as one. Layers that are not mean-field,
    and those that would not become smaller, stay as they are; `compress_report` lists them. A layer with several
    weights, such as a recurrent one, has one rank for all.

    Args:
        model: A converted model; it stays as it is.
        rank: The rank k of every layer, or of some layers by name; the others then stay as they are.
        tolerance: Alternatively, a KL in nats per weight, in the direction of `how`: each layer gets the smallest rank
            that does not exceed it.
        how: "log", "reverse" or "svd".
        layer: The layers to compress: names or globs, or a selector; None takes all.

    Returns:
        The compressed copy.

    Example:
        >>> import torch, leanbayes as lb
        >>> net = lb.bayesianize(torch.nn.Linear(100, 20), lb.MeanField())
        >>> small = lb.analysis.compress(net, rank=1)
        >>> report = lb.analysis.compress_report(small, net)
        >>> report.layers[0].rank, report.before, report.after, report.layers[0].kl < 1e-6
        (1, 4020, 2140, True)
    """
    if (rank is None) == (tolerance is None):
        raise ValueError("compress takes either rank=, a number of columns, or tolerance=, a KL in nats per weight")
    if how not in _FACTORS:
        raise ValueError(f"how is 'log', 'reverse' or 'svd', not {how!r}")
    if tolerance is not None and not tolerance > 0:
        raise ValueError(f"tolerance is a KL in nats per weight above 0, not {tolerance!r}")
    found = copy.deepcopy(uncompiled(model))
    layers = _mean_field_layers(found, layer)
    ranks = _ranks_by_layer(rank, layers)
    for part in layers:
        matrices = {name: _Matrix(part, weight) for name, weight in _mean_field_weights(part).items()}
        if tolerance is not None:
            _tie(found, part, matrices, _smallest(list(matrices.values()), tolerance, how), how)
        elif part.name in ranks:
            wanted = ranks[part.name]
            smaller = any(each.saves(wanted) for each in matrices.values())
            if isinstance(rank, Mapping) and not any(each.takes(wanted) for each in matrices.values()):
                sizes = max(min(each.std.shape) for each in matrices.values())
                raise ValueError(f"rank={wanted} of {shown(part.name)} exceeds its smaller side of {sizes}")
            _tie(found, part, matrices, wanted if smaller or isinstance(rank, Mapping) else None, how)
    return found


@torch.no_grad()
def truncate_std(model: nn.Module, rank: int, layer: Which = None) -> nn.Module:
    """A mean-field copy whose matrices of standard deviations are of low rank, as the k-tied paper evaluates them.

    Each is replaced by its truncated singular value decomposition, with negative entries set to zero (Swiatkowski et
    al. 2020, sec. 2.4 and app. D.3). Such a matrix is in general not a product of non-negative factors, so the model is
    as large as before; `compress` makes a smaller one. If a standard deviation becomes zero, the KL from the original
    is infinite and that from the prior large.

    Args:
        model: A converted model; it stays as it is.
        rank: Number of singular values kept.
        layer: The layers: names or globs, or a selector; None takes all.

    Returns:
        The copy.
    """
    check_count("rank", rank, optional=False)
    found = copy.deepcopy(uncompiled(model))
    for part in _mean_field_layers(found, layer):
        for weight in _mean_field_weights(part).values():
            matrix = _Matrix(part, weight)
            raw: Tensor = weight.posterior.raw_std  # pyright: ignore[reportAssignmentType]
            # Zero has no finite place behind a softplus.
            least = torch.finfo(torch.float32).tiny
            raw.copy_(matrix.as_weight(inverse_softplus(truncated(matrix.std, rank).clamp_min(least))))
    return found


@torch.no_grad()
def compress_report(model: nn.Module, original: nn.Module) -> CompressionReport:
    """What `compress` or `truncate_std` made of a model, layer by layer.

    Args:
        model: What they returned, possibly after saving, loading or further training; the KL then counts the means too.
        original: What they were given.
    """
    after = {name: weight for part in noisy_layers(model) for name, weight in part.weights.items()}
    rows: list[CompressedLayer] = []
    changed: set[RandomParameter] = set()
    for part in noisy_layers(original):
        for name, weight in part.weights.items():
            if name not in after:
                raise ValueError(f"the model has no layer {shown(name)}; compress_report takes it and its original")
            now = after[name]
            if type(now.posterior) is type(weight.posterior) and _same(now, weight):
                continue
            rank = now.posterior.log_u.shape[1] if isinstance(now.posterior, KTiedPosterior) else None
            rows.append(CompressedLayer(name, rank, _kl_per_weight(weight, now), _size(weight), _size(now)))
            changed.add(weight)
    kept = [
        (name, type(layer.method).__name__)
        for conversion in find_conversions(uncompiled(original))
        for name, layer in ((join(conversion.path, inner), layer) for inner, layer in conversion.layers.items())
        if not _uses(layer, changed)
    ]
    return CompressionReport(tuple(rows), tuple(kept), _size(uncompiled(original)), _size(uncompiled(model)))


class _Matrix:
    """The standard deviations of one weight as a matrix, in float64."""

    def __init__(self, layer: NoisyLayer, weight: RandomParameter) -> None:
        posterior: Any = weight.posterior
        self.weight = weight
        self.axis = layer.out_axis(weight)
        std = posterior.std()
        # Apple's GPUs have no float64.
        std = (std.cpu() if std.device.type == "mps" else std).double()
        self.std = as_matrix(std, self.axis).clamp_min(torch.finfo(torch.float32).tiny)
        self.found: dict[tuple[int, str], Factors] = {}

    def logs(self, rank: int, how: str) -> Factors:
        """Logarithms of the factors of a rank, searched once."""
        if (rank, how) not in self.found:
            self.found[rank, how] = _FACTORS[how](self.std, rank).logs()
        return self.found[rank, how]

    def takes(self, rank: int) -> bool:
        return rank <= min(self.std.shape)

    def saves(self, rank: int) -> bool:
        return self.takes(rank) and rank * sum(self.std.shape) < self.std.numel()

    def as_weight(self, matrix: Tensor) -> Tensor:
        """A matrix with the axes of the weight."""
        shape = list(self.weight.posterior.shape)
        out = shape.pop(self.axis)
        return matrix.view(out, *shape).movedim(0, self.axis)


def _mean_field_layers(model: nn.Module, which: Which) -> list[NoisyLayer]:
    chosen = noisy_layers(model, which)
    found = [part for part in chosen if type(part.module.method) is MeanField and _mean_field_weights(part)]
    if not found:
        raise ValueError(
            "none of the layers is mean-field: "
            + ", ".join(f"{shown(part.name)} has {type(part.module.method).__name__}" for part in chosen)
            + "; compress takes what lb.MeanField converted"
        )
    return found


def _mean_field_weights(layer: NoisyLayer) -> dict[str, RandomParameter]:
    return {name: weight for name, weight in layer.weights.items() if type(weight.posterior) is MeanFieldPosterior}


def _ranks_by_layer(rank: int | Mapping[str, int] | None, layers: list[NoisyLayer]) -> dict[str, int]:
    if rank is None:
        return {}
    names = [part.name for part in layers]
    ranks = dict(rank) if isinstance(rank, Mapping) else dict.fromkeys(names, rank)
    for name, value in ranks.items():
        check_count("rank", value, optional=False)
        if name not in names:
            known = ", ".join(shown(each) for each in names)
            raise ValueError(f"rank names {name!r}, which is not one of the mean-field layers {known}")
    return ranks


def _smallest(matrices: list[_Matrix], tolerance: float, how: str) -> int | None:
    """The smallest rank whose KL per weight over all of a layer's matrices is within the tolerance."""
    tried: dict[int, bool] = {}

    def fits(rank: int) -> bool:
        if rank not in tried:
            total = sum(_rank_loss(each, rank, how) for each in matrices)
            tried[rank] = total <= tolerance * sum(each.std.numel() for each in matrices)
        return tried[rank]

    # Double the rank until it fits, then halve what is left between.
    low, high = 0, 1
    while any(each.saves(high) for each in matrices) and not fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        worth = any(each.saves(middle) for each in matrices)
        low, high = (low, middle) if not worth or fits(middle) else (middle, high)
    return high if any(each.saves(high) for each in matrices) and fits(high) else None


def _rank_loss(matrix: _Matrix, rank: int, how: str) -> float:
    """Summed KL of the factors of a rank, none where the matrix stays mean-field."""
    if not matrix.takes(rank):
        return 0.0
    product = Factors(*(part.exp() for part in matrix.logs(rank, how))).product()
    return float((divergence(product, matrix.std) if how == "reverse" else divergence(matrix.std, product)).sum())


def _tie(model: nn.Module, layer: NoisyLayer, matrices: dict[str, _Matrix], rank: int | None, how: str) -> None:
    """Make a layer one that `KTied` has converted, None leaves it as it is."""
    if rank is None:
        return
    old: Any = layer.module.method
    method = KTied(rank, prior=old.prior, estimator=old.estimator, init_std=old.init_std, bias=old.bias)
    for name, matrix in matrices.items():
        if matrix.takes(rank):
            matrix.weight.posterior = _tied(matrix, rank, how)
        else:
            reason = f"a smaller side of {min(matrix.std.shape)} is under the rank {rank}, so it is mean-field"
            _note(model, layer, name, reason)
    weights = {matrix.weight for matrix in matrices.values()}
    for part in model.modules():
        if isinstance(part, ConvertedLayer) and _uses(part, weights):
            part.method = method


def _tied(matrix: _Matrix, rank: int, how: str) -> KTiedPosterior:
    old: Any = matrix.weight.posterior
    # A new posterior draws starting values, which are replaced.
    with SeededRandom(0):
        tied = KTiedPosterior(old.loc, rank, 1.0, matrix.axis, narrow=old.narrow)
    for parameter, value in zip((tied.log_u, tied.log_v), matrix.logs(rank, how)):
        parameter.copy_(value)
        parameter.requires_grad_(old.raw_std.requires_grad)
    return tied.train(old.training)


def _note(model: nn.Module, layer: NoisyLayer, name: str, text: str) -> None:
    layer.module.notes.append(text)
    for conversion in find_conversions(model):
        for inner, module in conversion.layers.items():
            if module is layer.module and conversion.notes is not module.notes:
                conversion.notes.append((inner, text))


def _uses(layer: ConvertedLayer, weights: set[RandomParameter]) -> bool:
    """Whether a layer has one of some weights, its own or one that it is tied to."""
    own = any(part in weights for part in layer.modules())
    return own or (isinstance(layer, BayesianLayer) and layer.weight in weights)


def _same(one: RandomParameter, other: RandomParameter) -> bool:
    return all(torch.equal(a, b.to(a)) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def _kl_per_weight(before: RandomParameter, after: RandomParameter) -> float:
    one, other = (each.posterior for each in (before, after))
    std, now = (posterior.std().cpu().double() for posterior in (one, other))  # pyright: ignore
    shift = (one.mean().cpu().double() - other.mean().cpu().double()).square()
    # Standard deviations without a logarithm are as good as none.
    moved = torch.where(shift > 0, 0.5 * shift / now.square(), 0.0)
    return float((divergence(std.clamp_min(torch.finfo(torch.float32).tiny), now) + moved).mean())


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
