"""A sequence of named layers."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import nn


class Chain(nn.Sequential):
    """Named layers that run in order.

    A slice is a plain ``nn.Sequential``: torch would call the subclass, whose arguments are others.
    """

    def __init__(self, layers: Mapping[str, nn.Module]):
        """Takes the layers by name, in the order in which they run."""
        super().__init__(OrderedDict(layers))

    def __getitem__(self, idx: Any) -> Any:
        """The layer at a position, or the layers of a slice."""
        if isinstance(idx, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[idx]))
        return super().__getitem__(idx)
