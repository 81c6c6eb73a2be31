"""AUC-PR, AUROC and FPR95 against scikit-learn, with and without ties."""

import math

import pytest
import torch
from sklearn import metrics as sk

import leanbayes as lb
from leanbayes.metrics.functional import average_precision, ood_auroc, ood_fpr, ood_score


def scores(n, ties):
    return torch.randint(5, (n,)).double() if ties else torch.randn(n, dtype=torch.float64)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [2, 7, 200])
def test_average_precision_is_scikit_learns(n, ties):
    labels = torch.arange(n) % 2
    values = scores(n, ties) + labels
    expected = sk.average_precision_score(labels, values)
    assert average_precision(values, labels).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n, m", [(1, 1), (100, 30), (30, 100)])
def test_auroc_is_scikit_learns(n, m, ties):
    inside, outside = scores(n, ties), scores(m, ties) + 1
    expected = sk.roc_auc_score([0] * n + [1] * m, torch.cat([inside, outside]))
    assert ood_auroc(inside, outside).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("positive", ["out", "in"])
@pytest.mark.parametrize("n, m, tpr", [(1, 1, 0.95), (100, 30, 0.95), (40, 100, 0.95), (100, 100, 0.07)])
def test_fpr_is_read_off_scikit_learns_curve(n, m, tpr, positive, ties):
    inside, outside = scores(n, ties), scores(m, ties) + 1
    values = torch.cat([inside, outside])
    if positive == "in":
        curve = sk.roc_curve([1] * n + [0] * m, -values, drop_intermediate=False)
    else:
        curve = sk.roc_curve([0] * n + [1] * m, values, drop_intermediate=False)
    expected = curve[0][(curve[1] >= tpr).argmax()]
    assert ood_fpr(inside, outside, tpr, positive=positive).item() == pytest.approx(expected, rel=1e-6)


def test_separated_equal_and_reversed():
    low, high = torch.arange(20.0), torch.arange(20.0) + 100
    assert (ood_auroc(low, high), ood_fpr(low, high)) == (1, 0)
    assert (ood_auroc(high, low), ood_fpr(high, low)) == (0, 1)
    same = torch.ones(20)
    assert (ood_auroc(same, same), ood_fpr(same, same)) == (0.5, 1)


def test_infinite_scores_have_their_place():
    assert ood_auroc(torch.tensor([0.0]), torch.tensor([math.inf])).item() == 1


def test_nan_where_one_side_is_missing():
    some, none = torch.ones(3), torch.empty(0)
    assert average_precision(some, torch.zeros(3)).isnan()
    assert average_precision(none, none).isnan()
    for metric in (ood_auroc, ood_fpr):
        assert metric(some, none).isnan()
        assert metric(none, some).isnan()


def test_all_positive():
    assert average_precision(torch.rand(4), torch.ones(4)).item() == 1


def test_events_and_two_classes_are_scored_alike():
    logits, labels = torch.randn(4, 30, 1), torch.randint(2, (30,))
    event = logits[..., 0].sigmoid().mean(0)
    expected = average_precision(event, labels)
    assert torch.equal(average_precision(lb.Prediction(logits, lb.Bernoulli()), labels), expected)
    assert torch.equal(average_precision(torch.stack([1 - event, event], 1), labels), expected)
    both = torch.cat([torch.zeros_like(logits), logits], -1)
    assert torch.equal(average_precision(lb.Prediction(both, lb.Categorical()), labels), expected)


def test_scores_of_a_prediction():
    prediction = lb.Prediction(torch.randn(4, 30, 3), lb.Categorical())
    assert torch.equal(ood_score(prediction), prediction.entropy)
    assert torch.equal(ood_score(prediction, "mutual_information"), prediction.mutual_information)
    assert torch.equal(ood_score(prediction, "confidence"), 1 - prediction.confidence)


def test_bad_input():
    with pytest.raises(ValueError, match="NaN"):
        ood_auroc(torch.tensor([math.nan]), torch.ones(1))
    with pytest.raises(ValueError, match="do not fit"):
        average_precision(torch.ones(3, 3), torch.ones(3))
    with pytest.raises(ValueError, match="0 and 1"):
        average_precision(torch.ones(3), torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="tpr"):
        ood_fpr(torch.ones(3), torch.ones(3), 95)
    with pytest.raises(ValueError, match="'out', 'in'"):
        ood_fpr(torch.ones(3), torch.ones(3), positive="ood")
    with pytest.raises(ValueError, match="score is one of"):
        ood_score(lb.Prediction(torch.zeros(2, 3, 4)), "variance")
