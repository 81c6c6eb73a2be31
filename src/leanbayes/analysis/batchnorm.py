"""Running statistics of batch norms, computed anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.rnn import PackedSequence

from leanbayes._components import every_component, mixture_parts
from leanbayes._inputs import call, check_no_nan, loader_input, rows
from leanbayes._modes import eval_mode
from leanbayes._sampling import Sampling, SeededRandom, current_sampling, fold, one_pass, sampling
from leanbayes.analysis._data import check_count, on_device
from leanbayes.analysis._layers import uncompiled
from leanbayes.nn._stacked import Stacked
from leanbayes.nn.ensemble import Ensemble
from leanbayes.training.seeds import derive


@torch.no_grad()
def refresh_batchnorm(model: nn.Module, loader: Iterable[Any], *, samples: int = 1, seed: int = 0) -> int:
    r"""Recompute the running statistics of all batch norms in place, for instance after pruning or averaging weights.

    .. math:: \mu = \sum_b \frac{n_b}{n} \mu_b, \quad \sigma^2 = \sum_b \frac{n_b}{n} \sigma_b^2

    over the batches b, with fresh draws of the weights for each and no momentum. All components of a mixture run on
    every batch; patched norms share statistics between them, and the members of a deep ensemble have their own.
    Everything else is in eval mode meanwhile, and returns to its mode afterwards. An error leaves the statistics as
    they were.

    Args:
        model: A converted model or a plain one.
        loader: Batches of inputs, of tuples whose first entry is the inputs, or of mappings, whose "labels" are left
            out. Batches as large as in training give
            the statistics that training would.
        samples: Draws of the weights for each batch and component.
        seed: Of the draws; torch's own generators are left alone.

    Returns:
        Number of batch norms.

    Example:
        >>> import torch, leanbayes as lb
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        >>> net = lb.bayesianize(net, lb.MeanField())
        >>> x = torch.randn(64, 3)
        >>> lb.analysis.refresh_batchnorm(net, x.split(16), samples=8)
        1
        >>> bool((net(x).mean(0).abs() < 0.5).all())
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"refresh_batchnorm takes a model, not {type(model).__name__}")
    if isinstance(loader, (Tensor, Mapping, PackedSequence)) or not isinstance(loader, Iterable):
        raise TypeError(f"loader must be an iterable of batches (a list of one will do), not a {type(loader).__name__}")
    check_count("samples", samples, optional=False)
    model = uncompiled(model)
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not norms:
        return 0
    device = next(iter([*model.parameters(), *model.buffers()])).device
    with _statistics_alone(model, norms) as statistics, SeededRandom(seed):
        count = 0
        for number, batch in enumerate(loader):
            x = on_device(loader_input(batch), device)
            check_no_nan(x)
            with sampling(seed=derive(seed, "batch", number)):
                _run(model, x, samples)
            statistics.add(rows(x, current_sampling().batch_dim))
            count += 1
        if not count:
            raise ValueError("the loader gave no batch; at least one is needed")
        statistics.keep(count)
    return len(norms)


def _run(model: nn.Module, x: Any, samples: int) -> None:
    state = current_sampling()
    batch = rows(x, state.batch_dim)
    spec = _layout(model, state, samples)
    with one_pass(spec, spec.n * batch, model):
        call(model, fold(x, spec.n, state.batch_dim))


def _layout(model: nn.Module, state: Sampling, samples: int) -> Sampling:
    parts = mixture_parts(model)
    if not parts or not isinstance(state.component, str) or state.component != "random":
        return state.replace(n=samples)
    return every_component(parts, samples, next(model.parameters()), state)


class _Statistics:
    """Weighted averages of what batch norms hold after each batch.

    Args:
        norms: The batch norms, which average over their calls in one pass.
    """

    def __init__(self, norms: list[_BatchNorm]) -> None:
        self.norms = norms
        self.examples = 0
        self.sums: list[Tensor] = []
        self._clear()

    def add(self, examples: int) -> None:
        """Take in the statistics of one batch."""
        # In float64, which not every device has.
        now = [buffer.cpu().double() * examples for buffer in self._moments()]
        self.sums = [total + part for total, part in zip(self.sums, now)] if self.sums else now
        self.examples += examples
        self._clear()

    def keep(self, batches: int) -> None:
        """Put the averages in the norms."""
        for buffer, total in zip(self._moments(), self.sums):
            buffer.copy_(total / self.examples)
        for norm in self.norms:
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.fill_(batches)

    def _moments(self) -> Iterator[Tensor]:
        for norm in self.norms:
            assert norm.running_mean is not None and norm.running_var is not None
            yield norm.running_mean
            yield norm.running_var

    def _clear(self) -> None:
        for norm in self.norms:
            norm.reset_running_stats()


@contextmanager
def _statistics_alone(model: nn.Module, norms: list[_BatchNorm]) -> Iterator[_Statistics]:
    """Eval mode for all but the norms, which average over their calls; statistics come back after an error."""
    ensembles = [module for module in model.modules() if isinstance(module, Ensemble)]
    if any(isinstance(module, Stacked) and not isinstance(module, Ensemble) for module in model.modules()):
        raise ValueError("networks in a SideBySide must be refreshed one by one")
    buffers = {buffer: buffer.clone() for norm in norms for buffer in norm.buffers()}
    momenta = [norm.momentum for norm in norms]
    at_once = [ensemble._batches for ensemble in ensembles]
    with eval_mode(model):
        for norm in norms:
            norm.training, norm.momentum = True, None
        for ensemble in ensembles:
            # In training mode members hand over what a pass has moved; one by one they can count their calls.
            ensemble.training, ensemble._batches = True, False
        try:
            yield _Statistics(norms)
        except BaseException:
            for buffer, value in buffers.items():
                buffer.copy_(value)
            raise
        finally:
            for norm, momentum in zip(norms, momenta):
                norm.training, norm.momentum = False, momentum
            for ensemble, allowed in zip(ensembles, at_once):
                ensemble.training, ensemble._batches = False, allowed
