"""samples="auto": stages, when they end, what is drawn and what is kept."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes import _auto_samples
from leanbayes._auto_samples import stage_counts

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(2))
STAGES = (8, 16, 32, 64, 128, 256, 512)


def net(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs))


def noisy(std=0.3, outputs=3):
    return lb.bayesianize(net(outputs), lb.MeanField(init_std=std))


def reference(model, x, change, likelihood=None, stages=STAGES):
    """Where the rule ends, by predictions with fixed numbers of the same joint samples."""
    most = lb.predict(model, x, stages[-1], likelihood=likelihood, seed=1, joint=True).outputs
    found = [lb.predict(model, x, n, likelihood=likelihood, seed=1, joint=True) for n in stages]
    for before, after in zip(found, found[1:]):
        if change(before, after) < 0.01:
            return after.samples, most[: after.samples]
    return stages[-1], most


def entropy_change(before, after):
    return float((after.entropy - before.entropy).abs().mean())


def std_change(before, after):
    return float(((after.std - before.std) / after.std).abs().mean())


def test_stages_are_whole_rounds_up_to_the_limit():
    assert stage_counts() == STAGES
    assert stage_counts(3) == (9, 18, 33, 66, 129, 258, 510)
    assert stage_counts(20) == (20, 40, 80, 140, 260, 500)
    assert stage_counts(300) == (300,)
    assert stage_counts(600) == (600,)


@pytest.mark.parametrize("std", [0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("likelihood", [None, lb.Categorical()], ids=["none", "categorical"])
def test_classes_stop_where_the_entropy_settles(std, likelihood):
    model = noisy(std)
    expected, outputs = reference(model, X, entropy_change, likelihood)
    found = lb.predict(model, X, "auto", likelihood=likelihood, seed=1, joint=True)
    assert found.samples == found.outputs.shape[0] == expected
    # The samples are those of a fixed number.
    torch.testing.assert_close(found.outputs, outputs)


@pytest.mark.parametrize(
    ("likelihood", "outputs"), [(lb.Gaussian(4.0), 1), (lb.Gaussian(), 2), (None, 1)], ids=["fixed", "own", "none"]
)
def test_values_stop_where_the_std_settles(likelihood, outputs):
    model = noisy(0.3, outputs)
    expected, _ = reference(model, X, std_change, likelihood)
    assert lb.predict(model, X, "auto", likelihood=likelihood, seed=1, joint=True).samples == expected


def test_events_stop_where_their_entropy_settles():
    model = noisy(0.3, 2)
    expected, _ = reference(model, X, entropy_change, lb.Bernoulli())
    assert lb.predict(model, X, "auto", likelihood=lb.Bernoulli(), seed=1, joint=True).samples == expected


def test_the_entropy_that_it_settles_at_is_the_true_one():
    # One normal logit z, so that p = E[sigmoid(z)] follows by quadrature.
    torch.manual_seed(0)
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    model = lb.bayesianize(layer, lb.MeanField(init_std=0.3))
    x = torch.linspace(0.5, 4, 200).unsqueeze(1)
    z = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    density = torch.softmax(-z.square() / 2, 0)
    probs = torch.sigmoid(x.double() * (1 + 0.3 * z))  # [B, z]
    p = (probs * density).sum(1)
    truth = -(p * p.log() + (1 - p) * (1 - p).log())
    found = lb.predict(model, x, "auto", likelihood=lb.Bernoulli(), seed=0)
    assert 8 < found.samples < 512
    spread = ((probs - p[:, None]).square() * density).sum(1).sqrt()
    error = (p / (1 - p)).log().abs() * spread / math.sqrt(found.samples)  # dH = log((1 - p) / p) dp
    bias = spread.square() / (2 * found.samples * p * (1 - p))  # of the next order: E[H(mean)] is below H(E[mean])
    assert ((found.entropy.squeeze(1) - truth).abs() < 4.5 * error + 4 * bias).all()


class Counting(nn.Module):
    """Counts the rows that pass."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def forward(self, x):
        self.rows.append(len(x))
        return x


@pytest.mark.parametrize("options", [{}, {"keep": "summary"}, {"chunk": 4}, {"joint": True}], ids=str)
def test_no_sample_is_drawn_twice_and_the_beginning_runs_once(options):
    torch.manual_seed(0)
    before, after = Counting(), Counting()
    model = nn.Sequential(nn.Linear(4, 8), before, nn.ReLU(), nn.Linear(8, 3), after)
    lb.bayesianize(model, lb.MeanField(init_std=1.0), where=lb.named("3"))
    lb.predict(model, X, 1)  # looks at the model
    before.rows.clear(), after.rows.clear()
    found = lb.predict(model, X, "auto", seed=0, **options)
    assert found.samples > 16
    assert sum(after.rows) == found.samples * len(X)
    assert sum(before.rows) == len(X)


@pytest.mark.parametrize("options", [{}, {"chunk": 3}, {"joint": True}, {"keep": "summary"}], ids=str)
def test_a_seed_repeats(options):
    model = noisy()
    first = lb.predict(model, X, "auto", seed=4, **options)
    torch.randn(10)
    second = lb.predict(model, X, "auto", seed=4, **options)
    assert first.samples == second.samples
    assert torch.equal(first.probs, second.probs)
    assert not torch.equal(lb.predict(model, X, "auto", seed=5, **options).probs, first.probs)


def test_the_summary_equals_that_of_kept_outputs():
    model = noisy()
    kept, streamed = (lb.predict(model, X, "auto", seed=3, keep=keep) for keep in ("outputs", "summary"))
    assert kept.samples == streamed.samples
    torch.testing.assert_close(kept.probs, streamed.probs)


def test_components_are_gone_through_in_whole_rounds():
    model = lb.bayesianize(net(), lb.Rank1(components=5, init_std=1e-4, random_sign=0.5)).eval()
    outputs = lb.predict(model, X, "auto").outputs
    assert len(outputs) in stage_counts(5)
    for s in range(len(outputs)):
        with lb.sampling(mean=True, component=s % 5):
            torch.testing.assert_close(outputs[s], model(X), atol=2e-2, rtol=2e-2)


def test_parts_converted_one_by_one_are_balanced_at_every_stage(monkeypatch):
    monkeypatch.setattr(_auto_samples, "TOLERANCE", 0.0)
    monkeypatch.setattr(_auto_samples, "MOST", 64)
    model = net()
    model[0] = lb.bayesianize(model[0], lb.Rank1(components=3, init_std=1e-5, random_sign=0.5))
    model[2] = lb.bayesianize(model[2], lb.Rank1(components=5, init_std=1e-5, random_sign=0.5))
    model.eval()
    outputs = lb.predict(model, X, "auto", seed=0).outputs
    assert len(outputs) == 60

    def points(k, j):
        with lb.sampling(mean=True, component=k):
            hidden = torch.relu(model[0](X))
        with lb.sampling(mean=True, component=j):
            return model[2](hidden)

    every = torch.stack([points(k, j) for k in range(3) for j in range(5)])  # [15, B, C]
    nearest = (outputs[:, None] - every).abs().flatten(2).amax(2).argmin(1)
    start = 0
    for stop in (15, 30, 60):
        added = nearest[start:stop]
        assert (added // 5).bincount(minlength=3).unique().numel() == 1
        assert (added % 5).bincount(minlength=5).unique().numel() == 1
        start = stop


def test_points_stop_at_their_number():
    assert lb.predict(lb.bayesianize(net(), lb.BatchEnsemble(components=4)), X, "auto").samples == 4
    assert lb.predict(lb.bayesianize(net(), lb.DeepEnsemble(members=11)), X, "auto").samples == 11
    assert lb.predict(net(), X, "auto").samples == 1
    with lb.sampling(mean=True):
        assert lb.predict(noisy(), X, "auto").samples == 1
    parts = net()
    for name in (0, 2):
        parts[name] = lb.bayesianize(parts[name], lb.BatchEnsemble(components=4))
    assert lb.predict(parts, X, "auto").samples == 16


def test_the_limits():
    assert lb.predict(noisy(1e-6), X, "auto").samples == 16
    assert lb.predict(noisy(30.0), X[:1], "auto", likelihood=lb.Gaussian(1.0), seed=6).samples <= 512
    few = lb.bayesianize(net(), lb.Rank1(components=5, init_std=3.0, random_sign=0.5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_auto_samples, "TOLERANCE", 0.0)
        assert lb.predict(few, X, "auto").samples == 510
        assert lb.predict(noisy(), X, "auto").samples == 512


def test_rows_of_nan_do_not_decide():
    model = nn.Sequential(lb.bayesianize(nn.Linear(4, 3), lb.MeanField(init_std=1e-6)), _LogOfFirst())
    assert lb.predict(model, X, "auto").samples == 16


class _LogOfFirst(nn.Module):
    def forward(self, x):
        return torch.log(x[:, :1]) + x


def test_a_loader_is_read_once_and_its_first_rows_decide():
    model = noisy(0.5)
    x = torch.randn(3000, 4, generator=torch.Generator().manual_seed(1))
    x[1100:] *= 0.01  # the later rows would settle sooner
    read = []

    def batches():
        for batch in x.split(100):
            read.append(len(batch))
            yield batch, torch.zeros(len(batch))

    found = lb.predict(model, batches(), "auto", seed=1, joint=True)
    assert sum(read) == 3000
    expected, _ = reference(model, x[:1100], entropy_change)
    assert found.outputs.shape == (expected, 3000, 3)
    fixed = lb.predict(model, x, expected, seed=1, joint=True)
    torch.testing.assert_close(found.outputs, fixed.outputs)
    streamed = lb.predict(model, batches(), "auto", seed=1, joint=True, keep="summary")
    torch.testing.assert_close(streamed.probs, fixed.probs)


def test_all_rows_of_a_large_input_decide():
    model = noisy(0.5)
    x = torch.randn(2100, 4, generator=torch.Generator().manual_seed(1))
    x[1024:] *= 3
    expected, outputs = reference(model, x, entropy_change)
    found = lb.predict(model, x, "auto", seed=1, joint=True).outputs
    assert found.shape[0] == expected
    torch.testing.assert_close(found, outputs)
    small = DataLoader(TensorDataset(X), batch_size=16)
    whole = lb.predict(model, X, "auto", seed=1, joint=True).outputs
    torch.testing.assert_close(lb.predict(model, small, "auto", seed=1, joint=True).outputs, whole)


def test_gradients_on_request():
    model = noisy()
    x = X.clone().requires_grad_()
    lb.predict(model, x, "auto", grad=True).probs[:, 0].sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0


def test_held_draws_cannot_grow():
    with lb.sampling(hold=True), pytest.raises(ValueError, match="pass a number"):
        lb.predict(noisy(), X, "auto")


def test_a_compiled_model_compiles_for_one_size():
    torch._dynamo.reset()
    sizes = Counting()
    model = nn.Sequential(lb.bayesianize(net(), lb.Rank1(components=4, init_std=1.0)), sizes).eval()
    compiled = torch.compile(model, backend="eager")
    found = lb.predict(compiled, X, "auto", seed=0)
    assert found.samples in stage_counts(4)
    assert len({size for size in sizes.rows if size > 4}) <= 1
