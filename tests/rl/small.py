"""Policies small enough to look at, and the methods that their second layer may have."""

import leanbayes as lb
from leanbayes.rl import make_policy

KINDS = [
    "plain",
    "noisy",
    "variance",
    lb.KTied(bias="same"),
    lb.Rank1(components=3),
    lb.EMP(components=3),
    lb.MCDropout(0.3),
    lb.VarianceLayer(noise="bernoulli"),
]


def small_policy(kind, seed=0):
    """Four features, layers of six and five units, three actions."""
    return make_policy(kind, features=4, actions=3, hidden=(6, 5), seed=seed).double()
