"""The iterative fast sign attack against gradients taken by hand."""

import json
import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.analysis import attack_curve, iterative_fast_sign
from tests.analysis.problems import groups, variance_network


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


X = torch.randn(9, 6, generator=torch.Generator().manual_seed(1)).clamp(-2, 2)
Y = torch.arange(9) % 3
BOUNDS = (-2.5, 2.5)


def fast_sign_by_hand(networks, x, y, step, steps, bounds):
    """The path of the attack on the mean of some networks' probabilities, example by example."""
    path = [x]
    for _ in range(steps):
        rows = []
        for row, label in zip(path[-1], y):
            row = row.clone().requires_grad_()
            probs = torch.stack([network(row.unsqueeze(0)).softmax(-1)[0, label] for network in networks])
            rows.append((row + step * torch.autograd.grad(probs.mean().log(), row)[0].sign()).clamp(*bounds).detach())
        path.append(torch.stack(rows))
    return torch.stack(path)


@pytest.mark.parametrize("targeted", [True, False])
@pytest.mark.parametrize("batch_size", [2, 100])
def test_a_plain_network_and_an_ensemble_equal_the_loop(targeted, batch_size):
    plain = net().eval()
    ensemble = lb.bayesianize(net(), lb.DeepEnsemble(members=3))
    members = [ensemble.member_module(k).eval() for k in range(3)]
    options = {"step": 0.25, "steps": 4, "bounds": BOUNDS}
    for model, networks in ((plain, [plain]), (ensemble, members)):
        found = iterative_fast_sign(model, X, Y, targeted=targeted, every_step=True, batch_size=batch_size, **options)
        wanted = fast_sign_by_hand(networks, X, Y, 0.25 if targeted else -0.25, 4, BOUNDS)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_the_gradient_is_that_of_averaged_probabilities():
    # Two members, one of them sure and wrong: its log-likelihood would outweigh, its probability does not.
    ensemble = lb.bayesianize(nn.Linear(1, 2), lb.DeepEnsemble(members=2))
    with torch.no_grad():
        ensemble.member.weight.copy_(torch.tensor([[[0.0], [1.0]], [[0.0], [-10.0]]]))
        ensemble.member.bias.copy_(torch.tensor([[0.0, 0.0], [0.0, -5.0]]))
    x, target = torch.tensor([[1.0]]), torch.tensor([1])
    assert iterative_fast_sign(ensemble, x, target, step=0.25, steps=1, bounds=(-5, 5)).item() == 1.25


@pytest.mark.parametrize(
    "method", [None, lb.VarianceLayer(), lb.VariationalDropout(), lb.DeepEnsemble(2, of=lb.VarianceLayer())]
)
def test_model_and_generators_are_left_alone(method):
    model = net() if method is None else lb.bayesianize(net(), method)
    parameters = list(model.parameters())
    parameters[0].requires_grad_(False)
    model.train()
    before = [p.detach().clone() for p in (*parameters, *model.buffers())]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    x = X.clone()
    found = iterative_fast_sign(model, x, Y, steps=2, samples=4, bounds=BOUNDS)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(x, X) and not x.requires_grad and not found.requires_grad
    assert all(p.grad is None for p in parameters)
    assert [p.requires_grad for p in parameters] == [False] + [True] * (len(parameters) - 1)
    assert all(torch.equal(a, b) for a, b in zip(before, (*parameters, *model.buffers())))
    assert all(module.training for module in model.modules())
    assert torch.equal(iterative_fast_sign(model, x, Y, steps=2, samples=4, bounds=BOUNDS), found)


def test_inputs_stay_within_bounds_and_reach():
    found = iterative_fast_sign(net(), X, Y, step=0.5, steps=8, bounds=BOUNDS)
    assert found.min() == BOUNDS[0] and found.max() == BOUNDS[1]
    free = iterative_fast_sign(net(), X, Y, step=0.5, steps=8, bounds=None)
    assert free.abs().max() > BOUNDS[1] and (free - X).abs().max() <= 4 + 1e-5


def test_means_are_attacked_within_a_sampling_context():
    model = lb.bayesianize(net(), lb.MeanField(init_std=1.0))
    with lb.sampling(mean=True):
        found = iterative_fast_sign(model, X, Y, steps=3, bounds=BOUNDS, every_step=True)
    wanted = fast_sign_by_hand([lb.point_estimate(model).eval()], X, Y, 0.5, 3, BOUNDS)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("targeted", [True, False])
def test_curve_counts_what_the_attacked_inputs_are_taken_for(targeted):
    model = net().eval()
    options = {"step": 0.25, "steps": 5, "targeted": targeted, "batch_size": 4, "bounds": BOUNDS}
    curve = attack_curve(model, X, Y, **options)
    path = iterative_fast_sign(model, X, Y, every_step=True, **options)
    for taken, x in enumerate(path):
        probs = model(x).softmax(-1)
        hit = (probs.argmax(1) == Y).double().mean().item()
        assert curve.success[taken] == pytest.approx(hit if targeted else 1 - hit)
        assert curve.entropy[taken] == pytest.approx(-(probs * probs.log()).sum(1).mean().item(), rel=1e-4)
    assert curve.success[-1] > curve.success[0]


def test_a_variance_network_is_fooled_too_and_the_curve_is_json():
    x, y = groups(30)
    x = x + 0.1 * torch.randn_like(x)  # where an input is zero, so is the gradient of its variance
    model = variance_network()
    curve = attack_curve(model, x, (y + 1) % 4, step=0.2, steps=6, bounds=(-5, 5), samples=10)
    assert curve.success[0] == 0 and curve.success[-1] > 0.5
    assert 0 <= min(curve.entropy) and max(curve.entropy) <= math.log(4)
    values = json.loads(json.dumps(curve.to_dict(), allow_nan=False))
    assert values["success"] == list(curve.success) and values["examples"] == 30
    assert len(str(curve).splitlines()) == 8
    assert attack_curve(model, x, (y + 1) % 4, step=0.2, steps=6, bounds=(-5, 5), samples=10) == curve


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"x": X.long()}, TypeError, "floating point"),
        ({"x": X - 10}, ValueError, "beyond bounds"),
        ({"y": Y[:2]}, ValueError, "one class label for each of 9 inputs"),
        ({"y": Y + 9}, ValueError, "renumber them"),
        ({"x": X[:0], "y": Y[:0]}, ValueError, "at least one input"),
        ({"x": torch.full_like(X, torch.nan)}, ValueError, "NaN"),
        ({"bounds": 1}, TypeError, "bounds are the smallest and the largest value"),
        ({"batch_size": 0}, ValueError, "batch_size is a whole number from 1"),
        ({"model": None}, TypeError, "takes a model, not NoneType"),
        ({"step": 0}, ValueError, "step is a positive length, not 0"),
        ({"steps": 0}, ValueError, "steps is a whole number from 1, not 0"),
    ],
)
def test_errors_say_what_is_wrong(changes, error, message):
    with pytest.raises(error, match=message):
        iterative_fast_sign(**({"model": net(), "x": X, "y": Y, "bounds": BOUNDS} | changes))
