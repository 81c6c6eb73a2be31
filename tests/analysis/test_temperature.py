"""Temperature scaling."""

import pytest
import torch

import leanbayes as lb
from leanbayes.analysis import fit_temperature


def calibrated(rows, classes=4, seed=0):
    """Scores whose softmax is the distribution of the labels."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(rows, classes, generator=generator)
    return scores, torch.multinomial(scores.softmax(-1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_that_was_applied_is_found(temperature):
    scores, labels = calibrated(40_000)
    assert fit_temperature(scores * temperature, labels) == pytest.approx(temperature, rel=0.03)


def test_it_is_where_the_loss_of_the_average_is_least():
    scores, labels = calibrated(500)
    outputs = torch.stack([5 * scores + torch.randn(500, 4), 5 * scores - torch.randn(500, 4)])
    best = fit_temperature(outputs, labels)

    def loss(temperature):
        likelihood = lb.Categorical(temperature=temperature)
        prediction = lb.Prediction(outputs, likelihood)
        return -prediction.probs.gather(1, labels[:, None]).log().mean()

    assert best > 1 and all(loss(best) <= loss(best * factor) for factor in (0.9, 0.99, 1.01, 1.1))


def test_predictions_and_training_use_it():
    model = lb.bayesianize(torch.nn.Linear(3, 2), lb.MeanField())
    x, y = torch.randn(6, 3), torch.randint(2, (6,))
    plain, soft = (lb.predict(model, x, 5, seed=0, likelihood=lb.Categorical(temperature=t)) for t in (1.0, 4.0))
    torch.testing.assert_close(soft.probs, (plain.outputs / 4).softmax(-1).mean(0))
    assert (soft.entropy > plain.entropy).all() and torch.equal(soft.outputs, plain.outputs)
    likelihood = lb.Categorical(temperature=4.0)
    expected = (plain.outputs / 4).log_softmax(-1).gather(-1, y.expand(5, 6)[..., None])[..., 0]
    torch.testing.assert_close(likelihood.log_prob(plain.outputs, y), expected)


def test_a_prediction_is_taken_as_it_is():
    scores, labels = calibrated(200)
    prediction = lb.Prediction((3 * scores)[None], lb.Categorical())
    assert fit_temperature(prediction, labels) == fit_temperature(3 * scores, labels)


def test_pixels_and_tokens_count_one_by_one():
    scores, labels = calibrated(300)
    expected = fit_temperature(3 * scores[:200], labels[:200])
    labels[200:] = -100  # do not count
    pixels = (3 * scores).view(3, 10, 10, 4).movedim(-1, 1)
    prediction = lb.Prediction(pixels[None], lb.Categorical(class_dim=1))
    assert fit_temperature(prediction, labels.view(3, 10, 10)) == pytest.approx(expected)


def test_one_output_for_yes_or_no():
    scores, labels = calibrated(400, classes=2)
    odds = 3 * (scores[:, 1:] - scores[:, :1])
    temperature = fit_temperature(lb.Prediction(odds[None], lb.Bernoulli()), labels[:, None].float())
    assert temperature == pytest.approx(fit_temperature(3 * scores, labels))
    soft = lb.Prediction(odds[None], lb.Bernoulli(temperature=temperature))
    torch.testing.assert_close(soft.probs, (odds.double() / temperature).sigmoid().float(), check_dtype=False)
    expected = torch.distributions.Bernoulli(logits=odds / temperature).log_prob(labels[:, None].float())
    torch.testing.assert_close(soft.log_prob(labels[:, None].float()), expected[:, 0], check_dtype=False)


def test_what_does_not_fit_is_said():
    with pytest.raises(ValueError, match="for classes, but this prediction has a Gaussian"):
        fit_temperature(lb.Prediction(torch.randn(1, 4, 3), lb.Gaussian(1.0)), torch.randn(4, 3))
    with pytest.raises(ValueError, match="no label"):
        fit_temperature(torch.randn(4, 3), torch.full((4,), -100))
    with pytest.raises(ValueError, match="temperature"):
        lb.Bernoulli(temperature=-1)
    with pytest.raises(ValueError, match="scores \\[S, B, C\\]"):
        fit_temperature(torch.randn(4, 3), torch.zeros(5, dtype=torch.long))
    with pytest.raises(ValueError, match="temperature"):
        lb.Categorical(temperature=0)
