"""TrainConfig: refuses what makes no sense, and goes through JSON and YAML."""

import dataclasses
import json

import pytest

from leanbayes.training import TrainConfig

BAD = [
    ({"epochs": 0}, "epochs"),
    ({"batch_size": 1.5}, "batch_size"),
    ({"lr": -1.0}, "lr"),
    ({"lr": float("nan")}, "lr"),
    ({"optimizer": "lion"}, "'adam', 'adamw', 'sgd'"),
    ({"momentum": 1.5}, "momentum"),
    ({"betas": (0.9, 1.0)}, "betas"),
    ({"betas": "0.9"}, "betas"),
    ({"schedule": "steps"}, "milestones"),
    ({"milestones": ("ten",)}, "milestones"),
    ({"schedule": "poly"}, "schedule"),
    ({"final_lr": 2}, "final_lr"),
    ({"kl_weight": -0.1}, "kl_weight"),
    ({"samples": 0}, "samples"),
    ({"components": "some"}, "components"),
    ({"mixture": "all"}, "mixture"),
    ({"tile": "yes"}, "tile"),
    ({"clip": 0}, "clip"),
    ({"accumulate": 0}, "accumulate"),
    ({"patience": 0}, "patience"),
    ({"precision": "16"}, "precision"),
    ({"device": "tpu"}, "device"),
    ({"strategy": "dp"}, "strategy"),
    ({"strategy": "fsdp", "device": "cpu"}, "needs GPUs"),
    ({"nesterov": True, "momentum": 0.0}, "nesterov"),
    ({"seed": -1}, "seed"),
    ({"checkpoint_steps": 0}, "checkpoint_steps"),
]


@pytest.mark.parametrize("arguments, message", BAD, ids=lambda value: str(value)[:40])
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**arguments)


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().lr = 1.0  # pyright: ignore


def test_goes_through_json():
    config = TrainConfig(schedule="steps", milestones=(1, 2.5), clip=1.0, compile="eager")
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("name, text", [("c.json", '{"lr": 1e-3, "epochs": 2}'), ("c.yaml", "lr: 1e-3\nepochs: 2\n")])
def test_loads_files(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert TrainConfig.load(tmp_path / name) == TrainConfig(lr=1e-3, epochs=2)


def test_says_what_it_does_not_know(tmp_path):
    with pytest.raises(ValueError, match="no 'learning_rate'; it has epochs, batch_size, lr"):
        TrainConfig.from_dict({"learning_rate": 1})
    (tmp_path / "c.yaml").write_text("- 1\n")
    with pytest.raises(ValueError, match="names and values"):
        TrainConfig.load(tmp_path / "c.yaml")
    with pytest.raises(ValueError, match="lr"):
        TrainConfig.from_dict({"lr": "fast"})


def test_what_may_change_between_parts_of_a_run():
    config = TrainConfig()
    assert TrainConfig(epochs=99, patience=3, device="cpu").differences(config) == []
    assert TrainConfig(lr=0.1, seed=3).differences(config) == ["lr", "seed"]
    cosine = TrainConfig(schedule="cosine")
    assert TrainConfig(schedule="cosine", epochs=99).differences(cosine) == ["epochs"]


def test_a_run_can_go_on_under_the_default_precision():
    assert TrainConfig(precision="32").differences(TrainConfig()) == []
    assert TrainConfig(precision="bf16-mixed").differences(TrainConfig()) == ["precision"]
