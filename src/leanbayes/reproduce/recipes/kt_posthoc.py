"""kt-posthoc: low-rank standard deviations after mean-field training (k-tied Normal, tables 2, 3 and 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from leanbayes.reproduce.recipe import Recipe, register
from leanbayes.reproduce.recipes import _kt_networks as kt
from leanbayes.reproduce.recipes import _kt_posthoc as posthoc
from leanbayes.reproduce.recipes._checks import at_least, at_most
from leanbayes.reproduce.recipes._kt_mlp import COLOURS
from leanbayes.reproduce.result import Check, Outcome, Row
from leanbayes.reproduce.run import Run

_NAMES = ("mean-field", *map(posthoc.truncated_name, posthoc.RANKS))
# Negative ELBO, NLL and accuracy of mean-field and of ranks 1, 2 and 3; of the ResNet also Brier score and ECE.
_PUBLISHED: Mapping[str, Sequence[tuple[float, ...]]] = {
    "mlp": ((0.431, 0.100, 97.6), (3.41, 0.677, 93.6), (0.456, 0.107, 97.6), (0.450, 0.106, 97.6)),
    "cnn": ((3.83, 2.23, 42.1), (4.33, 2.30, 41.7), (3.88, 2.24, 42.2), (3.86, 2.24, 42.1)),
    "lstm": ((0.536, 0.493, 80.1), (0.687, 0.491, 80.0), (0.621, 0.494, 80.1), (0.595, 0.493, 80.1)),
    "resnet": (
        (122.61, 0.495, 83.5, -0.761, 0.0477),
        (122.57, 0.658, 81.7, -0.695, 0.1642),
        (122.77, 0.503, 83.2, -0.758, 0.0540),
        (122.67, 0.501, 83.2, -0.758, 0.0541),
    ),
}
# What ranks from 2 on may lose on the MLP and compression may change on the ResNet, and what rank 1 must lose.
_LOSS, _CLEARLY = 0.01, 0.05
_LEAST = {"mlp": 97.5, "lstm": 80.0, "resnet": 83.0}
# Of the bytes of the mean-field ResNet: its means, and next to nothing.
_HALF = 0.51


def measure(run: Run) -> Outcome:
    """Train every network as mean-field, then cut its standard deviations to low ranks."""
    models = [model for model in kt.MODELS if model in run.settings["models"]]
    seeds = {model: posthoc.seeds_of(run, model) for model in models}
    done = run.decided_by(kt.deciding).units(
        posthoc.scores, {f"{model}-seed{seed}": (model, seed) for model in models for seed in seeds[model]}
    )
    found = {model: [done[f"{model}-seed{seed}"] for seed in seeds[model]] for model in models}
    rows, checks = [], posthoc.all_there(run, kt.MODELS)
    for model, ones in found.items():
        rows += posthoc.rows_of(kt.MODELS[model].title, ones, _by_metric(model))
        if model in _LEAST:
            text = f"{kt.MODELS[model].title}, mean-field: accuracy"
            checks.append(at_least(text, posthoc.values_of(ones, "mean-field", "accuracy"), _LEAST[model], " %"))
    if "mlp" in found:
        checks += _mlp_checks(found["mlp"])
    if "resnet" in found and "resnet" in run.settings["compressed"]:
        more, checks_on_size = _resnet(found["resnet"])
        rows += more
        checks += checks_on_size
    figure = {
        "losses": {kt.MODELS[model].title: _mean_losses(ones) for model, ones in found.items()},
        "published": {kt.MODELS[model].title: _published_losses(model) for model in found},
    }
    return Outcome(rows, checks, figure, _notes(run, models))


def _by_metric(model: str) -> dict[str, dict[str, float]]:
    """Published figures by what was made of the network and by metric."""
    return {name: dict(zip(posthoc.METRICS, figures)) for name, figures in zip(_NAMES, _PUBLISHED[model])}


def _published_losses(model: str) -> dict[str, float]:
    (_, base, *_), *rest = _PUBLISHED[model]
    return {name: nll - base for name, (_, nll, *_) in zip(_NAMES[1:], rest)}


def _mean_losses(ones: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """NLL over mean-field's: cut as published, and compressed with norms refreshed where there are any."""
    made = ones[0]["figures"]
    names = {name: name for name in made if name != "mean-field" and not name.endswith(posthoc.REFRESHED)}
    compressed = [name for name in map(posthoc.compressed_name, posthoc.COMPRESSED) if name + posthoc.REFRESHED in made]
    names |= {name: name + posthoc.REFRESHED for name in compressed}
    return {name: fmean(posthoc.losses(ones, source)) for name, source in names.items()}


def _mlp_checks(ones: Sequence[Mapping[str, Any]]) -> list[Check]:
    text = f"{kt.MODELS['mlp'].title}, {{}}: NLL over mean-field's"
    first, *rest = _NAMES[1:]
    checks = [at_most(text.format(name), posthoc.losses(ones, name), _LOSS, " nats") for name in rest]
    return [*checks, at_least(text.format(first), posthoc.losses(ones, first), _CLEARLY, " nats")]


def _resnet(ones: Sequence[Mapping[str, Any]]) -> tuple[list[Row], list[Check]]:
    """What compression does to the file and to the likelihood."""
    title = kt.MODELS["resnet"].title
    low, high = (posthoc.compressed_name(rank) for rank in posthoc.COMPRESSED)
    shares = [one["bytes"][high] / one["bytes"]["mean-field"] for one in ones]
    change = [abs(loss) for loss in posthoc.losses(ones, high + posthoc.REFRESHED)]
    plain = posthoc.truncated_name(1)
    # Refreshed or not, whichever suits the singular values better.
    less = max(
        loss for end in ("", posthoc.REFRESHED) for loss in posthoc.losses(ones, low + posthoc.REFRESHED, plain + end)
    )
    beats = Check(
        f"{title}, {low}: NLL below that of {plain}",
        less < 0,
        f"{title}, {low}: NLL {less:.3g} nats above that of {plain}",
    )
    return [Row(f"{title}, {high}", "bytes of the file, of mean-field's", None, shares)], [
        at_most(f"{title}, {high}: bytes of the file, of mean-field's", shares, _HALF),
        at_most(f"{title}, {high}{posthoc.REFRESHED}: change of the NLL", change, _LOSS, " nats"),
        beats,
    ]


def _notes(run: Run, models: Sequence[str]) -> list[str]:
    s = run.settings
    return [
        "; ".join(kt.described(s, name) for name in models),
        *(
            f"{kt.MODELS[name].title}: the KL comes in over the first {100 * s['anneal'][name]:.0f} % of the epochs"
            for name in models
            if s["anneal"][name]
        ),
        "rank by SVD: the truncated singular value decomposition of the standard deviations, with zeros for what is "
        "negative, as published; compressed: non-negative factors with the least KL divergence from what was trained, "
        'which `compress(how="reverse")` finds',
        f"{s['samples']} draws; the NLL is that of averaged probabilities, the ELBO averages log-likelihoods",
        "norms refreshed: running statistics computed anew with the weights as they are; published figures are of "
        "networks as they were",
        *posthoc.precision_notes(run),
    ]


def draw(figure: Mapping[str, Any], canvas: Any) -> None:
    """NLL over that of mean-field, and marks where the published ones are."""
    axes = canvas.subplots()
    axes.axhline(0, color="#ced4da", linewidth=1, zorder=0)
    names = {posthoc.truncated_name(rank): COLOURS[f"{rank}-tied"] for rank in posthoc.RANKS}
    names |= {posthoc.compressed_name(rank): colour for rank, colour in zip(posthoc.COMPRESSED, ("#e8590c", "#364fc7"))}
    width = 0.8 / len(names)
    for place, (name, colour) in enumerate(names.items()):
        shift = width * (place - (len(names) - 1) / 2)
        for kind, title in (("losses", name), ("published", "published" if place == 0 else None)):
            shown = [(at + shift, one[name]) for at, one in enumerate(figure[kind].values()) if name in one]
            places, values = [at for at, _ in shown], [value for _, value in shown]
            if kind == "losses":
                axes.bar(places, values, width, color=colour, label=title)
            else:
                axes.plot(places, values, "_", color="black", markersize=12, label=title)
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_xticks(range(len(figure["losses"])), list(figure["losses"]))
    axes.set_ylabel("NLL less that of mean-field, nats")
    axes.set_title("what low ranks of trained standard deviations cost")
    axes.legend(frameon=False, fontsize=8)


register(
    Recipe(
        id="kt-posthoc",
        title="Standard deviations of trained mean-field networks, cut to low ranks",
        presets=posthoc.PRESETS,
        seeds=posthoc.SEEDS,
        measure=measure,
        draw=draw,
    )
)
