"""Mixing probabilities that predict held-out data best."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.analysis import stack_mixing, stacking_weights

GENERATOR = torch.Generator().manual_seed(0)
TEACHER = 2 * torch.randn(4, 3, generator=GENERATOR)
X = torch.randn(300, 4, generator=GENERATOR)
Y = torch.multinomial((X @ TEACHER).softmax(-1), 1, generator=GENERATOR)[:, 0]
HELD_OUT, TESTED = (X[:150], Y[:150]), (X[150:], Y[150:])


def one_layer(method):
    """Copies near the teacher, of which the second is junk; the first is sure and the third is not."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3))
    model = lb.bayesianize(net, method).eval()
    with torch.no_grad():
        copies = model[0].weight.posterior.copies
        copies.copy_(TEACHER.T + 0.3 * torch.randn_like(copies))
        copies[0] *= 2.0
        copies[1] = 3 * torch.randn(3, 4)
        copies[2] *= 0.5
        model[0].bias.posterior.copies.zero_()
    return model


def network(method, layers=2, junk=True):
    """A network that has learned a little, some of whose copies are then spoilt."""
    torch.manual_seed(0)
    parts = [part for _ in range(layers - 1) for part in (nn.Linear(6, 6), nn.LayerNorm(6), nn.ReLU())]
    net = nn.Sequential(nn.Linear(4, 6), *parts, nn.Linear(6, 3))
    model = lb.bayesianize(net, method)
    elbo = lb.ELBO(model, 1000, kl_weight=0.01)
    optimizer = torch.optim.Adam(elbo.parameters(), 0.03)
    x = torch.randn(1000, 4)
    y = torch.multinomial((x @ TEACHER).softmax(-1), 1)[:, 0]
    for _ in range(150):
        optimizer.zero_grad()
        elbo(x, y).loss.backward()
        optimizer.step()
    optimizer.zero_grad()
    if junk:
        with torch.no_grad():
            model[-1].weight.posterior.copies[1].normal_(0, 2)
            model[2].weight.posterior.copies[0].normal_()
    return model.eval()


def combinations(model, x, y):
    """Log density of each example under every combination of copies, ``[K_1, ..., K_L, N]``, by plain networks."""
    layers = [m for m in model.modules() if isinstance(m, lb.nn.BayesianLayer | lb.nn.NormLayer)]
    sizes = [layer.weight.posterior.components for layer in layers]
    rows = []
    for choice in itertools.product(*map(range, sizes)):
        other = copy.deepcopy(model)
        chosen = [m for m in other.modules() if isinstance(m, lb.nn.BayesianLayer | lb.nn.NormLayer)]
        with torch.no_grad():
            for layer, k in zip(chosen, choice):
                for part in (layer.weight.posterior, layer.bias.posterior):
                    part.copies.copy_(part.copies[k].expand_as(part.copies).clone())
            rows.append(lb.point_estimate(other)(x).double().log_softmax(-1).gather(1, y[:, None])[:, 0])
    return torch.stack(rows).unflatten(0, sizes)


def by_brute_force(table, steps=4000):
    """The best probabilities of every layer, by gradient ascent in float64 over all combinations."""
    logits = [torch.zeros(size, dtype=torch.float64, requires_grad=True) for size in table.shape[:-1]]
    optimizer = torch.optim.Adam(logits, 0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -value_of(table, [each.log_softmax(0) for each in logits])
        loss.backward()
        optimizer.step()
    return [each.detach().softmax(0) for each in logits]


def value_of(table, log_probs):
    for axis, each in enumerate(log_probs):
        table = table + each.view(-1, *(1,) * (table.dim() - 1 - axis))
    return table.flatten(0, -2).logsumexp(0).mean()


def plain_em(log_density, steps=100_000):
    weights = torch.full((len(log_density),), 1 / len(log_density), dtype=torch.float64)
    for _ in range(steps):
        new = (log_density + weights.log().unsqueeze(1)).softmax(0).mean(1)
        if (new - weights).abs().max() < 1e-12:
            break
        weights = new
    return weights


def nll(model, x, y, samples=200, seed=7):
    return -float(lb.predict(model, x, samples, seed=seed).log_prob(y).mean())


@pytest.mark.parametrize(
    "method",
    [lb.EMP(4), lb.EMP(4, learn_mixing=True), lb.EMP(4, mixing=(0.1, 0.6, 0.2, 0.1)), lb.EMP(4, draw="example")],
    ids=["equal", "learned", "fixed", "by example"],
)
def test_one_layer_gets_the_optimum_of_the_convex_problem(method):
    model = one_layer(method)
    found = stack_mixing(model, *HELD_OUT)
    table = combinations(model, *HELD_OUT)
    expected = plain_em(table)
    assert found.exact
    torch.testing.assert_close(found.probs["0"], expected, rtol=0, atol=1e-4)
    assert float(found.probs["0"][1]) < 1e-4 and (found.probs["0"] > 0.01).sum() > 1
    assert found.after == pytest.approx(float(value_of(table, [expected.log()])), abs=1e-5)
    torch.testing.assert_close(model[0].mixing.probs(X).double(), found.probs["0"], rtol=0, atol=1e-6)


def test_two_layers_reach_what_brute_force_reaches():
    model = network(lb.EMP(2, init_std=0.5))
    found = stack_mixing(model, *HELD_OUT)
    table = combinations(model, *HELD_OUT)
    best = by_brute_force(table)
    assert found.exact and list(found.probs) == ["2", "4"]
    reached = value_of(table, [probs.log() for probs in found.probs.values()])
    assert float(reached) == pytest.approx(found.after, abs=1e-5)
    assert float(reached) >= float(value_of(table, [probs.log() for probs in best])) - 1e-5
    for probs, expected in zip(found.probs.values(), best):
        torch.testing.assert_close(probs, expected, rtol=0, atol=5e-3)


def test_draws_come_near_the_exact_solution():
    model = network(lb.EMP(3, init_std=0.5), layers=3)
    table = combinations(model, *HELD_OUT)
    exact, drawn = stack_mixing(copy.deepcopy(model), *HELD_OUT, samples=27), stack_mixing(model, *HELD_OUT, samples=16)
    assert exact.exact and not drawn.exact
    reached = [float(value_of(table, [p.log() for p in found.probs.values()])) for found in (exact, drawn)]
    begun = float(value_of(table, [torch.full((3,), 1 / 3, dtype=torch.float64).log()] * 3))
    assert begun == pytest.approx(exact.before, abs=1e-5)
    assert reached[0] >= reached[1] > begun + 0.95 * (reached[0] - begun)


@pytest.mark.parametrize("method", [lb.EMP(3, init_std=0.5), lb.ECMP(3, init_std=0.5)], ids=["emp", "ecmp"])
def test_predictions_of_unseen_data_improve(method):
    model = network(method, layers=3)
    before = nll(model, *TESTED)
    found = stack_mixing(model, *HELD_OUT, samples=16)
    assert found.after > found.before + 0.01
    assert nll(model, *TESTED) < before - 0.01
    assert list(found.probs) == ["2", "5", "7"] and float(found.probs["7"][1]) < 0.2  # that copy is junk


@pytest.mark.parametrize("samples", [64, 8])
@pytest.mark.parametrize("method", [lb.EMP(3), lb.ECMP(3), lb.EMP(3, mixing=(0.5, 0.3, 0.2))], ids=str)
def test_equal_copies_leave_the_probabilities_alone(method, samples):
    model = network(method, layers=3, junk=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("copies"):
                parameter.copy_(parameter[:1].expand_as(parameter).clone())
    found = stack_mixing(model, *HELD_OUT, samples=samples)
    expected = torch.tensor(method.mixing or (1 / 3,) * 3, dtype=torch.float64)
    for probs in found.probs.values():
        torch.testing.assert_close(probs, expected, rtol=0, atol=1e-5)
    assert found.after == pytest.approx(found.before, abs=1e-6)


def test_a_layer_of_equal_copies_is_left_alone_beside_one_with_junk():
    model = network(lb.EMP(4, init_std=0.5), layers=3)
    with torch.no_grad():
        for part in (model[2].weight.posterior, model[2].bias.posterior):
            part.copies.copy_(part.copies[:1].expand_as(part.copies).clone())
    found = stack_mixing(model, *HELD_OUT, samples=8)
    assert not found.exact and found.after > found.before
    torch.testing.assert_close(found.probs["2"], torch.full((4,), 0.25, dtype=torch.float64), rtol=0, atol=1e-3)


@pytest.mark.parametrize("method", [lb.EMP(3, init_std=0.5), lb.ECMP(3, init_std=0.5, learn_mixing=True)], ids=str)
def test_nothing_else_of_the_model_changes(method):
    model = network(method).train()
    model[0].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = {name: (p.requires_grad, p.grad) for name, p in model.named_parameters()}
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    found = stack_mixing(model, *HELD_OUT, samples=8)
    assert found.after > found.before
    assert torch.equal(torch.rand(3), expected)
    assert all(module.training for module in model.modules() if not list(module.children()))
    assert {name: (p.requires_grad, p.grad) for name, p in model.named_parameters()} == flags
    for name, value in before.items():
        if not name.endswith("mixing.logits"):
            assert torch.equal(model.state_dict()[name], value), name


def test_draws_divergence_and_points_go_by_the_new_probabilities():
    model = one_layer(lb.EMP(4))
    lb.predict(model, *HELD_OUT[:1], 10)  # what is known of a model before must not outlive it
    lb.kl(model)
    probs = stack_mixing(model, *HELD_OUT).probs["0"].float()
    weight, bias = model[0].weight.posterior, model[0].bias.posterior
    torch.testing.assert_close(
        lb.point_estimate(model)[0].weight, torch.einsum("k,koi->oi", probs, weight.copies), rtol=1e-5, atol=1e-5
    )
    squares = weight.copies.square().flatten(1).sum(1) + bias.copies.square().sum(1)
    expected = (probs * squares).sum() / 2 + (probs * probs.log()).sum()
    torch.testing.assert_close(lb.kl(model), expected, rtol=1e-5, atol=1e-5)
    outputs = lb.predict(model, X[:5], 4000, seed=0).outputs
    each = torch.einsum("koi,bi->kbo", weight.copies, X[:5])
    drawn = (outputs.unsqueeze(0) - each.unsqueeze(1)).abs().flatten(2).amax(2).argmin(0)
    share = torch.bincount(drawn, minlength=4) / 4000
    assert ((share - probs).abs() <= 4 * (probs * (1 - probs) / 4000).sqrt() + 1e-3).all()


def test_layers_that_drew_together_part_where_one_is_stacked():
    """Layers with equal probabilities draw their indices in one go; one that has others must not be among them."""
    model = network(lb.EMP(3, init_std=0.5), layers=3, junk=False)
    lb.predict(model, X, 10)
    with torch.no_grad():
        model[2].mixing.set_probs_(torch.tensor([0.001, 0.998, 0.001]))
    with torch.no_grad(), lb.sampling(n=300, seed=0, hold=True):
        model(lb.fold(X[:2], 300))
        first, other = (model[i].weight.choice(300, lb.current_sampling()) for i in (2, 5))
    assert (first == 1).float().mean() > 0.97 and other.unique().tolist() == [0, 1, 2]


def test_training_goes_on():
    model = one_layer(lb.EMP(4, learn_mixing=True))
    probs = stack_mixing(model, *HELD_OUT).probs["0"]
    elbo = lb.ELBO(model, 300)
    elbo(*HELD_OUT).loss.backward()
    assert model[0].mixing.logits.grad.abs().sum() > 0 and not probs.requires_grad
    fixed = one_layer(lb.EMP(4))
    stack_mixing(fixed, *HELD_OUT)
    terms = lb.ELBO(fixed, 300)(*HELD_OUT)
    terms.loss.backward()
    assert terms.loss.isfinite() and fixed[0].weight.posterior.copies.grad.isfinite().all()


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("kind", [lb.EMP, lb.ECMP])
def test_a_saved_model_keeps_them(kind, learn, tmp_path):
    model = network(kind(3, init_std=0.5, learn_mixing=learn))
    found = stack_mixing(model, *HELD_OUT, samples=8)
    assert found.after > found.before
    lb.save(model, tmp_path / "model.safetensors")
    plain = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3))
    fresh = lb.bayesianize(copy.deepcopy(plain), kind(3, init_std=0.5, learn_mixing=learn))
    lb.predict(fresh, X, 4)
    by_state = copy.deepcopy(fresh)
    by_state.load_state_dict(model.state_dict())
    expected = lb.predict(model, X, 10, seed=0).outputs
    for again in (
        lb.load(tmp_path / "model.safetensors", plain),
        lb.load(tmp_path / "model.safetensors", fresh),
        by_state,
    ):
        assert torch.equal(lb.predict(again, X, 10, seed=0).outputs, expected)
        assert torch.equal(lb.kl(again), lb.kl(model))
    assert torch.equal(lb.predict(copy.deepcopy(model), X, 10, seed=0).outputs, expected)


def test_a_file_without_them_brings_back_those_of_the_method(tmp_path):
    model = one_layer(lb.EMP(4))
    lb.save(model, tmp_path / "model.safetensors")
    expected = lb.predict(model, X, 10, seed=0).outputs
    stack_mixing(model, *HELD_OUT)
    again = lb.load(tmp_path / "model.safetensors", model)
    assert torch.equal(again[0].mixing.probs(X), torch.full((4,), 0.25))
    assert torch.equal(lb.predict(again, X, 10, seed=0).outputs, expected)


def test_loaders_mappings_and_blocks_give_what_tensors_give():
    expected = stack_mixing(one_layer(lb.EMP(4)), *HELD_OUT)
    loader = DataLoader(TensorDataset(*HELD_OUT), batch_size=64)
    others = [
        stack_mixing(one_layer(lb.EMP(4)), loader),
        stack_mixing(one_layer(lb.EMP(4)), {"input": HELD_OUT[0]}, HELD_OUT[1]),
        stack_mixing(one_layer(lb.EMP(4)), *HELD_OUT, batch_size=7),
    ]
    for other in others:
        torch.testing.assert_close(other.probs["0"], expected.probs["0"], rtol=0, atol=1e-4)
        assert other.after == pytest.approx(expected.after, abs=1e-6)


def test_a_regression_with_its_likelihood():
    torch.manual_seed(0)
    model = lb.bayesianize(nn.Sequential(nn.Linear(4, 1)), lb.EMP(3, init_std=0.1)).eval()
    slope = torch.randn(4)
    with torch.no_grad():
        for k, factor in enumerate((1.0, -1.0, 0.9)):
            model[0].weight.posterior.copies[k, 0] = factor * slope
        model[0].bias.posterior.copies.zero_()
    y = X @ slope + 0.1 * torch.randn(300)
    found = stack_mixing(model, X, y, likelihood=lb.Gaussian(precision=25.0))
    outputs = torch.stack([factor * (X @ slope) for factor in (1.0, -1.0, 0.9)]).double()
    log_density = -0.5 * 25 * (outputs - y).square() + 0.5 * math.log(25 / (2 * math.pi))
    torch.testing.assert_close(found.probs["0"], plain_em(log_density), rtol=0, atol=1e-4)


def test_patches_beside_other_noise_and_beside_a_shared_index():
    torch.manual_seed(0)
    for other in (lb.MeanField(init_std=0.05), lb.Rank1(components=2)):
        net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
        model = lb.bayesianize(net, {"0": other, "1": lb.EMP(2, init_std=1.0)}).eval()
        found = stack_mixing(model, *HELD_OUT, samples=16)
        assert not found.exact and list(found.probs) == ["1"] and found.after >= found.before


def test_projections_of_attention_have_their_own(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            x = x.unsqueeze(1).expand(-1, 2, -1)
            return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))

    torch.manual_seed(0)
    model = lb.bayesianize(Net(), lb.EMP(2, init_std=1.0), where=lb.types(nn.MultiheadAttention)).eval()
    found = stack_mixing(model, *HELD_OUT, samples=64)
    assert found.after > found.before and all(name.startswith("attention") for name in found.probs)
    lb.save(model, tmp_path / "model.safetensors")
    again = lb.load(tmp_path / "model.safetensors", Net()).eval()
    assert torch.equal(lb.predict(again, X, 5, seed=0).outputs, lb.predict(model, X, 5, seed=0).outputs)


def test_a_quantised_copy_keeps_them():
    model = network(lb.EMP(3, init_std=0.5))
    found = stack_mixing(model, *HELD_OUT, samples=9)
    small = lb.quantize(model)
    torch.testing.assert_close(small[2].mixing.probs(X).double(), found.probs["2"], rtol=0, atol=1e-6)


def test_the_report_prints_a_table():
    text = str(stack_mixing(one_layer(lb.EMP(4)), *HELD_OUT))
    assert "0      0." in text and "exact" in text and "before" in text


def test_members_of_an_ensemble_get_weights_by_their_outputs():
    torch.manual_seed(0)
    model = lb.bayesianize(nn.Sequential(nn.Linear(4, 3)), lb.DeepEnsemble(members=3))
    prediction = lb.predict(model, HELD_OUT[0])
    weights = stacking_weights(prediction, HELD_OUT[1])
    log_density = prediction.outputs.double().log_softmax(-1).gather(-1, HELD_OUT[1].expand(3, -1).unsqueeze(-1))
    torch.testing.assert_close(weights, plain_em(log_density.squeeze(-1)), rtol=0, atol=1e-4)
    torch.testing.assert_close(stacking_weights(prediction.outputs, HELD_OUT[1]), weights)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stack_mixing("model", *HELD_OUT), "nn.Module"),
        (lambda: stack_mixing(nn.Linear(4, 3), *HELD_OUT), "no layer with mixing"),
        (lambda: stack_mixing(lb.bayesianize(nn.Linear(4, 3), lb.EMP(1)), *HELD_OUT), "no layer with mixing"),
        (lambda: stack_mixing(lb.bayesianize(nn.Linear(4, 3), lb.Rank1()), *HELD_OUT), "stacking_weights"),
        (lambda: stack_mixing(lb.bayesianize(nn.Linear(4, 3), lb.DeepEnsemble(2, of=lb.EMP())), *HELD_OUT), "ensemble"),
        (lambda: stack_mixing(one_layer(lb.EMP(4)), X), "targets are missing"),
        (lambda: stack_mixing(one_layer(lb.EMP(4)), X, Y[:5]), "a target for each of 300"),
        (lambda: stack_mixing(one_layer(lb.EMP(4)), X[:0], Y[:0]), "a target for each of 0"),
        (lambda: stack_mixing(one_layer(lb.EMP(4)), X, Y.tolist()), "y is a tensor"),
        (lambda: stack_mixing(one_layer(lb.EMP(4)), [(X,)]), "inputs, targets"),
        (lambda: stack_mixing(one_layer(lb.EMP(4)), []), "no batch"),
        (lambda: stack_mixing(one_layer(lb.EMP(4)), X, Y + 1), "labels must be from 0 to 2"),
        (lambda: stack_mixing(one_layer(lb.EMP(4)), X / 0, Y), "NaN"),
        (lambda: stack_mixing(one_layer(lb.EMP(4)), X, Y, samples=0), "samples is a whole number"),
        (lambda: stack_mixing(one_layer(lb.EMP(4)), X, Y, samples=None), "samples is a whole number"),
        (lambda: stack_mixing(one_layer(lb.EMP(4)), X, Y, rounds=1.5), "rounds is a whole number"),
        (lambda: stack_mixing(one_layer(lb.EMP(4)), X, Y, batch_size=0), "batch_size is a whole number"),
        (lambda: stack_mixing(one_layer(lb.EMP(4)), X, Y, likelihood="softmax"), "likelihood takes"),
        (lambda: stacking_weights(torch.zeros(3, 5, 2), Y), "outputs \\[K, N, ...\\]"),
        (lambda: stacking_weights([1.0], Y), "expected tensors or a Prediction"),
    ],
)
def test_bad_arguments_are_one_clear_error(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_an_error_leaves_the_model_as_it_was():
    model = one_layer(lb.EMP(4))
    with pytest.raises(ValueError, match="labels"):
        stack_mixing(model, X, Y + 1)
    assert model[0].mixing.found is None and len(model.state_dict()) == 2


def test_the_seed_repeats_it():
    found = [stack_mixing(network(lb.EMP(3, init_std=0.5), layers=3), *HELD_OUT, samples=4, seed=s) for s in (0, 0, 1)]
    assert all(torch.equal(a, b) for a, b in zip(found[0].probs.values(), found[1].probs.values()))
    assert found[0].before == found[1].before != found[2].before
