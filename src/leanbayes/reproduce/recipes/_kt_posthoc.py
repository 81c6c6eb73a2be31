"""Mean-field networks of the k-tied paper, trained once for several recipes, and what is left of them at low ranks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.analysis import compress, refresh_batchnorm, std_spectrum, truncate_std
from leanbayes.reproduce.recipes import _kt_networks as kt
from leanbayes.reproduce.result import Check, Row
from leanbayes.reproduce.run import Run

METRICS = {**kt.METRICS, "brier": "Brier score less 1", "ece": "ECE"}
RANKS = (1, 2, 3)
# Ranks to which networks are compressed by the least KL divergence.
COMPRESSED = (1, 2)
REFRESHED = ", norms refreshed"
# Networks with batch norms, and how many batches refresh their statistics.
_NORMS = ("resnet",)
_BATCHES = 80
# Singular values that are kept.
_SHOWN = 10
# The KL comes in over 50 of the ResNet's 700 epochs; the others have all of it from the first step.
_ANNEAL = {"mlp": 0.0, "cnn": 0.0, "lstm": 0.0, "resnet": 1 / 14}
PRESETS: dict[str, dict[str, Any]] = {
    name: values
    | {
        "anneal": _ANNEAL,
        "models": tuple(kt.MODELS),
        "repeated": ("mlp", "lstm"),
        "compressed": ("mlp", "resnet") if name == "smoke" else tuple(kt.MODELS),
    }
    for name, values in kt.TRAINING.items()
}
SEEDS = {"smoke": (0,), "short": (0, 1, 2), "paper": (0, 1, 2)}


def truncated_name(rank: int) -> str:
    """What a row calls standard deviations cut to a rank."""
    return f"rank {rank} by SVD"


def compressed_name(rank: int) -> str:
    """What a row calls a network compressed to a rank."""
    return f"compressed to rank {rank}"


def seeds_of(run: Run, model: str) -> tuple[int, ...]:
    """Networks that take long to train are trained once."""
    return run.seeds if model in run.settings["repeated"] else run.seeds[:1]


def mean_field(run: Run, model: str, seed: int, *, he: bool = False) -> tuple[nn.Module, list[dict[str, Any]]]:
    """A mean-field network, trained as the paper does, and its records; recipes share it."""
    return kt.train(run, model, "mean-field", seed, run.settings["anneal"][model], he=he)


def scores(run: Run, model: str, seed: int, he: bool = False) -> dict[str, Any]:
    """Figures on the test set of a mean-field network and of what is left of it, by name, and bytes of its files."""
    trained, _ = mean_field(run, model, seed, he=he)
    made = _made(run, model, trained)
    found = {name: kt.figures(run, model, one, seed) for name, one in made.items()}
    if model in _NORMS:
        # Less noise in the weights is less variance in what norms see. Of the network itself, too: its own statistics
        # are running averages, which lag behind.
        for name, one in made.items():
            found[name + REFRESHED] = kt.figures(run, model, refreshed(run, model, one), seed)
    return {"figures": found, "bytes": {name: file_bytes(one) for name, one in made.items()}}


def _made(run: Run, model: str, trained: nn.Module) -> dict[str, nn.Module]:
    """The network itself, cut by singular values as in the paper, and compressed."""
    layers = kt.MODELS[model].layers
    made = {"mean-field": trained}
    made |= {truncated_name(rank): truncate_std(trained, rank, layer=layers) for rank in RANKS}
    if model in run.settings["compressed"]:
        # Of the two directions of the divergence this one kept held-out likelihoods of the MLP better.
        small = {rank: compress(trained, rank=rank, how="reverse", layer=layers) for rank in COMPRESSED}
        made |= {compressed_name(rank): one for rank, one in small.items()}
    return made


def refreshed(run: Run, model: str, network: nn.Module) -> nn.Module:
    """The network after its norms have seen training images again; it is changed."""
    (x, _), _ = kt.MODELS[model].load(run)
    size = run.settings["batch_size"] or kt.MODELS[model].batch_size
    refresh_batchnorm(network, x[: _BATCHES * size].split(size))
    return network


def file_bytes(model: nn.Module) -> int:
    """Size of the file that `lb.save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        lb.save(model, path)
        return os.path.getsize(path)


def rows_of(title: str, found: Sequence[Mapping[str, Any]], published: Mapping[str, Mapping[str, float]]) -> list[Row]:
    """The figures of one network, by what was made of it.

    Args:
        title: Of the network.
        found: What `scores` gave, for each seed.
        published: Figures by name and metric.
    """
    return [
        Row(f"{title}, {name}", text, published.get(name, {}).get(key), values_of(found, name, key))
        for name in found[0]["figures"]
        for key, text in METRICS.items()
        if key in found[0]["figures"][name]
    ]


def values_of(found: Iterable[Mapping[str, Any]], name: str, key: str) -> list[float]:
    """One figure of what was made of a network, for each seed."""
    return [one["figures"][name][key] for one in found]


def losses(found: Sequence[Mapping[str, Any]], name: str, base: str = "mean-field") -> list[float]:
    """NLL over that of another, for each seed."""
    return [a - b for a, b in zip(values_of(found, name, "nll"), values_of(found, base, "nll"))]


def precision_notes(run: Run) -> list[str]:
    """What a result must say of a ResNet that was trained fast."""
    fast = run.settings["fast"] and run.device == "cuda" and "resnet" in run.settings["models"]
    return ["the ResNet is trained in mixed precision, bf16"] if fast else []


def all_there(run: Run, models: Iterable[str]) -> list[Check]:
    """A check that fails where networks were left out by ``--set models=...``, else none."""
    missing = [kt.MODELS[name].title for name in models if name not in run.settings["models"]]
    text = "every network of the paper was trained"
    return [Check(text, False, f"not trained: {'; '.join(missing)}")] if missing else []


def spectra(run: Run, model: str, seed: int, he: bool = False) -> dict[str, Any]:
    """Shares of variance that the first singular values explain, by layer.

    Returns:
        For each kernel ``std`` and ``mean``, shares of the sum of squares as in the paper. Of standard deviations, all
        of which are positive, one singular value stands for their mean and explains most of that, whatever they are.
        So there is ``spread``, too: what ranks 1, 2, ... explain of the variance around the mean.
    """
    trained, _ = mean_field(run, model, seed, he=he)
    layers = kt.MODELS[model].layers
    matrices = kt.deviations(trained, layers)
    return {
        layer.name: {
            "shape": layer.shape,
            "std": _rounded(layer.std.explained[:_SHOWN]),
            "mean": _rounded(layer.mean.explained[:_SHOWN]),
            "spread": _rounded(spread(layer.std.values, matrices[layer.name])[:_SHOWN]),
        }
        for layer in std_spectrum(trained, layer=layers).layers
    }


def spread(values: Sequence[float], std: Tensor) -> list[float]:
    """Share of the variance around the mean that the best approximations of rank 1, 2, ... explain.

    Args:
        values: Singular values of the matrix.
        std: The matrix; that of constants has nothing to explain.
    """
    std = std.double()
    total = float((std - std.mean()).square().sum())
    left = torch.tensor(values, dtype=torch.float64).square().flip(0).cumsum(0).flip(0).tolist()[1:]
    return [1 - rest / total if total else 1.0 for rest in [*left, 0.0]]


def explained(layer: Mapping[str, Any], kind: str, rank: int) -> float:
    """Percentage of a layer's ``std`` or ``mean`` that a rank explains."""
    return 100 * sum(layer[kind][:rank])


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in values]
