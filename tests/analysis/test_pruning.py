"""prune: the right weights are gone, predictions are those of the zeroed dense model, and the model is smaller."""

import copy
import json

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.analysis import curvature, log_alpha, mmd_bound, phases, prune, prune_report, pruning_curve
from tests.analysis.problems import groups, variance_network
from tests.networks import SmallNet

X = torch.randn(20, 2, 4, 4, generator=torch.Generator().manual_seed(3))
Y = torch.randint(3, (20,), generator=torch.Generator().manual_seed(4))


def noisy(method=None):
    torch.manual_seed(0)
    return lb.bayesianize(SmallNet(), method or lb.VarianceLayer())


def zeroed(model, name, keep):
    """The dense model with some weights of a variance layer set to zero by hand, in place."""
    with torch.no_grad():
        model.get_submodule(name).weight.posterior.signed_std.mul_(keep)
    return model


def test_the_smallest_deviations_go():
    model = noisy()
    small = prune(model, sparsity=0.75, layer="hidden")
    std, left = (m.hidden.weight.posterior.std() for m in (model, small))
    assert int((left > 0).sum()) == 96 and std[left == 0].max() < std[left > 0].min()
    torch.testing.assert_close(left[left > 0], std[left > 0])
    assert torch.equal(small.output.weight.posterior.std(), model.output.weight.posterior.std())


def test_a_threshold_keeps_what_reaches_it():
    model = noisy()
    small = prune(model, threshold=0.1)
    for name in ("conv", "hidden", "output"):
        std, left = (m.get_submodule(name).weight.posterior.std() for m in (model, small))
        torch.testing.assert_close(left, std * (std >= 0.1))


def test_kappa_chooses_by_curvature():
    model = noisy()
    kappa = curvature(model, X, Y, layer="output")
    left = prune(model, sparsity=0.5, by="kappa", kappa=kappa, layer="output").output.weight.posterior.std() > 0
    assert kappa["output"][left].min() >= kappa["output"][~left].max() and int(left.sum()) == 9


@pytest.mark.parametrize("estimator", ["local", "weight", "flipout"])
def test_predictions_are_those_of_the_zeroed_dense_model(estimator):
    model = noisy()
    small = prune(model, sparsity=0.5)
    with lb.sampling(estimator=estimator):
        found = lb.predict(small, X, 400, seed=0).probs
        for name in ("conv", "hidden", "output"):
            zeroed(model, name, small.get_submodule(name).weight.posterior.std() > 0)
        wanted = lb.predict(model, X, 400, seed=0)
    if estimator == "local":
        # It is drawn for outputs, the same for both.
        torch.testing.assert_close(found, wanted.probs)
    else:
        error = wanted.outputs.softmax(-1).std(0) / 400**0.5
        assert ((found - wanted.probs).abs() < 5 * 2**0.5 * error + 1e-6).all()


@pytest.mark.parametrize("method", [lb.VarianceLayer(), lb.VariationalDropout(), lb.KTied(rank=1), lb.MeanField()])
def test_the_model_is_smaller_and_the_report_counts_it(method):
    model = noisy(method)
    small = prune(model, sparsity=0.9, layer="hidden")
    report = prune_report(small)
    (row,) = report.layers
    assert (row.name, row.weights, row.kept) == ("hidden", 384, 38)
    assert report.sparsity == 1 - 38 / 384

    def size(parameter):
        return sum(t.numel() * t.element_size() for t in parameter.state_dict().values())

    assert (row.dense_bytes, row.bytes) == (size(model.hidden.weight), size(small.hidden.weight))
    assert row.bytes < row.dense_bytes
    assert lb.summary(small).bytes == lb.summary(model).bytes - row.dense_bytes + row.bytes
    assert json.loads(json.dumps(report.to_dict()))["layers"][0]["kept"] == 38
    assert str(report).splitlines()[1].startswith("hidden")


def test_the_dense_model_stays_as_it_is():
    model = noisy(lb.VariationalDropout())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    prune(model, sparsity=0.9)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_all_noise_gone_and_means_kept_is_the_point_estimate():
    model = noisy(lb.VariationalDropout(init_log_alpha=1)).eval()
    quiet = prune(model, threshold=torch.inf, keep_means=True)
    torch.testing.assert_close(lb.predict(quiet, X, 3, seed=0).outputs[2], lb.point_estimate(model)(X).detach())
    curve = pruning_curve(model, X, Y, thresholds=[torch.inf], keep_means=True)
    assert curve.points[0].score.nll == pytest.approx(phases(model, X, Y).together.mean.nll, rel=1e-5)


@pytest.mark.parametrize("keep_means", [False, True])
@pytest.mark.parametrize("into", ["plain", "dense", "pruned"])
def test_a_pruned_model_is_saved_and_loaded(tmp_path, keep_means, into):
    small = prune(noisy(lb.VariationalDropout()), sparsity=0.8, layer=["hidden", "conv"], keep_means=keep_means)
    lb.save(small, tmp_path / "small.safetensors")
    other = noisy(lb.VariationalDropout())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    targets = {"plain": SmallNet(), "dense": other, "pruned": copy.deepcopy(small)}
    again = lb.load(tmp_path / "small.safetensors", targets[into])
    assert prune_report(again) == prune_report(small)
    assert torch.equal(lb.predict(again, X, 4, seed=0).outputs, lb.predict(small, X, 4, seed=0).outputs)
    assert lb.kl(again) == lb.kl(small)
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in small.parameters()]


@pytest.mark.parametrize("converted", [False, True])
def test_a_pruned_model_that_does_not_fit_leaves_the_other_as_it_was(tmp_path, converted):
    lb.save(prune(noisy(), sparsity=0.5), tmp_path / "small.safetensors")
    narrow = SmallNet()
    narrow.hidden = nn.Linear(64, 2)
    if converted:
        lb.bayesianize(narrow, lb.VarianceLayer())
    state = {name: value.clone() for name, value in narrow.state_dict().items()}
    with pytest.raises(ValueError, match="hidden.weight is pruned in the file and has fewer entries in the model"):
        lb.load(tmp_path / "small.safetensors", narrow)
    assert narrow.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in narrow.state_dict().items())


@pytest.mark.parametrize("keep_means", [False, True])
def test_a_pruned_model_is_trained_on(keep_means):
    small = prune(noisy(lb.VariationalDropout()), sparsity=0.8, layer=["hidden", "conv"], keep_means=keep_means)
    elbo = lb.ELBO(small, dataset_size=len(X))
    optimizer = torch.optim.Adam(lb.param_groups(elbo, lr=1e-2, weight_decay=0))
    before = small.hidden.weight.posterior.kept.loc.detach().clone()
    pruned = small.hidden.weight.posterior.std() == 0
    points = small.hidden.weight.mean()[pruned]
    elbo(X, Y).loss.backward()
    optimizer.step()
    assert not torch.equal(small.hidden.weight.posterior.kept.loc, before)
    assert torch.equal(small.hidden.weight.mean()[pruned], points) and points.any() == keep_means


def test_other_analyses_take_a_pruned_model():
    small = prune(noisy(lb.VariationalDropout(init_log_alpha=3)), sparsity=0.5, layer="hidden")
    assert {name: value.item() for name, value in log_alpha(small).items()} == dict.fromkeys(
        ("conv", "hidden", "output"), 3.0
    )
    assert mmd_bound(small)["hidden"].weights == 192
    assert phases(small, X, Y, samples=2).examples == 20
    assert not lb.point_estimate(small).hidden.weight[small.hidden.weight.posterior.std() == 0].any()


def test_curve_of_a_network_that_needs_one_weight_in_four():
    x, y = groups()
    curve = pruning_curve(variance_network(), x, y, sparsities=[0, 0.75, 0.9, 0.999])
    accuracies = [point.score.accuracy for point in curve.points]
    assert curve.points[0].score == curve.dense and curve.dense.accuracy > 0.98
    # Inputs of a class need one hidden unit alone: the three quarters of the weights that lead elsewhere can go.
    assert accuracies[1] >= curve.dense.accuracy > accuracies[2] > accuracies[3]
    assert [point.sparsity for point in curve.points] == pytest.approx([0, 0.75, 0.898, 1.0], abs=0.01)
    by_threshold = pruning_curve(variance_network(), x, y, thresholds=[1.0])
    assert by_threshold.points[0].score == curve.points[1].score and by_threshold.points[0].level == 1.0
    assert json.loads(json.dumps(curve.to_dict(), allow_nan=False))["points"][1]["sparsity"] == 0.75
    assert len(str(curve).splitlines()) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either sparsity=.* or threshold="),
        ({"sparsity": 0.5, "threshold": 0.1}, "either sparsity=.* or threshold="),
        ({"sparsity": 1.0}, "from 0 to below 1, not 1.0"),
        ({"sparsity": 0.5, "by": "mean"}, "by is 'sigma' or 'kappa', not 'mean'"),
        ({"sparsity": 0.5, "by": "kappa"}, "go together"),
        ({"sparsity": 0.5, "kappa": {}}, "go together"),
        ({"sparsity": 0.5, "by": "kappa", "kappa": {}}, "kappa holds nothing for the layer conv"),
    ],
)
def test_errors_say_what_to_do(options, message):
    with pytest.raises(ValueError, match=message):
        prune(noisy(), **options)


def test_what_is_pruned_is_not_pruned_again():
    with pytest.raises(ValueError, match="conv is already pruned"):
        prune(prune(noisy(), sparsity=0.5), sparsity=0.8)
    with pytest.raises(ValueError, match="has no pruned layer"):
        prune_report(noisy())
    with pytest.raises(ValueError, match="either sparsities= or thresholds="):
        pruning_curve(noisy(), X, Y)


def test_frozen_means_stay_frozen_and_keep_their_learning_rate():
    model = lb.bayesianize(nn.Linear(10, 3), lb.MeanField(), freeze=True)
    small = prune(model, sparsity=0.5)
    trained = {name: p.requires_grad for name, p in small.named_parameters()}
    assert trained == {"weight.posterior.kept.loc": False, "weight.posterior.kept.raw_std": True, "bias": False}
    small = prune(lb.bayesianize(nn.Linear(10, 3), lb.MeanField()), sparsity=0.5)
    rates = {id(p): group["lr"] for group in lb.param_groups(small, 1e-3, variational_lr=0.1) for p in group["params"]}
    kept = small.weight.posterior.kept
    assert (rates[id(kept.loc)], rates[id(kept.raw_std)]) == (1e-3, 0.1)


def test_a_curve_counts_the_chosen_layers_alone():
    net = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3))
    before = prune(lb.bayesianize(net, lb.MeanField()), sparsity=0.9, layer="0")
    curve = pruning_curve(before, torch.randn(5, 20), torch.randint(3, (5,)), sparsities=[0.5], layer="2", samples=2)
    assert curve.points[0].sparsity == pytest.approx(0.5)


def test_some_weight_is_left_below_a_sparsity_of_one():
    small = prune(lb.bayesianize(nn.Linear(10, 3), lb.MeanField()), sparsity=0.999)
    assert prune_report(small).layers[0].kept == 1


def test_sizes_follow_the_precision_and_modes_are_kept():
    model = lb.bayesianize(nn.Linear(10, 3), lb.MeanField()).eval()
    small = prune(model, sparsity=0.5)
    assert not any(part.training for part in small.modules())
    full, half = (prune_report(net).layers[0].dense_bytes for net in (small, copy.deepcopy(small).bfloat16()))
    assert full == 2 * half == 60 * 4


@pytest.mark.parametrize(
    "kappa", [torch.rand(5, 10), torch.rand(30, 10), torch.full((20, 10), torch.nan)], ids=["small", "large", "nan"]
)
def test_kappa_has_to_fit_the_weight(kappa):
    model = lb.bayesianize(nn.Linear(10, 20), lb.MeanField())
    with pytest.raises(ValueError, match=r"must be finite and shaped \(20, 10\) like its weight"):
        prune(model, sparsity=0.5, by="kappa", kappa={"": kappa})
