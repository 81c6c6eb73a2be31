"""The network for tables."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from leanbayes.models._chain import Chain
from leanbayes.models._init import init_he_
from leanbayes.models._options import check_dropout, check_positive, check_widths
from leanbayes.models._registry import register
from leanbayes.models.quantile_bins import QuantileBins


@register("tabular_mlp")
class TabularMLP(Chain):
    """A multilayer perceptron on numbers and their piecewise-linear codes, for tables.

    Trees are good at tables because they can split a feature anywhere; with the codes of `QuantileBins`, so can a
    perceptron. Converted with a `BatchEnsemble` or `Rank1` of 16 to 32 components it is much like TabM (Gorishniy et
    al., ICLR 2025), which trains such an ensemble on codes of this kind.

    The weights of the codes start at zero: the network begins as a perceptron on the features alone, and bends where
    the data call for it. The first biases are spread over -1 to 1, so that its units differ in where they switch on.

    Layers are named ``bins``, ``dense1``, ``act1``, ``drop1``, ..., ``output``.

    Args:
        in_features: Features of an example, standardised.
        hidden: Units of the hidden layers, at least one.
        outputs: Units of the output.
        bins: Bins of each feature.
        dropout: Drop probability after each hidden layer in training; no layers when 0.

    Shape:
        ``[B, *]`` with `in_features` elements per example to ``[B, outputs]``.

    Example:
        >>> rows = torch.randn(100, 5)
        >>> model = TabularMLP(in_features=5).fit_bins_(rows)
        >>> model(rows).shape
        torch.Size([100, 1])
    """

    def __init__(
        self,
        in_features: int = 8,
        hidden: Sequence[int] = (128, 128),
        outputs: int = 1,
        bins: int = 16,
        dropout: float = 0.0,
    ):
        check_positive(in_features=in_features, outputs=outputs, bins=bins)
        check_widths(hidden=hidden)
        check_dropout(dropout)
        if not hidden:
            raise ValueError("hidden must name at least one layer; a linear model of a table is an MLP without any")
        encode = QuantileBins(in_features, bins)
        layers: dict[str, nn.Module] = {"flatten": nn.Flatten(), "bins": encode}
        width = encode.out_features
        for number, units in enumerate(hidden, start=1):
            layers[f"dense{number}"] = nn.Linear(width, units)
            layers[f"act{number}"] = nn.ReLU()
            if dropout:
                layers[f"drop{number}"] = nn.Dropout(dropout)
            width = units
        layers["output"] = nn.Linear(width, outputs)
        super().__init__(layers)
        init_he_(self)
        self._init_first(in_features)

    @torch.no_grad()
    def _init_first(self, features: int) -> None:
        first = self.get_submodule("dense1")
        assert isinstance(first, nn.Linear)
        nn.init.zeros_(first.weight)
        nn.init.normal_(first.weight[:, :features], std=(2 / features) ** 0.5)
        nn.init.uniform_(first.bias, -1, 1)

    def fit_bins_(self, rows: Tensor) -> Self:
        """Set the bins to the quantiles of training rows ``[N, *]``; call it before training."""
        bins = self.get_submodule("bins")
        assert isinstance(bins, QuantileBins)
        bins.fit_(rows.flatten(1))
        return self
