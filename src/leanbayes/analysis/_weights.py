"""The best weights of a mixture whose components are given: a convex problem, solved by EM."""

from __future__ import annotations

from torch import Tensor

# How much better other weights may be, in nats per example, where the search ends; and how long it may take.
_GAP = 1e-9
_STEPS = 20_000
# A weight of 0 stays 0 in EM, and has no logarithm.
LEAST = 1e-6
# Densities below this part of the largest do not count.
_LOWEST = -700.0


def best_weights(log_density: Tensor, start: Tensor) -> Tensor:
    r"""The weights that give held-out data the highest density under the mixture.

    .. math:: \max_w \frac{1}{N} \sum_n \log \sum_k w_k \, p_k(y_n)

    An EM step multiplies each weight by :math:`g_k = \frac{1}{N} \sum_n p_k(y_n) / \sum_j w_j p_j(y_n)`. Since the
    problem is concave, no weights are better than w by more than :math:`\max_k g_k - 1`. Steps are lengthened, by
    powers of g, for as long as that improves them.

    Args:
        log_density: ``log p_k(y_n)`` ``[K, N]``, in float64.
        start: Weights ``[K]`` to begin with; where all are equally good, they are returned.

    Returns:
        Weights ``[K]`` of `LEAST` at least, with a sum of 1.
    """
    if bool(log_density.isnan().any()):
        raise ValueError("the density of some targets is NaN; look for NaN or infinite parameters and outputs")
    relative = (log_density - log_density.amax(0)).clamp_min(_LOWEST).exp()
    weights = at_least(start)
    mixture, power = weights @ relative, 1.0
    for _ in range(_STEPS):
        gain = relative @ (1 / mixture) / len(mixture)
        if gain.max() - 1 < _GAP:
            break
        trial = weights * gain**power
        trial = trial / trial.sum()
        found = trial @ relative
        if power > 1 and not found.log().sum() > mixture.log().sum():
            power = 1.0  # a plain step never makes it worse
            continue
        weights, mixture, power = trial, found, 2 * power
    return at_least(weights)


def at_least(weights: Tensor) -> Tensor:
    """Weights of `LEAST` at least, with a sum of 1."""
    weights = weights.clamp_min(LEAST)
    return weights / weights.sum()
