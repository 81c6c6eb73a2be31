"""Whether samples folded in the batch stay apart: one folded run against separate runs with the same noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._inputs import call, output_tensor
from leanbayes._kl import shared_components
from leanbayes._sampling import Sampling, current_sampling, fold, split, using
from leanbayes.posteriors.patch import PatchGroup
from leanbayes.testing.statistics import assert_close


def sample_generators(n: int, seed: int = 0, device: torch.device | str = "cpu") -> tuple[torch.Generator, ...]:
    """A source of noise for each of n samples, so that a sample is the same in whatever run it is drawn."""
    return tuple(torch.Generator(device).manual_seed(1000 * seed + s) for s in range(n))


def run_folded(model: nn.Module, x: Any, n: int, *, seed: int = 0, batch_dim: int = 0, **state: Any) -> Tensor:
    """Outputs ``[n, B, ...]`` of one run with n samples folded in the batch.

    Args:
        model: A converted model.
        x: Its input, not folded.
        n: Number of samples.
        seed: The samples' noise depends on it alone.
        batch_dim: Axis of the examples.
        **state: Further fields of `Sampling`.
    """
    spec = _state(model, n, seed, batch_dim, state)
    with using(spec):
        return split(output_tensor(call(model, fold(x, n, batch_dim))), n, batch_dim)


def run_apart(model: nn.Module, x: Any, n: int, *, seed: int = 0, batch_dim: int = 0, **state: Any) -> Tensor:
    """As `run_folded`, but by n runs of one sample each, with the same noise.

    With ``component="all"`` or ``"stratified"``, sample s uses the shared component ``s % K``.
    """
    spec = _state(model, n, seed, batch_dim, state)
    assert spec.generators is not None
    outputs = []
    for s, generator in enumerate(spec.generators):
        component = spec.component
        if isinstance(component, str) and component != "random":
            component = s % shared_components(model)
        with using(spec.replace(n=1, generators=(generator,), offset=s, component=component)):
            outputs.append(output_tensor(call(model, x)).movedim(batch_dim, 0))
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
    components = shared_components(model)
    if components > 1 and not any(isinstance(module, PatchGroup) for module in model.modules()):
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


def _state(model: nn.Module, n: int, seed: int, batch_dim: int, state: dict[str, Any]) -> Sampling:
    device = next(model.parameters()).device
    generators = sample_generators(n, seed, device)
    return current_sampling().replace(n=n, batch_dim=batch_dim, generators=generators, **state)
