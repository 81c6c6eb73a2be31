"""Which method to choose, in sentences that claim no more than the numbers do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leanbayes.report.content import Comparison, Entry
from leanbayes.report.measures import Measure

SMALL = 1.2
QUESTION = "Which method should you choose?"
LIKELIHOOD = ("nll", "lpd", "brier", "rmse", "accuracy")
# Test examples below which only large differences are more than chance.
_FEW = 100
# Test examples below which no difference is.
_TOO_FEW = 10
# Methods that a sentence names one by one.
_LISTED = 4
_PLAIN = ("plain", "deterministic", "point", "map")
_QUALITY = ("accuracy", "rmse")


@dataclass(frozen=True)
class Finding:
    """One question and its answer.

    Attributes:
        question: What a reader wants to know.
        answer: In one or two sentences.
        more: What else to bear in mind, one remark each.
    """

    question: str
    answer: str
    more: tuple[str, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "answer", _capital(self.answer))
        object.__setattr__(self, "more", tuple(_capital(remark) for remark in self.more if remark))


def recommended(comparison: Comparison) -> Entry | None:
    """The small method that is best of those that clearly beat plain training, and plain training where none does.

    Where nothing was tested, or there is no plain network, it is the best small method, then the best of all.
    """
    key = first_of(comparison, LIKELIHOOD)
    if key is None:
        return None
    reference = plain(comparison)
    if reference in comparison.having(key) and tested(comparison, key):
        return best(comparison.measure(key), _winners(comparison)) or reference
    return best(comparison.measure(key), small(comparison)) or best(comparison.measure(key), comparison.having(key))


def too_few(comparison: Comparison) -> bool:
    """Whether there are so few test examples, or groups of them, that figures say nothing."""
    return comparison.evidence.independent(_TOO_FEW) < _TOO_FEW


def learned_nothing(comparison: Comparison) -> bool:
    """Whether no small method, or none at all where none is small, is clearly better than a constant guess."""
    key = first_of(comparison, LIKELIHOOD)
    if key is None:
        return False
    near = [entry for entry in small(comparison) if key in entry.measures]
    return all(comparison.chance(entry, key) for entry in near or comparison.having(key))


def firm(comparison: Comparison) -> bool:
    """Whether the choice rests on a test and on more than one training of each method."""
    key = first_of(comparison, LIKELIHOOD)
    return key is not None and comparison.seeds > 1 and tested(comparison, key)


def tested(comparison: Comparison, key: str) -> bool:
    """Whether every method that may be chosen was compared with plain training, example by example."""
    reference = plain(comparison)
    if reference is None or key not in reference.measures:
        return comparison.evidence.tested(key)
    rivals = [entry for entry in small(comparison) if entry is not reference and key in entry.measures]
    judged = all(comparison.judge(entry, reference, key) is not None for entry in rivals)
    return judged and comparison.evidence.tested(key)


def plain(comparison: Comparison) -> Entry | None:
    """The plain network."""
    return next((entry for entry in comparison.done if is_plain(entry)), None)


def best(measure: Measure, entries: Iterable[Entry]) -> Entry | None:
    """The method with the best mean; the first of equals."""
    having = [entry for entry in entries if measure.key in entry.measures]
    return min(having, key=lambda entry: measure.cost(entry.measures[measure.key].mean), default=None)


def called(entry: Entry) -> str:
    """How sentences call a method."""
    return "the plain network" if is_plain(entry) else entry.title


def choice(comparison: Comparison) -> Finding | None:
    """What to choose, and what speaks against it."""
    chosen, key = recommended(comparison), first_of(comparison, LIKELIHOOD)
    if chosen is None or key is None:
        return None
    if len(comparison.having(key)) < 2:
        return Finding(QUESTION, f"Only {called(chosen)} has results, so there is nothing to choose from.")
    measure = comparison.measure(key)
    if too_few(comparison):
        return Finding(
            QUESTION, f"No answer yet: {tested_on(comparison)} cannot tell methods apart. Collect more data first."
        )
    if learned_nothing(comparison):
        return Finding(QUESTION, _none_learned(comparison, measure))
    remarks = (_dearer(comparison, chosen, measure), _blind_spot(comparison, chosen, key), _caution(comparison))
    return Finding(QUESTION, _main_sentence(comparison, chosen, measure), remarks)


def _none_learned(comparison: Comparison, measure: Measure) -> str:
    key = measure.key
    guess = f"the {measure.title} of a constant guess, {measure.write(comparison.evidence.guess[key])}"
    top = best(measure, [entry for entry in comparison.having(key) if not comparison.chance(entry, key)])
    if top is None:
        return f"None yet: no method clearly beats {guess}. Train longer, or check the data."
    value, size = measure.write(top.measures[key].mean), f"{top.measures['overhead'].mean:.2f}×"
    return (
        f"None with up to {SMALL}× the parameters: none of them clearly beats {guess}. {called(top)} does "
        f"({value}), at {size} the parameters."
    )


def _main_sentence(comparison: Comparison, chosen: Entry, measure: Measure) -> str:
    key, reference = measure.key, plain(comparison)
    value = measure.write(chosen.measures[key].mean)
    if not tested(comparison, key):
        size = f" among methods with up to {SMALL}× the parameters" if chosen in small(comparison) else ""
        return (
            f"{called(chosen)} has the best {measure.title}{size}, {value}, but no test says that its lead is more "
            "than chance."
        )
    if reference is None or key not in reference.measures:
        return f"{called(chosen)} has the best {measure.title}, {value}.{ties(comparison, chosen, key)}"
    if chosen is reference and not any(e is not reference and key in e.measures for e in small(comparison)):
        return (
            f"Stay with plain training ({measure.title} {value} on {tested_on(comparison)}) if you can afford no more "
            f"than {SMALL}× its parameters: every other method here has more."
        )
    if chosen is reference:
        return (
            f"Stay with plain training: on {tested_on(comparison)}, no method with up to {SMALL}× its parameters "
            f"clearly beats its {measure.title} of {value} without {_loss(comparison)}."
        )
    size = chosen.mean("overhead")
    cost = f" with {size:.2f}× the parameters" if size is not None else ""
    return (
        f"{called(chosen)} beats plain training{cost}: {measure.title} {value} instead of "
        f"{measure.write(reference.measures[key].mean)} on {tested_on(comparison)}"
        f"{_quality(comparison, chosen, reference)}.{ties(comparison, chosen, key, small(comparison))}"
    )


def _quality(comparison: Comparison, chosen: Entry, reference: Entry) -> str:
    """What becomes of accuracy, or of the error."""
    key = first_of(comparison, _QUALITY)
    if key is None or key not in chosen.measures or key not in reference.measures:
        return ""
    measure = comparison.measure(key)
    values = f"{measure.write(chosen.measures[key].mean)} and {measure.write(reference.measures[key].mean)}"
    judgement = comparison.judge(chosen, reference, key)
    if judgement == "better":
        return f", and {_quality_word(comparison)} is better, too ({values})"
    return f", while {_quality_word(comparison)} is a tie ({values})" if judgement == "tie" else ""


def ties(comparison: Comparison, top: Entry, key: str, among: Sequence[Entry] | None = None) -> str:
    """A sentence on the methods that are as good."""
    tied = [e for e in comparison.tied(top, key) if among is None or e in among]
    if not tied:
        return ""
    if among is None and len(tied) == len(comparison.having(key)) - 1 > 1:
        return " All other methods are tied with it."
    names = [called(entry) for entry in tied]
    if len(names) > _LISTED + 1:
        names = [*names[:_LISTED], f"{len(names) - _LISTED} others"]
    return f" {_capital(listed(names))} {'is' if len(tied) == 1 else 'are'} tied with it."


def _dearer(comparison: Comparison, chosen: Entry, measure: Measure) -> str:
    """What a larger method would buy."""
    near = small(comparison)
    larger = [entry for entry in comparison.having(measure.key) if entry not in near and "overhead" in entry.measures]
    entry = best(measure, larger)
    if entry is None or chosen not in near or not tested(comparison, measure.key):
        return ""
    value, size = measure.write(entry.measures[measure.key].mean), f"{entry.measures['overhead'].mean:.2f}×"
    judgement = comparison.judge(entry, chosen, measure.key)
    if judgement == "better":
        return f"{called(entry)} is better ({measure.title} {value}) if you can afford {size} the parameters."
    words = {"tie": "tied with it", "worse": "worse"}
    if judgement is None:
        return ""
    return f"{called(entry)}, at {size} the parameters, is {words[judgement]} ({measure.title} {value})."


def _blind_spot(comparison: Comparison, chosen: Entry, key: str) -> str:
    """A warning where the chosen method does not know what it does not know, and what to take instead."""
    word = comparison.chance(chosen, "auroc")
    if word is None:
        return ""
    measure = comparison.measure("auroc")
    how = "it is more" if word == "below chance" else "nothing shows that it is less"
    warning = (
        f"Do not rely on {called(chosen)} to notice unfamiliar inputs: {how} certain of them than of the test data "
        f"(AUROC {measure.write(chosen.measures['auroc'].mean)}, {word})."
    )
    others = [e for e in small(comparison) if comparison.judge(e, chosen, key) in ("tie", "better")]
    other = best(measure, others)
    if other is None or comparison.chance(other, "auroc"):
        return warning
    score, title = measure.write(other.measures["auroc"].mean), comparison.measure(key).title
    return f"{warning} If that matters, take {called(other)} (AUROC {score}), which is no worse in {title}."


def _caution(comparison: Comparison) -> str:
    """What would make this surer."""
    few = f"With {tested_on(comparison)}, only large differences show."
    few = few if comparison.evidence.independent(_FEW) < _FEW else ""
    once = "Each method was trained once, and another seed may change the order: repeat this with --seeds 0 1 2."
    return " ".join(part for part in (few, once if comparison.seeds < 2 else "") if part)


def _winners(comparison: Comparison) -> list[Entry]:
    """Small methods that beat plain training beyond chance and are no worse in accuracy or error."""
    key, reference = first_of(comparison, LIKELIHOOD), plain(comparison)
    if key is None or reference is None:
        return []
    quality = first_of(comparison, _QUALITY)
    return [
        entry
        for entry in small(comparison)
        if comparison.judge(entry, reference, key) == "better"
        and (quality is None or comparison.judge(entry, reference, quality) != "worse")
    ]


def small(comparison: Comparison) -> list[Entry]:
    """Methods that cost about as much as the plain network."""
    return [e for e in comparison.having("overhead") if e.measures["overhead"].mean <= SMALL]


def tested_on(comparison: Comparison) -> str:
    """The test examples, counted."""
    count = comparison.evidence.examples.get("test")
    groups = comparison.evidence.examples.get("test_groups")
    of_groups = f" of {groups:,} group{'s' if groups > 1 else ''}" if groups else ""
    return f"{count:,} test example{'s' if count > 1 else ''}{of_groups}" if count else "the test examples"


def _quality_word(comparison: Comparison) -> str:
    return {"accuracy": "accuracy", "rmse": "RMSE", None: "accuracy"}[first_of(comparison, _QUALITY)]


def _loss(comparison: Comparison) -> str:
    """What a better likelihood should not cost."""
    return "a higher RMSE" if first_of(comparison, _QUALITY) == "rmse" else "losing accuracy"


def first_of(comparison: Comparison, keys: Sequence[str]) -> str | None:
    """The first of these measures that some method has."""
    return next((key for key in keys if comparison.having(key)), None)


def is_plain(entry: Entry) -> bool:
    """Whether a method is plain training."""
    return any(word in _PLAIN for word in entry.name.lower().replace("-", " ").replace("_", " ").split()[:1])


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
