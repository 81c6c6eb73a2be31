"""r1-shift: the networks of r1-cifar10 and r1-cifar100 on corrupted images (Rank-1 BNNs, figure 7, tables 2 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _r1_networks as r1
from leanbayes.reproduce.recipes._checks import at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

# NLL, accuracy in percent and ECE, means over corruptions and intensities.
_PUBLISHED = {
    "cifar10": {
        "deterministic": (1.05, 76.1, 0.153),
        "batchensemble": (1.02, 77.5, 0.129),
        "dropout": (1.27, 68.8, 0.166),
        "mfvi": (1.46, 71.3, 0.181),
        "normal": (0.84, 76.7, 0.080),
        "cauchy": (0.74, 80.5, 0.090),
        "ensemble-narrow": (0.84, 77.2, 0.089),
        "ensemble": (0.81, 77.9, 0.087),
    },
    "cifar100": {
        "deterministic": (2.70, 51.3, 0.239),
        "batchensemble": (2.49, 54.1, 0.191),
        "dropout": (2.33, 51.5, 0.148),
        "mfvi": (3.48, 48.0, 0.299),
        "normal": (2.24, 53.8, 0.117),
        "cauchy": (2.04, 57.8, 0.142),
        "ensemble-narrow": (2.19, 53.7, 0.111),
        "ensemble": (2.27, 54.1, 0.138),
    },
}
_PLACES = {"cifar10": "CIFAR-10", "cifar100": "100 classes"}
_SOME = ("deterministic", "batchensemble", "normal", "cauchy", "ensemble")
_NOTE = (
    "corruptions are those of this program, with generated textures for frost, so that figures are near the published "
    "ones in kind and not in every digit"
)


def measure(run: Run) -> Outcome:
    """Compare the networks' predictions of corrupted images, by intensity."""
    s = run.settings
    rows, checks, figure = [], [], {}
    todo: dict[str, Any] = {}
    names = {"cifar10": list(s["networks"]), "cifar100": [name for name in s["networks"] if name in s["hundred"]]}
    for place in s["places"]:
        pieces = r1.pieces(run, names[place], place)
        if any(run.wants(piece) for piece in pieces):
            r1.images(run, place)  # what it says of the data stands first
        todo |= pieces
    done = run.decided_by(r1.deciding).units(r1.shift_scores, todo)
    for place in s["places"]:
        found = {name: [done[f"{place}-{name}-seed{seed}"] for seed in run.seeds] for name in names[place]}
        for name, ones in found.items():
            title = f"{r1.TITLES[name]}, {_PLACES[place]}"
            figures = _PUBLISHED[place].get(name, (None, None, None))
            for (key, text), value in zip(r1.METRICS.items(), figures):
                rows.append(Row(title, text, value, [r1.over_corruptions(one, key)[0] for one in ones]))
                for severity in s["severities"]:
                    values = [r1.over_corruptions(one, key, str(severity))[0] for one in ones]
                    rows.append(Row(f"{title}, intensity {severity}", text, None, values))
        figure[place] = {name: _curves(ones[0], s["severities"]) for name, ones in found.items()}
        for name in ("normal", "cauchy"):
            for other in ("deterministic", "batchensemble"):
                if name in found and other in found:
                    pairs = zip(found[name], found[other])
                    gain = [r1.over_corruptions(a, "nll")[0] - r1.over_corruptions(b, "nll")[0] for a, b in pairs]
                    text = f"{_PLACES[place]}, {r1.TITLES[name]}: NLL less that of {r1.TITLES[other]}"
                    checks.append(at_most(text, gain, 0.0))
    return Outcome(rows, checks, figure, [_NOTE, r1.draws_note(s)])


def _curves(one: Mapping[str, Any], severities: Any) -> dict[str, Any]:
    """Means and deviations over corruptions, by metric."""
    found: dict[str, Any] = {"severities": list(severities)}
    for key in r1.METRICS:
        pairs = [r1.over_corruptions(one, key, str(severity)) for severity in severities]
        found[key] = {"mean": [mean for mean, _ in pairs], "deviation": [deviation for _, deviation in pairs]}
    return found


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Metrics against the intensity; bars are a tenth of the deviation over corruptions."""
    grid = canvas.subplots(len(figure), len(r1.METRICS), squeeze=False)
    for line, (place, networks) in zip(grid, figure.items()):
        for axes, (key, text) in zip(line, r1.METRICS.items()):
            for name, curve in networks.items():
                bars = [value / 10 for value in curve[key]["deviation"]]
                colour = r1.COLOURS.get(name, "#868e96")
                axes.errorbar(
                    curve["severities"], curve[key]["mean"], bars, color=colour, label=r1.TITLES[name], linewidth=1
                )
            axes.set_title(f"{_PLACES[place]}: {text}", fontsize=8)
    grid[0][0].legend(frameon=False, fontsize=5)
    for axes in grid[-1]:
        axes.set_xlabel("intensity")


register(
    Recipe(
        id="r1-shift",
        title="WRN-28-10 on corrupted images: 15 corruptions at 5 intensities, for the networks of both tables",
        presets={
            name: {
                "places": ("cifar10", "cifar100") if name != "smoke" else ("cifar10",),
                "networks": r1.TABLE if name != "smoke" else ("deterministic", "cauchy", "ensemble"),
                "hundred": r1.TABLE if name == "paper" else _SOME,
                **values,
            }
            for name, values in r1.PRESETS.items()
        },
        seeds=r1.SEEDS,
        measure=measure,
        draw=draw,
    )
)
