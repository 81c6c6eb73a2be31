"""Disagreement against a loop over all pairs."""

from itertools import combinations

import pytest
import torch

import leanbayes as lb
from leanbayes.metrics.functional import accuracy, disagreement, normalised_disagreement


def over_pairs(chosen):
    pairs = list(combinations(chosen.tolist(), 2))
    return sum(a != b for one, other in pairs for a, b in zip(one, other)) / (len(pairs) * chosen.shape[1])


@pytest.mark.parametrize("members", [2, 3, 8])
def test_all_pairs(members):
    chosen = torch.randint(4, (members, 50))
    assert disagreement(chosen).item() == pytest.approx(over_pairs(chosen), rel=1e-6)


def test_normalised_by_the_members_error():
    chosen, labels = torch.randint(4, (5, 50)), torch.randint(4, (50,))
    error = (chosen != labels).double().mean().item()
    assert normalised_disagreement(chosen, labels).item() == pytest.approx(over_pairs(chosen) / error, rel=1e-6)


def test_normalised_by_a_given_accuracy():
    logits, labels = torch.randn(5, 50, 3), torch.randint(3, (50,))
    prediction = lb.Prediction(logits, lb.Categorical())
    whole = accuracy(prediction, labels)
    expected = over_pairs(logits.argmax(-1)) / (1 - whole.item())
    assert normalised_disagreement(prediction, labels, accuracy=whole).item() == pytest.approx(expected, rel=1e-5)
    assert normalised_disagreement(prediction, labels, accuracy=0.5).item() == pytest.approx(
        over_pairs(logits.argmax(-1)) / 0.5, rel=1e-5
    )


def test_bounds():
    same = torch.randint(3, (1, 20)).expand(4, 20)
    assert disagreement(same).item() == 0
    assert disagreement(torch.arange(4).unsqueeze(1).expand(4, 20)).item() == 1


def test_members_without_an_error_have_no_ratio():
    labels = torch.randint(3, (20,))
    assert normalised_disagreement(labels.expand(4, 20), labels).isnan()


def test_labels_probabilities_logits_and_predictions_agree():
    logits = torch.randn(6, 30, 4)
    expected = disagreement(logits.argmax(-1))
    for members in (logits, logits.softmax(-1), lb.Prediction(logits), lb.Prediction(logits, lb.Categorical())):
        assert torch.equal(disagreement(members), expected)


def test_images_have_their_classes_on_axis_one():
    logits = torch.randn(3, 2, 4, 5, 5)
    expected = disagreement(logits.argmax(2).flatten(1))
    assert torch.equal(disagreement(lb.Prediction(logits, lb.Categorical(class_dim=1))), expected)


def test_yes_or_no():
    logits, labels = torch.randn(6, 30, 1), torch.randint(2, (30,))
    prediction = lb.Prediction(logits, lb.Bernoulli())
    assert torch.equal(disagreement(prediction), disagreement(logits[..., 0] > 0))
    assert torch.equal(normalised_disagreement(prediction, labels), normalised_disagreement(logits[..., 0] > 0, labels))


def test_bad_input():
    with pytest.raises(ValueError, match="at least 2 members, not 1"):
        disagreement(torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"\[S, B, C\]"):
        disagreement(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"\[S, B\]"):
        disagreement(torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match="4 examples do not fit"):
        normalised_disagreement(torch.zeros(2, 4, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="real values"):
        disagreement(lb.Prediction(torch.zeros(2, 4, 1), lb.Gaussian(1.0)))
