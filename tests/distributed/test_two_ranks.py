"""Two gloo ranks: DDP around the ELBO gives the loss and gradient of one process, with noise that differs."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import leanbayes as lb

METHODS = [
    lb.MeanField(init_std=0.2),
    lb.KTied(),
    lb.VariationalDropout(),
    lb.VarianceLayer(),
    lb.Rank1(),
    lb.BatchEnsemble(),
    lb.EMP(),
    lb.ECMP(learn_mixing=True),
    lb.MCDropout(),
    lb.DropConnect(),
    lb.DeepEnsemble(members=3),
]


def make_elbo(method, unused=False):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
    model = lb.bayesianize(net, method)
    if unused:
        model.spare = nn.Linear(2, 2)
        model.forward = lambda x: net_forward(model, x)
    return lb.ELBO(model, dataset_size=16)


def net_forward(model, x):
    for layer in list(model)[:4]:
        x = layer(x)
    return x


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 4, generator=generator), torch.randint(3, (16,), generator=generator)


def compare_with_one_process(rank, method, unused):
    x, y = data()
    # The mean of a variance layer is zero whatever its parameters, so that means alone leave them unused.
    some_unused = unused or isinstance(method, lb.VarianceLayer)
    wrapped = DistributedDataParallel(make_elbo(method, unused), find_unused_parameters=some_unused)
    rows = slice(rank * 8, rank * 8 + 8)
    with lb.sampling(mean=True):
        terms = wrapped(x[rows], y[rows])
    terms.loss.backward()
    loss = terms.loss.detach().clone()
    dist.all_reduce(loss)
    gradients = {n: p.grad.clone() for n, p in wrapped.module.named_parameters() if p.grad is not None}
    return loss / 2, terms.kl.detach(), gradients


def noise_differs(rank):
    elbo = make_elbo(lb.MeanField(init_std=0.5))
    x, y = data()
    torch.manual_seed(0)  # the same on both ranks
    mine = elbo(x[:8], y[:8]).outputs.detach()
    again = elbo(x[:8], y[:8]).outputs.detach()
    both = [torch.zeros_like(mine) for _ in range(2)]
    dist.all_gather(both, mine.contiguous())
    assert not torch.allclose(both[0], both[1]), "ranks drew the same noise"
    assert not torch.allclose(mine, again), "steps drew the same noise"
    # A joint prediction with a seed is the same function everywhere.
    joint = lb.predict(elbo.model, x, 3, seed=0, joint=True).outputs
    dist.all_gather(same := [torch.zeros_like(joint) for _ in range(2)], joint.contiguous())
    assert torch.equal(same[0], same[1]), "joint predictions differ between ranks"


def too_small(rank):
    elbo = make_elbo(lb.MeanField())
    with pytest.raises(ValueError, match="smaller than the batch of 32"):
        elbo(*data())


def trains(rank, method):
    wrapped = DistributedDataParallel(make_elbo(method))
    optimiser = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    x, y = data()
    rows = slice(rank * 8, rank * 8 + 8)
    for _ in range(3):
        optimiser.zero_grad()
        wrapped(x[rows], y[rows]).loss.backward()
        optimiser.step()
    assert int(wrapped.module.step) == 3
    for parameter in wrapped.parameters():
        both = [torch.zeros_like(parameter) for _ in range(2)]
        dist.all_gather(both, parameter.detach().contiguous())
        assert torch.equal(both[0], both[1]), "ranks drifted apart"


def worker(rank, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        results = {}
        for index, method in enumerate(METHODS):
            for unused in (False, True) if index == 0 else (False,):
                results[index, unused] = compare_with_one_process(rank, method, unused)
            trains(rank, method)
        noise_differs(rank)
        too_small(rank)
        if rank == 0:
            torch.save(results, os.path.join(folder, "results.pt"))
    finally:
        dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_two_ranks_equal_one_process(tmp_path):
    mp.spawn(worker, (free_port(), str(tmp_path)), nprocs=2)
    results = torch.load(tmp_path / "results.pt")
    for (index, unused), (loss, kl, gradients) in results.items():
        elbo = make_elbo(METHODS[index], unused)
        with lb.sampling(mean=True):
            terms = elbo(*data())
        terms.loss.backward()
        torch.testing.assert_close(loss, terms.loss.detach())
        torch.testing.assert_close(kl, terms.kl.detach())
        for name, parameter in elbo.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(gradients[name], parameter.grad, msg=lambda m, n=name: f"{n}: {m}")
