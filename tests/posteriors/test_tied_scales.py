"""Standard deviations of many k-tied weights at once: the same numbers, gradients and draws as one by one."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._sampling import Sampling
from leanbayes.posteriors._joined import joined, pieces
from leanbayes.posteriors.k_tied import KTiedPosterior

SHAPES = [((5, 7), False), ((4, 3, 3, 2), True), ((6, 2, 3, 3), False), ((3, 5), False)]


def parts(dtype=torch.float64):
    torch.manual_seed(0)
    found = []
    for number, (shape, channels_last) in enumerate(SHAPES):
        value = torch.randn(shape, dtype=dtype)
        if channels_last:
            value = value.contiguous(memory_format=torch.channels_last)
        found.append(KTiedPosterior(nn.Parameter(value), 1 + number % 3, 0.1))
    return found


def alone(posterior):
    """``exp(log_u) exp(log_v)^T`` by a sum over the rank."""
    u, v = posterior.log_u.exp(), posterior.log_v.exp()
    return sum(torch.outer(u[:, j], v[:, j]) for j in range(u.shape[1])).view(posterior.shape)


def test_joined_scales_are_those_of_the_parts():
    ones = parts()
    assert len({one.join_key() for one in ones}) == 1 and ones[0].join_key() is not None
    whole = joined(ones)
    scales = pieces(whole.scale()[None], whole.laid_out["loc"])
    for one, scale in zip(ones, scales, strict=True):
        torch.testing.assert_close(scale[0], alone(one))
        assert scale[0].stride() == one.loc.stride()


def test_gradients_reach_every_factor():
    ones, others = parts(), parts()
    weights = [torch.randn(one.shape, dtype=torch.float64) for one in ones]
    whole = joined(ones)
    scales = pieces(whole.scale()[None], whole.laid_out["loc"])
    sum((scale[0] * weight).sum() for scale, weight in zip(scales, weights)).backward()
    sum((alone(one) * weight).sum() for one, weight in zip(others, weights)).backward()
    for one, other in zip(ones, others):
        torch.testing.assert_close(one.log_u.grad, other.log_u.grad)
        torch.testing.assert_close(one.log_v.grad, other.log_v.grad)


def test_gradients_can_be_differentiated_again():
    ones = parts()
    blocks = joined(ones).blocks
    log_u, log_v = (torch.cat([getattr(one, name).detach().flatten() for one in ones]) for name in ("log_u", "log_v"))

    def function(u, v):
        whole = joined(ones)
        whole._parameters = {"loc": whole.loc, "log_u": u, "log_v": v}
        assert whole.blocks == blocks
        return whole.scale()

    inputs = (log_u.requires_grad_(), log_v.requires_grad_())
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs, atol=1e-4)


@pytest.mark.parametrize("frozen", ["log_u", "log_v"])
def test_second_derivatives_leave_frozen_factors_out(frozen):
    curvatures = []
    for function in (lambda ones: joined(ones).scale(), lambda ones: torch.cat([alone(one).flatten() for one in ones])):
        ones = parts()
        for one in ones:
            getattr(one, frozen).requires_grad_(False)
        trained = [p for one in ones for name, p in one.named_parameters() if name not in (frozen, "loc")]
        grads = torch.autograd.grad(function(ones).square().sum(), trained, create_graph=True)
        curvatures.append(torch.autograd.grad(sum(grad.sum() for grad in grads), trained))
    for found, expected in zip(*curvatures):
        torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_forward_mode_gives_the_same():
    ones = parts()

    def total(log_u):
        whole = joined(ones)
        whole._parameters = whole._parameters | {"log_u": log_u}
        return whole.scale().square().sum()

    log_u = joined(ones).log_u.detach()
    forward = torch.func.jacfwd(total)(log_u)
    torch.testing.assert_close(forward, torch.func.grad(total)(log_u))


def net():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(20, 6))
    return lb.bayesianize(plain, lb.KTied(2, estimator="weight", bias="same")).double()


def test_a_step_of_a_network_is_that_of_its_layers_one_by_one(monkeypatch):
    x, y = torch.randn(3, 3, 6, 6, dtype=torch.float64), torch.tensor([0, 3, 5])
    terms, grads = [], []
    for together in (True, False):
        model = net()
        if not together:
            monkeypatch.setattr(KTiedPosterior, "join_key", lambda self: None)
        elbo = lb.ELBO(model, 10)
        # The noise of one long draw is not that of several; without noise both are the same.
        with lb.sampling(mean=True):
            found = elbo(x, y)
        found.loss.backward()
        terms.append(found)
        grads.append({name: p.grad for name, p in model.named_parameters()})
    torch.testing.assert_close(terms[0].kl, terms[1].kl)
    torch.testing.assert_close(terms[0].loss, terms[1].loss)
    torch.testing.assert_close(grads[0], grads[1])


def test_draws_have_the_moments_of_their_layers():
    model = net()
    posteriors = [layer.weight.posterior for layer in (model[0], model[2], model[4])]
    n = 20_000
    torch.manual_seed(1)
    with torch.no_grad():
        drawn = KTiedPosterior.draw_together(posteriors, "draw", n, Sampling())
        for posterior, draws in zip(posteriors, drawn):
            std = posterior.std()
            assert (draws.mean(0) - posterior.loc).abs().max() < 5 * std.max() / n**0.5
            # Of the relative error of a standard deviation from n normal draws.
            assert ((draws.std(0) / std - 1).abs() < 5 / (2 * n) ** 0.5).all()


def test_under_autocast_draws_are_narrow_at_once():
    ones = [one.float() for one in parts()]
    for one in ones:
        one.narrow = True
    with torch.autocast("cpu", torch.bfloat16):
        for what in ("draw", "deviation"):
            assert {t.dtype for t in KTiedPosterior.draw_together(ones, what, 2, Sampling())} == {torch.bfloat16}
    assert {t.dtype for t in KTiedPosterior.draw_together(ones, "draw", 2, Sampling())} == {torch.float32}


def test_loss_and_divergence_can_be_differentiated_one_after_the_other():
    model = net()
    elbo = lb.ELBO(model, 10)
    found = elbo(torch.randn(2, 3, 6, 6, dtype=torch.float64), torch.tensor([0, 1]))
    found.nll.backward()
    found.kl.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_weights_whose_outputs_do_not_come_first_stay_alone():
    layer = lb.bayesianize(nn.ConvTranspose2d(3, 4, 3), lb.KTied(2))
    assert layer.weight.posterior.row_axes == (1,) and layer.weight.posterior.join_key() is None


def test_on_a_cpu_large_weights_stay_apart():
    small, large = (KTiedPosterior(nn.Parameter(torch.randn(rows, 128)), 2, 0.1) for rows in (1024, 1025))
    assert small.join_key() is not None and large.join_key() is None
