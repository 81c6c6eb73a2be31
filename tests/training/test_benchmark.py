"""The benchmark runs, checks that both loops learn the same, and writes its result."""

import json

import torch

from benchmarks import training as benchmark


def test_measures_and_writes(tmp_path):
    device = torch.device("cpu")
    row = benchmark.measure(device, repeats=1, epochs=1, examples=48, batch=16)
    assert row["engine_over_bare"] > 0
    path = tmp_path / "folder" / "result.json"
    benchmark.write(path, "benchmarks.training", "bench-training", device, [row], limit=benchmark.LIMIT)
    record = json.loads(path.read_text())
    assert record["rows"] == [row]
    assert {"command", "versions", "date", "device", "limit"} <= record.keys()
