"""The examples run from beginning to end."""

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


@pytest.mark.slow
def test_pictures(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    run("../docs/make_pictures.py", monkeypatch, "--steps", "2", "--out", str(tmp_path))
    assert (tmp_path / "predictive-1d.png").stat().st_size > 10_000
