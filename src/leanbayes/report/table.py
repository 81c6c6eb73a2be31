"""The comparison table."""

from __future__ import annotations

from collections.abc import Iterable

from leanbayes.report.blocks import method
from leanbayes.report.choice import too_few
from leanbayes.report.content import Comparison, Entry
from leanbayes.report.markup import Markup, hidden, tag
from leanbayes.report.measures import Measure

_COSTS = ("parameters", "overhead", "train_seconds", "predict_ms")
_AFTER = ("auroc", "fpr95", *_COSTS)


def columns(comparison: Comparison) -> list[Measure]:
    """The measures that at least one method has."""
    keys = [*comparison.metrics, *_AFTER]
    if comparison.having("parameters"):
        keys.remove("overhead")  # it stands under the number
    return [comparison.measure(key) for key in dict.fromkeys(keys) if comparison.having(key)]


def comparison_table(comparison: Comparison) -> Markup:
    """The table, with a button in each heading that sorts; scripts make it work."""
    shown = columns(comparison)
    best = {measure.key: _starred(comparison, measure) for measure in shown}
    head = [_heading("method", "Method", "ascending", "text"), *(_measure_heading(measure) for measure in shown)]
    rows = [_row(comparison, entry, shown, best) for entry in comparison.entries]
    table = tag(
        "table",
        tag("caption", "Comparison of the methods", class_="sr"),
        tag("thead", tag("tr", head)),
        tag("tbody", rows),
        id="comparison-table",
    )
    scroll = tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Comparison of the methods")
    hint = tag("p", _hint(comparison), class_="hint")
    swipe = tag("p", "Swipe sideways to see all columns.", class_="hint swipe")
    return tag("div", hint, swipe, scroll, tag("p", class_="sr", role="status", id="sorted"), _failures(comparison))


def _starred(comparison: Comparison, measure: Measure) -> float | None:
    """The best mean of a measure, where it says something: more than a guess would, and on more than a few examples."""
    entries = comparison.having(measure.key)
    told = any(comparison.chance(entry, measure.key) is None for entry in entries)
    if not told or (too_few(comparison) and measure.key not in _COSTS):
        return None
    return best_value(measure, entries)


def best_value(measure: Measure, entries: Iterable[Entry]) -> float | None:
    """The best mean of a measure; None where no direction is better or all are equal."""
    means = [entry.measures[measure.key].mean for entry in entries]
    if not measure.better or len(set(means)) < 2:
        return None
    return min(means, key=measure.cost)


def _hint(comparison: Comparison) -> str:
    counts = comparison.evidence.examples
    parts = ["A star marks the best mean of each column; arrows show which direction is better."]
    if comparison.evidence.pairs:
        on = f" on the {counts['test']:,} test examples" if "test" in counts else ""
        parts.append(f"A wavy sign (≈) marks ties: a paired test{on} does not tell the method from the best.")
    if any(comparison.chance(entry, key) for entry in comparison.done for key in entry.measures):
        parts.append(
            "“At chance” is not clearly better than a guess that ignores the input, and “below chance” is worse."
        )
    if "ood" in counts and comparison.having("auroc"):
        parts.append(f"OOD columns compare the test examples with {counts['ood']:,} unfamiliar inputs.")
    if comparison.seeds == 1 and any(entry.fpr95_range for entry in comparison.done):
        parts.append("The small range below FPR95 holds 95% of its values when these examples are resampled.")
    parts.append(
        f"Means over {comparison.seeds} seeds, ± the standard deviation."
        if comparison.seeds > 1
        else "Every figure comes from a single training run."
    )
    return " ".join(parts)


def _measure_heading(measure: Measure) -> Markup:
    first = "descending" if measure.better == "higher" else "ascending"
    return _heading(measure.key, measure.title, first, "number", measure)


def _heading(key: str, title: str, first: str, class_: str, measure: Measure | None = None) -> Markup:
    arrow = {"higher": "↑", "lower": "↓"}.get(measure.better or "", "") if measure else ""
    direction = f", {measure.direction}" if measure and measure.direction else ""
    button = tag(
        "button",
        title,
        tag("span", f"\u00a0{arrow}", aria_hidden="true", class_="better") if arrow else None,
        hidden(direction) if direction else None,
        tag("span", aria_hidden="true", class_="order"),
        type="button",
        title=f"{measure.name}{direction}" if measure else "Sort by name",
    )
    return tag("th", button, scope="col", class_=class_, data_key=key, data_first=first, aria_sort="none")


def _row(comparison: Comparison, entry: Entry, shown: list[Measure], best: dict[str, float | None]) -> Markup:
    failed = tag("span", "failed", class_="note") if entry.failed else None
    name = tag("th", method(entry), failed, scope="row", data_value=entry.title)
    cells = [_cell(comparison, entry, measure, best[measure.key]) for measure in shown]
    return tag("tr", name, cells, data_method=str(entry.index), data_name=entry.name)


def _cell(comparison: Comparison, entry: Entry, measure: Measure, best: float | None) -> Markup:
    spread = entry.measures.get(measure.key) if entry.failed is None else None
    if spread is None:
        return tag("td", tag("span", "–", aria_hidden="true"), hidden("no value"), class_="number")
    is_best = spread.mean == best
    is_tied = not is_best and best is not None and _is_tied(comparison, entry, measure, best)
    star = tag("span", "★", aria_hidden="true", class_="star") if is_best else None
    sign = tag("span", "≈", aria_hidden="true", class_="tie") if is_tied else None
    words = " (best)" if is_best else " (tied with the best)" if is_tied else ""
    value = [star, sign, measure.write(spread.mean), hidden(words) if words else None]
    chance = comparison.chance(entry, measure.key)
    return tag(
        "td",
        tag("strong", value) if is_best else value,
        _below(entry, measure),
        tag("span", chance, class_="chance") if chance else None,
        class_="number best" if is_best else "number",
        data_value=repr(spread.mean),
    )


def _is_tied(comparison: Comparison, entry: Entry, measure: Measure, best: float) -> bool:
    tops = [other for other in comparison.having(measure.key) if other.measures[measure.key].mean == best]
    return any(comparison.judge(entry, top, measure.key) == "tie" for top in tops)


def _below(entry: Entry, measure: Measure) -> Markup | None:
    std, overhead = entry.measures[measure.key].std, entry.mean("overhead")
    if measure.key == "parameters" and overhead is not None:
        return tag("span", f"{overhead:.2f}×", hidden(" the plain network's"), class_="std")
    if measure.key == "fpr95" and std is None and entry.fpr95_range is not None:
        low, high = (f"{100 * end:.0f}" for end in entry.fpr95_range)
        return tag("span", f"{low}–{high}%", class_="std")
    return tag("span", f"± {_std(measure, std)}", class_="std") if std is not None else None


def _std(measure: Measure, std: float) -> str:
    scaled = 100 * std if measure.style == "percent" else std
    if 0 < scaled < 1e-4:  # would be written with an exponent
        return f"{scaled:.5f}"
    return f"{scaled:#.2g}".rstrip(".") if scaled < 99.5 else f"{scaled:,.0f}"


def _failures(comparison: Comparison) -> Markup | None:
    failed = [entry for entry in comparison.entries if entry.failed is not None]
    if not failed:
        return None
    items = [tag("li", tag("strong", entry.title), ": ", entry.failed) for entry in failed]
    return tag("div", tag("h3", "Methods that did not finish"), tag("ul", items), class_="failures")
