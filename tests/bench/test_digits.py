"""The command is timed from its start to its end, method by method."""

import json
import sys

import pytest

from benchmarks import digits


@pytest.mark.slow
def test_measures_and_writes(tmp_path, monkeypatch):
    words = ["--devices", "cpu", "--out", str(tmp_path), "--", "--method", "plain", "mean-field", "--budget", "1"]
    monkeypatch.setattr(sys, "argv", ["digits", *words])
    digits.main()
    found = json.loads((tmp_path / "bench-digits.json").read_text())
    assert [row["name"] for row in found["rows"]] == [
        "whole command", "start-up", "Plain network", "Mean-field", "report",
    ]  # fmt: skip
    whole, *parts = [row["seconds"]["cpu"] for row in found["rows"]]
    assert whole == pytest.approx(sum(parts)) and min(parts) > 0
    assert found["rows"][2]["accuracy"]["cpu"] > 0.2 and found["rows"][0]["accuracy"] == {}
    assert found["devices"]["cpu"].startswith("cpu, ")


def test_devices_are_compared_by_medians(monkeypatch):
    seconds = {"cpu": iter([4.0, 8.0, 6.0]), "cuda": iter([3.0, 2.0, 9.0])}
    result = {"device": "one", "methods": []}
    monkeypatch.setattr(digits, "run", lambda device, options: ({"whole command": next(seconds[device])}, result))
    (row,), _ = digits.measure(["cpu", "cuda"], 3, [])
    assert row["seconds"] == {"cpu": 6.0, "cuda": 3.0} and row["cuda_over_cpu"] == 0.5


def test_a_command_that_fails_says_why():
    with pytest.raises(RuntimeError, match="--nothing"):
        digits.run("cpu", ["--nothing"])
