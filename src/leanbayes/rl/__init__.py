"""Reinforcement learning: policies that explore by the noise of their weights.

Environments come from gymnasium (``pip install 'leanbayes[rl]'``), which is imported when one is made.
"""

from leanbayes.rl._train import train
from leanbayes.rl.learner import PolicyGradient, Progress
from leanbayes.rl.policy import POLICIES, make_policy

__all__ = ["POLICIES", "PolicyGradient", "Progress", "make_policy", "train"]
