"""The registry of divergences and their total over a model."""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors import Dirac, GaussianPosterior
from leanbayes.posteriors._divergence import find_kl, kl_divergence, register_kl, why_infinite
from leanbayes.posteriors.mean_field import MeanFieldPosterior
from leanbayes.priors import NormalPrior, Prior
from leanbayes.testing import assert_gradients_match, assert_mean_close

METHODS = {
    "mean-field": lb.MeanField(bias="same", init_std=0.05),
    "k-tied": lb.KTied(init_std=0.05),
    "variational-dropout": lb.VariationalDropout(),
    "exact": lb.VariationalDropout(prior=lb.LogUniform(exact=True), share="weight"),
    "ard": lb.VariationalDropout(prior=lb.ARD(), share="neuron"),
    "student": lb.VariationalDropout(prior=lb.StudentT()),
    "variance": lb.VarianceLayer(),
    "rank1": lb.Rank1(init_std=0.05),
    "rank1-cauchy": lb.Rank1(posterior="cauchy", init_std=0.05),
    "rank1-lognormal": lb.Rank1(posterior="lognormal", init_std=0.05),
    "rank1-halfcauchy": lb.Rank1(posterior="halfcauchy", prior=lb.HalfCauchy(0.3)),
    "batch-ensemble": lb.BatchEnsemble(),
    "emp": lb.EMP(init_std=0.1),
    "ecmp-learned": lb.ECMP(init_std=0.1, learn_mixing=True),
    "mc-dropout": lb.MCDropout(),
    "drop-connect": lb.DropConnect(),
}


def net(method, **options):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4))
    return lb.bayesianize(model, method, **options)


@pytest.mark.parametrize("name", METHODS)
def test_total_is_one_float32_scalar_in_every_precision(name):
    values = {}
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        total = lb.kl(net(METHODS[name]).to(dtype))
        assert total.shape == () and total.dtype == torch.float32
        values[dtype] = total.item()
    full = values[torch.float32]
    assert math.isfinite(full)
    assert values[torch.float64] == pytest.approx(full, rel=1e-4, abs=1e-5)
    assert values[torch.float16] == pytest.approx(full, rel=0.01, abs=1e-3)
    assert values[torch.bfloat16] == pytest.approx(full, rel=0.05, abs=0.01)


@pytest.mark.parametrize("name", METHODS)
def test_total_is_the_sum_over_layers_and_differentiable(name):
    model = net(METHODS[name])
    layers = [
        layer
        for layer in model
        if isinstance(layer, nn.Module) and any(isinstance(m, RandomParameter) for m in layer.modules())
    ]
    torch.testing.assert_close(lb.kl(model), torch.stack([lb.kl(layer) for layer in layers]).sum())
    model = model.double()
    parameters = [p for p in model.parameters() if p.requires_grad]
    # The total is float32, so that its differences are coarse.
    assert_gradients_match(lambda: lb.kl(model).double(), parameters, step=1e-2, tolerance=0.02, entries=2)


def test_nothing_random_has_no_divergence():
    assert lb.kl(nn.Linear(2, 2)).item() == 0
    assert lb.kl(nn.ReLU()).item() == 0
    assert lb.kl(net(lb.BatchEnsemble())).item() == 0
    assert lb.kl(net(lb.VarianceLayer())).item() == 0
    assert kl_divergence(Dirac(torch.ones(2)), None).item() == 0


def test_each_distribution_counts_once():
    layer = lb.bayesianize(nn.Linear(3, 3), lb.MeanField())
    model = nn.ModuleDict({"a": layer, "b": nn.Sequential(layer, layer)})
    assert lb.kl(model).item() == lb.kl(layer).item()


def test_it_is_the_sum_and_not_the_mean():
    small = lb.bayesianize(nn.Linear(2, 2), lb.MeanField(prior=lb.Normal(0, 1), init_std=0.1))
    nn.init.zeros_(small.weight.posterior.loc)
    assert lb.kl(small).item() == pytest.approx(4 * (0.005 - 0.5 + math.log(10)), rel=1e-5)


def test_mixture_choices_differ_only_for_a_shared_index():
    model = net(lb.Rank1(components=4, init_std=0.2, random_sign=0.5, prior=lb.Normal(0, 1)))
    mean, total = lb.kl(model).item(), lb.kl(model, mixture="sum").item()
    assert total == pytest.approx(4 * mean, rel=1e-5)
    with torch.no_grad():
        joint = torch.stack([lb.kl(model, mixture="joint") for _ in range(400)])
    # Components of opposite signs do not overlap.
    assert_mean_close(joint, mean - math.log(4))
    assert joint.mean() < mean
    emp = net(lb.EMP())
    assert lb.kl(emp).item() == lb.kl(emp, mixture="sum").item() == lb.kl(emp, mixture="joint").item()


def test_joint_adds_what_is_outside_the_mixture():
    rules = {"0": lb.Rank1(components=2, init_std=0.2), "3": lb.MeanField()}
    model = net(rules)
    with torch.no_grad():
        joint = torch.stack([lb.kl(model, mixture="joint") for _ in range(500)])
    assert_mean_close(joint, lb.kl(model).item())


@pytest.mark.parametrize("components", [(4, 2), (3, 3)])
def test_joint_of_parts_that_were_converted_apart_is_the_sum_of_theirs(components):
    parts = [lb.bayesianize(nn.Linear(3, 3), lb.Rank1(components=k, init_spread=1.0)) for k in components]
    model = nn.Sequential(*parts)
    torch.manual_seed(0)
    expected = lb.kl(parts[0], "joint") + lb.kl(parts[1], "joint")
    torch.manual_seed(0)
    torch.testing.assert_close(lb.kl(model, "joint"), expected)


def test_an_unknown_mixture_is_refused():
    with pytest.raises(ValueError, match="mixture is 'mean', 'sum' or 'joint', not 'max'"):
        lb.kl(net(lb.Rank1()), mixture="max")


def test_the_students_constant_can_be_asked_for():
    model = net(lb.VariationalDropout(prior=lb.StudentT()))
    weights = 6 * 8 + 8 * 4
    difference = lb.kl(model, constant=True) - lb.kl(model)
    assert difference.item() == pytest.approx(weights * lb.StudentT().limit(), rel=1e-4)


def test_a_joint_mixture_leaves_out_what_its_mean_does():
    torch.manual_seed(1)
    model = lb.bayesianize(nn.Linear(5, 3), lb.Rank1(components=2, prior=lb.StudentT(), init_std=0.3, random_sign=0.5))
    totals = {}
    for constant in (None, False, True):
        torch.manual_seed(0)
        totals[constant] = lb.kl(model, "joint", constant=constant)
    assert totals[None] == totals[False]
    assert (totals[True] - totals[False]).item() == pytest.approx(8 * lb.StudentT().limit(), rel=1e-4)
    with torch.no_grad():
        joint = torch.stack([lb.kl(model, "joint") for _ in range(500)])
    # Components of opposite signs do not overlap.
    assert_mean_close(joint, lb.kl(model).item() - math.log(2))


def test_the_most_specific_pair_wins():
    class Special(MeanFieldPosterior):
        pass

    general = find_kl(Special, lb.Normal)
    assert general is find_kl(GaussianPosterior, NormalPrior)

    @register_kl(Special, lb.Normal)
    def special(q, p):
        return torch.tensor(7.0)

    assert find_kl(Special, lb.Normal) is special
    assert kl_divergence(Special(torch.zeros(2), 0.1), lb.Normal()).item() == 7
    assert find_kl(MeanFieldPosterior, lb.Normal) is general
    with pytest.raises(ValueError, match="of Special from Normal is already registered"):
        register_kl(Special, lb.Normal)(special)


def test_a_new_prior_with_a_density_needs_no_pair():
    class Laplace(Prior):
        def log_prob(self, value):
            return -value.abs() - math.log(2)

    q = MeanFieldPosterior(torch.zeros(1), 1.0).double()
    assert why_infinite(q, Laplace()) is None
    with torch.no_grad():
        terms = torch.stack([kl_divergence(q, Laplace()) for _ in range(4000)])
    # -H(N(0, 1)) + E|w| + log 2
    assert_mean_close(terms, -0.5 * math.log(2 * math.pi * math.e) + math.sqrt(2 / math.pi) + math.log(2))


def test_nothing_known_is_an_error_that_says_so():
    model = lb.nn.BayesianLayer(nn.Linear(2, 2), lb.VarianceLayer())
    model.weight.prior = lb.Normal()
    with pytest.raises(ValueError, match="no KL divergence of a Variance posterior from the prior Normal is known"):
        lb.kl(model)


@pytest.mark.parametrize("method", [lb.MeanField(), lb.Rank1(2)], ids=str)
def test_weights_are_asked_once_what_they_add(method, monkeypatch):
    model, asked = net(method), []
    offer = RandomParameter.kl_terms
    monkeypatch.setattr(RandomParameter, "kl_terms", lambda *args: asked.append(args) or offer(*args))
    first = lb.kl(model)
    count = len(asked)
    assert lb.kl(model) == first and len(asked) == count > 0


@pytest.mark.parametrize("constant", [True, False])
def test_a_setting_that_is_replaced_counts_from_then_on(constant):
    model, narrow = net(lb.MeanField()), lb.Normal(0, 0.1)
    before = lb.kl(model, constant=constant)
    model[0].weight.prior = narrow
    first = kl_divergence(model[0].weight.posterior, narrow)
    torch.testing.assert_close(lb.kl(model, constant=constant), first + model[3].weight.kl())
    assert lb.kl(model, constant=constant) > before
    mixture = net(lb.Rank1(2))
    before = lb.kl(mixture)
    mixture[3].weight.posterior.input_prior = None  # points from now on
    assert lb.kl(mixture) < before


def test_the_divergence_is_that_of_a_model():
    with pytest.raises(TypeError, match="kl takes an nn.Module, not Tensor"):
        lb.kl(torch.zeros(3))
