"""r1-beyond: settings of rank-1 networks that no paper has tried, chosen on held-out training images."""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _r1_networks as r1
from leanbayes.reproduce.recipes._checks import at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

# Changes of the settings, each with the network that it concerns. The first is as published.
CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "published": ("normal", {}),
    "prior at the signs": ("normal", {"prior_at": "start"}),
    "fewer signs": ("normal", {"random_sign": 0.75, "prior_at": "start"}),
    "spread": ("normal", {"random_sign": 1.0, "init_spread": 0.5, "prior_std": 0.5}),
    "norms of each component": ("normal", {"prior_at": "start", "norms": "component"}),
    "slow factors": ("normal", {"prior_at": "start", "factor_lr": 0.1}),
    "fast factors": ("normal", {"prior_at": "start", "factor_lr": 4.0}),
    "own norms, fast factors": ("normal", {"prior_at": "start", "norms": "component", "factor_lr": 4.0}),
    "diversity": ("normal", {"prior_at": "start", "diversity": 0.1}),
    "own views": ("normal", {"prior_at": "start", "own_views": True}),
    "averaged": ("normal", {"prior_at": "start", "average": 0.2, "schedule": "linear"}),
    "warm start": ("normal", {"random_sign": 1.0, "init_spread": 0.3, "prior_std": 0.3, "warm_share": 0.5}),
    "per example": ("normal-example", {"prior_at": "start"}),
    "per example, spread": ("normal-example", {"random_sign": 1.0, "init_spread": 0.5, "prior_std": 0.5}),
    "more components at the end": ("normal", {"prior_at": "start", "grown": 2, "final_share": 0.2}),
}
# The published ensemble of four.
_NLL, _ECE, _PARAMETERS = 0.114, 0.010, 1.02


def changed(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings that a candidate changes, with shares of the run as epochs, so that all have one budget."""
    changes = dict(CANDIDATES[name][1])
    epochs = settings["epochs"]
    if "warm_share" in changes:
        # A plain epoch costs what one component of a tiled epoch does.
        spared = max(1, round(changes.pop("warm_share") * epochs))
        changes |= {"warm_epochs": spared * settings["components"], "epochs": max(1, epochs - spared)}
    if "grown" in changes:
        factor = changes.pop("grown")
        last = max(1, round(changes.pop("final_share") * epochs))
        left = max(1, epochs - factor * last)
        count = factor * settings["components"]
        changes |= {"final_components": count, "final_epochs": last, "epochs": left, "init_spread": 0.1}
    return changes


def measure(run: Run) -> Outcome:
    """Try the candidates on held-out training images, and train the best on all of them, beside the ensemble."""
    s = run.settings
    r1.images(run.changed(held_out=0), "cifar10")  # what it says of the data stands first
    names = list(s["candidates"])
    unknown = [name for name in names if name not in CANDIDATES]
    if unknown:
        raise ValueError(f"candidates has no {unknown[0]!r}; it has {', '.join(CANDIDATES)}")
    own = run.decided_by(_deciding)
    tried = own.units(trial, {f"trial-{_word(name)}": (name,) for name in names})
    found = {name: tried[f"trial-{_word(name)}"] for name in names}
    failed = {name: found.pop(name)["failed"] for name in names if "failed" in found[name]}
    if not found:
        raise FloatingPointError(f"no candidate could be trained: {failed}")
    best = min(found, key=lambda name: r1.at(found[name])["nll"])
    rows = [
        row
        for name, one in found.items()
        for row in Row.by_metric(f"{name}, held-out images", r1.METRICS, [r1.at(one)])
    ]
    winners = list(own.units(test, {f"test-{_word(best)}-seed{seed}": (best, seed) for seed in run.seeds}).values())
    # Those of the table, which is trained with the same settings.
    others = run.changed(held_out=0).as_recipe("r1-cifar10").decided_by(r1.deciding)
    done = others.units(r1.scores, r1.pieces(run, ("deterministic", "ensemble"), "cifar10", (0,)))
    plain, ensemble = (done[f"cifar10-{name}-seed0"] for name in ("deterministic", "ensemble"))
    for title, ones in ((f"best: {best}", winners), ("deterministic", [plain]), ("ensemble", [ensemble])):
        rows += Row.by_metric(title, r1.METRICS, [r1.at(one) for one in ones])
    share = [one["parameters"] / plain["parameters"] for one in winners]
    rows.append(Row(f"best: {best}", "parameters over those of the plain network", None, share))
    scores = [r1.at(one) for one in winners]
    checks = [
        at_most("NLL of the best less that of the ensemble", [a["nll"] - r1.at(ensemble)["nll"] for a in scores], 0.0),
        at_most("NLL of the best", [one["nll"] for one in scores], _NLL),
        at_most("ECE of the best", [one["ece"] for one in scores], _ECE),
        at_most("parameters of the best over those of the plain network", share, _PARAMETERS),
    ]
    figure = {name: {key: r1.at(one)[key] for key in r1.METRICS} for name, one in found.items()}
    settings = ", ".join(f"{key}={value}" for key, value in CANDIDATES[best][1].items()) or "as published"
    notes = [
        f"chosen on {s['held_out']} held-out training images by the NLL of WRN-{s['trial_depth']}-{s['trial_width']} "
        f"among {len(found)} candidates: {best} ({settings})",
        f"WRN-{s['depth']}-{s['width']}, {s['epochs']} tiled epochs or as many passes; limits are those of the "
        "published ensemble of four WRN-28-10",
        *(f"{name}: {why}" for name, why in failed.items()),
    ]
    return Outcome(rows, checks, figure, notes)


def trial(run: Run, name: str) -> dict[str, Any]:
    """How a candidate, trained on most training images, predicts the others; what diverges is out of the search."""
    try:
        return r1.scores(run.changed(**_of_trial(run.settings, name)), CANDIDATES[name][0], 0, "cifar10")
    except FloatingPointError as error:
        return {"failed": str(error)}


def test(run: Run, name: str, seed: int) -> dict[str, Any]:
    """How a candidate, trained on all training images, predicts the test images."""
    return r1.scores(run.changed(**_of_test(run.settings, name)), CANDIDATES[name][0], seed, "cifar10")


def _of_trial(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"depth": settings["trial_depth"], "width": settings["trial_width"], **changed(settings, name)}


def _of_test(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"held_out": 0, **changed(settings, name)}


def _word(name: str) -> str:
    """A candidate in the name of a piece of work."""
    return re.sub(r"\W+", "-", name)


def _deciding(piece: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings that decide a trial or test: other candidates do not count."""
    kind, _, rest = piece.partition("-")
    names = {_word(name): name for name in CANDIDATES}
    name = names.get(rest if kind == "trial" else rest.rpartition("-seed")[0])
    if name is None or "trial_depth" not in settings:
        return settings
    changes = _of_trial if kind == "trial" else _of_test
    return r1.decides({**settings, **changes(settings, name)}, CANDIDATES[name][0])


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """NLL of the candidates on held-out images, the best one first."""
    names = sorted(figure, key=lambda name: figure[name]["nll"])
    axes = canvas.subplots()
    axes.barh(names, [figure[name]["nll"] for name in names], color="#3b5bdb")
    axes.axvline(fmean(figure[name]["nll"] for name in names), color="#ced4da", zorder=0)
    axes.set_xlabel("NLL of held-out training images, nats")
    axes.invert_yaxis()


_SMOKE = {
    "held_out": 24, "trial_depth": 10, "trial_width": 1,
    "candidates": ("published", "own views", "averaged", "warm start", "more components at the end"),
}  # fmt: skip
# All candidates on a smaller network cost about as much as one on WRN-28-10.
_SEARCH = {"held_out": 5000, "trial_depth": 16, "trial_width": 4, "candidates": tuple(CANDIDATES)}
register(
    Recipe(
        id="r1-beyond",
        title="Rank-1 networks beyond the paper: what closes the gap to the ensemble at 1.02 times the parameters",
        presets={name: values | (_SMOKE if name == "smoke" else _SEARCH) for name, values in r1.PRESETS.items()},
        seeds={"smoke": (0,), "short": (0, 1, 2), "paper": (0, 1, 2)},
        measure=measure,
        draw=draw,
    )
)
