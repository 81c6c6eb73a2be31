"""The curvature criterion: how far a weight's noise reaches where the loss is not linear in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes._inputs import output_tensor
from leanbayes._predict import _eval_mode
from leanbayes._sampling import sampling
from leanbayes.analysis._layers import NoisyLayer, Which, noisy_layers, shown
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
    to its outputs; an example of a dense layer has one position. So there are as many Hessian-vector products as the
    layer has outputs, times its positions or its inputs per output, whichever are fewer.

    Kinks have no second derivative: a network of ReLUs shows the curvature of its softmax alone. The published
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
    found = noisy_layers(model, layer)
    for part in found:
        _check_op(part)
    return {part.name: _kappa(model, part, x, y, batch_size, chunk) for part in found}


def _check_op(layer: NoisyLayer) -> None:
    if not isinstance(layer.module, BayesianLayer) or not isinstance(layer.module.op, Dense | Conv):
        kind = type(layer.module.template).__name__
        raise TypeError(
            f"curvature serves dense layers and convolutions; {shown(layer.name)} is of type {kind}: leave it out with "
            "layer="
        )


def _kappa(model: nn.Module, layer: NoisyLayer, x: Tensor, y: Tensor, batch_size: int, chunk: int | None) -> Tensor:
    module: Any = layer.module
    device = module.weight.device
    diagonal = torch.zeros((), device=device)
    for rows, labels in zip(x.split(batch_size), y.split(batch_size)):
        diagonal = diagonal + _hessian_diagonal(model, layer, rows.to(device), labels.to(device), chunk)
    if isinstance(module.op, DenseTransposed):
        diagonal = diagonal.mT
    return (module.weight.moments().var * diagonal.reshape(module.weight.shape).abs()).detach()


def _hessian_diagonal(model: nn.Module, layer: NoisyLayer, x: Tensor, y: Tensor, chunk: int | None) -> Tensor:
    """Second derivatives of one batch's summed loss in each weight, ``[out, inputs per output]``."""
    module: Any = layer.module
    with _eval_mode(model), sampling(mean=True), torch.enable_grad(), _shifted_output(module) as shift:
        loss = F.cross_entropy(output_tensor(model(x)), y, reduction="sum")
        if shift.calls != 1:
            raise ValueError(f"{shown(layer.name)} is called {shift.calls} times in one pass; curvature needs one call")
        (gradient,) = torch.autograd.grad(loss, shift.value, create_graph=True)  # [B, out, P]
    inputs = _inputs_of_outputs(module.op, module.weight.shape, shift.input)  # [B, groups, K, P]
    size = gradient.shape[1] // inputs.shape[1]
    return torch.cat(
        [
            _quadratic_forms(gradient, shift.value, range(group * size, (group + 1) * size), of_group, chunk)
            for group, of_group in enumerate(inputs.unbind(1))
        ]
    )


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


def _quadratic_forms(gradient: Tensor, shift: Tensor, channels: range, inputs: Tensor, chunk: int | None) -> Tensor:
    """``sum_b a_bk' H_bi a_bk`` for some channels i and every input k of them, with H_bi ``[P, P]``.

    Args:
        gradient: Of the loss in `shift`, with its graph, ``[B, out, P]``.
        shift: What it is differentiated in again.
        channels: The channels of one group.
        inputs: What their outputs sum over, a ``[B, K, P]``.
        chunk: Hessian-vector products at once.

    Returns:
        One number per weight, ``[channels, K]``.
    """
    batch, places, positions = inputs.shape
    by_position = positions <= places
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
    (products,) = torch.autograd.grad(gradient, shift, vectors, retain_graph=True, is_grads_batched=True)
    return products[rows, :, channel]
