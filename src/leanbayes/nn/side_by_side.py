"""SideBySide: many small networks of one shape as one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from leanbayes._kl import kl
from leanbayes._owners import owners
from leanbayes._sampling import Frame, current_sampling, layer_state, using
from leanbayes.nn._base import Converted
from leanbayes.nn._replica import apply_with
from leanbayes.nn._stacked import Stacked, run_side_by_side


class SideBySide(Stacked):
    """M networks of one shape that run and train as one, each on its own inputs.

    Small networks leave a machine idle between their kernels; side by side, each of their products is one batched
    product. An example holds one example for every network. The likelihood sums over the targets of an example, and the
    KL over the networks, so M losses become one: each network gets the gradient it would get alone, and with any
    optimiser that treats parameters element by element also the same steps. Each has its own noise.

    Args:
        networks: Networks of the same structure, plain or all converted by one method.

    Shape:
        ``[B, M, ...]`` to ``[B, M, ...]``.

    Example:
        >>> import torch, leanbayes as lb
        >>> from leanbayes.training import SideBySide
        >>> networks = [lb.bayesianize(torch.nn.Linear(3, 2), lb.KTied()) for _ in range(5)]
        >>> SideBySide(networks)(torch.randn(8, 5, 3)).shape
        torch.Size([8, 5, 2])
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        networks = list(networks)
        _check_alike(networks)
        super().__init__(networks)
        self.count = len(networks)
        self.method: Any = next((m.method for m in self.member.modules() if isinstance(m, Converted)), None)
        if self.needs_two_draws:
            raise ValueError("learned mixing compares draws of one network, so train networks that have it one by one")

    def component_parts(self) -> list[Any]:
        """The components inside the networks, the same in all of them."""
        return [part for owner in owners(self.member, "component_parts") for part in owner.component_parts()]

    def kl_terms(self, mixture: str, constant: bool | None) -> list[Tensor]:
        """The sum of the networks' divergences."""
        spec = current_sampling()

        def divergence(values: dict[str, Tensor]) -> Tensor:
            with using(spec, Frame()):
                return apply_with(self.member, values, lambda member: kl(member, mixture, constant=constant))  # pyright: ignore[reportArgumentType]

        if not owners(self.member, "kl_terms"):
            return []
        return [vmap(divergence, randomness="different")(self.tensors()).sum()]

    def forward(self, x: Tensor) -> Tensor:
        """Run each network on its inputs."""
        if x.dim() < 2 or x.shape[1] != self.count:
            raise ValueError(
                f"{self.count} networks side by side take inputs [B, {self.count}, ...], one for each of them, not "
                f"{tuple(x.shape)}"
            )
        return run_side_by_side(self.member, self.tensors(), x.transpose(0, 1), layer_state(self)).transpose(0, 1)

    def networks(self) -> list[nn.Module]:
        """Separate copies of the networks."""
        return [self.copy_of(number) for number in range(self.count)]

    @torch.no_grad()
    def copy_to(self, networks: Sequence[nn.Module]) -> None:
        """Copy the values held here to networks of the same structure."""
        for number, network in enumerate(networks):
            for name, tensor in (*network.named_parameters(), *network.named_buffers()):
                tensor.copy_(self.tensors()[name][number])


def _check_alike(networks: list[nn.Module]) -> None:
    if not networks:
        raise ValueError("SideBySide takes one network or more, not none")
    shapes = [_shapes(network) for network in networks]
    for number, other in enumerate(shapes):
        if other != shapes[0]:
            name = next(name for name in (*shapes[0], *other) if shapes[0].get(name) != other.get(name))
            raise ValueError(
                f"networks side by side have one structure, but network {number} differs from the first in {name!r}: "
                f"{_text(other.get(name))} instead of {_text(shapes[0].get(name))}"
            )


def _shapes(network: nn.Module) -> dict[str, Any]:
    tensors = (*network.named_parameters(), *network.named_buffers())
    modules = [(name or "the network", module) for name, module in network.named_modules()]
    found: dict[str, Any] = {f"type of {name}": type(module) for name, module in modules}
    found |= {name: (tuple(t.shape), t.dtype, t.device, t.requires_grad) for name, t in tensors}
    # All run as the first one does.
    settings = {name: f"{getattr(module, 'method', '')} {module.extra_repr()}".strip() for name, module in modules}
    return found | {f"settings of {name}": text for name, text in settings.items()}


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "nothing"
    if isinstance(value, type):
        return value.__name__
    shape, dtype, device, trained = value
    return f"{list(shape)}, {dtype} on {device}, {'trained' if trained else 'not trained'}"
