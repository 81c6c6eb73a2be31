"""Schedules against values worked out by hand, and in training."""

import math

import pytest

from leanbayes.training import TrainConfig, fit
from leanbayes.training.schedules import LearningRate, kl_weight, learning_rate
from tests.training.problems import config, data, network


def test_warm_up_ends_at_one():
    rate = LearningRate("constant", steps=10, warmup=4)
    assert [rate(step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_and_cosine_go_down_to_the_end():
    linear = LearningRate("linear", steps=10, warmup=2, final=0.1)
    assert linear(2) == 1.0
    assert linear(6) == pytest.approx(0.55)
    assert linear(10) == linear(99) == pytest.approx(0.1)
    cosine = LearningRate("cosine", steps=8)
    assert [cosine(step) for step in (0, 2, 4, 8)] == pytest.approx([1.0, (1 + math.sqrt(0.5)) / 2, 0.5, 0.0])


def test_steps_multiply_at_milestones():
    rate = learning_rate(TrainConfig(schedule="steps", milestones=(1, 2), decay=0.2), steps_per_epoch=10)
    assert [rate(step) for step in (0, 9, 10, 19, 20)] == pytest.approx([1, 1, 0.2, 0.2, 0.04])


def test_fractions_of_epochs():
    rate = learning_rate(TrainConfig(epochs=4, warmup=0.5, schedule="linear"), steps_per_epoch=8)
    assert (rate.warmup, rate.steps) == (4, 32)


def test_kl_weight_rises_in_optimiser_steps():
    constant = kl_weight(TrainConfig(kl_weight=0.3), 10)
    assert constant(0) == constant(99) == 0.3
    rising = kl_weight(TrainConfig(kl_weight=2.0, anneal=0.4), 10)
    assert [rising(step) for step in (0, 1, 4, 9)] == [0.0, 0.5, 2.0, 2.0]
    stairs = kl_weight(TrainConfig(anneal=1.0, anneal_every=5), 10)
    assert [stairs(step) for step in (0, 4, 5, 9, 10)] == pytest.approx([0, 0, 0.5, 0.5, 1])


def test_training_follows_them():
    settings = config(schedule="linear", warmup=1.0, anneal=2.0, epochs=3, accumulate=2, batch_size=24)
    history = fit(network(), data(), settings)  # 4 batches, 2 optimiser steps in an epoch
    assert history["step"] == [2, 4, 6]
    # The last step of each epoch: numbers 1, 3 and 5 of 6, two of them warm-up.
    assert history["lr"] == pytest.approx([0.01, 0.01 * 0.75, 0.01 * 0.25])
    assert history["kl_weight"] == pytest.approx([0.25, 0.75, 1.0])
