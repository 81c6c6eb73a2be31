"""The checks that every posterior passes."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor, nn

from leanbayes._estimator_registry import estimators_for
from leanbayes._sampling import Sampling
from leanbayes.noise import compute_dtype, full_precision
from leanbayes.posteriors._base import Posterior
from leanbayes.testing.folding import sample_streams
from leanbayes.testing.gradients import assert_gradients_match
from leanbayes.testing.statistics import (
    assert_close,
    assert_mean_close,
    assert_probability_close,
    assert_variance_close,
)


class PosteriorSuite:
    """Subclass it in a test module and say how to make the posterior; pytest finds the checks.

    ::

        class TestMine(PosteriorSuite):
            def make_posterior(self):
                return MinePosterior(torch.randn(3, 2))

    Attributes:
        draws: Draws of the statistical checks.
        point_is_mean: Whether `set_point_` moves the mean to the given value.
        location_is_median: Whether, for heavy tails, half of the draws are under the "mean".
    """

    draws: int = 20_000
    point_is_mean: bool = True
    location_is_median: bool = True

    def make_posterior(self) -> Posterior:
        """The posterior to check, in float32, small, with noise that shows."""
        raise NotImplementedError

    def setup_method(self) -> None:
        """Fix the seed."""
        torch.manual_seed(0)

    def test_draws_have_the_shape_of_the_tensor(self) -> None:
        """``[n, *shape]``, in the parameters' dtype or the one that noise is drawn in."""
        posterior = self.make_posterior()
        for dtype in (torch.float32, torch.float64, torch.float16):
            converted = copy.deepcopy(posterior).to(dtype)
            draws = converted.rsample(4, Sampling(n=4))
            assert draws.shape == (4, *posterior.shape)
            assert draws.dtype in (dtype, compute_dtype(dtype))
            assert converted.mean().shape == posterior.shape

    def test_draws_have_the_mean(self) -> None:
        """The mean of the draws is `mean()`, or half of them are under it where tails are heavy."""
        posterior = self.make_posterior()
        for component, spec in self._components(posterior):
            draws, mean = self._draw(posterior, spec), posterior.mean(component)
            if not posterior.heavy_tailed:
                assert_mean_close(draws, mean)
            elif self.location_is_median:
                assert_probability_close(draws < mean, 0.5, what="fraction of draws under the location")

    def test_draws_have_the_moments(self) -> None:
        """Where there are `moments`, draws have them."""
        posterior = self.make_posterior()
        if "moments" not in posterior.offers:
            raise SkipTest("no moments are offered")
        moments = posterior.moments()
        mean = torch.zeros(posterior.shape) if moments.mean is None else moments.mean
        assert_close(mean, posterior.mean(), what="mean of moments()")
        assert moments.var.shape == posterior.shape
        assert_variance_close(self._draw(posterior, Sampling(n=self.draws)), moments.var)

    def test_deviations_are_draws_less_the_mean(self) -> None:
        """At the same noise, `deviation` is `rsample` less the mean of the drawn component."""
        posterior = self.make_posterior()
        for component, spec in self._components(posterior, 5):
            draws = self._draw(posterior, spec, 5)
            deviations = posterior.deviation(5, spec.replace(generator=_generator()))
            assert_close(deviations, draws - posterior.mean(component), what="deviation")

    def test_gradients_are_those_of_the_draws(self) -> None:
        """At fixed noise a draw is a differentiable function of the parameters."""
        posterior = self.make_posterior().double()
        weights = torch.randn(3, *posterior.shape, dtype=torch.float64)

        def function() -> Tensor:
            return (weights * posterior.rsample(3, Sampling(n=3, generator=_generator()))).sum()

        assert_gradients_match(function, list(posterior.parameters()))

    def test_seeds_repeat_draws(self) -> None:
        """The same seed gives the same draws, another seed others; a sample does not depend on its neighbours."""
        posterior = self.make_posterior()
        first, second = (self._draw(posterior, Sampling(n=5), 5) for _ in range(2))
        assert torch.equal(first, second)
        torch.manual_seed(3)
        seeded = posterior.rsample(5, Sampling(n=5))
        torch.manual_seed(3)
        assert torch.equal(seeded, posterior.rsample(5, Sampling(n=5)))
        assert posterior.deterministic() or not torch.equal(first, seeded)
        together = posterior.rsample(3, Sampling(n=3, streams=sample_streams(3)))
        alone = posterior.rsample(1, Sampling(n=1, streams=sample_streams(3)[1:2]))
        assert_close(together[1:2], alone, what="the second of three samples")

    def test_log_prob_is_the_density_of_the_draws(self) -> None:
        """It integrates to 1, and to the fraction of draws between two of their quantiles."""
        posterior = self.make_posterior()
        if type(posterior).log_prob is Posterior.log_prob:
            raise SkipTest("no density of single elements is offered")
        draws = self._draw(posterior, Sampling(n=self.draws)).double()
        posterior = posterior.double()
        low, high = draws.quantile(0.2, 0), draws.quantile(0.6, 0)
        start = torch.zeros_like(low) if posterior.support == "positive" else torch.full_like(low, -math.inf)
        edges = (start, low, high, torch.full_like(low, math.inf))
        with torch.no_grad():
            parts = [integrate(lambda w: posterior.log_prob(w).exp(), a, b) for a, b in zip(edges, edges[1:])]
        assert_close(torch.stack(parts).sum(0), torch.ones_like(low), 1e-4, "integral of the density")
        assert_probability_close(draws <= low, parts[0], what="fraction of draws under a quantile")
        assert_probability_close((low < draws) & (draws <= high), parts[1], what="fraction of draws between quantiles")

    def test_a_point_can_be_loaded(self) -> None:
        """`set_point_` puts the mean at a plain weight (of component 0), and keeps what is learned beside it."""
        posterior = self.make_posterior()
        value = torch.rand(posterior.shape) + 0.5
        posterior.set_point_(value)
        if self.point_is_mean:
            assert_close(full_precision(posterior.mean()), value, what="mean after set_point_")
        before = posterior.rsample(2, Sampling(n=2, generator=_generator()))
        posterior.set_point_(value)
        assert_close(posterior.rsample(2, Sampling(n=2, generator=_generator())), before, what="loading twice")

    def test_copies_draw_the_same(self) -> None:
        """Deep copies, pickles and loaded state dicts are the same distribution."""
        posterior = self.make_posterior()
        expected = self._draw(posterior, Sampling(n=3), 3)
        loaded = self.make_posterior()
        loaded.load_state_dict(posterior.state_dict())
        for other in (copy.deepcopy(posterior), pickle.loads(pickle.dumps(posterior)), loaded):
            assert torch.equal(self._draw(other, Sampling(n=3), 3), expected)

    def test_half_precision_is_finite(self) -> None:
        """Draws and their gradients are finite in float16 and bfloat16."""
        for dtype in (torch.float16, torch.bfloat16):
            posterior = self.make_posterior().to(dtype)
            draws = posterior.rsample(4, Sampling(n=4))
            assert bool(draws.isfinite().all())
            draws.float().square().sum().backward()
            for name, parameter in posterior.named_parameters():
                assert parameter.grad is None or bool(parameter.grad.isfinite().all()), name

    def test_a_draw_leaves_nothing_behind(self) -> None:
        """No attribute, buffer or parameter changes when the posterior is used."""
        posterior = self.make_posterior()
        before = _contents(posterior)
        posterior.rsample(3, Sampling(n=3))
        posterior.deviation(3, Sampling(n=3))
        posterior.mean()
        if "moments" in posterior.offers:
            posterior.moments()
        after = _contents(posterior)
        assert before.keys() == after.keys()
        for name, value in before.items():
            same = torch.equal(value, after[name]) if isinstance(value, Tensor) else value is after[name]
            assert same, f"{name} has changed"

    def test_estimators_can_use_it(self) -> None:
        """Draws are among what it offers, so that "weight" is among the estimators that apply."""
        offers = self.make_posterior().offers
        assert "draws" in offers
        assert "weight" in {each.name for each in estimators_for(offers)}

    def test_without_noise_draws_are_the_mean(self) -> None:
        """After `silence_`, where the family can be without noise."""
        posterior = self.make_posterior()
        try:
            posterior.silence_()
        except NotImplementedError:
            raise SkipTest("the family is never without noise") from None
        for component, spec in self._components(posterior, 3):
            draws = self._draw(posterior, spec, 3)
            assert_close(draws, full_precision(posterior.mean(component)).expand_as(draws), what="draws without noise")

    def _components(self, posterior: Posterior, n: int | None = None) -> Iterator[tuple[int | None, Sampling]]:
        count = self.draws if n is None else n
        if not posterior.shared_index:
            yield None, Sampling(n=count)
            return
        for k in range(posterior.components):
            yield k, Sampling(n=count, component=k)

    def _draw(self, posterior: Posterior, spec: Sampling, n: int | None = None) -> Tensor:
        with torch.no_grad():
            return posterior.rsample(self.draws if n is None else n, spec.replace(generator=_generator()))


def integrate(function: Any, low: Tensor, high: Tensor, points: int = 20_001) -> Tensor:
    """Integrals of an elementwise function from `low` to `high` (either may be infinite), in float64.

    Args:
        function: Takes ``[points, *shape]`` and gives as many values.
        low: Lower ends, ``[*shape]``.
        high: Upper ends, ``[*shape]``.
        points: Number of evaluations for each element.
    """
    # w = sinh(t)^3 spreads the points over many orders of magnitude around zero, where scales are not known.
    start, stop = (_to_line(edge.double()) for edge in (low, high))
    steps = torch.linspace(0, 1, points, dtype=torch.float64).view(-1, *(1,) * low.dim())
    t = start + (stop - start) * steps
    sinh, cosh = torch.sinh(t), torch.cosh(t)
    values = function(sinh**3) * 3 * sinh.square() * cosh
    # The ends stand for infinity or for a point of no mass.
    return torch.trapezoid(values.nan_to_num(0.0), t, dim=0)


def _to_line(edge: Tensor) -> Tensor:
    root = edge.abs().pow(1 / 3) * edge.sign()
    return torch.asinh(root).clamp(-10.0, 10.0)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def _contents(module: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in ("_parameters", "_buffers", "_modules"):
                found[f"{path}.{name}"] = value
    found |= {f"state {name}": value.clone() for name, value in module.state_dict().items()}
    return found
