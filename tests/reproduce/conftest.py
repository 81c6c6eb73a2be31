"""Small recipes that the tests of reproduction share."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.reproduce import Check, Outcome, Recipe, Row, Run, recipe
from leanbayes.training import TrainConfig


def examples(rows=64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 2, generator=generator)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def network():
    return lb.bayesianize(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)), lb.MeanField())


def make_recipe(id="vn-toy", measure=None, draw=None, **settings):
    """A recipe whose measure is quick; `measured` counts its work."""
    settings = {"epochs": 2, "limit": 0.5} | settings
    return Recipe(
        id,
        "A title",
        presets={name: settings for name in ("smoke", "short", "paper")},
        seeds={name: (0, 1) for name in ("smoke", "short", "paper")},
        measure=measure or quick,
        draw=draw,
    )


def quick(run):
    values = [run.unit(f"seed{seed}", lambda s=seed: 0.5 + s / 10) for seed in run.seeds]
    check = Check("the first is below the limit", values[0] < run.settings["limit"], "it is not below")
    return Outcome([Row("first", "accuracy", 0.9, values)], [check], {"values": values}, ["a note"])


@pytest.fixture
def make_run(tmp_path):
    def make(id="vn-toy", *, settings=None, **options):
        preset = options.pop("preset", "short")
        seeds = options.pop("seeds", (0,))
        folder = options.pop("folder", tmp_path / "work")
        return Run(id, preset, settings or {}, seeds, folder, **options)

    return make


@pytest.fixture
def train():
    """A training by `Run.trained`, with some of its settings changed."""

    def do(run, key="net", seed=0, *, callbacks=(), build=network, data=None, **changes):
        settings = {"epochs": 4, "batch_size": 16, "lr": 0.05, "schedule": "linear", "log_every": 100}
        config = TrainConfig(**(settings | changes))
        return run.trained(key, seed, build, data or examples(), config, callbacks=callbacks)

    return do


@pytest.fixture
def only(monkeypatch):
    """Puts recipes in the place of the registered ones."""

    def use(*given):
        monkeypatch.setattr(recipe, "_RECIPES", {one.id: one for one in given})
        monkeypatch.setattr(recipe, "_modules", lambda: ())

    return use
