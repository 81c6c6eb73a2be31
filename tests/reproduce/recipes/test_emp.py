"""The recipes on Ensemble Model Patching."""

from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.data import generate, tiny_imagenet
from leanbayes.reproduce import PartDone
from leanbayes.reproduce.recipes import _emp_imagenet, emp_ablation, emp_cifar100, emp_params, emp_theorem
from leanbayes.reproduce.recipes import _emp_networks as emp
from leanbayes.reproduce.run import Run


def run(folder, id="emp-cifar100", data=None, **changes):
    settings = emp.PRESETS["smoke"] | changes
    return Run(id, "smoke", settings, (0,), Path(folder), data=data, progress=False)


@pytest.mark.parametrize("method", [lb.EMP, lb.ECMP])
def test_the_prior_is_the_published_decay(method):
    examples, strength = 500, 0.01
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model = lb.bayesianize(net, method(emp.COMPONENTS, emp.prior(strength, examples)))
    lb.kl(model).backward()
    for parameter in (p for name, p in model.named_parameters() if "copies" in name):
        # That of strength times the squares.
        torch.testing.assert_close(parameter.grad / examples, 2 * strength * parameter.detach())


def test_dropout_stands_before_every_norm():
    net = emp.with_dropout(lb.models.create("pyramidnet", depth=8, alpha=9), 0.3)
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    pairs = [m for m in net.modules() if isinstance(m, nn.Sequential) and isinstance(m[0], nn.Dropout)]
    assert len(pairs) == len(norms) > 5 and all(pair[1] in norms and pair[0].p == 0.3 for pair in pairs)


@pytest.mark.parametrize("name", emp.NAMES)
def test_all_networks_predict_as_they_should(name, tmp_path):
    model = emp.build(name, emp.PRESETS["smoke"], 100).eval()
    outputs = emp.predictions(run(tmp_path), model, torch.randn(251, 3, 32, 32))
    assert outputs.shape == (1 if name == "vanilla" else 4, 251, 100)
    assert name == "vanilla" or (outputs[0] - outputs[1]).abs().max() > 0


@pytest.mark.parametrize("name", emp.NAMES)
def test_only_what_draws_is_compiled_to_predict(name, tmp_path, monkeypatch):
    captured = []
    monkeypatch.setattr(lb, "capture", captured.append)
    model = emp.build(name, emp.PRESETS["smoke"], 100)
    monkeypatch.setattr(emp.Predictor, "is_fast", lambda *_: True)
    for samples in (1, 4):
        emp.Predictor(run(tmp_path), model, samples)
    assert captured == ([] if name == "vanilla" else [model])


@pytest.mark.parametrize("name", ["emp", "ecmp-norms"])
def test_steps_are_timed_beside_the_plain_network(name, tmp_path):
    found = emp.step_time(run(tmp_path), name)
    assert found["how"] == "eager" and found["ratio"] == found["seconds"] / found["plain_seconds"]


def test_times_judge_the_steps(tmp_path, monkeypatch):
    ratios = {"emp": 1.05, "emp-norms": 1.01, "ecmp": 1.2, "ecmp-norms": 1.02}
    monkeypatch.setattr(emp, "step_time", lambda run, name: {"ratio": ratios[name]})
    outcome = emp_cifar100.measure(run(tmp_path))
    rows = {row.name: row.measured for row in outcome.rows if row.metric == "time of a step over that of vanilla"}
    assert rows == {"EMP": [1.05], "EMP (norms)": [1.01], "ECMP": [1.2], "ECMP (norms)": [1.02]}
    held = {check.text: check.holds for check in outcome.checks if "time of a step" in check.text}
    assert list(held.values()) == [True, False]
    assert not any("seconds" in row.metric for row in outcome.rows)


def test_times_are_pieces_of_their_own(tmp_path):
    one = run(tmp_path)
    one.only = ("time-emp",)
    with pytest.raises(PartDone) as part:
        emp_cifar100.measure(one)
    assert {"emp-seed0", "time-ecmp"} <= set(part.value.open) and "time-emp" not in part.value.open


def test_ablated_networks_lack_what_they_should():
    nets = {name: emp.build(name, emp.PRESETS["smoke"], 100) for name in emp_ablation.NAMES}
    sizes = {name: sum(parameter.numel() for parameter in net.parameters()) for name, net in nets.items()}
    norms = [module for module in nets["vanilla"].modules() if isinstance(module, nn.BatchNorm2d)]
    patched = sum(2 * norm.num_features for norm in norms)
    head = sum(parameter.numel() for parameter in nets["vanilla"].fc.parameters())
    for family in ("emp", "ecmp"):
        added = [sizes[family + part] - sizes["vanilla"] for part in ("", "-norms", "-zero")]
        assert added == [4 * (patched + head), 4 * patched, 3 * (patched + head)]
    with torch.no_grad(), lb.sampling(component=emp.COMPONENTS - 1):
        assert not nets["emp-zero"].eval()(torch.randn(2, 3, 32, 32)).any()


def test_a_stand_in_is_taken_and_said(tmp_path):
    generate.write_image_folder(tmp_path / tiny_imagenet.FOLDER)
    one = run(tmp_path / "out", data=tmp_path)
    (x, y), _ = emp.hundred_classes(one)
    assert x.shape[1:] == (3, 32, 32) and int(y.max()) == 2
    assert one.notes == [emp.STAND_IN_NOTE] and not one.generated


def test_without_any_copy_images_are_generated_and_said(tmp_path):
    one = run(tmp_path / "out", data=tmp_path)
    emp.hundred_classes(one)
    assert one.generated and one.notes[0].startswith("generated")


def test_counts_are_the_published_ones(tmp_path):
    outcome = emp_params.measure(Run("emp-params", "smoke", {"components": 5}, (0,), tmp_path, progress=False))
    assert outcome.verdict == "holds" and len(outcome.checks) == 7


def test_the_theorems_hold(tmp_path):
    settings = {"dimensions": (1, 20), "sigma": 0.05, "draws": 20_000, "gradients": 400}
    outcome = emp_theorem.measure(Run("emp-theorem", "smoke", settings, (0,), tmp_path, progress=False))
    assert outcome.verdict == "holds"
    assert outcome.figure["curve"]["printed"][-1] > 3  # the printed sign is off by two entropies of the index


def test_a_biased_gradient_is_noticed(tmp_path, monkeypatch):
    exact = emp_theorem._exact
    monkeypatch.setattr(emp_theorem, "_exact", lambda *inputs: 1.3 * exact(*inputs))
    settings = {"dimensions": (20,), "sigma": 0.05, "draws": 20_000, "gradients": 400}
    outcome = emp_theorem.measure(Run("emp-theorem", "smoke", settings, (0,), tmp_path, progress=False))
    assert outcome.verdict == "falls short"


def test_imagenet_rows_run_on_a_generated_tree_of_20_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(_emp_imagenet, "NAMES", {name: _emp_imagenet.NAMES[name] for name in ("ecmp-norms", "vanilla")})
    one = run(tmp_path, "emp-imagenet", **_emp_imagenet.PRESETS["smoke"])
    clean = one.each_seed_of(_emp_imagenet.clean_scores, _emp_imagenet.NAMES)
    assert _emp_imagenet.overhead(clean, "ecmp-norms")[0] == pytest.approx(0.34, abs=0.02)
    errors = one.as_recipe("emp-imagenet-c").each_seed_of(_emp_imagenet.errors, _emp_imagenet.NAMES)
    assert set(errors["vanilla"][0]["corrupted"]) == {"gaussian_noise", "contrast"}
    assert any(_emp_imagenet.NOT_IMAGENET in note for note in one.notes)
    assert len(_emp_imagenet.images(one).class_names) == 20


def test_corrupted_images_are_scaled_as_clean_ones(tmp_path):
    one = run(tmp_path, "emp-imagenet-c", **_emp_imagenet.PRESETS["smoke"])
    data = _emp_imagenet.images(one)
    x, _ = next(_emp_imagenet.batches(data))
    shown = _emp_imagenet.corrupted(one, x, "jpeg_compression", 1, 0)
    # What JPEG at its mildest changes is small beside the spread of the pixels, which is 1.
    assert (data.normalisation(shown) - data.normalisation(x)).abs().mean() < 0.5


def test_imagenet_rows_ask_for_images(tmp_path):
    one = Run("emp-imagenet", "short", _emp_imagenet.PRESETS["short"], (0,), tmp_path, progress=False)
    with pytest.raises(FileNotFoundError, match="--data FOLDER"):
        _emp_imagenet.images(one)
