"""board-networks: every method of `leanbayes compare` on images and text, and last-layer Laplace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean
from typing import Any

import torch
from torch import Tensor

from leanbayes.bench.peers.adapter import NotInstalled
from leanbayes.board.calibration import Calibration, calibration_test
from leanbayes.board.networks import (
    BASELINES,
    DROPOUT,
    ENSEMBLE,
    LAPLACE,
    LEAN,
    METRICS,
    PLAIN,
    TITLES,
    Conditions,
    scores,
)
from leanbayes.board.summary import mean_of, ranks
from leanbayes.compare import PRESETS
from leanbayes.metrics.functional import paired_test
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes._checks import at_least
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

SETS = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "imdb": "IMDB"}
_GENERATED_ROWS = (60, 30)
# What is measured, and whether more is better; None for what is no contest.
_HIGHER = {"nll": False, "accuracy": True, "ece": False, "seconds": False, "parameters": None, "overhead": None}
_UNITS = {"nll": "NLL, nats", "ece": "ECE", "seconds": "training, s"}
# The set that is judged, what the plain network must reach there, and the share of the ensemble's gain in NLL.
_JUDGED, _ACCURACY, _SHARE = "cifar10", 94.0, 0.6
_LEVEL = 0.05
# Times the NLL of the plain network that the picture goes to.
_SHOWN = 1.5


def measure(run: Run) -> Outcome:
    """Train every method on every set, and test it against the baselines."""
    s = run.settings
    names = [name for name in TITLES if name in s["methods"]]
    pieces = {
        f"{place}-{name}-seed{seed}": (place, name, seed) for place in s["sets"] for name in names for seed in run.seeds
    }
    done = run.units(_scores, pieces)
    found = {place: _complete(run, done, place, names) for place in s["sets"]}
    board = {
        metric: {
            name: {place: [one[metric] for one in found[place].get(name, [])] or None for place in found}
            for name in names
        }
        for metric in _HIGHER
    }
    paired = {place: _paired(of) for place, of in found.items()}
    lean = {place: _lean(of, paired[place]) for place, of in found.items()}
    figure = {
        "titles": {name: TITLES[name] for name in names},
        "sets": {place: SETS.get(place, place) for place in found},
        "networks": {place: of[PLAIN][0]["network"] for place, of in found.items() if PLAIN in of},
        "means": {m: {n: {p: mean_of(v) for p, v in of.items()} for n, of in by.items()} for m, by in board.items()},
        "paired": paired,
        "lean": lean,
    }
    return Outcome(_rows(board, list(found)), _checks(found, lean), figure, _notes(run, found))


def _scores(run: Run, place: str, name: str, seed: int) -> dict[str, Any]:
    """One method on one set; the models stay in the work folder, where a later leg finds them."""
    s = run.settings
    dataset = run.load(place, rows=_GENERATED_ROWS)
    folder = run.folder / "board-networks" / f"{place}-{s['budget']}-seed{seed}{'-generated' if run.generated else ''}"
    given = Conditions(s["budget"], s["samples"], seed, run.device, folder, run.progress)
    try:
        return scores(dataset, name, given)
    except NotInstalled as error:
        return {"missing": str(error)}


def _complete(run: Run, done: Mapping[str, Any], place: str, names: Sequence[str]) -> dict[str, list[Any]]:
    """By method, one record per seed; methods that lack one are noted and left out."""
    found = {name: [done[f"{place}-{name}-seed{seed}"] for seed in run.seeds] for name in names}
    for name, ones in found.items():
        for one in ones:
            if "missing" in one:
                run.note(f"{TITLES[name]} was not run: {one['missing']}")
            if "failed" in one:
                run.note(f"{TITLES[name]} failed on {SETS.get(place, place)}: {one['failed']}")
    return {name: ones for name, ones in found.items() if all("nll" in one for one in ones)}


def _stacked(ones: Sequence[Mapping[str, Any]], name: str) -> Tensor:
    """Values of single examples ``[S, N]``."""
    return torch.tensor([one["examples"][name] for one in ones], dtype=torch.float64)


def _paired(found: Mapping[str, Any]) -> dict[str, Any]:
    """By method and baseline the differences on the same examples, and how many standard errors they are."""
    nll, right, confidence = (
        {name: _stacked(ones, kind) for name, ones in found.items()} for kind in ("nll", "right", "confidence")
    )
    errors = {name: Calibration.of(confidence[name], right[name]) for name in found}
    tests: dict[str, Any] = {name: {} for name in found}
    for name in found:
        for other in (one for one in BASELINES if one != name and one in found):
            pairs = {
                "nll": paired_test(nll[name], nll[other]),
                "accuracy": paired_test(right[name], right[other]),
                "ece": calibration_test(errors[name], errors[other]),
            }
            tests[name][other] = {m: {"difference": float(t.difference), "z": float(t.z)} for m, t in pairs.items()}
    return tests


def _lean(found: Mapping[str, Any], tests: Mapping[str, Any]) -> dict[str, Any]:
    """Of every method with few parameters, what it is clearly no better than, and its share of the ensemble's gain."""
    if any(name not in found for name in BASELINES):
        return {}
    names = [n for n, ones in found.items() if n not in (*BASELINES, LAPLACE) and ones[0]["overhead"] <= LEAN]
    limit = NormalDist().inv_cdf(1 - _LEVEL / 2 / max(1, len(names)))
    nll = {name: fmean(one["nll"] for one in ones) for name, ones in found.items()}
    gain = nll[PLAIN] - nll[ENSEMBLE]
    return {
        name: {
            "share": (nll[PLAIN] - nll[name]) / gain if gain > 0 else None,
            "unclear": [
                [metric, other]
                for other in (PLAIN, DROPOUT)
                for metric in ("nll", "ece")
                if tests[name][other][metric]["z"] > -limit
            ],
        }
        for name in sorted(names, key=nll.__getitem__)
    }


def _rows(board: Mapping[str, Any], places: Sequence[str]) -> list[Row]:
    """Ranks over the sets, and how good each method is on each set; what it costs is in the figure."""
    rows = []
    for metric, higher in _HIGHER.items():
        found = {} if higher is None else ranks(board[metric], places, higher)
        for name, (rank, count, firsts) in sorted(found.items(), key=lambda item: item[1][0]):
            text = f"{_UNITS.get(metric, metric)}: mean rank (0 first, 1 last) on {count} sets, {firsts} won"
            rows.append(Row(TITLES[name], text, None, [rank]))
    for place in places:
        for name, title in TITLES.items():
            for metric in METRICS:
                values = board[metric].get(name, {}).get(place)
                if values:
                    rows.append(Row(f"{SETS.get(place, place)}: {title}", _UNITS.get(metric, metric), None, values))
    return rows


def _checks(found: Mapping[str, Mapping[str, Any]], lean: Mapping[str, Any]) -> list[Check]:
    absent = [
        f"{PRESETS[name].title} on {title}" for place, title in SETS.items() for name in PRESETS
        if name not in found.get(place, {})
    ]  # fmt: skip
    text = f"every method of `leanbayes compare` is trained on {', '.join(SETS.values())}"
    checks = [Check(text, not absent, f"without a figure: {', '.join(absent)}")]
    if PLAIN in found.get(_JUDGED, {}):
        values = [100 * one["accuracy"] for one in found[_JUDGED][PLAIN]]
        checks.append(at_least(f"{SETS[_JUDGED]}: accuracy of the plain network", values, _ACCURACY, " %"))
    if lean.get(_JUDGED):
        checks.append(_lean_check(lean[_JUDGED]))
    return checks


def _lean_check(lean: Mapping[str, Any]) -> Check:
    good = [n for n, one in lean.items() if not one["unclear"] and one["share"] is not None and one["share"] >= _SHARE]
    claim = (
        f"{SETS[_JUDGED]}: a method of at most {LEAN} times the parameters has an NLL and an ECE clearly below those "
        f"of the plain network and MC dropout, and {_SHARE:.0%} of the NLL that the ensemble gains"
    )
    name, best = next(iter(lean.items()))
    share = "no gain to share" if best["share"] is None else f"{best['share']:.0%} of the gain"
    unclear = ", ".join(f"{metric.upper()} against {TITLES[other]}" for metric, other in best["unclear"])
    not_clear = f", not clearly better: {unclear}" if unclear else ""
    return Check(claim, bool(good), f"{TITLES[name]}, the best of them by NLL: {share}{not_clear}")


def _notes(run: Run, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    s = run.settings
    plain = {SETS.get(place, place): of[PLAIN][0]["network"] for place, of in found.items() if PLAIN in of}
    networks = ", ".join(f"{title} {network}" for title, network in plain.items())
    return [
        f"trained as by `leanbayes compare SET --budget {s['budget']}`, {s['samples']} samples; networks: {networks}",
        "clearly better: by a paired test over the test examples at the level of 5 %, corrected for the number of lean "
        "methods; of the ECE by 500 resamples of the examples",
        "Laplace is fitted to the training examples of the plain network, with the library's defaults; its parameters "
        "are counted without the factors of its covariance, its seconds with those of the plain network",
    ]


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """NLL of all methods on each set, with those of the plain network and the ensemble as lines; arrows are far off."""
    sets, means = figure["sets"], figure["means"]["nll"]
    board = {name: {p: None if v is None else [v] for p, v in by.items()} for name, by in means.items()}
    places = ranks(board, list(sets), higher=False)
    order = sorted(places, key=lambda name: -places[name][0])
    panels = canvas.subplots(1, len(sets), sharey=True, squeeze=False)[0]
    for axes, (place, title) in zip(panels, sets.items()):
        for name, colour in ((PLAIN, "#868e96"), (ENSEMBLE, "#212529")):
            if means.get(name, {}).get(place) is not None:
                axes.axvline(means[name][place], color=colour, linewidth=0.8, linestyle="--")
        most = _SHOWN * (means.get(PLAIN, {}).get(place) or float("inf"))
        for number, name in enumerate(order):
            value = means[name][place]
            if value is not None:
                axes.scatter(min(value, most), number, s=24, color="#3b5bdb", marker=">" if value > most else "o")
        axes.set_title(title)
        axes.set_xlabel("NLL, nats")
    panels[0].set_yticks(range(len(order)), [figure["titles"][name] for name in order], fontsize=8)


_FULL = {"sets": tuple(SETS), "methods": tuple(TITLES), "budget": "normal", "samples": 32}
register(
    Recipe(
        id="board-networks",
        title="Every method of `leanbayes compare` on images and text, and last-layer Laplace",
        presets={
            "smoke": _FULL | {"methods": (*BASELINES, "rank1", LAPLACE), "budget": "1", "samples": 2},
            "short": _FULL,
            "paper": _FULL,
        },
        seeds={"smoke": (0,), "short": (0,), "paper": (0, 1, 2)},
        measure=measure,
        draw=draw,
    )
)
