"""Whether samples folded in the batch stay apart: one folded run against separate runs with the same noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._components import mixture_parts
from leanbayes._inputs import call, tensors
from leanbayes._sampling import Sampling, Stream, current_sampling, fold, split, using
from leanbayes.groups import ComponentGroup
from leanbayes.testing.statistics import assert_close


def sample_streams(n: int, seed: int = 0) -> tuple[Stream, ...]:
    """A source of noise for each of n samples, so that a sample is the same in whatever run it is drawn."""
    return tuple(Stream(1000 * seed + s) for s in range(n))


def run_folded(model: nn.Module, x: Any, n: int, *, seed: int = 0, batch_dim: int = 0, **state: Any) -> Tensor:
    """Outputs ``[n, B, ...]`` of one run with n samples folded in the batch (the first, where there are several).

    Args:
        model: A converted model.
        x: Its input, not folded.
        n: Number of samples.
        seed: The samples' noise depends on it alone.
        batch_dim: Axis of the examples.
        **state: Further fields of `Sampling`.
    """
    spec = _state(n, seed, batch_dim, state)
    with using(spec):
        return split(next(tensors(call(model, fold(x, n, batch_dim)))), n, batch_dim)


def run_apart(model: nn.Module, x: Any, n: int, *, seed: int = 0, batch_dim: int = 0, **state: Any) -> Tensor:
    """As `run_folded`, but by n runs of one sample each, with the same noise.

    With ``component="all"``, sample s uses the shared component ``s % K``.
    """
    spec = _state(n, seed, batch_dim, state)
    assert spec.streams is not None
    outputs = []
    for s, stream in enumerate(spec.streams):
        component = spec.component
        if isinstance(component, str) and component == "all":
            component = s % _components(model)
        with using(spec.replace(n=1, streams=(stream,), component=component)):
            outputs.append(next(tensors(call(model, x))).movedim(batch_dim, 0))
    return torch.stack(outputs).movedim(1, batch_dim + 1)


def assert_folds(model: nn.Module, x: Any, n: int = 3, *, batch_dim: int = 0, tolerance: float = 1e-5) -> None:
    """Prove that a converted model folds: the rows of each sample equal those of a run of that sample alone.

    Checked in eval mode at the means, with each layer's own estimator, with joint draws, and with the components of a
    shared index spread over the samples.

    Args:
        model: A converted model.
        x: Its input ``[B, ...]``, not folded: a tensor, a mapping or a tuple.
        n: Number of samples.
        batch_dim: Axis of the examples.
        tolerance: Error allowed, relative to the largest output.

    Example:
        >>> import torch, leanbayes as lb
        >>> from leanbayes.testing import assert_folds
        >>> model = lb.bayesianize(torch.nn.Conv1d(2, 3, 3), lb.MeanField())
        >>> assert_folds(model, torch.randn(4, 2, 8))
    """
    modes: dict[str, dict[str, Any]] = {"mean": {"mean": True}, "own estimators": {}, "joint": {"joint": True}}
    components = _components(model)
    # A layer with an index of its own is a module of the model.
    if components > 1 and not any(isinstance(module, ComponentGroup) for module in model.modules()):
        modes["all components"] = {"component": "all"}
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            for name, state in modes.items():
                count = n if name != "all components" else components * -(-n // components)
                folded = run_folded(model, x, count, batch_dim=batch_dim, **state)
                apart = run_apart(model, x, count, batch_dim=batch_dim, **state)
                assert_close(folded, apart, tolerance, f"folded samples against separate runs, {name}")
    finally:
        for module, mode in training.items():
            module.training = mode


def _components(model: nn.Module) -> int:
    """Components of the index that serves the whole model, 1 where there is none."""
    parts = mixture_parts(model)
    return parts[0].groups[0].components if parts else 1


def _state(n: int, seed: int, batch_dim: int, state: dict[str, Any]) -> Sampling:
    return current_sampling().replace(n=n, batch_dim=batch_dim, streams=sample_streams(n, seed), **state)
