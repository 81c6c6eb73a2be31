"""The checks that every prior passes."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from typing import Any, ClassVar
from unittest import SkipTest

import torch

from leanbayes._registry import from_json, to_json
from leanbayes.posteriors._divergence import find_kl
from leanbayes.posteriors._gaussian import GaussianPosterior
from leanbayes.priors._base import Prior
from leanbayes.testing.posterior import integrate
from leanbayes.testing.statistics import assert_close


class PriorSuite:
    """Subclass it in a test module and say how to make the prior; pytest finds the checks.

    ::

        class TestMine(PriorSuite):
            bad_arguments = ({"scale": 0.0}, {"scale": -1.0})

            def make_prior(self):
                return Mine(scale=0.5)

    Attributes:
        bad_arguments: Arguments that the prior's class must refuse.
    """

    bad_arguments: ClassVar[tuple[dict[str, Any], ...]] = ()

    def make_prior(self) -> Prior:
        """The prior to check, as a user writes it."""
        raise NotImplementedError

    def bound(self) -> Prior:
        """The prior bound to a weight, as posteriors are measured against it."""
        return self.make_prior().bind(torch.tensor([0.3, -0.2]), 4)

    def test_density_integrates_to_one(self) -> None:
        """A proper prior has a normalised density on its support."""
        prior = self.bound()
        if not prior.proper:
            raise SkipTest("the prior is improper")
        positive = prior.support == "positive"
        low = torch.zeros(2, dtype=torch.float64) if positive else torch.full((2,), -math.inf, dtype=torch.float64)
        total = integrate(lambda w: prior.log_prob(w).exp(), low, torch.full((2,), math.inf, dtype=torch.float64))
        assert_close(total, torch.ones(2, dtype=torch.float64), 1e-3, "integral of the density")

    def test_log_prob_is_finite_far_out(self) -> None:
        """In float32 too, where densities underflow, with finite gradients."""
        prior = self.bound()
        if not prior.proper:
            raise SkipTest("the prior is improper")
        value = torch.tensor([[1e-6, 1e-6], [1e3, 30.0]], requires_grad=True)
        log_prob = prior.log_prob(value)
        assert log_prob.shape == value.shape and bool(log_prob.isfinite().all())
        (grad,) = torch.autograd.grad(log_prob.sum(), value)
        assert bool(grad.isfinite().all())

    def test_json_gives_the_same_prior(self) -> None:
        """It survives a round trip through text."""
        prior = self.make_prior()
        assert from_json(json.loads(json.dumps(to_json(prior)))) == prior

    def test_is_a_value(self) -> None:
        """Frozen, hashable, equal to its copies."""
        prior: Any = self.make_prior()
        assert copy.deepcopy(prior) == prior
        assert hash(copy.deepcopy(prior)) == hash(prior)
        for field in dataclasses.fields(prior):
            try:
                setattr(prior, field.name, 1)
            except dataclasses.FrozenInstanceError:
                continue
            raise AssertionError(f"{field.name} can be set")

    def test_bad_arguments_are_refused(self) -> None:
        """Each with one sentence that names the argument."""
        for arguments in self.bad_arguments:
            assert_refused(type(self.make_prior()), **arguments)

    def test_some_divergence_is_known(self) -> None:
        """A prior is of use: it has a density for Monte Carlo terms, or a registered pair."""
        prior = self.bound()
        assert prior.proper or find_kl(GaussianPosterior, type(prior)) is not None


def assert_refused(make: Any, **arguments: Any) -> str:
    """Fail unless bad arguments raise a ValueError or TypeError whose one line names the first of them.

    Returns:
        The message.
    """
    try:
        make(**arguments)
    except (ValueError, TypeError) as error:
        message = str(error)
        if "\n" in message or (arguments and next(iter(arguments)) not in message):
            raise AssertionError(f"unclear message for {arguments}: {message}") from error
        return message
    raise AssertionError(f"{arguments} were accepted")
