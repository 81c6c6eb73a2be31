"""Log predictive density against scipy and scikit-learn."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from sklearn.metrics import log_loss

import leanbayes as lb
from leanbayes.metrics.functional import log_predictive_density, nll


def test_gaussian_targets_by_scipy():
    outputs, targets = torch.randn(6, 9, 1), torch.randn(9)
    each = stats.norm(outputs[..., 0].numpy(), 0.5).logpdf(targets.numpy())
    expected = (logsumexp(each, 0) - np.log(6)).mean()
    found = log_predictive_density(lb.Prediction(outputs, lb.Gaussian(4.0)), targets)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_labels_by_scikit_learn():
    logits, labels = torch.randn(6, 30, 4), torch.randint(4, (30,))
    prediction = lb.Prediction(logits, lb.Categorical())
    expected = -log_loss(labels, logits.double().softmax(-1).mean(0), labels=range(4))
    assert log_predictive_density(prediction, labels).item() == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(log_predictive_density(prediction, labels), -nll(prediction, labels))


def test_only_predictions_have_a_density():
    with pytest.raises(TypeError, match=r"what lb.predict returned, not Tensor"):
        log_predictive_density(torch.zeros(3, 2), torch.zeros(3, dtype=torch.long))
