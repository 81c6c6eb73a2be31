"""Rewrites of a traced graph before it is compiled: what kernels of our own do better than the compiler."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from leanbayes.kernels import scaled_norm  # noqa: F401 - registers the op
from leanbayes.kernels._dispatch import fused
from leanbayes.kernels.scaled_norm.reference import nonzero

_RELU = (F.relu, torch.relu, torch.relu_, F.relu_)
_ADD = (operator.add, operator.iadd, torch.add)
_MUL = (operator.mul, operator.imul, torch.mul)
_DTYPES = (torch.float32, torch.bfloat16)  # float16 has no room for what stands for a factor of 0


class _Place(NamedTuple):
    """A batch normalisation with what goes before and after it.

    Attributes:
        chain: The nodes that it replaces, each the only user of the one before; the last has the value of the whole.
        norm: The node of the norm.
        y: Its input, before the first scale where there is one.
        r: The first scale ``[N, C]``.
        residual: What is added to the normalised input.
        relu: Whether it is rectified.
        product: The node that multiplies it by the second scale.
        s: The second scale ``[N, C]``.
    """

    chain: list[fx.Node]
    norm: fx.Node
    y: fx.Node
    r: fx.Node | None
    residual: fx.Node | None
    relu: bool
    product: fx.Node | None
    s: fx.Node | None


def fuse_scaled_norms(graph_module: fx.GraphModule) -> int:
    """Put one kernel in the place of each batch normalisation next to a scale of rows; returns how many.

    Rank-1 layers scale rows of their inputs and outputs. In training a compiler takes passes over memory of their own
    for the sums that the gradients of these scales are; the signs of flipout, which have none, are left to it, as it
    need not keep what they scale. In eval mode and without gradients the kernel is the faster one.
    """
    graph, count = graph_module.graph, 0
    for node in list(graph.nodes):
        place = _look_around(node) if _is_norm(node) else None
        if place is not None and (place.r is not None or place.s is not None):
            _replace(graph, place)
            count += 1
    if count:
        graph.lint()
        graph_module.recompile()
    return count


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _is_image(node: Any) -> bool:
    value = _value(node)
    if value is None or value.dim() != 4 or value.shape[2] * value.shape[3] == 1 or value.dtype not in _DTYPES:
        return False
    return fused(value) and value.is_contiguous(memory_format=torch.channels_last)


def _is_norm(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target is not F.batch_norm or len(node.args) != 8 or node.kwargs:
        return False
    x, mean, var, weight, bias, training, momentum, _ = node.args
    if weight is None or bias is None or not _is_image(x):
        return False
    if training is True:
        return momentum is not None
    value = _value(node)
    return training is False and None not in (mean, var) and value is not None and not value.requires_grad


def _look_around(norm: fx.Node) -> _Place:
    x: Any = norm.args[0]
    training = norm.args[5] is True
    y, r, chain = x, None, [norm]
    before = _scaled(x, training)
    if before is not None and len(x.users) == 1 and _is_image(before[0]):
        y, r = before
        chain.insert(0, x)
    residual = None
    total = _only_user(norm, _ADD)
    cut = _only_user(norm if total is None else total, _RELU)
    if total is not None and cut is not None:
        other = total.args[1] if total.args[0] is norm else total.args[0]
        if total.kwargs or other is norm or not _alike(other, norm):
            cut = None
        else:
            residual = other
            chain.append(total)
    if cut is not None:
        chain.append(cut)
    product = min(chain[-1].users, default=None)  # nodes compare by their place in the graph
    after = None if product is None else _scaled(product, training)
    if after is None or after[0] is not chain[-1]:
        return _Place(chain, norm, y, r, residual, cut is not None, None, None)  # pyright: ignore[reportArgumentType]
    return _Place(chain, norm, y, r, residual, cut is not None, product, after[1])  # pyright: ignore[reportArgumentType]


def _alike(one: Any, other: fx.Node) -> bool:
    a, b = _value(one), _value(other)
    return a is not None and b is not None and _is_image(one) and a.shape == b.shape and a.dtype == b.dtype


def _only_user(node: fx.Node, targets: tuple[Any, ...]) -> fx.Node | None:
    if len(node.users) != 1:
        return None
    (user,) = node.users
    return user if user.op == "call_function" and user.target in targets else None


def _scaled(node: fx.Node, trained: bool) -> tuple[fx.Node, fx.Node] | None:
    """An image and the scale ``[N, C]`` of its rows, trained or not, of which a node is the product."""
    if node.op != "call_function" or node.target not in _MUL or len(node.args) != 2:
        return None
    for image, factor in (node.args, node.args[::-1]):
        a, b = _value(image), _value(factor)
        if a is None or b is None or a.dim() != 4 or tuple(b.shape) != (*a.shape[:2], 1, 1):
            continue
        if a.shape[2] * a.shape[3] > 1 and (product := _value(node)) is not None and product.dtype == a.dtype:
            source = _flat(factor)
            value = _value(source)
            fits = value is not None and value.requires_grad is trained
            return (image, source) if fits else None  # pyright: ignore[reportReturnType]
    return None


def _flat(factor: Any) -> fx.Node | None:
    """The scale ``[N, C]`` that ``[N, C, 1, 1]`` is a view of, before it was rounded."""
    while factor.op == "call_method" and factor.target in ("to", "view"):
        factor = factor.args[0]
        value = _value(factor)
        if value is not None and value.dim() == 2 and value.is_floating_point():
            return factor
    return None


def _replace(graph: fx.Graph, place: _Place) -> None:
    _, mean, var, weight, bias, training, momentum, eps = place.norm.args
    activation = place.chain[-1]
    if place.s is not None:
        _scale_further(graph, place)
    users = [user for user in activation.users if user is not place.product]
    wanted = bool(users) or place.product is None
    where = activation if place.product is None else place.product
    image = _value(place.norm)
    assert image is not None
    with graph.inserting_before(where):
        inputs = (place.y, place.r, weight, bias, place.residual, place.s)
        if training:
            op, inputs = torch.ops.leanbayes.scaled_norm.default, (*inputs, place.relu, eps, wanted)
        else:
            op, inputs = torch.ops.leanbayes.scaled_norm_eval.default, (*inputs, mean, var, place.relu, eps, wanted)
        both = graph.call_function(op, inputs)
        plain, product = (graph.call_function(operator.getitem, (both, k)) for k in range(2))
        if training and mean is not None and var is not None:
            centre, spread = (graph.call_function(operator.getitem, (both, k)) for k in (2, 3))
            count = image.numel() // image.shape[1]
            unbiased = graph.call_function(operator.mul, (spread, count / max(count - 1, 1)))
            for buffer, new in ((mean, centre), (var, unbiased)):
                detached = graph.call_method("detach", (new,))
                graph.call_method("lerp_", (buffer, graph.call_method("type_as", (detached, buffer)), momentum))
    for new in (plain, product):
        new.meta["example_value"] = activation.meta["example_value"]
    if place.product is not None:
        place.product.replace_all_uses_with(product)
        graph.erase_node(place.product)
    activation.replace_all_uses_with(plain)
    # From the last to the first: each was used by the one before alone.
    for node in reversed(place.chain):
        graph.erase_node(node)


def _scale_further(graph: fx.Graph, place: _Place) -> None:
    """Products of the activation with other scales t become products of that with s, by t / s.

    The backward pass then keeps what the layer after s keeps anyway, instead of the activation as well.
    """
    activation, product = place.chain[-1], place.product
    assert product is not None
    for user in list(activation.users):
        found = None if user is product else _scaled(user, place.norm.args[5] is True)
        if found is None or found[0] is not activation:
            continue
        with graph.inserting_before(user):
            first = graph.call_function(nonzero, (place.s,))
            ratio = graph.call_function(operator.truediv, (found[1], first))
            wide = graph.call_function(operator.getitem, (ratio, (slice(None), slice(None), None, None)))
            scaled = graph.call_function(operator.mul, (product, wide))
            rounded = graph.call_method("type_as", (scaled, product))
        rounded.meta = dict(user.meta)
        user.replace_all_uses_with(rounded)
        graph.erase_node(user)
