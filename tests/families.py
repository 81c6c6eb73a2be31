"""The posterior families that the tests of layers and conversion go through."""

import pytest

import leanbayes as lb

# Families whose means are the plain weights themselves.
EXACT = {
    "mean_field": lb.MeanField(),
    "mean_field_biases": lb.MeanField(bias="same", estimator="weight"),
    "k_tied": lb.KTied(rank=1),
    "vd_layer": lb.VariationalDropout(),
    "vd_neuron": lb.VariationalDropout(share="neuron", prior=lb.ARD()),
    "vd_weight": lb.VariationalDropout(share="weight"),
    "rank1": lb.Rank1(components=3),
    "rank1_cauchy": lb.Rank1(components=2, posterior="cauchy"),
    "rank1_additive": lb.Rank1(components=2, form="additive"),
    "rank1_input": lb.Rank1(components=2, on="input"),
    "batch_ensemble": lb.BatchEnsemble(components=3),
    "mc_dropout": lb.MCDropout(),
    "drop_connect": lb.DropConnect(),
}
# Families whose means are the plain weights but for rounding.
CLOSE = {
    "emp": lb.EMP(components=3),
    "emp_example": lb.EMP(components=3, draw="example", learn_mixing=True),
    "ecmp": lb.ECMP(components=3),
}
# Families whose means are something else.
OTHER = {
    "variance_gaussian": lb.VarianceLayer(),
    "variance_bernoulli": lb.VarianceLayer(noise="bernoulli"),
    "variance_uniform": lb.VarianceLayer(noise="uniform", estimator="flipout"),
    "rank1_lognormal": lb.Rank1(components=2, posterior="lognormal"),
    "rank1_halfcauchy": lb.Rank1(components=2, posterior="halfcauchy"),
    "rank1_signs": lb.Rank1(components=3, random_sign=0.5),
    "batch_ensemble_signs": lb.BatchEnsemble(components=3, random_sign=0.5),
}
LAYERWISE = EXACT | CLOSE | OTHER
ENSEMBLES = {
    "ensemble": lb.DeepEnsemble(members=2),
    "ensemble_of_variance": lb.DeepEnsemble(members=2, of=lb.VarianceLayer()),
    "ensemble_of_rank1": lb.DeepEnsemble(members=2, of=lb.Rank1(components=2), reinit=False),
}
ALL = LAYERWISE | ENSEMBLES
# One of each kind, for tests that are the same within a kind.
ONE_OF_EACH = {
    name: ALL[name]
    for name in (
        "mean_field",
        "k_tied",
        "vd_neuron",
        "variance_gaussian",
        "rank1",
        "batch_ensemble",
        "mc_dropout",
        "drop_connect",
        "emp",
        "ecmp",
    )
}
# Families with an estimator that recurrent layers and bags of words do not offer.
NOT_RECURRENT = ("emp_example", "variance_uniform")


def everywhere(name, module):
    """A predicate that selects all layers, embeddings and norms included; a method takes those it can serve."""
    return True


def marked(pairs, quick):
    """Parameters of a test, those slow that are not `quick(*pair)`."""
    return [pytest.param(*pair, marks=() if quick(*pair) else pytest.mark.slow) for pair in pairs]
