"""emp-finetune: patches of a trained network, tuned alone in a tenth of its training time; no paper shows this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from leanbayes import corruptions
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _emp_finetune as tune
from leanbayes.reproduce.recipes._checks import at_most, no_less_accurate, paired_z
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

Found = Mapping[str, Sequence[Mapping[str, Any]]]

# What is compared: the network, whether its predictions are as they are or at a temperature, and a colour.
SHOWN = {
    "as trained": ("trained", "own", "#868e96"),
    "temperature": ("trained", "scaled", "#d9480f"),
    "patched, not tuned": ("patched", "own", "#ced4da"),
    "patches tuned on images of the training": ("known", "own", "#91a7ff"),
    "a single copy tuned": ("single", "own", "#f08c00"),
    "patches tuned": ("tuned", "own", "#3b5bdb"),
    "patches tuned, temperature": ("tuned", "scaled", "#1098ad"),
    "patched from scratch": ("scratch", "own", "#2b8a3e"),
}
_SCORES: dict[str, Callable[..., dict[str, Any]]] = {
    "trained": tune.trained_scores,
    "patched": tune.patched_scores,
    "known": tune.tuned_scores,
    "single": tune.tuned_scores,
    "tuned": tune.tuned_scores,
    "scratch": tune.scratch_scores,
}
_METRICS = {"top1": "top-1, %", "ece": "ECE, %", "nll": "NLL, nats"}
_SHARE = "time, % of that of training"
# Of the trained network's calibration error, and of its training time.
_CALIBRATION, _TIME = 0.5, 0.1
# How many standard errors less accurate on held-out images a way to tune may be.
_TOLERATED = 1.0


def measure(run: Run) -> Outcome:
    """Choose on held-out training images how to tune, and compare what was chosen on the test images."""
    tune.images(run)
    ways = tune.grid(run.settings)
    tried = _try(run, ways)
    chosen = {seed: choose(ways, ones) for seed, ones in tried.items()}
    found = _on_test_images(run, chosen)
    severities = [str(severity) for severity in run.settings["severities"]]
    rows = []
    for title, (network, kind, _) in SHOWN.items():
        for text, places in (("", [tune.CLEAN]), (", corrupted images", severities)):
            means = [_means(one, kind, places) for one in found[network]]
            rows += [Row(title, name + text, None, [mean[key] for mean in means]) for key, name in _METRICS.items()]
    before, after = found["trained"], found["tuned"]
    share = [one["share"] for one in after]
    rows.append(Row("patches tuned", _SHARE, None, [100 * value for value in share]))
    all_ways = [100 * sum(one["share"] for one in ones[1:]) for ones in tried.values()]
    rows.append(Row(f"all {len(ways)} ways to tune", _SHARE, None, all_ways))
    figure = {"severity": [tune.CLEAN, *severities], "ece": _curves(found, [tune.CLEAN, *severities])}
    return Outcome(rows, _checks(before, after, share), figure, _notes(run, list(chosen.values()), before))


def _try(run: Run, ways: Sequence[tune.Tuning]) -> dict[int, list[dict[str, Any]]]:
    """For each seed, scores on held-out images: of the network as trained, then of every way to tune it."""
    names = {seed: {f"choice-{way or 'plain'}-seed{seed}": way for way in (None, *ways)} for seed in run.seeds}
    done = run.units(tune.choice_scores, {name: (way, seed) for seed, of in names.items() for name, way in of.items()})
    return {seed: [done[name] for name in of] for seed, of in names.items()}


def choose(ways: Sequence[tune.Tuning], scores: Sequence[Mapping[str, Any]]) -> tune.Tuning:
    """The way with the best likelihood, of those that are as accurate as the network was, else of all.

    Args:
        ways: To tune.
        scores: On held-out images; first of the network as trained, then of every way.
    """
    plain, *each = scores
    pairs = list(zip(ways, each, strict=True))
    accurate = [pair for pair in pairs if paired_z(pair[1]["right"], plain["right"]) >= -_TOLERATED]
    return min(accurate or pairs, key=lambda pair: pair[1]["nll"])[0]


def _on_test_images(run: Run, chosen: Mapping[int, tune.Tuning]) -> dict[str, list[dict[str, Any]]]:
    """Scores on the test images of every network, for each seed."""
    pieces: dict[str, tuple[Any, ...]] = {}
    for seed, way in chosen.items():
        single, known = replace(way, copies=1), replace(way, known=True)
        for name, *about in (
            ("trained",),
            ("patched", way),
            ("known", known),
            ("single", single),
            ("tuned", way),
            ("scratch", way.method),
        ):
            pieces["-".join(["test", name, *map(str, about), f"seed{seed}"])] = (name, *about, seed)
    done = run.units(_tested, pieces)
    found: dict[str, list[dict[str, Any]]] = {}
    for piece, (name, *_) in pieces.items():
        found.setdefault(name, []).append(done[piece])
    return found


def _tested(run: Run, name: str, *about: Any) -> dict[str, Any]:
    return _SCORES[name](run, *about)


def _means(one: Mapping[str, Any], kind: str, severities: Sequence[str]) -> dict[str, float]:
    """Means over severities and corruptions."""
    scores = [score[kind] for severity in severities for score in one["scores"][severity]]
    return {key: fmean(score[key] for score in scores) for key in _METRICS}


def _curves(found: Found, severities: Sequence[str]) -> dict[str, list[float]]:
    return {
        title: [fmean(_means(one, kind, [severity])["ece"] for one in found[network]) for severity in severities]
        for title, (network, kind, _) in SHOWN.items()
    }


def _checks(before: Sequence[Any], after: Sequence[Any], share: Sequence[float]) -> list[Check]:
    errors = [[_means(one, "own", [tune.CLEAN])["ece"] for one in ones] for ones in (before, after)]
    ratio = [b / a for a, b in zip(*errors)]
    right, others = ([one["right"] for one in ones] for ones in (after, before))
    return [
        at_most("patches tuned: ECE over that of the network as trained", ratio, _CALIBRATION),
        no_less_accurate("patches tuned", "the network as trained", right, others),
        at_most("patches tuned: time over that of training", share, _TIME),
    ]


def _notes(run: Run, chosen: Sequence[tune.Tuning], before: Sequence[Mapping[str, Any]]) -> list[str]:
    s = run.settings
    data = tune.images(run)
    ways = "; ".join(f"{way.method.upper()}, spread {way.spread:g}, rate {way.rate:g}" for way in chosen)
    temperatures = ", ".join(f"{one['temperature']:.2f}" for one in before)
    return [
        f"{s['epochs']} epochs of {len(data.train):,} images by SGD at {s['lr']:g}; patches of norms and output are "
        f"tuned by {s['passes']} passes over {s['tuned_on']:,} images that were held out of its training",
        f"chosen of {len(tune.grid(s))} ways to tune: {ways}; by the likelihood of {len(data.valid) - s['tuned_on']:,} "
        f"more held-out images, among ways that are at most {_TOLERATED:g} standard error less accurate there",
        f"the temperature, fitted on all {len(data.valid):,} held-out images: {temperatures}",
        f"from scratch: {s['epochs'] + tune.extra_epochs(run)} epochs of the training images",
        "a single copy is the trained norms and output themselves, tuned alike; what is better with more of them is "
        "their doing",
        f"corrupted images: {', '.join(s['corruptions']).replace('_', ' ')} at the severities "
        f"{', '.join(map(str, s['severities']))}, means of all; {s['samples']} samples; times without compiling",
    ]


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Calibration error against the severity of corruptions."""
    axes = canvas.subplots()
    for title, errors in figure["ece"].items():
        axes.plot(figure["severity"], errors, marker="o", markersize=3, color=SHOWN[title][2], label=title)
    axes.set_xlabel("severity of the corruption")
    axes.set_ylabel("ECE, %")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=7)


_COMMON = {
    "network": "resnet18", "batch_size": 256, "lr": 0.1, "weight_decay": 5e-4, "init_std": 0.1, "prior_std": 0.3,
    "methods": ("emp", "ecmp"), "spreads": (0.02, 0.05), "rates": (0.02, 0.06),
}  # fmt: skip
_SOME = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")

register(
    Recipe(
        id="emp-finetune",
        title="A trained ResNet-18, patched: what tuning the patches alone buys",
        presets={
            "smoke": _COMMON | {
                "network": "pyramidnet", "batch_size": 20,
                "epochs": 1, "passes": 1, "held_out": 40, "tuned_on": 20, "samples": 2,
                "corruptions": ("contrast",), "severities": (5,), "fast": False, "compile": False,
                "methods": ("emp",), "spreads": (0.02,), "rates": (0.02, 0.06),
            },
            "short": _COMMON | {
                "epochs": 60, "passes": 40, "held_out": 5000, "tuned_on": 4000, "samples": 20,
                "corruptions": _SOME, "severities": (1, 2, 3, 4, 5), "fast": True, "compile": False,
            },
            "paper": _COMMON | {
                "epochs": 200, "passes": 40, "held_out": 5000, "tuned_on": 4000, "samples": 100,
                "corruptions": corruptions.NAMES, "severities": (1, 2, 3, 4, 5), "fast": True, "compile": True,
            },
        },
        seeds={"smoke": (0,), "short": (0,), "paper": (0, 1, 2)},
        measure=measure,
        draw=draw,
    )
)  # fmt: skip
