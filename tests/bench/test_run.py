"""What is measured, what is not and why, and that a killed run keeps what it has."""

import dataclasses
import json

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.bench import CONTENDERS, Plan, bench
from leanbayes.bench import run as running
from leanbayes.bench.contenders import Contender
from leanbayes.bench.networks import NETWORKS
from leanbayes.bench.peers import Adapter, NotInstalled, Peer
from leanbayes.bench.result import OtherRun, ResultFile

PLAN = Plan(repeats=2, methods=("rank1", "mean-field"), peers=False, samples=(4,))


def rows(result, **wanted):
    return [row for row in result["rows"] if all(row.get(name) == value for name, value in wanted.items())]


def test_rows_have_times_ratios_and_parameters(network, tmp_path):
    result = bench("tiny", PLAN, tmp_path, command="leanbayes bench tiny")
    assert [(row["contender"], row["part"], row["samples"]) for row in result["rows"]] == [
        (name, part, samples)
        for name in ("plain", "rank1", "mean-field")
        for part, samples in (("step", None), ("predict", 4))
    ]
    for row in result["rows"]:
        assert row["status"] == "done" and row["ratio"] == pytest.approx(row["seconds"] / row["plain_seconds"])
    (row,) = rows(result, contender="mean-field", part="step")
    assert row["parameters"] == 2 * 5 * 8 + 8 + 2 * 8 + 2 * 8 * 3 + 3 and result["plain_parameters"] == 91
    assert row["call"] == "lb.MeanField()" and row["how"] == "eager" and "holds" not in row
    (row,) = rows(result, contender="rank1", part="predict")
    assert row["drawn"] == 4
    assert json.loads((tmp_path / "speed-tiny-cpu-32.json").read_text()) == result
    assert result["settings"] == {
        "precision": "32", "batch": 4, "rows": 2, "repeats": 2, "device": "cpu", "network": "tiny",
    }  # fmt: skip
    assert {"torch", "leanbayes", "python"} <= result["versions"].keys() and result["command"]


def test_a_killed_run_keeps_its_rows_and_goes_on(network, tmp_path):
    def kill(row):
        if (row["contender"], row["part"]) == ("rank1", "step"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench("tiny", PLAN, tmp_path, watch=kill)
    path = tmp_path / "speed-tiny-cpu-32.json"
    before = json.loads(path.read_text())["rows"]
    assert [row["contender"] for row in before] == ["plain", "plain", "rank1"]
    seen = []
    after = bench("tiny", PLAN, tmp_path, resume=True, watch=seen.append)["rows"]
    assert after[:3] == before and after[3:] == seen and len(seen) == 3


def test_rows_of_other_settings_are_not_continued(network, tmp_path):
    plan = dataclasses.replace(PLAN, methods=("emp",), parts=("step",))
    bench("tiny", plan, tmp_path)
    with pytest.raises(OtherRun, match="holds rows of another settings"):
        bench("tiny", dataclasses.replace(plan, batch=6), tmp_path, resume=True)
    assert bench("tiny", dataclasses.replace(plan, batch=6), tmp_path)["settings"]["batch"] == 6


def test_rows_of_an_earlier_run_keep_how_they_were_made(network, tmp_path):
    first = dataclasses.replace(PLAN, methods=("emp",), parts=("step",))
    bench("tiny", first, tmp_path, command="leanbayes bench tiny --methods emp")
    second = dataclasses.replace(PLAN, methods=("rank1", "emp"), parts=("step", "profile"))
    command = "leanbayes bench tiny --methods rank1 emp --parts step profile"
    bench("tiny", second, tmp_path, resume=True, command=command)
    third = bench("tiny", dataclasses.replace(second, methods=("ecmp",)), tmp_path, resume=True, command="the third")
    assert third["command"] == "the third"
    assert {(row["contender"], row["part"]): row.get("made", {}).get("command") for row in third["rows"]} == {
        ("plain", "step"): "leanbayes bench tiny --methods emp",
        ("emp", "step"): "leanbayes bench tiny --methods emp",
        ("plain", "profile"): command,
        ("rank1", "step"): command,
        ("rank1", "profile"): command,
        ("emp", "profile"): command,
        ("ecmp", "step"): None,
        ("ecmp", "profile"): None,
    }
    assert third["rows"][0]["made"].keys() == {"command", "date", "versions"}


def test_what_was_not_done_is_tried_again(tmp_path):
    file = ResultFile(tmp_path / "x.json", {"id": "x", "device": "d", "settings": {}})
    wanted = {"contender": "emp", "mode": "eager", "part": "step", "samples": None}
    file.add(wanted | {"status": "failed", "reason": "out of memory"})
    assert not file.has(**wanted)
    file.add(wanted | {"status": "done"})
    assert file.has(**wanted) and len(file.to_json()["rows"]) == 1


class Wrong(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = lb.bayesianize(net, lb.MeanField())
        self.shift = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.net(x) + self.shift


def with_contender(monkeypatch, convert):
    broken = Contender("mean-field", lb.MeanField(), mean_is_plain=True)
    monkeypatch.setitem(CONTENDERS, "mean-field", broken)
    monkeypatch.setattr(Contender, "convert", lambda self, net: convert(net))
    return dataclasses.replace(PLAN, methods=("mean-field",))


def test_a_contender_with_wrong_results_is_not_timed(network, monkeypatch):
    found = rows(bench("tiny", with_contender(monkeypatch, Wrong)), contender="mean-field")
    assert {row["status"] for row in found} == {"failed"} and "seconds" not in found[0]
    assert "the output at the posterior means is not the plain network's" in found[0]["reason"]


def test_a_contender_that_does_not_apply_says_why(network, monkeypatch):
    def refuse(net):
        raise ValueError("no layer can take it")

    found = rows(bench("tiny", with_contender(monkeypatch, refuse)), contender="mean-field")
    assert {(row["status"], row["reason"]) for row in found} == {("skipped", "no layer can take it")}


def test_one_that_breaks_does_not_cost_the_others(network, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(running, "step_figures", broken)
    found = bench("tiny", dataclasses.replace(PLAN, methods=("emp",)))
    assert [(row["status"], row.get("reason")) for row in rows(found, contender="emp")] == [
        ("failed", "RuntimeError: CUDA error"),
        ("done", None),
    ]


def test_memory_is_for_a_gpu(network):
    found = bench("tiny", dataclasses.replace(PLAN, methods=("emp",), parts=("memory",)))
    assert {row["reason"] for row in found["rows"]} == {"peak memory is measured on a GPU only"}


def test_captured_runs_go_through_one_call(network, monkeypatch):
    calls = []

    class Step:
        how = "compiled and recorded"

        def __init__(self, elbo, optimizer, precision):
            self.elbo, self.optimizer = elbo, optimizer
            calls.append(precision)

        def __call__(self, x, y):
            terms = self.elbo(x, y)
            self.optimizer.zero_grad()
            terms.loss.backward()
            self.optimizer.step()
            return terms

    def capture(model, optimizer=None, **options):
        return model if optimizer is None else Step(model, optimizer, **options)

    monkeypatch.setattr(lb, "capture", capture, raising=False)
    found = bench("tiny", dataclasses.replace(PLAN, methods=("emp",), modes=("captured",)))
    assert {row["status"] for row in found["rows"]} == {"done"} and calls == ["32", "32"]
    (step,) = rows(found, contender="emp", part="step")
    assert step["how"] == "compiled and recorded" and step["startup_s"] > 0
    assert not step["startup_cached"] and "startup_holds" not in step
    starts = bench("tiny", dataclasses.replace(PLAN, methods=("emp",), modes=("captured", "eager"), parts=("start",)))
    captured, eager = rows(starts, contender="emp")
    assert captured["startup_s"] > 0 and not captured["startup_cached"] and "ratio" not in captured
    assert eager["status"] == "skipped" and "need no start" in eager["reason"]


def test_a_network_may_have_few_contenders_and_parts(network, monkeypatch):
    monkeypatch.setitem(NETWORKS, "tiny", dataclasses.replace(network, only=("emp",), parts=("step",)))
    found = bench("tiny", dataclasses.replace(PLAN, methods=None, peers=True))
    assert [(row["contender"], row["part"]) for row in found["rows"]] == [("plain", "step"), ("emp", "step")]


def test_curves_grow_along_every_axis(network, monkeypatch):
    wide = dataclasses.replace(network, wider=lambda width: nn.Linear(5, 3), widths={"cpu": (2, 4)})
    monkeypatch.setitem(NETWORKS, "tiny", wide)
    found = bench("tiny", dataclasses.replace(PLAN, methods=("rank1", "k-tied"), parts=("scaling",), repeats=1))
    (beyond,) = [row for row in found["rows"] if row["status"] != "done"]
    assert (beyond["axis"], beyond["value"], beyond["status"]) == ("rank", 8, "skipped")
    values = {axis: [row["value"] for row in rows(found, contender="rank1", axis=axis)] for axis in (
        "samples", "batch", "width", "components", "rank")}  # fmt: skip
    assert values == {
        "samples": [1, 2, 5, 10, 20, 50, 100], "batch": [2, 4, 8], "width": [2, 4],
        "components": [1, 2, 4, 8, 16], "rank": [],
    }  # fmt: skip
    assert [row["value"] for row in rows(found, contender="k-tied", axis="rank")] == [1, 2, 4, 8]


def noisy_peer(task):
    model = task.place(task.net)
    return Adapter(
        model,
        lambda x, n: torch.stack([model(x) + torch.randn(1) for _ in range(n)]),
        lambda x, y: nn.functional.cross_entropy(model(x), y),
        model,
    )


def test_a_peer_is_set_against_ours(network, monkeypatch):
    monkeypatch.setattr(running, "PEERS", (Peer("other, noisy", "other", "mean-field", noisy_peer),))
    found = rows(bench("tiny", dataclasses.replace(PLAN, methods=("emp",), peers=True)), contender="other, noisy")
    assert [row["part"] for row in found] == ["step", "predict"]
    for row in found:
        assert row["status"] == "done" and row["ours"] == "mean-field" and row["package"] == "other"
        assert row["over_ours"] == pytest.approx(row["seconds"] / row["ours_seconds"])


def wrong_peer(task):
    return noisy_peer(task)._replace(mean=lambda x: torch.ones(len(x), 3))


def constant_peer(task):
    return noisy_peer(task)._replace(predict=lambda x, n: torch.zeros(n, len(x), 3))


def missing_peer(task):
    raise NotInstalled("other cannot be imported (No module named 'other')")


def broken_peer(task):
    raise AttributeError("module has no LSTMFlipout")


@pytest.mark.parametrize(
    ("make", "status", "reason"),
    [
        (wrong_peer, "failed", "the output at the posterior means is not the plain network's"),
        (constant_peer, "failed", "all samples are the same, so nothing is random"),
        (missing_peer, "skipped", "other cannot be imported"),
        (broken_peer, "skipped", "AttributeError: module has no LSTMFlipout"),
    ],
)
def test_a_peer_that_is_not_timed_says_why(network, monkeypatch, make, status, reason):
    monkeypatch.setattr(running, "PEERS", (Peer("other", "other", "mean-field", make),))
    found = rows(bench("tiny", dataclasses.replace(PLAN, methods=("emp",), peers=True)), contender="other")
    assert len(found) == 2 and all(row["status"] == status and reason in row["reason"] for row in found)


def test_a_step_is_built_once_for_time_and_profile_and_again_for_its_memory(network, monkeypatch):
    built, measured = [], []
    whole = running.contender_step

    def build(setup, contender, mode):
        built.append(contender.name)
        return whole(setup, contender, mode)

    def peak(build, device):
        measured.append(build())
        return 1000

    monkeypatch.setattr(running, "contender_step", build)
    monkeypatch.setattr("leanbayes.bench.pairs.peak_bytes", peak)
    monkeypatch.setattr("leanbayes.bench.pairs.Plain.bytes", lambda self, mode: 500)
    plan = dataclasses.replace(PLAN, methods=("emp",), parts=("step", "profile", "memory"))
    found = rows(bench("tiny", plan), contender="emp")
    assert [row["part"] for row in found] == ["step", "profile", "memory"] and found[2]["ratio"] == 2.0
    assert built == ["emp", "emp"] and len(measured) == 1
