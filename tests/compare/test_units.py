"""Figures in the units of the data, against the distributions that the network's stand for."""

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, LogNormal, MixtureSameFamily

from leanbayes._prediction import Prediction
from leanbayes.compare.intervals import intervals
from leanbayes.compare.losses import example_losses
from leanbayes.compare.measure import measure
from leanbayes.compare.units import log_density, moments, restored
from leanbayes.data._normalise import Affine
from leanbayes.objectives import Gaussian

SAMPLES, ROWS, PRECISION = 6, 40, 2.5
SCALE = Affine((3.0,), (0.7,), log=True)


@pytest.fixture(params=["constant", "each row"])
def predicted(request):
    """A prediction on the scale of the network, and the mixture of log-normals that it is of the targets."""
    generator = torch.Generator().manual_seed(0)
    each_row = request.param == "each row"
    outputs = 0.5 * torch.randn(SAMPLES, ROWS, 1 + each_row, generator=generator, dtype=torch.float64)
    var = outputs[..., 1].exp() if each_row else torch.full((SAMPLES, ROWS), 1 / PRECISION, dtype=torch.float64)
    prediction = Prediction(outputs, Gaussian() if each_row else Gaussian(PRECISION))
    parts = LogNormal((outputs[..., 0] * 0.7 + 3).T, (var.sqrt() * 0.7).T)
    return prediction, MixtureSameFamily(Categorical(torch.ones(ROWS, SAMPLES)), parts)


def targets():
    return (3 + 0.7 * torch.randn(ROWS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).exp()


def test_mean_and_std_are_those_of_the_log_normals(predicted):
    prediction, mixture = predicted
    mean, std = (values.squeeze(-1) for values in moments(prediction, SCALE))
    torch.testing.assert_close(mean, mixture.mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(std, mixture.variance.sqrt(), rtol=1e-6, atol=0)


def test_the_density_counts_the_slope_of_the_scale(predicted):
    prediction, mixture = predicted
    y = targets()
    torch.testing.assert_close(
        log_density(prediction, SCALE(y).double(), SCALE), mixture.log_prob(y), rtol=1e-5, atol=1e-5
    )


def test_quantiles_and_the_figures_are_in_the_units_of_the_data(predicted):
    prediction, mixture = predicted
    y = targets()
    lower, upper = (restored(bound, SCALE).squeeze(-1) for bound in prediction.quantile([0.025, 0.975]))
    torch.testing.assert_close(mixture.cdf(lower), torch.full((ROWS,), 0.025, dtype=torch.float64), rtol=1e-4, atol=0)
    torch.testing.assert_close(mixture.cdf(upper), torch.full((ROWS,), 0.975, dtype=torch.float64), rtol=1e-4, atol=0)
    found = measure(prediction, SCALE(y).double(), SCALE)
    assert found["rmse"] == pytest.approx(float((mixture.mean - y).square().mean().sqrt()), rel=1e-5)
    assert found["lpd"] == pytest.approx(float(mixture.log_prob(y).mean()), rel=1e-5)
    assert found["width"] == pytest.approx(float((upper - lower).mean()), rel=1e-5)
    assert found["coverage"] == pytest.approx(float(((lower <= y) & (y <= upper)).double().mean()))
    shown = intervals(prediction, SCALE(y).double(), 0.95, SCALE)
    assert shown["mean"] == pytest.approx(mixture.mean.sort().values.tolist(), rel=1e-6)
    order = mixture.mean.argsort()
    assert shown["target"] == pytest.approx(y[order].tolist(), rel=1e-5)
    assert shown["upper"] == pytest.approx(upper[order].tolist(), rel=1e-6)


@pytest.mark.parametrize("scale", [None, Affine((5.0,), (2.0,))])
def test_on_a_straight_scale_figures_are_multiples(scale):
    generator = torch.Generator().manual_seed(0)
    prediction = Prediction(torch.randn(SAMPLES, ROWS, 1, generator=generator), Gaussian(PRECISION))
    y = torch.randn(ROWS, generator=generator)
    unit, shift = (1.0, 0.0) if scale is None else (2.0, 5.0)
    mean, std = moments(prediction, scale)
    torch.testing.assert_close(mean, prediction.mean.double() * unit + shift)
    torch.testing.assert_close(std, prediction.std.double() * unit)
    losses = example_losses(prediction, y, scale)
    torch.testing.assert_close(losses["lpd"], prediction.log_prob(y).double() - np.log(unit))
