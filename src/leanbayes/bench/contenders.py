"""Every method with every estimator that it offers, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from leanbayes._estimator_registry import estimators_for
from leanbayes.convert import DeepEnsemble, bayesianize
from leanbayes.posteriors import (
    ECMP,
    EMP,
    BatchEnsemble,
    DropConnect,
    KTied,
    MCDropout,
    MeanField,
    Rank1,
    VarianceLayer,
    VariationalDropout,
)
from leanbayes.posteriors._method import Method


@dataclass(frozen=True)
class Contender:
    """A method as it is measured.

    Attributes:
        name: What the command line calls it: the method, and after a slash the estimator where one is named.
        method: The method.
        tile: Whether a training step runs every component on the batch; else each example draws one, so that the
            rows are those of the plain network.
        mean_is_plain: Whether the network at the posterior means is the plain one.
        options: More for `bayesianize`, such as ``where``.
    """

    name: str
    method: Method
    tile: bool = True
    mean_is_plain: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def estimator(self) -> str | None:
        """The estimator that is named; None where the method chooses."""
        return self.name.partition("/")[2] or None

    @property
    def call(self) -> str:
        """The method as one writes it, with what differs from its defaults.

        Example:
            >>> contender("rank1-cauchy").call
            "lb.Rank1(posterior='cauchy')"
        """
        usual = type(self.method)()
        values = {each.name: getattr(self.method, each.name) for each in dataclasses.fields(self.method)}
        given = [f"{name}={value!r}" for name, value in values.items() if value != getattr(usual, name)]
        return f"lb.{type(self.method).__name__}({', '.join(given)})"

    def convert(self, net: nn.Module) -> nn.Module:
        """A plain network with this method's distributions; use the returned one."""
        return bayesianize(net, self.method, **self.options)


def _with_estimators(name: str, method: Method, mean_is_plain: bool) -> list[Contender]:
    """The method as it chooses by itself, and with each of its estimators by name."""
    found = [Contender(name, method, mean_is_plain=mean_is_plain)]
    for each in estimators_for(method.offers):
        chosen = dataclasses.replace(method, estimator=each.name)  # pyright: ignore[reportCallIssue]
        found.append(Contender(f"{name}/{each.name}", chosen, mean_is_plain=mean_is_plain))
    return found


def _all() -> list[Contender]:
    return [
        Contender("rank1", Rank1(components=4), tile=False),
        Contender("rank1-cauchy", Rank1(components=4, posterior="cauchy"), tile=False),
        Contender("batch-ensemble", BatchEnsemble(components=4), tile=False),
        Contender("emp", EMP()),
        Contender("ecmp", ECMP()),
        *_with_estimators("k-tied", KTied(), mean_is_plain=True),
        *_with_estimators("mean-field", MeanField(), mean_is_plain=True),
        *_with_estimators("variational-dropout", VariationalDropout(), mean_is_plain=True),
        *_with_estimators("variance-layer", VarianceLayer(), mean_is_plain=False),
        Contender("mc-dropout", MCDropout(), mean_is_plain=True),
        Contender("drop-connect", DropConnect(), mean_is_plain=True),
        Contender("deep-ensemble", DeepEnsemble()),
    ]


CONTENDERS: dict[str, Contender] = {one.name: one for one in _all()}


def contender(name: str) -> Contender:
    """The contender of that name.

    Example:
        >>> contender("mean-field/weight").method
        MeanField(prior=Normal(mean=0.0, std=0.3), estimator='weight', init_std=0.01, bias='point')
    """
    if name not in CONTENDERS:
        raise ValueError(f"there is no method {name!r} to measure; there are {', '.join(CONTENDERS)}")
    return CONTENDERS[name]


def contenders(names: Sequence[str] | None = None) -> list[Contender]:
    """The contenders of these names, each once; None takes all."""
    return list(CONTENDERS.values()) if not names else [contender(name) for name in dict.fromkeys(names)]
