"""Selectors, alone and combined."""

import pickle

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.models import create
from tests.networks import NETWORKS, SmallNet, Translator, build


def chosen(model, selector):
    return [name for name, module in model.named_modules() if selector(name, module)]


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(2, 3, 1)
        self.block1 = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
        self.block10 = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.head = nn.Linear(3, 2)


def test_globs_match_whole_names():
    model = Nested()
    assert chosen(model, lb.named("block1.*")) == ["block1.0", "block1.1"]
    assert chosen(model, lb.named("block1?.0", "head")) == ["block10.0", "head"]
    assert chosen(model, lb.named("block[12].0")) == ["block1.0"]
    assert chosen(model, lb.named("lock")) == []
    assert chosen(model, lb.named("")) == [""]


def test_types_take_subclasses():
    class Mine(nn.Linear):
        pass

    model = nn.Sequential(Mine(2, 2), nn.Linear(2, 2), nn.Conv1d(2, 2, 1))
    assert chosen(model, lb.types(nn.Linear)) == ["0", "1"]
    assert chosen(model, lb.types(Mine, nn.Conv1d)) == ["0", "2"]


def test_norms():
    model = nn.Sequential(
        nn.BatchNorm1d(2),
        nn.BatchNorm2d(2),
        nn.BatchNorm3d(2),
        nn.SyncBatchNorm(2),
        nn.LayerNorm(2),
        nn.RMSNorm(2),
        nn.GroupNorm(1, 2),
        nn.InstanceNorm1d(2),
        nn.InstanceNorm2d(2),
        nn.InstanceNorm3d(2),
        nn.Linear(2, 2),
    )
    assert chosen(model, lb.norms()) == [str(i) for i in range(10)]


def test_combinations():
    model = Nested()
    dense, first = lb.types(nn.Linear), lb.named("block1.*", "block10.*")
    assert chosen(model, dense & first) == ["block1.0", "block10.0"]
    assert chosen(model, dense & ~first) == ["head"]
    assert chosen(model, lb.norms() | lb.named("head")) == ["block1.1", "block10.1", "head"]
    assert chosen(model, ~(dense | lb.norms()) & lb.named("stem")) == ["stem"]
    assert chosen(model, (dense | lb.norms()) & first & ~lb.types(nn.LayerNorm)) == [
        "block1.0",
        "block10.0",
        "block10.1",
    ]


def test_their_text_says_what_they_select():
    selector = (lb.norms() | lb.named("fc", "layer4.*")) & ~lb.types(nn.LayerNorm)
    assert repr(selector) == "((norms() | named('fc', 'layer4.*')) & ~types(LayerNorm))"


def test_they_can_be_pickled():
    selector = (lb.norms() | lb.named("0")) & ~lb.types(nn.LayerNorm)
    again = pickle.loads(pickle.dumps(selector))
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.BatchNorm1d(2))
    assert chosen(model, again) == chosen(model, selector) == ["0", "2"]


def test_a_converted_layer_counts_as_what_it_was():
    model = lb.bayesianize(SmallNet(), lb.MeanField())
    assert chosen(model, lb.types(nn.Conv2d)) == ["conv"]
    patched = lb.bayesianize(SmallNet(), lb.EMP())
    assert "norm" in chosen(patched, lb.norms())


@pytest.mark.parametrize("call", [lambda: lb.named(), lambda: lb.named(3), lambda: lb.types(), lambda: lb.types("x")])
def test_bad_arguments(call):
    with pytest.raises(TypeError, match="takes one or more"):
        call()


OUTPUTS = {
    "small": "output",
    "lenet5": "dense2",
    "resnet18": "fc",
    "lstm": "output",
    "gru": "output",
    "rnn": "output",
    "cells": "output",
    "transformer": "output",
    "transformer_time_first": "output",
    "vit": "model.classifier",
    "bert": "model.cls.predictions.decoder",
    "gpt2": "model.lm_head",
    "hf_resnet": "model.classifier.1",
    "convnext": "model.classifier",
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_output_layer(name):
    model, _ = build(name)
    assert chosen(model, lb.output(model)) == [OUTPUTS[name]]
    converted = lb.bayesianize(model, lb.MeanField())
    assert OUTPUTS[name] in chosen(converted, lb.output(converted))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mlp", "output"), ("vgg_like", None), ("wide_resnet", "fc"), ("pyramidnet", "fc"), ("text_lstm", "output")],
)
def test_the_output_layer_of_models_of_this_package(name, expected):
    with torch.device("meta"):
        model = create(name)
    (found,) = chosen(model, lb.output(model))
    last = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)][-1]
    assert found == (expected or last) == last


def test_an_output_that_is_a_convolution_or_the_model_itself():
    segmentation = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))
    assert chosen(segmentation, lb.output(segmentation)) == ["3"]
    assert chosen(nn.Linear(2, 3), lb.output(nn.Linear(2, 3))) == [""]


def test_no_output_where_a_norm_follows_every_layer():
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    with pytest.raises(ValueError, match=r"no output layer was found .* name it with lb.named"):
        lb.output(model)
    encoder = Translator().transformer
    with pytest.raises(ValueError, match="no output layer was found"):
        lb.output(encoder)
