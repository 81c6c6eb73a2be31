"""KL divergences against Monte Carlo estimates."""

from __future__ import annotations

import torch

from leanbayes._sampling import Sampling
from leanbayes.posteriors._base import Posterior
from leanbayes.posteriors._divergence import kl_divergence
from leanbayes.priors._base import Prior
from leanbayes.testing.gradients import assert_gradients_match
from leanbayes.testing.statistics import assert_mean_close


def check_kl(
    q: Posterior, p: Prior, draws: int = 20_000, *, offset: float = 0.0, sigmas: float = 5.0, seed: int = 0
) -> None:
    """Fail where the closed form of KL(q || p) does not fit ``E_q[log q - log p]``, or its gradient its slope.

    Args:
        q: A posterior with a density.
        p: A bound prior with a normalised density.
        draws: Number of Monte Carlo draws.
        offset: What the closed form leaves out by convention.
        sigmas: Standard errors allowed.
        seed: Seed of the draws.
    """
    if not p.proper:
        raise ValueError(f"{type(p).__name__} has no normalised density to compare with")
    q = q.double()
    closed = kl_divergence(q, p)
    if closed.dim():
        raise AssertionError(f"a KL divergence is one number, not {tuple(closed.shape)}")
    generator = torch.Generator().manual_seed(seed)
    terms = []
    with torch.no_grad():
        for start in range(0, draws, 50_000):
            n = min(50_000, draws - start)
            w = q.rsample(n, Sampling(n=n, generator=generator))
            terms.append(q.joint_log_prob(w) - p.log_prob(w).flatten(1).sum(1))
    assert_mean_close(torch.cat(terms), float(closed.detach()) + offset, sigmas, "log q - log p")
    if float(closed.detach()) + offset < 0:
        raise AssertionError(f"a KL divergence is not negative, got {float(closed.detach()) + offset:.4g}")
    assert_gradients_match(lambda: kl_divergence(q, p), list(q.parameters()))
