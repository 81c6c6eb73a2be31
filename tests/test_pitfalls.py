"""Twenty-one ways in which libraries of Bayesian layers are silently wrong; one named test for each."""

import copy
import math
import subprocess
import sys

import pytest
import torch
from torch import distributions as D
from torch import nn

import leanbayes as lb
from leanbayes.methods import from_json, to_json
from leanbayes.parameter import RandomParameter

RANDOM = [
    lb.MeanField(init_std=0.3),
    lb.KTied(init_std=0.3),
    lb.VariationalDropout(init_log_alpha=0.0),
    lb.VarianceLayer(),
    lb.Rank1(init_std=0.3),
    lb.Rank1(posterior="cauchy"),
    lb.EMP(init_std=0.3),
    lb.ECMP(init_std=0.3),
    lb.MCDropout(p=0.5),
    lb.DropConnect(p=0.5),
]
each_random = pytest.mark.parametrize("method", RANDOM, ids=lambda m: f"{type(m).__name__}-{RANDOM.index(m)}")


def net(norm=True):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 6), nn.BatchNorm1d(6) if norm else nn.Identity(), nn.Tanh(), nn.Linear(6, 3)]
    return nn.Sequential(*layers)


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def test_01_kl_is_the_sum_over_all_weights():
    model = lb.bayesianize(nn.Sequential(*(nn.Linear(50, 50) for _ in range(3))), lb.MeanField(prior=lb.Normal(0, 1)))
    total = sum(
        D.kl_divergence(D.Normal(layer.weight.posterior.loc, layer.weight.posterior.std()), D.Normal(0, 1)).sum()
        for layer in model
    )
    torch.testing.assert_close(lb.kl(model), total)


@pytest.mark.parametrize("estimator", ["local", "flipout", "weight"])
def test_02_gradients_of_several_samples_are_the_mean_of_single_ones(estimator):
    model = lb.bayesianize(nn.Linear(4, 3), lb.MeanField(init_std=0.5, estimator=estimator))
    parameters = list(model.parameters())
    torch.manual_seed(0)
    losses = [model(X).square().sum() for _ in range(4)]  # four passes before any backward
    together = torch.autograd.grad(sum(losses) / 4, parameters)
    torch.manual_seed(0)
    single = [torch.autograd.grad(model(X).square().sum(), parameters) for _ in range(4)]
    for k, gradient in enumerate(together):
        torch.testing.assert_close(gradient, torch.stack([g[k] for g in single]).mean(0))


def test_03_each_distribution_is_counted_once():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4)
            self.again = self.lstm
            self.head = nn.Linear(4, 3)
            self.tied = nn.Embedding(3, 4)
            self.tied.weight = self.head.weight

    model = lb.bayesianize(Recurrent(), lb.MeanField(prior=lb.Normal(0, 1)))
    owners = {id(m): m for m in model.modules() if isinstance(m, RandomParameter)}.values()
    assert len(owners) == 3  # two LSTM kernels, one tied weight
    by_hand = sum(D.kl_divergence(D.Normal(o.posterior.loc, o.posterior.std()), D.Normal(0, 1)).sum() for o in owners)
    torch.testing.assert_close(lb.kl(model), by_hand)
    for _ in range(3):
        model.lstm(torch.randn(2, 1, 3))
    torch.testing.assert_close(lb.kl(model), by_hand)


def test_04_sign_and_direction():
    # Log-uniform: positive, decreasing in alpha, near 4.64 at log alpha = -8.
    model = lb.bayesianize(nn.Linear(1, 1, bias=False), lb.VariationalDropout(init_log_alpha=-8))
    assert float(lb.kl(model).detach()) == pytest.approx(4.64, abs=0.01)
    # KL(q || p), not KL(p || q).
    narrow = lb.bayesianize(nn.Linear(1, 1, bias=False), lb.MeanField(prior=lb.Normal(0, 1), init_std=0.1))
    q = narrow.weight.posterior
    expected = D.kl_divergence(D.Normal(q.loc, q.std()), D.Normal(0, 1)).sum()
    torch.testing.assert_close(lb.kl(narrow), expected)
    # The prior that was asked for is the one that is used, on convolutions too.
    ard = lb.bayesianize(nn.Conv2d(1, 1, 1, bias=False), lb.VariationalDropout(prior=lb.ARD(), init_log_alpha=0.0))
    assert float(lb.kl(ard).detach()) == pytest.approx(0.5 * math.log(2), abs=1e-6)


def test_05_mixtures_are_over_vectors_and_the_choice_is_explicit():
    model = lb.bayesianize(nn.Linear(6, 5), lb.Rank1(components=3, random_sign=0.5))
    posterior = model.weight.posterior
    per_component = sum(
        D.kl_divergence(D.Normal(f.loc, f.std()), D.Normal(1, 0.1)).sum(-1) for f in (posterior.output, posterior.input)
    )
    torch.testing.assert_close(lb.kl(model, "mean"), per_component.mean())
    torch.testing.assert_close(lb.kl(model, "sum"), per_component.sum())
    # Far apart, the K vectors (not K^D combinations) share the prior: the joint is the mean less log K.
    torch.manual_seed(0)
    joint = torch.stack([lb.kl(model, "joint").detach() for _ in range(400)])
    expected = float(per_component.detach().mean()) - math.log(3)
    assert abs(float(joint.mean()) - expected) < 5 * float(joint.std()) / 20


def test_06_noise_is_per_example_and_flipout_is_flipout():
    same = X[:1].expand(6, -1)
    for estimator, differ in (("local", True), ("flipout", True), ("weight", False)):
        layer = lb.bayesianize(nn.Linear(4, 3), lb.MeanField(init_std=0.5, estimator=estimator))
        assert (len(layer(same)[:, 0].detach().unique()) > 1) == differ
    # One image sees one weight under flipout: equal pixels give equal outputs.
    conv = lb.bayesianize(nn.Conv2d(2, 3, 1), lb.MeanField(init_std=0.5, estimator="flipout"))
    y = conv(torch.ones(4, 2, 5, 5))
    torch.testing.assert_close(y, y[..., :1, :1].expand_as(y))
    # No standard deviation, no noise.
    quiet = nn.Linear(4, 3)
    expected = quiet(X)
    torch.testing.assert_close(lb.bayesianize(quiet, lb.MeanField(init_std=1e-9, estimator="flipout"))(X), expected)


def test_07_recurrent_weights_are_drawn_once_per_sequence():
    model = lb.bayesianize(nn.LSTM(3, 4), lb.MeanField(init_std=0.5))
    x = torch.randn(7, 2, 3)
    with lb.sampling(hold=True, seed=0):
        whole, _ = model(x)
        first, state = model(x[:3])
        rest, _ = model(x[3:], state)
    torch.testing.assert_close(torch.cat([first, rest]), whole)
    plain = lb.point_estimate(model, seed=0)
    with lb.sampling(joint=True, seed=0):
        torch.testing.assert_close(model(x)[0], plain(x)[0])


def test_08_every_parameter_has_one_copy():
    model = lb.bayesianize(net(), lb.MeanField()).double()
    model[0].weight.posterior.loc.data.fill_(2.0)
    with lb.sampling(mean=True):
        expected = nn.functional.linear(X.double(), torch.full((6, 4), 2.0, dtype=torch.float64), model[0].bias)
        torch.testing.assert_close(model[0](X.double()), expected)
    assert torch.equal(lb.point_estimate(model)[0].weight, torch.full((6, 4), 2.0, dtype=torch.float64))
    assert len({id(p) for p in model.parameters()}) == len(list(model.named_parameters(remove_duplicate=False)))


def test_09_numerics_hold_at_the_edges():
    # Gradient of a log prior far out in its narrow part.
    w = torch.tensor(0.6, requires_grad=True)
    lb.ScaleMixture(weight=0.999, std=0.1, narrow_std=0.01).log_prob(w).backward()
    assert float(w.grad) == pytest.approx(-60, rel=1e-3)
    # A standard deviation larger than exp() can hold.
    model = lb.bayesianize(nn.Linear(2, 2), lb.MeanField())
    model.weight.posterior.raw_std.data.fill_(200.0)
    assert torch.isfinite(model.weight.posterior.std()).all()
    # Alphas beyond float32's exp, and zero variance under the square root.
    for value in (-100.0, 100.0):
        dropout = lb.bayesianize(nn.Linear(2, 2), lb.VariationalDropout())
        dropout.weight.posterior.raw_log_alpha.data.fill_(value)
        y = dropout(torch.zeros(3, 2))
        (y.sum() + lb.kl(dropout)).backward()
        assert torch.isfinite(y).all()
        assert all(torch.isfinite(p.grad).all() for p in dropout.parameters() if p.grad is not None)
    # The bias has no part in the variance.
    layer = lb.bayesianize(nn.Linear(2, 2), lb.VarianceLayer())
    layer.bias.data.fill_(-5.0)
    torch.testing.assert_close(layer(torch.zeros(3, 2)), torch.full((3, 2), -5.0))


def test_10_batch_statistics_move_once_per_step():
    model = lb.bayesianize(net(), lb.MeanField()).train()
    elbo = lb.ELBO(model, 5, samples=10)
    elbo(X, torch.randint(3, (5,)))
    assert int(model[1].num_batches_tracked) == 1
    lb.predict(model, X, 10)
    assert int(model[1].num_batches_tracked) == 1


@each_random
def test_11_sampling_does_not_depend_on_training_mode(method):
    model = lb.bayesianize(net(norm=not isinstance(method, (lb.EMP, lb.ECMP))), method)
    if isinstance(method, (lb.EMP, lb.ECMP)):
        assert isinstance(model[3].weight, RandomParameter)
    model.eval()
    outputs = [model(X) for _ in range(12)]
    assert any(not torch.equal(outputs[0], other) for other in outputs[1:])
    plain = lb.bayesianize(net(norm=False), method)
    with lb.sampling(seed=0):
        train = plain.train()(X)
    with lb.sampling(seed=0):
        torch.testing.assert_close(plain.eval()(X), train)


def test_12_one_layout_sample_index_outermost():
    model = lb.bayesianize(net(), lb.BatchEnsemble(components=3, random_sign=0.5)).eval()
    with lb.sampling(n=3, component="all"):
        rows = model(lb.fold(X, 3))
    for k in range(3):
        torch.testing.assert_close(rows[k * 5 : k * 5 + 5], lb.point_estimate(model, component=k)(X))


@pytest.mark.parametrize("rows", [1, 3, 10])
def test_13_partial_batches_smaller_than_the_number_of_members(rows):
    model = lb.bayesianize(net(norm=False), lb.BatchEnsemble(components=4, random_sign=0.5)).eval()
    x = torch.randn(rows, 4)
    members = torch.stack([lb.point_estimate(model, component=k)(x) for k in range(4)])
    torch.testing.assert_close(lb.predict(model, x, 4).outputs, members)
    for tile in (True, False):
        assert torch.isfinite(lb.ELBO(model, 10, tile=tile)(x, torch.zeros(rows, dtype=torch.long)).loss)


@each_random
def test_14_inputs_of_any_number_of_axes(method):
    layer = lb.bayesianize(nn.Linear(4, 3), method, where=lambda name, module: True)
    for shape in ((4,), (5, 4), (2, 5, 4), (2, 3, 5, 4)):
        assert layer(torch.randn(shape)).shape == (*shape[:-1], 3)
    x = torch.randn(2, 5, 4)
    with lb.sampling(n=3):
        assert layer(lb.fold(x, 3)).shape == (6, 5, 3)


@each_random
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_15_dtypes_are_kept_and_kl_is_float32(method, dtype):
    model = lb.bayesianize(net(norm=False), method)
    reference = lb.kl(model)
    model = model.to(dtype)
    y = model(X.to(dtype))
    assert y.dtype == dtype and torch.isfinite(y).all()
    y.float().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    kl = lb.kl(model)
    assert kl.dtype == torch.float32
    torch.testing.assert_close(kl, reference, rtol=0.01, atol=0.05)


@each_random
def test_16_the_global_generator_is_never_reseeded(method):
    model = lb.bayesianize(net(), method).eval()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    lb.predict(model, X, 4, seed=0)
    with lb.sampling(seed=0):
        model(X)
    with lb.sampling(hold=True, seed=0):
        model(X)
    assert torch.equal(torch.get_rng_state(), state)
    model(X)
    assert not torch.equal(torch.get_rng_state(), state)  # a plain call draws from it, as dropout does


def test_17_attention_projections_are_really_random():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    model = lb.bayesianize(attention, lb.MeanField(init_std=0.5)).eval()
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        assert not torch.equal(model(x, x, x)[0], model(x, x, x)[0])
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    for where in (lb.named("self_attn"), lb.named("linear1")):
        layer = lb.bayesianize(copy.deepcopy(encoder), lb.MeanField(init_std=0.5), where=where)
        with torch.no_grad():
            assert not torch.equal(layer(x), layer(x))


def test_18_parameters_are_grouped_by_what_they_are_not_by_name():
    model = nn.Sequential()
    model.add_module("posterior_raw_std", nn.Linear(4, 4))  # a plain layer with a telling name
    model.add_module("head", nn.Linear(4, 3))
    model = lb.bayesianize(model, lb.MeanField(), where=lb.named("head"))
    groups = {group["name"]: group for group in lb.param_groups(model, 0.1, 1e-4, variational_lr=0.5)}
    assert {id(p) for p in groups["points"]["params"]} == {
        *map(id, model.posterior_raw_std.parameters()),
        id(model.head.bias),
    }
    assert groups["means"]["params"] == [model.head.weight.posterior.loc]
    assert groups["variational"]["params"] == [model.head.weight.posterior.raw_std]
    assert (groups["points"]["weight_decay"], groups["means"]["weight_decay"]) == (1e-4, 0.0)
    assert groups["variational"]["lr"] == 0.5


def test_19_priors_and_methods_are_saved_and_noise_is_not(tmp_path):
    method = lb.MeanField(prior=lb.ScaleMixture(0.3, 2.0, 0.05), init_std=0.2)
    assert from_json(to_json(method)) == method
    model = lb.bayesianize(net(), method)
    keys = set(model.state_dict())
    with lb.sampling(hold=True):
        model(X)
    assert set(model.state_dict()) == keys
    lb.save(model, tmp_path / "model.safetensors")
    again = lb.load(tmp_path / "model.safetensors", net())
    assert again[0].method == method
    kept = lb.bayesianize(net(), lb.MeanField(prior=lb.Pretrained(0.2)))
    assert any("prior.mean" in key for key in kept.state_dict())


def test_20_probabilities_are_averaged_in_training_and_prediction():
    model = lb.bayesianize(net(), lb.BatchEnsemble(components=3, random_sign=0.5)).eval()
    prediction = lb.predict(model, X)
    torch.testing.assert_close(prediction.probs, prediction.outputs.softmax(-1).mean(0))
    y = torch.tensor([0, 1, 2, 0, 1])
    expected = -prediction.outputs.softmax(-1).mean(0)[range(5), y].log().mean()
    torch.testing.assert_close(lb.ELBO(model, 5, components="mixture")(X, y).nll, expected)


def test_21_the_loss_does_not_depend_on_batches_ranks_or_accumulation():
    # Ranks: tests/distributed/test_two_ranks.py.
    model = lb.bayesianize(net(norm=False), lb.MeanField())
    elbo, y = lb.ELBO(model, dataset_size=5), torch.tensor([0, 1, 2, 0, 1])
    with lb.sampling(mean=True):
        parts = [elbo(X[i : i + 1], y[i : i + 1]).loss for i in range(5)]
        torch.testing.assert_close(torch.stack(parts).mean(), elbo(X, y).loss)
    for size in (None, 0, 4):
        with pytest.raises((TypeError, ValueError), match="dataset_size"):
            lb.ELBO(model, size)(X, y)


def test_importing_the_library_is_light():
    code = (
        "import sys, leanbayes; heavy = {'transformers', 'sklearn', 'scipy', 'matplotlib', 'pytest', 'rich',"
        " 'safetensors', 'torchvision', 'lightning'}; print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
