"""Figures of one trained model."""

from __future__ import annotations

import copy
import math
import time
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanbayes._predict import predict
from leanbayes._prediction import Prediction
from leanbayes.compare.alarms import fpr_interval
from leanbayes.compare.intervals import calibration, intervals
from leanbayes.compare.losses import CONFIDENCE, example_losses
from leanbayes.compare.shifts import Evaluation
from leanbayes.compare.units import log_density, restored, root_mean, squared_errors
from leanbayes.data._normalise import Affine
from leanbayes.metrics import functional as F
from leanbayes.objectives.likelihoods import Categorical, Gaussian, Likelihood

CLASS_METRICS = ("accuracy", "nll", "ece", "brier")
VALUE_METRICS = ("rmse", "lpd", "coverage", "width")
LEVEL = 0.95
_BINS = 15
_ENTROPY_BINS = 20
_EXAMPLES = 6
# Rows predicted at once; their samples are held in memory.
_BLOCK = 2048
# Rows whose prediction is timed, and how often.
_TIMED, _PASSES = 512, 2


def metric_names(likelihood: Likelihood) -> tuple[str, ...]:
    """What is measured for a task."""
    return VALUE_METRICS if isinstance(likelihood, Gaussian) else CLASS_METRICS


def predict_all(model: nn.Module, x: Tensor, samples: int | Literal["auto"], likelihood: Likelihood) -> Prediction:
    """Predictions for any number of rows, by a fixed seed, on the CPU in the end."""
    device = next(model.parameters()).device
    if samples == "auto":
        # As from a loader, so that the first rows decide on one number for all.
        outputs = predict(model, iter(x.split(_BLOCK)), samples, likelihood=likelihood, seed=0).outputs
        return Prediction(outputs.cpu(), _on_cpu(likelihood))
    rows = [
        predict(model, block.to(device), samples, likelihood=likelihood, seed=0).outputs.cpu()
        for block in x.split(_BLOCK)
    ]
    return Prediction(torch.cat(rows, 1), _on_cpu(likelihood))


def measure(prediction: Prediction, y: Tensor, scale: Affine | None = None) -> dict[str, float]:
    """Metrics of a prediction, those of real targets in the units of the data.

    Args:
        prediction: Of the examples.
        y: Their targets, as the network was fitted to them.
        scale: How real ones were scaled, None where they were not.

    Returns:
        One number per metric.
    """
    if isinstance(prediction.likelihood, Gaussian):
        lower, upper = (bound.squeeze(-1) for bound in F.central_interval(prediction, LEVEL))
        return {
            "rmse": root_mean(squared_errors(prediction, y, scale)),
            "lpd": float(log_density(prediction, y, scale).mean()),
            "coverage": float(F.coverage(lower, upper, y)),
            "width": float(F.interval_width(restored(lower, scale), restored(upper, scale))),
        }
    return {
        "accuracy": float(F.accuracy(prediction, y)),
        "nll": float(F.nll(prediction, y)),
        "ece": float(F.expected_calibration_error(prediction, y, bins=_BINS)),
        "brier": float(F.brier(prediction, y)),
    }


def measure_model(
    model: nn.Module,
    likelihood: Likelihood,
    data: Evaluation,
    samples: int | Literal["auto"],
    scale: Affine | None,
    names: tuple[str, ...],
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """All figures of one model.

    Args:
        model: The trained model.
        likelihood: How its outputs are read.
        data: What to measure on.
        samples: Of every prediction, as `predict` takes them.
        scale: How real targets were scaled, None where they were not.
        names: Of the classes.

    Returns:
        The parts of one method's entry that come from one seed, as plain values, and the losses of each example, with
        the confidence of a classification.
    """
    prediction = predict_all(model, data.x, samples, likelihood)
    found: dict[str, Any] = {
        "predict_ms_per_example": _milliseconds(model, data.x[:_TIMED], samples, likelihood),
        "metrics": measure(prediction, data.y, scale),
        "corrupted": {
            str(severity): measure(predict_all(model, x, samples, likelihood), y, scale)
            for severity, (x, y) in data.corrupted.items()
        },
    }
    if data.ood is not None:
        found |= _ood(prediction, predict_all(model, data.ood, samples, likelihood), data.ood_name)
    if isinstance(likelihood, Categorical):
        found["reliability"] = _reliability(prediction, data.y)
        if data.images is not None:
            found["examples"] = _examples(prediction, data.y, data.images, names)
    if isinstance(likelihood, Gaussian):
        found["calibration"] = calibration(prediction, data.y)
        found["intervals"] = intervals(prediction, data.y, LEVEL, scale)
    losses = example_losses(prediction, data.y, scale)
    if isinstance(likelihood, Categorical):
        losses[CONFIDENCE] = prediction.probs.double().amax(1)
    return found, losses


def constant_guess(train: Tensor, y: Tensor, classes: int, scale: Affine | None = None) -> dict[str, float]:
    """The figures of a guess that looks at no input: the classes' shares, or mean and spread, of the training targets.

    A method that does no better has learned nothing.

    Args:
        train: Targets of the training part, as the network is fitted to them.
        y: Those of the test examples.
        classes: Their number, 0 for real targets.
        scale: How real targets were scaled, None where they were not.

    Returns:
        One number per metric that such a guess has a meaningful value of.
    """
    found = measure(_guess(train, len(y), classes), y, scale)
    if not classes:
        found["rmse"] = root_mean(guess_losses(train, y, classes, scale)["rmse"])
    return {name: found[name] for name in (("accuracy", "nll", "brier") if classes else ("rmse", "lpd"))}


def guess_losses(train: Tensor, y: Tensor, classes: int, scale: Affine | None = None) -> dict[str, Tensor]:
    """What the same guess gets for every test example, as `example_losses` has it; for the arguments see above."""
    found = example_losses(_guess(train, len(y), classes), y, scale)
    if scale is not None and scale.log:
        # The mean of the targets, which that of a log-normal distribution with their scale need not be.
        found["rmse"] = (restored(y, scale) - restored(train, scale).mean()).square()
    return found


def _guess(train: Tensor, rows: int, classes: int) -> Prediction:
    if classes:
        counts = torch.bincount(train.long().flatten(), minlength=classes).double() + 0.5
        return Prediction((counts / counts.sum()).log().float().expand(1, rows, classes), Categorical())
    values = train.double().flatten()
    variance = max(float(values.var(correction=0)), 1e-12)
    return Prediction(values.mean().float().expand(1, rows, 1), Gaussian(1 / variance))


def _milliseconds(model: nn.Module, x: Tensor, samples: int | Literal["auto"], likelihood: Likelihood) -> float:
    """Time of a prediction per example: of two passes the faster, as whatever else runs only adds to it."""
    seconds = []
    for _ in range(_PASSES):
        start = time.perf_counter()
        predict_all(model, x, samples, likelihood)
        seconds.append(time.perf_counter() - start)
    return 1000 * min(seconds) / len(x)


def _ood(inside: Prediction, outside: Prediction, name: str) -> dict[str, Any]:
    scores = [prediction.entropy.flatten().double() for prediction in (inside, outside)]
    if isinstance(inside.likelihood, Gaussian):
        low, high = float(torch.cat(scores).min()), float(torch.cat(scores).max())
        high = max(high, low + 1e-6)
    else:
        low, high = 0.0, math.log(inside.probs.shape[-1])
    edges = torch.linspace(low, high, _ENTROPY_BINS + 1, dtype=torch.float64)
    # Rounding may take an entropy out of the range by a hair.
    counts = [torch.histogram(values.clamp(low, high), edges).hist.long().tolist() for values in scores]
    auroc, fpr = F.ood_auroc(scores[0], scores[1]), F.ood_fpr(scores[0], scores[1])
    low, high = fpr_interval(scores[0], scores[1])
    return {
        "ood": {"name": name, "auroc": float(auroc), "fpr95": float(fpr), "fpr95_low": low, "fpr95_high": high},
        "entropy": {"edges": edges.tolist(), "in": counts[0], "out": counts[1]},
    }


def _reliability(prediction: Prediction, y: Tensor) -> dict[str, Any]:
    table = F.reliability_table(prediction, y, bins=_BINS)
    return {name: getattr(table, name).tolist() for name in ("count", "confidence", "accuracy")}


def _examples(prediction: Prediction, y: Tensor, images: Tensor, names: tuple[str, ...]) -> dict[str, Any]:
    order = prediction.entropy.argsort(stable=True).tolist()
    chosen = {"certain": order[:_EXAMPLES], "uncertain": order[::-1][:_EXAMPLES]}
    return {kind: [_example(prediction, y, images, names, row) for row in rows] for kind, rows in chosen.items()}


def _example(prediction: Prediction, y: Tensor, images: Tensor, names: tuple[str, ...], row: int) -> dict[str, Any]:
    probs = prediction.probs[row]
    most = probs.argsort(descending=True)[:10].tolist()
    image = (images[row] * 1000).round().div(1000)
    return {
        "image": [[[round(v, 3) for v in line] for line in channel] for channel in image.tolist()],
        "label": names[int(y[row])],
        "predicted": names[int(probs.argmax())],
        "probs": {names[i]: round(float(probs[i]), 4) for i in sorted(most)},
    }


def _on_cpu(likelihood: Likelihood) -> Likelihood:
    return copy.deepcopy(likelihood).cpu()
