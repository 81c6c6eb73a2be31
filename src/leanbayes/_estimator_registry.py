"""Estimators by name, with what each needs of a posterior and promises to its users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Estimator:
    """A way to draw a layer's output.

    Attributes:
        name: What users write.
        function: Takes a `Call` and returns the output of all its rows.
        needs: What the posterior has to offer, see `Posterior.offers`.
        scales_input: Whether it multiplies the input's features, which indices have none of.
        shares_weight: Whether all rows of a sample meet one weight; else every row is taken for an example and has
            noise of its own.
        one_weight: Whether an example meets one draw of the weight at all its positions and at every use.
        exact_on_vectors: Whether it is exact where that does not hold: for a normal weight that a dense layer applies
            once to one vector of each example.
        joint: Whether it gives one function for all rows of a sample where the sampling state asks for that.
        draws_weight: Whether it draws tensors of the weight's size, one per sample.
        sharing: Name of the estimator that takes its place where the rows of a sample may share their noise, as in
            predictions: one draw per sample, with the same distribution of each single example. Its own name where it
            has such draws itself.
        preference: Of those that apply, "auto" takes the one with the highest; 0 is never taken unasked.
    """

    name: str
    function: Callable[..., Any]
    needs: str = "draws"
    scales_input: bool = False
    shares_weight: bool = False
    one_weight: bool = True
    exact_on_vectors: bool = False
    joint: bool = False
    draws_weight: bool = False
    sharing: str | None = None
    preference: int = 0


_ESTIMATORS: dict[str, Estimator] = {}


def register_estimator(name: str, **traits: Any) -> Callable[[F], F]:
    """Register an estimator by name; every method whose posteriors offer what it needs can then be given that name.

    Args:
        name: What users write.
        **traits: What it needs and promises, see `Estimator`.
    """

    def add(function: F) -> F:
        if name in _ESTIMATORS or name == "auto":
            raise ValueError(f"an estimator named {name!r} is already registered")
        _ESTIMATORS[name] = Estimator(name, function, **traits)
        return function

    return add


def estimator(name: str) -> Estimator:
    """The estimator registered by that name."""
    return _ESTIMATORS[name]


def is_estimator(name: str) -> bool:
    """Whether an estimator has that name."""
    return name in _ESTIMATORS


def estimators_for(offers: frozenset[str]) -> list[Estimator]:
    """The estimators that can use what a posterior offers, those that "auto" prefers first."""
    found = [each for each in _ESTIMATORS.values() if each.needs in offers]
    return sorted(found, key=lambda each: -each.preference)


def check_estimator(owner: str, name: object, offers: frozenset[str]) -> None:
    """Raise unless a name is "auto" or that of an estimator that can use what the owner offers."""
    names = ("auto", *(each.name for each in estimators_for(offers)))
    if name not in names:
        listed = ", ".join(repr(each) for each in names)
        raise ValueError(f"{owner}(estimator=...) takes one of {listed}, not {name!r}")
