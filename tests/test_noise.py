"""The only random draws of the library."""

import math

import pytest
import torch

from leanbayes import noise
from leanbayes._sampling import Sampling, one_pass
from leanbayes.testing import (
    assert_mean_close,
    assert_probability_close,
    assert_variance_close,
    sample_streams,
)

N = 20_000
LIKE = torch.zeros(())
DRAWS = {
    "normal": noise.normal,
    "uniform": noise.uniform,
    "signs": noise.signs,
    "cauchy": noise.cauchy,
    "keep_mask": lambda shape, like, spec: noise.keep_mask(shape, 0.3, like, spec),
    "categorical": lambda shape, like, spec: noise.categorical(shape, torch.tensor([0.2, 0.8]).to(like), spec),
    "one_of": lambda shape, like, spec: noise.one_of(5, shape, like, spec),
}


@pytest.mark.parametrize(
    ("name", "mean", "variance"),
    [
        ("normal", 0.0, 1.0),
        ("uniform", 0.5, 1 / 12),
        ("signs", 0.0, 1.0),
        ("keep_mask", 1.0, 0.3 / 0.7),
        ("categorical", 0.8, 0.16),
        ("one_of", 2.0, 2.0),
    ],
)
def test_moments(name, mean, variance):
    draws = DRAWS[name]((N, 2), LIKE, Sampling())
    assert_mean_close(draws, mean)
    assert_variance_close(draws, variance)


def test_cauchy_has_its_quantiles_and_is_clipped():
    draws = noise.cauchy((N, 10), LIKE, Sampling()).flatten()
    for edge in (-3.0, -1.0, 0.0, 0.5, 10.0):
        assert_probability_close(draws <= edge, 0.5 + math.atan(edge) / math.pi)
    beyond = 2 / (math.pi * noise.CAUCHY_LIMIT)
    assert_probability_close(draws.abs() >= noise.CAUCHY_LIMIT, beyond)
    assert draws.abs().max() == noise.CAUCHY_LIMIT


@pytest.mark.parametrize("kinds", [1, 3, 5, 7])
def test_the_largest_uniform_number_is_the_last_kind(kinds, monkeypatch):
    largest = torch.nextafter(torch.ones(1), torch.zeros(1))
    monkeypatch.setattr(noise, "uniform", lambda shape, like, spec: largest.expand(shape))
    assert noise.one_of(kinds, (2,), LIKE, Sampling()).tolist() == [kinds - 1] * 2


def test_categories_have_their_probabilities():
    probs = torch.tensor([0.1, 0.0, 0.6, 0.3])
    index = noise.categorical((N,), probs, Sampling())
    assert index.dtype == torch.long
    for k, probability in enumerate(probs.tolist()):
        assert_probability_close(index == k, probability)


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_noise_is_drawn_in_float32_at_least(name, dtype):
    draws = DRAWS[name]((3,), torch.zeros((), dtype=dtype), Sampling())
    if name in ("categorical", "one_of"):
        assert draws.dtype == torch.long
    else:
        assert draws.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert draws.shape == (3,)


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_decides_and_torchs_own_stays_untouched(name):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = (DRAWS[name]((50,), LIKE, Sampling(generator=torch.Generator().manual_seed(1))) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("rows", [1, 4])
def test_a_sample_is_the_same_however_samples_are_spread_over_passes(name, rows):
    draw = DRAWS[name]
    together = draw((3 * rows, 2), LIKE, Sampling(n=3, streams=sample_streams(3)))
    assert together.shape == (3 * rows, 2)
    for s, generator in enumerate(sample_streams(3)):
        alone = draw((rows, 2), LIKE, Sampling(streams=(generator,)))
        assert torch.equal(alone, together[s * rows : (s + 1) * rows])


def test_compiled_code_draws_small_choices_together():
    shapes = [(2, 3000), (2, 40, 5), *[(2, 4096)] * 4, (2, 5000)]
    graphs = []

    def backend(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module

    def draw(x):
        with one_pass(Sampling(n=2), 2):
            return [noise.one_of(5, shape, x, Sampling(n=2)) for shape in shapes]

    drawn = torch.compile(draw, backend=backend, fullgraph=True)(LIKE)
    assert [tuple(each.shape) for each in drawn] == shapes
    # The first five fit in one block, the next begins another, and the large one is drawn by itself.
    calls = [node for graph in graphs for node in graph.graph.nodes if node.target is torch.rand]
    assert len(calls) == 3
    flat = torch.cat([each.flatten() for each in drawn])
    assert_probability_close((flat == 4).double(), 0.2)
    for one, other in zip(drawn[2:], drawn[3:]):
        assert_probability_close((one[:, :4000].flatten() == other[:, :4000].flatten()).double(), 0.2)


def test_keys_of_compiled_code_lie_as_kernels_take_them():
    def draw(x):
        with one_pass(Sampling(n=3), 3):
            return [noise.keys(3, like, Sampling(n=3)) for like in (x, x, x.to("meta"))]

    first, second, elsewhere = torch.compile(draw, backend="aot_eager", fullgraph=True)(LIKE)
    assert first.is_contiguous() and second.is_contiguous()
    assert torch.cat([first, second]).unique().numel() == 6
    assert elsewhere.device.type == "meta"
