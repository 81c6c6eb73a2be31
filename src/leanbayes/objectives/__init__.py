"""The training objective: likelihoods, schedules of the KL weight, the ELBO."""

from leanbayes.objectives.elbo import ELBO, Terms
from leanbayes.objectives.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from leanbayes.objectives.schedules import LinearAnneal, StepAnneal

__all__ = ["ELBO", "Bernoulli", "Categorical", "Gaussian", "Likelihood", "LinearAnneal", "StepAnneal", "Terms"]
