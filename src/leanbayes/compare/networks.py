"""A network of moderate size for a data set, built by name so that it can be saved."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from leanbayes.data import Schema
from leanbayes.models import create
from leanbayes.models._registry import _BUILDERS

# LeNet-5 needs 16 pixels; residual networks take the images above 64.
_SMALLEST, _LARGEST = 16, 64
# Widths of the hidden layers of perceptrons.
_WIDTHS = {"mlp": [200, 200], "tabular_mlp": [128, 128]}
# Bins of a table's feature, the fewest training rows for each, and the most of all features together: tables of many
# columns have most of them from categories, whose two values need no more than one.
_BINS, _ROWS_PER_BIN, _ALL_BINS = 16, 40, 1024
# Ids of a text that stand for no word.
_SPECIAL_IDS = 4
_BY_KIND = {"table": "tabular_mlp", "text": "text_lstm", "series": "record_lstm"}
_BATCH_NORM = {"mlp": True, "lenet5": "all"}
# The wide residual network that grey images get: 2.7 million parameters.
_SMALL_RESNET = {"depth": 16, "width": 4}


def takes_small_resnet(schema: Schema) -> bool:
    """Whether the data are images of 16 to 64 pixels."""
    return schema.inputs == "image" and min(schema.shape[1:]) >= _SMALLEST and max(schema.shape[1:]) <= _LARGEST


def default_network(schema: Schema, thorough: bool = False) -> str:
    """Name of the network that suits a data set.

    Tables get a multilayer perceptron of two layers of 128 units on features and their codes between quantiles. Images
    under 16 pixels get a multilayer perceptron of two layers of 200 units, square ones up to 64 pixels LeNet-5, and
    others a ResNet-18, all with batch normalisation. Texts and time series get an LSTM.

    Args:
        schema: Of the data.
        thorough: Whether images of 16 to 64 pixels get a residual network: a ResNet-18 where they are coloured, else a
            WRN-16-4.

    Example:
        >>> default_network(Schema("regression", "table", (6,)))
        'tabular_mlp'
    """
    if schema.inputs in _BY_KIND:
        return _BY_KIND[schema.inputs]
    if min(schema.shape[1:]) < _SMALLEST:
        return "mlp"
    channels, height, width = schema.shape
    if thorough and takes_small_resnet(schema):
        return "resnet18" if channels > 1 else "wide_resnet"
    return "lenet5" if height == width <= _LARGEST else "resnet18"


def build_network(
    schema: Schema,
    name: str | None = None,
    hidden: Sequence[int] | None = None,
    outputs: int | None = None,
    rows: int | None = None,
    thorough: bool = False,
) -> nn.Module:
    """The default network, or another one of `leanbayes.models`, with the sizes of a data set.

    Args:
        schema: What the network is for.
        name: Of the network.
        hidden: Widths of a multilayer perceptron; 128 and 128 for tables, else 200 and 200 where None.
        outputs: Number of outputs, one per class or one for a regression where None.
        rows: Number of training examples, where known: small tables get fewer bins.
        thorough: See `default_network`.

    Returns:
        A plain network with fresh weights.

    Raises:
        ValueError: If there is no such network, or it does not take such data.
    """
    asked = name is not None
    if name is None:
        default = default_network(schema, thorough)
        name = "mlp" if hidden is not None and default not in _WIDTHS else default
    if name not in _BUILDERS:
        create(name)  # says which there are
    if hidden is not None and name not in _WIDTHS:
        raise ValueError(f"hidden sets the widths of the models {' and '.join(_WIDTHS)}, but {name!r} has none")
    known = _sizes(schema, name, outputs or schema.classes or 1)
    known["bins"] = _bins(math.prod(schema.shape), rows)
    if name in _WIDTHS:
        known["hidden"] = _WIDTHS[name] if hidden is None else list(hidden)
    if not asked and name == "wide_resnet":
        known |= _SMALL_RESNET
    options = inspect.signature(_BUILDERS[name]).parameters
    network = create(name, **{option: value for option, value in known.items() if option in options})
    if asked:
        _check_takes(network, schema, name)
    return network


def _check_takes(network: nn.Module, schema: Schema, name: str) -> None:
    """Raise where the network cannot be applied to two examples."""
    examples = torch.zeros(2, *schema.shape, dtype=torch.int64 if schema.inputs == "text" else torch.float32)
    try:
        with torch.no_grad():
            network.eval()(examples)
    except (RuntimeError, ValueError, TypeError, LookupError):
        raise ValueError(
            f"the network {name!r} does not take inputs of the kind {schema.inputs!r} and shape {schema.shape}; "
            f"choose another, such as {default_network(schema)!r}"
        ) from None
    network.train()


def _sizes(schema: Schema, name: str, outputs: int) -> dict[str, Any]:
    sizes: dict[str, Any] = {"classes": outputs, "outputs": outputs, "in_features": math.prod(schema.shape)}
    if schema.inputs == "image":
        stem = "cifar" if max(schema.shape[1:]) <= _LARGEST else "imagenet"
        sizes |= {"in_channels": schema.shape[0], "image_size": schema.shape[1], "stem": stem}
    if schema.inputs == "series":
        sizes["features"] = schema.shape[-1]
    if schema.vocabulary:
        sizes["vocabulary"] = len(schema.vocabulary) + _SPECIAL_IDS
    return sizes | ({"batch_norm": _BATCH_NORM[name]} if name in _BATCH_NORM else {})


def _bins(features: int, rows: int | None) -> int:
    """Bins of each feature."""
    by_rows = _BINS if rows is None else rows // _ROWS_PER_BIN
    return max(1, min(_BINS, by_rows, _ALL_BINS // features))
