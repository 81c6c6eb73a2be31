"""`leanbayes bench`: options, files, exit codes."""

import json

import pytest
from torch import nn

from leanbayes.bench.networks import DEFAULTS, NETWORKS, PARTS, Network
from leanbayes.cli import main

QUICK = ["--device", "cpu", "--repeats", "1", "--samples", "2", "--no-peers"]


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Measured where no network is named."""
    one = Network("tiny", "A tiny network", lambda: nn.Linear(4, 3), (4,), 3, False, {"cpu": 4}, {"cpu": 2})
    monkeypatch.setitem(NETWORKS, "tiny", one)
    monkeypatch.setitem(DEFAULTS, "cpu", ("tiny",))


def test_every_method_is_measured_by_default(tmp_path, capsys):
    assert main(["bench", *QUICK, "--out", str(tmp_path)]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert "rank1, step, eager: " in out and "figures: " in out
    result = json.loads((tmp_path / "speed-tiny-cpu-32.json").read_text())
    assert {row["status"] for row in result["rows"]} == {"done"}
    assert result["command"] == "leanbayes bench tiny --samples 2 --repeats 1 --device cpu --no-peers"


def test_json_and_going_on(tmp_path, capsys):
    words = ["bench", "tiny", *QUICK, "--out", str(tmp_path), "--parts", "step"]
    assert main([*words, "--methods", "emp"]) == 0
    capsys.readouterr()
    assert main([*words, "--methods", "emp", "rank1", "--resume", "--json"]) == 0
    written = capsys.readouterr()
    (result,) = json.loads(written.out)
    assert [row["contender"] for row in result["rows"]] == ["plain", "emp", "rank1"]
    assert "rank1, step" in written.err and "emp, step" not in written.err


def test_a_folder_is_named_after_the_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *QUICK, "--methods", "emp", "--parts", "step"]) == 0
    (path,) = tmp_path.glob("runs/bench-*/speed-tiny-cpu-32.json")
    assert path.with_suffix(".png").exists()


def test_a_method_that_fails_is_an_error(tmp_path, monkeypatch, capsys):
    from leanbayes.bench import run
    from leanbayes.bench.gate import GateFailed

    def wrong(*arguments):
        raise GateFailed("outputs are not finite")

    monkeypatch.setattr(run, "check_contender", wrong)
    assert main(["bench", *QUICK, "--methods", "emp", "--out", str(tmp_path)]) == 1
    written = capsys.readouterr()
    assert "emp, step, eager: failed, outputs are not finite" in written.out
    assert written.err.strip() == "leanbayes: error: 1 methods failed: emp; the result files say why"


def test_every_part_can_be_asked_for(tmp_path):
    for part in PARTS:
        words = ["bench", "tiny", *QUICK, "--methods", "emp", "--modes", "eager", "--parts", part]
        assert main([*words, "--out", str(tmp_path / part)]) == 0, part
