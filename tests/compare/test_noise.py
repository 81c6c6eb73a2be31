"""The noise of a regression is the one that explains the residuals best."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from leanbayes.compare import Budget, preset, train
from leanbayes.compare.noise import fit_noise
from leanbayes.compare.train import make_model
from leanbayes.data import load
from leanbayes.objectives import Gaussian
from leanbayes.training import EpochEnd, History
from leanbayes.training.engine import _Training


def end_of(nll):
    return EpochEnd(nn.Identity(), {"nll": nll}, History())


@pytest.mark.parametrize("start", [0.01, 1.0, 30.0])
def test_the_precision_is_the_inverse_mean_square_of_the_residuals(start):
    residuals = 0.2 * torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    likelihood = Gaussian(start).double()
    nll = -float(likelihood.log_prob(residuals.view(1, 50, 1), torch.zeros(50)).mean())
    fit_noise(likelihood)(end_of(nll))
    found = float(likelihood.fixed_log_precision.exp())
    assert found == pytest.approx(1 / float(residuals.square().mean()), rel=1e-5)


def test_targets_without_noise_have_a_finite_precision():
    likelihood = Gaussian(1.0)
    fit_noise(likelihood)(end_of(0.5 * np.log(2 * np.pi)))
    assert float(likelihood.fixed_log_precision.exp()) == pytest.approx(1e6, rel=1e-3)


@pytest.fixture
def line(tmp_path):
    """A straight line with noise of a fifth of the spread of the targets."""
    random = np.random.RandomState(0)
    x = random.randn(400)
    y = 3 + 10 * (x + 0.2 * random.randn(400))
    np.savez(tmp_path / "line.npz", x=x[:, None], y=y)
    return load(tmp_path / "line.npz")


def test_a_short_training_finds_the_residuals_of_least_squares(line):
    budget = replace(Budget.of(30, 400), lr=0.05, weight_decay=0.0)
    likelihood, _ = train(nn.Linear(1, 1), line, budget.config(preset("plain"), 0, "cpu"), progress=False)
    x, y = (values.double().numpy() for values in line.ready("train"))
    _, (squares,), *_ = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)
    found = float(likelihood.fixed_log_precision.mul(-0.5).exp())
    assert found == pytest.approx((squares / len(x)) ** 0.5, rel=0.02)


def test_a_likelihood_that_was_given_stays(line):
    model = make_model(line, preset("plain"), 0, hidden=[8])
    config = Budget.of(1, 400).config(preset("plain"), 0, "cpu")
    likelihood, _ = train(model, line, config, progress=False, likelihood=Gaussian(7.0))
    assert float(likelihood.fixed_log_precision.exp()) == pytest.approx(7.0)


def test_the_noise_goes_on_where_training_was_interrupted(line, tmp_path, monkeypatch):
    config = Budget.of(4, 400).config(preset("rank1"), 0, "cpu")

    def run(**options):
        model = make_model(line, preset("rank1"), 0, hidden=[8])
        return train(model, line, config, progress=False, **options)[0].fixed_log_precision

    def interrupt(self):
        batches = begin(self)
        if self.epoch == 2:
            raise KeyboardInterrupt
        return batches

    begin = _Training._begin
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_Training, "_begin", interrupt)
        run(out=tmp_path)
    assert run(out=tmp_path, resume=True).equal(run())
