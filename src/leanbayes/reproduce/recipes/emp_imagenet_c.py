"""emp-imagenet-c: errors of patched ResNet-18 on corrupted images (Ensemble Model Patching, tables 5, 7 and 8)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from leanbayes.metrics import functional as metrics
from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _emp_imagenet as imagenet
from leanbayes.reproduce.recipes._checks import at_most
from leanbayes.reproduce.result import Outcome, Row
from leanbayes.reproduce.run import Run

# Mean corruption error and its relative form, in percent of the plain network's.
_PUBLISHED = {
    "emp": (97.8, 97.4),
    "emp-norms": (98.8, 99.0),
    "ecmp": (99.5, 102.0),
    "ecmp-norms": (99.8, 101.0),
    "dropout": (100.0, 100.0),
    "vanilla": (100.0, 100.0),
}


def measure(run: Run) -> Outcome:
    """Errors on all corruptions, over those of the plain network."""
    imagenet.images(run)
    found = run.each_seed_of(imagenet.errors, imagenet.NAMES)
    rows, table, means = [], {}, {}
    for name, (published, relative) in _PUBLISHED.items():
        title = imagenet.NAMES[name]
        pairs = list(zip(found[name], found["vanilla"]))
        means[name] = [100 * float(metrics.mean_corruption_error(a["corrupted"], b["corrupted"])) for a, b in pairs]
        others = [100 * float(_relative(a, b)) for a, b in pairs]
        rows.append(Row(title, "mCE, %", published, means[name]))
        rows.append(Row(title, "relative mCE, %", relative, others))
        rows.append(Row(title, "error on clean images, %", None, [100 * one["clean"] for one in found[name]]))
        table[title] = {
            kind: 100 * fmean(sum(a["corrupted"][kind]) / max(sum(b["corrupted"][kind]), 1e-9) for a, b in pairs)
            for kind in found[name][0]["corrupted"]
        }
    checks = [at_most(f"{imagenet.NAMES['emp']}: mCE", means["emp"], 100.0, " %")]
    s = run.settings
    notes = [f"severities {', '.join(map(str, s['severities']))}, {s['corrupted_samples']} samples (published: 100)"]
    return Outcome(rows, checks, {"table": table}, notes)


def _relative(own: Mapping[str, Any], plain: Mapping[str, Any]) -> Any:
    return metrics.relative_mean_corruption_error(
        own["corrupted"], plain["corrupted"], clean=own["clean"], reference_clean=plain["clean"]
    )


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """Corruption error by kind."""
    axes = canvas.subplots()
    kinds = list(next(iter(figure["table"].values())))
    for title, values in figure["table"].items():
        axes.plot([values[kind] for kind in kinds], range(len(kinds)), marker="o", linestyle="none", label=title)
    axes.axvline(100, color="#ced4da", linewidth=1, zorder=0)
    axes.set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds], fontsize=8)
    axes.set_xlabel("error over that of the plain network, %")
    axes.legend(frameon=False, fontsize=7)


register(
    Recipe(
        id="emp-imagenet-c",
        title="Errors of patched ResNet-18 on corrupted images, over those of the plain network",
        presets=imagenet.PRESETS,
        seeds=imagenet.SEEDS,
        measure=measure,
        draw=draw,
    )
)
