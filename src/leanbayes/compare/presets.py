"""The methods that `compare` trains, each with settings that work for networks trained from scratch."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from leanbayes.convert import DeepEnsemble, bayesianize, named
from leanbayes.convert.selectors import Selector
from leanbayes.posteriors import (
    ECMP,
    EMP,
    BatchEnsemble,
    KTied,
    MCDropout,
    MeanField,
    Rank1,
    VarianceLayer,
    VariationalDropout,
)
from leanbayes.posteriors._method import Method
from leanbayes.priors import Cauchy, Normal


@dataclass(frozen=True)
class Preset:
    """A method with what it needs to be trained well.

    Attributes:
        name: What the command line calls it.
        title: Its name in tables.
        method: The method, None for the plain network.
        where: Which layers of a plain model it takes, those of `bayesianize` where None.
        kl_weight: Weight of the KL; below 1 the posterior is tempered.
        anneal: Share of the training over which that weight rises from 0.
        train: Settings of `TrainConfig` that differ from the budget's.
        adaptive: Whether AdamW trains it also where SGD trains the others: gradients of standard deviations and noise
            rates are orders of magnitude apart from those of weights.
        decays: Whether the KL is a weight decay and nothing else, so that it is to be as strong as that of others.
    """

    name: str
    title: str
    method: Method | None = None
    where: Callable[[nn.Module], Selector | None] | None = None
    kl_weight: float = 1.0
    anneal: float = 0.0
    train: dict[str, Any] = field(default_factory=dict)
    adaptive: bool = False
    decays: bool = False

    def convert(self, model: nn.Module) -> nn.Module:
        """A plain model with this method's distributions; use the returned one."""
        if self.method is None:
            return model
        return bayesianize(model, self.method, where=self.where(model) if self.where else None)

    def suited(self, inputs: str) -> Preset:
        """The preset of this name for a kind of data, where that has one of its own; a changed preset stays itself.

        Example:
            >>> preset("batch-ensemble").suited("table").title, preset("emp").suited("table").title
            ('BatchEnsemble (16)', 'EMP (5)')
        """
        return _TABLES.get(self.name, self) if inputs == "table" and PRESETS.get(self.name) is self else self


def before_output(model: nn.Module) -> Selector | None:
    """The last layer with weights before the output, as Variance Networks have it; None where there is none."""
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase)
    names = [name for name, module in model.named_modules() if isinstance(module, kinds)]
    return named(names[-2]) if len(names) > 1 else None


# Chosen by four-fold cross-validation on the training and validation parts of the digits (multilayer perceptron, fast
# budget); the test part had no say. Tempered (`kl_weight` below 1) are the families whose KL, summed over tens of
# thousands of weights, outweighs the likelihood of a thousand images. Random signs, made for networks with capacity to
# spare, cost this small one accuracy: components start spread around 1 instead.
_ALL = (
    Preset("plain", "Plain network"),
    Preset("mc-dropout", "MC dropout", MCDropout(p=0.05), decays=True),
    Preset("deep-ensemble", "Deep ensemble (5)", DeepEnsemble(members=5)),
    Preset("mean-field", "Mean-field", MeanField(), kl_weight=0.03, adaptive=True),
    Preset("k-tied", "k-tied Normal (2)", KTied(rank=2), kl_weight=0.001, adaptive=True),
    Preset("variational-dropout", "Variational dropout", VariationalDropout(), adaptive=True),
    Preset("variance-layer", "Variance layer", VarianceLayer(), where=before_output),
    Preset("batch-ensemble", "BatchEnsemble (4)", BatchEnsemble(components=4, init_spread=0.3)),
    Preset(
        "rank1",
        "Rank-1 Gaussian (4)",
        Rank1(components=4, prior=Normal(1, 0.2), init_std=0.2, init_spread=0.3),
        kl_weight=0.3,
    ),
    Preset(
        "rank1-cauchy",
        "Rank-1 Cauchy (4)",
        Rank1(components=4, posterior="cauchy", prior=Cauchy(1, 0.01), init_std=0.003, init_spread=0.5),
        kl_weight=0.01,
    ),
    Preset("emp", "EMP (5)", EMP(components=5)),
    Preset("ecmp", "ECMP (5)", ECMP(components=5)),
)
PRESETS: dict[str, Preset] = {one.name: one for one in _ALL}
# The ensemble of the network for tables, after TabM (Gorishniy et al., ICLR 2025): many members, which differ by the
# signs of what they see. The network is small, so their passes are cheap.
_TABLES = {
    "batch-ensemble": Preset(
        "batch-ensemble", "BatchEnsemble (16)", BatchEnsemble(components=16, random_sign=0.5, init_spread=0.0)
    ),
}


def preset(name: str) -> Preset:
    """The preset of that name.

    Example:
        >>> preset("rank1").title
        'Rank-1 Gaussian (4)'
    """
    if name not in PRESETS:
        raise ValueError(f"there is no method {name!r}; the methods are {', '.join(PRESETS)}")
    return PRESETS[name]


def own_preset(name: str) -> Preset:
    """Your own preset, by where it is defined.

    Args:
        name: ``module:attribute``, of a method (such as ``lb.Rank1(components=8)``), a preset, or a function without
            arguments that returns one of them. A method is trained with the settings of a preset that names none.

    Example:
        >>> own_preset("leanbayes:KTied").method
        KTied(...)
    """
    where, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"there is no module {where!r} for the method {name!r}; is its folder the current one?"
        ) from None
    value = getattr(module, attribute, None)
    if isinstance(value, Preset):
        return value
    if callable(value):  # a class, too
        value = value()
    if isinstance(value, Preset):
        return value
    if isinstance(value, Method):
        # Results stand in a folder of this name, which no preset shares.
        return Preset(f"own-{attribute}" if attribute in PRESETS else attribute, attribute, value)
    if value is not None:
        raise ValueError(f"{name!r} is not a method, a preset, or a function that returns one, but {value!r}")
    own = [n for n, v in vars(module).items() if isinstance(v, (Method, Preset)) and not n.startswith("_")]
    near = difflib.get_close_matches(attribute, [n for n in vars(module) if not n.startswith("_")], n=1)
    hint = f"did you mean {near[0]}?" if near else f"its methods are {', '.join(own)}" if own else "it has no methods"
    raise ValueError(f"the module {where!r} has no {attribute!r}; {hint}")


def presets(names: Sequence[str] | None = None) -> list[Preset]:
    """The presets of these names, each once; all where None."""
    return list(_ALL) if names is None else [preset(name) for name in dict.fromkeys(names)]
