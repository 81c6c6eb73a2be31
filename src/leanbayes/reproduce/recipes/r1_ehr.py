"""r1-ehr: rank-1 factors in an LSTM on hospital records (Rank-1 BNNs, table 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _r1_records as ehr
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

Found = Mapping[str, Sequence[Mapping[str, Any]]]

METHODS = {
    "deterministic": "deterministic",
    "batchensemble": "BatchEnsemble",
    "embeddings": "Bayesian embeddings",
    "bayesian": "fully Bayesian",
    "gaussian": "rank-1, Gaussian",
    "cauchy": "rank-1, Cauchy",
    "ensemble": "deep ensemble",
}
_RANK1 = ("gaussian", "cauchy")
_COLOURS = {
    "deterministic": "#868e96", "batchensemble": "#f08c00", "embeddings": "#2b8a3e", "bayesian": "#0b7285",
    "gaussian": "#3b5bdb", "cauchy": "#7048e8", "ensemble": "#d9480f",
}  # fmt: skip
_PROCESS = "the process that drew the outcomes"
_METRICS = {"nll": "NLL, nats", "auc_pr": "AUC-PR", "ece": "ECE"}
_TITLES = {"valid": "validation", "test": "test"}
# NLL, AUC-PR and ECE on validation and test rows.
_PUBLISHED = {
    "deterministic": {"valid": (0.211, 0.446, 0.0160), "test": (0.213, 0.390, 0.0135)},
    "batchensemble": {"valid": (0.215, 0.447, 0.0171), "test": (0.215, 0.391, 0.0162)},
    "embeddings": {"valid": (0.213, 0.449, 0.0193), "test": (0.212, 0.391, 0.0160)},
    "bayesian": {"valid": (0.220, 0.424, 0.0162), "test": (0.221, 0.373, 0.0161)},
    "gaussian": {"valid": (0.209, 0.451, 0.0156), "test": (0.209, 0.391, 0.0132)},
    "cauchy": {"valid": (0.207, 0.446, 0.0148), "test": (0.211, 0.383, 0.0130)},
    "ensemble": {"valid": (0.202, 0.453, 0.0132), "test": (0.206, 0.396, 0.0103)},
}
# Standard errors by which predictions may seem better than the process; more of them would be a leak.
_ERRORS = 3.0
_GENERATED = (
    "generated records: MIMIC-III, which credentialed users alone have (--data), was not at hand; the tables are "
    "of its layout, and who dies follows a known process"
)


def measure(run: Run) -> Outcome:
    """Choose a way to train each method on the validation rows, and score what was chosen on the test rows."""
    run.generate_without(ehr.NAME, _GENERATED, **_options(run))
    chosen = _choose(run)
    pieces = {
        f"scores-{method}-{way}-seed{seed}": (method, way, seed) for seed in run.seeds for method, way in chosen.items()
    }
    done = run.units(ehr.scores, pieces)
    found: dict[str, list[Mapping[str, Any]]] = {method: [] for method in METHODS}
    for name, (method, *_) in pieces.items():
        found[method].append(done[name])
    known = run.unit("process", lambda: _process(run)) if run.generated else None
    rows = _rows(found)
    checks = _checks(found)
    if known is not None:
        for part, title in _TITLES.items():
            rows += [Row(_PROCESS, f"{text}, {title}", None, [known[part][key]]) for key, text in _METRICS.items()]
        checks += [_no_leak(METHODS[method], ones, known) for method, ones in found.items()]
    figure = {
        "each": {method: [[one["test"][key] for key in _METRICS] for one in ones] for method, ones in found.items()},
        "process": None if known is None else [known["test"][key] for key in _METRICS],
    }
    return Outcome(rows, checks, figure, _notes(run, chosen, found))


def _options(run: Run) -> dict[str, Any]:
    return {name: run.settings[name] for name in ("rows", "hours", "valid", "test")}


def _choose(run: Run) -> dict[str, ehr.Way]:
    """The way of the least NLL on the validation rows for each method; rank-1 keeps the embeddings that did best."""
    others = {method: ehr.ways(run, method) for method in METHODS if method not in _RANK1}
    chosen = _best(run, {method: ways for method, ways in others.items() if ways})
    std = chosen["embeddings"].option
    chosen |= _best(run, {method: ehr.ways(run, method, std) for method in _RANK1})
    return {method: chosen.get(method, chosen["deterministic"]) for method in METHODS}


def _best(run: Run, ways: Mapping[str, Sequence[ehr.Way]]) -> dict[str, ehr.Way]:
    seed = run.seeds[0]
    pieces = {f"valid-{method}-{way}-seed{seed}": (method, way, seed) for method in ways for way in ways[method]}
    tried = run.units(ehr.valid_nll, pieces)
    return {
        method: min(each, key=lambda way: tried[f"valid-{method}-{way}-seed{seed}"]) for method, each in ways.items()
    }


def _process(run: Run) -> dict[str, Any]:
    return {part: ehr.process_scores(run, part) for part in ehr.PARTS}


def _rows(found: Found) -> list[Row]:
    rows = []
    for method, ones in found.items():
        for part, title in _TITLES.items():
            for (key, text), published in zip(_METRICS.items(), _PUBLISHED[method][part]):
                rows.append(Row(METHODS[method], f"{text}, {title}", published, [one[part][key] for one in ones]))
        rows.append(Row(METHODS[method], "parameters", None, [ones[0]["parameters"]]))
    return rows


def _checks(found: Found) -> list[Check]:
    """What the paper says of table 4: Gaussian factors beat all but the ensemble, Cauchy ones in NLL and ECE."""
    others = ("deterministic", "batchensemble", "embeddings", "bayesian")
    checks = [_better("gaussian", other, "nll", found) for other in others]
    checks += [_better("gaussian", "deterministic", key, found) for key in ("auc_pr", "ece")]
    return checks + [_better("cauchy", "deterministic", key, found) for key in ("nll", "ece")]


def _better(method: str, other: str, metric: str, found: Found) -> Check:
    """The mean over seeds is better on the test rows."""
    mine, theirs = (fmean(one["test"][metric] for one in found[name]) for name in (method, other))
    more = metric == "auc_pr"
    kind = _METRICS[metric].removesuffix(", nats")
    text = f"{METHODS[method]}: {kind} {'above' if more else 'below'} that of {METHODS[other]}"
    return Check(text, mine > theirs if more else mine < theirs, f"{text}: {mine:.4g} against {theirs:.4g}")


def _no_leak(name: str, ones: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> Check:
    """Nobody predicts better than by the probabilities that the outcomes were drawn from, but for chance."""
    each = [[one["test"]["each"][row] for one in ones] for row in range(len(known["test"]["each"]))]
    worse = [fmean(values) - best for values, best in zip(each, known["test"]["each"], strict=True)]
    errors = fmean(worse) / (stdev(worse) / math.sqrt(len(worse)))
    text = f"{name}: NLL no better than that of {_PROCESS}"
    return Check(text, errors > -_ERRORS, f"{text}: {-errors:.1f} standard errors better")


def _notes(run: Run, chosen: Mapping[str, ehr.Way], found: Found) -> list[str]:
    s = run.settings
    data = ehr.records(run)
    ways = "; ".join(
        f"{METHODS[method]} {way.lr:g}, {ehr.OPTIONS[method][0]} {way.option:g}"
        + ("" if way.clip is None else f", no factor beyond {way.clip:g}")
        for method, way in chosen.items()
    )
    epochs = ", ".join(
        f"{METHODS[method]} {fmean(one['best epoch'] for one in ones):.0f}" for method, ones in found.items()
    )
    death = float(data.test.y.double().mean())
    return [
        f"{len(data.train):,} training, {len(data.valid):,} validation and {len(data.test):,} test stays of the first "
        f"{s['hours']} hours, {100 * death:.1f} % of the test patients died; patients are in one part alone",
        f"each measurement is an event of one of {s['bins']} ranges; embeddings of {s['embedding']} are added up over "
        f"{s['together']} hours, LSTM of {s['hidden']}, dense layer of {s['dense']}; the paper embeds all records",
        f"all are trained by {s['epochs']} epochs of Adam in batches of {s['batch_size']} and end with their best "
        f"epoch on the validation rows ({epochs}); all {s['components']} components of a mixture see every batch",
        f"learning rate (of {', '.join(f'{rate:g}' for rate in s['rates'])}) and one more setting, for Cauchy factors "
        f"two, by the validation NLL of the first seed: {ways}",
        f"{s['samples']} samples, rounded up to a multiple of the components; Normal(1, 0.1) and Cauchy(1, 0.1) priors "
        "of factors, and of embeddings the prior that was best for these alone, "
        f"Normal(0, {chosen['gaussian'].embedding_std:g}); factors are drawn for each example, the LSTM weights of the "
        "fully Bayesian network once per batch",
        f"the published ensemble has an unknown size, this one {s['components']} networks",
    ]


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """The three metrics of every method, a point for each seed."""
    for number, (axes, text) in enumerate(zip(canvas.subplots(1, 3, sharey=True), _METRICS.values())):
        for place, (method, ones) in enumerate(reversed(figure["each"].items())):
            values = [one[number] for one in ones]
            axes.plot(values, [place] * len(values), "o", color=_COLOURS[method], alpha=0.4, markersize=4)
            axes.plot([fmean(values)], [place], "|", color=_COLOURS[method], markersize=16, markeredgewidth=2.5)
        if figure["process"] is not None and text != _METRICS["ece"]:
            axes.axvline(figure["process"][number], color="0.3", linestyle=":", label=_PROCESS)
        axes.set_yticks(range(len(figure["each"])), [METHODS[method] for method in reversed(figure["each"])])
        axes.set_xlabel(f"{text}, test")
        axes.grid(axis="x", color="0.92")
        axes.set_axisbelow(True)
    handles, labels = canvas.axes[0].get_legend_handles_labels()
    if handles:
        canvas.legend(handles, labels, loc="outside upper center", frameon=False, fontsize=8)


_COMMON = {
    "hours": 24, "together": 1, "bins": 10, "components": 4, "samples": 25, "anneal": 0.5, "spread": 0.1,
    "rates": (3e-3, 1e-2), "weight_decays": (0.0, 1e-3), "signs": (0.5, 1.0),
    "prior_stds": (0.1, 0.3), "clips": (None, 3.0, 1.5),
}  # fmt: skip
register(
    Recipe(
        id="r1-ehr",
        title="LSTM on hospital records: who dies in hospital",
        presets={
            "smoke": _COMMON | {
                "rows": 80, "valid": 0.2, "test": 0.3, "embedding": 4, "hidden": 6, "dense": 4, "epochs": 2,
                "batch_size": 20, "samples": 3, "rates": (1e-2,), "components": 2,
            },
            "short": _COMMON | {
                "rows": 6000, "valid": 0.2, "test": 0.4, "embedding": 16, "hidden": 32, "dense": 16, "epochs": 16,
                "batch_size": 128, "together": 2, "bins": 6, "rates": (3e-3,),
            },
            "paper": _COMMON | {
                "rows": 40_000, "valid": 1 / 9, "test": 0.1, "embedding": 32, "hidden": 128, "dense": 64, "epochs": 50,
                "batch_size": 128, "rates": (1e-3, 3e-3), "bins": 20,
            },
        },
        seeds={"smoke": (0,), "short": tuple(range(10)), "paper": tuple(range(25))},
        measure=measure,
        draw=draw,
    )
)  # fmt: skip
