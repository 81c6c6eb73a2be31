"""torch_blue: `convert_to_vimodule` converts a network, which then runs all samples at once under `torch.vmap`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from leanbayes.bench.peers.adapter import Adapter, Task, at_means, library, silence_by_name


def make(task: Task) -> Adapter:
    """A converted network with the closed-form objective."""
    vi = library("torch_blue.vi")
    distributions = library("torch_blue.vi.distributions")
    net = task.net
    vi.convert_to_vimodule(net, keep_weights=True)
    model: Any = task.place(net).train()
    objective = vi.AnalyticalKullbackLeiblerLoss(model, distributions.Categorical(), dataset_size=task.dataset_size)

    def predict(x: Tensor, samples: int) -> Tensor:
        return model(x, samples=samples)

    quiet = at_means(model, silence_by_name("log_std"))
    return Adapter(
        model,
        predict,
        # Its objective is summed over the data set.
        lambda x, y: objective(model(x, samples=1), y) / task.dataset_size,
        # Without a number it draws several samples, which are equal then.
        lambda x: quiet(x)[0],
    )
