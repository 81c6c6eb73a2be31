"""Signal-to-noise ratio of the gradients of standard deviations."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._rows import map_rows
from leanbayes._sampling import SeededRandom, sampling
from leanbayes._summary import _table
from leanbayes.analysis._data import check_count, on_device, pairs
from leanbayes.analysis._layers import Which, noisy_layers, shown
from leanbayes.objectives.elbo import ELBO
from leanbayes.training.callbacks import EpochEnd
from leanbayes.training.seeds import derive


@dataclass(frozen=True)
class LayerSNR:
    """The gradients of one weight's standard deviations.

    Attributes:
        name: The layer's name in the model, followed by the weight's if the layer has several.
        mean: The mean ratio of its parameters, without those that have no noise.
        median: The median of the same.
        parameters: Number of parameters: of free standard deviations, or of both factors.
        noiseless: Number of those whose gradients are equal up to rounding, for instance because a unit is dead and
            only the KL is left.
    """

    name: str
    mean: float
    median: float
    parameters: int
    noiseless: int


@dataclass(frozen=True)
class GradientSNR:
    """What `gradient_snr` found; `print` shows it as a table.

    Attributes:
        layers: The ratios by weight.
        repeats: Number of gradients.
    """

    layers: tuple[LayerSNR, ...]
    repeats: int

    @property
    def mean(self) -> float:
        """The mean ratio of all parameters that have noise."""
        noisy = [(layer.mean, layer.parameters - layer.noiseless) for layer in self.layers]
        total = sum(count for _, count in noisy)
        return sum(mean * count for mean, count in noisy if count) / total if total else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """The ratios as JSON values, None where nothing has noise."""
        layers = [
            {key: None if value != value else value for key, value in asdict(each).items()} for each in self.layers
        ]
        return {"mean": None if self.mean != self.mean else self.mean, "repeats": self.repeats, "layers": layers}

    def __str__(self) -> str:
        rows = [["layer", "mean SNR", "median SNR", "parameters", "without noise"]]
        for row in self.layers:
            counts = [f"{row.parameters:,}", f"{row.noiseless:,}"]
            rows.append([shown(row.name), f"{row.mean:.4g}", f"{row.median:.4g}", *counts])
        return _table(rows, "<>>>>")


def gradient_snr(elbo: ELBO, batch: Any, *, repeats: int = 10, layers: Which = None, seed: int = 0) -> GradientSNR:
    r"""Signal-to-noise ratio of the gradients of the standard deviations (Swiatkowski et al. 2020, Fig. 6).

    .. math:: \mathrm{SNR} = E[g^2] / \mathrm{Var}[g] = 1 + E[g]^2 / \mathrm{Var}[g]

    for each parameter's gradient g of the loss, over repeated draws at the current weights. It does not depend on which
    function of a free standard deviation is stored, its logarithm or another. A parameter whose gradient is pure normal
    noise gives 1 + 1 / (repeats - 3) on average.

    Nothing changes: gradients, running statistics, modes and random generators stay as they were.

    Args:
        elbo: The objective, with the KL weight of its current step.
        batch: Inputs and targets ``(x, y)``, for the noise from weight draws alone; or several such batches, one for
            each gradient in turn, to include the noise from batches, as in the paper.
        repeats: Number of gradients; the variance divides by it.
        layers: The layers to look at: names or globs, or a selector; None takes all.
        seed: Of the draws; torch's own generators are left alone.

    Returns:
        A `GradientSNR`.

    Example:
        >>> import torch, leanbayes as lb
        >>> model = lb.bayesianize(torch.nn.Linear(3, 2), lb.KTied())
        >>> x, y = torch.randn(8, 3), torch.randint(2, (8,))
        >>> found = lb.analysis.gradient_snr(lb.ELBO(model, dataset_size=100), (x, y))
        >>> found.layers[0].parameters, found.mean > 1
        (10, True)
    """
    if not isinstance(elbo, ELBO):
        raise TypeError(f"gradient_snr takes an lb.ELBO of the model, not {type(elbo).__name__}")
    check_count("repeats", repeats, optional=False)
    if repeats < 2:
        raise ValueError("repeats is a whole number from 2: one gradient has no variance")
    chosen = _parameters(elbo.model, layers)
    every = [parameter for group in chosen.values() for parameter in group]
    moments = [_Moments() for _ in every]
    batches = itertools.islice(itertools.cycle(_batches(batch, repeats)), repeats)
    with _as_before(elbo), SeededRandom(seed), torch.enable_grad():
        for number, (x, y) in enumerate(batches):
            device = every[0].device
            with sampling(seed=derive(seed, "gradient", number)):
                loss = elbo(on_device(x, device), y.to(device)).loss
            gradients = torch.autograd.grad(loss, every, allow_unused=True)
            for each, parameter, gradient in zip(moments, every, gradients):
                each.add(torch.zeros_like(parameter) if gradient is None else gradient)
    ratios = iter(moments)
    rows = [_row(name, torch.cat([next(ratios).snr().flatten() for _ in group])) for name, group in chosen.items()]
    return GradientSNR(tuple(rows), repeats)


class SNRMonitor:
    """A callback of `leanbayes.training.fit` that evaluates `gradient_snr` after epochs.

    It does not affect training: its draws and batches have their own seed.

    Args:
        x: Inputs ``[N, ...]``.
        y: Targets ``[N, ...]``.
        every: Number of epochs from one report to the next.
        repeats: Number of gradients in each.
        batch_size: Rows of each gradient, drawn anew for each; None takes all of them, for the noise from weight draws
            alone.
        layers: See `gradient_snr`.
        seed: See `gradient_snr`.

    Attributes:
        records: One dictionary of JSON values per report: epoch, step, and what `GradientSNR.to_dict` gives.

    Example:
        >>> import torch, leanbayes as lb
        >>> from leanbayes.training import TrainConfig, fit
        >>> x = torch.randn(64, 2)
        >>> y = (x[:, 0] > 0).long()
        >>> net = lb.bayesianize(torch.nn.Linear(2, 2), lb.KTied(rank=1))
        >>> monitor = lb.analysis.SNRMonitor(x, y, every=2, batch_size=16)
        >>> _ = fit(net, (x, y), TrainConfig(epochs=4, batch_size=16), callbacks=[monitor])
        >>> [record["epoch"] for record in monitor.records]
        [2, 4]
    """

    def __init__(
        self,
        x: Any,
        y: Tensor,
        every: int = 1,
        *,
        repeats: int = 10,
        batch_size: int | None = None,
        layers: Which = None,
        seed: int = 0,
    ) -> None:
        check_count("every", every, optional=False)
        check_count("batch_size", batch_size)
        self.data = next(pairs(x, y, len(y)))
        if batch_size is not None and batch_size > len(y):
            raise ValueError(f"batch_size={batch_size} exceeds the {len(y)} examples")
        self.every = every
        self.batch_size = batch_size
        self.options: dict[str, Any] = {"repeats": repeats, "layers": layers}
        self.seed = seed
        self.records: list[dict[str, Any]] = []

    def __call__(self, event: EpochEnd) -> None:
        """Take gradients if a report is due."""
        epoch = event.record["epoch"]
        if epoch % self.every:
            return
        assert event.elbo is not None
        found = gradient_snr(event.elbo, self._batches(epoch), seed=derive(self.seed, "epoch", epoch), **self.options)
        self.records.append({"epoch": epoch, "step": event.record.get("step")} | found.to_dict())

    def _batches(self, epoch: int) -> Any:
        x, y = self.data
        if self.batch_size is None:
            return x, y
        generator = torch.Generator().manual_seed(derive(self.seed, "rows", epoch) % 2**63)
        found = []
        for _ in range(self.options["repeats"]):
            rows = torch.randperm(len(y), generator=generator)[: self.batch_size]
            found.append((map_rows(x, lambda t, rows=rows: t[rows.to(t.device)]), y[rows.to(y.device)]))
        return found


class _Moments:
    """Mean and variance of tensors that come one after the other, in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self.squares: Any = 0.0
        self.eps = 0.0

    def add(self, value: Tensor) -> None:
        self.eps = torch.finfo(value.dtype).eps
        value = value.detach().cpu().double()
        self.count += 1
        apart = value - self.mean
        self.mean = self.mean + apart / self.count
        self.squares = self.squares + apart * (value - self.mean)

    def snr(self) -> Tensor:
        """Infinite where there is no noise but that of rounding."""
        variance, signal = self.squares / self.count, self.mean.square()
        return torch.where(variance > self.eps**2 * signal, 1 + signal / variance, torch.inf)


def _row(name: str, ratios: Tensor) -> LayerSNR:
    noisy = ratios[ratios.isfinite()]
    nothing = torch.tensor([torch.nan], dtype=ratios.dtype)
    values = noisy if len(noisy) else nothing
    return LayerSNR(name, float(values.mean()), float(values.median()), len(ratios), len(ratios) - len(noisy))


def _parameters(model: nn.Module, layers: Which) -> dict[str, list[nn.Parameter]]:
    """By weight, what its standard deviations are made of and what is trained of it."""
    found: dict[str, list[nn.Parameter]] = {}
    for part in noisy_layers(model, layers):
        for name, weight in part.weights.items():
            own = [(key, p) for key, p in weight.posterior.named_parameters() if key not in weight.posterior.original]
            trained = [parameter for _, parameter in own if parameter.requires_grad]
            if trained:
                found[name] = trained
    if not found:
        raise ValueError("no standard deviation is trained; gradient_snr needs one with requires_grad")
    return found


def _batches(batch: Any, repeats: int) -> list[tuple[Any, Tensor]]:
    if isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return [batch]
    if isinstance(batch, (Tensor, Mapping)) or not isinstance(batch, Iterable):
        raise TypeError(f"batch is (inputs, targets) or several of them, not {type(batch).__name__}")
    return list(itertools.islice(pairs(batch, None, 1), repeats))


@contextmanager
def _as_before(elbo: ELBO) -> Iterator[None]:
    """Training mode inside; modes and buffers outside are what they were."""
    modes = {module: module.training for module in elbo.modules()}
    buffers = {buffer: buffer.detach().clone() for buffer in elbo.buffers()}
    elbo.train()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for buffer, value in buffers.items():
                buffer.copy_(value)
