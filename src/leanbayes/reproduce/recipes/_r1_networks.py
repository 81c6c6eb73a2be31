"""What the rank-1 recipes on small images have in common: the images, the networks of the tables, their predictions."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes import corruptions
from leanbayes._sampling import SeededRandom
from leanbayes.compare.checkpoint import as_json, read_json, write_json
from leanbayes.data import Dataset
from leanbayes.metrics import functional as metrics
from leanbayes.reproduce.recipes import _emp_networks as emp
from leanbayes.reproduce.recipes._corrupted import corrupted
from leanbayes.reproduce.recipes._r1_training import FACTORS, HEAVY, Training, build, of_settings, train
from leanbayes.reproduce.run import Run
from leanbayes.training import EpochEnd
from leanbayes.training.seeds import derive

TITLES = {
    "deterministic": "deterministic",
    "batchensemble": "BatchEnsemble",
    "dropout": "MC dropout",
    "mfvi": "mean-field (flipout)",
    "normal": "rank-1, Gaussian",
    "cauchy": "rank-1, Cauchy",
    "narrow": "deterministic, half the width",
    "ensemble-narrow": "ensemble of half the width",
    "ensemble": "ensemble",
    "deterministic-long": "deterministic, as much compute",
    "batchensemble-example": "BatchEnsemble, components per example",
    "normal-example": "rank-1 Gaussian, components per example",
    "cauchy-example": "rank-1 Cauchy, components per example",
}
COLOURS = {
    "deterministic": "#868e96",
    "batchensemble": "#d9480f",
    "dropout": "#f08c00",
    "mfvi": "#1098ad",
    "normal": "#3b5bdb",
    "cauchy": "#2b8a3e",
    "ensemble-narrow": "#ced4da",
    "ensemble": "#212529",
}
# Of the networks that they average.
ENSEMBLES = {"ensemble-narrow": "narrow", "ensemble": "deterministic"}
TABLE = ("deterministic", "batchensemble", "dropout", "mfvi", "normal", "cauchy", *ENSEMBLES)
EQUAL_COMPUTE = ("deterministic-long", "batchensemble-example", "normal-example", "cauchy-example")
_FAMILY = {"deterministic": "plain", "narrow": "plain", "batchensemble": "delta"}
# What the authors' code sets otherwise for a family than for rank-1 distributions: the settings by field.
_OWN = {
    "plain": {"l2": "plain_l2", "schedule": "plain_schedule"},
    "dropout": {"l2": "dropout_l2", "lr": "dropout_lr", "schedule": "plain_schedule", "dropout": "dropout_rate"},
    "mfvi": {"l2": "mfvi_l2", "schedule": "plain_schedule"},
    "delta": {
        "l2": "batch_l2", "factor_lr": "batch_factor_lr", "random_sign": "batch_sign", "init_spread": "batch_spread",
    },
}  # fmt: skip
METRICS = {"nll": "NLL, nats", "accuracy": "accuracy, %", "ece": "ECE"}
# The authors' code: rates and strengths, random signs, prior and annealing. Factors of BatchEnsemble start around 1, of
# rank-1 distributions at signs, whose heavy tails end at 10.
COMMON: dict[str, Any] = {
    "lr": 0.1, "factor_lr": 1.0, "schedule": "steps", "l2": 1e-4, "components": 4, "members": 4,
    "plain_l2": 2e-4, "plain_schedule": "early-steps", "dropout_lr": 0.05, "dropout_l2": 3e-4, "mfvi_l2": 4e-4,
    "batch_l2": 3e-4, "batch_factor_lr": 0.5, "batch_sign": 1.0, "batch_spread": 0.5,
    "random_sign": 0.5, "prior_std": 0.1, "prior_at": "one", "init_std": 0.0, "init_spread": 0.0, "norms": "shared",
    "clip": 10.0, "likelihood": "average", "kl": "mean", "anneal": 0.8, "dropout_rate": 0.1, "diversity": 0.0,
    "own_views": False, "average": 0.0, "warm_epochs": 0, "final_components": 0, "final_epochs": 0,
    "draws": (1, 4), "other_draws": 16, "held_out": 0,
}  # fmt: skip
SMOKE: dict[str, Any] = {
    "depth": 10, "width": 1, "epochs": 1, "batch_size": 24, "severities": (1, 5), "corruptions": ("contrast", "fog"),
    "fast": False, **COMMON, "components": 2, "members": 2, "draws": (1, 2), "other_draws": 2,
}  # fmt: skip
SHORT: dict[str, Any] = {
    "depth": 28, "width": 10, "epochs": 60, "batch_size": 128, "severities": (1, 2, 3, 4, 5), "corruptions": (),
    "fast": True, **COMMON,
}  # fmt: skip
PRESETS = {"smoke": SMOKE, "short": SHORT, "paper": SHORT | {"epochs": 250}}
SEEDS = {"smoke": (0,), "short": (0,), "paper": (0, 1, 2)}


def images(run: Run, name: str) -> Dataset:
    """CIFAR-10, or CIFAR-100 or what stands in for it; some training images held out where the settings say so.

    Args:
        run: The run.
        name: "cifar10" or "cifar100".
    """
    held_out = run.settings["held_out"]
    if name == "cifar100":
        return emp.hundred_images(run, held_out)
    rows = (96, 40) if run.preset == "smoke" else (10000, 2000)
    return run.load("cifar10", rows=rows, valid=held_out, normalise="standard")


def judged(run: Run, data: Dataset) -> tuple[Tensor, Tensor]:
    """The images that networks are judged on, as they take them: test images, or held-out training images."""
    return data.ready("valid" if run.settings["held_out"] else "test")


def training(settings: Mapping[str, Any], name: str) -> Training:
    """One of the networks of the tables; those of the second block have as many passes as a tiled training of K."""
    base, _, block = name.partition("-")
    family = _FAMILY.get(base, base)
    changes: dict[str, Any] = {"family": family, **own_settings(settings, family)}
    if base == "narrow":
        changes["width"] = max(1, settings["width"] // 2)
    if block:
        count = settings["components"]
        changes |= {"tile": False, "epochs": settings["epochs"] * count, "batch_size": settings["batch_size"] * count}
    found = of_settings(settings, **changes)
    return _in_stages(settings, found) if family in FACTORS else found


def own_settings(settings: Mapping[str, Any], family: str) -> dict[str, Any]:
    """What a family is trained with instead of the settings of rank-1 distributions."""
    return {field: settings[name] for field, name in _OWN.get(family, {}).items()}


def _in_stages(settings: Mapping[str, Any], t: Training) -> Training:
    """The same from a trained plain network, or with more components at the end, where the settings say so."""
    if settings["warm_epochs"]:
        own = own_settings(settings, "plain")
        plain = replace(t, family="plain", epochs=settings["warm_epochs"], average=0.0, **own)
        t = replace(t, start=plain)
    if settings["final_components"]:
        last = replace(t, components=settings["final_components"], epochs=settings["final_epochs"], start=t)
        t = replace(last, start=replace(t, average=0.0))
    return t


def decides(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What decides the scores of a network or ensemble of the tables: its training, and how it is judged."""
    # Settings that a former version did not have leave everything as it was.
    settings = COMMON | dict(settings)
    if not settings.keys() >= SHORT.keys():
        return settings
    t = training(settings, ENSEMBLES.get(name, name))
    judged = {key: settings[key] for key in ("fast", "held_out", "severities", "corruptions")}
    count = settings["members"] if name in ENSEMBLES else 1
    return judged | as_json({"training": dataclasses.asdict(t.essential()), "draws": _draws(settings, t), "of": count})


def deciding(piece: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same by the name that `pieces` gives: settings of other networks, or which ones there are, do not count."""
    return decides(settings, piece.partition("-")[2].rpartition("-seed")[0])


def members(run: Run, seed: int) -> list[int]:
    """Seeds of the networks of an ensemble; the first ensemble has the seeds from 0."""
    count = run.settings["members"]
    return list(range(seed * count, (seed + 1) * count))


def pieces(
    run: Run, names: Sequence[str], place: str, seeds: Sequence[int] | None = None
) -> dict[str, tuple[str, int, str]]:
    """The pieces of work for networks and ensembles: each network of an ensemble is one of its own, and comes first."""
    found: dict[str, tuple[str, int, str]] = {}
    for name in names:
        for seed in run.seeds if seeds is None else seeds:
            single = ENSEMBLES.get(name)
            for number in () if single is None else members(run, seed):
                found[f"{place}-{single}-seed{number}"] = (str(single), number, place)
            found[f"{place}-{name}-seed{seed}"] = (name, seed, place)
    return found


def scores(run: Run, name: str, seed: int, place: str) -> dict[str, Any]:
    """How a network or ensemble of the tables predicts clean images."""
    data = images(run, place)
    single = ENSEMBLES.get(name)
    if single is None:
        return scores_of(run, training(run.settings, name), seed, data)
    outputs = torch.cat([_kept_outputs(run, single, number, data, "clean") for number in members(run, seed)])
    _, y = judged(run, data)
    count = len(outputs)
    parameters = count * _count(run, single, data)
    return {"parameters": parameters, **_by_draws(outputs, y, count, (1,), 1)}


def scores_of(
    run: Run, t: Training, seed: int, data: Dataset, watch: Sequence[Callable[[EpochEnd], Any]] = ()
) -> dict[str, Any]:
    """How a network predicts clean images, by the number of draws of each component."""
    model, records = train(run, t, seed, data, watch=watch)
    x, y = judged(run, data)
    draws = _draws(run.settings, t)
    began = time.monotonic()
    outputs = predictions(run, model, x, t.essential().components * max(draws), seed, "clean").cpu()
    found = {
        "epochs": len(records),
        "seconds_per_epoch": statistics.median(record["seconds"] for record in records),
        "prediction_seconds": time.monotonic() - began,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "train_nll": records[-1]["nll"],
        "watched": [record["watched"] for record in records if "watched" in record],
    }
    if t.family == "plain":
        _keep(run, t, seed, data, "clean", outputs)
    return found | _by_draws(outputs, y, t.essential().components, draws, _judged_draws(run.settings, t))


def _draws(settings: Mapping[str, Any], t: Training) -> tuple[int, ...]:
    """Numbers of draws for each component that are compared; points need one."""
    if t.family in ("plain", "delta"):
        return (1,)
    return tuple(settings["draws"]) if t.family in FACTORS else (settings["other_draws"],)


def _judged_draws(settings: Mapping[str, Any], t: Training) -> int:
    """The number of draws by which a network is compared: as published, heavy-tailed factors are drawn repeatedly."""
    draws = _draws(settings, t)
    return draws[-1] if t.family in HEAVY else draws[0]


def draws_note(settings: Mapping[str, Any]) -> str:
    """By how many draws networks are compared."""
    counts = settings["draws"]
    return (
        f"draws that networks are compared by: {counts[0]} of each Gaussian component, {counts[-1]} of each Cauchy one "
        f"(published: 1 and 4), {settings['other_draws']} of dropout and mean-field networks (published: no number)"
    )


def _by_draws(outputs: Tensor, y: Tensor, components: int, draws: Sequence[int], judged: int) -> dict[str, Any]:
    """Scores by the number of draws for each component, and what components have in common."""
    found: dict[str, Any] = {"judged": str(judged), "draws": {}}
    for count in draws:
        found["draws"][str(count)] = quality(outputs[: components * count].float().softmax(-1).mean(0), y)
    probs = outputs[: components * draws[-1]].float().softmax(-1).mean(0)
    found["right"] = (probs.argmax(-1) == y).long().tolist()
    if components > 1:
        found["components"] = apart(outputs[:components].float().softmax(-1), y)
    return found


def apart(probs: Tensor, y: Tensor) -> dict[str, float]:
    """What single members ``[K, N, C]`` can do, and how often they disagree over how often they err."""
    single = [quality(each, y) for each in probs]
    return {
        "accuracy": statistics.fmean(one["accuracy"] for one in single),
        "nll": statistics.fmean(one["nll"] for one in single),
        "disagreement": float(metrics.disagreement(probs)),
        "diversity": float(metrics.normalised_disagreement(probs, y)),
    }


def quality(probs: Tensor, y: Tensor) -> dict[str, float]:
    """NLL, accuracy in percent, and ECE as a fraction, in 15 bins of which none is left out."""
    return {
        "nll": float(metrics.nll(probs, y)),
        "accuracy": 100 * float(metrics.accuracy(probs, y)),
        "ece": float(metrics.expected_calibration_error(probs, y, 15)),
    }


def predictions(run: Run, model: nn.Module, x: Tensor, samples: int, seed: int, purpose: str) -> Tensor:
    """Outputs ``[S, N, classes]``; compiling would take longer than the images do once."""
    with SeededRandom(derive(seed, purpose)):
        return emp.Predictor(run, model, samples, capture=False)(x)


def _keep(run: Run, t: Training, seed: int, data: Dataset, part: str, outputs: Tensor) -> None:
    """Keep the outputs of a network that ensembles have use for, so that they need not have the network itself."""
    path = _outputs_path(run, t, seed, data, part)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(outputs.half() if part != "clean" else outputs.float(), path)


def _outputs_path(run: Run, t: Training, seed: int, data: Dataset, part: str) -> Path:
    where = "held-out" if run.settings["held_out"] else "test"
    place = data.name.replace(" ", "-") + ("-generated" if run.generated else "")
    return run.folder / "outputs" / f"{place}-{where}-{t.key()}-seed{seed}-{part}.pt"


def _kept_outputs(run: Run, name: str, seed: int, data: Dataset, part: str) -> Tensor:
    t = training(run.settings, name)
    path = _outputs_path(run, t, seed, data, part)
    if not path.exists():
        if part == "clean":
            scores_of(run, t, seed, data)
        else:
            shift_of(run, t, seed, data)
    return torch.load(path, weights_only=True)


def _count(run: Run, name: str, data: Dataset) -> int:
    with torch.device("meta"):
        net = build(training(run.settings, name), len(data.class_names))
    return sum(parameter.numel() for parameter in net.parameters())


def shift_scores(run: Run, name: str, seed: int, place: str) -> dict[str, Any]:
    """How a network or ensemble predicts corrupted test images: by severity, one score for each corruption."""
    data = images(run, place)
    single = ENSEMBLES.get(name)
    if single is None:
        return shift_of(run, training(run.settings, name), seed, data)
    found = {}
    for severity in run.settings["severities"]:
        outputs = [_kept_outputs(run, single, number, data, _corrupted_part(severity)) for number in members(run, seed)]
        probs = torch.stack(outputs).float().softmax(-1).mean(0)  # [corruptions, N, C]
        found[str(severity)] = [quality(each, data.test.y) for each in probs]
    return found


def shift_of(
    run: Run, t: Training, seed: int, data: Dataset, watch: Sequence[Callable[[EpochEnd], Any]] = ()
) -> dict[str, Any]:
    """The same for any network."""
    if run.settings["held_out"]:
        raise ValueError("corrupted images are test images, which held_out keeps apart; leave it at 0 for this result")
    model, _ = train(run, t, seed, data, watch=watch)
    predict = emp.Predictor(run, model, t.essential().components * _judged_draws(run.settings, t))
    return {
        str(severity): _of_severity(run, t, seed, data, severity, predict) for severity in run.settings["severities"]
    }


def _of_severity(
    run: Run, t: Training, seed: int, data: Dataset, severity: int, predict: emp.Predictor
) -> list[dict[str, float]]:
    """Scores for each corruption; kept, so that a leg may end between two severities."""
    kinds = run.settings["corruptions"] or corruptions.NAMES
    about = as_json({"kinds": kinds, "samples": predict.samples, "fast": run.settings["fast"]})
    place = _outputs_path(run, t, seed, data, _corrupted_part(severity))
    before = read_json(place.with_suffix(".json")) or {}
    if before.get("about") == about:
        return before["scores"]
    run.check_time()
    scores, kept = [], []
    for kind in kinds:
        with SeededRandom(derive(seed, kind, severity)):
            outputs = predict(corrupted(data, kind, severity, predict.device)).cpu()
        scores.append(quality(outputs.float().softmax(-1).mean(0), data.test.y))
        if t.family == "plain":
            kept.append(outputs[0])
    if kept:
        _keep(run, t, seed, data, _corrupted_part(severity), torch.stack(kept))
    place.parent.mkdir(parents=True, exist_ok=True)
    write_json(place.with_suffix(".json"), {"about": about, "scores": scores})
    run.leg.worked = True
    return scores


def _corrupted_part(severity: int) -> str:
    """One file for each severity, since those of all are too large to be carried from machine to machine."""
    return f"corrupted-{severity}"


def over_corruptions(one: Mapping[str, Any], metric: str, severity: str | None = None) -> tuple[float, float]:
    """Mean and deviation over corruptions, at one severity or at all of them."""
    levels = one if severity is None else {severity: one[severity]}
    values = [score[metric] for level in levels.values() for score in level]
    return statistics.fmean(values), statistics.pstdev(values)


def at(one: Mapping[str, Any]) -> dict[str, float]:
    """The scores by which a network is compared."""
    return one["draws"][one["judged"]]


class Watch:
    """A callback that notes how the network predicts some of the judged images, as training goes on.

    Args:
        run: The run.
        t: The training.
        data: The images.
        seed: Of the draws.
    """

    def __init__(self, run: Run, t: Training, data: Dataset, seed: int) -> None:
        self.run, self.t, self.seed = run, t.essential(), seed
        x, y = judged(run, data)
        count = run.settings["watched"]
        self.x, self.y = x[:count], y[:count]

    def __call__(self, event: EpochEnd) -> None:
        """See `fit`."""
        device = next(event.model.parameters()).device
        with SeededRandom(derive(self.seed, "watch")), torch.no_grad():
            outputs = emp.Predictor(self.run, event.model, self.t.components, capture=False)(self.x.to(device)).cpu()
        probs = outputs.float().softmax(-1)
        event.record["watched"] = {
            "epoch": event.record["epoch"], "train_nll": event.record["nll"], **quality(probs.mean(0), self.y),
            "components": apart(probs, self.y) if len(probs) > 1 else None,
            "each": [quality(each, self.y)["nll"] for each in probs],
        }  # fmt: skip
