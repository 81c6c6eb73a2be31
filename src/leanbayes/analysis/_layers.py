"""Which layers of a model the analyses look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from leanbayes.convert.conversions import find_conversions, join
from leanbayes.convert.selectors import named
from leanbayes.nn._base import Converted, ConvertedLayer
from leanbayes.nn.layer import BayesianLayer
from leanbayes.parameter import RandomParameter

Which = str | Sequence[str] | Callable[[str, nn.Module], bool] | None


@dataclass(frozen=True, eq=False)
class NoisyLayer:
    """A converted layer whose weights have independent noise with a known standard deviation.

    Attributes:
        name: Its name in the model.
        module: The layer.
        weights: Its random weights by name: that of the layer where there is one, as in dense layers and convolutions.
    """

    name: str
    module: ConvertedLayer
    weights: dict[str, RandomParameter]

    def out_axis(self, weight: RandomParameter) -> int:
        """Axis of the output features of one of its weights."""
        users = (part for part in self.module.modules() if isinstance(part, BayesianLayer) and part.weight is weight)
        # The matrices that other kernels apply, as those of recurrent layers, are [out, in].
        return next((part.op.out_axis for part in users), 0)


def as_matrix(value: Tensor, out_axis: int) -> Tensor:
    """A weight as a matrix of output features by everything else ``[out, rest]``, as `KTied` sees it."""
    return value.movedim(out_axis, 0).flatten(1)


def noisy_layers(model: nn.Module, which: Which = None) -> list[NoisyLayer]:
    """The layers of a converted model that have a mean and a standard deviation for every weight.

    Args:
        model: A converted model.
        which: Names or globs, or a selector; None takes all layers.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a converted model, got {type(model).__name__}")
    model = uncompiled(model)
    if any(isinstance(module, Converted) and module.inner_model() is not None for module in model.modules()):
        raise ValueError(
            "the members of a deep ensemble are looked at one by one; pass one of them, ensemble.member_module(0)"
        )
    found = [
        NoisyLayer(name, layer, weights)
        for part in find_conversions(model)
        for name, layer in ((join(part.path, inner), layer) for inner, layer in part.layers.items())
        if (weights := _noisy_weights(name, layer))
    ]
    if not found:
        raise ValueError(
            "the model has no layer with a standard deviation for every weight; convert it with lb.VariationalDropout, "
            "lb.VarianceLayer, lb.MeanField or lb.KTied"
        )
    wanted = _predicate(which)
    chosen = [layer for layer in found if wanted(layer.name, layer.module)]
    missing = set(getattr(wanted, "exact", ())) - {layer.name for layer in found}
    if missing or not chosen:
        asked = repr(sorted(missing)[0]) if missing else repr(which)
        raise ValueError(f"{asked} matches none of the layers {', '.join(shown(layer.name) for layer in found)}")
    return chosen


def uncompiled(model: nn.Module) -> nn.Module:
    """The model that torch.compile was given, whose layers have the names that the user knows."""
    return getattr(model, "_orig_mod", model)


def shown(name: str) -> str:
    """A layer's name as tables and messages show it: the model itself has an empty one."""
    return name or "(model)"


def _predicate(which: Which) -> Callable[[str, nn.Module], bool]:
    if which is None:
        return lambda name, module: True
    if callable(which):
        return which
    return named(which) if isinstance(which, str) else named(*which)


def _noisy_weights(name: str, layer: ConvertedLayer) -> dict[str, RandomParameter]:
    found: dict[str, RandomParameter] = {}
    for inner, parameter in layer.named_modules():
        # Random biases have one axis; what an analysis says of a layer is about its weights.
        if not isinstance(parameter, RandomParameter) or parameter.dim() < 2:
            continue
        if "moments" in parameter.posterior.offers:
            found[join(name, "" if inner == "weight" else inner.removesuffix(".weight"))] = parameter
    return found
