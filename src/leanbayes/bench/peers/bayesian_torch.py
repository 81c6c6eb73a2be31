"""bayesian-torch: `dnn_to_bnn` converts a network, with means at its weights (MOPED)."""

from __future__ import annotations

import contextlib
import io

import torch.nn.functional as F
from torch import nn

from leanbayes.bench.peers.adapter import Adapter, Task, at_means, library, loop, silence_by_name


def make(task: Task, kind: str) -> Adapter:
    """A network of layers of a kind: "Flipout" or "Reparameterization"."""
    convert = library("bayesian_torch.models.dnn_to_bnn")
    settings = {
        "prior_mu": 0.0,
        "prior_sigma": 1.0,
        "posterior_mu_init": 0.0,
        "posterior_rho_init": -3.0,
        "type": kind,
        "moped_enable": True,
        "moped_delta": 0.1,
    }
    recurrent = any(isinstance(module, nn.LSTM) for module in task.net.modules())
    # It prints where MOPED does not apply.
    with contextlib.redirect_stdout(io.StringIO()):
        convert.dnn_to_bnn(task.net, settings)
    model = task.place(task.net).train()
    return Adapter(
        model,
        loop(model),
        lambda x, y: F.cross_entropy(model(x), y) + convert.get_kl_loss(model) / task.dataset_size,
        None if recurrent else at_means(model, silence_by_name("rho")),
    )
