"""Weights in eight bits: whole numbers with one scale per output feature, and products of whole numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

_LARGEST = 127
# Sums of so many products of two whole numbers up to 127 fit 32 bits.
_MOST_PRODUCTS = 2**31 // _LARGEST**2 - 1
# With smaller weights, the rounding of inputs takes longer than the products save.
_SMALLEST = 1 << 15
# Inputs of convolutions are bytes from 0, with this one for 0.
_ZERO = 128


class Int8Weight(nn.Module):
    """A weight ``[out, ...]`` in eight bits; functions of torch take it as they take a tensor.

    ``values * scale`` is within half a `scale` of the weight it was made from. On CPUs with products of whole numbers
    (VNNI), dense layers and convolutions round their inputs to eight bits too, each row (example) by its own largest
    entry, so that rows do not depend on each other. Everywhere else, where gradients flow, and where the weight is so
    small that nothing is gained, it is made floating for the moment of its use.

    Args:
        weight: The weight, output features first.
        rounds_inputs: Whether inputs may be rounded.

    Attributes:
        values: The whole numbers, in the weight's shape.
        scale: What one of them stands for ``[out]``.
    """

    values: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, rounds_inputs: bool = True) -> None:
        super().__init__()
        values, scale = round_weight(weight.detach())
        # As `_int_mm` reads it fastest: the features of one input lie side by side.
        self.register_buffer("values", values.t().contiguous().t() if values.dim() == 2 else values)
        self.register_buffer("scale", scale)
        self.rounds_inputs = rounds_inputs
        # What oneDNN makes of the values when they are first used; it follows from them.
        self._packed: dict[Any, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_packed": {}}

    @property
    def shape(self) -> torch.Size:
        """Shape of the weight."""
        return self.values.shape

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weight where it is made floating."""
        return self.scale.dtype

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.values.device

    @property
    def requires_grad(self) -> bool:
        """Whole numbers are not trained."""
        return False

    def dim(self) -> int:
        """Number of axes."""
        return self.values.dim()

    def plain_sizes(self) -> list[tuple[int, int]]:
        """Elements and bytes per element of what the plain model has in its place."""
        return [(self.values.numel(), self.dtype.itemsize)]

    def floating(self) -> Tensor:
        """The weight that it stands for."""
        return self.values.to(self.dtype) * self.scale.view(-1, *(1,) * (self.dim() - 1))

    @torch.no_grad()
    def copy_(self, weight: Tensor) -> None:
        """Stand for another weight."""
        values, scale = round_weight(weight)
        self.values.copy_(values)
        self.scale.copy_(scale)
        self._packed.clear()

    def __mul__(self, other: Tensor) -> Tensor:
        return self.floating() * other

    def __add__(self, other: Tensor) -> Tensor:
        return self.floating() + other

    def extra_repr(self) -> str:
        """The shape."""
        return str(tuple(self.shape))

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._packed.clear()

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        product = {F.linear: _linear, F.conv2d: _conv2d}.get(func)
        found = None if product is None else product(*args, **kwargs)
        if found is not None:
            return found
        dtype = next((t.dtype for t in args if isinstance(t, Tensor) and t.is_floating_point()), None)
        args, kwargs = tree_map(lambda t: t.floating().to(dtype) if isinstance(t, cls) else t, (args, kwargs))
        return func(*args, **kwargs)


def round_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127 in the shape of a weight, and their scale ``[out]``."""
    largest = weight.abs().flatten(1).amax(1)
    scale = torch.where(largest > 0, largest, 1.0) / _LARGEST
    values = weight / scale.view(-1, *(1,) * (weight.dim() - 1))
    return values.round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scale


@functools.cache
def has_int8_products() -> bool:
    """Whether this CPU multiplies whole numbers of eight bits and adds the products up in 32 bits."""
    supported = getattr(torch.cpu, "_is_vnni_supported", None)
    return supported is not None and supported() and torch.backends.mkldnn.is_available()


def _rounds(x: Tensor, weight: Int8Weight) -> bool:
    """Whether a product is one of whole numbers."""
    if not isinstance(weight, Int8Weight) or x.numel() == 0:
        return False
    trained = torch.is_grad_enabled() and x.requires_grad
    fits = weight.shape[1:].numel() <= _MOST_PRODUCTS and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    pays = weight.rounds_inputs and weight.shape.numel() >= _SMALLEST
    return pays and fits and x.device.type == "cpu" and not trained and has_int8_products()


def _largest(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The largest absolute entry of each row, 1 where that is 0."""
    found = x.abs().amax(dims, keepdim=True)
    return torch.where(found == 0, 1.0, found)


def _linear(input: Tensor, weight: Int8Weight, bias: Tensor | None = None) -> Tensor | None:
    if not _rounds(input, weight):
        return None
    rows = input.detach().reshape(-1, input.shape[-1]).float()
    unit = _largest(rows, (1,)) / _LARGEST  # [rows, 1]
    products = torch.ops.aten._int_mm((rows / unit).round_().to(torch.int8), weight.values.t())
    y = products.float().mul_(unit).mul_(weight.scale)
    if bias is not None:
        y = y + bias
    return y.view(*input.shape[:-1], weight.shape[0]).to(input.dtype)


def _conv2d(
    input: Tensor,
    weight: Int8Weight,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    # Groups gain nothing.
    if groups > 1 or isinstance(padding, str) or input.dim() != 4 or not _rounds(input, weight):
        return None
    if not hasattr(torch.ops.onednn, "qconv_pointwise"):
        return None
    x = input.detach().float()
    unit = _largest(x, (1, 2, 3)) / _LARGEST  # [B, 1, 1, 1]
    numbers = (x / unit).round_().add_(_ZERO).to(torch.uint8)
    places = [[each, each] if isinstance(each, int) else list(each) for each in (stride, padding, dilation)]
    zeros = torch.zeros_like(weight.scale, dtype=torch.int)
    scale = weight.scale.float()
    key = (*map(tuple, places), x.shape[1:])
    packed = weight._packed.get(key)
    if packed is None:
        packed = torch.ops.onednn.qconv_prepack(weight.values, scale, 1.0, _ZERO, *places, groups, list(x.shape))
        weight._packed.clear()  # one at a time, however many sizes of images come
        weight._packed[key] = packed
    y = torch.ops.onednn.qconv_pointwise(
        numbers, 1.0, _ZERO, packed, scale, zeros, None, *places, groups, 1.0, 0, torch.float32, "none", [], ""
    )
    y = y * unit
    if bias is not None:
        y = y + bias.view(-1, 1, 1)
    # It comes with the channels last, in memory; models that flatten expect what plain convolutions give them.
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return y.to(input.dtype, memory_format=torch.channels_last if last else torch.contiguous_format)
