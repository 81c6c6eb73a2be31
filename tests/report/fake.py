"""A comparison as `compare` writes it, made up but plausible."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

# name, title, parameters relative to the plain network, accuracy, NLL, ECE, AUROC, prediction time
METHODS = [
    ("plain", "Plain network", 1.0, 0.962, 0.131, 0.024, 0.900, 0.021),
    ("mc_dropout", "MC dropout", 1.0, 0.964, 0.119, 0.017, 0.915, 0.32),
    ("deep_ensemble", "Deep ensemble (5)", 5.0, 0.973, 0.084, 0.013, 0.951, 0.105),
    ("mean_field", "Mean-field", 2.0, 0.958, 0.139, 0.019, 0.921, 0.61),
    ("k_tied", "k-tied", 1.03, 0.960, 0.128, 0.016, 0.924, 0.58),
    ("variational_dropout", "Variational dropout", 2.0, 0.957, 0.148, 0.027, 0.905, 0.66),
    ("variance_layer", "Variance layers", 1.0, 0.949, 0.171, 0.031, 0.899, 0.64),
    ("batch_ensemble", "BatchEnsemble", 1.05, 0.965, 0.112, 0.015, 0.933, 0.11),
    ("rank1", "Rank-1 (Gaussian)", 1.08, 0.969, 0.092, 0.010, 0.946, 0.23),
    ("rank1_cauchy", "Rank-1 (Cauchy)", 1.08, 0.968, 0.094, 0.012, 0.948, 0.235),
    ("emp", "EMP", 1.06, 0.966, 0.104, 0.014, 0.938, 0.19),
    ("ecmp", "ECMP", 1.06, 0.967, 0.101, 0.013, 0.940, 0.2),
]
CLASSES = [str(digit) for digit in range(10)]
PLAIN_PARAMETERS = 34_826


def comparison(methods: int = len(METHODS), seeds: int = 3, task: str = "classification") -> dict[str, Any]:
    """The content of compare.json."""
    rng = np.random.default_rng(0)
    regression = task == "regression"
    return {
        "id": "compare",
        "data": "boston housing" if regression else "digits",
        "task": task,
        "command": "leanbayes compare digits --seeds 3 --samples 32",
        "device": "CPU (2 cores)",
        "date": "2025-11-15 10:40",
        "versions": {"leanbayes": "0.1.0", "torch": "2.9.1", "python": "3.12.3"},
        "seeds": list(range(seeds)),
        "samples": 32,
        "classes": [] if regression else CLASSES,
        "metrics": ["rmse", "lpd", "coverage", "width"] if regression else ["accuracy", "nll", "ece", "brier"],
        "examples": {"train": 1294, "valid": 144, "test": 359, "corrupted": 300, "ood": 300},
        "guess": {"rmse": 9.2, "lpd": -3.6} if regression else {"accuracy": 0.11, "nll": 2.3, "brier": 0.9},
        "notes": ["3 missing values were replaced by the mean of their column"],
        "shift": "Gaussian noise of 0.1, 0.2, 0.4, 0.7, 1.0 standard deviations",
        "paired": pairs(methods, "lpd" if regression else "nll"),
        "methods": [
            _regression(rng, row, seeds) if regression else _classification(rng, row, seeds)
            for row in METHODS[:methods]
        ],
    }


def pairs(methods: int, metric: str) -> list[dict[str, Any]]:
    """Tests of every pair: each step of 0.004 in the NLL is a standard error."""
    sign = -1 if metric == "lpd" else 1
    return [
        {"metric": metric, "first": a[0], "second": b[0], "difference": a[4] - b[4], "z": sign * (a[4] - b[4]) / 0.004}
        for a, b in combinations(METHODS[:methods], 2)
    ]


def write(folder: Path, content: Any) -> Path:
    """Write compare.json."""
    (folder / "compare.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def _seeds(rng: np.random.Generator, value: float, seeds: int, spread: float = 0.04) -> list[float]:
    return [float(value * (1 + spread * rng.standard_normal())) for _ in range(seeds)]


def _costs(rng: np.random.Generator, row: tuple, seeds: int) -> dict[str, Any]:
    name, title, overhead, *_, milliseconds = row
    return {
        "name": name,
        "title": title,
        "method": {"type": name},
        "parameters": round(overhead * PLAIN_PARAMETERS),
        "plain_parameters": PLAIN_PARAMETERS,
        "overhead": overhead,
        "train_seconds": _seeds(rng, 3 + 5 * overhead * (1 + milliseconds), seeds),
        "predict_ms_per_example": _seeds(rng, milliseconds, seeds),
        "history": _history(rng, row),
        "status": "done",
        "error": None,
    }


def _classification(rng: np.random.Generator, row: tuple, seeds: int) -> dict[str, Any]:
    _, _, _, accuracy, nll, ece, auroc, _ = row
    metrics = {
        "accuracy": _seeds(rng, accuracy, seeds, 0.002),
        "nll": _seeds(rng, nll, seeds),
        "ece": _seeds(rng, ece, seeds, 0.1),
        "brier": _seeds(rng, 0.5 * nll, seeds),
    }
    corrupted = {
        str(severity): {
            "accuracy": _seeds(rng, accuracy - 0.004 * severity**2.3 * nll / 0.1, seeds, 0.005),
            "nll": _seeds(rng, nll * (1 + 0.9 * severity**1.6), seeds),
            "ece": _seeds(rng, ece * (1 + 0.8 * severity**1.5), seeds),
        }
        for severity in range(1, 6)
    }
    return _costs(rng, row, seeds) | {
        "metrics": metrics,
        "corrupted": corrupted,
        "ood": {
            "name": "letters",
            "auroc": _seeds(rng, auroc, seeds, 0.004),
            "fpr95": _seeds(rng, 2.5 * (1 - auroc), seeds),
        },
        "entropy": _entropy(rng, auroc),
        "reliability": _reliability(rng, ece),
        "examples": {
            "certain": [_example(rng, 0.995) for _ in range(6)],
            "uncertain": [_example(rng, 0.4) for _ in range(6)],
        },
    }


def _regression(rng: np.random.Generator, row: tuple, seeds: int) -> dict[str, Any]:
    nll, ece = row[4], row[5]
    return _costs(rng, row, seeds) | {
        "metrics": {
            "rmse": _seeds(rng, 2.4 + 5 * nll, seeds, 0.01),
            "lpd": _seeds(rng, -2.2 - 3 * nll, seeds, 0.01),
            "coverage": _seeds(rng, 0.955 - 2 * ece, seeds, 0.003),
            "width": _seeds(rng, 9 + 10 * nll, seeds),
        },
        "calibration": _calibration(ece),
        "intervals": _intervals(rng, nll),
    }


def _calibration(ece: float) -> dict[str, Any]:
    levels = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
    return {
        "level": levels,
        "coverage": [level - 8 * ece * level * (1 - level) for level in levels],
        "pit": [46, 37, 33, 30, 31, 32, 34, 35, 38, 43],
    }


def _intervals(rng: np.random.Generator, nll: float) -> dict[str, Any]:
    mean = np.sort(rng.normal(22, 8, 40))
    half, target = 4.5 + 5 * nll, mean + rng.normal(0, 3, 40)
    columns = {"mean": mean, "lower": mean - half, "upper": mean + half, "target": target}
    return {name: values.tolist() for name, values in columns.items()}


def _history(rng: np.random.Generator, row: tuple) -> list[dict[str, Any]]:
    nll, bayesian = row[4], row[0] not in ("plain", "mc_dropout", "deep_ensemble", "batch_ensemble")
    records = []
    for epoch in range(1, 31):
        fit = 0.3 * nll + 2.2 * np.exp(-epoch / 4) * (1 + 0.03 * rng.standard_normal())
        kl = 900 + 2000 * np.exp(-epoch / 12) if bayesian else 0.0
        valid = float(fit + 0.6 * nll) if epoch % 2 else None
        records.append(
            {"epoch": epoch, "loss": float(fit + kl / 1200), "nll": float(fit), "kl": float(kl), "valid_nll": valid}
        )
    return records


def _entropy(rng: np.random.Generator, auroc: float) -> dict[str, Any]:
    edges = np.linspace(0, np.log(10), 24)
    inside = np.histogram(rng.gamma(0.35, 0.3, 540).clip(0, 2.29), edges)[0]
    outside = np.histogram(rng.gamma(5, auroc * 0.3, 1000).clip(0, 2.29), edges)[0]
    return {"edges": edges.tolist(), "in": inside.tolist(), "out": outside.tolist()}


def _reliability(rng: np.random.Generator, ece: float) -> dict[str, Any]:
    count = [0, 0, 0, 1, 4, 6, 9, 11, 13, 17, 20, 25, 31, 45, 358]
    confidence = [(i + 0.5) / 15 for i in range(15)]
    accuracy = [
        float(np.clip(c - 6 * ece * c * (1.05 - c) * 4 + 0.04 * rng.standard_normal(), 0, 1)) for c in confidence
    ]
    return {"count": count, "confidence": confidence, "accuracy": accuracy}


def _example(rng: np.random.Generator, confidence: float) -> dict[str, Any]:
    first, second, third = rng.permutation(10)[:3]
    rest = (1 - confidence) / 2
    probs = dict.fromkeys(CLASSES, 0.0) | {str(first): confidence, str(second): 1.3 * rest, str(third): 0.7 * rest}
    label = first if rng.random() < max(confidence, 0.5) else second
    rows, columns = np.mgrid[0:8, 0:8]
    ring = np.exp(-((np.hypot(rows - 3.5, (columns - 3.5) * 1.4) - 2 - first / 9) ** 2))
    image = (ring + 0.1 * rng.random((8, 8))).clip(0, 1)
    return {"image": image.round(3).tolist(), "label": str(label), "predicted": str(first), "probs": probs}
