"""capture: whole steps and models by one call; what needs a GPU is in tests/gpu."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb


def parts():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model = lb.bayesianize(net, lb.EMP(2))
    return model, torch.randn(12, 4), torch.randint(3, (12,))


def test_a_step_on_the_cpu_is_that_of_a_loop():
    model, x, y = parts()
    ends = []
    for captured in (True, False):
        elbo = lb.ELBO(copy.deepcopy(model), 100, kl_weight=lb.LinearAnneal(4))
        optimizer = torch.optim.Adam(elbo.parameters(), 0.01)
        step = lb.capture(elbo, optimizer, compile=False) if captured else None
        torch.manual_seed(1)
        for rows in (12, 12, 7, 12):
            if step is not None:
                terms = step(x[:rows], y[:rows], weights=torch.ones(rows))
            else:
                terms = elbo(x[:rows], y[:rows])
                optimizer.zero_grad()
                terms.loss.backward()
                optimizer.step()
        ends.append([terms.loss.detach(), elbo.step, *elbo.model.parameters()])
    for one, other in zip(*ends):
        torch.testing.assert_close(one, other)
    assert step is None and int(ends[0][1]) == 4


def test_how_it_runs_is_said():
    model, _, _ = parts()
    elbo = lb.ELBO(model, 100)
    step = lb.capture(elbo, torch.optim.SGD(elbo.parameters(), 0.1), compile=False)
    assert step.how == "eager" and step.why is None


def test_a_smaller_last_batch_is_not_compiled():
    model, x, y = parts()
    elbo = lb.ELBO(model, 100)
    sizes = []

    def backend(graph_module, inputs):
        sizes.append([each.shape[0] for each in inputs if isinstance(each, torch.Tensor) and each.dim() == 2])
        return graph_module.forward

    torch._dynamo.reset()
    step = lb.capture(elbo, torch.optim.SGD(elbo.parameters(), 0.1))
    step._module = torch.compile(elbo, backend=backend)
    for rows in (12, 5, 12, 5):
        step(x[:rows], y[:rows])
    assert len(sizes) == 1


def test_bad_arguments_are_said():
    model, _, _ = parts()
    elbo = lb.ELBO(model, 100)
    optimizer = torch.optim.SGD(elbo.parameters(), 0.1)
    with pytest.raises(TypeError, match="takes an ELBO with an optimizer"):
        lb.capture(model, optimizer)
    with pytest.raises(TypeError, match="takes an optimizer with an ELBO"):
        lb.capture(elbo)
    with pytest.raises(TypeError, match="takes an nn.Module"):
        lb.capture(3)
    with pytest.raises(ValueError, match="precision"):
        lb.capture(elbo, optimizer, precision="16")


def test_a_model_for_predictions_is_compiled_or_left():
    model, x, _ = parts()
    assert lb.capture(model, compile=False) is model
    assert lb.capture(model)._orig_mod is model


def refuse(self, graph_module, inputs):
    raise RuntimeError("no kernel for this")


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setattr("leanbayes.compiling.backend._Inductor.__call__", refuse)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_model_that_cannot_be_compiled_predicts_uncompiled(no_compiler, caplog):
    model, x, _ = parts()
    found = lb.predict(lb.capture(model), x, samples=4, seed=0)
    torch.testing.assert_close(found.outputs, lb.predict(model, x, samples=4, seed=0).outputs)
    said = [record.getMessage() for record in caplog.records if record.name == "leanbayes"]
    assert said == ["this model cannot be compiled, and runs uncompiled: no kernel for this"]


def test_why_a_step_is_not_compiled_is_the_compilers_own_reason(no_compiler):
    model, x, y = parts()
    elbo = lb.ELBO(model, 100)
    step = lb.capture(elbo, torch.optim.SGD(elbo.parameters(), 0.1))
    step(x, y)
    assert step.how == "eager" and step.why == "this step cannot be compiled, and runs without: no kernel for this"


def written_by_the_compiler(error):
    """A function in the place of what inductor writes, which fails when it runs."""
    names = {"__name__": "torch._inductor.output_code", "error": error}
    exec("def run(*args, **kwargs):\n    raise error", names)
    return names["run"]


def test_code_of_the_compiler_that_fails_is_left_for_the_models_own():
    model, x, y = parts()
    elbo = lb.ELBO(model, 100)
    step = lb.capture(elbo, torch.optim.SGD(elbo.parameters(), 0.1))
    step._module = written_by_the_compiler(TypeError("expected Tensor()"))
    assert step(x, y).loss.isfinite() and step.how == "eager"
    assert step.why == "this step cannot be compiled, and runs without: expected Tensor()"
    step._module, step._compiled = written_by_the_compiler(torch.OutOfMemoryError("full")), True
    with pytest.raises(torch.OutOfMemoryError):
        step(x, y)


@pytest.mark.inductor
def test_a_step_of_a_recurrent_network_runs():
    model = lb.bayesianize(nn.LSTM(4, 8, batch_first=True), lb.MeanField())

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.output = model, nn.Linear(8, 3)

        def forward(self, x):
            return self.output(self.layer(x)[0][:, -1])

    elbo = lb.ELBO(Last(), 100)
    step = lb.capture(elbo, torch.optim.SGD(elbo.parameters(), 0.1))
    assert step(torch.randn(6, 5, 4), torch.randint(3, (6,))).loss.isfinite()


class Recording:
    """What GraphedStep does to learning rates, without a GPU: numbers at first, tensors from the recording on."""

    def __init__(self, optimizer, fails=False):
        self.optimizer, self.fails = optimizer, fails
        self.graph, self.warm, self.seen = None, 0, []

    def __call__(self, batch):
        self.warm += 1
        if self.warm > 2 and self.graph is None:
            for group in self.optimizer.param_groups:
                group["lr"] = torch.as_tensor(group["lr"])
            if self.fails:
                raise RuntimeError("cannot be recorded")
            self.graph, self.read = object(), [group["lr"] for group in self.optimizer.param_groups]
        rates = self.read if self.graph is not None else [group["lr"] for group in self.optimizer.param_groups]
        self.seen.append(float(rates[0]))
        return None, self.graph is not None


def test_a_recorded_step_follows_a_schedule_that_sets_numbers():
    model, x, y = parts()
    elbo = lb.ELBO(model, 100)
    optimizer = torch.optim.SGD(elbo.parameters(), 0.1)
    step = lb.capture(elbo, optimizer, compile=False)
    step._graphed = recording = Recording(optimizer)
    rates = [0.1 / (1 + k) for k in range(6)]
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        step(x, y)
    assert recording.seen == pytest.approx(rates)


def test_what_cannot_be_recorded_runs_without_and_has_its_rates():
    model, x, y = parts()
    elbo = lb.ELBO(model, 100)
    optimizer = torch.optim.Adam(elbo.parameters(), 0.1)
    step = lb.capture(elbo, optimizer, compile=False)
    step._graphed = Recording(optimizer, fails=True)
    for _ in range(4):
        step(x, y)
    assert step.how == "eager" and "cannot be recorded" in step.why
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1) and isinstance(optimizer.param_groups[0]["lr"], float)
