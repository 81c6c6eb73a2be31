"""Sources of noise with a seed of their own: generators in eager code, counters in compiled code."""

import math

import pytest
import torch

from leanbayes import noise
from leanbayes._sampling import Sampling, SeededRandom, Stream
from leanbayes.testing import assert_mean_close, assert_probability_close, assert_variance_close

LIKE = torch.zeros(())


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function):
    return torch.compile(function, backend="aot_eager", fullgraph=True)


@compiled
def draw(stream, n):
    spec = Sampling(stream=stream)
    return noise.uniform((n,), LIKE, spec), noise.normal((n,), LIKE, spec)


def test_streams_repeat_by_seed_and_leave_torchs_generators_alone():
    state = torch.get_rng_state()
    spec = Sampling(stream=Stream(3))
    first, second = (noise.normal((5,), LIKE, spec) for _ in range(2))
    again = noise.normal((5,), LIKE, Sampling(stream=Stream(3)))
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert not torch.equal(first, noise.normal((5,), LIKE, Sampling(stream=Stream(4))))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_copy_goes_on_from_where_the_stream_is():
    stream = Stream(3)
    noise.normal((5,), LIKE, Sampling(stream=stream))
    copied = stream.copy()
    first, second = (noise.normal((5,), LIKE, Sampling(stream=s)) for s in (stream, copied))
    assert torch.equal(first, second)


def test_compiled_noise_has_the_distributions_of_torchs():
    uniform, normal = draw(Stream(1), 200_000)
    assert uniform.min() >= 0 and uniform.max() < 1
    assert_mean_close(uniform, 0.5)
    assert_variance_close(uniform, 1 / 12)
    for edge in (0.001, 0.1, 0.37, 0.9, 0.999):
        assert_probability_close(uniform < edge, edge)
    assert_mean_close(normal, 0.0)
    assert_variance_close(normal, 1.0)
    for edge in (-3.0, -1.0, 0.5, 2.0):
        assert_probability_close(normal < edge, 0.5 * (1 + math.erf(edge / math.sqrt(2))))


def test_compiled_noise_is_independent_between_positions_draws_and_seeds():
    size = 50_000
    streams = [Stream(seed) for seed in (0, 1, 2, 2**40, -5)]
    rows = torch.stack([values for stream in streams for _ in range(2) for values in draw(stream, size)])
    related = torch.corrcoef(rows) - torch.eye(len(rows))
    assert related.abs().max() < 5 / math.sqrt(size)
    for lag in (1, 2, 7, 64, 1024):
        assert torch.corrcoef(torch.stack([rows[0, lag:], rows[0, :-lag]]))[0, 1].abs() < 5 / math.sqrt(size)
    pairs = (rows[0, :-1] * 16).long() * 16 + (rows[0, 1:] * 16).long()
    counts, expected = pairs.bincount(minlength=256).double(), (size - 1) / 256
    chi_square = ((counts - expected).square() / expected).sum()
    assert abs(chi_square - 255) < 5 * math.sqrt(2 * 255)


def test_compiled_noise_repeats_by_seed_and_draws_its_own_for_each_sample():
    assert all(torch.equal(a, b) for a, b in zip(draw(Stream(5), 100), draw(Stream(5), 100)))

    @compiled
    def folded(streams):
        return noise.normal((len(streams), 4), LIKE, Sampling(n=len(streams), streams=streams))

    both = folded((Stream(1), Stream(2)))
    assert torch.equal(both[1:], folded((Stream(2),)))


def test_balanced_numbers_come_equally_often_and_none_is_preferred():
    torch.manual_seed(0)
    rows = torch.stack([noise.balanced(8, 3, LIKE, Sampling()) for _ in range(3000)])
    counts = torch.stack([(rows == k).sum(1) for k in range(3)], 1)
    assert set(counts.flatten().tolist()) == {2, 3}
    assert_mean_close(counts.double(), 8 / 3)
    for k in range(3):
        assert_probability_close(rows == k, 1 / 3)


def test_seeded_sections_take_turns():
    with SeededRandom(0):
        first = torch.rand(2)
        with SeededRandom(1):
            torch.rand(3)
        second = torch.rand(2)
    with SeededRandom(0):
        assert torch.equal(torch.cat([first, second]), torch.rand(4))
