"""Networks of one structure held as one: every parameter and buffer has one slice per network."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from leanbayes._moves import of_stacks
from leanbayes._owners import owners
from leanbayes._sampling import Frame, Sampling, using
from leanbayes.nn._base import Converted, skeleton
from leanbayes.nn._replica import call_with


class Stacked(Converted):
    """M networks as one: every parameter and buffer of `member` has a leading axis M.

    Args:
        members: Networks of the same structure, plain or converted.
    """

    answers_for_parts = True

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        stacked = copy.deepcopy(members[0])
        for name, parameter in dict(stacked.named_parameters()).items():
            values = torch.stack([m.get_parameter(name).detach() for m in members])
            replace_everywhere(stacked, parameter, nn.Parameter(values, parameter.requires_grad))
        for name, buffer in dict(stacked.named_buffers()).items():
            replace_everywhere(stacked, buffer, torch.stack([m.get_buffer(name) for m in members]))
        self.member = stacked
        self.train(members[0].training)

    def _apply(self, fn: Any, recurse: bool = True) -> Stacked:
        return super()._apply(of_stacks(fn), recurse)

    def plain_view(self) -> nn.Module:
        """See `Converted`."""
        return self.member.plain_view() if isinstance(self.member, Converted) else self.member

    def inner_model(self) -> nn.Module:
        """See `Converted`."""
        return self.member

    def plain_member(self) -> nn.Module:
        """See `Converted`; its parameters hold no memory."""
        member = skeleton(self.member)
        for parameter in list(member.parameters()):
            replace_everywhere(member, parameter, nn.Parameter(parameter[0].detach(), parameter.requires_grad))
        for buffer in list(member.buffers()):
            replace_everywhere(member, buffer, buffer[0])
        return member

    @property
    def needs_two_draws(self) -> bool:
        """Whether training a member compares two draws."""
        return any(owner.needs_two_draws for owner in owners(self.member, "needs_two_draws"))

    def draws_noise(self) -> bool:
        """Whether draws of one member differ."""
        return any(owner.draws_noise() for owner in owners(self.member, "draws_noise"))

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers ``[M, ...]``, for each place that holds one.

        A tied tensor has several names, but a module in two places has one: torch would not put its own tensors back.
        """
        found: dict[str, Tensor] = {}
        for path, module in self.member.named_modules():
            for name, stacked in (*module._parameters.items(), *module._buffers.items()):
                if stacked is not None:
                    found[f"{path}.{name}" if path else name] = stacked
        return found

    def copy_of(self, number: int) -> nn.Module:
        """A copy of one network on its own."""
        module = copy.deepcopy(self.member)
        tensors = self.tensors()
        for name, parameter in dict(module.named_parameters()).items():
            value = tensors[name][number].detach().clone()
            replace_everywhere(module, parameter, nn.Parameter(value, parameter.requires_grad))
        for name, buffer in dict(module.named_buffers()).items():
            replace_everywhere(module, buffer, tensors[name][number].detach().clone())
        return module


def run_side_by_side(member: nn.Module, values: dict[str, Tensor], x: Tensor, spec: Sampling) -> Tensor:
    """Outputs ``[M, rows, ...]`` of M networks for inputs ``[M, rows, ...]``, each product computed at once for all.

    Args:
        member: Their structure.
        values: Their parameters and buffers ``[M, ...]``; buffers that a pass moves are moved in place.
        x: Their inputs.
        spec: How each of them draws; their noise differs.
    """

    def run(values: dict[str, Tensor], x: Tensor) -> Tensor:
        # What layers keep for each other during the pass must not get out of here.
        with using(spec, Frame(x.shape[spec.batch_dim])):
            return call_with(member, values, (x,), {})

    return vmap(run, randomness="different")(values, x)


def replace_everywhere(model: nn.Module, old: Tensor, new: Tensor) -> None:
    """Put a parameter or buffer in the place of another under all its names, so that tied ones stay tied."""
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is old:
                    tensors[name] = new  # pyright: ignore[reportArgumentType]
