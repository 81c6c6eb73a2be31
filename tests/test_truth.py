"""Truth, not only consistency: training reaches the optimum that mathematics gives.

Bayesian linear regression with several outputs of different noise precision. The ELBO is known in closed form for
every family here, so the best that a family allows is found in float64 by an optimiser that knows nothing of the
library (L-BFGS on the formula), and the library's own training must reach it.
"""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb

PRIOR_STD = 0.5
PRECISION = torch.tensor([1.0, 30.0, 300.0], dtype=torch.float64)
ROWS, INPUTS, OUTPUTS = 60, 4, 3


def data():
    generator = torch.Generator().manual_seed(0)
    # Inputs of different scales: together with the precisions and the prior, the best stds are far from rank 1.
    x = torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64) * torch.tensor([0.1, 0.5, 1.0, 2.0])
    w = 0.5 * torch.randn(OUTPUTS, INPUTS, generator=generator, dtype=torch.float64)
    noise = torch.randn(ROWS, OUTPUTS, generator=generator, dtype=torch.float64)
    return x, x @ w.T + noise * PRECISION.rsqrt()


def log_likelihood(squared_error):
    """Expected log-likelihood of all rows from the expected squared error [N, outputs]."""
    return (0.5 * PRECISION.log() - 0.5 * math.log(2 * math.pi) - 0.5 * PRECISION * squared_error).sum()


def gaussian_kl(mean, std, prior_mean, prior_std):
    squares = (std.square() + (mean - prior_mean).square()) / (2 * prior_std**2)
    return (squares - 0.5 - (std / prior_std).log()).sum()


def gaussian_elbo(mean, std):
    """ELBO of w ~ N(mean, std^2): E (y - w x)^2 = (y - mean x)^2 + std^2 x^2."""
    x, y = data()
    error = (y - x @ mean.T).square() + x.square() @ std.square().T
    return log_likelihood(error) - gaussian_kl(mean, std, 0.0, PRIOR_STD)


def maximise(parameters, value):
    """L-BFGS in float64 until the gradient vanishes."""
    parameters = [p.clone().requires_grad_() for p in parameters]
    optimiser = torch.optim.LBFGS(
        parameters, max_iter=1000, tolerance_grad=1e-8, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = -value(*parameters)
        loss.backward()
        return loss

    optimiser.step(closure)
    return [p.detach() for p in parameters], float(value(*parameters).detach())


def analytic_mean_field():
    x, y = data()
    precision = PRECISION[:, None, None] * (x.T @ x) + torch.eye(INPUTS, dtype=torch.float64) / PRIOR_STD**2
    mean = torch.linalg.solve(precision, (PRECISION[:, None] * (y.T @ x)).unsqueeze(-1)).squeeze(-1)
    std = precision.diagonal(dim1=1, dim2=2).rsqrt()
    return mean, std


def train(method, freeze=False, steps=1500, lr=0.05, start=None):
    torch.manual_seed(1)
    layer = nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=torch.float64)
    if start is not None:
        layer.weight.data.copy_(start)
    model = lb.bayesianize(layer, method, freeze=freeze)
    elbo = lb.ELBO(model, ROWS, lb.Gaussian(PRECISION), samples=32).double()
    # A short memory of squared gradients: those of the first steps are larger by orders of magnitude.
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, lr, total_steps=steps, pct_start=0.05, final_div_factor=1e4
    )
    x, y = data()
    for _ in range(steps):
        optimiser.zero_grad()
        elbo(x, y).loss.backward()
        optimiser.step()
        schedule.step()
    return model, elbo


def test_the_formula_agrees_with_the_librarys_elbo():
    x, y = data()
    layer = nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=torch.float64)
    model = lb.bayesianize(layer, lb.MeanField(lb.Normal(0, PRIOR_STD), init_std=0.1))
    posterior = model.weight.posterior
    expected = -gaussian_elbo(posterior.loc.detach(), posterior.std().detach()) / ROWS
    elbo = lb.ELBO(model, ROWS, lb.Gaussian(PRECISION)).double()
    torch.manual_seed(0)
    losses = torch.stack([elbo(x, y).loss.detach() for _ in range(400)])
    assert abs(float(losses.mean() - expected)) < 5 * float(losses.std()) / 20


def test_the_best_standard_deviations_are_not_rank_one():
    _, std = analytic_mean_field()
    singular = torch.linalg.svdvals(std)
    assert float(singular[1] / singular[0]) > 0.05


def test_mean_field_reaches_the_analytic_optimum():
    mean, std = analytic_mean_field()
    best = float(gaussian_elbo(mean, std))
    (found_mean, found_log_std), value = maximise(
        [torch.zeros_like(mean), torch.zeros_like(std)], lambda m, s: gaussian_elbo(m, s.exp())
    )
    torch.testing.assert_close(found_mean, mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found_log_std.exp(), std, rtol=1e-5, atol=1e-6)
    assert value == pytest.approx(best, abs=1e-6)
    model, _ = train(lb.MeanField(lb.Normal(0, PRIOR_STD), init_std=0.1))
    posterior = model.weight.posterior
    torch.testing.assert_close(posterior.loc.detach(), mean, rtol=0.02, atol=0.01)
    torch.testing.assert_close(posterior.std().detach(), std, rtol=0.05, atol=1e-3)
    assert float(gaussian_elbo(posterior.loc.detach(), posterior.std().detach())) == pytest.approx(best, abs=0.1)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_k_tied_reaches_the_best_of_its_rank(rank):
    generator = torch.Generator().manual_seed(rank)

    def value(mean, log_u, log_v):
        return gaussian_elbo(mean, log_u.exp() @ log_v.exp().T)

    best = -math.inf
    for _ in range(3):
        start = [
            torch.zeros(OUTPUTS, INPUTS, dtype=torch.float64),
            torch.randn(OUTPUTS, rank, generator=generator, dtype=torch.float64) - 1,
            torch.randn(INPUTS, rank, generator=generator, dtype=torch.float64) - 1,
        ]
        best = max(best, maximise(start, value)[1])
    mean, std = analytic_mean_field()
    assert best <= float(gaussian_elbo(mean, std)) + 1e-6
    model, _ = train(lb.KTied(rank=rank, prior=lb.Normal(0, PRIOR_STD), init_std=0.1))
    posterior = model.weight.posterior
    reached = float(gaussian_elbo(posterior.loc.detach(), posterior.std().detach()))
    assert reached == pytest.approx(best, abs=0.15)
    torch.testing.assert_close(posterior.loc.detach(), mean, rtol=0.02, atol=0.01)


def rank1_elbo(w, r_mean, r_std, s_mean, s_std):
    """ELBO of W * r s^T: the output is r t with t = sum_i W_i s_i x_i, so E (y - r t)^2 needs two moments each."""
    x, y = data()
    t_mean = x @ (w * s_mean).T
    t_square = t_mean.square() + x.square() @ (w.square() * s_std.square()).T
    error = y.square() - 2 * y * r_mean * t_mean + (r_mean.square() + r_std.square()) * t_square
    divergence = gaussian_kl(r_mean, r_std, 1.0, 0.1) + gaussian_kl(s_mean, s_std, 1.0, 0.1)
    return log_likelihood(error) - divergence


def test_rank_one_with_a_frozen_weight_reaches_the_best_of_its_family():
    mean, _ = analytic_mean_field()
    w = mean + 0.1  # off the optimum, so that the factors have work to do

    def value(r_mean, r_raw, s_mean, s_raw):
        return rank1_elbo(w, r_mean, r_raw.exp(), s_mean, s_raw.exp())

    ones, logs = (lambda n: torch.ones(n, dtype=torch.float64)), (lambda n: torch.full((n,), -3.0, dtype=torch.float64))
    optimum, best = maximise([ones(OUTPUTS), logs(OUTPUTS), ones(INPUTS), logs(INPUTS)], value)
    model, _ = train(lb.Rank1(components=1), freeze=True, start=w)
    posterior = model.weight.posterior
    assert torch.equal(posterior.weight.detach(), w)
    r, s = posterior.output, posterior.input
    reached = rank1_elbo(w, r.loc[0].detach(), r.std()[0].detach(), s.loc[0].detach(), s.std()[0].detach())
    assert float(reached) == pytest.approx(best, abs=0.1)
    torch.testing.assert_close(r.loc[0].detach(), optimum[0], rtol=0.02, atol=0.01)
    torch.testing.assert_close(s.loc[0].detach(), optimum[2], rtol=0.02, atol=0.01)
    torch.testing.assert_close(r.std()[0].detach(), optimum[1].exp(), rtol=0.1, atol=1e-3)
    torch.testing.assert_close(s.std()[0].detach(), optimum[3].exp(), rtol=0.1, atol=1e-3)
