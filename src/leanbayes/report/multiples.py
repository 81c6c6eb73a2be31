"""Small plots, one per method: reliability, entropy and training curves."""

from __future__ import annotations

from leanbayes.report.blocks import figure, legend, multiples, switch
from leanbayes.report.content import Bin, Comparison, Entry, Histogram
from leanbayes.report.markup import Markup, px, tag
from leanbayes.report.measures import Measure
from leanbayes.report.panel import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, axes, share_frame, swatch
from leanbayes.report.svg import Axis, axis, frame, label, line, path, picture, series

# Fewer examples than this say little about a bin.
_FEW = 10


def reliability(comparison: Comparison) -> Markup | None:
    """Accuracy against confidence."""
    items = [
        (entry, _note(comparison, entry, "ece"), _reliability(entry)) for entry in comparison.done if entry.reliability
    ]
    if not items:
        return None
    source = " The dots come from one run, the ECE is the mean over the seeds." if comparison.seeds > 1 else ""
    return figure(
        "reliability",
        "How often the prediction is right, against how confident it is. On the dashed diagonal the two agree; stems "
        "below it show over-confidence, stems above it under-confidence. The larger a dot, the more examples it stands "
        f"for; hollow dots stand for fewer than {_FEW}, and the number beside them says how few.{source}",
        multiples(items),
    )


def entropy(comparison: Comparison) -> Markup | None:
    """Entropy histograms inside and outside the training distribution."""
    found = [(entry, entry.entropy) for entry in comparison.done if entry.entropy]
    if not found:
        return None
    reach = tuple(max(max(_shares(h)) for h in side) for side in zip(*((h.inside, h.outside) for _, h in found)))
    right = max(h.edges[-1] for _, h in found)
    items = [(entry, _auroc_note(comparison, entry), _entropy(entry, h, right, reach)) for entry, h in found]
    outside = next((entry.ood_name for entry in comparison.done if entry.ood_name), "other data")
    # The entropy of a density has no zero that means anything.
    zero = "the lower, the more certain" if comparison.task == "regression" else "0 is certain"
    any_outside = any(h.outside for _, h in found)
    return figure(
        "entropy",
        f"Entropy of the predictions, in nats: {zero}. "
        + (f"Test examples of {comparison.data} go up" + (f", examples of {outside} go down" if any_outside else ""))
        + ". Bars show the share of examples, on a square-root scale, so that small shares can be seen. The less the "
        "two overlap, the better unfamiliar inputs are recognised; an AUROC of 50% is chance.",
        legend(
            (_square("inside"), f"{comparison.data} (in-distribution)"),
            *([(_square("outside"), f"{outside} (out-of-distribution)")] if any_outside else []),
        ),
        multiples(items),
    )


def training_curves(comparison: Comparison) -> Markup | None:
    """Loss, its two terms and the validation NLL over the epochs."""
    options = []
    for key, title, keys in (
        ("nll", "NLL", ("nll", "valid_nll")),
        ("loss", "Loss", ("loss",)),
        ("kl", "KL", ("kl",)),
    ):
        entries = [e for e in comparison.done if any(sum(k in epoch for epoch in e.history) > 1 for k in keys)]
        if entries:
            options.append((key, title, _histories(entries, comparison.measure(key), keys)))
    if not options:
        return None
    return figure(
        "training",
        "One training run of each method. All plots of one quantity share their axes. The NLL is per example, "
        "on the training set (solid) and on the validation set (dashed); a dashed line that rises while the solid one "
        "falls shows over-fitting.",
        switch("training-quantity", "Quantity", options),
    )


def _note(comparison: Comparison, entry: Entry, key: str, name: str = "") -> str:
    measure, value = comparison.measure(key), entry.mean(key)
    return f"{name or measure.title} {measure.write(value)}" if value is not None else ""


def _auroc_note(comparison: Comparison, entry: Entry) -> str:
    chance = comparison.chance(entry, "auroc")
    return _note(comparison, entry, "auroc", "AUROC") + (f", {chance}" if chance else "")


def _reliability(entry: Entry) -> Markup:
    # Counts stand above and below the dots, also those at the ends.
    x, y = axes((0, 1), (-0.15, 1.15))
    largest = max(b.count for b in entry.reliability)
    marks = []
    for b in entry.reliability:
        at, up = x(b.confidence), y(b.accuracy)
        radius, few = 2 + 5 * (b.count / largest) ** 0.5, b.count < _FEW
        marks += [
            line(at, y(b.confidence), at, up, "stem faint" if few else "stem"),
            tag("circle", cx=at, cy=up, r=radius, class_="dot few" if few else "dot"),
            _count(at, up, radius, b) if few else None,
        ]
    description = "; ".join(
        f"confidence {b.confidence:.0%}: right {b.accuracy:.0%} of {b.count:.0f}" for b in entry.reliability
    )
    return picture(
        WIDTH,
        HEIGHT,
        f"Reliability of {entry.title}",
        description,
        share_frame(x, y, "Confidence"),
        line(x(0), y(0), x(1), y(1), "reference"),
        series(entry.index, marks),
    )


def _count(at: float, up: float, radius: float, b: Bin) -> Markup:
    """How few examples a dot stands for, on the side that its stem leaves free."""
    return label(
        at, up - radius - 2 if b.accuracy >= b.confidence else up + radius + 9, f"{b.count:.0f}", "middle", "count"
    )


def _shares(counts: tuple[float, ...]) -> list[float]:
    total = sum(counts)
    return [count / total for count in counts] if total > 0 else [0.0]


def _entropy(entry: Entry, histogram: Histogram, right: float, reach: tuple[float, ...]) -> Markup:
    x, _ = axes((min(histogram.edges[0], 0), right), (0, 1))
    up, down = (1.05 * share**0.5 for share in reach)
    y = Axis(-down, max(up, 1e-3), HEIGHT - BOTTOM, TOP)
    ticks = [share**0.5 for share in (0.1, 0.5) if share**0.5 < up]
    ends = [-(share**0.5) for share in (0.5, 0.1) if share**0.5 < down]
    bars = [
        _bars(histogram.edges, _shares(histogram.inside), x, y, 1, "inside"),
        _bars(histogram.edges, _shares(histogram.outside), x, y, -1, "outside") if histogram.outside else None,
    ]
    return picture(
        WIDTH,
        HEIGHT,
        f"Entropy of {entry.title}",
        _entropy_words(histogram),
        frame(
            x,
            y,
            x_ticks=x.ticks(3),
            y_ticks=[*ends, 0, *ticks],
            x_write=lambda v: f"{v:g}",
            y_write=lambda v: f"{v * v:.0%}",
            x_title="Entropy (nats)",
        ),
        series(entry.index, bars),
        line(x.start, y(0), x.stop, y(0), "axis"),
    )


def _bars(edges: tuple[float, ...], shares: list[float], x: Axis, y: Axis, sign: int, class_: str) -> Markup:
    steps = []
    for left, right, share in zip(edges, edges[1:], shares):
        if share > 0:
            tip = px(y(sign * share**0.5))
            steps.append(f"M{px(x(left))} {px(y(0))}V{tip}H{px(max(x(right) - 0.8, x(left) + 0.4))}V{px(y(0))}Z")
    return tag("path", d="".join(steps), class_=class_)


def _entropy_words(histogram: Histogram) -> str:
    def mean(counts: tuple[float, ...]) -> float:
        centres = ((a + b) / 2 for a, b in zip(histogram.edges, histogram.edges[1:]))
        return sum(share * centre for share, centre in zip(_shares(counts), centres))

    words = f"Mean entropy about {mean(histogram.inside):.2f} nats in-distribution"
    return words + (f" and {mean(histogram.outside):.2f} out-of-distribution" if histogram.outside else "")


def _square(class_: str) -> Markup:
    return swatch(tag("rect", x="2", y="2", width="10", height="10", class_=class_))


def _histories(entries: list[Entry], measure: Measure, keys: tuple[str, ...]) -> Markup:
    values = [epoch[key] for e in entries for epoch in e.history for key in keys if key in epoch]
    epochs = [epoch["epoch"] for e in entries for epoch in e.history]
    x = axis(epochs, LEFT, WIDTH - RIGHT, log=False, pad=0)
    y = axis(values, HEIGHT - BOTTOM, TOP + 4)
    return multiples((entry, _last(entry, keys), _history(entry, measure, keys, x, y)) for entry in entries)


def _last(entry: Entry, keys: tuple[str, ...]) -> str:
    words = []
    for key in keys:
        values = [epoch[key] for epoch in entry.history if key in epoch]
        if values:
            words.append(
                f"{'validation' if key == 'valid_nll' else 'train' if len(keys) > 1 else 'last'} {values[-1]:.3g}"
            )
    return ", ".join(words)


def _history(entry: Entry, measure: Measure, keys: tuple[str, ...], x: Axis, y: Axis) -> Markup:
    lines = []
    for key, dashes in zip(keys, (None, "4 3")):
        points = [(x(epoch["epoch"]), y(epoch[key])) for epoch in entry.history if key in epoch]
        if points:
            lines.append(path(points, "line", dashes))
    return picture(
        WIDTH,
        HEIGHT,
        f"{measure.title} of {entry.title} over the epochs",
        f"At the end: {_last(entry, keys)}",
        frame(
            x,
            y,
            x_ticks=x.ticks(3),
            y_ticks=y.ticks(4),
            x_write=lambda v: f"{v:g}",
            y_write=measure.write_tick,
            x_title="Epoch",
        ),
        series(entry.index, lines),
    )
