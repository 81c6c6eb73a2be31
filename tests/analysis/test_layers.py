"""Which layers the analyses find, and what they say where there is none."""

import pytest
from torch import nn

import leanbayes as lb
from leanbayes.analysis._layers import noisy_layers
from tests.networks import Recurrent, SmallNet


def names(model, which=None):
    return [layer.name for layer in noisy_layers(model, which)]


def test_layers_are_chosen_by_name_glob_and_selector():
    model = lb.bayesianize(SmallNet(), lb.VariationalDropout())
    assert names(model) == ["conv", "hidden", "output"]
    assert names(model, "hidden") == ["hidden"]
    assert names(model, ["conv", "out*"]) == ["conv", "output"]
    assert names(model, lb.types(nn.Linear)) == ["hidden", "output"]
    assert names(model, lambda name, module: name == "conv") == ["conv"]


def test_a_name_is_the_one_in_the_whole_model():
    inner = lb.bayesianize(SmallNet(), lb.MeanField())
    assert names(nn.ModuleDict({"net": inner})) == ["net.conv", "net.hidden", "net.output"]


def test_a_converted_root_and_layers_with_several_weights():
    assert names(lb.bayesianize(nn.Linear(2, 2), lb.MeanField())) == [""]
    (layer, *_) = noisy_layers(lb.bayesianize(Recurrent(nn.GRU), lb.MeanField(bias="same")))
    assert list(layer.weights) == ["recurrent.weight_ih_l0", "recurrent.weight_hh_l0"]
    attention = lb.bayesianize(nn.MultiheadAttention(4, 2), lb.MeanField())
    (layer,) = noisy_layers(attention)
    assert list(layer.weights) == ["q_proj", "k_proj", "v_proj", "out_proj"]


def test_layers_of_other_families_are_passed_over():
    model = lb.bayesianize(SmallNet(), {"conv": lb.Rank1(), "hidden": lb.KTied(), "output": None})
    assert names(model) == ["hidden"]


@pytest.mark.parametrize(
    ("model", "which", "message"),
    [
        (SmallNet(), None, "no layer with a standard deviation"),
        (lb.bayesianize(SmallNet(), lb.Rank1()), None, "no layer with a standard deviation"),
        (lb.bayesianize(SmallNet(), lb.DeepEnsemble(2, of=lb.MeanField())), None, "ensemble.member_module"),
        (lb.bayesianize(SmallNet(), lb.MeanField()), "dense", "'dense' matches none of the layers conv, hidden, out"),
        (
            lb.bayesianize(SmallNet(), lb.MeanField()),
            ["conv", "typo"],
            "'typo' matches none of the layers conv, hidden",
        ),
    ],
)
def test_errors_say_what_to_do(model, which, message):
    with pytest.raises(ValueError, match=message):
        noisy_layers(model, which)
