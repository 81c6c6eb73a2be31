"""The k-tied Normal."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.ops import op_for
from leanbayes.posteriors import k_tied
from leanbayes.posteriors.k_tied import KTiedPosterior
from leanbayes.posteriors.mean_field import MeanFieldPosterior
from leanbayes.testing import PosteriorSuite


class TestKTied(PosteriorSuite):
    def make_posterior(self):
        torch.manual_seed(1)
        return KTiedPosterior(torch.randn(3, 2, 2), 2, 0.3)


class TestKTiedOnSecondAxis(PosteriorSuite):
    def make_posterior(self):
        torch.manual_seed(1)
        return KTiedPosterior(torch.randn(2, 3, 2), 1, 0.3, out_axis=1)


@pytest.mark.parametrize(
    ("module", "rows", "columns"),
    [
        (nn.Linear(5, 4), 4, 5),
        (nn.Conv2d(3, 6, (2, 3), groups=3), 6, 1 * 2 * 3),
        (nn.ConvTranspose1d(4, 6, 3, groups=2), 3, 4 * 3),
        (nn.Embedding(7, 3), 3, 7),
    ],
    ids=["dense", "conv", "transpose", "embedding"],
)
def test_standard_deviations_are_the_product_matrix_of_output_features_by_the_rest(module, rows, columns):
    op = op_for(module)
    posterior = lb.KTied(rank=2).build(module.weight, op)
    assert posterior.log_u.shape == (rows, 2) and posterior.log_v.shape == (columns, 2)
    product = torch.zeros(rows, columns)
    for out in range(rows):
        for rest in range(columns):
            for k in range(2):
                product[out, rest] += posterior.log_u[out, k].exp() * posterior.log_v[rest, k].exp()
    matrix = posterior.std().movedim(op.out_axis, 0).flatten(1)
    torch.testing.assert_close(matrix, product)


class TestKTiedOnPositions(PosteriorSuite):
    def make_posterior(self):
        torch.manual_seed(1)
        return KTiedPosterior(torch.randn(2, 3, 2, 2), 2, 0.3, out_axis=(2, 3))


@pytest.mark.parametrize(
    ("module", "flatten", "equation", "rows", "columns"),
    [
        (nn.Conv2d(3, 6, (2, 4)), "output", "ok,ihwk->oihw", (6,), (3, 2, 4)),
        (nn.Conv2d(3, 6, (2, 4)), "input", "ik,ohwk->oihw", (3,), (6, 2, 4)),
        (nn.Conv2d(3, 6, (2, 4)), "positions", "hwk,oik->oihw", (2, 4), (6, 3)),
        (nn.ConvTranspose1d(4, 6, 5), "input", "ik,ohk->ioh", (4,), (6, 5)),
        (nn.ConvTranspose1d(4, 6, 5), "positions", "hk,iok->ioh", (5,), (4, 6)),
        (nn.Linear(5, 4), "input", "ik,ok->oi", (5,), (4,)),
        (nn.Linear(5, 4), "positions", "ok,ik->oi", (4,), (5,)),
    ],
)
def test_rows_of_the_matrix_can_be_chosen(module, flatten, equation, rows, columns):
    model = lb.bayesianize(nn.Sequential(module), lb.KTied(rank=2, flatten=flatten))
    posterior = model[0].weight.posterior
    u, v = posterior.log_u.exp().view(*rows, 2), posterior.log_v.exp().view(*columns, 2)
    std = torch.einsum(equation, u, v)
    torch.testing.assert_close(posterior.std(), std)
    exact = (std.square() + posterior.loc.square()) / (2 * 0.3**2) - (std / 0.3).log() - 0.5
    torch.testing.assert_close(lb.kl(model), exact.sum())


def test_kernels_without_positions_take_output_features_as_rows():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 1), nn.Flatten(), nn.Linear(8, 4))
    model = lb.bayesianize(model, lb.KTied(rank=2, flatten="positions"))
    assert model[0].weight.posterior.log_u.shape == (9, 2) and model[3].weight.posterior.log_u.shape == (4, 2)
    assert isinstance(model[1].weight.posterior, MeanFieldPosterior)
    assert "smaller side of 1" in str(lb.summary(model))


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_starts_around_the_given_standard_deviation_at_every_rank(rank):
    torch.manual_seed(0)
    posterior = KTiedPosterior(torch.zeros(200, 100), rank, 0.02)
    # Log-normal noise of 0.1 on each factor moves the mean by a factor exp(0.01).
    assert posterior.std().mean().item() == pytest.approx(0.02 * 1.01, rel=0.02)


def test_columns_start_apart():
    posterior = KTiedPosterior(torch.zeros(6, 5), 2, 0.1)
    assert not torch.allclose(posterior.log_u[:, 0], posterior.log_u[:, 1])


def test_rank_k_reaches_every_matrix_of_that_rank_and_counts_its_parameters():
    posterior = KTiedPosterior(torch.zeros(6, 5), 2, 0.1)
    assert torch.linalg.matrix_rank(posterior.std().double(), tol=1e-6) == 2
    assert sum(p.numel() for p in posterior.parameters()) == 30 + 2 * (6 + 5)


def test_a_side_under_the_rank_falls_back_to_mean_field():
    value = nn.Parameter(torch.zeros(1, 8))
    method, reason = lb.KTied(rank=2, init_std=0.05, bias="same").fallback(value, op_for(nn.Linear(8, 1)))
    assert method == lb.MeanField(init_std=0.05, bias="same")
    assert "1" in reason and "2" in reason
    assert lb.KTied(rank=1).fallback(value, op_for(nn.Linear(8, 1))) is None


def test_bias_becomes_mean_field():
    bias = lb.KTied(bias="same", init_std=0.2).build_bias(nn.Parameter(torch.zeros(3)))
    assert isinstance(bias, MeanFieldPosterior)
    torch.testing.assert_close(bias.std(), torch.full((3,), 0.2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_leaves_deviations_in_full_precision(dtype):
    torch.manual_seed(0)
    model, x = lb.bayesianize(nn.Linear(4, 3), lb.KTied()), torch.randn(5, 4)
    wanted = model.weight.posterior.std()
    with torch.autocast("cpu", dtype):
        model(x)
        assert torch.equal(model.weight.posterior.std(), wanted)
        assert lb.kl(model).dtype == torch.float32


@pytest.mark.parametrize("rank", [1, 2, 5, 9])
def test_compilers_are_given_the_same_matrix(rank):
    torch._dynamo.reset()
    posterior = KTiedPosterior(torch.zeros(3, 11, 4), rank, 0.1, out_axis=1).double()
    weights = torch.randn(3, 11, 4, dtype=torch.float64)
    found = torch.compile(lambda: (weights * posterior.std()).sum(), fullgraph=True, backend="aot_eager")()
    expected = (weights * posterior.std()).sum()
    torch.testing.assert_close(found, expected)
    factors = (posterior.log_u, posterior.log_v)
    for ours, plain in zip(torch.autograd.grad(found, factors), torch.autograd.grad(expected, factors), strict=True):
        torch.testing.assert_close(ours, plain)


LARGE = {
    "dense": lambda: nn.Sequential(nn.Linear(420, 380)),
    "convolution": lambda: nn.Sequential(nn.Conv2d(64, 260, 3), nn.Flatten()),
    "channels last": lambda: nn.Sequential(nn.Conv2d(64, 260, 3).to(memory_format=torch.channels_last), nn.Flatten()),
}


@pytest.mark.parametrize("kind", LARGE)
def test_the_product_of_a_large_weight_is_computed_once_in_a_pass(kind, monkeypatch):
    """Draws and divergence share it, and have the gradients of an expression that autograd differentiates."""
    torch.manual_seed(0)
    model = lb.bayesianize(LARGE[kind](), lb.KTied(estimator="weight", init_std=0.1)).double()
    elbo = lb.ELBO(model, dataset_size=10)
    x = torch.randn((4, 420) if kind == "dense" else (4, 64, 3, 3), dtype=torch.float64)
    made = []

    def counted(*arguments):
        made.append(arguments)
        return tied_scales(*arguments)

    def gradients():
        with lb.sampling(seed=1):
            loss = elbo(x, torch.arange(4)).loss
        return loss, torch.autograd.grad(loss, tuple(model.parameters()))

    tied_scales = k_tied.tied_scales
    monkeypatch.setattr(k_tied, "tied_scales", counted)
    found, ours = gradients()
    assert len(made) == 1
    monkeypatch.setattr(KTiedPosterior, "_is_shared", lambda self: False)
    expected, truths = gradients()
    torch.testing.assert_close(found, expected)
    for mine, truth in zip(ours, truths):
        torch.testing.assert_close(mine, truth)


def test_draws_and_divergence_of_a_large_weight_may_be_differentiated_one_after_the_other():
    model = lb.bayesianize(nn.Linear(420, 380), lb.KTied(estimator="weight"))
    elbo = lb.ELBO(model, dataset_size=10)
    terms = elbo(torch.randn(4, 420), torch.randint(380, (4,)))
    terms.nll.backward()
    first = model.weight.posterior.log_u.grad.clone()
    terms.kl.backward()
    assert not torch.equal(first, model.weight.posterior.log_u.grad)
