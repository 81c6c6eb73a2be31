"""What all converted layers have in common: a plain template, a place in the model, plain checkpoints."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._sampling import Sampling, Where, current_frame
from leanbayes.groups import ComponentGroup
from leanbayes.nn._replica import original
from leanbayes.ops import LinearOp
from leanbayes.parameter import RandomParameter, remove_row
from leanbayes.posteriors._method import Method, fan_in


class Scope:
    """What the layers of one conversion share: the model's component group and the tied weights.

    Args:
        group: Owner of the model's component index, None where no family has one.
    """

    def __init__(self, group: ComponentGroup | None = None) -> None:
        self.group = group
        # By the parameter and not its id: parts of an attention layer come and go while their model is converted.
        self.shared: dict[nn.Parameter, RandomParameter] = {}
        # Padding row of a table by id(weight): a dense layer tied to it must leave out the same row.
        self.padding_idx: dict[int, int] = {}
        # Biases that several modules hold stay points, so that they stay tied.
        self.tied_biases: set[int] = set()
        # The ops of all layers with one weight, by id(weight).
        self.ops: dict[int, list[LinearOp]] = {}
        # Plain modules, by id, that the model is known to call once in a pass.
        self.called_once: set[int] = set()


class Converted(nn.Module):
    """What conversion puts in the place of a plain module: a layer, or a whole model.

    Attributes:
        method: The method that it was converted with.
    """

    method: Method

    def plain_view(self) -> nn.Module:
        """The plain module that it stands for, without its values: what has its type and settings."""
        raise NotImplementedError

    def inner_model(self) -> nn.Module | None:
        """The model inside whose layers are converted in turn, as the member of an ensemble; None for a layer."""
        return None

    def plain_member(self) -> nn.Module:
        """One model of the shapes that the model inside has on its own, without values."""
        raise NotImplementedError

    def used_estimator(self) -> str | None:
        """The estimator that it draws by, None where it has none."""
        return None


class ConvertedLayer(Converted):
    """Base of the layers that conversion puts in a model.

    Attributes:
        method: The method that the layer was converted with.
        path: The layer's name in the model, which selectors match.
        batch_dim: Axis of the examples where the layer itself knows it, else None (the sampling state decides).
        notes: What `summary` says of the layer beside its method.
        trained: Whether each parameter of the plain module had a gradient when it was converted.
    """

    def __init__(self, template: nn.Module, method: Method, path: str = "", batch_dim: int | None = None) -> None:
        super().__init__()
        self.method = method
        self.path = path
        self.batch_dim = batch_dim
        self.notes: list[str] = []
        self.mixing: ComponentGroup | None = method.make_group()
        self.training = template.training
        # A tuple hides the template from nn.Module: its parameters are dead, only its settings are used.
        self._template = (skeleton(template),)
        # Likewise hidden: the layer that selectors judge in place of this one, for the parts of a larger layer.
        self._owner: tuple[ConvertedLayer, ...] = ()
        self.trained = {name: p.requires_grad for name, p in template.named_parameters()}
        carry_hooks(template, self)
        if self.mixing is not None:
            reference = next(template.parameters(), None)
            if reference is not None:
                self.mixing.to(device=reference.device, dtype=reference.dtype)

    @property
    def template(self) -> nn.Module:
        """The plain module without its values."""
        return self._template[0]

    def plain_view(self) -> nn.Module:
        """See `Converted`."""
        return self.template

    def plain_values(self, value: Any) -> dict[str, Tensor]:
        """The plain module's parameters by name, `value(parameter)` giving each one of ours as a plain tensor."""
        named = {plain: own for plain, own in self.plain_names().items() if "." not in own}
        return {plain: value(getattr(self, own)) for plain, own in named.items()}

    def plain_names(self) -> dict[str, str]:
        """Names of the plain module's parameters, with the names of our own attributes that hold them."""
        raise NotImplementedError

    def plain_module(self, values: dict[str, Tensor]) -> nn.Module:
        """A plain module with the given parameters, otherwise like the template."""
        return plain_like(self, self.template, values)

    def draws_mean(self, spec: Sampling) -> bool:
        """Whether the sampling state asks for means here."""
        return spec.mean is not False and applies(spec.mean, self)

    def draws_zero_mean(self, spec: Sampling) -> bool:
        """Whether the sampling state asks for zero means here."""
        return spec.zero_mean is not False and applies(spec.zero_mean, self)

    def rows_axis(self, x: Tensor, spec: Sampling) -> int:
        """Axis of the examples in x: ours, else the state's where x has that axis before its features, else 0."""
        axis = spec.batch_dim if self.batch_dim is None else self.batch_dim
        return axis if x.dim() > axis + 1 else 0

    def make_random(self, value: nn.Parameter, op: LinearOp | None, scope: Scope) -> RandomParameter:
        """The random weight for a plain one; tied weights get one for all their layers."""
        if value in scope.shared:
            found = scope.shared[value]
            found.tied = True
            return found
        group = self.mixing if self.mixing is not None else scope.group
        padding_idx = scope.padding_idx.get(id(value), getattr(op, "padding_idx", None))
        ops = scope.ops.get(id(value), [] if op is None else [op])
        method = self.method
        other = method.fallback(value, op)
        if other is not None:
            method, reason = other
            self.notes.append(reason)
        if padding_idx is None:
            parameter = RandomParameter(method.build(value, op, group), method.bind_prior(value, fan_in(value, op)))
        else:
            rest = nn.Parameter(remove_row(value.detach(), padding_idx), requires_grad=value.requires_grad)
            posterior = method.build(rest, op, group)
            prior = method.bind_prior(rest, fan_in(value, op))
            parameter = RandomParameter(posterior, prior, (padding_idx, value[padding_idx]))
            parameter.padding_row.requires_grad_(value.requires_grad)  # pyright: ignore[reportOptionalMemberAccess]
        parameter.unsigned_axes = frozenset(each.in_axis for each in ops if each.index_input)
        scope.shared[value] = parameter
        return parameter

    def shares_draws(self, rows: int) -> bool:
        """Whether one draw per sample serves all rows, as where they are no examples of the model."""
        frame = current_frame()
        return frame is not None and not frame.of_layer and frame.rows != rows

    def make_bias(
        self, value: nn.Parameter | None, fan: int, scope: Scope | None = None
    ) -> RandomParameter | nn.Parameter | None:
        """The bias: random where the method says so, else the plain parameter."""
        if value is None or id(value) in (scope.tied_biases if scope else ()):
            return value
        group = self.mixing if self.mixing is not None or scope is None else scope.group
        posterior = self.method.build_bias(value, group)
        return value if posterior is None else RandomParameter(posterior, self.method.bind_bias_prior(value, fan))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        self._load_plain(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _load_plain(self, state: dict[str, Any], prefix: str) -> None:
        """Rewrite the keys of a plain checkpoint: its values become what conversion would have made of them."""
        for plain, own in self.plain_names().items():
            key = prefix + plain
            value = state.get(key)
            target = self._modules.get(own)
            if not isinstance(value, Tensor):
                continue
            if own in self.__dict__:
                del state[key]  # a tied weight is loaded by the layer that registers it
                continue
            if not isinstance(target, RandomParameter):
                if own != plain:
                    state[prefix + own] = state.pop(key)
                continue
            if tuple(value.shape) != tuple(target.shape):
                continue  # left as it is: load_state_dict then reports the keys that do not fit
            loaded = copy.deepcopy(target)
            loaded.set_point_(value)
            del state[key]
            for name, entry in loaded.state_dict().items():
                state.setdefault(f"{prefix}{own}.{name}", entry)
            for name, entry in self.state_dict().items():
                if name.startswith("mixing."):
                    state.setdefault(prefix + name, entry)


def applies(where: Where, layer: ConvertedLayer) -> bool:
    """Whether a switch that is True, False or a selector is on for a layer."""
    if isinstance(where, bool):
        return where
    (owner,) = layer._owner or (layer,)
    # A predicate knows the model's own layers.
    return bool(where(layer.path, owner if torch.compiler.is_compiling() else original(owner)))


_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def carry_hooks(source: nn.Module, target: nn.Module) -> None:
    """Give a module the hooks of the one it replaces: the same dictionaries, so that handles still remove them."""
    for name in _HOOKS:
        setattr(target, name, getattr(source, name))
    target._is_full_backward_hook = source._is_full_backward_hook


def carry_settings(source: nn.Module, target: nn.Module) -> None:
    """Give a layer what other code asks of the one it replaces: in_features, stride, padding_idx and the like."""
    for name, value in vars(source).items():
        if not name.startswith("_") and isinstance(value, (int, float, str, tuple)) and name not in vars(target):
            setattr(target, name, value)


def skeleton(module: nn.Module) -> nn.Module:
    """A copy of a module without hooks whose parameters hold no memory."""
    memo: dict[int, Any] = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
        for p in module.parameters()
    }
    memo |= {id(hooks): type(hooks)() for m in module.modules() for hooks in (getattr(m, name) for name in _HOOKS)}
    return copy.deepcopy(module, memo)


def plain_like(layer: nn.Module, template: nn.Module, values: dict[str, Tensor]) -> nn.Module:
    """A copy of a template with the given parameters, in the mode and with the hooks of the layer it stands for."""
    module = skeleton(template)
    for name, value in values.items():
        set_parameter(module, name, value)
    module.train(layer.training)
    carry_hooks(layer, module)
    return module


def set_parameter(module: nn.Module, name: str, value: Tensor) -> None:
    """Put a value in a plain module under a dotted name, keeping whether it is trained."""
    owner_name, _, leaf = name.rpartition(".")
    owner = module.get_submodule(owner_name)
    old = owner._parameters.get(leaf)
    trained = value.requires_grad if old is None else old.requires_grad
    parameter = value if isinstance(value, nn.Parameter) else nn.Parameter(value.detach().clone(), trained)
    setattr(owner, leaf, parameter)


def as_trained(value: Tensor, trained: bool) -> Tensor:
    """A computed mean as torch's kernels see the plain parameter, which is `trained` or not.

    They choose their path, and so the rounding, by `requires_grad`, without grad mode too.
    """
    if torch.is_grad_enabled() or value.requires_grad or not trained:
        return value
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return value  # neither allows it
    return value.detach().requires_grad_()
