"""Fresh parameters for the members of an ensemble."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.models import create


def reinitialise(model: nn.Module) -> list[str]:
    """Give a model fresh parameters, buffers and statistics, as it or its modules define them.

    What a module says `describes_data`, such as the bins of a table's features, stays as it is.
    Modules without a `reset_parameters` of their own draw anew from a normal distribution with the mean and standard
    deviation that their parameters have now.

    Returns:
        Names of those parameters.
    """
    fresh = _built_again(model)
    if fresh is not None:
        model.load_state_dict(fresh | _data_buffers(model))
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
    config: Any = getattr(model, "leanbayes_config", None)
    if config is None:
        return None
    with next(model.parameters()).device:
        fresh = create(config["name"], **config["options"]).state_dict()
    shapes = [(name, value.shape) for name, value in model.state_dict().items()]
    return fresh if shapes == [(name, value.shape) for name, value in fresh.items()] else None


def _data_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the buffers that describe the data and not the training, by name."""
    found: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        for name in getattr(module, "describes_data", ()):
            found[f"{path}.{name}" if path else name] = module.get_buffer(name).clone()
    return found


@torch.no_grad()
def _redraw(parameter: Tensor) -> None:
    spread = parameter.std(correction=0) if parameter.numel() > 1 else torch.zeros(())
    parameter.copy_(parameter.mean() + spread * torch.randn_like(parameter))
