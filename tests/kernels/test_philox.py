"""The counter-based generator."""

import pytest
import torch

from leanbayes.kernels._dispatch import fused
from leanbayes.kernels._philox import philox_normal_reference, philox_uniform_reference
from leanbayes.kernels._philox.reference import philox_words
from leanbayes.testing import assert_mean_close
from tests.kernels.philox_checks import check_kernel_equals_reference, check_moments, in_kernel

needs_kernels = pytest.mark.skipif(not fused(torch.zeros(1)), reason="needs Triton's interpreter")

# From kat_vectors of Random123, the authors' own implementation; keys and counters of all zeros and of all ones.
ZEROS = {
    7: (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48),
    10: (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
}


@pytest.mark.parametrize("rounds", ZEROS)
def test_the_words_are_the_published_ones(rounds):
    zero = torch.zeros(1, dtype=torch.int64)
    assert tuple(int(word) for word in philox_words(zero, zero, rounds)) == ZEROS[rounds]


def test_words_follow_from_the_definition_in_python_integers():
    def words(key, counter, rounds=7):
        bits = 0xFFFFFFFF
        k0, k1 = key & bits, key >> 32 & bits
        c = [counter & bits, counter >> 32, 0, 0]
        for _ in range(rounds):
            p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(p1 >> 32) ^ c[1] ^ k0, p1 & bits, (p0 >> 32) ^ c[3] ^ k1, p0 & bits]
            k0, k1 = (k0 + 0x9E3779B9) & bits, (k1 + 0xBB67AE85) & bits
        return c

    for key in (3, 2**62 - 1, -(2**63)):
        for counter in (0, 7, 2**31, 2**32 - 1, 2**33 + 5):
            found = philox_words(torch.tensor(key), torch.tensor(counter))
            assert [int(word) for word in found] == words(key, counter)


def test_normal_numbers_have_their_moments():
    # Neighbouring keys, as compiled code draws them one after the other.
    check_moments(philox_normal_reference(torch.arange(8) + 2**40, 50_001))


def test_uniform_numbers_have_their_moments():
    draws = philox_uniform_reference(torch.arange(8), 50_001)
    assert draws.min() >= 0 and draws.max() < 1
    assert_mean_close(draws.flatten(), 0.5)
    assert_mean_close((draws - 0.5).square().flatten(), 1 / 12)
    assert_mean_close(((draws - 0.5)[:, 1:] * (draws - 0.5)[:, :-1]).flatten(), 0.0)


def test_more_numbers_begin_with_the_same():
    key = torch.tensor([5])
    assert torch.equal(philox_normal_reference(key, 100)[:, :33], philox_normal_reference(key, 33))


@needs_kernels
def test_kernels_draw_the_same():
    check_kernel_equals_reference("cpu")


@needs_kernels
def test_numbers_of_kernels_have_their_moments():
    check_moments(torch.stack([in_kernel(torch.tensor([key]), 50_001, True) for key in range(4)]))
