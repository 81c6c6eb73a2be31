"""Heavy-tailed, positive and improper priors."""

import math

import pytest
import torch
from scipy import stats

import leanbayes as lb
from leanbayes.testing import PriorSuite

BAD_SCALE = ({"scale": 0.0}, {"scale": -1.0}, {"scale": math.inf}, {"scale": None})


class TestCauchy(PriorSuite):
    bad_arguments = (*BAD_SCALE, {"loc": math.inf})

    def make_prior(self):
        return lb.Cauchy(1.0, 0.1)


class TestHalfCauchy(PriorSuite):
    bad_arguments = BAD_SCALE

    def make_prior(self):
        return lb.HalfCauchy(0.5)


class TestLogNormal(PriorSuite):
    bad_arguments = (*BAD_SCALE, {"loc": "0"})

    def make_prior(self):
        return lb.LogNormal(0.2, 0.7)


class TestStudentT(PriorSuite):
    bad_arguments = ({"df": 0.0}, {"df": -3.0}, {"df": math.nan})

    def make_prior(self):
        return lb.StudentT(2.0)


class TestLogUniform(PriorSuite):
    def make_prior(self):
        return lb.LogUniform(exact=True)


class TestARD(PriorSuite):
    def make_prior(self):
        return lb.ARD()


@pytest.mark.parametrize(
    ("prior", "reference"),
    [
        (lb.Cauchy(1.0, 0.1), stats.cauchy(1.0, 0.1)),
        (lb.HalfCauchy(0.5), stats.halfcauchy(0, 0.5)),
        (lb.LogNormal(0.2, 0.7), stats.lognorm(0.7, 0, math.exp(0.2))),
        (lb.StudentT(3.0), stats.t(3.0)),
        (lb.StudentT(1e-3), stats.t(1e-3)),
    ],
    ids=lambda value: str(value) if isinstance(value, lb.priors.Prior) else "",
)
def test_densities_equal_those_of_scipy(prior, reference):
    value = torch.rand(50, dtype=torch.float64) * 10 + 1e-3
    torch.testing.assert_close(prior.log_prob(value), torch.tensor(reference.logpdf(value.numpy())))


def test_student_density_of_hardly_any_degrees_of_freedom_does_not_overflow():
    # 1 / |x| but for its constant.
    value = torch.tensor([1e-3, 1.0, 1e3])
    log_prob = lb.StudentT(1e-16).log_prob(value)
    torch.testing.assert_close(log_prob[:2] - log_prob[1:], value[1:].log() - value[:2].log())


@pytest.mark.parametrize("df", [1e-11, 0.5, 3.0])
def test_student_density_has_its_gradient_at_zero_too(df):
    value = torch.tensor([0.0, 1e-20], requires_grad=True)
    log_prob = lb.StudentT(df).log_prob(value)
    torch.testing.assert_close(log_prob.double(), torch.tensor(stats.t(df).logpdf([0.0, 0.0])))
    (gradient,) = torch.autograd.grad(log_prob.sum(), value)
    torch.testing.assert_close(gradient[0], torch.zeros(()))


@pytest.mark.parametrize("prior", [lb.LogUniform(), lb.ARD()], ids=str)
def test_improper_priors_have_no_density(prior):
    with pytest.raises(NotImplementedError, match="no normalised density"):
        prior.log_prob(torch.ones(1))
