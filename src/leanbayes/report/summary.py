"""Which method to choose, in sentences that follow from the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leanbayes.report.content import Comparison, Entry
from leanbayes.report.measures import Measure

SMALL = 1.2
_PLAIN = ("plain", "deterministic", "point", "map")
_LIKELIHOOD = ("nll", "lpd", "brier", "rmse", "accuracy")
_CALIBRATION = ("ece", "coverage")
_QUALITY = ("accuracy", "rmse")
_WORDS = {"accuracy": "accuracy", "coverage": "coverage"}


@dataclass(frozen=True)
class Finding:
    """One question and its answer."""

    question: str
    answer: str

    def __post_init__(self):
        object.__setattr__(self, "answer", self.answer[:1].upper() + self.answer[1:])


def summarise(comparison: Comparison) -> list[Finding]:
    """Everything the numbers say in words, the choice first."""
    found = (
        _choice(comparison),
        _whatever_it_costs(comparison),
        _calibrated(comparison),
        _fast(comparison),
        _corrupted(comparison),
        _unfamiliar(comparison),
        _noise(comparison),
    )
    return [finding for finding in found if finding is not None]


def recommended(comparison: Comparison) -> Entry | None:
    """The best small method that beats the baselines; without one, the best small method, then the best of all."""
    key = _first(comparison, _LIKELIHOOD)
    if key is None:
        return None
    for entries in (_winners(comparison), _small(comparison), comparison.having(key)):
        entry = best(comparison.measure(key), entries)
        if entry is not None:
            return entry
    return None


def plain(comparison: Comparison) -> Entry | None:
    """The plain network."""
    return next((entry for entry in comparison.done if _is_plain(entry)), None)


def best(measure: Measure, entries: Iterable[Entry]) -> Entry | None:
    """The method with the best mean; the first of equals."""
    having = [entry for entry in entries if measure.key in entry.measures]
    return min(having, key=lambda entry: measure.cost(entry.measures[measure.key].mean), default=None)


def called(entry: Entry) -> str:
    """How sentences call a method."""
    return "the plain network" if _is_plain(entry) else entry.title


def _choice(comparison: Comparison) -> Finding | None:
    question = "Which method to choose?"
    chosen, key = recommended(comparison), _first(comparison, _LIKELIHOOD)
    if chosen is None or key is None:
        return None
    if len(comparison.having(key)) < 2:
        return Finding(question, f"Only {called(chosen)} has results, so there is nothing to choose from.")
    if chosen in _winners(comparison):
        return Finding(question, _winner_sentence(comparison, chosen))
    value = _value(comparison, chosen, key)
    against = _and([called(entry) for entry in _baselines(comparison)])
    if chosen in _small(comparison) and against:
        return Finding(
            question,
            f"No method at up to {SMALL}× the plain network's parameters beats {against} in "
            f"{_and(_contest(comparison))} without losing {_quality_words(comparison)}. "
            f"At that size, {called(chosen)} has the best {value}.",
        )
    return Finding(question, f"{called(chosen)} has the best {value}.")


def _winner_sentence(comparison: Comparison, chosen: Entry) -> str:
    rivals = _baselines(comparison)
    parts = []
    for key in _contest_keys(comparison):
        measure = comparison.measure(key)
        others = _and([measure.write(rival.measures[key].mean) for rival in rivals if key in rival.measures])
        parts.append(f"{_WORDS.get(key, measure.title)} ({measure.write(chosen.measures[key].mean)} against {others})")
    size = chosen.mean("overhead")
    cost = f"With {size:.2f}× the plain network's parameters it" if size is not None else "It"
    words = _quality_words(comparison)
    kept = f", and loses no {words} against {called(rivals[0])}" if words else ""
    return (
        f"Choose {called(chosen)}. {cost} beats {_and([called(rival) for rival in rivals])} in {_and(parts)}{kept}."
        + _doubt(comparison, chosen, rivals)
    )


def _doubt(comparison: Comparison, chosen: Entry, rivals: Sequence[Entry]) -> str:
    small = []
    for measure in map(comparison.measure, _contest_keys(comparison)):
        for rival in rivals:
            own, other = chosen.measures[measure.key], rival.measures[measure.key]
            lead = measure.cost(other.mean) - measure.cost(own.mean)
            if lead <= max(own.std or 0.0, other.std or 0.0):
                small.append(f"over {called(rival)} in {measure.title}")
    return f" Its lead {_and(small)} is within one standard deviation over the seeds." if small else ""


def _whatever_it_costs(comparison: Comparison) -> Finding | None:
    key = _first(comparison, _LIKELIHOOD)
    if key is None or len(comparison.having(key)) < 2:
        return None
    top = best(comparison.measure(key), comparison.having(key))
    if top is None:
        return None
    question = "And if cost does not matter?"
    value = _value(comparison, top, key)
    if top is recommended(comparison):
        return Finding(question, f"Still {called(top)}: no method has a better {comparison.measure(key).title}.")
    reference = plain(comparison)
    costs = []
    if (size := top.mean("overhead")) is not None:
        costs.append(f"{size:.2f}× the parameters")
    own, other = top.mean("predict_ms"), reference.mean("predict_ms") if reference else None
    if own is not None and other:
        costs.append(f"{own / other:.1f}× the prediction time")
    against = f", at {_and(costs)} of the plain network" if costs else ""
    return Finding(question, f"{called(top)} has the best {value}{against}.")


def _calibrated(comparison: Comparison) -> Finding | None:
    key = _first(comparison, _CALIBRATION)
    if key is None or len(comparison.having(key)) < 2:
        return None
    measure = comparison.measure(key)
    small = [entry for entry in _small(comparison) if key in entry.measures]
    entry = best(measure, small or comparison.having(key))
    if entry is None:
        return None
    value = measure.write(entry.measures[key].mean)
    limit = f"Among methods at up to {SMALL}× the parameters, " if small else ""
    if key == "coverage":
        nominal = measure.write_tick(measure.target)
        text = f"{limit}{called(entry)} covers {value} of the targets, closest to the nominal {nominal}."
        return Finding("Whose intervals hold what they promise?", text)
    return Finding(
        "Whose probabilities can be taken at face value?",
        f"{limit}{called(entry)} has the smallest {measure.name}, {value}.",
    )


def _fast(comparison: Comparison) -> Finding | None:
    key, reference = _first(comparison, _LIKELIHOOD), plain(comparison)
    if key is None or reference is None or key not in reference.measures:
        return None
    measure = comparison.measure(key)
    better = [entry for entry in comparison.having("predict_ms") if _beats(entry, reference, measure)]
    entry = best(comparison.measure("predict_ms"), better)
    if entry is None:
        return None
    own, other = entry.measures["predict_ms"].mean, reference.mean("predict_ms")
    ratio = f", {own / other:.1f}× the plain network's time" if other else ""
    time = comparison.measure("predict_ms").write(own)
    return Finding(
        "Which predicts fastest?",
        f"Of the methods with a better {measure.title} than {called(reference)}, {called(entry)} predicts fastest: "
        f"{time} per example{ratio}.",
    )


def _corrupted(comparison: Comparison) -> Finding | None:
    worst = max((severity for entry in comparison.done for severity in entry.corrupted), default=None)
    if worst is None:
        return None
    at_worst = {entry.index: entry.corrupted[worst] for entry in comparison.done if worst in entry.corrupted}
    key = next((k for k in _LIKELIHOOD if sum(k in metrics for metrics in at_worst.values()) > 1), None)
    if key is None:
        return None
    measure = comparison.measure(key)
    entries = [e for e in comparison.done if key in at_worst.get(e.index, {})]
    entry = min(entries, key=lambda e: measure.cost(at_worst[e.index][key].mean))
    text = f"At severity {worst}, {called(entry)} has the best {measure.title}, {_mean(measure, at_worst[entry.index])}"
    reference = plain(comparison)
    if reference is not None and reference is not entry and reference in entries:
        text += f", against {_mean(measure, at_worst[reference.index])} for {called(reference)}"
    return Finding("Which holds up on corrupted data?", f"{text}.")


def _mean(measure: Measure, metrics: dict) -> str:
    return measure.write(metrics[measure.key].mean)


def _unfamiliar(comparison: Comparison) -> Finding | None:
    having = comparison.having("auroc")
    if len(having) < 2:
        return None
    measure = comparison.measure("auroc")
    entry = best(measure, having)
    assert entry is not None
    reference = plain(comparison)
    against = ""
    if reference is not None and reference is not entry and reference in having:
        against = f", against {measure.write(reference.measures['auroc'].mean)} for {called(reference)}"
    other = entry.ood_name or "other data"
    value = measure.write(entry.measures["auroc"].mean)
    return Finding(
        "Which recognises unfamiliar inputs?",
        f"{called(entry)} tells {other} from {comparison.data} best by its entropy: AUROC {value}{against}.",
    )


def _noise(comparison: Comparison) -> Finding | None:
    key = _first(comparison, _LIKELIHOOD)
    if key is None or len(comparison.having(key)) < 2:
        return None
    question = "How sure is this?"
    if comparison.seeds < 2:
        return Finding(question, "There is one seed, so small differences may be chance; compare with several seeds.")
    measure = comparison.measure(key)
    ranked = sorted(comparison.having(key), key=lambda e: measure.cost(e.measures[key].mean))
    top = ranked[0].measures[key]
    close = [called(e) for e in ranked[1:] if abs(e.measures[key].mean - top.mean) <= (top.std or 0.0)]
    if not close:
        return Finding(
            question,
            f"Over {comparison.seeds} seeds, the lead of {called(ranked[0])} in {measure.title} is larger than its own "
            "standard deviation.",
        )
    verb = "is" if len(close) == 1 else "are"
    return Finding(
        question,
        f"Over {comparison.seeds} seeds, {_and(close)} {verb} within one standard deviation of {called(ranked[0])} in "
        f"{measure.title}: take them as equal.",
    )


def _winners(comparison: Comparison) -> list[Entry]:
    baselines, keys = _baselines(comparison), _contest_keys(comparison)
    if not baselines or not keys:
        return []
    quality = _first(comparison, _QUALITY)
    return [
        entry
        for entry in _small(comparison)
        if entry not in baselines
        and all(_beats(entry, rival, comparison.measure(key)) for rival in baselines for key in keys)
        and (quality is None or _keeps(entry, baselines[0], comparison.measure(quality)))
    ]


def _baselines(comparison: Comparison) -> list[Entry]:
    dropout = next((e for e in comparison.done if _words(e.name)[:2] == ["mc", "dropout"]), None)
    found = [entry for entry in (plain(comparison), dropout) if entry is not None]
    # Nothing is said about a baseline whose numbers are missing.
    return [entry for entry in found if all(key in entry.measures for key in _contest_keys(comparison))]


def _small(comparison: Comparison) -> list[Entry]:
    return [e for e in comparison.having("overhead") if e.measures["overhead"].mean <= SMALL]


def _contest_keys(comparison: Comparison) -> list[str]:
    keys = [_first(comparison, _LIKELIHOOD), _first(comparison, _CALIBRATION)]
    return [key for key in keys if key is not None]


def _contest(comparison: Comparison) -> list[str]:
    return [_WORDS.get(key, comparison.measure(key).title) for key in _contest_keys(comparison)]


def _quality_words(comparison: Comparison) -> str:
    return {"accuracy": "accuracy", "rmse": "precision (RMSE)", None: ""}[_first(comparison, _QUALITY)]


def _beats(entry: Entry, rival: Entry, measure: Measure) -> bool:
    if measure.key not in rival.measures or measure.key not in entry.measures:
        return False
    return measure.cost(entry.measures[measure.key].mean) < measure.cost(rival.measures[measure.key].mean)


def _keeps(entry: Entry, rival: Entry, measure: Measure) -> bool:
    both = measure.key in entry.measures and measure.key in rival.measures
    return both and not _beats(rival, entry, measure)


def _first(comparison: Comparison, keys: Sequence[str]) -> str | None:
    return next((key for key in keys if comparison.having(key)), None)


def _value(comparison: Comparison, entry: Entry, key: str) -> str:
    measure = comparison.measure(key)
    return f"{measure.name}: {measure.write(entry.measures[key].mean)}"


def _is_plain(entry: Entry) -> bool:
    return any(word in _PLAIN for word in _words(entry.name)[:1])


def _words(name: str) -> list[str]:
    return name.lower().replace("-", " ").replace("_", " ").replace("mcdropout", "mc dropout").split()


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
