"""import_model: a network of another library as one of ours."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from torch.nn.utils import skip_init

from leanbayes._checks import listed
from leanbayes.convert.foreign.checkpoint import fill
from leanbayes.convert.foreign.libraries import LIBRARIES, FoundPrior, Library
from leanbayes.priors import Prior


def import_model(model: nn.Module, *, prior: Prior | None = None) -> nn.Module:
    """Turn a network of another library into a mean-field one with the same distributions.

    Its random layers become ours, with the same means, standard deviations and priors; everything else is copied. If
    the network expects its layers to return more than torch's own do, such as their KL or other states of an LSTM, pass
    its state dict and your plain network to `import_state` instead.

    Args:
        model: A network of bayesian-torch (made by `dnn_to_bnn`), torchbnn, blitz or torch-uncertainty; it stays as it
            is.
        prior: The prior for further training, None for the network's own.

    Returns:
        The new model.

    Raises:
        ValueError: If no layer is known, or one cannot be replaced.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"import_model takes a network, not a {type(model).__name__}; see import_state for state dicts")
    library, layers = _find_layers(model)
    plain: dict[int, Any] = {}
    priors: dict[str, FoundPrior] = {}
    state = model.state_dict()
    for name, layer in layers.items():
        label = f"{name or 'the model itself'} ({type(layer).__name__})"
        problem = _why_not(layer, library)
        if problem is not None:
            raise ValueError(
                f"{label} cannot be replaced: {problem}; pass its state dict and your plain network to lb.import_state"
            )
        plain.setdefault(id(layer), _plain_layer(layer, library))
        # Priors are among the buffers that state dicts leave out.
        state |= {f"{name}.{key}" if name else key: buffer for key, buffer in layer.named_buffers()}
        try:
            found = None if prior is not None else library.prior_of(layer)
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from None
        if found is not None:
            priors[name] = found
    # What is in the memo is taken for copied: plain layers go to all places of the random ones.
    return fill(copy.deepcopy(model, plain), state, library, prior, priors)


def _find_layers(model: nn.Module) -> tuple[Library, dict[str, nn.Module]]:
    """The random layers of a network by all their names, outermost only."""
    found: dict[Library, dict[str, nn.Module]] = {}
    for library in LIBRARIES:
        layers: dict[str, nn.Module] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            inside = any(outer == "" or name.startswith(f"{outer}.") for outer in layers)
            if not inside and _class_in(library, module, library.random) is not None:
                layers[name] = module
        if layers:
            found[library] = layers
    if len(found) == 1:
        return next(iter(found.items()))
    names = [library.name for library in found or LIBRARIES]
    if found:
        raise ValueError(f"the network has layers of {' and '.join(names)}; import_model takes those of one library")
    raise ValueError(f"no layer of the network comes from a known library; {', '.join(names)} were tried")


def _class_in(library: Library, module: nn.Module, names: Any) -> type | None:
    """The nearest class of a module that the library defines under one of these names."""
    for cls in type(module).__mro__:
        if cls.__name__ in names and cls.__module__.partition(".")[0] == library.package:
            return cls
    return None


def _why_not(layer: nn.Module, library: Library) -> str | None:
    """Why a layer cannot be replaced, None where it can."""
    known: Any = _class_in(library, layer, library.layers)
    if known is None:
        names = listed(list(library.layers))
        return f"{type(layer).__name__} is no drop-in for a layer of torch's, as {names} are"
    if type(layer).forward is not known.forward:
        return f"{type(layer).__name__} defines its own forward"
    return library.why_no_drop_in(layer)


def _plain_layer(layer: Any, library: Library) -> nn.Module:
    """Torch's layer of the same shape and settings, without values."""
    cls = _class_in(library, layer, library.layers)
    assert cls is not None
    kind = library.layers[cls.__name__]
    reference = next(layer.parameters())
    if kind == "Embedding":
        arguments: dict[str, Any] = {
            name: getattr(layer, name)
            for name in ("num_embeddings", "embedding_dim", "padding_idx", "max_norm", "norm_type", "sparse")
        }
    elif kind == "Linear":
        arguments = {"in_features": layer.in_features, "out_features": layer.out_features}
    else:
        names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
        names += ("output_padding",) if "Transpose" in kind else ("padding_mode",)
        arguments = {name: getattr(layer, name) for name in names if hasattr(layer, name)}
    if kind != "Embedding":
        arguments["bias"] = library.has_bias(layer)
    plain = skip_init(getattr(nn, kind), **arguments, device=reference.device, dtype=reference.dtype)
    return plain.train(layer.training)
