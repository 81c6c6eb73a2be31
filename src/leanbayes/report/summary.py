"""What the figures say besides the choice, one question at a time."""

from __future__ import annotations

from statistics import NormalDist

from leanbayes.report.choice import (
    LIKELIHOOD,
    SMALL,
    Finding,
    best,
    called,
    choice,
    first_of,
    listed,
    plain,
    recommended,
    small,
    tested,
    tested_on,
    ties,
    too_few,
)
from leanbayes.report.content import Comparison, Entry
from leanbayes.report.evidence import LEVEL
from leanbayes.report.measures import Measure

__all__ = ["Finding", "recommended", "summarise"]

_CALIBRATION = ("ece", "coverage")


def summarise(comparison: Comparison) -> list[Finding]:
    """Everything the numbers say in words, the choice first."""
    if too_few(comparison):
        return [finding for finding in (choice(comparison),) if finding is not None]
    found = (
        choice(comparison),
        _whatever_it_costs(comparison),
        _calibrated(comparison),
        _fast(comparison),
        _corrupted(comparison),
        _unfamiliar(comparison),
        _sure(comparison),
    )
    return [finding for finding in found if finding is not None]


def _whatever_it_costs(comparison: Comparison) -> Finding | None:
    key = first_of(comparison, LIKELIHOOD)
    if key is None or len(comparison.having(key)) < 2:
        return None
    measure = comparison.measure(key)
    top = best(measure, comparison.having(key))
    if top is None or comparison.chance(top, key):
        return None
    question = "And if cost is no object?"
    tied = ties(comparison, top, key)
    value = measure.write(top.measures[key].mean)
    if top is recommended(comparison):
        return Finding(question, f"Still {called(top)}: no method has a better {measure.title} than its {value}.{tied}")
    reference = plain(comparison)
    costs = []
    if (size := top.mean("overhead")) is not None:
        costs.append(f"{size:.2f}× the parameters")
    own, other = top.mean("predict_ms"), reference.mean("predict_ms") if reference else None
    if own is not None and other:
        costs.append(f"{own / other:.1f}× the prediction time")
    against = f", at {listed(costs)} of the plain network" if costs and top is not reference else ""
    return Finding(question, f"{called(top)} has the best {measure.name}, {value}{against}.{tied}")


def _calibrated(comparison: Comparison) -> Finding | None:
    key = first_of(comparison, _CALIBRATION)
    if key is None or len(comparison.having(key)) < 2:
        return None
    measure = comparison.measure(key)
    near = [entry for entry in small(comparison) if key in entry.measures]
    near = near if len(near) > 1 else []  # one alone is the best of nothing
    entry = best(measure, near or comparison.having(key))
    if entry is None:
        return None
    value = measure.write(entry.measures[key].mean)
    limit = f"Among methods with up to {SMALL}× the parameters, " if near else ""
    count = comparison.evidence.examples.get("test")
    if key == "coverage":
        nominal = measure.write_tick(measure.target)
        text = f"{limit}{called(entry)} covers {value} of the targets, closest to the nominal {nominal}."
        if count:
            room = NormalDist().inv_cdf(1 - LEVEL / 2) * (measure.target * (1 - measure.target) / count) ** 0.5
            text += f" With {count:,} test examples, {100 * room:.1f} points either way is within chance."
        return Finding("Whose intervals keep their promise?", text)
    known = f" It is an estimate from {count:,} examples: look at the reliability diagrams, too." if count else ""
    reference, against = plain(comparison), ""
    if reference is not None and reference is not entry and key in reference.measures:
        against = f", against {measure.write(reference.measures[key].mean)} for {called(reference)}"
    return Finding(
        "Whose probabilities can you take at face value?",
        f"{limit}{called(entry)} has the smallest {measure.name}, {value}{against}.{known}",
    )


def _fast(comparison: Comparison) -> Finding | None:
    key, reference = first_of(comparison, LIKELIHOOD), plain(comparison)
    if key is None or reference is None or key not in reference.measures:
        return None
    measure = comparison.measure(key)
    better = [e for e in comparison.having("predict_ms") if comparison.judge(e, reference, key) == "better"]
    entry = best(comparison.measure("predict_ms"), better)
    if entry is None:
        return None
    own, other = entry.measures["predict_ms"].mean, reference.mean("predict_ms")
    ratio = f", {own / other:.1f}× the plain network's time" if other else ""
    time = comparison.measure("predict_ms").write(own)
    return Finding(
        "Which predicts fastest?",
        f"Of the methods that beat {called(reference)} in {measure.title}, {called(entry)} is the fastest: "
        f"{time} per example{ratio}.",
    )


def _corrupted(comparison: Comparison) -> Finding | None:
    worst = max((severity for entry in comparison.done for severity in entry.corrupted), default=None)
    if worst is None:
        return None
    at_worst = {entry.index: entry.corrupted[worst] for entry in comparison.done if worst in entry.corrupted}
    key = next((k for k in LIKELIHOOD if sum(k in metrics for metrics in at_worst.values()) > 1), None)
    if key is None:
        return None
    measure = comparison.measure(key)
    entries = [e for e in comparison.done if key in at_worst.get(e.index, {})]
    entry = min(entries, key=lambda e: measure.cost(at_worst[e.index][key].mean))
    count = comparison.evidence.examples.get("corrupted")
    on = f" ({count:,} examples)" if count else ""
    text = f"At severity {worst}{on}, {called(entry)} has the best {measure.title}, "
    text += _mean(measure, at_worst[entry.index])
    reference = plain(comparison)
    if reference is not None and reference is not entry and reference in entries:
        text += f", against {_mean(measure, at_worst[reference.index])} for {called(reference)}"
    return Finding("Which holds up on corrupted data?", f"{text}. This was not tested, and may be chance.")


def _mean(measure: Measure, metrics: dict) -> str:
    return measure.write(metrics[measure.key].mean)


def _unfamiliar(comparison: Comparison) -> Finding | None:
    having = comparison.having("auroc")
    if len(having) < 2:
        return None
    measure = comparison.measure("auroc")
    entry = best(measure, having)
    assert entry is not None
    other = entry.ood_name or "other data"
    value = measure.write(entry.measures["auroc"].mean)
    question = "Which recognises unfamiliar inputs?"
    if comparison.chance(entry, "auroc"):
        return Finding(
            question,
            f"None: no method's entropy tells {other} from {comparison.data} better than chance (an AUROC of "
            f"50%). The best, {called(entry)}, has {value}.",
        )
    reference = plain(comparison)
    against = ""
    if reference in having and reference is not entry and not comparison.chance(reference, "auroc"):
        against = f"; {called(reference)} has {measure.write(reference.measures['auroc'].mean)}"
    return Finding(
        question,
        f"{called(entry)}: its entropy tells {other} from {comparison.data} best, with an AUROC of {value} "
        f"(50% is chance){against}.{_at_chance(comparison, having)}",
    )


def _at_chance(comparison: Comparison, entries: list[Entry]) -> str:
    words = []
    for word in ("at chance", "below chance"):
        found = [called(entry) for entry in entries if comparison.chance(entry, "auroc") == word]
        if found:
            words.append(f"{listed(found)} {'is' if len(found) == 1 else 'are'} {word}")
    return f" {'; '.join(words)[:1].upper()}{'; '.join(words)[1:]}." if words else ""


def _sure(comparison: Comparison) -> Finding | None:
    key = first_of(comparison, LIKELIHOOD)
    if key is None or len(comparison.having(key)) < 2:
        return None
    question = "How sure is this?"
    if not tested(comparison, key):
        return Finding(
            question,
            "Small differences may be chance. They were not tested, because these results lack the losses of single "
            "examples; run the comparison again for that.",
        )
    seeds = f"{comparison.seeds} seeds" if comparison.seeds > 1 else "one seed"
    text = (
        f"The figures rest on {tested_on(comparison)} and {seeds}. Two methods count as tied unless a paired test "
        "tells them apart at the 5% level, corrected for the number of methods."
    )
    if comparison.seeds < 2:
        text += " The test cannot see how one training run differs from the next: only more seeds show that."
    return Finding(question, text)
