"""Pruning by the standard deviation of a weight or by the curvature of the loss in it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._summary import _size, _table
from leanbayes.analysis._layers import Which, noisy_layers, shown, uncompiled
from leanbayes.analysis.score import Score, measure
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors.sparse import SparsePosterior


@dataclass(frozen=True)
class PrunedLayer:
    """What pruning left of one weight.

    Attributes:
        name: The layer's name in the model.
        weights: Number of entries before.
        kept: Number of entries left.
        dense_bytes: Size of the distribution's parameters before.
        bytes: Size of those left, with their positions.
    """

    name: str
    weights: int
    kept: int
    dense_bytes: int
    bytes: int


@dataclass(frozen=True)
class PruneReport:
    """What pruning left of a model; `print` shows it as a table.

    Attributes:
        layers: The pruned weights.
    """

    layers: tuple[PrunedLayer, ...]

    @property
    def sparsity(self) -> float:
        """Share of the pruned layers' weights that are pruned."""
        return 1 - sum(layer.kept for layer in self.layers) / sum(layer.weights for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {"sparsity": self.sparsity, "layers": [asdict(layer) for layer in self.layers]}

    def __str__(self) -> str:
        rows = [["layer", "weights", "kept", "sparsity", "dense", "sparse"]]
        for row in self.layers:
            counts = [f"{row.weights:,}", f"{row.kept:,}", f"{1 - row.kept / row.weights:.2%}"]
            rows.append([shown(row.name), *counts, _size(row.dense_bytes), _size(row.bytes)])
        return _table(rows, "<>>>>>")


def prune(
    model: nn.Module,
    *,
    sparsity: float | None = None,
    threshold: float | None = None,
    by: str = "sigma",
    layer: Which = None,
    kappa: Mapping[str, Tensor] | None = None,
    keep_means: bool = False,
) -> nn.Module:
    """A smaller model in which the weights that matter least are exactly zero (Variance Networks, sec. 6.1).

    Both mean and noise of a pruned weight go, unless `keep_means`. A pruned layer stores the entries left and their
    positions: for a variance layer 8 bytes each, against 4 for each entry of the dense layer. It still runs as a dense
    layer. `lb.predict`, `lb.save`, `lb.load` and training on the likelihood work as usual; the KL of a pruned weight
    counts as 0.

    Args:
        model: A converted model; it stays as it is.
        sparsity: Share of each layer's weights to remove, those with the smallest criterion; at least one is left.
        threshold: Alternatively, remove the weights whose criterion is below this.
        by: The criterion: "sigma", the standard deviation, or "kappa", the result of `curvature`.
        layer: The layers to prune: names or globs, or a selector; None takes all.
        kappa: What `curvature` returned for the model, by layer name, if that is the criterion.
        keep_means: Replace pruned weights by their means, which are stored too, instead of zero.

    Returns:
        The pruned copy; `prune_report` shows what is left.

    Example:
        >>> import torch, leanbayes as lb
        >>> net = lb.bayesianize(torch.nn.Linear(100, 10), lb.VarianceLayer())
        >>> small = lb.analysis.prune(net, sparsity=0.9)
        >>> print(lb.analysis.prune_report(small))
        layer    weights  kept  sparsity   dense  sparse
        (model)    1,000   100    90.00%  4.0 kB   800 B
    """
    _check_arguments(sparsity, threshold, by, kappa)
    found = copy.deepcopy(uncompiled(model))
    for part in noisy_layers(found, layer):
        for name, weight in part.weights.items():
            criterion = _criterion(name, weight, kappa)
            places = _places_to_keep(criterion, sparsity, threshold)
            weight.prune_(places, keep_means)
    return found


def _check_arguments(
    sparsity: float | None, threshold: float | None, by: str, kappa: Mapping[str, Tensor] | None
) -> None:
    if (sparsity is None) == (threshold is None):
        raise ValueError(
            "prune takes either sparsity=, a share of the weights, or threshold=, a value of the criterion"
        )
    if sparsity is not None and not 0 <= sparsity < 1:
        raise ValueError(f"sparsity is a share from 0 to below 1, not {sparsity!r}")
    if threshold is not None and threshold != threshold:
        raise ValueError("threshold is a value of the criterion, not NaN")
    if by not in ("sigma", "kappa"):
        raise ValueError(f"by is 'sigma' or 'kappa', not {by!r}")
    if (by == "kappa") != (kappa is not None):
        raise ValueError("by='kappa' and kappa=lb.analysis.curvature(model, x, y) go together; one of them is missing")


def _criterion(name: str, weight: RandomParameter, kappa: Mapping[str, Tensor] | None) -> Tensor:
    posterior: Any = weight.posterior
    if isinstance(posterior, SparsePosterior):
        raise ValueError(f"{shown(name)} is already pruned; prune the dense model again")
    if kappa is None:
        return posterior.std().detach()
    if name not in kappa:
        raise ValueError(f"kappa holds nothing for the layer {shown(name)}; choose its layers with layer=")
    found = kappa[name].to(weight.device)
    if found.shape != posterior.shape or not bool(torch.isfinite(found).all()):
        raise ValueError(
            f"kappa of {shown(name)} must be finite and shaped {tuple(posterior.shape)} like its weight, got "
            f"{tuple(found.shape)} with {int((~torch.isfinite(found)).sum())} values that are not finite; take it from "
            "lb.analysis.curvature(model, x, y)"
        )
    return found


def _places_to_keep(criterion: Tensor, sparsity: float | None, threshold: float | None) -> Tensor:
    flat = criterion.flatten()
    if threshold is not None:
        return (flat >= threshold).nonzero().squeeze(1)
    assert sparsity is not None
    return flat.argsort(stable=True)[min(round(sparsity * len(flat)), len(flat) - 1) :].sort().values


def prune_report(model: nn.Module) -> PruneReport:
    """What is left of the layers of a pruned model.

    Args:
        model: What `prune` returned.
    """
    weights = [pair for part in noisy_layers(model) for pair in part.weights.items()]
    rows = [_row(name, w.posterior) for name, w in weights if isinstance(w.posterior, SparsePosterior)]
    if not rows:
        raise ValueError("the model has no pruned layer; prune_report takes what lb.analysis.prune returned")
    return PruneReport(tuple(rows))


def _row(name: str, posterior: SparsePosterior) -> PrunedLayer:
    size = sum(t.numel() * t.element_size() for t in posterior.state_dict().values())
    return PrunedLayer(name, posterior.shape.numel(), len(posterior.index), posterior.dense_bytes, size)


@dataclass(frozen=True)
class PrunePoint:
    """One point of a pruning curve.

    Attributes:
        level: The sparsity or the threshold asked for.
        sparsity: Share of the chosen layers' weights that are pruned.
        score: Of the pruned model.
    """

    level: float
    sparsity: float
    score: Score


@dataclass(frozen=True)
class PruningCurve:
    """What `pruning_curve` found; `print` shows it as a table.

    Attributes:
        by: The criterion.
        samples: Number of samples averaged.
        examples: Number of examples.
        dense: Scores of the model before.
        points: Scores after pruning, in the order of the levels.
    """

    by: str
    samples: int
    examples: int
    dense: Score
    points: tuple[PrunePoint, ...]

    def to_dict(self) -> dict[str, Any]:
        """The curve as JSON values."""
        return asdict(self) | {"points": [asdict(point) for point in self.points]}

    def __str__(self) -> str:
        rows = [["level", "sparsity", "accuracy", "NLL"]]
        rows.append(["dense", f"{0:.2%}", f"{self.dense.accuracy:.2%}", f"{self.dense.nll:.4f}"])
        for point in self.points:
            score = point.score
            rows.append([f"{point.level:g}", f"{point.sparsity:.2%}", f"{score.accuracy:.2%}", f"{score.nll:.4f}"])
        return _table(rows, ">>>>")


def pruning_curve(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    sparsities: Sequence[float] | None = None,
    thresholds: Sequence[float] | None = None,
    by: str = "sigma",
    layer: Which = None,
    kappa: Mapping[str, Tensor] | None = None,
    keep_means: bool = False,
    samples: int = 20,
    batch_size: int | None = None,
    seed: int = 0,
) -> PruningCurve:
    """Accuracy of the averaged prediction after pruning to several levels.

    Args:
        model: A converted classifier.
        x: Inputs ``[N, ...]``.
        y: Class labels ``[N]``.
        sparsities: Shares of each layer's weights to remove.
        thresholds: Alternatively, values of the criterion.
        by: See `prune`.
        layer: See `prune`.
        kappa: See `prune`.
        keep_means: See `prune`.
        samples: Number of samples that are averaged.
        batch_size: Rows evaluated at once; None chooses.
        seed: Of the draws; torch's own generators are left alone.

    Returns:
        A `PruningCurve`.
    """
    if (sparsities is None) == (thresholds is None):
        raise ValueError("pruning_curve takes either sparsities= or thresholds=")
    name, levels = ("sparsity", sparsities) if thresholds is None else ("threshold", thresholds)
    chosen = {weight for part in noisy_layers(model, layer) for weight in part.weights}
    points = []
    for level in levels or ():
        small = prune(model, by=by, layer=layer, kappa=kappa, keep_means=keep_means, **{name: level})
        score = measure(small, x, y, samples, batch_size, seed)
        report = PruneReport(tuple(row for row in prune_report(small).layers if row.name in chosen))
        points.append(PrunePoint(float(level), report.sparsity, score))
    return PruningCurve(by, samples, len(x), measure(model, x, y, samples, batch_size, seed), tuple(points))
