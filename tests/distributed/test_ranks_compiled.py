"""Ranks that were seeded alike draw different noise, in eager and in compiled code."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import leanbayes as lb
from tests.distributed.test_two_ranks import free_port

METHODS = [lb.MeanField(init_std=0.5), lb.Rank1(components=2, init_std=0.5)]
STATES = {"plain": {}, "seeded": {"seed": 3}}


def outputs(method, compiled, options):
    """Outputs of three training steps' objectives."""
    torch.manual_seed(0)
    model = lb.bayesianize(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), method)
    elbo = lb.ELBO(model, dataset_size=64)
    run = torch.compile(elbo, backend="aot_eager", fullgraph=True) if compiled else elbo
    x, y = torch.ones(8, 4), torch.arange(8) % 3
    torch.manual_seed(0)  # the same on both ranks
    with torch.no_grad(), lb.sampling(**options):
        return torch.stack([run(x, y).outputs for _ in range(3)])


def worker(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        for method in METHODS:
            for compiled in (False, True):
                for name, options in STATES.items():
                    case = f"{type(method).__name__}, compiled {compiled}, {name}"
                    mine, again = (outputs(method, compiled, options) for _ in range(2))
                    both = [torch.zeros_like(mine) for _ in range(2)]
                    dist.all_gather(both, mine)
                    assert not torch.isclose(both[0], both[1]).any(), f"ranks drew the same noise: {case}"
                    assert not torch.isclose(mine[0], mine[1]).any(), f"steps drew the same noise: {case}"
                    assert torch.equal(mine, again), f"the same seed gave other noise: {case}"
                    # Noise of the two ranks is unrelated, not only unequal.
                    flat = torch.stack(both).flatten(1)
                    flat = flat - flat.view(2, -1, 3).mean(1, keepdim=True).expand(2, flat.shape[1] // 3, 3).flatten(1)
                    related = torch.corrcoef(flat)[0, 1].abs()
                    assert related < 5 / flat.shape[1] ** 0.5, f"noise of the ranks is related: {case}"
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_29_compiled_ranks_draw_different_noise():
    mp.spawn(worker, (free_port(),), nprocs=2)
