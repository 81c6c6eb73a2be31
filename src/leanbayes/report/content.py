"""What is in compare.json; a part that is missing or makes no sense is absent, never an error."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leanbayes.report.evidence import Evidence, Judgement, fpr_at_chance, read_evidence
from leanbayes.report.measures import Measure, canonical, measure
from leanbayes.report.values import mapping, number, numbers, sequence, text


@dataclass(frozen=True)
class Spread:
    """The values of one quantity over the seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """The sample standard deviation over the seeds; None for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Histogram:
    """Predictive entropy in nats; counts inside and outside the training distribution."""

    edges: tuple[float, ...]
    inside: tuple[float, ...]
    outside: tuple[float, ...]


@dataclass(frozen=True)
class Bin:
    """One bin of a reliability diagram."""

    count: float
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    """How often targets lie within central intervals.

    Attributes:
        levels: Nominal coverages.
        coverage: What is covered.
        pit: Counts of targets in equal parts of their predictive distributions.
    """

    levels: tuple[float, ...]
    coverage: tuple[float, ...]
    pit: tuple[float, ...]


@dataclass(frozen=True)
class Interval:
    """The prediction of one test example."""

    mean: float
    lower: float
    upper: float
    target: float


@dataclass(frozen=True)
class Example:
    """One image and what was predicted for it."""

    image: Any
    label: str
    predicted: str
    probs: dict[str, float]


@dataclass(frozen=True)
class Entry:
    """One method.

    Attributes:
        index: Its place in the comparison, which gives its colour and shape.
        name: Its key.
        title: Its name for readers.
        measures: Everything that goes in the table, costs included, by name.
        corrupted: Metrics by severity.
        ood_name: The data set from outside.
        fpr95_range: Where most resamples of the examples have the share of false alarms.
        entropy: Entropies inside and outside.
        reliability: The bins that hold examples.
        calibration: Coverage of prediction intervals by level.
        intervals: Those of some test examples, in the order of the predictions.
        history: One mapping per epoch.
        certain: Examples of which the method is most certain.
        uncertain: Examples of which it is least certain.
        failed: None, or why there are no results.
    """

    index: int
    name: str
    title: str
    measures: dict[str, Spread] = field(default_factory=dict)
    corrupted: dict[int, dict[str, Spread]] = field(default_factory=dict)
    ood_name: str = ""
    fpr95_range: tuple[float, float] | None = None
    entropy: Histogram | None = None
    reliability: tuple[Bin, ...] = ()
    calibration: Calibration | None = None
    intervals: tuple[Interval, ...] = ()
    history: tuple[dict[str, float], ...] = ()
    certain: tuple[Example, ...] = ()
    uncertain: tuple[Example, ...] = ()
    failed: str | None = None

    def mean(self, key: str) -> float | None:
        """The mean of a measure over the seeds, None where there is none."""
        spread = self.measures.get(key)
        return spread.mean if spread else None


@dataclass(frozen=True)
class Comparison:
    """All methods on one data set.

    Attributes:
        data: The data set's name.
        task: "classification" or "regression".
        facts: What is known about the run, for the header: label and text.
        metrics: Names of the metrics in the order of the table.
        entries: The methods.
        seeds: How many.
        level: The nominal coverage of prediction intervals.
        notes: What was done to the data, one sentence each.
        evidence: What the figures stand on.
    """

    data: str
    task: str
    facts: tuple[tuple[str, str], ...]
    metrics: tuple[str, ...]
    entries: tuple[Entry, ...]
    seeds: int
    level: float = 0.95
    notes: tuple[str, ...] = ()
    evidence: Evidence = Evidence()

    @property
    def done(self) -> tuple[Entry, ...]:
        """The methods that have results."""
        return tuple(entry for entry in self.entries if entry.failed is None)

    def measure(self, key: str) -> Measure:
        """What is known about a measure here."""
        return measure(key, self.level)

    def having(self, key: str) -> list[Entry]:
        """The methods for which a measure is there."""
        return [entry for entry in self.done if key in entry.measures]

    def judge(self, first: Entry, second: Entry, key: str) -> Judgement | None:
        """Whether the first method is better or worse than the second beyond chance; None where it was not tested."""
        return self.evidence.judge(self.measure(key), first.name, second.name, len(self.done))

    def tied(self, top: Entry, key: str) -> list[Entry]:
        """The methods that no test tells from one of them, the best mean first."""
        cost = self.measure(key).cost
        found = [e for e in self.having(key) if e is not top and self.judge(e, top, key) == "tie"]
        return sorted(found, key=lambda entry: cost(entry.measures[key].mean))

    def chance(self, entry: Entry, key: str) -> str | None:
        """What to call a figure that is not clearly better than a guess."""
        mean = entry.mean(key)
        if key == "fpr95" and mean is not None:
            return fpr_at_chance(mean, entry.fpr95_range)
        return None if mean is None else self.evidence.chance(self.measure(key), mean, entry.name)


def parse(raw: Mapping[str, Any]) -> Comparison:
    """Take what is usable from the content of compare.json."""
    methods = [method for method in sequence(raw.get("methods")) if isinstance(method, Mapping)]
    entries = tuple(_entry(index, method) for index, method in enumerate(methods))
    found = [canonical(key) for method in methods for key in mapping(method.get("metrics"))]
    listed = [canonical(key) for key in sequence(raw.get("metrics")) if isinstance(key, str)]
    seeds = sequence(raw.get("seeds"))
    level = number(raw.get("level"))
    return Comparison(
        data=text(raw.get("data")) or "unnamed data",
        task=text(raw.get("task")) or "classification",
        facts=tuple(_facts(raw)),
        metrics=tuple(key for key in dict.fromkeys([*listed, *found]) if any(key in e.measures for e in entries)),
        entries=entries,
        seeds=len(seeds) or max((len(s.values) for e in entries for s in e.measures.values()), default=1),
        level=level if level is not None and 0 < level < 1 else 0.95,
        notes=tuple(_notes(raw)),
        evidence=read_evidence(raw),
    )


def _notes(raw: Mapping[str, Any]) -> list[str]:
    """What the reader of the data did, and what the corrupted data are."""
    notes = [text(note) for note in sequence(raw.get("notes"))]
    shift = text(raw.get("shift"))
    notes += [f"corrupted data, by severity: {shift}"] if shift else []
    elsewhere = (text(mapping(mapping(method).get("ood")).get("name")) for method in sequence(raw.get("methods")))
    notes += [f"unfamiliar inputs: {name}" for name in dict.fromkeys(elsewhere) if name]
    return [note[:1].upper() + note[1:] + ("" if note.endswith((".", "!", "?")) else ".") for note in notes if note]


def _facts(raw: Mapping[str, Any]) -> list[tuple[str, str]]:
    joined = ", ".join(text(seed) for seed in sequence(raw.get("seeds")))
    versions = ", ".join(f"{name} {text(version)}" for name, version in mapping(raw.get("versions")).items())
    classes = sequence(raw.get("classes"))
    pairs = [
        ("Data set", text(raw.get("data"))),
        ("Task", text(raw.get("task")) + (f", {len(classes)} classes" if classes else "")),
        ("Examples", _counted(raw)),
        ("Device", text(raw.get("device"))),
        ("Date", _date(text(raw.get("date")))),
        ("Seeds", joined),
        ("Samples per prediction", text(raw.get("samples"))),
        ("Augmentation", _augmentation(mapping(raw.get("settings")))),
        ("Versions", versions),
        ("Command", text(raw.get("command"))),
    ]
    return [(label, text) for label, text in pairs if text]


def _date(written: str) -> str:
    """A date and time as people write them; what is none stays as it is."""
    try:
        found = datetime.datetime.fromisoformat(written)
    except ValueError:
        return written
    return f"{found:%d %B %Y, %H:%M}".lstrip("0") + (f" {found:%Z}" if found.tzinfo else "")


def _counted(raw: Mapping[str, Any]) -> str:
    words = {"train": "for training", "valid": "for validation", "test": "for testing"}
    counts = read_evidence(raw).examples
    return ", ".join(f"{counts[part]:,} {word}" for part, word in words.items() if part in counts)


def _augmentation(settings: Mapping[str, Any]) -> str:
    """What was done to training examples; nothing is known where it was not noted."""
    return (text(settings["augment"]) or "none") if "augment" in settings else ""


def _entry(index: int, raw: Mapping[str, Any]) -> Entry:
    name = text(raw.get("name")) or f"method {index + 1}"
    ood, examples = mapping(raw.get("ood")), mapping(raw.get("examples"))
    failed = raw.get("status") == "failed" or bool(raw.get("error"))
    return Entry(
        index=index,
        name=name,
        title=text(raw.get("title")) or name,
        measures=_measures(raw, ood),
        corrupted=_corrupted(raw.get("corrupted")),
        ood_name=text(ood.get("name")),
        fpr95_range=_range(ood),
        entropy=_histogram(mapping(raw.get("entropy"))),
        reliability=_bins(mapping(raw.get("reliability"))),
        calibration=_calibration(mapping(raw.get("calibration"))),
        intervals=_intervals(mapping(raw.get("intervals"))),
        history=_history(raw.get("history")),
        certain=_examples(examples.get("certain")),
        uncertain=_examples(examples.get("uncertain")),
        failed=(text(raw.get("error")) or "no reason was recorded") if failed else None,
    )


def _measures(raw: Mapping[str, Any], ood: Mapping[str, Any]) -> dict[str, Spread]:
    parameters, plain = number(raw.get("parameters")), number(raw.get("plain_parameters"))
    overhead = number(raw.get("overhead"))
    if overhead is None and parameters is not None and plain:
        overhead = parameters / plain
    values = {
        **mapping(raw.get("metrics")),
        "auroc": ood.get("auroc"),
        "fpr95": ood.get("fpr95"),
        "parameters": parameters,
        "overhead": overhead,
        "train_seconds": raw.get("train_seconds"),
        "predict_ms": raw.get("predict_ms_per_example"),
    }
    return _spreads(values)


def _range(ood: Mapping[str, Any]) -> tuple[float, float] | None:
    low, high = (_spread(ood.get(key)) for key in ("fpr95_low", "fpr95_high"))
    return None if low is None or high is None else (low.mean, high.mean)


def _corrupted(raw: Any) -> dict[int, dict[str, Spread]]:
    found = {}
    for severity, metrics in mapping(raw).items():
        spreads = _spreads(mapping(metrics))
        if str(severity).isdecimal() and spreads:
            found[int(severity)] = spreads
    return dict(sorted(found.items()))


def _spreads(raw: Mapping[str, Any]) -> dict[str, Spread]:
    found = {canonical(key): _spread(value) for key, value in raw.items()}
    return {key: spread for key, spread in found.items() if spread is not None}


def _spread(raw: Any) -> Spread | None:
    values = numbers(raw if isinstance(raw, list | tuple) else [raw])
    return Spread(values) if values else None


def _histogram(raw: Mapping[str, Any]) -> Histogram | None:
    edges, inside, outside = (numbers(raw.get(key)) for key in ("edges", "in", "out"))
    if len(edges) < 2 or len(inside) != len(edges) - 1 or any(b <= a for a, b in zip(edges, edges[1:])):
        return None
    return Histogram(edges, inside, outside if len(outside) == len(inside) else ())


def _bins(raw: Mapping[str, Any]) -> tuple[Bin, ...]:
    columns = [sequence(raw.get(key)) for key in ("count", "confidence", "accuracy")]
    rows = [[number(value) for value in row] for row in zip(*columns)]
    # A bin without examples has no confidence or accuracy, or ones that mean nothing.
    return tuple(Bin(*row) for row in rows if all(value is not None for value in row) and row[0])  # pyright: ignore


def _calibration(raw: Mapping[str, Any]) -> Calibration | None:
    levels, covered = numbers(raw.get("level")), numbers(raw.get("coverage"))
    if len(levels) < 2 or len(levels) != len(covered) or not all(0 <= v <= 1 for v in (*levels, *covered)):
        return None
    return Calibration(levels, covered, tuple(count for count in numbers(raw.get("pit")) if count >= 0))


def _intervals(raw: Mapping[str, Any]) -> tuple[Interval, ...]:
    columns = [sequence(raw.get(key)) for key in ("mean", "lower", "upper", "target")]
    rows = [[number(value) for value in row] for row in zip(*columns)]
    return tuple(Interval(*row) for row in rows if all(value is not None for value in row))  # pyright: ignore


def _history(raw: Any) -> tuple[dict[str, float], ...]:
    epochs = []
    for position, record in enumerate(sequence(raw)):
        numbers = {key: number(value) for key, value in mapping(record).items()}
        epoch = {key: value for key, value in numbers.items() if value is not None}
        if epoch:
            epochs.append({"epoch": float(position + 1)} | epoch)
    return tuple(epochs)


def _examples(raw: Any) -> tuple[Example, ...]:
    found = []
    for record in map(mapping, sequence(raw)):
        probs = {str(key): number(value) for key, value in mapping(record.get("probs")).items()}
        known = {key: value for key, value in probs.items() if value is not None}
        if known:
            label, predicted = text(record.get("label")), text(record.get("predicted"))
            found.append(Example(record.get("image"), label, predicted or max(known, key=_value_of(known)), known))
    return tuple(found)


def _value_of(values: dict[str, float]) -> Callable[[str], float]:
    return lambda key: values[key]
