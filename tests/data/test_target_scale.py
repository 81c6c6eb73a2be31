import json

import numpy as np
import pytest
import torch
from torch.distributions import LogNormal, Normal

from leanbayes.data import Schema, TableError, load
from leanbayes.data._normalise import Affine
from leanbayes.data._target_scale import log_gain

X = np.random.RandomState(0).randn(200)
SKEWED, PLAIN = np.exp(3 + 1.2 * X), 50 + 3 * X
NOTE = (
    "the logarithm of the target 'y' is predicted, as it is skewed; for the target as it is, pass target_scale='linear'"
)


def table(tmp_path, y, **options):
    lines = [f"{x:.4f},{value:.5f}" for x, value in zip(X[::-1], y)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    return load(tmp_path / "a.csv", target="y", **options)


def test_the_gain_is_that_of_the_best_distributions():
    y = torch.tensor(SKEWED)
    normal, logs = Normal(y.mean(), y.std(correction=0)), y.log()
    better = LogNormal(logs.mean(), logs.std(correction=0)).log_prob(y) - normal.log_prob(y)
    assert log_gain(SKEWED) == pytest.approx(float(better.mean()))
    assert log_gain(np.full(30, 7.0)) == 0


def test_the_logarithm_of_a_skewed_target_is_predicted(tmp_path):
    data = table(tmp_path, SKEWED)
    assert NOTE in data.notes
    scale = data.normalisation.targets
    assert scale.log and scale.mean[0] == pytest.approx(float(data.train.y.log().mean()))
    y = data.ready("train")[1]
    assert float(y.mean()) == pytest.approx(0, abs=1e-6) and float(y.std(correction=0)) == pytest.approx(1)
    torch.testing.assert_close(data.normalisation.restore_targets(y.double()), data.train.y, rtol=1e-5, atol=0)
    assert Schema.from_json(json.loads(json.dumps(data.schema.to_json()))) == data.schema
    # Targets are in their own units everywhere else.
    assert sorted(torch.cat([part.y for part in (data.train, data.valid, data.test)]).tolist()) == pytest.approx(
        sorted(SKEWED), abs=1e-4
    )


@pytest.mark.parametrize(
    ("y", "options", "is_log"),
    [
        (PLAIN, {}, False),
        (SKEWED, {"target_scale": "linear"}, False),
        (PLAIN, {"target_scale": "log"}, True),
        (SKEWED - SKEWED.min(), {}, False),  # zero has no logarithm
        (SKEWED[:15], {}, False),  # few rows say little
    ],
)
def test_other_targets_and_what_is_asked_for(tmp_path, y, options, is_log):
    data = table(tmp_path, y, **options)
    assert data.normalisation.targets.log == is_log
    assert [note for note in data.notes if "logarithm" in note] == (
        ["the logarithm of the target 'y' is predicted"] if is_log else []
    )


def test_no_logarithm_of_what_has_none(tmp_path):
    with pytest.raises(TableError, match="has values such as 0, which have no logarithm; pass target_scale='linear'"):
        table(tmp_path, SKEWED - SKEWED.min(), target_scale="log")
    with pytest.raises(ValueError, match="target_scale"):
        table(tmp_path, SKEWED, target_scale="sqrt")
    with pytest.raises(ValueError, match="a target of -2 has none of; measure it on rows with targets above 0"):
        Affine(log=True)(torch.tensor([3.0, -2.0]))


def test_the_slope_is_that_of_the_scale():
    y = torch.tensor([0.5, 3.0, 90.0], dtype=torch.float64, requires_grad=True)
    for scale in (Affine((1.5,), (0.4,), log=True), Affine((1.5,), (0.4,))):
        z = (y.log() - 1.5) / 0.4 if scale.log else (y - 1.5) / 0.4
        (slope,) = torch.autograd.grad(z.sum(), y)
        torch.testing.assert_close(scale.log_slope(z.detach()), slope.log())
    with pytest.raises(ValueError, match="a standard deviation depends on the value"):
        Affine(log=True).inverse_std(torch.ones(1))
