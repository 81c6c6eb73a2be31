"""Mean-field models whose standard deviations are of a known rank, or close to one."""

import torch
from torch import nn

import leanbayes as lb
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors._base import inverse_softplus
from leanbayes.posteriors.mean_field import MeanFieldPosterior


def positive(rows, columns, rank, noise=0.0, seed=0):
    """A matrix of positive numbers of a rank, times the exponential of normal noise."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    exact = 0.05 * draw(rows, rank) @ draw(rank, columns) + 0.001
    return exact * (noise * torch.randn(rows, columns, generator=generator, dtype=torch.float64)).exp()


def random_weights(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, RandomParameter) and len(m.shape) > 1}


@torch.no_grad()
def spread(model, noise=0.3, seed=0):
    """Give all mean-field weights standard deviations around 0.05 that differ; the model is changed."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, MeanFieldPosterior):
            draw = torch.randn(module.shape, generator=generator) * noise
            module.raw_std.copy_(inverse_softplus(0.05 * draw.exp()))
    return model


@torch.no_grad()
def with_std(layer, std):
    """A mean-field layer with given standard deviations."""
    layer.weight.posterior.raw_std.copy_(inverse_softplus(std).view(layer.weight.shape))
    return layer


class Mixed(nn.Module):
    """One layer of every kind that has a matrix: each keeps its output features on another axis."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6, padding_idx=0)
        self.conv = nn.Conv1d(6, 8, 3, padding=1, groups=2)
        self.back = nn.ConvTranspose1d(8, 6, 3, padding=1)
        self.recurrent = nn.LSTM(6, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.output = nn.Linear(8, 4)

    def forward(self, tokens):
        y = self.back(self.conv(self.table(tokens).mT).relu()).mT
        y, _ = self.recurrent(y)
        return self.output(self.attention(y, y, y, need_weights=False)[0].mean(1))


def mixed(**options):
    torch.manual_seed(0)
    return spread(lb.bayesianize(Mixed(), lb.MeanField(**options), where=lambda name, module: True))


TOKENS = torch.randint(11, (6, 5), generator=torch.Generator().manual_seed(1))
