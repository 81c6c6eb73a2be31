"""TabM with piecewise-linear embeddings, trained and stopped as its authors document it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes._sampling import SeededRandom
from leanbayes.bench.peers.adapter import library
from leanbayes.board.contender import Array, Gaussians
from leanbayes.board.rivals import _network

_RATE, _DECAY = 2e-3, 3e-4
_BINS = 48


def regressor(x: Array, y: Array, seed: int, device: str = "cpu") -> Gaussians:
    """Members are trained each on its own squared error; noise of the size of the errors on rows held out."""
    scaler, target = _network.scaler(x), _network.scaler(y[:, None])
    scaled = torch.as_tensor(target.transform(y[:, None])[:, 0], dtype=torch.float32, device=device)
    parts = _network.split(_inputs(scaler, x, device), scaled, seed)
    model = _build(parts.x, 1, seed)
    _network.train(model, parts, _squares, _RATE, _DECAY, seed)
    with torch.no_grad():
        std = (model(parts.held_out_x)[..., 0].mean(1) - parts.held_out_y).square().mean().sqrt().item()
    centre, scale = float(target.mean_[0]), float(target.scale_[0])

    def moments(new: Array) -> tuple[Array, Array]:
        with torch.no_grad():
            mean = model(_inputs(scaler, new, device))[..., 0].mean(1).double().cpu().numpy()
        return mean * scale + centre, np.full(len(new), std * scale)

    return Gaussians(moments)


def classifier(x: Array, y: Array, seed: int, device: str = "cpu") -> Callable[[Array], Array]:
    """Members are trained each on its own cross entropy; their probabilities are averaged."""
    scaler = _network.scaler(x)
    parts = _network.split(_inputs(scaler, x, device), torch.as_tensor(y, device=device), seed)
    model = _build(parts.x, int(y.max()) + 1, seed)
    _network.train(model, parts, _entropies, _RATE, _DECAY, seed)

    def probs(new: Array) -> Array:
        with torch.no_grad():
            return model(_inputs(scaler, new, device)).double().softmax(-1).mean(1).cpu().numpy()

    return probs


def _inputs(scaler: Any, x: Array, device: str) -> Tensor:
    return torch.as_tensor(scaler.transform(x), dtype=torch.float32, device=device)


def _build(rows: Tensor, outputs: int, seed: int) -> nn.Module:
    """The network for training rows ``[N, features]``, on their device."""
    tabm, embeddings = library("tabm"), library("rtdl_num_embeddings")
    device, features, rows = rows.device, rows.shape[1], rows.cpu()
    varying = rows.min(0).values < rows.max(0).values
    with SeededRandom(seed):
        if not varying.all():  # bins need two distinct values
            return tabm.TabM.make(n_num_features=features, d_out=outputs).to(device)
        bins = embeddings.compute_bins(rows, n_bins=min(_BINS, len(rows) - 1))
        embed = embeddings.PiecewiseLinearEmbeddings(bins, d_embedding=16, activation=False, version="B")
        return tabm.TabM.make(n_num_features=features, d_out=outputs, num_embeddings=embed).to(device)


def _squares(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs[..., 0] - y[:, None]).square().mean()


def _entropies(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), y.repeat_interleave(outputs.shape[1]))
