"""Tables 2 and 3 of the rank-1 paper: rows, checks and picture, whatever the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from leanbayes.reproduce.recipes import _r1_networks as r1
from leanbayes.reproduce.recipes._checks import at_least, at_most
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

Found = Mapping[str, Sequence[Mapping[str, Any]]]
Published = Mapping[str, tuple[float, float, float]]

_BASELINES = ("deterministic", "batchensemble", "dropout", "mfvi")
_RANK1 = ("normal", "cauchy")
_OF_ONE = {"nll": "NLL of one component, nats", "diversity": "disagreement over error"}
_KL = {"mean": "averaged over components (the authors' code sums it)", "sum": "summed over components"}


def measure(run: Run, place: str, published: Published, closed: float) -> Outcome:
    """Train what the settings name, and compare.

    Args:
        run: The run.
        place: The images, "cifar10" or "cifar100".
        published: NLL, accuracy and ECE by network.
        closed: How much of the gap to the ensemble rank-1 has to close, in percent.
    """
    r1.images(run, place)  # what it says of the data stands first
    names = list(run.settings["networks"])
    unknown = [name for name in names if name not in r1.TITLES]
    if unknown:
        raise ValueError(f"networks has no {unknown[0]!r}; it has {', '.join(r1.TITLES)}")
    own = run.decided_by(r1.deciding)
    done = own.units(r1.scores, r1.pieces(run, names, place))
    found = {name: [done[f"{place}-{name}-seed{seed}"] for seed in run.seeds] for name in names}
    best = best_of(found, _RANK1)
    if best is not None:
        more = [seed for seed in run.settings.get("winner_seeds", ()) if seed not in run.seeds]
        found[best] += own.units(r1.scores, r1.pieces(run, [best], place, more)).values()
    rows = _rows(run, found, published)
    checks = _checks(found, closed)
    figure = {
        name: {key: fmean(r1.at(one)[key] for one in ones) for key in ("nll", "ece")} for name, ones in found.items()
    }
    return Outcome(rows, checks, {"networks": figure}, _notes(run, found))


def _rows(run: Run, found: Found, published: Published) -> list[Row]:
    rows = []
    for name, ones in found.items():
        title = _title(run, name)
        rows += Row.by_metric(title, r1.METRICS, [r1.at(one) for one in ones], published.get(name, ()))
        for count in ones[0]["draws"] if name.startswith(_RANK1) else ():
            about = f"{title}, {count} draws of each component"
            rows += Row.by_metric(about, r1.METRICS, [one["draws"][count] for one in ones])
        if "components" in ones[0]:
            rows += Row.by_metric(title, _OF_ONE, [one["components"] for one in ones])
        rows.append(Row(title, "parameters", None, [one["parameters"] for one in ones]))
        if "seconds_per_epoch" in ones[0]:
            rows.append(Row(title, "seconds per epoch", None, [one["seconds_per_epoch"] for one in ones]))
    return rows


def _title(run: Run, name: str) -> str:
    return f"{r1.TITLES[name]} of {run.settings['members']}" if name == "ensemble" else r1.TITLES[name]


def _values(found: Found, name: str, key: str) -> list[float]:
    return [r1.at(one)[key] for one in found[name]]


def best_of(found: Found, names: Sequence[str]) -> str | None:
    """The network with the least NLL; None where none of them was trained."""
    there = (name for name in names if name in found)
    return min(there, key=lambda name: fmean(_values(found, name, "nll")), default=None)


def _checks(found: Found, closed: float) -> list[Check]:
    checks: list[Check] = []
    best = best_of(found, _RANK1)
    if best is None:
        return [
            Check("rank-1 factors are among the networks", False, "neither Gaussian nor Cauchy factors were trained")
        ]
    title = r1.TITLES[best]
    for other in (name for name in _BASELINES if name in found):
        for key, text in (("nll", "NLL"), ("ece", "ECE")):
            base = fmean(_values(found, other, key))
            gain = [value - base for value in _values(found, best, key)]
            checks.append(at_most(f"{title}: {text} less that of {r1.TITLES[other]}", gain, 0.0))
    if "deterministic" in found and "ensemble" in found:
        checks.append(at_least(f"{title}: gap to the ensemble that it closes", gap_closed(found, best), closed, " %"))
    return checks


def gap_closed(found: Found, name: str) -> list[float]:
    """How much of the NLL between the deterministic network and the ensemble a network makes up for, in percent."""
    far, near = (fmean(_values(found, each, "nll")) for each in ("deterministic", "ensemble"))
    # Where the ensemble is no better there is no gap to close.
    return [100 * (far - value) / (far - near) if far > near else 0.0 for value in _values(found, name, "nll")]


def _notes(run: Run, found: Found) -> list[str]:
    s = run.settings
    notes = [
        f"WRN-{s['depth']}-{s['width']}, {s['epochs']} epochs of batches of {s['batch_size']} (published: 250 of 128), "
        f"tiled over {s['components']} components; SGD at {s['lr']:g}, {s['schedule']} learning rate",
        f"KL {_KL[s['kl']]}, annealed over {100 * s['anneal']:g} % of the run; random signs {s['random_sign']:g}, "
        f"prior std {s['prior_std']:g}",
        f"the factors of BatchEnsemble start around 1 with a spread of {s['batch_spread']:g}; it, dropout, mean-field "
        "and plain networks have decays and learning rates of their own, as in the authors' code",
        r1.draws_note(s),
    ]
    if s["held_out"]:
        notes.append(f"judged on {s['held_out']} held-out training images, and not on the test images")
    best = best_of(found, r1.EQUAL_COMPUTE)
    if best is not None:
        notes.append(
            f"at equal compute ({s['components']} times the epochs, in batches {s['components']} times as large; one "
            f"component for each example) {r1.TITLES[best]} has the least NLL"
        )
    return notes


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """NLL and ECE of every network."""
    networks = figure["networks"]
    names = list(networks)
    colours = [r1.COLOURS.get(name.removesuffix("-long").removesuffix("-example"), "#868e96") for name in names]
    for axes, key, text in zip(canvas.subplots(1, 2, sharey=True), ("nll", "ece"), ("NLL, nats", "ECE")):
        axes.barh(range(len(names)), [networks[name][key] for name in names], color=colours)
        axes.set_xlabel(text)
        axes.set_yticks(range(len(names)), [r1.TITLES[name] for name in names], fontsize=7)
        axes.invert_yaxis()
