"""bayesianize: put distributions on the weights of any model, in place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from leanbayes._sampling import FrameCloser, FrameOpener
from leanbayes.convert.calls import called_once
from leanbayes.convert.converters import find_converter
from leanbayes.convert.pretrained import take_over_saving
from leanbayes.convert.references import Replacement
from leanbayes.convert.rules import Plan, Unit, make_plan
from leanbayes.groups import ComponentGroup
from leanbayes.nn._base import ConvertedLayer, Scope
from leanbayes.ops import Dense, op_for
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors._divergence import why_infinite
from leanbayes.posteriors._method import Method


@dataclass
class Report:
    """What a conversion did.

    Attributes:
        converted: Name, plain type and method of each converted layer.
        left: Name, type and reason of each layer that was left alone.
        notes: What else there is to know, by layer name.
    """

    converted: list[tuple[str, str, Method]] = field(default_factory=list)
    left: list[tuple[str, str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)


def bayesianize(
    model: nn.Module, method: Method | Mapping[Any, Method | None], *, where: Any = None, freeze: bool = False
) -> nn.Module:
    """Put distributions on the weights of a model, in place.

    The model's weights become the means (standard deviations for `VarianceLayer`, the centre of the copies for EMP
    and ECMP, the shared W for rank-1), so pretrained networks keep what they know. Everything is checked before
    anything changes.

    Args:
        model: Any `nn.Module`.
        method: A method such as `Rank1()`, or an ordered mapping of selectors, globs or types to methods; the first
            match wins, None leaves a module alone.
        where: A selector (`lb.norms()`, `lb.output(model)`, `lb.named("layer4.*")`, `lb.types(nn.Linear)`, combinable
            with ``|``, ``&``, ``~``) or a predicate ``(name, module) -> bool``. Without it a method takes every layer
            it supports except embeddings; EMP and ECMP take norms and the output layer.
        freeze: Freeze everything that came from the plain model and train only what the method added.

    Returns:
        The model; use this one, since it is a new object if the root itself is converted. `lb.summary` lists what was
        converted, and what was left alone and why.

    Example:
        >>> import torch, leanbayes as lb
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> net = lb.bayesianize(net, {"2": lb.MeanField(), "*": None})
        >>> type(net[0]).__name__, type(net[2]).__name__
        ('Linear', 'BayesianLayer')
    """
    if isinstance(method, Method) and method.whole_model:
        _check_not_lazy(model)
        return method.convert_model(model, where, freeze)
    plan = make_plan(model, method, where)
    if freeze:
        _check_not_lazy(model)
    scope = _make_scope(plan)
    scope.called_once = _called_once(model, plan)
    layers = _build(model, plan, scope)
    replacement = Replacement(model, layers)
    # From here on nothing can fail: all layers exist and fit, in all their places.
    root = replacement.apply()
    _turn_off_fast_paths(root)
    if freeze:
        _freeze(root)
    return open_passes(root, _report(plan, layers))


def _check_not_lazy(model: nn.Module) -> None:
    """Raise where a parameter has no shape yet, which can be neither stacked nor frozen."""
    if isinstance(model, nn.Module):
        for name, parameter in model.named_parameters():
            if is_lazy(parameter):
                raise ValueError(f"{name} is lazy and has no shape yet; run the model once first")


def open_passes(root: nn.Module, report: Report) -> nn.Module:
    """Let the calls of a converted model begin and end passes, and note what its conversion did."""
    root.register_forward_pre_hook(FrameOpener(), prepend=True, with_kwargs=True)
    root.register_forward_hook(FrameCloser(), always_call=True)
    root.leanbayes_report = report  # pyright: ignore[reportArgumentType]
    take_over_saving(root)
    return root


def _called_once(model: nn.Module, plan: Plan) -> set[int]:
    """Plain dense layers that the model calls once in a pass, of those that could make use of it."""
    modules = [unit.module for unit in plan.units if unit.method is not None and "moments" in unit.method.offers]
    modules = [module for module in modules if isinstance(op_for(module), Dense)]
    return called_once(model, modules) if modules else set()


def _make_scope(plan: Plan) -> Scope:
    """What the layers share: one component index for all families that have a model-wide one."""
    group: ComponentGroup | None = None
    owner: Unit | None = None
    for unit in plan.units:
        method: Any = unit.method
        if method is None or method.scope != "model":
            continue
        if group is None or owner is None:
            group, owner = ComponentGroup(method.components), unit
        elif group.components != method.components:
            raise ValueError(
                f"one component index serves the whole model, but {owner.label()} has {group.components} components "
                f"and {unit.label()} has {method.components}; give them the same number"
            )
        else:
            group.layers += 1
    scope = Scope(group)
    for partners in plan.ties:
        for unit in partners:
            index = getattr(unit.module, "padding_idx", None)
            if index is not None:
                scope.padding_idx[id(unit.module.weight)] = index
            op = op_for(unit.module)
            if op is not None:
                scope.ops.setdefault(id(unit.module.weight), []).append(op)
    seen: dict[int, nn.Module] = {}
    for unit in plan.units:
        for parameter in unit.parameters():
            if parameter.dim() == 1 and seen.setdefault(id(parameter), unit.module) is not unit.module:
                scope.tied_biases.add(id(parameter))
    return scope


def _build(model: nn.Module, plan: Plan, scope: Scope) -> dict[int, ConvertedLayer]:
    """All new layers by id of the plain module."""
    axes = _batch_axes(model)
    layers: dict[int, ConvertedLayer] = {}
    for unit in plan.units:
        if unit.method is None:
            continue
        found = find_converter(unit.module)
        assert found is not None
        layer = found[1](unit.module, unit.method, scope, unit.name, axes.get(id(unit.module)))
        for parameter in (part for part in layer.modules() if isinstance(part, RandomParameter)):
            problem = why_infinite(parameter.posterior, parameter.prior)
            if problem is not None:
                raise ValueError(f"{unit.label()}: {problem}")
        layers[id(unit.module)] = layer
    return layers


def _batch_axes(model: nn.Module) -> dict[int, int]:
    """Axis of the examples for the layers inside torch's Transformer modules, which know their own."""
    axes: dict[int, int] = {}
    for module in model.modules():
        first: Any = None
        if isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
            first = module.self_attn
        elif isinstance(module, (nn.TransformerEncoder, nn.TransformerDecoder)) and len(module.layers):
            first = getattr(module.layers[0], "self_attn", None)
        if first is not None:
            for inner in module.modules():
                axes[id(inner)] = 0 if first.batch_first else 1
    return axes


def _turn_off_fast_paths(model: nn.Module) -> None:
    """Keep torch's Transformer modules from their fused path, which reads the weights of converted children."""
    for module in model.modules():
        if not isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerEncoder)):
            continue
        if not any(isinstance(child, ConvertedLayer) for child in module.modules()):
            continue
        name = _fast_path_switch(module)
        module._leanbayes_fast_path = getattr(module, name)  # pyright: ignore[reportArgumentType]
        setattr(module, name, False)


def restore_fast_paths(model: nn.Module) -> None:
    """Undo `_turn_off_fast_paths`."""
    for module in model.modules():
        if hasattr(module, "_leanbayes_fast_path"):
            setattr(module, _fast_path_switch(module), module._leanbayes_fast_path)
            del module._leanbayes_fast_path


def _fast_path_switch(module: nn.Module) -> str:
    """The attribute that a Transformer module asks before it takes its fused path."""
    return "activation_relu_or_gelu" if isinstance(module, nn.TransformerEncoderLayer) else "use_nested_tensor"


def _freeze(model: nn.Module) -> None:
    """Train only what did not come from the plain model."""
    model.requires_grad_(False)
    for parameter, kind in _parameter_kinds(model):
        parameter.requires_grad_(kind == "variational")


def _report(plan: Plan, layers: dict[int, ConvertedLayer]) -> Report:
    report = Report()
    for unit in plan.units:
        kind = type(unit.module).__name__
        if unit.method is None:
            # Dropout has no weight: it is worth a line only where a method was to keep it on.
            if unit.kind != "dropout" or unit.chosen:
                report.left.append((unit.name, kind, unit.reason))
        else:
            report.converted.append((unit.name, kind, unit.method))
            for part in layers[id(unit.module)].modules():
                notes = part.notes if isinstance(part, ConvertedLayer) else []
                report.notes += [(unit.name, note) for note in notes]
    for partners in plan.ties:
        names = ", ".join(unit.name for unit in partners)
        report.notes.append((partners[0].name, f"one weight is shared by {names}"))
    return report


def param_groups(
    model: nn.Module, lr: float, weight_decay: float = 0.0, variational_lr: float | None = None
) -> list[dict[str, Any]]:
    """Parameter groups for a torch optimiser.

    Weight decay acts only on parameters that appear in no KL term (point-estimated weights, biases, norms), never on
    means, factors or patches, whose prior does that job, nor on the likelihood's noise.

    Args:
        model: A converted model, or an `ELBO` around one.
        lr: Learning rate.
        weight_decay: Weight decay of parameters that no KL term contains.
        variational_lr: Learning rate of what the method added (standard deviations, alphas, factors, patches); None
            takes `lr`.

    Returns:
        Up to four groups, named "points", "means", "variational" and "noise".

    Example:
        >>> import torch, leanbayes as lb
        >>> net = lb.bayesianize(torch.nn.Linear(3, 2), lb.MeanField())
        >>> [group["name"] for group in lb.param_groups(net, lr=0.1, weight_decay=1e-4, variational_lr=0.2)]
        ['points', 'means', 'variational']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"param_groups takes an nn.Module, not {type(model).__name__}")
    for name, value in (("lr", lr), ("weight_decay", weight_decay), ("variational_lr", variational_lr)):
        # torch checks its own defaults alone, and would climb.
        if value is not None and not (isinstance(value, (Real, Tensor)) and 0 <= value < math.inf):
            raise ValueError(f"param_groups({name}=...) takes a number from 0, not {value!r}")
    kinds = {id(parameter): kind for parameter, kind in _parameter_kinds(model)}
    found: dict[str, list[nn.Parameter]] = {"points": [], "means": [], "variational": [], "noise": []}
    for parameter in model.parameters():
        if parameter.requires_grad:
            found[kinds.get(id(parameter), "points")].append(parameter)
    settings = {
        "points": {"lr": lr, "weight_decay": weight_decay},
        "means": {"lr": lr, "weight_decay": 0.0},
        "variational": {"lr": lr if variational_lr is None else variational_lr, "weight_decay": 0.0},
        "noise": {"lr": lr, "weight_decay": 0.0},
    }
    return [{"name": name, "params": params, **settings[name]} for name, params in found.items() if params]


def _parameter_kinds(model: nn.Module) -> list[tuple[nn.Parameter, str]]:
    """What the modules that know say of their parameters: "points", "means", "variational" or "noise"."""
    found: list[tuple[nn.Parameter, str]] = []
    for module in model.modules():
        kinds: dict[str, str] = module.parameter_kinds() if hasattr(module, "parameter_kinds") else {}  # pyright: ignore
        found += [(module.get_parameter(name), kind) for name, kind in kinds.items()]
    return found
