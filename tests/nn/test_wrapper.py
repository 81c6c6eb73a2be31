"""Modules that are drawn through their own forward: nn.Bilinear."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import current_sampling
from leanbayes.testing import assert_folds
from tests.families import LAYERWISE, NOT_RECURRENT, everywhere


class Pair(nn.Module):
    """Both inputs of a bilinear layer from one."""

    def __init__(self):
        super().__init__()
        self.bilinear = nn.Bilinear(3, 2, 4)

    def forward(self, x):
        return self.bilinear(x[..., :3], x[..., 3:])


@pytest.mark.parametrize("family", [f for f in LAYERWISE if f not in NOT_RECURRENT])
@pytest.mark.parametrize("shape", [(6, 5), (3, 4, 5)])
def test_folds(family, shape):
    torch.manual_seed(0)
    assert_folds(lb.bayesianize(Pair(), LAYERWISE[family], where=everywhere), torch.randn(shape))


def test_a_draw_is_the_plain_module_with_the_drawn_weight():
    plain, x = Pair(), torch.randn(6, 5)
    model = lb.bayesianize(copy.deepcopy(plain), lb.MeanField(init_std=0.3))
    with torch.no_grad(), lb.sampling(n=2, seed=0, hold=True):
        folded = lb.split(model(lb.fold(x, 2)), 2)
        draws = model.bilinear.weight.rsample(2, current_sampling())
        for s in range(2):
            expected = nn.functional.bilinear(x[:, :3], x[:, 3:], draws[s], plain.bilinear.bias)
            torch.testing.assert_close(folded[s], expected, rtol=1e-5, atol=1e-6)


def test_rows_that_do_not_divide_into_samples_are_an_error():
    model = lb.bayesianize(Pair(), lb.MeanField())
    with pytest.raises(ValueError, match="5 rows does not divide into 2 samples"), lb.sampling(n=2):
        model(torch.randn(5, 5))
