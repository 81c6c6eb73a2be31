"""Prediction's fields against definitions written out by hand."""

import math

import pytest
import torch
from scipy import stats
from torch import distributions as D

import leanbayes as lb
from leanbayes import Prediction
from leanbayes._prediction import Statistics


def outputs(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_classes_by_definition():
    logits = outputs(7, 5, 3)
    prediction = Prediction(logits, lb.Categorical())
    each = logits.softmax(-1)
    probs = each.mean(0)
    entropy = D.Categorical(probs).entropy()
    aleatoric = D.Categorical(each).entropy().mean(0)
    torch.testing.assert_close(prediction.probs, probs)
    torch.testing.assert_close(prediction.mean, probs)
    torch.testing.assert_close(prediction.std, each.std(0, correction=0))
    torch.testing.assert_close(prediction.entropy, entropy)
    torch.testing.assert_close(prediction.aleatoric, aleatoric)
    torch.testing.assert_close(prediction.mutual_information, entropy - aleatoric)
    assert torch.equal(prediction.label, probs.argmax(-1))
    torch.testing.assert_close(prediction.confidence, probs.amax(-1))
    y = torch.tensor([0, 1, 2, 0, 1])
    torch.testing.assert_close(prediction.log_prob(y), probs[range(5), y].log())


def test_probabilities_are_averaged_never_logits():
    prediction = Prediction(torch.tensor([[[10.0, 0.0]], [[0.0, 2.0]]]))
    expected = torch.tensor([[10.0, 0.0], [0.0, 2.0]]).softmax(-1).mean(0)
    torch.testing.assert_close(prediction.probs[0], expected)
    assert not torch.allclose(prediction.probs[0], torch.tensor([5.0, 1.0]).softmax(-1), atol=0.1)


def test_without_a_likelihood_mean_and_std_are_of_raw_outputs():
    values = outputs(7, 5, 3)
    prediction = Prediction(values)
    torch.testing.assert_close(prediction.mean, values.mean(0))
    torch.testing.assert_close(prediction.std, values.std(0, correction=0))
    torch.testing.assert_close(prediction.quantile(0.25), values.quantile(0.25, dim=0))


def test_events_by_definition():
    logits = outputs(7, 5, 1)
    prediction = Prediction(logits, lb.Bernoulli())
    each = logits.sigmoid()
    torch.testing.assert_close(prediction.probs, each.mean(0))
    torch.testing.assert_close(prediction.entropy, D.Bernoulli(each.mean(0)).entropy())
    torch.testing.assert_close(prediction.aleatoric, D.Bernoulli(each).entropy().mean(0))
    assert torch.equal(prediction.label, (each.mean(0) > 0.5).long())
    y = torch.tensor([0, 1, 1, 0, 1])
    expected = D.Bernoulli(each).log_prob(y[:, None].float()).squeeze(-1).logsumexp(0) - math.log(7)
    torch.testing.assert_close(prediction.log_prob(y), expected)


def test_values_by_definition():
    means = outputs(7, 5, 2)
    prediction = Prediction(means, lb.Gaussian(4.0))
    torch.testing.assert_close(prediction.mean, means.mean(0))
    torch.testing.assert_close(prediction.std, (means.var(0, correction=0) + 0.25).sqrt())
    y = outputs(5, 2)
    expected = D.Normal(means, 0.5).log_prob(y).sum(-1).logsumexp(0) - math.log(7)
    torch.testing.assert_close(prediction.log_prob(y), expected)
    torch.testing.assert_close(prediction.aleatoric, D.Normal(means, 0.5).entropy().mean(0))
    torch.testing.assert_close(prediction.entropy, prediction.aleatoric + prediction.mutual_information)


def test_noise_is_not_lost_beside_a_large_mean():
    outputs = torch.full((3, 2, 1), 1e9, dtype=torch.float64)
    prediction = lb.Prediction(outputs, lb.Gaussian(4.0))
    torch.testing.assert_close(prediction.std, torch.full((2, 1), 0.5, dtype=torch.float64))
    torch.testing.assert_close(prediction.mutual_information, torch.zeros(2, 1, dtype=torch.float64))


def test_quantiles_of_a_mixture_of_normals():
    both = outputs(6, 3, 2)
    prediction = Prediction(both, lb.Gaussian())
    found = prediction.quantile([0.05, 0.5, 0.95])
    assert found.shape == (3, 3, 1)
    for level, row in zip((0.05, 0.5, 0.95), found):
        for b in range(3):
            scale = (0.5 * both[:, b, 1]).exp().numpy()
            reached = stats.norm.cdf(float(row[b]), both[:, b, 0].numpy(), scale).mean()
            assert reached == pytest.approx(level, abs=1e-5)
    single = Prediction(torch.zeros(1, 1, 1), lb.Gaussian(1.0))
    assert float(single.quantile(0.975)) == pytest.approx(1.959964, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("level", [0.025, 0.3, 0.999])
def test_levels_of_quantiles_are_not_rounded_with_the_outputs(dtype, level):
    values = outputs(50, 4, 1).to(dtype)
    noisy = Prediction(torch.zeros(1, 1, 1, dtype=dtype), lb.Gaussian(1.0)).quantile(level)
    assert float(noisy) == pytest.approx(stats.norm.ppf(level), abs=1e-5)
    torch.testing.assert_close(Prediction(values).quantile(level), values.float().quantile(level, dim=0))


def test_a_summary_gives_unlikely_labels_their_probability():
    logits = torch.tensor([[[0.0, -150.0]], [[0.0, -140.0]]])
    summed = Statistics(lb.Categorical())
    summed.add(logits)
    found = Prediction(None, lb.Categorical(), summed).log_prob(torch.tensor([1]))
    torch.testing.assert_close(found, Prediction(logits, lb.Categorical()).log_prob(torch.tensor([1])))


def mixture(mean, std):
    """A prediction of one target as a mixture of normals."""
    each = torch.tensor([mean, [2 * math.log(s) for s in std]], dtype=torch.float64).T
    return Prediction(each.unsqueeze(1), lb.Gaussian())


@pytest.mark.parametrize("level", [1e-9, 0.001, 0.05, 0.3, 0.6, 0.9999])
@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ((0.0, 0.1, -0.2, 0.05), (1.0, 1.1, 0.9, 1.0)),
        ((-50.0, 0.0, 70.0), (1.0, 0.01, 2.0)),  # far apart: flat in between
        ((0.0, 0.0, 0.0), (1e-3, 1.0, 3e3)),
        ((1e6, 1e6 + 3), (0.5, 1.0)),
        ((2.0,), (3.0,)),
    ],
)
def test_quantiles_of_any_mixture_are_reached(mean, std, level):
    levels = torch.tensor([level], dtype=torch.float64)
    found = float(mixture(mean, std).quantile(levels))
    assert stats.norm.cdf(found, mean, std).mean() == pytest.approx(level, rel=1e-6)


def test_the_median_between_normals_far_apart_has_half_on_either_side():
    found = float(mixture((-1000.0, 1000.0), (1.0, 1.0)).quantile(0.5))
    assert stats.norm.cdf(found, (-1000, 1000), (1, 1)).mean() == 0.5


def test_quantiles_take_a_few_steps(monkeypatch):
    count, ndtr = [], torch.special.ndtr
    monkeypatch.setattr(torch.special, "ndtr", lambda z: count.append(1) or ndtr(z))
    Prediction(outputs(16, 200, 2), lb.Gaussian()).quantile(0.05)
    assert len(count) < 15


def test_images_have_their_classes_last():
    logits = outputs(4, 2, 3, 5, 6)
    torch.testing.assert_close(
        Prediction(logits, lb.Categorical(class_dim=1)).probs, logits.softmax(2).mean(0).movedim(1, -1)
    )


def test_what_a_prediction_does_not_know_is_a_clear_error():
    with pytest.raises(ValueError, match="predicts values"):
        _ = Prediction(outputs(2, 3, 1), lb.Gaussian(1.0)).probs
    with pytest.raises(ValueError, match="from 0 to 1"):
        Prediction(outputs(2, 3, 1)).quantile(1.5)
    with pytest.raises(ValueError, match="labels must be"):
        Prediction(outputs(2, 3, 4)).log_prob(torch.tensor([0, 9, 1]))
