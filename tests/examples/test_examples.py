"""The examples run from beginning to end."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLES / name), *arguments])
    threads = torch.get_num_threads()
    try:
        return runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        torch.set_num_threads(threads)


def test_plain_loop(monkeypatch, capsys):
    run("plain_loop.py", monkeypatch)
    assert "tensor" in capsys.readouterr().out


def test_digits(monkeypatch, capsys, tmp_path):
    pytest.importorskip("sklearn")
    target = tmp_path / "figures.json"
    example = run("digits.py", monkeypatch, "--epochs", "1", "--seeds", "2", "--save", str(target))
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("accuracy", "nll", "ece", "parameters", "Next:"))
    figures = json.loads(target.read_text())
    assert figures["seeds"] == [0, 1] and set(figures["settings"]["epochs"].values()) == {1}
    for runs in figures["runs"].values():
        assert len(runs) == 2 and all(0.1 < result["accuracy"] <= 1 for result in runs)
    # Two of three confident predictions are right: the gap in their bin is 0.9 - 2/3.
    probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.5, 0.5]])
    error = example["expected_calibration_error"](probs, torch.tensor([0, 0, 1, 0]))
    assert error == pytest.approx((3 * (0.9 - 2 / 3) + 0.5) / 4, abs=1e-6)


@pytest.mark.slow
def test_pictures(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    run("../docs/make_pictures.py", monkeypatch, "--steps", "2", "--out", str(tmp_path))
    assert (tmp_path / "predictive-1d.png").stat().st_size > 10_000
