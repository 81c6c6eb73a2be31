"""Two processes through Fabric train as one does; Fabric on one device gives the same weights as none."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import leanbayes as lb
from leanbayes.training import fit
from tests.training.problems import assert_same, config, data, network, weights, without_times

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_two_processes_equal_one(tmp_path):
    pytest.importorskip("lightning_fabric")
    script = Path(__file__).with_name("two_processes.py")
    root = script.parents[2]
    settings = {"OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port()), "PYTHONPATH": str(root)}
    found = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | settings,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    first, second = (torch.load(tmp_path / f"results{rank}.pt") for rank in (0, 1))
    x, y = data(100)
    parts = {"train": (x, y), "valid": (x[:41], y[:41])}
    for accumulate in (1, 3):
        values, records = first[f"mean{accumulate}"]
        assert_same(values, second[f"mean{accumulate}"][0])
        alone = network(lb.MeanField())
        with lb.sampling(mean=True):
            history = fit(alone, parts, config(optimizer="sgd", clip=0.1, accumulate=accumulate))
        for name, value in weights(alone).items():
            torch.testing.assert_close(values[name], value, msg=lambda m, n=name: f"{n}: {m}")
        for ours, theirs in zip(records, without_times(history.records)):
            assert {name: ours[name] for name in theirs} == pytest.approx(theirs, rel=1e-4)
    assert_same(first["whole"], first["resumed"])
    assert not torch.equal(first["generator"], second["generator"])
    for results in (first, second):
        assert "cannot write in the output folder" in results["error"]


@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
def test_fabric_on_one_device(precision):
    fabric = pytest.importorskip("lightning_fabric")
    settings = config(precision=precision, accumulate=2, clip=0.5)
    plain, wrapped = network(lb.MeanField()), network(lb.MeanField())
    fit(plain, {"train": data(), "valid": data(20)}, settings)
    one = fabric.Fabric(accelerator="cpu", devices=1)
    one.launch()
    fit(wrapped, {"train": data(), "valid": data(20)}, settings, fabric=one)
    assert_same(weights(plain), weights(wrapped))
