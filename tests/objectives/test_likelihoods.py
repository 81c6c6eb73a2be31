"""Likelihoods against torch's losses and torch.distributions."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import distributions as D

import leanbayes as lb


def test_categorical_equals_cross_entropy_for_every_layout():
    torch.manual_seed(0)
    for shape, labels in (((6, 4), (6,)), ((6, 3, 4), (6, 3))):
        outputs, y = torch.randn(2, *shape), torch.randint(4, labels)
        expected = -torch.stack([F.cross_entropy(o.reshape(-1, 4), y.flatten(), reduction="none") for o in outputs])
        found = lb.Categorical().log_prob(outputs, y)
        torch.testing.assert_close(found, expected.view(2, 6, -1).sum(-1))
    images, y = torch.randn(2, 6, 4, 3, 5), torch.randint(4, (6, 3, 5))
    expected = -torch.stack([F.cross_entropy(o, y, reduction="none").sum((1, 2)) for o in images])
    torch.testing.assert_close(lb.Categorical().log_prob(images, y), expected)
    torch.testing.assert_close(lb.Categorical(class_dim=1).log_prob(images, y), expected)


def test_categorical_ignores_an_index_and_masks():
    outputs, y = torch.randn(1, 2, 3, 4), torch.tensor([[0, -100, 2], [1, 1, -100]])
    expected = -F.cross_entropy(outputs[0].flatten(0, 1), y.flatten(), ignore_index=-100, reduction="none").view(2, 3)
    torch.testing.assert_close(lb.Categorical().log_prob(outputs, y)[0], expected.sum(1))
    full = torch.tensor([[0, 1, 2], [1, 1, 0]])
    mask = torch.tensor([[True, False, True], [True, True, False]])
    elements = lb.Categorical().elementwise(outputs, full)[0]
    torch.testing.assert_close(lb.Categorical().log_prob(outputs, full, mask)[0], (elements * mask).sum(1))


def test_label_smoothing_acts_in_training_only():
    outputs, y = torch.randn(1, 5, 4), torch.randint(4, (5,))
    likelihood = lb.Categorical(label_smoothing=0.1)
    expected = -F.cross_entropy(outputs[0], y, reduction="none", label_smoothing=0.1)
    torch.testing.assert_close(likelihood.training_score(outputs, y)[0], expected)
    torch.testing.assert_close(likelihood.elementwise(outputs, y), lb.Categorical().elementwise(outputs, y))


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_labels_of_any_whole_type(kind):
    torch.manual_seed(0)
    outputs, y = torch.randn(2, 6, 200), torch.tensor([0, 2, 1, 1, 100, 2])
    likelihood = lb.Categorical()
    likelihood.check(outputs, y.to(kind))
    assert torch.equal(likelihood.log_prob(outputs, y.to(kind)), likelihood.log_prob(outputs, y))
    if kind == torch.uint8:
        # 156 is what becomes of -100 in a byte.
        y[0] = 156
        assert torch.equal(likelihood.log_prob(outputs, y.to(kind)), likelihood.log_prob(outputs, y))
        with pytest.raises(ValueError, match="labels must be from 0 to 149"):
            likelihood.check(outputs[..., :150], y.to(kind))


@pytest.mark.parametrize(
    "likelihood, y",
    [
        (lb.Categorical(), torch.tensor([0, 2, 1])),
        (lb.Categorical(label_smoothing=0.1), torch.full((3, 4), 0.25)),
        (lb.Bernoulli(), torch.ones(3, 4)),
        (lb.Gaussian(2.0), torch.ones(3, 4)),
    ],
    ids=["labels", "soft labels", "events", "values"],
)
def test_double_outputs_are_scored_in_double(likelihood, y):
    torch.manual_seed(0)
    outputs = torch.randn(2, 3, 4, dtype=torch.float64)
    for score in (likelihood.log_prob, likelihood.training_score):
        found = score(outputs, y)
        assert found.dtype == torch.float64
        assert score(outputs.float(), y).dtype == torch.float32
        assert score(outputs.bfloat16(), y).dtype == torch.float32
        torch.testing.assert_close(found.float(), score(outputs.float(), y))


def test_soft_labels():
    outputs, y = torch.randn(1, 5, 4), torch.rand(5, 4).softmax(-1)
    torch.testing.assert_close(
        lb.Categorical().log_prob(outputs, y)[0], -F.cross_entropy(outputs[0], y, reduction="none")
    )


@pytest.mark.parametrize("labels", [(6,), (6, 1), (6, 3)])
def test_bernoulli_equals_binary_cross_entropy(labels):
    shape = (6, 1) if len(labels) == 1 else labels
    outputs, y = torch.randn(2, *shape), torch.randint(2, labels)
    expected = D.Bernoulli(logits=outputs.view(2, *labels)).log_prob(y.float())
    torch.testing.assert_close(lb.Bernoulli().log_prob(outputs, y), expected.reshape(2, 6, -1).sum(-1))


def test_gaussian_equals_the_normal_density():
    outputs, y = torch.randn(2, 6, 3), torch.randn(6, 3)
    precision = torch.tensor([0.5, 2.0, 10.0])
    expected = D.Normal(outputs, precision.rsqrt()).log_prob(y).sum(-1)
    torch.testing.assert_close(lb.Gaussian(precision).log_prob(outputs, y), expected)
    torch.testing.assert_close(lb.Gaussian(0.1).log_prob(outputs, y), D.Normal(outputs, 0.1**-0.5).log_prob(y).sum(-1))
    both = torch.randn(2, 6, 6)
    expected = D.Normal(both[..., :3], (0.5 * both[..., 3:]).exp()).log_prob(y).sum(-1)
    torch.testing.assert_close(lb.Gaussian().log_prob(both, y), expected)


def test_learned_precision_is_trained():
    likelihood = lb.Gaussian("learned")
    y = 3.0 * torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
    optimiser = torch.optim.LBFGS(likelihood.parameters(), max_iter=50)

    def closure():
        optimiser.zero_grad()
        loss = -likelihood.log_prob(torch.zeros(1, 2000, 1), y).mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    assert float(likelihood.log_precision.detach().exp()) == pytest.approx(1 / float(y.square().mean()), rel=1e-3)


def test_a_learned_precision_takes_states_from_before_and_after_the_first_batch():
    grown, fresh = lb.Gaussian("learned", init_precision=4.0), lb.Gaussian("learned", init_precision=2.0)
    start = {name: value.clone() for name, value in fresh.state_dict().items()}
    grown.add_outputs_(3)
    parameter = grown.log_precision
    fresh.load_state_dict(grown.state_dict())
    torch.testing.assert_close(fresh.log_precision, torch.full((3,), math.log(4.0)))
    grown.load_state_dict(start)
    torch.testing.assert_close(grown.log_precision, torch.full((3,), math.log(2.0)))
    assert grown.log_precision is parameter
    with pytest.raises(RuntimeError, match="size mismatch"):
        grown.load_state_dict({"log_precision": torch.zeros(2)})
    grown.load_state_dict(start, assign=True)
    assert grown.log_precision.is_contiguous()  # or optimisers could not write into it


@pytest.mark.parametrize(
    ("likelihood", "outputs", "y", "message"),
    [
        (lb.Categorical(), torch.zeros(1, 3, 4), torch.tensor([0, 4, 1]), "from 0 to 3"),
        (lb.Categorical(), torch.zeros(1, 3, 4), torch.tensor([0, -1, 1]), "from 0 to 3"),
        (lb.Categorical(), torch.zeros(1, 3, 4), torch.zeros(3, 2, dtype=torch.long), "do not fit"),
        (lb.Categorical(), torch.zeros(1, 3, 4), torch.zeros(3), "whole numbers"),
        (lb.Bernoulli(), torch.zeros(1, 3, 1), torch.tensor([0, 2, 1]), "from 0 to 1"),
        (lb.Gaussian(1.0), torch.zeros(1, 3, 1), torch.tensor([0.0, float("nan"), 1.0]), "NaN"),
        (lb.Gaussian(1.0), torch.zeros(1, 3, 2), torch.zeros(3), "do not fit"),
        (lb.Bernoulli(), torch.zeros(1, 2, 1), torch.tensor([0.0, float("nan")]), "from 0 to 1"),
        (lb.Categorical(), torch.zeros(1, 1, 2), torch.tensor([[0.5, float("nan")]]), "from 0 to 1"),
        (lb.Categorical(), torch.zeros(1, 1, 2), torch.tensor([[1.5, -0.5]]), "from 0 to 1"),
        (lb.Categorical(), torch.zeros(1, 1, 3), torch.tensor([[1.0, 0.0, 1.0]]), "sum to up to 2; .* lb.Bernoulli"),
        (lb.Gaussian([1.0, 2.0, 3.0]), torch.zeros(1, 4, 2), torch.zeros(4, 2), "a noise of shape"),
        (lb.Gaussian("learned", outputs=3), torch.zeros(1, 4, 2), torch.zeros(4, 2), "a noise of shape"),
        (lb.Gaussian(outputs=3, held_out=True), torch.zeros(1, 4, 4), torch.zeros(4, 2), "a noise of shape"),
    ],
)
def test_targets_that_do_not_fit_are_one_clear_error(likelihood, outputs, y, message):
    with pytest.raises((TypeError, ValueError), match=message):
        likelihood.check(outputs, y)


def test_probabilities_of_half_precision_and_padding_are_targets():
    soft = torch.rand(4, 1000).softmax(-1)
    for targets in (soft.bfloat16(), soft.half(), soft * torch.tensor([[1.0], [1.0], [0.0], [0.0]])):
        lb.Categorical().check(torch.zeros(1, 4, 1000), targets)


@pytest.mark.parametrize("options", [{"label_smoothing": "0.1"}, {"ignore_index": None}, {"ignore_index": 1.5}])
def test_bad_options_of_classes_are_errors(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}=.* takes"):
        lb.Categorical(**options)


@pytest.mark.parametrize("precision", [0.0, -1.0, "fixed", [1.0, -2.0], [], True])
def test_bad_precision_is_an_error(precision):
    with pytest.raises(ValueError, match="precision"):
        lb.Gaussian(precision)
