"""Regression tables: networks as printed, predictions in the units of the targets."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.data._normalise import Affine, Normalisation
from leanbayes.reproduce import Run
from leanbayes.reproduce.recipe import recipes
from leanbayes.reproduce.recipes import emp_uci
from leanbayes.training import SideBySide

SETTINGS = recipes()["emp-uci"].presets["smoke"]


def make_run(tmp_path, **settings):
    return Run("emp-uci", "smoke", SETTINGS | settings, (0,), tmp_path, progress=False)


def test_norms_alone_are_patched_and_start_at_the_printed_scale(tmp_path):
    model = emp_uci._build(make_run(tmp_path, init_std=1e-6), "yacht", "emp", 6, 100, 2)
    patched = [module for module in model.modules() if isinstance(module, lb.nn.NormLayer)]
    assert len(patched) == 2
    copies = patched[0].weight.posterior.copies
    assert copies.shape == (2, 5, 6) and torch.allclose(copies, torch.full_like(copies, 0.2), atol=1e-4)


@pytest.mark.parametrize(("method", "networks"), [("dropout", 3), ("ensemble", 15), ("vanilla", 3)])
def test_the_others_have_no_norms_but_one(tmp_path, method, networks):
    model = emp_uci._build(make_run(tmp_path), "yacht", method, 6, 100, 3)
    assert model.count == networks
    norms = sum(isinstance(module, nn.BatchNorm1d) for module in model.modules())
    assert norms == (2 if method == "vanilla" else 0)


def test_the_prior_of_patches_is_the_weight_decay(tmp_path):
    run = make_run(tmp_path)
    model = emp_uci._build(run, "yacht", "emp", 6, 100, 1).double()
    copies = [p for name, p in model.named_parameters() if name.endswith("copies")]
    gradients = torch.autograd.grad(lb.kl(model) / 100, copies)
    for gradient, copy in zip(gradients, copies):
        torch.testing.assert_close(gradient, run.settings["weight_decay"] * copy, rtol=1e-5, atol=1e-7)


def test_densities_are_in_the_units_of_the_targets(tmp_path):
    torch.manual_seed(0)
    scaling = Normalisation(targets=Affine(mean=(3.0,), std=(2.0,)))
    truth = torch.tensor([1.0, 4.0, 2.5], dtype=torch.float64)
    data = [SimpleNamespace(test=SimpleNamespace(y=truth), schema=SimpleNamespace(normalisation=scaling))]
    nets = [nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)) for _ in range(5)]
    x = torch.randn(3, 2)
    run = make_run(tmp_path)
    mean, density = emp_uci._predict(run, SideBySide(nets).eval(), x.unsqueeze(1).expand(3, 5, 2), data, copies=5)
    with torch.no_grad():
        each = torch.stack([3 + 2 * net(x).double() for net in nets])
    normal = torch.distributions.Normal(each, math.sqrt(1 / 0.1))
    torch.testing.assert_close(mean[:, 0], each.mean(0))
    torch.testing.assert_close(density[:, 0], normal.log_prob(truth).exp().mean(0).log())


def test_chunks_of_samples_make_one_mixture(tmp_path):
    scaling = Normalisation()
    data = [
        SimpleNamespace(test=SimpleNamespace(y=torch.zeros(4).double()), schema=SimpleNamespace(normalisation=scaling))
    ]
    run = make_run(tmp_path, samples=4000, rows_at_once=40)
    model = emp_uci._build(run.changed(init_std=1.0), "yacht", "emp", 6, 100, 1).eval()
    x = torch.randn(4, 1, 6, generator=torch.Generator().manual_seed(0))
    mean, density = emp_uci._predict(run, model, x, data, copies=1)
    outputs = lb.predict(model, x, 4000, seed=5).outputs.double()[:, :, 0]
    error = outputs.std(0) * math.sqrt(2 / 4000)
    assert ((mean[:, 0] - outputs.mean(0)).abs() <= 4 * error).all()
    densities = torch.distributions.Normal(outputs, math.sqrt(10)).log_prob(torch.zeros(4)).exp()
    spread = densities.std(0) * math.sqrt(2 / 4000) / densities.mean(0)
    assert ((density[:, 0] - densities.mean(0).log()).abs() <= 4 * spread).all()


def test_checks_count_tables():
    def gains(*values):
        return {str(number): {"mean": value, "error": 0.1} for number, value in enumerate(values)}

    good = gains(*(0.5,) * 3, *(-0.05,) * 4, *(-1.0,) * 2)
    bad = gains(*(-1.0,) * 9)
    assert [check.holds for check in emp_uci._checks({"emp": good, "ecmp": bad})] == [True, True]
    assert [check.holds for check in emp_uci._checks({"emp": bad, "ecmp": bad})] == [False, False]
    level = gains(*(0.05,) * 9)
    assert [check.holds for check in emp_uci._checks({"emp": bad, "ecmp": level})] == [True, False]
