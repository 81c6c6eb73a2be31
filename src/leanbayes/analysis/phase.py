"""Where a network keeps what it knows: in the means of a layer's weights or in their variances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._sampling import sampling
from leanbayes._summary import _table
from leanbayes.analysis._layers import NoisyLayer, Which, noisy_layers, shown, uncompiled
from leanbayes.analysis.alpha import weight_log_alpha
from leanbayes.analysis.score import Score, measure
from leanbayes.nn._base import ConvertedLayer
from leanbayes.posteriors._base import Posterior
from leanbayes.posteriors.sparse import SparsePosterior
from leanbayes.posteriors.variance import VariancePosterior
from leanbayes.training.seeds import derive


@dataclass(frozen=True)
class Phases:
    """Scores with a layer's weights replaced, while all other layers draw as usual.

    Attributes:
        mean: Mean propagation: the means of the weights.
        zero_mean: Their noise alone, N(0, var).
        permuted: The same with the standard deviations shuffled over the weight's elements, a control that fails
            wherever the variances carry information.
    """

    mean: Score
    zero_mean: Score
    permuted: Score


@dataclass(frozen=True)
class LayerPhases:
    """One layer.

    Attributes:
        name: Its name in the model.
        log_alpha: The median over its weights.
        scores: With this layer's weights replaced.
    """

    name: str
    log_alpha: float
    scores: Phases


@dataclass(frozen=True)
class PhaseReport:
    """What `phases` found; `print` shows it as a table.

    Attributes:
        samples: Number of samples averaged.
        examples: Number of examples.
        drawn: Scores of the model as it is.
        together: Scores with the weights of all layers replaced. Its `mean` is mean propagation through the whole
            model: other methods, such as dropout, draw nothing there either.
        layers: The layers one by one.
    """

    samples: int
    examples: int
    drawn: Score
    together: Phases
    layers: tuple[LayerPhases, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values; an infinite log alpha, that of a variance layer, is None."""
        report = asdict(self)
        report["layers"] = [
            layer | {"log_alpha": layer["log_alpha"] if math.isfinite(layer["log_alpha"]) else None}
            for layer in report["layers"]
        ]
        return report

    def __str__(self) -> str:
        one, many = self.drawn.sample_accuracy, self.drawn.accuracy
        head = f"{self.examples} examples: accuracy {one:.2%} of one sample, {many:.2%} of {self.samples} averaged"
        rows = [["averaged accuracy with", "log alpha", "mean", "zero mean", "permuted"]]
        rows.append(["all layers replaced", "", *_accuracies(self.together)])
        rows += [[shown(row.name), f"{row.log_alpha:.2f}", *_accuracies(row.scores)] for row in self.layers]
        return f"{head}\n\n{_table(rows, '<>>>>')}"


def _accuracies(scores: Phases) -> list[str]:
    return [f"{score.accuracy:.2%}" for score in (scores.mean, scores.zero_mean, scores.permuted)]


def phases(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    samples: int = 20,
    layers: Which = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> PhaseReport:
    """Evaluate a classifier with the weights of its layers replaced by their means or by their noise alone.

    Before the transition of a layer to a variance layer, mean propagation predicts and noise alone does not; after it,
    it is the other way round (Variance Networks, sec. 4). Shuffled standard deviations tell noise that carries
    information from noise that does not matter.

    Args:
        model: A converted model. It is evaluated in eval mode, and left as it was.
        x: Inputs ``[N, ...]``.
        y: Class labels ``[N]``.
        samples: Number of samples that are averaged.
        layers: The layers to replace one by one: names or globs, or a selector; None takes all.
        batch_size: Rows evaluated at once; None chooses.
        seed: Of the draws and of the shuffled standard deviations; torch's own generators are left alone.

    Returns:
        A `PhaseReport`.

    Example:
        >>> import torch, leanbayes as lb
        >>> x = torch.randn(50, 4)
        >>> net = lb.bayesianize(torch.nn.Linear(4, 2, bias=False), lb.VariationalDropout())
        >>> report = lb.analysis.phases(net, x, net(x).argmax(1), samples=5)
        >>> report.together.mean.accuracy > report.together.zero_mean.accuracy
        True
    """
    model = uncompiled(model)  # swapping posteriors would compile the model again
    every = noisy_layers(model)
    chosen = every if layers is None else noisy_layers(model, layers)

    def score() -> Score:
        return measure(model, x, y, samples, batch_size, seed)

    together = _replaced(score, every, seed, mean_everywhere=True)
    alone = sum(isinstance(module, ConvertedLayer) for module in model.modules()) == 1
    rows = [
        LayerPhases(layer.name, _median_log_alpha(layer), together if alone else _replaced(score, [layer], seed))
        for layer in chosen
    ]
    return PhaseReport(samples, len(x), score(), together, tuple(rows))


def _replaced(
    score: Callable[[], Score], layers: Sequence[NoisyLayer], seed: int, *, mean_everywhere: bool = False
) -> Phases:
    """Scores with the weights of these layers replaced."""
    modules = {layer.module for layer in layers}
    weights = {weight for layer in layers for weight in layer.weights.values()}

    def here(name: str, module: nn.Module) -> bool:
        # A tied layer draws from the weight of another.
        return module in modules or getattr(module, "weight", None) in weights

    with sampling(mean=True if mean_everywhere else here):
        mean = score()
    with sampling(zero_mean=here):
        zero_mean = score()
        with permuted_deviations(layers, seed):
            return Phases(mean, zero_mean, permuted=score())


@contextmanager
def permuted_deviations(layers: Sequence[NoisyLayer], seed: int) -> Iterator[None]:
    """Weights of zero mean whose standard deviations are shuffled over the elements, as long as the context lasts."""
    weights = [weight for layer in layers for weight in layer.weights.values()]
    posteriors = [weight.posterior for weight in weights]
    generator = torch.Generator().manual_seed(derive(seed, "permutation"))
    try:
        for weight in weights:
            weight.posterior = _shuffled(weight.posterior, generator)
        yield
    finally:
        for weight, posterior in zip(weights, posteriors):
            weight.posterior = posterior


@torch.no_grad()
def _shuffled(posterior: Posterior, generator: torch.Generator) -> Posterior:
    std: Tensor = posterior.std()  # pyright: ignore[reportCallIssue] - as of all noisy layers
    order = torch.randperm(std.numel(), generator=generator).to(std.device)
    noisy = posterior.kept if isinstance(posterior, SparsePosterior) else posterior
    kind = noisy.kind if isinstance(noisy, VariancePosterior) else "gaussian"
    dtype = next(posterior.parameters()).dtype  # deviations are computed in full precision
    return VariancePosterior(std.flatten()[order].view(std.shape).to(dtype), kind)


def _median_log_alpha(layer: NoisyLayer) -> float:
    values = [weight_log_alpha(weight.posterior).double().flatten() for weight in layer.weights.values()]
    return float(torch.cat(values).median())
