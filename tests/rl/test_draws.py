"""Draws that belong to episodes: a function of their seeds."""

import pytest
import torch

from leanbayes.rl.draws import one_draw_each
from tests.rl.small import KINDS, small_policy

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def rows(n):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


@each_kind
def test_a_block_of_rows_does_not_depend_on_the_others(kind):
    network, x = small_policy(kind), rows(6)
    with one_draw_each([3, 4, 5]):
        together = network(x)
    for block, seed in enumerate([3, 4, 5]):
        with one_draw_each([seed]):
            torch.testing.assert_close(network(x[2 * block : 2 * block + 2]), together[2 * block : 2 * block + 2])


@each_kind
def test_one_draw_serves_all_calls(kind):
    network, x = small_policy(kind), rows(1)
    with one_draw_each([3]):
        first = network(x)
        torch.rand(5)  # other draws in between do not matter
        assert torch.equal(network(x), first)
    with one_draw_each([3]):
        assert torch.equal(network(x), first)
