"""Deep ensembles: one model whose parameters and buffers are stacked, one slice per member."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._sampling import Frame, Sampling, current_frame, own_frame, sampling_of, using
from leanbayes.groups import ComponentGroup
from leanbayes.methods import Method
from leanbayes.nn._base import as_trained
from leanbayes.nn._rows import join_rows, map_rows, pick_samples
from leanbayes.ops import rows_per_sample


class Ensemble(nn.Module):
    """K members as one stacked model: every parameter and buffer of `member` has a leading axis K.

    Stacking keeps all members in every step's graph, so that none is an unused parameter.

    Args:
        members: Models of the same structure, plain or converted.
        method: The `DeepEnsemble` they come from.
    """

    def __init__(self, members: list[nn.Module], method: Method) -> None:
        super().__init__()
        self.method = method
        self.group = ComponentGroup(len(members), "the ensemble")
        stacked = copy.deepcopy(members[0])
        for name, parameter in dict(stacked.named_parameters()).items():
            values = torch.stack([m.get_parameter(name).detach() for m in members])
            replace_everywhere(stacked, parameter, nn.Parameter(values, parameter.requires_grad))
        for name, buffer in dict(stacked.named_buffers()).items():
            replace_everywhere(stacked, buffer, torch.stack([m.get_buffer(name) for m in members]))
        self.member = stacked
        # In a tuple: a module that computes the member's KL, so that functional_call can swap its parameters.
        self._kl = (_MemberKL(stacked),)
        self.train(members[0].training)

    @property
    def components(self) -> int:
        """Number of members."""
        return self.group.components

    def values(self, index: Tensor) -> dict[str, Tensor]:
        """Parameters and buffers of the member ``index`` ``[1]``, for each place that holds one.

        A tied tensor has several names, but a module in two places has one: torch would not put its own tensors back.
        """
        values: dict[str, Tensor] = {}
        picked: dict[Tensor, Tensor] = {}
        for path, module in self.member.named_modules():
            for name, stacked in (*module._parameters.items(), *module._buffers.items()):
                if stacked is None:
                    continue
                if stacked not in picked:
                    picked[stacked] = as_trained(stacked.index_select(0, index).squeeze(0), stacked.requires_grad)
                values[f"{path}.{name}" if path else name] = picked[stacked]
        return values

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the rows of each sample through its member."""
        spec = sampling_of(self)
        if isinstance(spec.component, Tensor):
            return self._per_row(args, kwargs, spec, spec.component)
        reference = next(self.member.parameters())
        if spec.mean is True and spec.component == "random":
            spec = spec.replace(component=0)
        with own_frame():
            index = self.group.index(spec.n, reference, spec)
        if isinstance(spec.component, int) or spec.n == 1:
            return self._run(index[:1], args, kwargs, spec.replace(component="random"), range(spec.n))
        count = self.components
        if spec.component in ("all", "stratified"):
            every = [[s for s in range(spec.n) if (spec.offset + s) % count == k] for k in range(count)]
            members = [torch.tensor([k], device=reference.device) for k in range(count) if every[k]]
            groups = [samples for samples in every if samples]
        else:
            groups = [[s] for s in range(spec.n)]
            members = [index[s : s + 1] for s in range(spec.n)]
        outputs = [
            self._run(
                member,
                pick_samples(args, spec.n, samples, spec.batch_dim),
                pick_samples(kwargs, spec.n, samples, spec.batch_dim),
                _inner(spec, samples, count),
                samples,
            )
            for member, samples in zip(members, groups)
        ]
        return join_rows(outputs, spec.batch_dim, [s for samples in groups for s in samples])

    def _frame(self, member: Tensor, samples: Iterable[int]) -> Frame:
        """The frame of one member's weights in some samples: members are one module with other tensors."""
        frame = current_frame()
        if frame is None or not frame.spans:
            return Frame(spans=True)
        return frame.draws.setdefault((id(self), "member", int(member), tuple(samples)), Frame(spans=True))

    def _run(self, index: Tensor, args: Any, kwargs: Any, spec: Sampling, samples: Iterable[int] = ()) -> Any:
        values = self.values(index)
        if not torch.compiler.is_compiling():
            spec = spec.replace(swapped=(*spec.swapped, (self.member, values)))
        frame = self._frame(index, samples) if spec.joint else None
        if spec.held is not None:
            spec = spec.replace(held=frame)
        with using(spec, frame):
            output = torch.func.functional_call(self.member, values, args, kwargs, tie_weights=False)
        if self.training:
            # Statistics that the pass has moved belong to the member.
            with torch.no_grad():
                for name, buffer in self.member.named_buffers():
                    buffer.index_copy_(0, index, values[name].unsqueeze(0).to(buffer.dtype))
        return output

    def _per_row(self, args: Any, kwargs: Any, spec: Sampling, component: Tensor) -> Any:
        # Any number of a sample's rows may go to a member, so that samples which differ run one by one.
        differ = self.method.of is not None or spec.bn == "per_sample"  # pyright: ignore[reportAttributeAccessIssue]
        each_row = component.view(-1, rows_per_sample(len(component), spec.n if differ else 1))
        outputs, order = [], []
        for k in component.unique().tolist():
            index = torch.tensor([int(k)], device=component.device)
            for s, row in enumerate(each_row):
                rows = (row == k).nonzero().squeeze(1) + s * len(row)
                if not len(rows):
                    continue
                order.append(rows)

                def pick(t: Tensor, rows: Tensor = rows) -> Tensor:
                    return t.index_select(spec.batch_dim, rows.to(t.device))

                part = (map_rows(args, pick, spec.batch_dim), map_rows(kwargs, pick, spec.batch_dim))
                outputs.append(self._run(index, *part, _inner(spec, [s], self.components), [s]))
        back = torch.cat(order).argsort()
        joined = join_rows(outputs, spec.batch_dim)
        return map_rows(joined, lambda t: t.index_select(spec.batch_dim, back.to(t.device)), spec.batch_dim)

    def member_kl(self, mixture: str, constant: bool | None) -> Tensor:
        """Mean or sum of the members' divergences."""
        if mixture == "joint" and self.method.of is not None:  # pyright: ignore[reportAttributeAccessIssue]
            raise ValueError(
                "mixture='joint' is not offered for a deep ensemble of random networks; use 'mean' or 'sum'"
            )
        terms = []
        for k in range(self.components):
            index = torch.tensor([k], device=next(self.member.parameters()).device)
            values = {f"model.{name}": value for name, value in self.values(index).items()}
            terms.append(torch.func.functional_call(self._kl[0], values, (mixture, constant), tie_weights=False))
        total = torch.stack(terms)
        return total.sum() if mixture == "sum" else total.mean()

    def member_module(self, k: int) -> nn.Module:
        """A copy of member k on its own."""
        if not 0 <= k < self.components:
            raise ValueError(f"component={k} does not exist; there are {self.components} members, counted from 0")
        module = copy.deepcopy(self.member)
        values = self.values(torch.tensor([k], device=next(self.member.parameters()).device))
        for name, parameter in dict(module.named_parameters()).items():
            replace_everywhere(module, parameter, nn.Parameter(values[name].detach().clone(), parameter.requires_grad))
        for name, buffer in dict(module.named_buffers()).items():
            replace_everywhere(module, buffer, values[name].detach().clone())
        return module

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
                    state_dict[f"{prefix}member.{name}"] = value.expand(self.components, *value.shape)
            for name in incompatible.unexpected_keys:
                state_dict[prefix + name] = plain[name]
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class _MemberKL(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, mixture: Any, constant: bool | None) -> Tensor:
        from leanbayes._kl import kl

        return kl(self.model, mixture, constant=constant)


def _inner(spec: Sampling, samples: list[int], components: int) -> Sampling:
    """The state for some of the samples, within one member."""
    generators = None if spec.generators is None else tuple(spec.generators[s] for s in samples)
    spread = isinstance(spec.component, str) and spec.component != "random"
    offset = (spec.offset + samples[0]) // components if spread else spec.offset
    return spec.replace(n=len(samples), component="random", generators=generators, offset=offset)


def replace_everywhere(model: nn.Module, old: Tensor, new: Tensor) -> None:
    """Put a parameter or buffer in the place of another under all its names, so that tied ones stay tied."""
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is old:
                    tensors[name] = new  # pyright: ignore[reportArgumentType]


def reinitialise(model: nn.Module) -> list[str]:
    """Give a model fresh parameters, buffers and statistics, as it or its modules define them.

    Modules without a `reset_parameters` of their own draw anew from a normal distribution with the mean and standard
    deviation that their parameters have now.

    Returns:
        Names of those parameters.
    """
    fresh = _built_again(model)
    if fresh is not None:
        model.load_state_dict(fresh)
        return []
    redrawn: list[str] = []
    seen: set[nn.Module] = set()

    def visit(module: nn.Module, path: str, initialiser: Any) -> None:
        if module in seen:
            return
        seen.add(module)
        initialiser = getattr(module, "_init_weights", initialiser)  # transformers' models, which wrap each other
        # A module has the last word on what is inside it, as when it is built.
        for name, child in module.named_children():
            visit(child, f"{path}.{name}" if path else name, initialiser)
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()  # pyright: ignore[reportCallIssue]
        elif hasattr(module, "_reset_parameters"):
            module._reset_parameters()  # pyright: ignore[reportCallIssue]
        elif initialiser is None:
            for name, parameter in module.named_parameters(recurse=False):
                _redraw(parameter)
                redrawn.append(f"{path}.{name}" if path else name)
        if hasattr(module, "reset_running_stats"):
            module.reset_running_stats()  # pyright: ignore[reportCallIssue]
        if initialiser is not None:
            for parameter in module.parameters(recurse=False):
                # transformers marks what it has initialised and would pass it over.
                if hasattr(parameter, "_is_hf_initialized"):
                    delattr(parameter, "_is_hf_initialized")
            initialiser(module)

    visit(model, "", None)
    return redrawn


def _built_again(model: nn.Module) -> dict[str, Tensor] | None:
    """The state of a new model by the same recipe, None where none is noted on it or it has changed since."""
    from leanbayes.models import create

    config: Any = getattr(model, "leanbayes_config", None)
    if config is None:
        return None
    with next(model.parameters()).device:
        fresh = create(config["name"], **config["options"]).state_dict()
    shapes = [(name, value.shape) for name, value in model.state_dict().items()]
    return fresh if shapes == [(name, value.shape) for name, value in fresh.items()] else None


@torch.no_grad()
def _redraw(parameter: Tensor) -> None:
    spread = parameter.std(correction=0) if parameter.numel() > 1 else torch.zeros(())
    parameter.copy_(parameter.mean() + spread * torch.randn_like(parameter))
