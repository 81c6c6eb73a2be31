"""The networks that act: several policies, each at a draw of its weights, in one forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._sampling import Sampling
from leanbayes.nn import BayesianLayer
from leanbayes.ops import Dense, op_for
from leanbayes.parameter import RandomParameter
from leanbayes.rl.draws import one_draw_each


class Actors:
    """Networks of the same dense layers that act in one pass, each with its own weights.

    Args:
        like: A network of that kind: an ``nn.Sequential`` of dense layers, plain or converted, and activations.
        count: Number of networks; `draw_` sets the weights of each.

    Attributes:
        dtype: Of weights and inputs.
    """

    def __init__(self, like: nn.Sequential, count: int) -> None:
        self.dtype = next(like.parameters()).dtype
        self._steps = [_dense(layer) or layer for layer in like]
        self._weights = [
            (_empty(layer.weight, count), None if layer.bias is None else _empty(layer.bias, count))
            for layer in _dense_layers(like)
        ]

    def draw_(self, index: int, policy: nn.Sequential, seed: int) -> None:
        """Give network `index` the weights of `policy` in ``one_draw_each([seed])``."""
        with torch.no_grad(), one_draw_each([seed]) as spec:
            for layer, (weights, biases) in zip(_dense_layers(policy), self._weights):
                weights[index] = _value(layer.weight, spec)
                if biases is not None:
                    biases[index] = _value(layer.bias, spec)

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs ``[count, out]`` from one row for each network ``[count, in]``."""
        weights = iter(self._weights)
        with torch.no_grad():
            for step in self._steps:
                x = step.stacked(x, *next(weights)) if isinstance(step, Dense) else step(x)
        return x


def checked_policy(policy: nn.Module, features: int, actions: int) -> nn.Sequential:
    """The policy; raises where `Actors` cannot act for it, or not with these features and actions."""
    if not isinstance(policy, nn.Sequential) or any(not _dense(layer) and list(layer.parameters()) for layer in policy):
        raise TypeError(
            "a policy is an nn.Sequential of dense layers and activations, such as make_policy builds, "
            f"not {type(policy).__name__}"
        )
    ops = [op for layer in policy if (op := _dense(layer))]
    if not ops or (ops[0].in_features, ops[-1].out_features) != (features, actions):
        raise ValueError(
            f"the environment has {features} features and {actions} actions, which the policy does not fit; build it "
            f"with make_policy(kind, {features}, {actions})"
        )
    return policy


def check_alike(policies: Sequence[nn.Sequential]) -> None:
    """Raises unless one `Actors` can act for all of the policies."""
    if len({id(policy) for policy in policies}) < len(policies):
        raise ValueError("a policy was given twice, but each is trained on its own; pass copy.deepcopy(policy)")
    first = _structure(policies[0])
    for number, policy in enumerate(policies):
        if _structure(policy) != first:
            raise ValueError(
                f"policies that are trained side by side have the same layers, and policy {number} differs from policy "
                "0 in shapes, biases, precision or activations; train it in a separate call"
            )


def _structure(policy: nn.Sequential) -> list[Any]:
    return [_shape(layer) if _dense(layer) else repr(layer) for layer in policy]


def _shape(layer: Any) -> tuple[Any, ...]:
    return tuple(layer.weight.shape), layer.bias is None, layer.weight.dtype


def _dense(layer: nn.Module) -> Dense | None:
    """The op of a dense layer, plain or converted; None for others."""
    op = layer.op if isinstance(layer, BayesianLayer) else op_for(layer)
    return op if isinstance(op, Dense) else None


def _dense_layers(network: nn.Sequential) -> Iterator[Any]:
    return (layer for layer in network if _dense(layer))


def _empty(like: Tensor | RandomParameter, count: int) -> Tensor:
    return torch.empty(count, *like.shape, dtype=like.dtype)


def _value(parameter: Tensor | RandomParameter, spec: Sampling) -> Tensor:
    return parameter.rsample(1, spec)[0] if isinstance(parameter, RandomParameter) else parameter
