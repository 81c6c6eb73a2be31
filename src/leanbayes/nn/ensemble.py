"""Deep ensembles: one model whose parameters and buffers are stacked, one slice per member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._inputs import find_rows
from leanbayes._kl import kl
from leanbayes._owners import owners
from leanbayes._rows import join_rows, map_rows, pick_samples
from leanbayes._sampling import (
    Assigned,
    Frame,
    Sampling,
    current_frame,
    current_sampling,
    layer_state,
    own_frame,
    tell_when_spent,
    using,
)
from leanbayes.groups import ComponentGroup
from leanbayes.nn._base import as_trained
from leanbayes.nn._replica import apply_with, replica
from leanbayes.nn._stacked import Stacked, run_side_by_side
from leanbayes.ops import rows_per_sample
from leanbayes.posteriors._method import Method

_DENSE = (nn.Linear, nn.BatchNorm1d, nn.LayerNorm, nn.PReLU)


class Ensemble(Stacked):
    """K members as one stacked model: every parameter and buffer of `member` has a leading axis K.

    Stacking keeps all members in every step's graph, so that none is an unused parameter.

    Args:
        members: Models of the same structure, plain or converted.
        method: The method that they come from, such as `DeepEnsemble`.
    """

    def __init__(self, members: list[nn.Module], method: Method) -> None:
        super().__init__(members)
        self.method = method
        self.group = ComponentGroup(len(members), "the ensemble", routes=True)
        self._batches = all(_is_dense(module) for module in members[0].modules() if _holds_tensors(module))

    @property
    def components(self) -> int:
        """Number of members."""
        return self.group.components

    def component_parts(self) -> list[tuple[ComponentGroup, list[Any]]]:
        """The index of the members, with those that there are inside a member."""
        inner = [part for owner in owners(self.member, "component_parts") for part in owner.component_parts()]
        return [(self.group, list({id(group.identity): (group, parts) for group, parts in inner}.values()))]

    def kl_terms(self, mixture: str, constant: bool | None) -> list[Tensor]:
        """The mean or the sum of the members' divergences."""
        if mixture == "joint" and self.draws_noise():
            raise ValueError(
                "mixture='joint' is not offered for a deep ensemble of random networks; use 'mean' or 'sum'"
            )
        whole = current_sampling().whole_gradients
        terms = [
            apply_with(self.member, self.values(k, whole), lambda member: kl(member, mixture, constant=constant))  # pyright: ignore[reportArgumentType]
            for k in range(self.components)
        ]
        total = torch.stack(terms)
        return [total.sum() if mixture == "sum" else total.mean()]

    def values(self, member: int | Tensor | None, whole_gradients: bool = False) -> dict[str, Tensor]:
        """Parameters and buffers of one member, for each place that holds one.

        Args:
            member: Its number, or a tensor ``[1]`` that holds it; None for all members ``[K, ...]``.
            whole_gradients: Whether gradients are multiplied by the number of members: a loss that is averaged over
                them would else give each a share of the gradient that it would have as a network of its own.
        """
        values: dict[str, Tensor] = {}
        picked: dict[Tensor, Tensor] = {}
        buffers = set(self.member.buffers())
        for name, stacked in self.tensors().items():
            if stacked not in picked:
                value = stacked if member is None else _slice(stacked, member)
                if self.training and stacked in buffers:
                    value = value.clone()  # moved by the pass, and kept when it is over
                if whole_gradients and value.requires_grad:
                    value = _ScaledGradient.apply(value, self.components)
                picked[stacked] = as_trained(value, stacked.requires_grad)  # pyright: ignore[reportArgumentType]
            values[name] = picked[stacked]
        return values

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the rows of each sample through its member."""
        spec = layer_state(self)
        if spec.mean is True and self._undecided(spec):
            spec = spec.replace(component=0)
        rows = self.group.given_rows(spec)
        if rows is not None:
            return self._per_row(args, kwargs, spec, rows)
        found = find_rows((*args, *kwargs.values()), spec.batch_dim)
        if found is not None:
            rows_per_sample(found, spec.n)
        members, groups = self._members(spec)
        outputs = self._at_once(args, kwargs, spec, members, groups)
        if outputs is None:
            outputs = [
                self._run(
                    member,
                    pick_samples(args, spec.n, samples, spec.batch_dim) if len(groups) > 1 else args,
                    pick_samples(kwargs, spec.n, samples, spec.batch_dim) if len(groups) > 1 else kwargs,
                    _inner(spec, samples),
                    (tuple(samples), _share(spec.n, len(samples))),
                )
                for member, samples in zip(members, groups)
            ]
            for member, samples in zip(members, groups):
                self._pass_on_choices(member, tuple(samples), spec.n)
        if len(outputs) == 1:
            return outputs[0]
        rows = None if found is None else [found // spec.n * len(samples) for samples in groups]
        return join_rows(outputs, spec.batch_dim, [s for samples in groups for s in samples], rows)

    def _at_once(
        self, args: Any, kwargs: Any, spec: Sampling, members: Sequence[int | Tensor], groups: list[list[int]]
    ) -> list[Tensor] | None:
        """The members' outputs from batched products, None where they have to run one by one.

        It pays for dense layers, which are small; one by one is how members run that draw noise, whose seeds differ.
        """
        if torch.compiler.is_compiling() or not self._batches or self.draws_noise():
            return None
        alone = len(args) == 1 and isinstance(args[0], Tensor) and not kwargs and spec.batch_dim == 0
        known = all(isinstance(member, int) for member in members)  # numbers on a GPU are not looked at
        if not alone or not known or list(members) != list(range(self.components)):
            return None
        if len({len(samples) for samples in groups}) > 1:
            return None
        x = torch.stack([pick_samples(args[0], spec.n, samples, 0) for samples in groups])
        values = self.values(None, spec.whole_gradients)
        try:
            # What activation checkpointing runs again in backward would be at a loss outside of the batched products.
            with torch.autograd.graph.disable_saved_tensors_hooks("members with checkpoints run one by one"):
                outputs = run_side_by_side(self.member, values, x, _inner(spec, groups[0]))
        except Exception:  # the forward of a model may do anything; what is wrong with it shows one by one
            self._batches = False
            return None
        if self.training:
            with torch.no_grad():
                for name, buffer in self.member.named_buffers():
                    buffer.copy_(values[name])
        return list(outputs.unbind(0)) if isinstance(outputs, Tensor) else None

    def _pass_on_choices(self, member: int | Tensor, samples: tuple[int, ...], n: int) -> None:
        """Tell the pass how probable it was what the layers of a member have chosen for its samples."""
        outer = current_frame()
        if outer is None:
            return
        inner = self._frame(member, (samples, None))
        for log_prob in inner.choices:
            each = log_prob.view(len(samples), -1)
            whole = torch.zeros(n, each.shape[1], dtype=each.dtype, device=each.device)
            place = torch.tensor(samples, device=each.device)
            outer.choices.append(whole.index_copy(0, place, each).flatten())
        inner.choices.clear()

    def _undecided(self, spec: Sampling) -> bool:
        random = isinstance(spec.component, str) and spec.component == "random"
        return random and id(self.group.identity) not in spec.assigned

    def _members(self, spec: Sampling) -> tuple[Sequence[int | Tensor], list[list[int]]]:
        """The members that run, and the samples of each."""
        if self._undecided(spec):
            with own_frame():
                index = self.group.index(spec.n, next(self.member.parameters()), spec)
            # Looking at the numbers would wait for the device.
            return [index[s : s + 1] for s in range(spec.n)], [[s] for s in range(spec.n)]
        given = spec.assigned.get(id(self.group.identity))
        if isinstance(spec.component, int):
            self.group.fixed_index(spec.n, torch.zeros(()), spec)  # says where there is no such member
            known = (spec.component,) * spec.n
        elif given is not None and isinstance(given.index, tuple):
            known = given.index
        else:
            index = self.group.fixed_index(spec.n, torch.zeros(()), spec)
            assert index is not None
            known = tuple(index.tolist())
        members = list(dict.fromkeys(known))
        return members, [[s for s in range(spec.n) if known[s] == k] for k in members]

    def _frame(self, member: int | Tensor, place: tuple[Any, int | None]) -> Frame:
        """The frame of one member in some samples: members are one module with other tensors.

        It belongs to the pass: where the ensemble is called again, the members' weights are those that were drawn.
        """
        samples, rows = place
        outer = current_frame()
        if outer is None:
            return Frame(rows)
        key = (id(self.group.identity), "member", None if isinstance(member, Tensor) else member, samples)
        if key not in outer.kept:
            outer.kept[key] = Frame(rows)
            outer.kept[key].lasting, outer.kept[key].grad = outer.lasting, outer.grad
        outer.kept[key].occasion = outer.occasion
        return outer.kept[key]

    def _run(self, member: int | Tensor, args: Any, kwargs: Any, spec: Sampling, place: tuple[Any, int | None]) -> Any:
        frame = self._frame(member, place)
        if torch.compiler.is_compiling():
            values = self.values(member, spec.whole_gradients)
            with using(spec, frame):
                output = torch.func.functional_call(self.member, values, args, kwargs, tie_weights=False)
        else:
            running = self._replica(member, spec, frame)
            with using(spec, frame):
                output = running(*args, **kwargs)
            values = dict(running.named_buffers(remove_duplicate=False))
        if self.training:
            self._keep_statistics(member, values)
        return output

    def _replica(self, member: int | Tensor, spec: Sampling, frame: Frame) -> nn.Module:
        """A member on its own that no other thread sees, the same during one pass."""
        # A part that runs without gradients may be the first to need what a later one learns from.
        grad = frame.wants_gradients() or torch.is_grad_enabled()
        key = (id(self.group.identity), "replica", spec.whole_gradients, grad)
        if key not in frame.kept:
            with torch.set_grad_enabled(grad):
                values = self.values(member, spec.whole_gradients)
                tell_when_spent(frame, values)
            frame.kept[key] = replica(self.member, values)
        return frame.kept[key]

    @torch.no_grad()
    def _keep_statistics(self, member: int | Tensor, values: dict[str, Tensor]) -> None:
        """Statistics that a pass has moved belong to the member."""
        for name, buffer in self.member.named_buffers():
            value = values[name].to(buffer.dtype)
            if isinstance(member, Tensor):
                buffer.index_copy_(0, member, value.unsqueeze(0))
            else:
                buffer[member].copy_(value)

    def _per_row(self, args: Any, kwargs: Any, spec: Sampling, component: Tensor) -> Any:
        found = find_rows((*args, *kwargs.values()), spec.batch_dim)
        if found is not None and found != len(component):
            raise ValueError(f"components were given for {len(component)} rows, but {self.group.name} sees {found}")
        # Any number of a sample's rows may go to a member, so that samples which differ run one by one.
        differ = self.draws_noise()
        each_row = component.view(-1, rows_per_sample(len(component), spec.n if differ else 1))
        frame = current_frame()
        examples = frame is None or frame.rows == len(component)
        outputs, order = [], []
        for k in component.unique().tolist():
            self.group.check_known(k)
            for s, row in enumerate(each_row):
                rows = (row == k).nonzero().squeeze(1) + s * len(row)
                if not len(rows):
                    continue
                order.append(rows)

                def pick(t: Tensor, rows: Tensor = rows) -> Tensor:
                    return t.index_select(spec.batch_dim, rows.to(t.device))

                part = (map_rows(args, pick, spec.batch_dim), map_rows(kwargs, pick, spec.batch_dim))
                place = (("sample", s), len(rows) if examples else None)
                outputs.append(self._run(int(k), *part, _inner(spec, [s], rows), place))
        places = torch.cat(order).argsort()
        return join_rows(outputs, spec.batch_dim, rows=[len(part) for part in order], places=places)

    def member_module(self, k: int) -> nn.Module:
        """A copy of member k on its own."""
        if not 0 <= k < self.components:
            raise ValueError(f"component={k} does not exist; there are {self.components} members, counted from 0")
        return self.copy_of(k)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        # A plain checkpoint goes to every member.
        if not any(key.startswith(f"{prefix}member.") for key in state_dict):
            template = self.member_module(0)
            plain = {
                key.removeprefix(prefix): state_dict.pop(key) for key in list(state_dict) if key.startswith(prefix)
            }
            incompatible = template.load_state_dict(plain, strict=False)
            for name, value in template.state_dict().items():
                if name not in incompatible.missing_keys:
                    # Not views of one tensor, which `assign=True` would train as they are.
                    state_dict[f"{prefix}member.{name}"] = value.expand(self.components, *value.shape).clone()
            for name in incompatible.unexpected_keys:
                state_dict[prefix + name] = plain[name]
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _is_dense(module: nn.Module) -> bool:
    return isinstance(module, _DENSE) or getattr(module, "runs_side_by_side", False)


def _holds_tensors(module: nn.Module) -> bool:
    return any(tensor is not None for tensor in (*module._parameters.values(), *module._buffers.values()))


class _ScaledGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a number."""

    @staticmethod
    def forward(value: Tensor, factor: float) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.factor, None


def _slice(stacked: Tensor, member: int | Tensor) -> Tensor:
    return stacked[member] if isinstance(member, int) else stacked.index_select(0, member).squeeze(0)


def _share(n: int, samples: int) -> int | None:
    """The rows of some of the n samples, where the rows of the pass are known."""
    frame = current_frame()
    return None if frame is None or frame.rows is None else frame.rows // n * samples


def _inner(spec: Sampling, samples: Sequence[int], rows: Tensor | None = None) -> Sampling:
    """The state within one member for some of the samples, or for some rows of one."""
    streams = None if spec.streams is None else tuple(spec.streams[s] for s in samples)
    assigned = {group: _taken(given, samples, rows) for group, given in spec.assigned.items()}
    changes: dict[str, Any] = {"n": len(samples), "component": "random", "streams": streams, "assigned": assigned}
    return spec.replace(**changes, kept=None)


def _taken(given: Assigned, samples: Sequence[int], rows: Tensor | None) -> Assigned:
    """What was assigned to some of the samples or rows."""
    if given.per_row:
        assert isinstance(given.index, Tensor) and rows is not None
        return Assigned(given.index[rows.to(given.index.device)], per_row=True)
    if isinstance(given.index, Tensor):
        return Assigned(given.index[list(samples)])
    index = tuple(given.index[s] for s in samples)
    first, count = index[0], len(index)
    if all(k == first for k in index):
        return Assigned(index, cycle=(first * count, count))
    rising = all(k == first + i for i, k in enumerate(index))
    return Assigned(index, cycle=(first, 1) if rising else None)
