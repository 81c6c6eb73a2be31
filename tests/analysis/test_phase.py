"""phases: every score against a model in which the weights are replaced by hand."""

import copy
import json
import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.analysis import PhaseReport, phases
from leanbayes.analysis._layers import noisy_layers
from leanbayes.analysis.phase import permuted_deviations
from tests.analysis.problems import CLASSES, groups, variance_network
from tests.networks import SmallNet

X = torch.randn(40, 2, 4, 4, generator=torch.Generator().manual_seed(3))
Y = torch.randint(3, (40,), generator=torch.Generator().manual_seed(4))


def noisy(method=None):
    torch.manual_seed(0)
    return lb.bayesianize(SmallNet(), method or lb.MeanField(init_std=0.3))


def changed(model, name, change):
    """A copy of the model with one weight's posterior changed in place."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        change(model.get_submodule(name).weight.posterior)
    return model


def test_mean_propagation_is_the_point_estimate():
    model = noisy()
    scores = phases(model, X, Y, samples=3).together.mean
    outputs = lb.point_estimate(model).eval()(X)
    assert scores.accuracy == pytest.approx((outputs.argmax(1) == Y).double().mean())
    assert scores.nll == pytest.approx(nn.functional.cross_entropy(outputs, Y).item(), rel=1e-5)
    assert (scores.sample_accuracy, scores.sample_nll) == (scores.accuracy, scores.nll)


def test_averages_are_of_probabilities_over_the_samples():
    model = noisy()
    scores = phases(model, X, Y, samples=7, batch_size=40).drawn
    probs = lb.predict(model, X, 7, seed=lb.training.seeds.derive(0, "score", 0)).outputs.softmax(-1)
    right = [(p.argmax(1) == Y).double().mean().item() for p in probs]
    losses = [nn.functional.nll_loss(p.log(), Y).item() for p in probs]
    assert scores.sample_accuracy == pytest.approx(sum(right) / 7)
    assert scores.sample_nll == pytest.approx(sum(losses) / 7, rel=1e-5)
    assert scores.accuracy == pytest.approx((probs.mean(0).argmax(1) == Y).double().mean())
    assert scores.nll == pytest.approx(nn.functional.nll_loss(probs.mean(0).log(), Y).item(), rel=1e-5)


@pytest.mark.parametrize("name", ["conv", "hidden"])
def test_the_means_of_one_layer_leave_the_noise_of_the_others(name):
    model = noisy()
    (row,) = phases(model, X, Y, samples=6, layers=name).layers
    assert row.name == name
    # By Jensen's inequality, equal only where all samples are.
    assert row.scores.mean.sample_nll > row.scores.mean.nll + 1e-3
    for other in {"conv", "hidden", "output"} - {name}:
        model = changed(model, other, lambda posterior: posterior.raw_std.fill_(-torch.inf))
    alone = phases(model, X, Y, samples=6, layers=name)
    assert alone.layers[0].scores.mean.nll == pytest.approx(alone.together.mean.nll, rel=1e-6)
    assert alone.drawn.sample_nll > alone.drawn.nll + 1e-3


@pytest.mark.parametrize("name", ["conv", "hidden"])
def test_the_noise_of_one_layer_is_what_it_draws_with_its_means_at_zero(name):
    model = noisy()
    (row,) = phases(model, X, Y, samples=6, layers=name).layers
    without = phases(changed(model, name, lambda posterior: posterior.loc.zero_()), X, Y, samples=6).drawn
    assert row.scores.zero_mean.nll == pytest.approx(without.nll, rel=1e-4)
    assert row.scores.zero_mean.sample_nll == pytest.approx(without.sample_nll, rel=1e-4)


def test_permuted_deviations_are_the_same_numbers_elsewhere():
    model = noisy(lb.KTied(rank=1))
    layers = noisy_layers(model, "hidden")
    weight = model.hidden.weight
    before, state = weight.posterior, {key: value.clone() for key, value in model.state_dict().items()}
    std = weight.posterior.std().detach()
    with permuted_deviations(layers, seed=0):
        moments = weight.moments()
        assert moments.mean is None
        shuffled = moments.var.sqrt()
        assert not torch.equal(shuffled, std)
        torch.testing.assert_close(shuffled.flatten().sort().values, std.flatten().sort().values)
    assert weight.posterior is before
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_an_error_restores_the_weights_too():
    model = variance_network()
    before = model[0].weight.posterior
    with pytest.raises(RuntimeError):
        phases(model, torch.randn(5, 3), torch.zeros(5, dtype=torch.long))
    assert model[0].weight.posterior is before


def test_a_variance_network_is_told_by_its_scores():
    model = variance_network()
    report = phases(model, *groups())
    chance = 1.5 / CLASSES
    assert report.drawn.accuracy > 0.98 and report.together.zero_mean == report.drawn
    assert report.together.mean.accuracy < chance
    assert report.together.permuted.accuracy < 0.6
    assert report.layers[0].scores == report.together


def test_model_and_generators_are_left_alone():
    model = noisy().train()
    model.norm.eval()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = phases(model, X, Y, samples=3, seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert model.training and model.conv.training and not model.norm.training
    assert phases(model, X, Y, samples=3, seed=1) == first
    assert phases(model, X, Y, samples=3, seed=2) != first


def test_reports_are_json_and_text():
    model = lb.bayesianize(SmallNet(), {"conv": lb.VariationalDropout(), "hidden": lb.VarianceLayer(), "output": None})
    report = phases(model, X, Y, samples=2)
    assert isinstance(report, PhaseReport)
    values = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert [layer["log_alpha"] for layer in values["layers"]] == [-5.0, None]
    assert values["layers"][1]["scores"]["mean"]["accuracy"] == report.layers[1].scores.mean.accuracy
    lines = str(report).splitlines()
    assert lines[0].startswith("40 examples: accuracy ")
    assert [line.split()[0] for line in lines[3:]] == ["all", "conv", "hidden"]


def test_labels_are_checked():
    with pytest.raises(ValueError, match="one class label for each of 40 inputs"):
        phases(noisy(), X, Y[:3])


def test_the_noise_of_other_methods_stays_beside_the_means_of_a_layer():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 30), nn.Softplus(), nn.Linear(30, 3))
    model = lb.bayesianize(net, {"0": lb.MCDropout(p=0.5), "2": lb.VariationalDropout()})
    report = phases(model, torch.randn(50, 6), torch.randint(3, (50,)), samples=8)
    of_layer, together = report.layers[0].scores.mean, report.together.mean
    assert of_layer.nll < of_layer.sample_nll  # an average over draws is better than they are
    assert together.nll == pytest.approx(together.sample_nll)


def test_tied_layers_are_replaced_together():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Softplus(), nn.Linear(4, 4, bias=False))
    net[2].weight = net[0].weight
    model = lb.bayesianize(net, lb.VariationalDropout(init_log_alpha=-20))
    x, y = torch.randn(30, 4), torch.randint(4, (30,))
    report = phases(model, x, y, samples=3)
    # Noise alone is next to nothing here, so that both layers give zeros and all classes are equally likely.
    assert report.layers[0].scores.zero_mean.nll == pytest.approx(math.log(4), abs=1e-3)


@pytest.mark.parametrize("pruned", [False, True])
def test_half_precision_and_kinds_of_noise(pruned):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(9, 6)
            self.output = nn.Linear(6, 3)

        def forward(self, x):
            return self.output(self.words(x).mean(1))

    model = lb.bayesianize(Words(), lb.VarianceLayer(noise="bernoulli"), where=lb.types(nn.Embedding)).bfloat16()
    if pruned:
        model = lb.analysis.prune(model, sparsity=0.5)
    (layer,) = noisy_layers(model)
    with permuted_deviations([layer], 0):
        assert layer.weights["words"].posterior.kind == "bernoulli"
    report = phases(model, torch.randint(9, (20, 5)), torch.randint(3, (20,)), samples=2)
    assert math.isfinite(report.layers[0].scores.permuted.nll)


def test_labels_beyond_the_classes_and_models_of_one_output_are_refused():
    model = lb.bayesianize(nn.Linear(6, 3), lb.VariationalDropout())
    with pytest.raises(ValueError, match="labels must be from 0 to 2 for 3 outputs, but they reach from 0 to 9"):
        phases(model, torch.randn(4, 6), torch.tensor([0, 1, 2, 9]))
    one = lb.bayesianize(nn.Linear(6, 1), lb.VariationalDropout())
    with pytest.raises(ValueError, match="two classes or more"):
        phases(one, torch.randn(4, 6), torch.zeros(4, dtype=torch.long))
    small = torch.tensor([0, 1, 2, 0], dtype=torch.uint8)
    assert phases(model, torch.randn(4, 6), small, samples=2).examples == 4
