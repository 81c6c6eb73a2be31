"""laplace-torch: a Laplace approximation of the last layer of a trained perceptron, as its documentation has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from leanbayes._sampling import SeededRandom
from leanbayes.bench.peers.adapter import library
from leanbayes.board.contender import Array, Gaussians
from leanbayes.board.rivals import _network

_RATE, _DECAY = 1e-3, 1e-4
_WIDTH, _BATCH = 64, 256
# Steps of the marginal likelihood's maximisation, and their length.
_STEPS, _STEP = 100, 0.1


def regressor(x: Array, y: Array, seed: int) -> Gaussians:
    """Noise and the prior's precision by the marginal likelihood."""
    scaler, target = _network.scaler(x), _network.scaler(y[:, None])
    inputs = _inputs(scaler, x)
    found = _fit("regression", inputs, torch.as_tensor(target.transform(y[:, None]), dtype=torch.float32), 1, seed)
    centre, scale = float(target.mean_[0]), float(target.scale_[0])

    def moments(new: Array) -> tuple[Array, Array]:
        mean, variance = found(_inputs(scaler, new))
        std = (variance.flatten() + found.sigma_noise.item() ** 2).sqrt()
        return mean.flatten().detach().numpy() * scale + centre, std.detach().numpy() * scale

    return Gaussians(moments)


def classifier(x: Array, y: Array, seed: int) -> Callable[[Array], Array]:
    """The prior's precision by the marginal likelihood, probabilities by the probit approximation."""
    scaler = _network.scaler(x)
    found = _fit("classification", _inputs(scaler, x), torch.as_tensor(y), int(y.max()) + 1, seed)
    return lambda new: found(_inputs(scaler, new), link_approx="probit").detach().numpy()


def on_network(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """The last layer of a trained network, with the library's defaults: a Kronecker-factored Hessian.

    Args:
        model: The network; it stays as it is.
        x: Training inputs, as it takes them.
        y: Their labels.

    Returns:
        A function of inputs ``[N, ...]`` on the model's device to probabilities ``[N, classes]``.
    """
    found = library("laplace").Laplace(model, "classification")
    found.fit(DataLoader(TensorDataset(x, y), batch_size=_BATCH))
    found.optimize_prior_precision(method="marglik")
    return lambda new: found(new, link_approx="probit").detach()


def _inputs(scaler: Any, x: Array) -> Tensor:
    return torch.as_tensor(scaler.transform(x), dtype=torch.float32)


def _fit(likelihood: str, x: Tensor, y: Tensor, outputs: int, seed: int) -> Any:
    laplace = library("laplace")
    loss = F.mse_loss if likelihood == "regression" else F.cross_entropy
    with SeededRandom(seed):
        layers = [nn.Linear(x.shape[1], _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(_WIDTH, outputs))
        _network.train(model, _network.split(x, y, seed), loss, _RATE, _DECAY, seed)
        found = laplace.Laplace(model, likelihood, subset_of_weights="last_layer", hessian_structure="full")
        found.fit(DataLoader(TensorDataset(x, y), batch_size=_BATCH))
        if likelihood == "classification":
            found.optimize_prior_precision(method="marglik")
            return found
        log_prior, log_noise = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
        optimizer = torch.optim.Adam([log_prior, log_noise], lr=_STEP)
        for _ in range(_STEPS):
            optimizer.zero_grad()
            (-found.log_marginal_likelihood(log_prior.exp(), log_noise.exp())).sum().backward()
            optimizer.step()
        return found
