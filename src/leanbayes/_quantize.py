"""quantize: a copy of a model for inference, with the weights that all its samples share in eight bits."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from leanbayes._int8 import Int8Weight
from leanbayes.convert.conversions import find_conversions, join
from leanbayes.nn._base import carry_hooks, carry_settings, plain_like, skeleton
from leanbayes.nn.layer import BayesianLayer
from leanbayes.ops import Conv, Dense, op_for
from leanbayes.posteriors.patch_methods import ECMP, EMP, Patch
from leanbayes.posteriors.rank1 import BatchEnsemble, Rank1, Rank1Posterior

_SERVED = (Rank1, BatchEnsemble, EMP, ECMP, Patch)
# Subclasses may use their weight in ways of their own.
_PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def quantize(model: nn.Module, dtype: Literal["int8"] = "int8") -> nn.Module:
    """A copy of a trained model for inference, its shared weights stored as int8 with a scale per output feature.

    In rank-1 models (`Rank1`, `BatchEnsemble`) these are the weights W of dense layers and convolutions, and in all
    supported models those of plain ones. Factors, patches, biases, norms, tied weights and all other layers stay as
    they are.

    Args:
        model: A converted model; it stays as it is.
        dtype: "int8".

    Returns:
        The copy, which predicts, saves and loads like the model.

    Raises:
        ValueError: If a layer has another method, or nothing in the model can be quantised.

    Example:
        >>> import torch, leanbayes as lb
        >>> net = lb.bayesianize(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 10)), lb.Rank1())
        >>> small = lb.quantize(net)
        >>> lb.summary(small).bytes / lb.summary(net).bytes < 0.5
        True
        >>> lb.predict(small, torch.randn(5, 64), samples=8).probs.shape
        torch.Size([5, 10])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"quantize takes an nn.Module, not {type(model).__name__}")
    if dtype != "int8":
        raise ValueError(f"quantize(dtype=...) takes 'int8', not {dtype!r}")
    _check_methods(model)
    quantised = quantize_(copy.deepcopy(model))
    if not is_quantized(quantised):
        raise ValueError("the model has no dense layer or convolution whose weight all samples share")
    return quantised


def quantize_(model: nn.Module) -> nn.Module:
    """`quantize` in place, without checks."""
    uses = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    for module in list(model.modules()):
        if isinstance(module, BayesianLayer):
            weight = _rank1_weight(module)
            if weight is not None and uses[id(weight)] == 1:
                _quantize_rank1(module)
        elif type(module) in _PLAIN and not is_parametrized(module) and uses[id(module.weight)] == 1:
            _replace(model, module, QuantizedLayer(module))
    return model


def is_quantized(model: nn.Module) -> bool:
    """Whether a model has weights in eight bits."""
    return any(isinstance(module, Int8Weight) for module in model.modules())


class QuantizedLayer(nn.Module):
    """A plain dense layer or convolution with its weight in eight bits.

    Args:
        plain: The layer.
    """

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        op, weight, bias = op_for(plain), plain.weight, plain.bias
        assert op is not None and isinstance(weight, Tensor)
        self.op = op
        self.weight = Int8Weight(weight)
        self.bias = bias
        self.training = plain.training
        # Hidden from nn.Module: its settings are used, its parameters are dead.
        self._template = (skeleton(plain),)
        carry_hooks(plain, self)
        carry_settings(plain, self)

    def forward(self, x: Tensor) -> Tensor:
        """As the plain layer."""
        return self.op(x, self.weight, self.bias)  # pyright: ignore[reportArgumentType]

    def plain_values(self, value: Any) -> dict[str, Tensor]:
        """The plain layer's parameters by name, the weight as the one that its eight bits stand for."""
        own = {"weight": self.weight.floating(), "bias": self.bias}
        return {name: tensor for name, tensor in own.items() if isinstance(tensor, Tensor)}

    def plain_module(self, values: dict[str, Tensor]) -> nn.Module:
        """A plain layer with the given parameters, for `point_estimate`."""
        return plain_like(self, self._template[0], values)

    def extra_repr(self) -> str:
        """The op."""
        return str(self.op)


def _check_methods(model: nn.Module) -> None:
    """Raise where a layer has a method whose samples share no weight."""
    parts = find_conversions(model)
    found = {join(part.path, name): layer.method for part in parts for name, layer in part.layers.items()}
    found |= {part.path: part.ensemble for part in parts if part.ensemble is not None}
    served = ", ".join(kind.__name__ for kind in _SERVED)
    if not found:
        raise ValueError(f"quantize takes a model that was converted with one of {served}")
    for name, method in found.items():
        if not isinstance(method, _SERVED):
            raise ValueError(f"quantize supports {served}, but {name or 'the model'} has {method!r}")


def _rank1_weight(layer: BayesianLayer) -> nn.Parameter | None:
    """The weight that the components of a layer share, where it is one to quantise."""
    posterior = layer.weight.posterior
    if not isinstance(posterior, Rank1Posterior) or type(layer.op) not in (Dense, Conv) or layer.weight.tied:
        return None
    return posterior.weight if isinstance(posterior.weight, nn.Parameter) else None


def _quantize_rank1(layer: BayesianLayer) -> None:
    posterior = layer.weight.posterior
    assert isinstance(posterior, Rank1Posterior)
    # One heavy-tailed factor would leave the other features of its row no digits.
    weight = Int8Weight(posterior.weight, rounds_inputs=not posterior.heavy_tailed)
    del posterior.weight
    posterior.weight = weight  # pyright: ignore[reportAttributeAccessIssue]


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for module in model.modules():
        for name, child in module._modules.items():
            if child is old:
                module._modules[name] = new
