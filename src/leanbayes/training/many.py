"""fit_many: many small networks of one shape, trained side by side."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from leanbayes.nn._replica import replica
from leanbayes.nn._stacked import Stacked
from leanbayes.nn.side_by_side import SideBySide
from leanbayes.objectives.likelihoods import Categorical, Likelihood
from leanbayes.training.callbacks import Callback
from leanbayes.training.config import TrainConfig
from leanbayes.training.data import as_tensors
from leanbayes.training.engine import fit
from leanbayes.training.history import History
from leanbayes.training.parts import check_not_held_out


def fit_many(
    models: Sequence[nn.Module],
    data: Sequence[Any],
    config: TrainConfig | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
    likelihood: Likelihood | Sequence[Likelihood] | None = None,
    progress: bool | None = None,
) -> History:
    """Train many networks of one shape in place, each as `fit` would train it alone, in a fraction of the time.

    The splits of a cross-validation, the members of an ensemble, or the same network from many starts are one model
    here, `SideBySide`, whose products are batched. All networks see the rows of their data in the same order.

    Args:
        models: Networks of the same structure, plain or all converted by one method.
        data: Inputs and targets ``(x, y)`` of each network, the same number of rows for each.
        config: How to train. A limit on the gradient's norm (`clip`) and early stopping (`hold_out`) are not offered,
            because they would apply to all networks at once. All rows are trained on, for all epochs.
        out: See `fit`.
        resume: See `fit`.
        callbacks: See `fit`; they receive the `SideBySide`.
        likelihood: How the outputs of one network explain its targets; None means classes. One for each network if it
            has parameters, such as the precision that ``Gaussian("learned")`` trains.
        progress: See `fit`.

    Returns:
        What happened, epoch by epoch; losses are sums over the networks.

    Example:
        >>> import torch, leanbayes as lb
        >>> from leanbayes.training import TrainConfig, fit_many
        >>> models = [lb.bayesianize(torch.nn.Linear(2, 1), lb.MeanField()) for _ in range(4)]
        >>> data = [(x := torch.randn(50, 2), x.sum(1)) for _ in models]
        >>> history = fit_many(models, data, TrainConfig(epochs=5, lr=0.1), likelihood=lb.Gaussian(1.0))
        >>> history["loss"][-1] < history["loss"][0]
        True
    """
    config = TrainConfig() if config is None else config
    if config.clip is not None:
        raise ValueError("fit_many does not support clip: one limit would apply to the gradients of all networks")
    if config.hold_out not in ("auto", 0):
        raise ValueError("fit_many does not support hold_out: all networks would have to stop at the same moment")
    config = replace(config, hold_out=0)
    if len({id(model) for model in models}) < len(models):
        raise ValueError(
            "fit_many trains networks in place, and one of them is there twice; copy.deepcopy makes others"
        )
    side_by_side = SideBySide(models)
    x, y = _stack(data, len(models))
    likelihood = Categorical() if likelihood is None else likelihood
    likelihoods = [likelihood] * len(models) if isinstance(likelihood, Likelihood) else list(likelihood)
    many = _for_all(likelihoods, len(models))
    history = fit(
        side_by_side,
        (x, y),
        config,
        out=out,
        resume=resume,
        callbacks=callbacks,
        likelihood=many,
        progress=progress,
    )
    side_by_side.copy_to(models)
    many.copy_to(likelihoods)
    return history


def _stack(data: Sequence[Any], count: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets ``[N, M, ...]``."""
    if len(data) != count:
        raise ValueError(f"fit_many takes one (x, y) for each of the {count} networks, not {len(data)}")
    parts = [as_tensors(part) for part in data]
    for number, part in enumerate(parts):
        if part is None or not isinstance(part[0], Tensor) or part[2] is not None:
            raise TypeError(f"fit_many takes tensors (x, y) for each network; those of network {number} are not")
    shapes = [tuple(tuple(t.shape) for t in part[:2]) for part in parts]  # pyright: ignore
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(
                f"networks side by side need data of one shape, but that of network {number} is {shape} instead of "
                f"{shapes[0]}; leave rows out, or train those networks in another call"
            )
    x, y = (torch.stack([part[index] for part in parts], 1) for index in range(2))  # pyright: ignore
    return x, y


def _for_all(likelihoods: Sequence[Likelihood], count: int) -> _ManyLikelihoods:
    """One likelihood of all networks' outputs."""
    shared = len({id(each) for each in likelihoods}) < len(likelihoods)
    if len(likelihoods) != count or (shared and next(likelihoods[0].parameters(), None) is not None):
        raise ValueError(
            f"a likelihood with parameters is given once for each of the {count} networks, in a list, not "
            f"{len({id(each) for each in likelihoods})} times"
        )
    if any(_settings(each) != _settings(likelihoods[0]) for each in likelihoods):
        raise ValueError("the likelihoods of networks side by side differ in more than what is trained of them")
    for each in likelihoods:
        check_not_held_out("fit_many", each)
    return _ManyLikelihoods(likelihoods)


def _settings(likelihood: Likelihood) -> tuple[type, dict[str, Any]]:
    values = {name: value for name, value in vars(likelihood).items() if not name.startswith("_")}
    return type(likelihood), values | {"training": None}


class _ManyLikelihoods(Likelihood):
    """One likelihood for each network, of outputs ``[S, B, M, ...]``."""

    def __init__(self, likelihoods: Sequence[Likelihood]) -> None:
        super().__init__()
        self.stacked = Stacked(likelihoods)
        # In a tuple, which hides it from nn.Module: its parameters are stacked.
        self._first = (likelihoods[0],)

    def elementwise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Likelihood`."""
        return self._each("elementwise", outputs, targets)

    def training_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Likelihood`."""
        return self._each("training_score", outputs, targets)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """See `Likelihood`."""
        self._first[0].check(outputs.flatten(1, 2), targets.flatten(0, 1))

    def lacks_outputs(self, outputs: Tensor) -> int | None:
        """See `Likelihood`."""
        return self._first[0].lacks_outputs(outputs[:, :, 0])

    def add_outputs_(self, count: int) -> None:
        """See `Likelihood`."""
        name = type(self._first[0]).__name__
        raise ValueError(f"each network has {count} outputs; set that in its likelihood, {name}(..., outputs={count})")

    def _each(self, score: str, outputs: Tensor, targets: Tensor) -> Tensor:
        def run(values: dict[str, Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
            return getattr(replica(self.stacked.member, values), score)(outputs, targets)

        return vmap(run, (0, 2, 1), 2)(self.stacked.tensors(), outputs, targets)

    @torch.no_grad()
    def copy_to(self, likelihoods: Sequence[Likelihood]) -> None:
        """Give likelihoods the values that were trained."""
        for number, each in enumerate(likelihoods):
            for name, tensor in (*each.named_parameters(), *each.named_buffers()):
                tensor.copy_(self.stacked.tensors()[name][number])
