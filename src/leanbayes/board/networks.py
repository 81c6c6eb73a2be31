"""Methods on images and text, each trained and measured as `leanbayes compare` does it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leanbayes._prediction import Prediction
from leanbayes.bench.peers.adapter import library
from leanbayes.board.rivals import laplace
from leanbayes.compare import PRESETS, compare, load_checkpoint
from leanbayes.compare.losses import CONFIDENCE, example_losses, read_losses
from leanbayes.compare.measure import measure
from leanbayes.compare.shifts import make_evaluation
from leanbayes.data import Dataset
from leanbayes.objectives import Categorical

LAPLACE = "laplace"
TITLES = {name: one.title for name, one in PRESETS.items()} | {LAPLACE: "Last-layer Laplace (laplace-torch)"}
METRICS = ("accuracy", "nll", "ece")
PLAIN, DROPOUT, ENSEMBLE = "plain", "mc-dropout", "deep-ensemble"
# What others are tested against; methods that are not among them and have no more parameters than that are lean.
BASELINES = (PLAIN, DROPOUT, ENSEMBLE)
LEAN = 1.2
_BLOCK = 1024
_DIGITS = 5


@dataclass(frozen=True)
class Conditions:
    """What all methods on one data set share.

    Attributes:
        budget: As `compare` takes it.
        samples: Of every prediction.
        seed: Of the networks.
        device: "cpu" or "cuda".
        folder: Where trained models are kept, so that a training that was cut short goes on.
        progress: Whether to show progress bars; None shows them on a terminal.
    """

    budget: str
    samples: int
    seed: int
    device: str
    folder: Path
    progress: bool | None = None


def scores(dataset: Dataset, name: str, given: Conditions) -> dict[str, Any]:
    """Train and measure one method.

    Args:
        dataset: The data.
        name: A method of `compare`, or "laplace" for the last layer of its plain network.
        given: How.

    Returns:
        Plain values: the metrics, ``parameters``, ``overhead``, ``seconds`` of training, the ``network``, and for each
        test example its ``nll``, ``confidence`` and whether it was ``right``; or why it ``failed``.

    Raises:
        NotInstalled: If laplace-torch is not there.
    """
    return _laplace(dataset, given) if name == LAPLACE else _trained(dataset, name, given)


def _trained(dataset: Dataset, name: str, given: Conditions) -> dict[str, Any]:
    out = given.folder / name
    result = compare(
        dataset,
        [name],
        given.budget,
        seeds=(given.seed,),
        samples=given.samples,
        out=out,
        device=given.device,
        resume=True,
        progress=given.progress,
    )
    (entry,) = result["methods"]
    if entry["status"] != "done":
        return {"failed": entry["error"]}
    return {
        **{metric: entry["metrics"][metric][0] for metric in METRICS},
        "parameters": entry["parameters"],
        "overhead": entry["overhead"],
        "seconds": entry["train_seconds"][0],
        "network": result["settings"]["network"]["name"],
        "how": entry["train_how"],
        "examples": _examples(read_losses(_place(given, name))),
    }


def _laplace(dataset: Dataset, given: Conditions) -> dict[str, Any]:
    """What the plain network becomes; trains that where it is not there."""
    library("laplace")  # before anything is trained
    plain = _trained(dataset, "plain", given)
    if "failed" in plain:
        return plain
    saved = load_checkpoint(_place(given, "plain"), given.device)
    began = time.monotonic()
    predict = laplace.on_network(saved.model, *dataset.ready("train"))
    seconds = time.monotonic() - began
    data = make_evaluation(dataset)
    probs = torch.cat([predict(block.to(given.device)).cpu() for block in data.x.split(_BLOCK)])
    prediction = Prediction(probs.clamp_min(torch.finfo(probs.dtype).tiny).log().unsqueeze(0), Categorical())
    figures = measure(prediction, data.y)
    losses = example_losses(prediction, data.y) | {CONFIDENCE: probs.amax(1)}
    changed = {metric: figures[metric] for metric in METRICS} | {"seconds": plain["seconds"] + seconds}
    return plain | changed | {"examples": _examples(losses)}


def _place(given: Conditions, name: str) -> Path:
    return given.folder / name / name / f"seed{given.seed}"


def _examples(losses: Mapping[str, Tensor]) -> dict[str, list[float]]:
    return {
        "nll": [float(f"{value:.{_DIGITS}g}") for value in losses["nll"].tolist()],
        "confidence": [float(f"{value:.{_DIGITS}g}") for value in losses[CONFIDENCE].tolist()],
        "right": losses["accuracy"].long().tolist(),
    }
