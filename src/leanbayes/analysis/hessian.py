"""The curvature criterion: how far a weight's noise reaches where the loss is not linear in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from leanbayes._inputs import output_tensor
from leanbayes._modes import eval_mode
from leanbayes._sampling import sampling
from leanbayes.analysis._data import batches, check_count, check_labelled, check_scores
from leanbayes.analysis._layers import NoisyLayer, Which, noisy_layers, shown, uncompiled
from leanbayes.nn.layer import BayesianLayer
from leanbayes.ops import Conv, Dense, DenseTransposed, LinearOp

# Elements of the directions that one pass differentiates along.
_ELEMENTS = 1 << 24


def curvature(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    layer: Which = None,
    batch_size: int = 256,
    chunk: int | None = None,
) -> dict[str, Tensor]:
    r"""The curvature criterion of each weight (the preprint of Variance Networks, eq. 16).

    .. math:: \kappa = \sigma^2 \left| \frac{\partial^2}{\partial w^2} \sum_n -\log p(y_n \mid x_n, w) \right|

    with all weights at their means and the model in eval mode. Where it is small the loss is linear in a weight as far
    as its noise reaches, and the weight can be replaced by its mean.

    Second derivatives are exact. With respect to the weight that joins input j and output i of a layer they are
    ``sum_pq a_jp a_jq H_ipq``, with a the layer's inputs at positions p and q and H the second derivatives with respect
    to its outputs; an example of a dense layer has one position. So it takes as many Hessian-vector products as the
    layer has outputs, times its positions or its inputs per output, whichever are fewer; the latter if rows of the
    layer's input see each other, as in a sequence that is flattened before the layer.

    Kinks have no second derivative: a network of ReLUs shows only the curvature of its softmax. The published
    procedure uses networks with softplus after the noisy layer.

    Args:
        model: A converted classifier. Examples must not see each other, and each layer must be called once.
        x: Inputs ``[N, ...]``.
        y: Class labels ``[N]``.
        layer: The layers, dense or convolutional: names or globs, or a selector; None takes all.
        batch_size: Rows at once; the result does not depend on it.
        chunk: Hessian-vector products at once; None chooses.

    Returns:
        By the layer's name, kappa in the shape of its weight.

    Example:
        >>> import torch, leanbayes as lb
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Softplus(), torch.nn.Linear(8, 3))
        >>> net = lb.bayesianize(net, lb.VarianceLayer(), where=lb.named("0"))
        >>> kappa = lb.analysis.curvature(net, torch.randn(20, 4), torch.randint(3, (20,)))
        >>> kappa["0"].shape
        torch.Size([8, 4])
    """
    model = uncompiled(model)  # compiled code has no second derivatives
    check_labelled(x, y, batch_size)
    check_count("chunk", chunk)
    found = noisy_layers(model, layer)
    for part in found:
        _check_op(part)
    return {part.name: _kappa(model, part, x, y, batch_size, chunk) for part in found}


def _check_op(layer: NoisyLayer) -> None:
    if not isinstance(layer.module, BayesianLayer) or not isinstance(layer.module.op, Dense | Conv):
        kind = type(layer.module.template).__name__
        raise TypeError(
            f"curvature supports dense layers and convolutions, but {shown(layer.name)} is of type {kind}; leave it "
            "out with layer="
        )
    if layer.module.weight.tied:
        raise ValueError(
            f"curvature supports weights that one layer uses, but {shown(layer.name)} shares its weight with another "
            "layer; leave it out with layer="
        )


def _kappa(model: nn.Module, layer: NoisyLayer, x: Tensor, y: Tensor, batch_size: int, chunk: int | None) -> Tensor:
    module: Any = layer.module
    full = torch.promote_types(module.weight.dtype, torch.float32)  # sums over many batches in half precision drift
    diagonal = torch.zeros((), dtype=full, device=module.weight.device)
    for rows, labels in batches(model, x, y, batch_size):
        diagonal = diagonal + _hessian_diagonal(model, layer, rows, labels, chunk).to(full)
    if isinstance(module.op, DenseTransposed):
        diagonal = diagonal.mT
    return (module.weight.moments().var * diagonal.reshape(module.weight.shape).abs()).detach()


def _hessian_diagonal(model: nn.Module, layer: NoisyLayer, x: Tensor, y: Tensor, chunk: int | None) -> Tensor:
    """Second derivatives of one batch's summed loss in each weight, ``[out, inputs per output]``."""
    module: Any = layer.module
    with eval_mode(model), sampling(mean=True), _twice_differentiable(model), _shifted_output(module) as shift:
        outputs = output_tensor(model(x))
        check_scores(outputs.shape, y)
        loss = F.cross_entropy(outputs, y, reduction="sum")
        if shift.calls != 1:
            raise ValueError(f"{shown(layer.name)} is called {shift.calls} times in one pass; curvature needs one call")
        (gradient,) = torch.autograd.grad(loss, shift.value, create_graph=True)  # [B, out, P]
    inputs = _inputs_of_outputs(module.op, module.weight.shape, shift.input)  # [B, groups, K, P]
    size = gradient.shape[1] // inputs.shape[1]
    positions, places = inputs.shape[3], inputs.shape[2]
    by_position = positions <= places and _rows_are_apart(gradient, shift.value)
    return torch.cat(
        [
            _quadratic_forms(
                gradient, shift.value, range(group * size, (group + 1) * size), of_group, by_position, chunk
            )
            for group, of_group in enumerate(inputs.unbind(1))
        ]
    )


@contextmanager
def _twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Fused attention and cuDNN's recurrent layers have no second derivatives; what they are made of does."""
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    cudnn = torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext()
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), cudnn:
        yield


def _rows_are_apart(gradient: Tensor, shift: Tensor) -> bool:
    """Whether no second derivative joins two rows, so that one direction can be taken in all of them at once."""
    rows = torch.arange(len(shift), device=shift.device)
    noise = torch.Generator(device="cpu").manual_seed(0)
    direction = torch.randn(shift.shape, generator=noise).to(shift)
    # Two rows differ in one binary digit of their numbers at least.
    for digit in range(max(len(shift) - 1, 0).bit_length()):
        moved = (rows >> digit) % 2 == 1
        here = moved.view(-1, *[1] * (shift.dim() - 1))
        (product,) = torch.autograd.grad(gradient, shift, direction * here, retain_graph=True)
        if product[~moved].any():
            return False
    return True


class _Shift:
    """Forward hook that adds a zero to a layer's output, to differentiate with respect to.

    Attributes:
        calls: How often the layer was called.
        value: The zero, ``[B, out, P positions]``.
        input: The layer's input.
    """

    value: Tensor
    input: Tensor

    def __init__(self, channel_axis: int) -> None:
        self.channel_axis = channel_axis
        self.calls = 0

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        self.calls += 1
        self.input = args[0].detach()
        channels_second = output.detach().movedim(self.channel_axis, 1)
        self.value = torch.zeros_like(channels_second.flatten(2) if output.dim() > 2 else channels_second.unsqueeze(2))
        self.value.requires_grad_()
        return (channels_second + self.value.view(channels_second.shape)).movedim(1, self.channel_axis)


@contextmanager
def _shifted_output(module: BayesianLayer) -> Iterator[_Shift]:
    shift = _Shift(-1 if isinstance(module.op, Dense) else 1)
    handle = module.register_forward_hook(shift)
    try:
        yield shift
    finally:
        handle.remove()


@torch.no_grad()
def _inputs_of_outputs(op: LinearOp, shape: torch.Size, x: Tensor) -> Tensor:
    """What each output position of an example sums over: ``[B, groups, K inputs per output, P positions]``."""
    if not isinstance(op, Conv):
        return (x.flatten(1, -2).mT if x.dim() > 2 else x.unsqueeze(2)).unsqueeze(1)
    # A kernel that has a one at a single place copies the input that meets that place.
    places = shape[1:].numel()
    copies = torch.eye(places, dtype=x.dtype, device=x.device).view(places, *shape[1:])
    return op(x, torch.cat([copies] * op.groups)).flatten(2).unflatten(1, (op.groups, places))


def _quadratic_forms(
    gradient: Tensor, shift: Tensor, channels: range, inputs: Tensor, by_position: bool, chunk: int | None
) -> Tensor:
    """``a_k' H_i a_k`` for some channels i and every input k of them, with H_i over rows and positions.

    Args:
        gradient: Of the loss in `shift`, with its graph, ``[B, out, P]``.
        shift: What it is differentiated in again.
        channels: The channels of one group.
        inputs: What their outputs sum over, a ``[B, K, P]``.
        by_position: Whether to multiply H by one position of all rows after the other, which takes rows that are apart,
            or by the inputs.
        chunk: Hessian-vector products at once.

    Returns:
        One number per weight, ``[channels, K]``.
    """
    batch, places, positions = inputs.shape
    each = positions if by_position else places
    # Directions in which H is multiplied, the same for all channels.
    basis = torch.eye(positions, dtype=shift.dtype, device=shift.device) if by_position else inputs.movedim(1, 0)
    size = chunk or max(1, _ELEMENTS // max(shift.numel(), inputs.numel() // positions))
    total = inputs.new_zeros(len(channels), places)
    for index in torch.arange(len(channels) * each, device=shift.device).split(size):
        row, number = index // each, index % each
        directions = basis[number].view(len(index), -1, positions).expand(-1, batch, -1)  # [C, B, P]
        products = _hessian_products(gradient, shift, row + channels.start, directions)
        if by_position:
            terms = inputs[:, :, number].movedim(2, 0) * torch.einsum("bkp,cbp->cbk", inputs, products)
            total.index_add_(0, row, terms.sum(1))
        else:
            total[row, number] = (directions * products).sum((1, 2))
    return total


def _hessian_products(gradient: Tensor, shift: Tensor, channel: Tensor, directions: Tensor) -> Tensor:
    """``H_b,channel @ direction`` ``[C, B, P]`` for channels ``[C]`` and directions ``[C, B, P]`` within them."""
    rows = torch.arange(len(channel), device=channel.device)
    vectors = shift.new_zeros(len(channel), *shift.shape)
    vectors[rows, :, channel] = directions
    try:
        (products,) = torch.autograd.grad(gradient, shift, vectors, retain_graph=True, is_grads_batched=True)
    except RuntimeError:  # some layers, such as group norms, have second derivatives for one vector at a time alone
        products = torch.stack([torch.autograd.grad(gradient, shift, v, retain_graph=True)[0] for v in vectors])
    return products[rows, :, channel]
