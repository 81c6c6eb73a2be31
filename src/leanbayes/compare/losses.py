"""What every test example says: kept beside each trained model, so that methods can be compared example by example."""

from __future__ import annotations

import io
import zipfile
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.compare.units import log_density, squared_errors
from leanbayes.data._normalise import Affine
from leanbayes.metrics import functional as F
from leanbayes.metrics.functional.classification import TINY
from leanbayes.objectives.likelihoods import Gaussian
from leanbayes.training.files import write_bytes

LOSSES = "losses.npz"
# Kept beside the losses of classes: with whether each was right, it gives the calibration error of any selection.
CONFIDENCE = "confidence"


def example_losses(prediction: Prediction, y: Tensor, scale: Affine | None = None) -> dict[str, Tensor]:
    """One value per example ``[N]`` for each metric that is a mean over examples.

    Args:
        prediction: Of the examples.
        y: Their targets, as the network was fitted to them.
        scale: How real ones were scaled, None where they were not.

    Returns:
        By metric; for "rmse" the squared errors.
    """
    if isinstance(prediction.likelihood, Gaussian):
        return {"rmse": squared_errors(prediction, y, scale), "lpd": log_density(prediction, y, scale)}
    probs, own = prediction.probs.double(), prediction.probs.double().gather(1, y.long().unsqueeze(1)).squeeze(1)
    return {
        "accuracy": (prediction.label == y).double(),
        "nll": -own.clamp_min(TINY).log(),
        "brier": probs.square().sum(1) - 2 * own + 1,
    }


def write_losses(folder: Path, losses: dict[str, Tensor]) -> None:
    """Keep the values of one network."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {name: values.numpy() for name, values in losses.items()}
    np.savez_compressed(buffer, **arrays)
    write_bytes(folder / LOSSES, buffer.getbuffer())


def read_losses(folder: Path) -> dict[str, Tensor]:
    """The values of one network; nothing where they are not there, as from an earlier version, or cannot be read."""
    try:
        with np.load(folder / LOSSES, allow_pickle=False) as file:
            return {name: torch.from_numpy(file[name]) for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile):
        return {}


def paired_tests(
    out: Path, methods: list[str], seeds: tuple[int, ...], groups: Tensor | None = None
) -> list[dict[str, Any]]:
    """Every pair of methods on the same test examples.

    Args:
        out: The folder of the comparison.
        methods: Names of those that are done.
        seeds: Of the networks.
        groups: A number for the group of each test example; None where they are independent.

    Returns:
        For each metric and pair the difference of the first less the second, in standard errors too.
    """
    found = {method: [read_losses(out / method / f"seed{seed}") for seed in seeds] for method in methods}
    stacked = {method: _stacked(runs) for method, runs in found.items()}
    records = []
    for first, second in combinations(methods, 2):
        for metric in stacked[first]:
            own, other = stacked[first][metric], stacked[second].get(metric)
            if metric == CONFIDENCE or other is None or own.shape != other.shape:
                continue
            test = F.paired_test(own, other, groups)
            records.append(
                {"metric": metric, "first": first, "second": second}
                | {"difference": float(test.difference), "z": float(test.z)}
            )
    return records


def guess_tests(
    out: Path, methods: list[str], seeds: tuple[int, ...], guess: dict[str, Tensor], groups: Tensor | None = None
) -> list[dict[str, Any]]:
    """Every method beside a constant guess on the same test examples.

    Args:
        out: The folder of the comparison.
        methods: Names of those that are done.
        seeds: Of the networks.
        guess: What the guess gets for every example, by metric.
        groups: A number for the group of each test example; None where they are independent.

    Returns:
        For each metric and method the difference of the method less the guess, in standard errors too.
    """
    records = []
    for method in methods:
        own = _stacked([read_losses(out / method / f"seed{seed}") for seed in seeds])
        for metric in guess.keys() & own.keys():
            if own[metric].shape[1:] == guess[metric].shape:
                test = F.paired_test(own[metric], guess[metric].expand_as(own[metric]), groups)
                records.append(
                    {"metric": metric, "method": method, "difference": float(test.difference), "z": float(test.z)}
                )
    return sorted(records, key=lambda record: (record["method"], record["metric"]))


def _stacked(runs: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """By metric ``[S, N]``, where all seeds have it."""
    shared = [name for name in runs[0] if all(name in run and run[name].shape == runs[0][name].shape for run in runs)]
    return {name: torch.stack([run[name] for run in runs]) for name in shared}
