"""Singular values of a layer's standard deviations and means: how much of them a low rank explains."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._summary import _table
from leanbayes.analysis._layers import Which, as_matrix, noisy_layers, shown
from leanbayes.noise import full_precision

# Ranks that the table shows.
_SHOWN = 3


@dataclass(frozen=True)
class Spectrum:
    """The singular values of a matrix.

    Attributes:
        values: The singular values, largest first.
    """

    values: tuple[float, ...]

    @property
    def explained(self) -> tuple[float, ...]:
        """Share of each singular value's square in their sum; zeros for a matrix of zeros."""
        squares = [value**2 for value in self.values]
        total = sum(squares)
        return tuple(square / total if total else 0.0 for square in squares)

    @property
    def cumulative(self) -> tuple[float, ...]:
        """Share that the best approximation of rank 1, 2, ... explains."""
        return tuple(torch.tensor(self.explained, dtype=torch.float64).cumsum(0).tolist())


@dataclass(frozen=True)
class LayerSpectrum:
    """The spectra of one weight.

    Attributes:
        name: The layer's name in the model, followed by the weight's if the layer has several.
        shape: The weight seen as a matrix: output features, and everything else.
        std: Of the standard deviations.
        mean: Of the means.
    """

    name: str
    shape: tuple[int, int]
    std: Spectrum
    mean: Spectrum


@dataclass(frozen=True)
class StdSpectrum:
    """What `std_spectrum` found; `print` shows it as a table, `plot` as a picture.

    Attributes:
        layers: The spectra of all weights.
    """

    layers: tuple[LayerSpectrum, ...]

    def to_dict(self) -> dict[str, Any]:
        """The spectra as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        ranks = [str(k + 1) for k in range(_SHOWN)]
        rows = [["layer", "matrix", *(f"std, rank {k}" for k in ranks), *(f"mean, rank {k}" for k in ranks)]]
        for layer in self.layers:
            shares = [_shares(layer.std), _shares(layer.mean)]
            rows.append([shown(layer.name), "x".join(map(str, layer.shape)), *shares[0], *shares[1]])
        return _table(rows, "<" + ">" * (1 + 2 * _SHOWN))

    def plot(self, ranks: int = 10) -> Any:
        """Draw the share that each singular value explains, of standard deviations and of means, by layer.

        Args:
            ranks: Number of singular values.

        Returns:
            A matplotlib figure; `figure.savefig` writes it.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("plot needs matplotlib; pip install matplotlib") from error
        figure = Figure(figsize=(7.0, 3.2), layout="constrained")
        for axes, kind in zip(figure.subplots(1, 2, sharey=True), ("std", "mean")):
            for layer in self.layers:
                explained = getattr(layer, kind).explained[:ranks]
                axes.plot(range(1, len(explained) + 1), explained, marker="o", markersize=3, label=shown(layer.name))
            axes.set(xlabel="singular value", title="standard deviations" if kind == "std" else "means", ylim=(0, 1))
        figure.axes[0].set_ylabel("explained variance")
        figure.axes[1].legend(frameon=False)
        return figure


def _shares(spectrum: Spectrum) -> list[str]:
    shares = [f"{share:.2%}" for share in spectrum.cumulative[:_SHOWN]]
    return shares + ["-"] * (_SHOWN - len(shares))


@torch.no_grad()
def std_spectrum(model: nn.Module, layer: Which = None) -> StdSpectrum:
    r"""How much of a layer's standard deviations, and of its means, the largest singular values explain.

    .. math:: \gamma_k^2 / \sum_i \gamma_i^2

    A weight is seen as a matrix of output features by everything else, as the k-tied Normal sees it (Swiatkowski et al.
    2020, sec. 2.3). Standard deviations found by mean-field training have nearly rank 2; the means do not.

    Args:
        model: A converted model.
        layer: The layers to look at: names or globs, or a selector; None takes all.

    Returns:
        A `StdSpectrum`.

    Example:
        >>> import torch, leanbayes as lb
        >>> net = lb.bayesianize(torch.nn.Conv2d(3, 8, 3), lb.KTied(rank=1))
        >>> spectrum = lb.analysis.std_spectrum(net).layers[0]
        >>> spectrum.shape, f"{spectrum.std.explained[0]:.3f}"
        ((8, 27), '1.000')
    """
    found = []
    for part in noisy_layers(model, layer):
        for name, weight in part.weights.items():
            posterior: Any = weight.posterior
            axis = part.out_axis(weight)
            std, mean = (as_matrix(value, axis) for value in (posterior.std(), full_precision(posterior.mean())))
            rows, columns = std.shape
            found.append(LayerSpectrum(name, (rows, columns), _spectrum(std), _spectrum(mean)))
    return StdSpectrum(tuple(found))


def _spectrum(matrix: Tensor) -> Spectrum:
    return Spectrum(tuple(torch.linalg.svdvals(matrix.cpu().double()).tolist()))
