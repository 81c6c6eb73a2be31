"""Phase reports over the epochs of a training run."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from leanbayes.analysis._data import check_labelled
from leanbayes.analysis._layers import Which, noisy_layers
from leanbayes.analysis.phase import phases
from leanbayes.training.callbacks import EpochEnd


class PhaseMonitor:
    """A callback of `leanbayes.training.fit` that evaluates `phases` after epochs.

    It does not affect training: its draws have their own seed. A report takes three evaluations for each layer and four
    more, so give it only a few hundred rows, which are enough to see a transition.

    Args:
        x: Inputs ``[N, ...]``.
        y: Class labels ``[N]``.
        every: Number of epochs from one report to the next.
        samples: Number of samples that are averaged.
        layers: See `phases`.
        batch_size: See `phases`.
        seed: See `phases`.

    Attributes:
        records: One dictionary of JSON values per report: the epoch, and what `PhaseReport.to_dict` gives.

    Example:
        >>> import torch, leanbayes as lb
        >>> from leanbayes.training import TrainConfig, fit
        >>> x = torch.randn(64, 2)
        >>> y = (x[:, 0] > 0).long()
        >>> net = lb.bayesianize(torch.nn.Linear(2, 2), lb.VariationalDropout())
        >>> monitor = lb.analysis.PhaseMonitor(x, y, every=2)
        >>> _ = fit(net, (x, y), TrainConfig(epochs=4, batch_size=16), callbacks=[monitor])
        >>> [record["epoch"] for record in monitor.records]
        [2, 4]
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        every: int = 1,
        *,
        samples: int = 5,
        layers: Which = None,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> None:
        if every < 1:
            raise ValueError(f"every counts epochs from 1, not {every!r}")
        check_labelled(x, y, batch_size)
        self.data = (x, y)
        self.every = every
        self.options: dict[str, Any] = {"samples": samples, "layers": layers, "batch_size": batch_size, "seed": seed}
        self.records: list[dict[str, Any]] = []
        self._checked = False

    def __call__(self, event: EpochEnd) -> None:
        """Evaluate the model if a report is due."""
        if not self._checked:  # better after the first epoch than after those until the first report
            noisy_layers(event.model, self.options["layers"])
            self._checked = True
        epoch = event.record["epoch"]
        if epoch % self.every == 0:
            self.records.append({"epoch": epoch} | phases(event.model, *self.data, **self.options).to_dict())
