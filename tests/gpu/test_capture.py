"""Captured steps and predictions, and the norm between rank-1 layers, on a GPU."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.compiling import compiled, rewrite
from leanbayes.training import TrainConfig, fit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def network():
    torch.manual_seed(0)
    net = lb.models.create("wide_resnet", depth=10, width=1)
    return net.cuda().to(memory_format=torch.channels_last)


def batch(rows=32):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 3, 16, 16, generator=generator).cuda().contiguous(memory_format=torch.channels_last)
    return x, torch.randint(10, (rows,), generator=generator).cuda()


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def test_a_fused_norm_gives_the_gradients_of_plain_torch(monkeypatch):
    fused = []
    original = rewrite.fuse_scaled_norms
    monkeypatch.setattr("leanbayes.compiling.backend.fuse_scaled_norms", lambda g: fused.append(original(g)))
    model = lb.bayesianize(network(), lb.BatchEnsemble(4))
    x, y = batch()
    found = []
    for run in (lambda e: e, compiled):
        elbo = lb.ELBO(copy.deepcopy(model), 1000)
        run(elbo)(x, y).loss.backward()
        found.append((gradients(elbo.model), dict(elbo.model.named_buffers())))
    assert sum(fused) == 6  # the first norm has no rank-1 layer before it whose scale it could take
    for name, want in found[0][0].items():
        # Convolutions in TF32 keep three digits.
        error = (found[1][0][name] - want).norm() / want.norm()
        assert error < 2e-2, f"{name}: {error:.2g}"
    for name, want in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], want, rtol=2e-2, atol=2e-3)


def test_a_captured_step_trains_as_an_eager_one_does():
    x, y = batch()
    ends = []
    for capture in (True, False):
        model = lb.bayesianize(network(), lb.BatchEnsemble(2))
        elbo = lb.ELBO(model, 1000)
        optimizer = torch.optim.SGD(elbo.parameters(), 0.05, momentum=0.9)
        step = lb.capture(elbo, optimizer) if capture else None
        for number in range(8):
            optimizer.param_groups[0]["lr"] = 0.05 / (1 + number)
            some = (x, y) if number != 5 else (x[:20], y[:20])  # a smaller batch in between
            if step is not None:
                terms = step(*some)
            else:
                optimizer.zero_grad()
                terms = elbo(*some)
                terms.loss.backward()
                optimizer.step()
        assert int(elbo.step) == 8
        ends.append((terms.loss.item(), model.state_dict()))
        if step is not None:
            assert step.how == "compiled and recorded" and step.why is None
    assert ends[0][0] == pytest.approx(ends[1][0], rel=0.05)
    for name, value in ends[0][1].items():
        if value.is_floating_point() and "running" not in name:
            assert (value - ends[1][1][name]).norm() <= 0.05 * value.norm() + 1e-3, name


@pytest.mark.parametrize(
    "method",
    [lb.Rank1(4), lb.EMP(3), lb.ECMP(3), lb.KTied(), lb.MeanField(), lb.MeanField(estimator="local")],
    ids=["rank1", "emp", "ecmp", "ktied", "flipout", "local"],
)
@pytest.mark.parametrize("compile", [True, False])
def test_every_family_can_be_captured_with_fresh_noise(method, compile):
    model = lb.bayesianize(network(), method)
    elbo = lb.ELBO(model, 1000, tile=False)
    # A rate of 0: what differs between steps is noise alone.
    step = lb.capture(elbo, torch.optim.Adam(elbo.parameters(), 0.0), precision="bf16-mixed", compile=compile)
    x, y = batch()
    losses = [step(x, y).nll.item() for _ in range(10)]
    assert step.why is None, step.why
    assert "recorded" in step.how
    assert len(set(losses[4:])) > 3
    model.eval()
    with torch.autocast("cuda", torch.bfloat16):
        fast = lb.predict(lb.capture(model), x, 24)
        slow = lb.predict(model, x, 24)
    assert fast.outputs.shape[1:] == slow.outputs.shape[1:] and fast.probs.isfinite().all()
    assert (fast.outputs[0] - fast.outputs[-1]).abs().max() > 0
    # Both average draws of one distribution, of bfloat16 logits.
    one, other = (each.outputs.float().softmax(-1) for each in (fast, slow))
    error = (one.var(0) / len(one) + other.var(0) / len(other)).sqrt()
    assert ((fast.probs - slow.probs).abs() < 6 * error + 0.02).all()


class Waits(nn.Module):
    """Draws noise, then looks at a value on the host."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        y = self.layer(x)
        return y * (1 if y.sum().item() > 1e6 else 2)


def test_what_cannot_be_recorded_runs_without():
    elbo = lb.ELBO(lb.bayesianize(Waits().cuda(), lb.MeanField()), 100)
    step = lb.capture(elbo, torch.optim.SGD(elbo.parameters(), 0.1), compile=False)
    x, y = torch.randn(8, 4).cuda(), torch.randint(3, (8,)).cuda()
    losses = [step(x, y).loss.item() for _ in range(30)]
    assert step.how == "eager" and "cannot be recorded" in step.why
    assert losses[-1] < losses[0] and int(elbo.step) == 30
    # Nothing is left of the failed recording: draws go on, and other steps can be recorded.
    assert torch.rand(3, device="cuda").isfinite().all()
    other = lb.ELBO(lb.bayesianize(nn.Linear(4, 3).cuda(), lb.MeanField()), 100)
    step = lb.capture(other, torch.optim.SGD(other.parameters(), 0.1), compile=False)
    assert [step(x, y).loss.item() for _ in range(9)] and step.how == "recorded"


def test_training_records_by_itself_and_goes_on_where_it_cannot(caplog):
    x, y = torch.randn(64, 4), torch.randint(3, (64,))
    config = TrainConfig(epochs=3, batch_size=16, optimizer="sgd", lr=0.05, hold_out=0)
    model = lb.bayesianize(nn.Linear(4, 3), lb.MeanField())
    assert fit(model, (x, y), config).how == "float32 with TF32 products, recorded" and not caplog.records
    waits = lb.bayesianize(Waits(), lb.MeanField())
    history = fit(waits, (x, y), config)
    assert history.how == "float32 with TF32 products, eager" and history.last["step"] == 12
    assert len(caplog.records) == 1 and "cannot be recorded" in caplog.records[0].message
    with pytest.raises(RuntimeError, match="cannot be recorded"):
        fit(waits, (x, y), replace(config, cuda_graph=True))
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_setting_that_a_callback_changes_is_not_that_of_the_recording():
    x, y = torch.randn(64, 4), torch.randint(3, (64,))
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.Linear(8, 3))

    def drop_everything(event):
        event.model[1].p = 1.0 if event.record["epoch"] == 2 else 0.0

    config = TrainConfig(epochs=4, batch_size=8, lr=1e-9, seed=1, hold_out=0)
    losses = fit(net, (x, y), config, callbacks=[drop_everything])["loss"]
    net[1].p = 1.0
    with torch.no_grad():
        expected = nn.functional.cross_entropy(net.train()(x.cuda()), y.cuda()).item()
    assert losses[2] == pytest.approx(expected, rel=1e-3) and abs(losses[1] - expected) > 1e-2
    assert losses[3] == pytest.approx(losses[1], rel=1e-3)
