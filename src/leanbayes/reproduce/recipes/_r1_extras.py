"""What rank-1 networks can be trained with beyond the paper: differing components, views, averages, more components."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.data import augment


class Diverse(lb.Categorical):
    """Classes, and a reward for components that differ: training maximises ``log p(y) + weight * I(y; k)``.

    ``I = H(mean_k p_k) - mean_k H(p_k)`` is the mutual information of label and component; it needs a tiled batch.

    Args:
        weight: Of the mutual information, in nats.
    """

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def training_score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See `Likelihood`."""
        probs = outputs.float().softmax(-1)  # [S, B, C]
        apart = _entropy(probs.mean(0)) - _entropy(probs).mean(0)
        return super().training_score(outputs, targets) + self.weight * apart


def _entropy(probs: Tensor) -> Tensor:
    return -torch.special.xlogy(probs, probs).sum(-1)


class OwnViews(nn.Module):
    """Crops and flips every row of a batch at its own place in training, so that components see different views.

    It stands in front of a network, where the rows of all components have been folded in.

    Args:
        padding: As in `PadCrop`.
    """

    def __init__(self, padding: int = 4) -> None:
        super().__init__()
        self.crop = augment.PadCrop(padding)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` to the same; in eval mode as it is."""
        if not self.training:
            return x
        most = self.crop.padding
        x = self.crop.cut(x, torch.randint(-most, most + 1, (2, len(x)), device=x.device))
        mirrored = torch.rand(len(x), device=x.device) < 0.5
        return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(3), x)


class Averages(nn.Module):
    """The mean of a model's parameters over the ends of epochs; buffers of the model, so that checkpoints keep it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for number, parameter in enumerate(model.parameters()):
            self.register_buffer(f"mean{number}", parameter.detach().clone())
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def add(self, model: nn.Module) -> None:
        """Take in the parameters as they are."""
        self.count += 1
        for mean, parameter in zip(self._means(), model.parameters(), strict=True):
            mean.lerp_(parameter, 1 / int(self.count))

    @torch.no_grad()
    def put_in(self, model: nn.Module) -> None:
        """Put the mean in the place of the parameters, where something was taken in."""
        if self.count:
            for mean, parameter in zip(self._means(), model.parameters(), strict=True):
                parameter.copy_(mean)

    def _means(self) -> list[Tensor]:
        return [value for name, value in self.named_buffers() if name != "count"]


@torch.no_grad()
def grow_(model: nn.Module, smaller: nn.Module, spread: float) -> nn.Module:
    """Start a mixture of more components from one of fewer: component j as j modulo K, each but the first K apart.

    Args:
        model: The larger mixture, converted like the smaller one.
        smaller: A trained mixture.
        spread: Relative noise of the added components' parameters.

    Returns:
        The model.
    """
    state: dict[str, Any] = smaller.state_dict()
    for name, value in model.state_dict().items():
        before = state[name]
        if before.shape == value.shape:
            value.copy_(before)
            continue
        count = len(before)
        index = torch.arange(len(value), device=before.device) % count
        grown = before[index]
        if name.endswith("loc"):
            grown[count:] *= 1 + spread * torch.randn_like(grown[count:])
        value.copy_(grown)
    return model
