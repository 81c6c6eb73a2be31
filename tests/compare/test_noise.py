"""The noise of a regression is the one that explains the residuals best."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.compare import Budget, load_checkpoint, preset, save_checkpoint, train
from leanbayes.compare.noise import fit_noise
from leanbayes.compare.train import _parts, make_likelihood, make_model
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
    budget = replace(Budget.of(30, 400), lr=0.05, weight_decay=0.0, patience=None, restore_best=False)
    config = budget.config(preset("plain"), 0, "cpu")
    likelihood, _ = train(nn.Linear(1, 1), line, config, progress=False)
    x, y = (values.double().numpy() for values in _parts(line, config)["train"][:2])
    _, (squares,), *_ = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)
    found = float(likelihood.fixed_log_precision.mul(-0.5).exp())
    assert found == pytest.approx((squares / len(x)) ** 0.5, rel=0.02)


def test_predictions_have_the_noise_of_rows_that_were_not_trained_on(line):
    model, config = nn.Linear(1, 1), Budget.of(3, 400).config(preset("plain"), 0, "cpu")
    likelihood, _ = train(model, line, config, progress=False)
    parts = _parts(line, config)
    # A tenth of the rows is too little to stop on: a fifth of 320 is held out.
    assert [len(part[1]) for part in parts.values()] == [256, 64]
    x, y, _ = parts["valid"]
    squares = (y - model(x).detach().squeeze(-1)).double().square()
    found = float(likelihood.split(torch.zeros(1, 1, 1))[1].exp())
    assert found == pytest.approx(float(squares.sum()) / (64 - 2), rel=1e-5)


def test_few_rows_are_all_trained_on(tmp_path):
    np.savez(tmp_path / "few.npz", x=np.arange(18.0)[:, None], y=np.arange(18.0))
    few = load(tmp_path / "few.npz")
    config = Budget.of(2, 18).config(preset("plain"), 0, "cpu")
    assert _parts(few, config)["valid"] is None
    likelihood, history = train(make_model(few, preset("plain"), 0, hidden=[4]), few, config, progress=False)
    assert not likelihood.held_out and "valid_nll" not in history.last


def test_heteroscedastic_noise_is_saved_and_read(line, tmp_path):
    model = make_model(line, preset("plain"), 0, hidden=[8], heteroscedastic=True)
    config = Budget.of(3, 400).config(preset("plain"), 0, "cpu")
    likelihood, _ = train(model, line, config, progress=False, heteroscedastic=True)
    save_checkpoint(tmp_path / "run", model, likelihood, line.schema)
    saved = load_checkpoint(tmp_path / "run")
    x, y = line.ready("test")
    wanted = lb.predict(model, x, 1, likelihood=likelihood).log_prob(y)
    torch.testing.assert_close(lb.predict(saved.model, x, 1, likelihood=saved.likelihood).log_prob(y), wanted)
    with pytest.raises(ValueError, match="real targets, but digits has classes"):
        make_likelihood(load("digits"), heteroscedastic=True)


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
