"""import_state: a checkpoint of another library in the plain network that it is a random form of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._checks import listed
from leanbayes.convert.conversions import is_converted
from leanbayes.convert.convert import bayesianize
from leanbayes.convert.foreign.libraries import LIBRARIES, FoundPrior, Gaussian, Library
from leanbayes.convert.selectors import _MAPS, exactly
from leanbayes.posteriors import MeanField
from leanbayes.priors import Pretrained, Prior


def import_state(
    model: nn.Module, state: Mapping[str, Tensor], *, library: str | None = None, prior: Prior | None = None
) -> nn.Module:
    """Turn a plain network into a mean-field one with the values of another library's checkpoint.

    It needs only the names and tensors, not the library. Means and standard deviations of weights and biases are those
    of the checkpoint; plain parts, including batch norms with their statistics, are loaded as usual.

    Args:
        model: The plain network, with the layers named as in the checkpoint; it is converted in place.
        state: The state dict of a network of bayesian-torch, torchbnn, blitz or torch-uncertainty.
        library: One of these names; None recognises it by the keys.
        prior: The prior for further training, None for the checkpoint's or, where it has none, the library's default.

    Returns:
        The model; use this one, since it is a new object if the root itself is converted.

    Raises:
        ValueError: If the library is not recognised, or the checkpoint does not fit; the model is then as it was.

    Example:
        >>> import torch, leanbayes as lb
        >>> state = {"mu_weight": torch.ones(2, 3), "rho_weight": torch.full((2, 3), -3.0)}
        >>> layer = lb.import_state(torch.nn.Linear(3, 2, bias=False), state)
        >>> bool(layer.weight.posterior.std()[0, 0] == torch.nn.functional.softplus(torch.tensor(-3.0)))
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"import_state takes a plain model and a state dict, not a {type(model).__name__}")
    if is_converted(model):
        raise ValueError("the model is already converted; pass the plain architecture that the checkpoint belongs to")
    tensors = _tensors(model, state)
    return fill(model, tensors, _find_library(tensors, library), prior)


def fill(
    model: nn.Module,
    state: Mapping[str, Tensor],
    library: Library,
    prior: Prior | None,
    priors: Mapping[str, FoundPrior] | None = None,
) -> nn.Module:
    """Convert a plain model and give it the values of a state dict, after checking that all of them fit.

    Args:
        model: The plain model.
        state: The state dict of the library's network.
        library: The library.
        prior: The prior of all layers, None for each layer's own.
        priors: What the settings of the library's layers say of their priors, by layer.
    """
    if prior is not None and not isinstance(prior, Prior):
        raise TypeError(f"prior= takes a prior such as lb.Normal(0, 1), not {prior!r}")
    rest = dict(state)
    layers = [layer for name, module in _leaves(model) if (layer := _read(name, module, rest, library)) is not None]
    _check_rest(model, layers, rest, library)
    _check_ties(layers)
    found = {layer.name: _prior(layer, library, prior, (priors or {}).get(layer.name)) for layer in layers}
    rules: dict[MeanField, list[str]] = {}
    for layer in layers:
        method = MeanField(prior=found[layer.name].prior, bias="same" if layer.has_random_bias() else "point")
        rules.setdefault(method, []).append(layer.name)
    converted = bayesianize(model, {exactly(names): method for method, names in rules.items()})
    # From here on nothing can fail.
    with torch.no_grad():
        for layer in layers:
            _put(converted.get_submodule(layer.name), layer, found[layer.name].centres)
    converted.load_state_dict(rest, strict=False)
    report: Any = converted.leanbayes_report
    report.notes += [(name, f"the prior is {library.name}'s default") for name in found if found[name].assumed]
    return converted


@dataclass(frozen=True)
class _Layer:
    """A random layer of the checkpoint.

    Attributes:
        name: Its name.
        module: The plain layer of that name.
        held: The tensors of the checkpoint that belong to it, by their keys without its name.
        values: The distributions by the plain layer's tensors.
    """

    name: str
    module: nn.Module
    held: Mapping[str, Tensor]
    values: dict[str, Gaussian] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and type for messages."""
        return f"{self.name or 'the model itself'} ({type(self.module).__name__})"

    @property
    def prefix(self) -> str:
        """What its keys begin with."""
        return f"{self.name}." if self.name else ""

    def has_random_bias(self) -> bool:
        """Whether its biases are random, too."""
        return any(name.startswith("bias") for name in self.values)


def _tensors(model: nn.Module, state: Any) -> dict[str, Tensor]:
    """The tensors of a state dict, without what `DataParallel` puts before their names."""
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        raise ValueError("this is a checkpoint that contains a state dict; pass checkpoint['state_dict']")
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise TypeError("import_state takes a state dict, a mapping of names to tensors, such as torch.load returns")
    wrapped = bool(state) and all(key.startswith("module.") for key in state) and "module" not in model._modules
    return {key.removeprefix("module.") if wrapped else key: value for key, value in state.items()}


def _find_library(state: Mapping[str, Tensor], name: str | None) -> Library:
    if name is not None:
        for library in LIBRARIES:
            if name.replace("_", "-") == library.name:
                return library
        known = ", ".join(repr(library.name) for library in LIBRARIES)
        raise ValueError(f"import_state(library=...) takes one of {known}, not {name!r}")
    found = [library for library in LIBRARIES if library.recognises(state)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(library.name for library in found or LIBRARIES)
    if found:
        raise ValueError(f"the keys match more than one library ({names}); name one with library=")
    raise ValueError(f"the keys ({listed(list(state)) or 'none'}) match no known library; {names} were tried")


def _leaves(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """All names of all modules that have no others inside."""
    modules = model.named_modules(remove_duplicate=False)
    return [(name, module) for name, module in modules if next(module.children(), None) is None]


def _read(name: str, module: nn.Module, rest: dict[str, Tensor], library: Library) -> _Layer | None:
    """The random form of a plain layer, taken out of the rest; None where the checkpoint has it plain."""
    prefix = f"{name}." if name else ""
    own = [key for key in rest if key.startswith(prefix) and library.owns(key.removeprefix(prefix), module)]
    if not own:
        return None
    layer = _Layer(name, module, {key.removeprefix(prefix): rest.pop(key) for key in own})
    problem = _why_unknown(module, library)
    if problem is not None:
        raise ValueError(f"{layer.label} is random in the {library.name} network, but {problem}")
    for tensor in dict(module.named_parameters()):
        is_point = tensor.startswith("bias") and f"{prefix}{tensor}" in rest
        if not is_point:
            layer.values[tensor] = _distribution(layer, tensor, library)
    surplus = [place.mean for place in library.stored("bias") if place.mean in layer.held]
    if surplus and not layer.has_random_bias() and not library.drops_bias(module):
        key = f"{prefix}{surplus[0]}"
        raise ValueError(f"the {library.name} checkpoint has {key}, but {layer.label} has no random bias")
    return layer


def _distribution(layer: _Layer, tensor: str, library: Library) -> Gaussian:
    """The distribution of one tensor of a layer, after checking that it is there and fits."""
    places = library.stored(tensor)
    place = next((each for each in places if each.mean in layer.held), places[-1])
    keys = (place.mean, place.spread)
    for key in keys:
        if key not in layer.held:
            raise ValueError(f"the {library.name} checkpoint lacks {layer.prefix}{key}, which {layer.label} needs")
    found = library.gaussian(layer.held, place)
    wanted = layer.module.get_parameter(tensor).shape
    for key, value in zip(keys, found):
        if value.shape != wanted:
            raise ValueError(
                f"{layer.prefix}{key} of the {library.name} checkpoint has shape {tuple(layer.held[key].shape)}, which "
                f"does not fit {layer.prefix}{tensor} {tuple(wanted)}; pass the architecture that it was trained with"
            )
    return found


def _why_unknown(module: Any, library: Library) -> str | None:
    """Why a plain layer cannot take a library's distributions, None where it can."""
    if isinstance(module, nn.LSTM) and (module.num_layers > 1 or module.bidirectional or module.proj_size):
        return "its LSTM has one layer and one direction, and no projection"
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        return "its padding row is random too, which ours is not; build the plain embedding without padding_idx"
    if isinstance(module, (*_MAPS, *library.serves)):
        return None
    kinds = ", ".join(("Linear", "convolutions", *(kind.__name__ for kind in library.serves)))
    return f"of {library.name} only {kinds} can be imported"


def _check_rest(model: nn.Module, layers: list[_Layer], rest: dict[str, Tensor], library: Library) -> None:
    """Raise where what is left of the checkpoint is not what is left of the model."""
    covered = {f"{layer.prefix}{tensor}" for layer in layers for tensor in layer.values}
    plain = {key: value for key, value in model.state_dict().items() if key not in covered}
    wrong = [
        f"{key} (checkpoint {tuple(rest[key].shape)}, model {tuple(value.shape)})"
        for key, value in plain.items()
        if key in rest and rest[key].shape != value.shape
    ]
    missing, surplus = [key for key in plain if key not in rest], [key for key in rest if key not in plain]
    problems = [f"it has no values for {listed(missing)}"] if missing else []
    problems += [f"the model has no place for {listed(surplus)}"] if surplus else []
    problems += [f"shapes differ for {listed(wrong)}"] if wrong else []
    if not problems and not layers:
        problems = ["no layer of it is random"]
    if problems:
        raise ValueError(
            f"the {library.name} checkpoint does not fit this {type(model).__name__}: {'; '.join(problems)}"
        )


def _check_ties(layers: list[_Layer]) -> None:
    """Raise where one tensor of the model would get two distributions, or one that it cannot have."""
    first: dict[int, tuple[_Layer, Gaussian]] = {}
    for layer in layers:
        for tensor, value in layer.values.items():
            other, before = first.setdefault(id(layer.module.get_parameter(tensor)), (layer, value))
            both = f"{other.label} and {layer.label} share {tensor} in the model, but"
            if not all(torch.equal(one, two) for one, two in zip(before, value)):
                raise ValueError(f"{both} not in the checkpoint")
            if other.module is not layer.module and tensor.startswith("bias"):
                raise ValueError(f"{both} a shared bias cannot be random")


def _prior(layer: _Layer, library: Library, prior: Prior | None, known: FoundPrior | None) -> FoundPrior:
    """The prior of a layer: the caller's, else the library's."""
    if prior is not None:
        # The weights that it is centred on are those of the checkpoint.
        means = {tensor: value.mean for tensor, value in layer.values.items()}
        return FoundPrior(prior, means if isinstance(prior, Pretrained) else {})
    try:
        found = known or library.prior_in(layer.held, layer.values)
    except ValueError as error:
        raise ValueError(f"{layer.label}: {error}") from None
    if found is not None:
        return found
    if library.default_prior is None:
        raise ValueError(
            f"a {library.name} checkpoint does not contain its prior; pass prior=lb.Normal(prior_mu, prior_sigma)"
        )
    return FoundPrior(library.default_prior, assumed=True)


def _put(target: Any, layer: _Layer, centres: Mapping[str, Tensor]) -> None:
    """Give a converted layer its distributions."""
    for tensor, value in layer.values.items():
        random = getattr(target, tensor)
        random.posterior.loc.copy_(value.mean)
        random.posterior.raw_std.copy_(value.raw_std)
        if tensor in centres:
            random.prior.mean.copy_(centres[tensor])
