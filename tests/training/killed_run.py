"""Kill a training at random moments, resume it, and compare with a run that nobody killed.

``python killed_run.py FOLDER KILLS`` prints "equal" at the end. The runs are forks of this process, so that a kill
costs no new imports.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import leanbayes as lb
from leanbayes.training import TrainConfig, fit
from leanbayes.training.files import read_state

CONFIG = TrainConfig(
    epochs=6,
    batch_size=16,
    lr=0.01,
    schedule="cosine",
    warmup=0.5,
    anneal=2.0,
    accumulate=2,
    checkpoint_steps=2,
    log_every=3,
    device="cpu",
)


def train(folder):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 3))
    model = lb.bayesianize(net, lb.MeanField())
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(400, 4, generator=generator), torch.randint(3, (400,), generator=generator)

    def jitter(x, generator):
        return x + 0.1 * torch.randn(x.shape, generator=generator)

    parts = {"train": (x, y), "valid": (x[:50], y[:50])}
    fit(model, parts, CONFIG, out=folder, resume=True, augment=jitter, progress=False)
    torch.save(model.state_dict(), folder / "weights.pt")


def start(folder):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        train(folder)
        status = 0
    finally:
        os._exit(status)


def result(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds", None)
    return torch.load(folder / "weights.pt"), lines


def compare(folder, wanted):
    weights, lines = result(folder)
    assert lines == wanted[1], "the logs differ"
    for name, value in wanted[0].items():
        assert torch.equal(value, weights[name]), f"{name} differs"


def finished(pid):
    found, status = os.waitpid(pid, os.WNOHANG)
    assert found == 0 or status == 0, "a run failed"
    return found != 0


def main(folder, kills):
    torch.set_num_threads(1)
    whole = folder / "whole"
    began = time.monotonic()
    assert os.waitpid(start(whole), 0)[1] == 0
    duration = time.monotonic() - began
    wanted = result(whole)
    moments = random.Random(kills)
    done = runs = 0
    while done < kills:
        runs += 1
        run = folder / f"run{runs}"
        while done < kills:
            pid = start(run)
            time.sleep(moments.uniform(0, 0.8 * duration))
            if finished(pid):
                break
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            done += 1
            if (run / "last.pt").exists():
                read_state(run / "last.pt")
        if not (run / "weights.pt").exists():
            assert os.waitpid(start(run), 0)[1] == 0
        compare(run, wanted)
        assert not list(run.glob(".*.tmp")), "a half-written file is left"
    print(f"killed {done} times in {runs} runs of {duration:.1f} s: equal")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
