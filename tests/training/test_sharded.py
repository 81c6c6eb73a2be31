"""FSDP on two CPU processes: training, evaluation, checkpoints and resuming as in one process.

Fabric offers FSDP on GPUs alone, so a stand-in with the methods that the engine calls wraps torch's own.
"""

import os
import socket
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import leanbayes as lb
from leanbayes.training import fit, load_weights
from tests.training.problems import assert_same, config, data, network, weights

SETTINGS = {"clip": 0.1, "weight_decay": 0.01, "variational_lr": 0.02, "accumulate": 2, "batch_size": 16}


class StandIn:
    """What the engine uses of a Fabric with the FSDP strategy."""

    device = torch.device("cpu")
    world_size = 2

    def __init__(self, rank):
        self.global_rank = rank

    def setup_module(self, module):
        from torch.distributed.fsdp import FullyShardedDataParallel

        wrapped = FullyShardedDataParallel(module, use_orig_params=True, device_id=self.device)
        return SimpleNamespace(_forward_module=wrapped)

    def autocast(self):
        return nullcontext()

    def backward(self, loss):
        loss.backward()

    def no_backward_sync(self, module, enabled):
        return module._forward_module.no_sync()

    def clip_gradients(self, module, optimizer, max_norm, error_if_nonfinite):
        module._forward_module.clip_grad_norm_(max_norm)

    def broadcast(self, value):
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]


def parts():
    x, y = data(100)
    return {"train": (x, y), "valid": (x[:41], y[:41])}


def worker(rank, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        with lb.sampling(mean=True):
            model = network(lb.MeanField())
            fit(model, parts(), config(**SETTINGS, epochs=4), out=folder / "whole", fabric=StandIn(rank))
            for epochs in (2, 4):
                model = network(lb.MeanField())
                settings = config(**SETTINGS, epochs=epochs)
                fit(model, parts(), settings, out=folder / "parts", resume=True, fabric=StandIn(rank))
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_sharded_equals_one_process(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, (port, tmp_path), nprocs=2)
    whole, resumed = (load_weights(network(lb.MeanField(), seed=3), tmp_path / name) for name in ("whole", "parts"))
    assert_same(weights(whole), weights(resumed))
    alone = network(lb.MeanField())
    with lb.sampling(mean=True):
        history = fit(alone, parts(), config(**SETTINGS, epochs=4))
    for name, value in weights(alone).items():
        torch.testing.assert_close(weights(whole)[name], value, msg=lambda m, n=name: f"{n}: {m}")
    saved = torch.load(tmp_path / "whole" / "last.pt")
    assert int(saved["model"]["step"]) == saved["step"] == history.last["step"]
    assert [r["valid_nll"] for r in saved["records"]] == pytest.approx(history["valid_nll"], rel=1e-4)
