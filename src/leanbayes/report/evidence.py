"""What the figures stand on: how many examples, what a guess would get, and which differences are more than chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal

from leanbayes.report.measures import Measure, canonical
from leanbayes.report.values import mapping, number, sequence, text

Judgement = Literal["better", "worse", "tie"]
LEVEL = 0.05
# Of a score that sees no difference between two sets: half of all pairs in order, and as many alarms as hits.
_BLIND, _BLIND_ALARMS = {"auroc": 0.5}, 0.95


@dataclass(frozen=True)
class Evidence:
    """What is known besides the figures themselves.

    Attributes:
        examples: How many, by part: "train", "valid", "test", "corrupted" (of each severity), "ood"; and "test_groups",
            where those of the test belong together.
        guess: What a constant guess gets, by measure.
        pairs: By measure and two methods, the difference of the first less the second in standard errors.
        leads: By measure and method, the difference of the method less the constant guess in standard errors.
    """

    examples: dict[str, int] = field(default_factory=dict)
    guess: dict[str, float] = field(default_factory=dict)
    pairs: dict[tuple[str, str, str], float] = field(default_factory=dict)
    leads: dict[tuple[str, str], float] = field(default_factory=dict)

    def independent(self, unknown: int) -> int:
        """How many test examples are independent: one of each group; `unknown` where that is not known."""
        return self.examples.get("test_groups", self.examples.get("test", unknown))

    def tested(self, key: str) -> bool:
        """Whether any two methods were compared in a measure."""
        return any(pair[0] == key for pair in self.pairs)

    def z(self, key: str, first: str, second: str) -> float | None:
        """How many standard errors the first method's value lies above the second's; None where it was not tested."""
        if (key, first, second) in self.pairs:
            return self.pairs[key, first, second]
        other = self.pairs.get((key, second, first))
        return None if other is None else -other

    def judge(self, measure: Measure, first: str, second: str, methods: int) -> Judgement | None:
        """Whether the first method is better or worse beyond chance; None where it was not tested.

        Args:
            measure: In what.
            first: Name of one method.
            second: Name of another.
            methods: How many there are; the more, the larger a difference has to be (Bonferroni).
        """
        z = self.z(measure.key, first, second)
        if z is None or measure.better not in ("higher", "lower"):
            return None
        if abs(z) < NormalDist().inv_cdf(1 - LEVEL / 2 / max(1, methods - 1)):
            return "tie"
        return "better" if (z > 0) == (measure.better == "higher") else "worse"

    def chance(self, measure: Measure, mean: float, method: str = "") -> Literal["at chance", "below chance"] | None:
        """What to call a figure that is not clearly better than a guess; None for one that is, or with no known guess.

        Args:
            measure: What was measured.
            mean: The figure.
            method: Whose it is; where it was not tested against the guess, the figures themselves decide.
        """
        z = self.leads.get((measure.key, method))
        if z is not None and measure.better in ("higher", "lower"):
            if abs(z) < NormalDist().inv_cdf(1 - LEVEL / 2):
                return "at chance"
            return None if (z > 0) == (measure.better == "higher") else "below chance"
        guess = _BLIND.get(measure.key, self.guess.get(measure.key))
        if guess is None:
            return None
        lead, room = measure.cost(guess) - measure.cost(mean), self._room(measure.key)
        return None if lead > room else "at chance" if lead >= -room else "below chance"

    def _room(self, key: str) -> float:
        """By how much an AUROC differs from one half by chance, at the level of 5% (Mann and Whitney)."""
        inside, outside = self.examples.get("test"), self.examples.get("ood")
        if key != "auroc" or not inside or not outside:
            return 0.0
        return NormalDist().inv_cdf(1 - LEVEL / 2) * ((inside + outside + 1) / (12 * inside * outside)) ** 0.5


def fpr_at_chance(mean: float, between: tuple[float, float] | None) -> Literal["at chance"] | None:
    """Whether so many false alarms are not clearly fewer than a guess gives.

    A guess by lot gives 95%, one that calls all examples strange 100%, so that nothing is worse.

    Args:
        mean: The share.
        between: Where it lies in most resamples of the examples, None where that is not known.
    """
    return "at chance" if (between[1] if between else mean) >= _BLIND_ALARMS else None


def read_evidence(raw: Mapping[str, Any]) -> Evidence:
    """Take what is usable from the content of compare.json."""
    counts = {key: number(value) for key, value in mapping(raw.get("examples")).items()}
    if not counts:
        listed = sequence(mapping(raw.get("settings")).get("examples"))
        counts = {key: number(value) for key, value in zip(("train", "valid", "test"), listed)}
    guess = {canonical(key): number(value) for key, value in mapping(raw.get("guess")).items()}
    pairs = {}
    for record in map(mapping, sequence(raw.get("paired"))):
        names = (canonical(text(record.get("metric"))), text(record.get("first")), text(record.get("second")))
        z = number(record.get("z"))
        if all(names) and z is not None:
            pairs[names] = z
    leads = {}
    for record in map(mapping, sequence(raw.get("against_guess"))):
        key, method, z = canonical(text(record.get("metric"))), text(record.get("method")), number(record.get("z"))
        if key and method and z is not None:
            leads[key, method] = z
    return Evidence(
        {key: round(value) for key, value in counts.items() if value is not None and value >= 0},
        {key: value for key, value in guess.items() if value is not None},
        pairs,
        leads,
    )
