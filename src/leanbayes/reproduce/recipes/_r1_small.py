"""What the studies of single choices have in common: a smaller wide ResNet on CIFAR-10, clean and corrupted images."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from leanbayes.bench.contenders import Contender
from leanbayes.compare.checkpoint import as_json
from leanbayes.reproduce.recipes import _r1_networks as r1
from leanbayes.reproduce.recipes import _steptime as steptime
from leanbayes.reproduce.recipes._r1_training import Training, build, method, of_settings
from leanbayes.reproduce.result import Row
from leanbayes.reproduce.run import Run

PRESETS = {
    "smoke": r1.SMOKE | {"watched": 20, "corruptions": ("contrast",), "severities": (3,)},
    "short": r1.SHORT | {"depth": 16, "width": 4, "watched": 2000},
    "paper": r1.SHORT | {"epochs": 250, "watched": 10000},
}
SEEDS = {"smoke": (0,), "short": (0, 1, 2), "paper": (0, 1, 2)}
CORRUPTED, TIME = "corrupted", "time"
_CLASSES = 10


def training(settings: Mapping[str, Any], **changes: Any) -> Training:
    """A rank-1 network by the settings, Gaussian unless changes say otherwise."""
    family = changes.get("family", "normal")
    return of_settings(settings, **({"family": family} | r1.own_settings(settings, family) | changes))


def per_example(settings: Mapping[str, Any], **changes: Any) -> Training:
    """The same with one component for each example, at the cost of a tiled training of the settings' components."""
    count = settings["components"]
    own = {"tile": False, "epochs": settings["epochs"] * count, "batch_size": settings["batch_size"] * count}
    return training(settings, **(own | changes))


def scores(run: Run, t: Training, seed: int, shifted: bool) -> dict[str, Any]:
    """How a network predicts clean and, on demand, corrupted images; of a tiled training, with its course."""
    data = r1.images(run, "cifar10")
    # No figure shows the others, whose many short epochs take less time than to watch them.
    watch = [r1.Watch(run, t, data, seed)] if t.tile else []
    found = r1.scores_of(run, t, seed, data, watch)
    return found | ({CORRUPTED: r1.shift_of(run, t, seed, data, watch)} if shifted else {})


def measured(
    run: Run,
    trainings: Mapping[str, Training],
    *,
    shifted: bool = True,
    timed: Training | None = None,
    fragile: Collection[str] = (),
) -> dict[str, list[dict[str, Any]]]:
    """Scores of several networks for each seed; what recipes have in common is trained once.

    Args:
        run: The run.
        trainings: What to train, by name.
        shifted: Whether to predict corrupted images, too.
        timed: Also take the time of its steps beside those of the plain network, under "time".
        fragile: Names of networks that may diverge; the result says so, and does without them.
    """
    names = {name: re.sub(r"\W+", "-", name) for name in trainings}
    todo = {
        f"{names[name]}-seed{seed}": (t, seed, shifted, name in fragile)
        for name, t in trainings.items()
        for seed in run.seeds
    }
    time = {} if timed is None else {TIME: (timed, None, False, False)}
    done = run.decided_by(_deciding).units(_piece, todo | time, alone=time)
    found = {name: [done[f"{each}-seed{seed}"] for seed in run.seeds] for name, each in names.items()}
    for name, one in [(name, one) for name, ones in found.items() for one in ones if "failed" in one]:
        run.note(f"{name}: {one['failed']}")
        found.pop(name, None)
    return found | {name: [done[name]] for name in time}


def _deciding(piece: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings; those that a former version did not have leave everything as it was."""
    return as_json(r1.COMMON) | dict(settings)


def _piece(run: Run, t: Training, seed: int | None, shifted: bool, fragile: bool) -> dict[str, Any]:
    if seed is None:
        return step_time(run, t)
    try:
        return scores(run, t, seed, shifted)
    except FloatingPointError as error:
        if not fragile:
            raise
        return {"failed": str(error)}


def step_time(run: Run, t: Training) -> dict[str, Any]:
    """The time of a training step of a rank-1 network beside that of the plain one on as many images."""
    plain = replace(t, family="plain")
    network = steptime.image_network("wide_resnet", lambda: build(plain, _CLASSES), _CLASSES)
    return steptime.step_time(run, network, Contender(t.family, method(t), tile=t.tile), t.batch_size)


def rows(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Row]:
    """NLL, accuracy and ECE of clean and corrupted images, of as many draws each."""
    made = []
    for name, ones in found.items():
        for key, text in r1.METRICS.items():
            made.append(Row(name, text, None, [r1.at(one)[key] for one in ones]))
            if CORRUPTED in ones[0]:
                values = [r1.over_corruptions(one[CORRUPTED], key)[0] for one in ones]
                made.append(Row(f"{name}, corrupted", text, None, values))
    return made


def note(run: Run) -> str:
    """Which network carries the study."""
    s = run.settings
    return (
        f"WRN-{s['depth']}-{s['width']} (published: WRN-28-10), {s['epochs']} epochs of batches of {s['batch_size']}, "
        f"random signs {s['random_sign']:g}, prior std {s['prior_std']:g}"
    )
