"""The networks of the Variance Networks paper have noise where the paper has it."""

import pytest
import torch

import leanbayes as lb
from leanbayes.nn import BayesianLayer, DropoutLayer
from leanbayes.reproduce import execute
from leanbayes.reproduce.recipe import recipes
from leanbayes.reproduce.recipes import _vn_networks as vn
from leanbayes.reproduce.recipes._pruning import share_without_loss
from leanbayes.reproduce.recipes.vn_attack import Members
from leanbayes.reproduce.recipes.vn_kappa import _before_within_after, _histogram

VGG = ["features.block5.conv1", "features.block5.conv2", "features.block5.conv3", "classifier.dense1"]


def noisy_layers(name):
    """The methods of the random layers of a network, by path."""
    kinds = BayesianLayer | DropoutLayer
    return {path: part.method for path, part in vn.VARIANTS[name].build().named_modules() if isinstance(part, kinds)}


@pytest.mark.parametrize("name", ["vgg-log-uniform", "vgg-student", "vgg-ard"])
def test_a_variance_vgg_has_four_noisy_layers_and_draws_its_dropout(name):
    model = vn.VARIANTS[name].build()
    parts = dict(model.named_modules())
    assert [path for path, part in parts.items() if isinstance(part, BayesianLayer)] == VGG
    dropout = [path for path, part in parts.items() if isinstance(part, DropoutLayer)]
    assert len(dropout) == 8 and not any(path.startswith("features.block5") for path in dropout)
    assert sum(p.numel() for p in model.parameters()) == 14_991_950
    named = lb.named(vn.VGG_DROPOUT)
    assert [path for path, part in parts.items() if named(path, part)] == dropout


def test_dropout_can_be_left_out_of_the_samples():
    torch.manual_seed(0)
    model, x = vn.VARIANTS["vgg-log-uniform"].build().eval(), torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        drawn = [model(x) for _ in range(2)]
        with lb.sampling(mean=lb.named(vn.VGG_DROPOUT)):
            weights_alone = [model(x) for _ in range(2)]
        with lb.sampling(mean=True):
            mean = model(x)
    # At the start log alpha is -10: what the weights' noise moves is little beside what dropout moves.
    by_dropout, by_weights = ((a - b).abs().max() for a, b in (drawn, weights_alone))
    assert 0 < by_weights < 0.2 * by_dropout
    torch.testing.assert_close(weights_alone[0], mean, rtol=0, atol=3 * float(by_weights))


def test_the_zero_mean_lenet_has_no_means_in_one_layer_and_dropout_before_it():
    noisy = noisy_layers("mnist-zero-mean-dropout")
    assert list(noisy) == ["drop", "dense1"]
    assert isinstance(noisy["dense1"], lb.VarianceLayer)


def test_the_zero_mean_vgg_is_the_dropout_network_but_for_one_layer():
    noisy, dropout = noisy_layers("vgg-zero-mean"), noisy_layers("vgg-dropout")
    assert isinstance(noisy.pop("classifier.dense1"), lb.VarianceLayer)
    assert list(noisy) == list(dropout)


def test_an_ensemble_averages_probabilities():
    torch.manual_seed(0)
    networks, x = [torch.nn.Linear(3, 4) for _ in range(5)], torch.randn(6, 3)
    expected = torch.stack([network(x).softmax(-1) for network in networks]).mean(0)
    torch.testing.assert_close(Members(networks)(x).exp(), expected)


def test_the_largest_share_without_loss():
    assert share_without_loss(99.2, {"0.5": 99.2, "0.9": 99.1, "0.95": 99.09}) == 0.9
    assert share_without_loss(99.2, {"0.5": 99.2, "0.9": 99.0, "0.95": 99.2}) == 0.5
    assert share_without_loss(99.2, {"0.5": 98.0}) == 0


class TestKappa:
    def test_all_weights_are_in_the_histogram(self):
        assert sum(_histogram(torch.tensor([0.0, 1e-30, 1e-3, 1.0, 30.0, 1e9]))) == 6

    def test_three_moments_of_the_training(self):
        assert _before_within_after([99.0, 98.0, 60.0, 40.0, 20.0]) == [0, 3, 4]
        assert _before_within_after([99.0, 98.0]) == [0, 1]
        assert _before_within_after([99.0]) == [0]


@pytest.mark.slow
def test_a_training_that_another_recipe_began_has_the_curves(tmp_path):
    # vn-samples trains a network of which vn-mnist draws the learning curve.
    for id in ("vn-samples", "vn-mnist"):
        result = execute(recipes()[id], preset="smoke", work=tmp_path, progress=False)
    curves = result["figure"]["curves"]
    assert curves["epoch"] == [1, 2] and all(len(values) == 2 for values in curves.values())
