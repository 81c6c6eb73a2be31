"""Patches of a trained network, tuned alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import leanbayes as lb
from leanbayes.analysis import fit_temperature
from leanbayes.data import generate, tiny_imagenet
from leanbayes.reproduce import PartDone
from leanbayes.reproduce.recipe import recipes
from leanbayes.reproduce.recipes import _emp_finetune as tune
from leanbayes.reproduce.recipes import _emp_networks as emp
from leanbayes.reproduce.recipes import emp_finetune
from leanbayes.reproduce.run import Run

WAY = tune.Tuning("emp", 0.1, 0.05)


def make_run(folder, data=None, preset="smoke", **changes):
    settings = recipes()["emp-finetune"].presets["smoke"] | changes
    return Run("emp-finetune", preset, settings, (0,), Path(folder), data=data, progress=False)


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A run whose plain network is trained once."""
    return make_run(tmp_path_factory.mktemp("finetune"))


def test_patches_start_around_the_trained_network(one):
    plain, seconds = tune.trained(one, 0)
    model = tune.patched(one, WAY, 0)
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad(), lb.sampling(mean=True):
        torch.testing.assert_close(model(x), plain(x))
    assert seconds > 0
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {
        name for name, _ in model.named_parameters() if name.endswith("copies")
    }


@pytest.mark.parametrize("way", [WAY, replace(WAY, method="ecmp"), replace(WAY, copies=1), replace(WAY, known=True)])
def test_only_patches_are_tuned(one, way):
    plain, before = dict(tune.trained(one, 0)[0].named_parameters()), dict(tune.patched(one, way, 0).named_parameters())
    model, _ = tune.tuned(one, way, 0)
    for name, parameter in model.named_parameters():
        if name.endswith("copies"):
            assert len(parameter) == way.copies and not torch.equal(parameter, before[name]), name
        else:
            assert torch.equal(parameter, plain[name]), name


def test_nothing_is_trained_on_what_is_held_out(one, monkeypatch):
    used = {}

    def note(self, key, seed, build, data, *_, **__):
        used.setdefault(key, data[0])
        return torch.nn.Identity(), [{"seconds": 1.0}]

    monkeypatch.setattr(Run, "trained", note)
    images = tune.images(one)
    (fit, _), (choice, _) = tune._held_out(one)
    assert len(fit) == one.settings["tuned_on"] and len(fit) + len(choice) == len(images.valid)

    def rows(x):
        return {tuple(image.flatten()[:50].tolist()) for image in x}

    for start in (tune.trained, lambda r, s: tune.from_scratch(r, "emp", s), lambda r, s: tune.tuned(r, WAY, s)):
        start(one, 0)
    plain, scratch, tuned = used.values()
    test = rows(images.ready("test")[0])
    assert rows(plain) == rows(scratch) and not rows(plain) & (rows(fit) | rows(choice) | test)
    assert rows(tuned) == rows(fit) and not rows(fit) & (rows(choice) | test)


def test_from_scratch_has_the_same_budget(one):
    assert tune.extra_epochs(make_run(one.folder, passes=8)) == 2  # of 80 images, for 8 passes over 20
    assert tune.extra_epochs(one) == 1


def scores(right, nll):
    return {"right": right, "nll": nll, "seconds": 1.0}


def test_the_most_likely_of_the_accurate_ways_is_chosen():
    ways = [replace(WAY, rate=rate) for rate in (0.1, 0.2, 0.3)]
    plain = scores([1] * 80 + [0] * 20, 1.0)
    wrong, same, better = [0] * 30 + [1] * 50 + [0] * 20, [1] * 80 + [0] * 20, [1] * 90 + [0] * 10
    tried = [plain, scores(wrong, 0.1), scores(same, 0.3), scores(better, 0.4)]
    assert emp_finetune.choose(ways, tried) == ways[1]
    assert emp_finetune.choose(ways[:1], [plain, scores(wrong, 0.1)]) == ways[0]


def test_any_network_can_be_asked_for_alone(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(tune, "choice_scores", lambda run, way, seed: scores([1], 1.0))
    monkeypatch.setattr(emp_finetune, "_SCORES", {"single": lambda run, way, seed: done.append((way.copies, seed))})
    run = make_run(tmp_path)
    run.seeds = (0, 1)
    run.only = ("choice-*",)
    with pytest.raises(PartDone):
        emp_finetune.measure(run)
    run.only = ("test-single-*-seed1",)
    with pytest.raises(PartDone) as part:
        emp_finetune.measure(run)
    assert done == [(1, 1)] and len(part.value.open) == 11


def test_temperature_and_corruptions(one):
    """What a unit keeps is what direct calls give; a network that draws nothing has no part in the seed."""
    found = tune.trained_scores(one, 0)
    model, data = tune.trained(one, 0)[0], tune.images(one)
    (x, y), (x_valid, y_valid) = data.ready("test"), data.ready("valid")
    with torch.no_grad():
        outputs, held_out = model(x), model(x_valid)
        shown = lb.corruptions.corrupt(data.test.x.float() / 255, "contrast", 5)
        worse = model(data.normalisation(shown))
    temperature = fit_temperature(held_out, y_valid)
    assert found["temperature"] == pytest.approx(temperature, rel=1e-4)
    assert found["right"] == (outputs.argmax(-1) == y).long().tolist()
    kept = found["scores"]
    assert set(kept) == {"clean", "5"}
    for mine, truth in (
        (kept["clean"][0]["own"], outputs),
        (kept["clean"][0]["scaled"], outputs / temperature),
        (kept["5"][0]["own"], worse),
    ):
        assert mine == pytest.approx(emp.quality(truth.softmax(-1), y), rel=1e-3)


def test_a_single_copy_predicts_by_itself(one):
    way = replace(WAY, copies=1)
    model, _ = tune.tuned(one, way, 0)
    x, y = tune.images(one).ready("test")
    with torch.no_grad():
        probs = model(x).softmax(-1)
    assert tune.tuned_scores(one, way, 0)["scores"]["clean"][0]["own"] == pytest.approx(emp.quality(probs, y), rel=1e-3)


def test_a_stand_in_is_taken_and_said(tmp_path):
    generate.write_image_folder(tmp_path / tiny_imagenet.FOLDER)
    run = make_run(tmp_path / "out", data=tmp_path, held_out=4)
    assert tune.images(run).name == "tiny-imagenet-100"
    assert "in the place of CIFAR-10" in run.notes[0] and not run.generated


def result(ece, right, seconds):
    return {"scores": {"clean": [{"own": {"top1": 1.0, "ece": ece, "nll": 1.0}}]}, "right": right, "seconds": seconds}


@pytest.mark.parametrize(
    ("ece", "right", "seconds", "holds"),
    [
        (2.0, [1] * 80 + [0] * 20, 9.0, [True, True, True]),
        (2.1, [1] * 80 + [0] * 20, 9.0, [False, True, True]),
        (2.0, [0] * 30 + [1] * 50 + [0] * 20, 9.0, [True, False, True]),
        (2.0, [1] * 90 + [0] * 10, 11.0, [True, True, False]),
    ],
)
def test_every_check_can_fail(ece, right, seconds, holds):
    before, after = result(4.0, [1] * 80 + [0] * 20, 100.0), result(ece, right, seconds)
    checks = emp_finetune._checks([before], [after], [seconds / 100])
    assert [check.holds for check in checks] == holds
