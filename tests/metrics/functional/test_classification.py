"""Accuracy, NLL and Brier score against scikit-learn and by hand."""

import math

import pytest
import torch
from sklearn import metrics as sk

import leanbayes as lb
from leanbayes.metrics.functional import accuracy, brier, nll


def classes(n=200, c=7):
    probs = torch.randn(n, c, dtype=torch.float64).mul(2).softmax(1)
    return probs, torch.randint(c, (n,))


def events(n=200):
    return torch.rand(n, dtype=torch.float64), torch.randint(2, (n,))


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_accuracy_is_scikit_learns(top_k):
    probs, labels = classes()
    expected = sk.top_k_accuracy_score(labels, probs, k=top_k, labels=range(7))
    assert accuracy(probs, labels, top_k).item() == pytest.approx(expected)


def test_nll_is_scikit_learns():
    probs, labels = classes()
    assert nll(probs, labels).item() == pytest.approx(sk.log_loss(labels, probs, labels=range(7)), rel=1e-6)
    event, happened = events()
    assert nll(event, happened).item() == pytest.approx(sk.log_loss(happened, event), rel=1e-6)


def test_brier_is_scikit_learns():
    probs, labels = classes()
    expected = sk.brier_score_loss(labels, probs, labels=range(7), scale_by_half=False)
    assert brier(probs, labels).item() == pytest.approx(expected, rel=1e-6)
    assert brier(probs, labels, "tfp").item() == pytest.approx(expected - 1, rel=1e-6)
    event, happened = events()
    assert brier(event, happened).item() == pytest.approx(2 * sk.brier_score_loss(happened, event), rel=1e-6)


def test_brier_by_its_two_formulas():
    probs, labels = classes()
    onehot = torch.nn.functional.one_hot(labels, 7)
    torch.testing.assert_close(brier(probs, labels), (probs - onehot).square().sum(1).mean().float())
    own = probs[range(len(labels)), labels]
    torch.testing.assert_close(brier(probs, labels, "tfp"), (probs.square().sum(1) - 2 * own).mean().float())


@pytest.mark.parametrize("right, whole, tfp", [(True, 0.0, -1.0), (False, 2.0, 1.0)])
def test_brier_reaches_its_bounds(right, whole, tfp):
    probs, labels = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([0 if right else 1])
    assert brier(probs, labels).item() == whole
    assert brier(probs, labels, "tfp").item() == tfp


def test_equal_probabilities_go_to_the_lower_class():
    probs = torch.full((4, 4), 0.25)
    labels = torch.arange(4)
    assert [accuracy(probs, labels, k).item() for k in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]
    assert accuracy(probs, labels).item() == (probs.argmax(1) == labels).float().mean().item()


def test_nll_is_bounded_by_eps():
    probs, labels = torch.tensor([[1.0, 0.0]]), torch.tensor([1])
    assert nll(probs, labels).item() == pytest.approx(87.3365, abs=1e-4)
    assert nll(probs, labels, eps=1e-3).item() == pytest.approx(math.log(1000))
    assert nll(probs, labels, eps=0).item() == math.inf


def test_one_example():
    probs, labels = torch.tensor([[0.2, 0.8]]), torch.tensor([1])
    assert accuracy(probs, labels).item() == 1
    assert nll(probs, labels).item() == pytest.approx(-math.log(0.8))
    assert brier(probs, labels).item() == pytest.approx(0.08)


def test_no_examples_give_nan():
    probs, labels = torch.empty(0, 3), torch.empty(0, dtype=torch.long)
    assert all(metric(probs, labels).isnan() for metric in (accuracy, nll, brier))


def test_events_are_two_classes():
    event, happened = events()
    both = torch.stack([1 - event, event], 1)
    for metric in (accuracy, nll, brier):
        expected = metric(both, happened)
        torch.testing.assert_close(metric(event, happened), expected)
        torch.testing.assert_close(metric(event.unsqueeze(1), happened.bool().unsqueeze(1)), expected)
        torch.testing.assert_close(metric(event, happened.float()), expected)


def test_predictions_give_their_probabilities():
    logits, labels = torch.randn(6, 20, 3), torch.randint(3, (20,))
    prediction = lb.Prediction(logits, lb.Categorical())
    binary = lb.Prediction(logits[..., :1], lb.Bernoulli())
    for metric in (accuracy, nll, brier):
        assert torch.equal(metric(prediction, labels), metric(logits.softmax(-1).mean(0), labels))
        torch.testing.assert_close(
            metric(binary, labels.clamp_max(1)), metric(logits[..., 0].sigmoid().mean(0), labels.clamp_max(1))
        )


def test_sequences_count_every_element():
    probs, labels = classes(24)
    assert torch.equal(nll(probs.view(4, 6, 7), labels.view(4, 6)), nll(probs, labels))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_taken(dtype):
    probs = torch.randn(50, 100).softmax(1)
    labels = torch.randint(100, (50,))
    assert nll(probs.to(dtype), labels).item() == pytest.approx(nll(probs, labels).item(), rel=1e-3)


def test_gradients_are_left_behind():
    probs = torch.rand(3, requires_grad=True)
    assert not nll(probs, torch.tensor([0, 1, 0])).requires_grad


@pytest.mark.parametrize(
    "probs, labels, error, words",
    [
        (torch.randn(4, 3) * 5, torch.zeros(4, dtype=torch.long), ValueError, "softmax"),
        (torch.full((4, 3), 0.5), torch.zeros(4, dtype=torch.long), ValueError, "sum to 1"),
        (torch.full((4, 3), math.nan), torch.zeros(4, dtype=torch.long), ValueError, "NaN"),
        (torch.full((4, 2), 0.5), torch.full((4,), 2), ValueError, "from 0 to 1 for 2 classes"),
        (torch.full((4, 2), 0.5), torch.full((4,), -1), ValueError, "reach from -1"),
        (torch.full((4, 2), 0.5), torch.zeros(4), TypeError, "whole numbers"),
        (torch.full((4, 2), 0.5), torch.zeros(4, 2, dtype=torch.long), ValueError, "do not fit"),
        (torch.full((4, 2), 0.5), torch.zeros(3, dtype=torch.long), ValueError, "do not fit"),
        (torch.full((4,), 0.5), torch.zeros(3, dtype=torch.long), ValueError, "do not fit"),
        (torch.full((4,), 0.5), torch.full((4,), 2), ValueError, "0 and 1"),
        (torch.full((4,), 1), torch.full((4,), 1), TypeError, "floating-point"),
        ([0.5, 0.5], torch.zeros(2, dtype=torch.long), TypeError, "as a tensor"),
        (torch.full((4,), 0.5), [0, 1, 0, 1], TypeError, "as a tensor"),
    ],
)
def test_bad_tensors(probs, labels, error, words):
    with pytest.raises(error, match=words):
        nll(probs, labels)


def test_bad_arguments():
    probs, labels = classes()
    with pytest.raises(ValueError, match="top_k is a whole number from 1, not 0"):
        accuracy(probs, labels, 0)
    with pytest.raises(ValueError, match="top_k=8 is more than the 7 classes"):
        accuracy(probs, labels, 8)
    with pytest.raises(ValueError, match="eps"):
        nll(probs, labels, eps=-1)
    with pytest.raises(ValueError, match="'sum', 'tfp'"):
        brier(probs, labels, "half")
