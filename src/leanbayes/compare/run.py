"""compare: every method on one data set, one result file that grows method by method."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from leanbayes._machine import device_name, versions
from leanbayes._summary import summary
from leanbayes.compare.checkpoint import ABOUT, as_json, finite, read_json, save_checkpoint, write_json
from leanbayes.compare.losses import guess_tests, paired_tests, write_losses
from leanbayes.compare.measure import LEVEL, constant_guess, guess_losses, measure_model, metric_names
from leanbayes.compare.presets import Preset, preset
from leanbayes.compare.presets import presets as presets_of
from leanbayes.compare.seen import Seen, fingerprint, identity
from leanbayes.compare.shifts import Evaluation, make_evaluation
from leanbayes.compare.threads import suitable_threads
from leanbayes.compare.train import (
    Budget,
    choose_augmentation,
    make_likelihood,
    make_model,
    train,
    train_and_valid_counts,
)
from leanbayes.data import Dataset, load
from leanbayes.data._normalise import Affine
from leanbayes.data.augment import Augmentation
from leanbayes.training.checkpoints import check_same_rows
from leanbayes.training.errors import OutputError
from leanbayes.training.files import BEST, LAST, REFIT, START, prepare_folder

RESULT = "compare.json"
_SEED_RESULT = "result.json"
# What a comparison that goes on must have in common with what was there.
_FIXED = (
    "data", "examples", "budget", "augment", "network", "heteroscedastic", "samples", "ood_name", "ood_rows",
)  # fmt: skip
_PER_SEED = ("train_seconds", "predict_ms_per_example")
# From the first seed alone: pictures of one network.
_FIRST_SEED = (
    "train_how", "best_epoch", "reliability", "calibration", "intervals", "entropy", "history", "examples",
)  # fmt: skip
_HISTORY = ("epoch", "loss", "nll", "kl", "valid_nll")

Watcher = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class _Job:
    """What all methods of one comparison share."""

    dataset: Dataset
    ood: Dataset | None
    evaluation: Evaluation
    budget: Budget
    augment: Augmentation | None
    seeds: tuple[int, ...]
    samples: int | Literal["auto"]
    network: str | None
    hidden: Sequence[int] | None
    device: str
    out: Path
    resume: bool
    progress: bool | None
    watch: Watcher
    heteroscedastic: bool

    @cached_property
    def seen(self) -> Seen:
        """What all models are trained on; takes a while for large data, so that it waits until one is saved."""
        return Seen.of(self.dataset)


def compare(
    data: str | os.PathLike[str] | Dataset,
    methods: Sequence[str | Preset] | None = None,
    config: Budget | str | int = "fast",
    *,
    seeds: Sequence[int] = (0,),
    samples: int | Literal["auto"] = 32,
    out: str | os.PathLike[str],
    device: str = "auto",
    resume: bool = False,
    network: str | None = None,
    hidden: Sequence[int] | None = None,
    augment: bool | None = None,
    ood: str | Dataset | None = None,
    command: str = "",
    progress: bool | None = None,
    watch: Watcher | None = None,
    heteroscedastic: bool = False,
) -> dict[str, Any]:
    """Train and measure methods on one data set with one budget.

    The result is written after every method, and what a seed took is kept as soon as it is done; a model that was
    trained stands in ``<out>/<method>/seed<n>``, where `load_checkpoint` finds it, beside the losses of its test
    examples. A method that fails is noted with
    its reason, and the others go on.

    Args:
        data: A data set, or what `leanbayes.data.load` takes.
        methods: Names of presets, or your own presets; None takes all twelve.
        config: The budget of every method: "fast", "normal", a number of epochs, or a `Budget`.
        seeds: One network per method and seed; the data and their parts stay the same.
        samples: Of every prediction; "auto" lets each one grow until its uncertainty settles.
        out: Folder for everything.
        device: "auto", "cpu" or "cuda".
        resume: Continue in a folder that holds a comparison of the same rows.
        network: Another network of `leanbayes.models`.
        hidden: Widths of a multilayer perceptron.
        augment: Crop and flip training images at random, for every method; None does so with colour images.
        ood: Data from elsewhere, or their name or file; generated where None.
        command: What to note as the command that was run.
        progress: Whether to show progress bars; None shows them on a terminal.
        watch: Called with "start" or "done" and a method's entry.
        heteroscedastic: Have the networks predict the noise of each row of a regression.

    Returns:
        The content of ``compare.json``.

    Raises:
        OutputError: If the folder cannot be written, or holds another comparison.
    """
    chosen = [method if isinstance(method, Preset) else preset(method) for method in methods or presets_of()]
    if not seeds or (samples != "auto" and samples < 1):
        raise ValueError("a comparison needs at least one seed and one sample")
    dataset = data if isinstance(data, Dataset) else load(data)
    chosen = [method.suited(dataset.inputs) for method in chosen]
    budget = Budget.of(config, len(dataset.train), schema=dataset.schema)
    augmentation = choose_augmentation(dataset, augment)
    folder = prepare_folder(out)
    other = ood if ood is None or isinstance(ood, Dataset) else load(ood)
    evaluation = make_evaluation(dataset, ood=other)
    job = _Job(
        dataset,
        other,
        evaluation,
        budget,
        augmentation,
        tuple(dict.fromkeys(seeds)),
        samples,
        network,
        hidden,
        device,
        folder,
        resume,
        progress,
        watch or (lambda event, entry: None),
        heteroscedastic,
    )
    make_likelihood(dataset, heteroscedastic)  # says where that is not possible
    plain = make_model(dataset, preset("plain"), 0, network, hidden, heteroscedastic, budget.thorough)
    with suitable_threads(plain):
        result = _header(job, plain, command)
        by_guess = guess_losses(*_guess_arguments(job))
        entries = {entry["name"]: entry for entry in _earlier(folder / RESULT, result, resume)}
        for method in chosen:
            job.watch("start", {"name": method.name, "title": method.title})
            entries[method.name] = _entry(job, method, result["settings"])
            result["methods"] = list(entries.values())
            done = [name for name, entry in entries.items() if entry["status"] == "done"]
            result["paired"] = paired_tests(folder, done, job.seeds, evaluation.groups)
            result["against_guess"] = guess_tests(folder, done, job.seeds, by_guess, evaluation.groups)
            write_json(folder / RESULT, result)
            job.watch("done", entries[method.name])
    return result


def _header(job: _Job, plain: nn.Module, command: str) -> dict[str, Any]:
    dataset, classes = job.dataset, job.dataset.task != "regression"
    settings = {
        "data": dataset.name,
        "rows": identity(dataset),
        "examples": [len(dataset.train), len(dataset.valid), len(dataset.test)],
        "budget": vars(job.budget),
        "augment": None if job.augment is None else repr(job.augment),
        "network": getattr(plain, "leanbayes_config", None),
        "heteroscedastic": job.heteroscedastic,
        "samples": job.samples,
        "ood_name": job.evaluation.ood_name,
        "ood_rows": None if job.ood is None else fingerprint(job.ood),
    }
    return {
        "id": "compare",
        "data": dataset.name,
        "task": "classification" if classes else "regression",
        "command": command,
        "device": device_name(job.device),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": versions(),
        "seeds": list(job.seeds),
        "samples": job.samples,
        "classes": list(dataset.class_names),
        "level": LEVEL,
        "metrics": list(metric_names(make_likelihood(dataset))),
        "shift": job.evaluation.shift,
        "notes": [*dataset.notes, *job.evaluation.notes],
        "examples": _counts(job),
        "guess": constant_guess(*_guess_arguments(job)),
        "settings": settings,
        "methods": [],
        "paired": [],
        "against_guess": [],
    }


def _counts(job: _Job) -> dict[str, int]:
    """How many examples the figures stand on."""
    dataset, shifted = job.dataset, job.evaluation.corrupted
    train, valid = train_and_valid_counts(dataset)
    counts = {"train": train, "valid": valid, "test": len(job.evaluation.y)}
    if job.evaluation.groups is not None:
        counts["test_groups"] = len(job.evaluation.groups.unique())
    if shifted:
        counts["corrupted"] = len(next(iter(shifted.values()))[1])
    return counts if job.evaluation.ood is None else counts | {"ood": len(job.evaluation.ood)}


def _guess_arguments(job: _Job) -> tuple[Tensor, Tensor, int, Affine | None]:
    targets = job.dataset.normalisation.scale_targets(job.dataset.train.y)
    return targets, job.evaluation.y, job.dataset.classes or 0, job.dataset.normalisation.targets


def _earlier(path: Path, result: dict[str, Any], resume: bool) -> list[dict[str, Any]]:
    """The methods that the folder has; one with a comparison that this one does not continue is refused."""
    if not path.exists() and (path.parent / ABOUT).exists():
        raise OutputError(f"{path.parent} holds a model that was trained alone; choose another folder for a comparison")
    if not path.exists():
        return []
    if not resume:
        raise OutputError(
            f"{path.parent} already holds a comparison; pass resume=True to continue, or choose another folder"
        )
    before = read_json(path)
    settings = {} if before is None else before.get("settings", {})
    _check_rows(path.parent, settings, result["settings"])
    for name in _FIXED:
        if settings.get(name) != as_json(result["settings"][name]):
            raise OutputError(
                f"the comparison in {path.parent} has a different value for {name.split('_')[0]} "
                f"({_short(settings.get(name))} instead of {_short(result['settings'][name])}); choose another folder"
            )
    assert before is not None
    return before.get("methods", [])


def _check_rows(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise where figures that a folder holds are of other rows, or may be."""
    check_same_rows(f"the comparison in {folder}", before.get("rows"), as_json(now["rows"]))


def _entry(job: _Job, method: Preset, settings: dict[str, Any]) -> dict[str, Any]:
    """One method over all seeds; a failure is part of the result, except where nothing can be written."""
    entry: dict[str, Any] = {
        "name": method.name,
        "title": method.title,
        "method": repr(method.method) if method.method else "plain",
    }
    entry |= {
        "kl_weight": job.budget.kl_weight(method),
        "metrics": {},
        "corrupted": {},
        "status": "done",
        "error": None,
    }
    try:
        runs = [_seed(job, method, seed, settings) for seed in job.seeds]
    except OSError:
        raise
    except (ValueError, TypeError, RuntimeError, ArithmeticError, NotImplementedError) as error:
        return entry | {"status": "failed", "error": _short(f"{type(error).__name__}: {error}", 300)}
    return entry | _join(runs)


def _seed(job: _Job, method: Preset, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Figures of one network: those of the folder where it is done already, else from training it."""
    folder = job.out / method.name / f"seed{seed}"
    # A preset that was changed is another method.
    about = as_json({"settings": settings, "preset": repr(replace(method, where=None))})
    done = read_json(folder / _SEED_RESULT) if job.resume else None
    if done is not None:
        _check_rows(job.out, done.get("about", {}).get("settings", {}), settings)
        if done.get("about") == about:
            return done
    config = job.budget.config(method, seed, job.device)
    model = make_model(job.dataset, method, seed, job.network, job.hidden, job.heteroscedastic, job.budget.thorough)
    likelihood, history = train(
        model, job.dataset, config, out=folder, resume=job.resume, progress=job.progress, augment=job.augment,
        heteroscedastic=job.heteroscedastic,
    )  # fmt: skip
    counts = summary(model)
    run: dict[str, Any] = {
        "about": about,
        "parameters": counts.parameters,
        "plain_parameters": counts.plain_parameters,
        "overhead": counts.overhead,
        "train_seconds": history.seconds + (history.refit.seconds if history.refit else 0.0),
        "train_how": history.how,
        "best_epoch": history.best.get("epoch", len(history)),
        "history": [{name: record[name] for name in _HISTORY if name in record} for record in history.records],
    }
    model.eval()
    figures, losses = measure_model(
        model, likelihood, job.evaluation, job.samples, job.dataset.normalisation.targets, job.dataset.class_names
    )
    run = finite(run | figures)
    save_checkpoint(
        folder, model, likelihood, job.dataset.schema, data=job.dataset.name, method=method.name, seed=seed,
        samples=job.samples, augment=settings["augment"], seen=job.seen,
    )  # fmt: skip
    write_losses(folder, losses)
    write_json(folder / _SEED_RESULT, run)
    # The model is saved; what training needed to go on is not needed any more.
    for name in (LAST, BEST, START):
        (folder / name).unlink(missing_ok=True)
        (folder / REFIT / name).unlink(missing_ok=True)
    return run


def _join(runs: list[dict[str, Any]]) -> dict[str, Any]:
    first = runs[0]
    joined: dict[str, Any] = {name: first[name] for name in ("parameters", "plain_parameters", "overhead")}
    joined |= {name: [run[name] for run in runs] for name in _PER_SEED}
    joined["metrics"] = _lists([run["metrics"] for run in runs])
    joined["corrupted"] = {s: _lists([run["corrupted"][s] for run in runs]) for s in first["corrupted"]}
    if "ood" in first:
        keys = [key for key in first["ood"] if key != "name" and all(key in run["ood"] for run in runs)]
        scores = _lists([{key: run["ood"][key] for key in keys} for run in runs])
        joined["ood"] = {"name": first["ood"]["name"], **scores}
    return joined | {name: first[name] for name in _FIRST_SEED if name in first}


def _lists(values: list[dict[str, float]]) -> dict[str, list[float]]:
    return {name: [value[name] for value in values] for name in values[0]}


def _short(value: Any, most: int = 80) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 3] + "..."
