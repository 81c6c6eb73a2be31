"""save and load: a model's values and its methods in one safetensors file, without pickle."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from leanbayes._checks import listed
from leanbayes._quantize import is_quantized, quantize_
from leanbayes._registry import to_json
from leanbayes._sampling import SeededRandom
from leanbayes._saved_file import PathLike, SavedFile, SavedPart, check_target, open_saved, write
from leanbayes.convert import bayesianize
from leanbayes.convert.conversions import find_conversions, is_converted, join
from leanbayes.convert.selectors import exactly
from leanbayes.models import create
from leanbayes.nn._base import Converted
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors._method import Method
from leanbayes.posteriors.patch import FoundProbs, PatchGroup
from leanbayes.posteriors.sparse import SparsePosterior


def save(model: nn.Module, path: PathLike, *, frozen: bool = True) -> None:
    """Write a model to a safetensors file: parameters and buffers, methods and priors, and what is frozen.

    Nothing is pickled, and tied tensors are written once. The file appears whole or not at all: after an error, the
    file that was there before is still there.

    Args:
        model: A converted model; a plain one is saved as such.
        path: The file, by convention with the suffix ``.safetensors``. Its folder must exist.
        frozen: Whether to write the frozen parameters of plain layers too. False makes the small file of an adapter; to
            `load` it, pass a model that has them.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If the model holds something that the file cannot, such as tensors without values.

    Example:
        >>> import os, tempfile, torch, leanbayes as lb
        >>> net = lb.bayesianize(torch.nn.Linear(3, 2), lb.KTied(rank=1))
        >>> path = os.path.join(tempfile.mkdtemp(), "net.safetensors")
        >>> lb.save(net, path)
        >>> again = lb.load(path, torch.nn.Linear(3, 2))
        >>> bool(lb.kl(again) == lb.kl(net))
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"save takes a model and a path, not a {type(model).__name__}")
    target = check_target(path)
    model = _unwrap(model)
    state = _tensors(model)
    aliases = _aliases(state)
    left_out = [] if frozen else _frozen_plain(model, state)
    memory: set[int] = set()
    stored = state.keys() - aliases.keys() - set(left_out)
    values = {key: _as_stored(key, tensor, memory) for key, tensor in state.items() if key in stored}
    about = _describe(model) | {"tied": aliases} | ({"left_out": left_out} if left_out else {})
    write(values, about, target)


def load(path: PathLike, model: nn.Module | None = None) -> nn.Module:
    """Read a model that `save` wrote.

    A plain model is converted in place, layer by layer as the saved one was, and frozen where the saved one was. A
    converted model must have the same methods on the same layers; its values change, but not what is frozen. Pruned and
    quantised parts come back as such. Values keep the file's dtypes and go to the model's devices. A file that does not
    fit leaves the model as it was.

    Args:
        path: The file.
        model: A plain model of the saved one's structure, or a converted one. None rebuilds models that
            `leanbayes.models.create` built.

    Returns:
        The model; use this one, since it is a new object if the root itself is converted, and for ensembles.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not a saved model, is truncated, or does not fit; the message names what differs.

    Example:
        >>> import os, tempfile, leanbayes as lb
        >>> from leanbayes import models
        >>> net = lb.bayesianize(models.create("mlp", in_features=4, hidden=[8], classes=3), lb.Rank1())
        >>> path = os.path.join(tempfile.mkdtemp(), "mlp.safetensors")
        >>> lb.save(net, path)
        >>> type(lb.load(path)).__name__
        'MLP'
    """
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"load takes a path and a model, not a {type(model).__name__}")
    # Conversion draws starting values that the file's replace; the caller's random numbers go on as if it had not.
    with open_saved(path) as file, SeededRandom(0):
        given = _rebuild(file) if model is None else model
        inner = _unwrap(given)
        if is_converted(inner):
            _check_methods(file, inner)
            with _unchanged_on_error(inner):
                _make_sparse(file, inner)
                _make_int8(file, inner)
                _make_mixing(file, inner)
                _fill(file, inner)
            return given
        with _unchanged_on_error(inner):
            converted = _convert(file, inner)
            _make_sparse(file, converted)
            _make_int8(file, converted)
            _make_mixing(file, converted)
            _fill(file, converted)
        for name, parameter in converted.named_parameters():
            parameter.requires_grad_(name not in file.frozen)
        return converted


def _describe(model: nn.Module) -> dict[str, Any]:
    """What the tensors do not say of a model, as JSON values."""
    methods: list[Any] = []

    def number(method: Method) -> int:
        value = to_json(method)
        if value not in methods:
            methods.append(value)
        return methods.index(value)

    conversions = [
        {
            "path": conversion.path,
            "ensemble": None if conversion.ensemble is None else number(conversion.ensemble),
            "layers": {name: number(layer.method) for name, layer in conversion.layers.items()},
            "left": conversion.left,
            "notes": conversion.notes,
        }
        for conversion in find_conversions(model)
    ]
    return {
        "model": type(_plain(model)).__name__,
        "config": getattr(_plain(model), "leanbayes_config", None),
        "methods": methods,
        "conversions": conversions,
        "frozen": [name for name, parameter in model.named_parameters() if not parameter.requires_grad],
    }


def _plain(model: nn.Module) -> nn.Module:
    """The plain model, or what stands for it and has its attributes."""
    return model.plain_view() if isinstance(model, Converted) else model


def _unwrap(model: nn.Module) -> nn.Module:
    """The model inside wrappers that only change how it runs."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):  # that of torch.compile
            model = model._orig_mod  # pyright: ignore[reportAssignmentType]
        else:
            return model


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state dict with the model's own tensors, so that tied ones are the same object."""
    state = model.state_dict(keep_vars=True)
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{key} is a {type(value).__name__}; only tensors can be saved and loaded")
        if is_lazy(value):
            raise ValueError(f"{key} is lazy and has no shape yet; run the model once first")
        if value.is_meta:
            raise ValueError(f"{key} is on the meta device and holds no values; build the model on a real device")
    return state


def _frozen_plain(model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """Keys of parameters that are not trained and that no converted layer has."""
    own = {id(p) for module in model.modules() if isinstance(module, Converted) for p in module.parameters()}
    parameters = {key: tensor for key, tensor in state.items() if isinstance(tensor, nn.Parameter)}
    return [key for key, tensor in parameters.items() if not tensor.requires_grad and id(tensor) not in own]


def _aliases(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Keys of tensors that are there under another key already, with that key."""
    first: dict[int, str] = {}
    return {key: first[id(t)] for key, t in state.items() if first.setdefault(id(t), key) != key}


def _as_stored(key: str, tensor: Tensor, memory: set[int]) -> Tensor:
    """A tensor as the file takes it: dense, on the CPU, in memory that no tensor before it has."""
    value = tensor.detach()
    if type(value) is not Tensor or value.layout != torch.strided:
        kind = type(value).__name__ if type(value) is not Tensor else f"{value.layout} tensor"
        raise ValueError(f"{key} is a {kind}; gather it into a dense tensor before saving")
    value = value.cpu().contiguous()
    if value.untyped_storage().data_ptr() in memory:
        value = value.clone()
    memory.add(value.untyped_storage().data_ptr())
    return value


def _rebuild(file: SavedFile) -> nn.Module:
    """The plain model, as `leanbayes.models.create` built it."""
    config = file.config
    if file.left_out:
        raise ValueError(
            f"{file.path} was saved without the frozen parameters; pass the plain model that has them, "
            "lb.load(path, model)"
        )
    if not isinstance(config, dict) or not {"name", "options"} <= config.keys():
        raise ValueError(
            f"{file.path} holds a {file.model} that leanbayes.models did not build, so it cannot be rebuilt; pass the "
            "plain model, lb.load(path, model)"
        )
    return create(config["name"], **config["options"])


def _misfit(file: SavedFile, model: nn.Module, problem: str) -> ValueError:
    return ValueError(f"{file.path} does not fit this {type(_plain(model)).__name__}: {problem}")


def _check_methods(file: SavedFile, model: nn.Module) -> None:
    """Raise where a converted model has other methods than the file."""
    here: dict[str, Method] = {}
    there: dict[str, Method] = {}
    for part in find_conversions(model):
        layers = {name: layer.method for name, layer in part.layers.items()}
        here |= _labelled(part.path, part.ensemble, layers)
    for part in file.parts:
        there |= _labelled(part.path, part.ensemble, part.layers)
    differing = [label for label in there | here if here.get(label) != there.get(label)]
    if differing:
        first = differing[0]
        more = f", and {len(differing) - 1} more differ" if len(differing) > 1 else ""
        raise _misfit(
            file,
            model,
            f"{first} has {there.get(first) or 'no method'} in the file and {here.get(first) or 'no method'} in the "
            f"model{more}",
        )


def _labelled(path: str, ensemble: Method | None, layers: Mapping[str, Method]) -> dict[str, Method]:
    """Methods by what a message calls the place where they are."""
    labels = {join(path, name) or "the model itself": method for name, method in layers.items()}
    return labels if ensemble is None else {join(path, "the ensemble"): ensemble} | labels


def _convert(file: SavedFile, model: nn.Module) -> nn.Module:
    """Convert a plain model as the saved one was."""
    modules = dict(model.named_modules(remove_duplicate=False))
    named = [join(part.path, name) for part in file.parts for name in ("", *part.layers)]
    absent = [name for name in named if name not in modules]
    if absent:
        raise _misfit(file, model, f"the model has no module named {listed(absent)}")
    for part in file.parts:
        plain = modules[part.path]
        try:
            converted = _convert_part(plain, part)
        except (ValueError, TypeError) as error:
            raise _misfit(file, model, str(error)) from None
        report: Any = converted.leanbayes_report
        report.left[:] = [tuple(item) for item in part.left]
        report.notes[:] = [tuple(item) for item in part.notes]
        if plain is model:
            model = converted
        elif converted is not plain:
            _replace(model, plain, converted)
    return model


def _convert_part(plain: nn.Module, part: SavedPart) -> nn.Module:
    if part.ensemble is not None:
        return bayesianize(plain, part.ensemble, where=exactly(part.layers) if part.layers else None)
    names: dict[Method, list[str]] = {}
    for name, method in part.layers.items():
        names.setdefault(method, []).append(name)
    return bayesianize(plain, {exactly(found): method for method, found in names.items()})


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for module in model.modules():
        for name, child in module._modules.items():
            if child is old:
                module._modules[name] = new


def _make_sparse(file: SavedFile, model: nn.Module) -> None:
    """Prune the weights that `lb.analysis.prune` had pruned, at the same places."""
    for name, weight in list(model.named_modules()):
        key = file.stored.get(f"{name}.posterior.index")
        if key is None or not isinstance(weight, RandomParameter) or isinstance(weight.posterior, SparsePosterior):
            continue
        index = file.handle.get_tensor(key).long().to(weight.device)
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < weight.posterior.shape.numel():
            raise _misfit(file, model, f"{name} is pruned in the file and has fewer entries in the model")
        weight.prune_(index, keep_means=f"{name}.posterior.points" in file.stored)


def _make_int8(file: SavedFile, model: nn.Module) -> None:
    """Quantise the weights that `lb.quantize` had quantised."""
    stored = (key for key in file.handle.keys() if key.endswith("weight.values"))
    if not is_quantized(model) and any(file.handle.get_slice(key).get_dtype() == "I8" for key in stored):
        quantize_(model)


def _make_mixing(file: SavedFile, model: nn.Module) -> None:
    """Give the patched layers whose probabilities `lb.analysis.stack_mixing` found a place for them, and no others."""
    for name, group in list(model.named_modules()):
        if isinstance(group, PatchGroup):
            found = join(name, "found.log_probs") in file.stored
            group.found = FoundProbs(torch.zeros(group.components)) if found else None


def _fill(file: SavedFile, model: nn.Module) -> None:
    """Put the file's values in a model, after checking that all of them fit."""
    state = _tensors(model)
    _check_keys(file, model, state)
    stored = {key: file.handle.get_tensor(key) for key in file.handle.keys()}
    values = {key: tensor if key in file.left_out else stored[file.stored[key]] for key, tensor in state.items()}
    _check_ties(file, model, state, values)
    changed = [key for key, tensor in state.items() if tensor.dtype != values[key].dtype]
    for key in changed:
        state[key].data = state[key].data.to(values[key].dtype)
        state[key].grad = None
    for module in model.modules() if changed else ():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
    model.load_state_dict(values)


def _check_keys(file: SavedFile, model: nn.Module, state: Mapping[str, Tensor]) -> None:
    shapes = {key: tuple(file.handle.get_slice(key).get_shape()) for key in file.handle.keys()}
    there = {key: shapes[origin] for key, origin in file.stored.items() if origin in shapes}
    missing = [key for key in state if key not in there and key not in file.left_out]
    unexpected = sorted(key for key in there if key not in state)
    wrong = [
        f"{key} (file {there[key]}, model {tuple(tensor.shape)})"
        for key, tensor in state.items()
        if key in there and there[key] != tuple(tensor.shape)
    ]
    problems = [f"the file lacks {listed(missing)}"] if missing else []
    problems += [f"the model lacks {listed(unexpected)}"] if unexpected else []
    problems += [f"shapes differ for {listed(wrong)}"] if wrong else []
    if problems:
        raise _misfit(file, model, "; ".join(problems))


def _check_ties(file: SavedFile, model: nn.Module, state: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Raise where the file and the model tie different tensors, so that values would be lost or come apart."""
    for key, other in _aliases(state).items():
        if values[key] is not values[other] and not torch.equal(values[key], values[other]):
            raise _misfit(file, model, f"{key} and {other} are one tensor in the model and two in the file")
    for key in state.keys() - file.left_out:
        other = file.stored[key]
        # Buffers lose their ties whenever a model is moved, so only those of parameters mean something.
        if isinstance(state[key], nn.Parameter) and state[key] is not state[other]:
            raise _misfit(file, model, f"{key} and {other} are one tensor in the file and two in the model")


@contextlib.contextmanager
def _unchanged_on_error(model: nn.Module) -> Iterator[None]:
    """Give all modules class and attributes back, children and hooks among them, where an error ends the context."""
    kept = [
        (module, type(module), {name: (value, _entries(value)) for name, value in vars(module).items()})
        for module in model.modules()
    ]
    try:
        yield
    except BaseException:
        for module, kind, before in kept:
            module.__class__ = kind
            attributes = vars(module)
            attributes.clear()
            for name, (value, entries) in before.items():
                attributes[name] = value
                if entries is not None:
                    value.clear()
                    value.update(entries)
        raise


def _entries(value: Any) -> dict[Any, Any] | None:
    """What a dictionary such as `_modules` holds now."""
    return dict(value) if isinstance(value, dict) else None
