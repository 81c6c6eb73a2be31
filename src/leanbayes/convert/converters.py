"""Which module becomes which layer: one registered function per torch type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize

from leanbayes.nn import (
    AttentionLayer,
    BayesianLayer,
    BilinearLayer,
    CellLayer,
    ComponentBatchNorm,
    DropoutLayer,
    ForeignNormLayer,
    NormLayer,
    RecurrentLayer,
)
from leanbayes.nn._base import ConvertedLayer, Scope
from leanbayes.nn.foreign_norm import behaviour_of, is_foreign_norm
from leanbayes.nn.norm import TORCHS_NORMS
from leanbayes.ops import is_transformers_conv1d
from leanbayes.posteriors._method import Method

Converter = Callable[..., ConvertedLayer]

_CONVERTERS: dict[type, tuple[str, Converter]] = {}


def register_conversion(*types: type[nn.Module], kind: str) -> Callable[[Converter], Converter]:
    """Register the function that converts modules of these types.

    It takes ``(module, method, scope, path, batch_dim)``; `kind` is what `Method.kinds` calls such modules.
    """

    def add(function: Converter) -> Converter:
        for module_type in types:
            if module_type in _CONVERTERS:
                raise ValueError(f"a conversion of {module_type.__name__} is already registered")
            _CONVERTERS[module_type] = (kind, function)
        return function

    return add


def find_converter(module: nn.Module) -> tuple[str, Converter] | None:
    """The kind of a module and the function that converts it, None where there is none."""
    if _is_foreign(module):
        return "norm", _foreign_norm
    known = _registered_type(module)
    if known is not None:
        return _CONVERTERS[known]
    return ("linear", _generic) if is_transformers_conv1d(module) else None


def _is_foreign(module: nn.Module) -> bool:
    """Whether a module is a norm of another library, and nobody has registered its type."""
    return is_foreign_norm(module) and not _is_contributed(_registered_type(module))


def _is_contributed(known: type | None) -> bool:
    """Whether the registered type of a module is none of torch's own."""
    return known is not None and not known.__module__.startswith("torch.")


def _registered_type(module: nn.Module) -> type | None:
    """The nearest class of a module for which a conversion is registered."""
    return next((base for base in type(module).__mro__ if base in _CONVERTERS), None)


def why_unservable(module: Any) -> str | None:
    """Why a module of a known type is left alone, None where it can be converted."""
    if any(parametrize.is_parametrized(part) for part in module.modules()):
        return "its weight is parametrised"
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
        return "it is lazy; run the model once first"
    if any(p.is_complex() for p in module.parameters()):
        return "its weight is complex"
    known = _registered_type(module)
    foreign = _is_foreign(module)
    if known is not None and not foreign and type(module).forward is not known.forward:
        return f"{type(module).__name__} defines its own forward"
    if type(module).__call__ is not (known or nn.Module).__call__:
        return f"{type(module).__name__} defines its own __call__"
    if any("forward" in vars(part) for part in module.modules()):
        return "its forward was replaced"
    if foreign:
        return behaviour_of(module).problem
    if isinstance(module, TORCHS_NORMS) and getattr(module, "weight", None) is None:
        return "it has no scale and shift"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        if module.max_norm is not None:
            return "max_norm rewrites its weight in place"
        if module.sparse:
            return "sparse gradients need a plain weight"
    parameters = dict(module.named_parameters(remove_duplicate=False))
    if any(name not in parameters for name in _weight_names(module)):
        return "its weight is computed, not a parameter"
    # Who registers a type of his own knows what it holds.
    if not _is_contributed(known):
        kind = "linear" if known is None else _CONVERTERS[known][0]
        plain = {*_weight_names(module), *_OTHER_NAMES.get(kind, ("bias",))}
        held = [*parameters, *dict(module.named_buffers()), *dict(module.named_children())]
        for name in held:
            if name not in plain:
                return f"it also holds {name}, which would be lost"
    return None


# What modules may hold beside their weights, by their kind.
_OTHER_NAMES = {
    "dropout": (),
    "norm": ("bias", "running_mean", "running_var", "num_batches_tracked"),
    "recurrent": ("bias_ih", "bias_hh"),
    "attention": ("v_proj_weight", "in_proj_bias", "bias_k", "bias_v", "out_proj", "out_proj.bias"),
}
_NO_WEIGHT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def _weight_names(module: Any) -> tuple[str, ...]:
    """The weights that a plain module of this type has for parameters."""
    if isinstance(module, _NO_WEIGHT):
        return ()
    if isinstance(module, nn.RNNBase):
        return tuple(module._flat_weights_names)
    if isinstance(module, nn.RNNCellBase):
        return ("weight_ih", "weight_hh")
    if isinstance(module, nn.MultiheadAttention):
        packed = ("in_proj_weight",) if module._qkv_same_embed_dim else ("q_proj_weight", "k_proj_weight")
        return (*packed, "out_proj.weight")
    return ("weight",)


@register_conversion(nn.Embedding, nn.EmbeddingBag, kind="embedding")
@register_conversion(
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    kind="linear",
)
def _generic(module: nn.Module, method: Method, scope: Scope, path: str, batch_dim: int | None) -> ConvertedLayer:
    return BayesianLayer(module, method, batch_dim=batch_dim, scope=scope, path=path)


@register_conversion(nn.LSTM, nn.GRU, nn.RNN, kind="recurrent")
def _recurrent(module: Any, method: Method, scope: Scope, path: str, batch_dim: int | None) -> ConvertedLayer:
    return RecurrentLayer(module, method, scope=scope, path=path)


@register_conversion(nn.LSTMCell, nn.GRUCell, nn.RNNCell, kind="recurrent")
def _cell(module: nn.Module, method: Method, scope: Scope, path: str, batch_dim: int | None) -> ConvertedLayer:
    return CellLayer(module, method, scope=scope, path=path)


@register_conversion(nn.Bilinear, kind="bilinear")
def _bilinear(module: nn.Module, method: Method, scope: Scope, path: str, batch_dim: int | None) -> ConvertedLayer:
    return BilinearLayer(module, method, scope=scope, path=path)


@register_conversion(nn.MultiheadAttention, kind="attention")
def _attention(module: nn.Module, method: Method, scope: Scope, path: str, batch_dim: int | None) -> ConvertedLayer:
    return AttentionLayer(module, method, scope=scope, path=path)


@register_conversion(
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    kind="norm",
)
def _norm(module: nn.Module, method: Method, scope: Scope, path: str, batch_dim: int | None) -> ConvertedLayer:
    own = isinstance(module, _BatchNorm) and getattr(method, "norms", None) == "component"
    layer = ComponentBatchNorm if own else NormLayer
    return layer(module, method, batch_dim=batch_dim, scope=scope, path=path)


def _foreign_norm(module: nn.Module, method: Method, scope: Scope, path: str, batch_dim: int | None) -> ConvertedLayer:
    return ForeignNormLayer(module, method, batch_dim=batch_dim, scope=scope, path=path)


@register_conversion(*_NO_WEIGHT, kind="dropout")
def _dropout(module: nn.Module, method: Method, scope: Scope, path: str, batch_dim: int | None) -> ConvertedLayer:
    return DropoutLayer(module, method, scope=scope, path=path)
