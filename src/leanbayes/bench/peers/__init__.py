"""Other libraries, each as it documents itself; imported only where they are measured."""

from __future__ import annotations

import functools

from leanbayes.bench.peers import bayesian_torch, blitz, laplace, torch_blue, torch_uncertainty, torchbnn
from leanbayes.bench.peers.adapter import Adapter, NotInstalled, Peer, Task, version

PEERS: tuple[Peer, ...] = (
    Peer(
        "bayesian-torch, flipout",
        "bayesian-torch",
        "mean-field",
        functools.partial(bayesian_torch.make, kind="Flipout"),
    ),
    Peer(
        "bayesian-torch, reparameterization",
        "bayesian-torch",
        "mean-field",
        functools.partial(bayesian_torch.make, kind="Reparameterization"),
    ),
    Peer("torch-uncertainty, mean-field", "torch-uncertainty", "mean-field", torch_uncertainty.mean_field),
    Peer("torch-uncertainty, BatchEnsemble", "torch-uncertainty", "batch-ensemble", torch_uncertainty.batch_ensemble),
    Peer("blitz", "blitz-bayesian-pytorch", "mean-field", blitz.make),
    Peer("torchbnn", "torchbnn", "mean-field", torchbnn.make, channels_last=False),
    Peer("torch_blue", "torch_blue", "mean-field", torch_blue.make),
    Peer(
        "laplace-torch, last layer", "laplace-torch", "mean-field", laplace.make, same_family=False, channels_last=False
    ),
)

__all__ = ["PEERS", "Adapter", "NotInstalled", "Peer", "Task", "version"]
