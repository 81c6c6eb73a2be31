"""laplace-torch: a Laplace approximation of the last layer of a trained network."""

from __future__ import annotations

from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from leanbayes.bench.peers.adapter import Adapter, Task, library


def make(task: Task) -> Adapter:
    """Last layer, Kronecker factors, fitted on one batch; there is no training step of its own."""
    laplace = library("laplace")
    model = task.place(task.net).eval()
    found = laplace.Laplace(model, "classification", subset_of_weights="last_layer", hessian_structure="kron")
    found.fit(DataLoader(TensorDataset(task.x, task.y), batch_size=len(task.x)))

    def predict(x: Tensor, samples: int) -> Tensor:
        return found.predictive_samples(x, pred_type="glm", n_samples=samples)

    return Adapter(model, predict)
