"""Networks of the k-tied recipes, and what they measure of them."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.posteriors.mean_field import MeanFieldPosterior
from leanbayes.reproduce.recipes import _kt_networks as kt
from leanbayes.reproduce.recipes import _kt_posthoc as posthoc
from leanbayes.reproduce.recipes import kt_anneal, kt_heatmap, kt_posthoc
from leanbayes.reproduce.recipes._kt_bounded import Bounded, BoundedPosterior, unbounded


@pytest.fixture
def run(make_run):
    return make_run("kt-posthoc", preset="smoke", settings=posthoc.PRESETS["smoke"] | {"width": 2})


def convert(method):
    torch.manual_seed(0)
    return lb.bayesianize(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), method)


def test_bounded_standard_deviations_start_where_they_should_and_stay_below():
    posterior = BoundedPosterior(torch.zeros(4, 3), init_std=0.01, bound=0.25)
    torch.testing.assert_close(posterior.std(), torch.full((4, 3), 0.01))
    with torch.no_grad():
        posterior.raw_std.copy_(torch.linspace(-30, 30, 12).view(4, 3))
    assert float(posterior.std().detach().max()) <= 0.25


def test_a_bounded_network_is_the_mean_field_network_of_the_same_moments():
    prior = lb.Normal(0.0, 0.7)
    bounded = kt.spread_starts(convert(Bounded(prior, init_std=0.05, bound=0.2)))
    plain = unbounded(bounded, convert(lb.MeanField(prior)))
    for name, part in bounded.named_modules():
        if isinstance(part, BoundedPosterior):
            other = plain.get_submodule(name)
            assert type(other) is MeanFieldPosterior
            torch.testing.assert_close(other.std(), part.std())
            torch.testing.assert_close(other.mean(), part.mean())
    expected = sum(
        torch.distributions.kl_divergence(
            torch.distributions.Normal(part.mean(), part.std()), torch.distributions.Normal(0.0, 0.7)
        ).sum()
        for part in bounded.modules()
        if isinstance(part, BoundedPosterior)
    )
    torch.testing.assert_close(lb.kl(bounded), expected)
    torch.testing.assert_close(lb.kl(plain), expected)


def test_standard_deviations_have_a_rate_of_their_own_where_it_is_asked_for():
    assert kt.spread_rate(None, 2) is None and kt.spread_rate(0.01, None) == 0.01
    assert kt.spread_rate(0.01, 2) == pytest.approx(0.003)
    described = kt.described(kt.TRAINING["short"], "lstm")
    assert "Adam at 0.0003, standard deviations at 0.01 (constant)" in described
    assert described.endswith("weight decay of the points 0.001")
    assert "decay" not in kt.described(kt.TRAINING["short"], "mlp")
    assert "decay" not in kt.described(kt.TRAINING["paper"], "lstm")


def test_starts_are_a_tenth_apart():
    torch.manual_seed(0)
    model = kt.spread_starts(lb.bayesianize(nn.Linear(100, 100), lb.MeanField(init_std=0.01)))
    logs = kt.deviations(model)[""].log()
    assert logs.mean() == pytest.approx(math.log(0.01), abs=4 * 0.1 / 100)
    assert logs.std() == pytest.approx(0.1, rel=0.03)


def test_deviations_are_matrices_of_outputs_by_everything_else():
    model = lb.bayesianize(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 2)), lb.MeanField())
    assert {name: tuple(std.shape) for name, std in kt.deviations(model).items()} == {"0": (8, 27), "2": (2, 8)}
    assert list(kt.deviations(model, ("2",))) == ["2"]


def test_the_resnet_trains_below_its_bound_and_comes_back_as_mean_field(run):
    model, records = posthoc.mean_field(run, "resnet", 0)
    parts = [part for part in model.modules() if isinstance(part, MeanFieldPosterior)]
    assert parts and all(type(part) is MeanFieldPosterior for part in parts)
    noted = records[-1][kt.DEVIATIONS]
    assert noted.keys() == kt.deviations(model).keys()
    for name, std in kt.deviations(model).items():
        assert float(std.mean()) == pytest.approx(noted[name], rel=1e-4)
        # Three steps from where it starts, softplus(-9).
        assert noted[name] == pytest.approx(math.exp(-9), rel=0.1)
        assert float(std.max()) < kt.RESNET_BOUND
    assert lb.analysis.compress(model, rank=1) is not None


def test_the_prior_is_scaled_by_fan_in_where_it_is_asked_for(run):
    he, _ = posthoc.mean_field(run, "mlp", 0, he=True)
    flat, _ = posthoc.mean_field(run, "mlp", 0)
    assert he.get_submodule("dense1").weight.prior.std == pytest.approx(math.sqrt(2 / 784))
    assert flat.get_submodule("dense1").weight.prior.std == kt.TRAINING["smoke"]["prior_std"]["mlp"]


@pytest.mark.parametrize("model", ["mlp", "lstm"])
def test_figures_of_a_network_without_noise_are_those_of_its_point(run, model):
    one = kt.MODELS[model]
    torch.manual_seed(0)
    network = one.convert(run, None, lb.Normal(0.0, 0.5)).eval()
    for part in network.modules():
        if isinstance(part, MeanFieldPosterior):
            nn.init.constant_(part.raw_std, -20.0)
    (x_train, _), (x, y) = one.load(run)
    with torch.no_grad(), lb.sampling(mean=True):
        outputs = network(x)
    found = kt.figures(run, model, network, seed=0)
    if model == "lstm":
        nll = F.binary_cross_entropy_with_logits(outputs.squeeze(-1), y.float())
        right = (outputs.squeeze(-1) > 0) == y.bool()
    else:
        nll, right = F.cross_entropy(outputs, y), outputs.argmax(-1) == y
        probs = outputs.softmax(-1)
        brier = (probs.square().sum(-1) - 2 * probs.gather(1, y[:, None])[:, 0]).mean()
        assert found["brier"] == pytest.approx(float(brier), abs=1e-5)
    assert found["nll"] == pytest.approx(float(nll), abs=1e-5)
    assert found["accuracy"] == pytest.approx(100 * float(right.float().mean()), abs=1e-4)
    assert found["elbo"] - found["nll"] == pytest.approx(float(lb.kl(network).detach()) / len(x_train), abs=1e-4)


def test_what_is_made_of_a_network(run):
    model = kt.MODELS["mlp"].convert(run, None, lb.Normal(0.0, 0.2))
    made = posthoc._made(run, "mlp", kt.spread_starts(model))
    assert list(made)[1:] == [
        "rank 1 by SVD", "rank 2 by SVD", "rank 3 by SVD", "compressed to rank 1", "compressed to rank 2"
    ]  # fmt: skip
    for rank in posthoc.RANKS:
        for std in kt.deviations(made[posthoc.truncated_name(rank)]).values():
            assert torch.linalg.matrix_rank(std.double(), rtol=1e-5) == rank
    whole, half = (posthoc.file_bytes(made[name]) for name in ("mean-field", "compressed to rank 2"))
    # 20 hidden units leave some of the standard deviations.
    assert 0.5 < half / whole < 0.65


def test_refreshing_computes_the_statistics_of_the_training_images(run):
    torch.manual_seed(0)
    model = kt.MODELS["resnet"].convert(run, None, lb.Normal(0.0, 1.0)).eval()
    (x, _), _ = kt.MODELS["resnet"].load(run)
    posthoc.refreshed(run, "resnet", model)
    seen = model.get_submodule("conv1")(x).detach()
    # The start has next to no noise; batches of 20 have their own variances, whose mean is a little smaller.
    torch.testing.assert_close(
        model.get_buffer("block1.norm1.running_mean"), seen.mean((0, 2, 3)), rtol=0.01, atol=1e-3
    )


def test_the_spread_is_what_an_approximation_leaves_of_the_variance():
    torch.manual_seed(0)
    std = 0.1 + torch.rand(7, 5, dtype=torch.float64)
    left, values, right = torch.linalg.svd(std, full_matrices=False)
    found = posthoc.spread(values.tolist(), std)
    for rank in range(1, 6):
        approximation = left[:, :rank] * values[:rank] @ right[:rank]
        expected = 1 - (std - approximation).square().sum() / (std - std.mean()).square().sum()
        assert found[rank - 1] == pytest.approx(float(expected), abs=1e-9)
    assert posthoc.spread([3.0, 0.0], torch.full((3, 3), 1.0)) == [1.0, 1.0]


def test_a_product_of_rank_2_looks_like_itself():
    torch.manual_seed(0)
    std = torch.rand(200, 2, dtype=torch.float64) @ torch.rand(2, 90, dtype=torch.float64)
    found = kt_heatmap._picture(std)
    first, second = found["correlations"]
    assert second == pytest.approx(1) and first < 0.99
    picture = {name: torch.tensor(values) for name, values in found["picture"].items()}
    assert picture["std"].shape == (60, 80)
    torch.testing.assert_close(picture["inputs"] @ picture["outputs"].mT, picture["std"], rtol=1e-2, atol=1e-3)


def test_networks_that_were_left_out_are_named(run):
    assert posthoc.all_there(run, kt.MODELS) == []
    (check,) = posthoc.all_there(run.changed(models=("mlp",)), ("mlp", "lstm"))
    assert not check.holds and check.gap == "not trained: LSTM, IMDB"


def test_annealing_ends_where_the_share_of_the_training_does(run, monkeypatch):
    records = [{kt.DEVIATIONS: {"a": 0.1 * epoch}} for epoch in range(1, 11)]
    monkeypatch.setattr(kt, "train", lambda run, model, rank, seed, share: (None, records))
    curve = kt_anneal._curve(run, "mlp", 0)
    assert curve["annealed"] == 5 and curve["layers"]["a"][4] == pytest.approx(0.5)


def scores_of(nll, size=(100, 50)):
    """What `scores` gives, with these NLLs."""
    figures = {name: {"nll": value, "elbo": value, "accuracy": 90.0} for name, value in nll.items()}
    return {"figures": figures, "bytes": dict(zip(("mean-field", "compressed to rank 2"), size))}


def test_rank_2_must_keep_the_likelihood_of_the_mlp_and_rank_1_must_not():
    good = {"mean-field": 0.1, "rank 1 by SVD": 0.5, "rank 2 by SVD": 0.105, "rank 3 by SVD": 0.1}
    assert all(check.holds for check in kt_posthoc._mlp_checks([scores_of(good)]))
    for change in ({"rank 1 by SVD": 0.115}, {"rank 2 by SVD": 0.12}, {"rank 3 by SVD": 0.12}):
        assert [check.holds for check in kt_posthoc._mlp_checks([scores_of(good | change)])].count(False) == 1


@pytest.mark.parametrize(
    ("size", "change", "failing"),
    [
        ((100, 50), {}, []),
        ((100, 60), {}, [0]),
        ((100, 50), {"compressed to rank 2, norms refreshed": 0.48}, [1]),
        # It must beat the singular values in whichever form suits them.
        ((100, 50), {"rank 1 by SVD, norms refreshed": 0.51}, [2]),
        ((100, 50), {"rank 1 by SVD": 0.51}, [2]),
    ],
)
def test_compression_must_halve_the_file_keep_the_likelihood_and_beat_singular_values(size, change, failing):
    nll = {"mean-field": 0.5, "rank 1 by SVD": 0.7, "compressed to rank 1": 0.6, "compressed to rank 2": 0.6}
    nll |= {
        "rank 1 by SVD, norms refreshed": 0.6,
        "compressed to rank 1, norms refreshed": 0.52,
        "compressed to rank 2, norms refreshed": 0.504,
    }
    rows, checks = kt_posthoc._resnet([scores_of(nll | change, size)])
    assert rows[0].measured == [size[1] / size[0]]
    assert [number for number, check in enumerate(checks) if not check.holds] == failing


def test_the_picture_of_losses_has_published_ones_beside():
    nll = {"mean-field": 0.5, "rank 1 by SVD": 0.7, "compressed to rank 2": 0.6}
    found = kt_posthoc._mean_losses([scores_of(nll | {"compressed to rank 2, norms refreshed": 0.51})])
    assert found == pytest.approx({"rank 1 by SVD": 0.2, "compressed to rank 2": 0.01})
    assert kt_posthoc._published_losses("resnet")["rank 1 by SVD"] == pytest.approx(0.163)
