"""point_estimate: the inverse of conversion, a plain model."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._sampling import Frame, FrameCloser, FrameOpener, Sampling, Stream, check_seed, using
from leanbayes.convert.convert import restore_fast_paths
from leanbayes.convert.pretrained import give_back_saving
from leanbayes.convert.references import Replacement
from leanbayes.nn._base import Converted, ConvertedLayer
from leanbayes.parameter import RandomParameter


def point_estimate(model: nn.Module, *, component: int | None = None, seed: int | None = None) -> nn.Module:
    """A plain model: the posterior means, one component, or one draw, in plain torch layers.

    Args:
        model: A converted model; it stays as it is.
        component: Which component of a mixture; required where components with a shared index differ.
        seed: Take one draw with this seed instead of the means.

    Returns:
        A new model of plain modules with the plain model's state-dict keys.

    Example:
        >>> import torch, leanbayes as lb
        >>> plain = torch.nn.Linear(3, 2)
        >>> again = lb.point_estimate(lb.bayesianize(torch.nn.Linear(3, 2), lb.MeanField()))
        >>> list(again.state_dict()) == list(plain.state_dict())
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"point_estimate takes an nn.Module, not {type(model).__name__}")
    if component is not None and (isinstance(component, bool) or not hasattr(component, "__index__")):
        raise TypeError(f"component is the number of one, counted from 0, not {component!r}")
    if seed is not None:
        check_seed(seed)
    if _holds_members(model):
        return _of_member(model, component, seed)
    if not any(isinstance(m, Converted) for m in model.modules()):
        raise ValueError("the model has no converted layer; point_estimate takes a model that lb.bayesianize returned")
    root = copy.deepcopy(model)
    parts = [module for module in root.modules() if _holds_members(module)]
    root = Replacement(root, {id(p): point_estimate(p, component=component, seed=seed) for p in parts}).apply()
    if component is None and seed is None:
        _check_components_agree(root, "", "choose one with component=")
    values: dict[int, nn.Parameter] = {}
    if seed is None:
        plain = _replace(root, component, None, values)
    else:
        spec = Sampling(joint=True, component="random" if component is None else component, stream=Stream(seed))
        frame = Frame()
        frame.root = root  # weights that a pass draws together are drawn together here
        with using(spec, frame):
            plain = _replace(root, component, spec, values)
    restore_fast_paths(plain)
    _remove_traces(plain)
    return plain


def _holds_members(module: nn.Module) -> bool:
    return isinstance(module, Converted) and module.inner_model() is not None


def _of_member(ensemble: Any, component: int | None, seed: int | None) -> nn.Module:
    """A point of one member, which is chosen by its number or drawn."""
    if component is None and seed is None:
        raise ValueError(
            f"the {ensemble.components} members of the ensemble differ; choose one with component=, or draw with seed="
        )
    if component is None:
        component = int(torch.randint(ensemble.components, (), generator=torch.Generator().manual_seed(seed or 0)))
    member = ensemble.member_module(component)
    if not any(isinstance(m, ConvertedLayer) for m in member.modules()):
        return member
    if seed is None:
        one = f"lb.point_estimate(model.member_module({component}), component=...)"
        _check_components_agree(member, f" in member {component}", f"choose one with {one}")
    return point_estimate(member, seed=seed)


def _remove_traces(model: nn.Module) -> None:
    """Remove the hooks and reports of the conversion, also of parts that were converted on their own."""
    for module in model.modules():
        for hooks, kind in ((module._forward_pre_hooks, FrameOpener), (module._forward_hooks, FrameCloser)):
            for key, hook in list(hooks.items()):
                if isinstance(hook, kind):
                    del hooks[key]
                    module._forward_pre_hooks_with_kwargs.pop(key, None)
                    module._forward_hooks_always_called.pop(key, None)
        if hasattr(module, "leanbayes_report"):
            del module.leanbayes_report
    give_back_saving(model)


def _check_components_agree(model: nn.Module, where: str, how: str) -> None:
    for path, module in model.named_modules():
        if not isinstance(module, RandomParameter) or not module.posterior.shared_index:
            continue
        first = module.mean(0)
        if any(not torch.equal(first, module.mean(k)) for k in range(1, module.posterior.components)):
            raise ValueError(
                f"the {module.posterior.components} components of {path}{where} differ; {how}, or a draw with seed="
            )


def _replace(
    root: nn.Module, component: int | None, spec: Sampling | None, values: dict[int, nn.Parameter]
) -> nn.Module:
    """Put plain modules in the place of converted ones; `values` keeps tied weights tied."""

    def value(parameter: Any) -> nn.Parameter:
        if isinstance(parameter, nn.Parameter):
            return parameter
        if id(parameter) not in values:
            values[id(parameter)] = _as_parameter(parameter, component, spec)
        return values[id(parameter)]

    holders = [module for module in root.modules() if not hasattr(module, "plain_module")]
    # What is inside a converted layer goes with it.
    places = [root, *(child for module in holders for child in module.children())]
    # Converted and quantised layers.
    layers: dict[int, Any] = {id(module): module for module in places if hasattr(module, "plain_module")}
    return Replacement(
        root, {key: layer.plain_module(layer.plain_values(value)) for key, layer in layers.items()}
    ).apply()


def _as_parameter(parameter: RandomParameter, component: int | None, spec: Sampling | None) -> nn.Parameter:
    with torch.no_grad():
        result: Tensor = parameter.mean(component) if spec is None else parameter.rsample(1, spec)[0]
    return nn.Parameter(result.detach().clone().to(parameter.dtype), requires_grad=parameter.requires_grad)
