"""compress: a k-tied copy of a mean-field model, by the divergence, that works like a converted one."""

import copy
import json

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.analysis import compress, compress_report, prune, std_spectrum, truncate_std
from leanbayes.training import TrainConfig, fit
from tests.analysis.compressible import TOKENS, Mixed, mixed, positive, random_weights, spread, with_std
from tests.networks import SmallNet

X = torch.randn(40, 2, 4, 4, generator=torch.Generator().manual_seed(3))
Y = torch.randint(3, (40,), generator=torch.Generator().manual_seed(4))


def small_net(**options):
    torch.manual_seed(0)
    return spread(lb.bayesianize(SmallNet(), lb.MeanField(**options)))


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def unchanged(model, before):
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_means_stay_and_deviations_are_products():
    model = mixed(bias="same")
    before = snapshot(model)
    small = compress(model, rank=2)
    assert unchanged(model, before)
    for name, weight in random_weights(small).items():
        old = model.get_submodule(name)
        assert type(weight.posterior).__name__ == "KTiedPosterior" and weight.posterior.log_u.shape[1] == 2
        assert torch.equal(weight.mean(), old.mean()) and weight.prior == old.prior
        ratio = weight.posterior.std() / old.posterior.std()
        assert 0.3 < ratio.min() and ratio.max() < 3, name  # a wrong axis would not follow the original
    assert all(layer.std.cumulative[1] > 1 - 1e-9 for layer in std_spectrum(small).layers)
    assert torch.equal(small.output.bias.posterior.std(), model.output.bias.posterior.std())


@pytest.mark.parametrize("out_axis", [0, 1])
def test_a_product_is_found_again_on_either_axis(out_axis):
    kind = nn.ConvTranspose1d if out_axis else nn.Conv1d
    std = positive(8, 5 * 3, 1) - 0.001
    model = lb.bayesianize(kind(5, 8, 3), lb.MeanField())
    with_std(model, std.view(8, 5, 3).movedim(0, out_axis))
    small = compress(model, rank=1)
    torch.testing.assert_close(small.weight.posterior.std(), model.weight.posterior.std(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_report_is_the_divergence_and_below_that_of_the_svd(rank):
    model = mixed()
    small, other = (compress(model, rank, how=how, layer=["conv", "back", "output"]) for how in ("log", "svd"))
    found, svd = ({row.name: row.kl for row in compress_report(m, model).layers} for m in (small, other))
    assert set(found) == ({"conv", "back", "output"} if rank < 3 else {"conv", "back"})
    assert all(kl < svd[name] for name, kl in found.items())
    normal = torch.distributions.Normal
    one, other = (normal(m.conv.weight.mean().detach(), m.conv.weight.posterior.std().detach()) for m in (model, small))
    assert found["conv"] == pytest.approx(float(torch.distributions.kl_divergence(one, other).mean()), rel=1e-4)


def test_counts():
    net = lb.bayesianize(nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 3)), lb.MeanField())
    small = compress(net, rank=2)
    report = compress_report(small, net)
    assert [(row.name, row.rank, row.before, row.after) for row in report.layers] == [
        ("0", 2, 10_000, 5000 + 2 * 150),
        ("2", 2, 300, 150 + 2 * 53),
    ]
    assert report.before == sum(p.numel() for p in net.parameters())
    assert report.after == sum(p.numel() for p in small.parameters()) == lb.summary(small).parameters
    assert json.loads(json.dumps(report.to_dict()))["layers"][0]["rank"] == 2
    assert str(report).splitlines()[0].split() == ["layer", "rank", "KL", "per", "weight", "before", "after"]


def test_what_would_not_be_smaller_and_other_families_stay():
    net = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20), nn.Linear(20, 2), nn.Linear(2, 40))
    net = lb.bayesianize(net, {"0": lb.MeanField(), "1": lb.VarianceLayer(), "2": lb.MeanField(), "3": lb.EMP()})
    small = compress(net, rank=2)
    report = compress_report(small, net)
    assert [row.name for row in report.layers] == ["0"]
    assert report.kept == (("1", "VarianceLayer"), ("2", "MeanField"), ("3", "EMP"))
    assert "as before\n  1 (VarianceLayer)" in str(report)
    asked = compress(net, rank={"2": 2})
    assert [(row.name, row.rank) for row in compress_report(asked, net).layers] == [("2", 2)]


def test_a_pruned_weight_stays():
    model = small_net()
    small = compress(prune(model, sparsity=0.5, layer="hidden"), rank=1)
    assert type(small.hidden.weight.posterior).__name__ == "SparsePosterior"
    assert type(small.conv.weight.posterior).__name__ == "KTiedPosterior"


def test_some_layers():
    model = small_net()
    assert [row.name for row in compress_report(compress(model, 1, layer="hidden"), model).layers] == ["hidden"]
    assert {row.name: row.rank for row in compress_report(compress(model, {"hidden": 3, "conv": 1}), model).layers} == {
        "conv": 1,
        "hidden": 3,
    }


def test_tolerance_gives_the_smallest_rank():
    model = lb.bayesianize(nn.Sequential(nn.Linear(30, 24), nn.Linear(24, 30), nn.Linear(30, 3)), lb.MeanField())
    with_std(model[0], positive(24, 30, 1) - 0.001)
    with_std(model[1], positive(30, 24, 3) - 0.001)
    with_std(model[2], positive(3, 30, 3, noise=1.0))
    small = compress(model, tolerance=1e-4)
    report = compress_report(small, model)
    assert [(row.name, row.rank) for row in report.layers] == [("0", 1), ("1", 3)]
    assert all(row.kl <= 1e-4 for row in report.layers) and report.kept == (("2", "MeanField"),)
    rank2 = compress_report(compress(model, {"1": 2}), model).layers[0]
    assert rank2.kl > 1e-4


def test_a_layer_with_several_weights_has_one_rank():
    model = mixed()
    rows = compress_report(compress(model, tolerance=0.05, layer="attention"), model).layers
    assert len(rows) == 4 and len({row.rank for row in rows}) == 1
    assert sum(row.kl for row in rows) / 4 <= 0.05


@pytest.mark.parametrize("how", ["log", "svd"])
def test_save_load_and_predict(tmp_path, how):
    for model, plain, x in ((mixed(), Mixed(), TOKENS), (small_net(), SmallNet(), X)):
        small = compress(model.eval(), rank=1, how=how)
        lb.save(small, tmp_path / "small.safetensors")
        again = lb.load(tmp_path / "small.safetensors", plain).eval()
        assert unchanged(again, snapshot(small))
        found, expected = (lb.predict(m, x, 8, seed=0).outputs for m in (again, small))
        assert torch.equal(found, expected)
        other = lb.load(tmp_path / "small.safetensors", compress(model, rank=1))
        assert unchanged(other, snapshot(small))


def test_a_file_is_about_half_as_large(tmp_path):
    model = spread(lb.bayesianize(nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 10)), lb.MeanField()))
    small = compress(model, rank=2)
    for name, each in (("before", model), ("after", small)):
        lb.save(each, tmp_path / name)
    sizes = [(tmp_path / name).stat().st_size for name in ("before", "after")]
    assert 0.5 < sizes[1] / sizes[0] < 0.53


def test_it_trains_on():
    model = small_net()
    small = compress(model, rank=2)
    before = snapshot(small)
    history = fit(small, (X, Y), TrainConfig(epochs=30, lr=0.02, batch_size=20))
    assert history["loss"][-1] < history["loss"][0]
    assert not torch.equal(small.conv.weight.posterior.log_u, before["conv.weight.posterior.log_u"])


def test_predictions_follow_the_original():
    """An exact product changes nothing: moments of the outputs agree within four standard errors."""
    model = lb.bayesianize(nn.Linear(30, 6), lb.MeanField(estimator="weight"))
    with_std(model, 10 * positive(6, 30, 2))
    small = compress(model, rank=3)
    x = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    samples = 4000
    one, other = (lb.predict(m, x, samples, seed=s).outputs for m, s in ((model, 0), (small, 1)))
    error = (one.var(0) / samples * 2).sqrt()
    assert ((one.mean(0) - other.mean(0)).abs() < 4 * error).all()
    assert ((one.std(0) / other.std(0) - 1).abs() < 4 / samples**0.5).all()


def test_tied_weights_stay_tied(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(20, 12)
            self.output = nn.Linear(12, 20, bias=False)
            self.output.weight = self.table.weight

        def forward(self, tokens):
            return self.output(self.table(tokens).mean(1))

    torch.manual_seed(0)
    model = spread(lb.bayesianize(Tied(), lb.MeanField(), where=lambda name, module: True))
    small = compress(model, rank=2)
    assert small.output.weight is small.table.weight and small.output.method == small.table.method == lb.KTied(2)
    report = compress_report(small, model)
    assert len(report.layers) == 1 and report.kept == ()
    lb.save(small, tmp_path / "tied.safetensors")
    again = lb.load(tmp_path / "tied.safetensors", Tied())
    tokens = torch.randint(20, (3, 4))
    assert torch.equal(*(lb.predict(m.eval(), tokens, 4, seed=0).outputs for m in (small, again)))


def test_what_is_frozen_stays_frozen_and_settings_are_kept():
    model = lb.bayesianize(SmallNet(), lb.MeanField(prior=lb.Normal(0, 2), estimator="flipout", bias="same"))
    model.hidden.weight.posterior.raw_std.requires_grad_(False)
    model.conv.weight.posterior.loc.requires_grad_(False)
    state = torch.get_rng_state()
    small = compress(model.double(), rank=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert not small.hidden.weight.posterior.log_u.requires_grad and not small.conv.weight.posterior.loc.requires_grad
    assert small.conv.weight.posterior.log_v.requires_grad and small.conv.weight.posterior.log_v.dtype == torch.float64
    assert small.conv.method == lb.KTied(1, prior=lb.Normal(0, 2), estimator="flipout", bias="same")
    assert small.conv.estimator == model.conv.estimator


def test_a_recurrent_layer_with_a_narrow_weight(tmp_path):
    def make():
        return nn.LSTM(1, 6, batch_first=True)

    model = spread(lb.bayesianize(make(), lb.MeanField()))
    small = compress(model, rank=2)
    kinds = {name: type(weight.posterior).__name__ for name, weight in random_weights(small).items()}
    assert kinds == {"weight_ih_l0": "MeanFieldPosterior", "weight_hh_l0": "KTiedPosterior"}
    assert any("under the rank 2, so it is mean-field" in note for _, note in lb.summary(small).notes)
    lb.save(small, tmp_path / "lstm.safetensors")
    assert unchanged(lb.load(tmp_path / "lstm.safetensors", make()), snapshot(small))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_truncated_deviations_are_those_of_numpy(rank):
    model = mixed()
    low = truncate_std(model, rank)
    std = model.back.weight.posterior.std().detach().double()  # [in, out, kernel]
    left, values, right = torch.linalg.svd(std.movedim(1, 0).flatten(1), full_matrices=False)
    expected = (left[:, :rank] * values[:rank] @ right[:rank]).clamp_min(0).view(6, 8, 3).movedim(0, 1)
    found = low.back.weight.posterior.std().double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    assert torch.equal(low.back.weight.mean(), model.back.weight.mean())
    row = next(row for row in compress_report(low, model).layers if row.name == "back")
    assert row.rank is None and row.before == row.after and row.kl > 0


def test_a_clipped_deviation_is_zero_and_harmless():
    model = with_std(lb.bayesianize(nn.Linear(8, 15), lb.MeanField()), positive(15, 8, 1, 1.5))
    low = truncate_std(model, 3)
    assert low.weight.posterior.std().min() < 1e-30
    assert lb.predict(low, torch.randn(3, 8), 4, seed=0).outputs.isfinite().all()
    assert lb.kl(low).isfinite() and compress_report(low, model).layers[0].kl > 1e6


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "either rank=, a number of columns, or tolerance="),
        ({"rank": 1, "tolerance": 0.1}, "either rank="),
        ({"rank": 0}, "rank is a whole number from 1, not 0"),
        ({"rank": {"typo": 1}}, "rank names 'typo', which is not one of the mean-field layers conv, hidden, output"),
        ({"rank": {"output": 9}}, "rank=9 of output exceeds its smaller side of 3"),
        ({"tolerance": 0.0}, "tolerance is a KL in nats per weight above 0"),
        ({"rank": 1, "how": "pca"}, "how is 'log', 'reverse' or 'svd', not 'pca'"),
        ({"rank": 1, "layer": "typo"}, "'typo' matches none of the layers"),
    ],
)
def test_bad_arguments(arguments, message):
    model = small_net()
    before = snapshot(model)
    with pytest.raises(ValueError, match=message):
        compress(model, **arguments)
    assert unchanged(model, before)


def test_models_without_mean_field_layers():
    with pytest.raises(ValueError, match=r"none of the layers is mean-field: conv has KTied, hidden has KTied"):
        compress(lb.bayesianize(SmallNet(), lb.KTied()), rank=1)
    with pytest.raises(ValueError, match="one by one"):
        compress(lb.bayesianize(SmallNet(), lb.DeepEnsemble(of=lb.MeanField(), members=2)), rank=1)
    with pytest.raises(ValueError, match="takes it and its original"):
        compress_report(lb.bayesianize(nn.Linear(3, 2), lb.KTied(1)), small_net())
    copied = copy.deepcopy(small_net())
    assert compress_report(copied, small_net()).layers == ()
