"""What the recipes on trained k-tied networks have in common: the paper's models, their data, and their figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._sampling import SeededRandom
from leanbayes.metrics import functional as metrics
from leanbayes.models import create
from leanbayes.objectives.likelihoods import Bernoulli, Categorical, Likelihood
from leanbayes.posteriors._method import Method
from leanbayes.reproduce.recipes import _emp_networks as emp
from leanbayes.reproduce.recipes._kt_mlp import RANKS, digits
from leanbayes.reproduce.run import Run
from leanbayes.training import TrainConfig
from leanbayes.training.seeds import derive

Arrays = tuple[Tensor, Tensor]
# Examples of the test set that are predicted at once.
_ROWS = 1000


@dataclass(frozen=True)
class Model:
    """One of the paper's networks.

    Attributes:
        title: The network and its data.
        batch_size: Of training.
        prior_std: Chosen by the paper from 0.2 and 0.3.
        load: Training and test examples.
        convert: The network with the standard deviations of a rank, None for mean-field.
        likelihood: Of its outputs.
    """

    title: str
    batch_size: int
    prior_std: float
    load: Callable[[Run], tuple[Arrays, Arrays]]
    convert: Callable[[Run, int | None, float], nn.Module]
    likelihood: Callable[[], Likelihood]


def _family(rank: int | None, prior_std: float, bias: str = "same") -> Method:
    # One draw for the whole batch, which the paper calls the standard estimator.
    settings: dict[str, Any] = {"prior": lb.Normal(0.0, prior_std), "bias": bias, "estimator": "weight"}
    return lb.MeanField(**settings) if rank is None else lb.KTied(rank, **settings)


def _load_digits(run: Run) -> tuple[Arrays, Arrays]:
    data = digits(run)
    return data["train"], data["test"]


def _load_hundred_classes(run: Run) -> tuple[Arrays, Arrays]:
    return emp.hundred_classes(run)


def _load_reviews(run: Run) -> tuple[Arrays, Arrays]:
    small = run.preset == "smoke"
    data = run.load("imdb", rows=(60, 30), valid=10 if small else 5000)
    return data.ready("train"), data.ready("test")


def _mlp(run: Run, rank: int | None, prior_std: float) -> nn.Module:
    return lb.bayesianize(create("mlp", hidden=tuple(run.settings["hidden"])), _family(rank, prior_std))


def _cnn(run: Run, rank: int | None, prior_std: float) -> nn.Module:
    """The dense layers are tied, the convolutions mean-field."""
    rules = {lb.named("dense*"): _family(rank, prior_std), lb.named("*"): _family(None, prior_std)}
    return lb.bayesianize(create("ktied_cnn"), rules)


def _lstm(run: Run, rank: int | None, prior_std: float) -> nn.Module:
    """The kernels of the LSTM are tied, that of the output is mean-field, words and biases are points."""
    rules = {
        lb.named("lstm"): _family(rank, prior_std, "point"),
        lb.named("output"): _family(None, prior_std, "point"),
        lb.named("*"): None,
    }
    return lb.bayesianize(create("text_lstm"), rules)


MODELS = {
    "mlp": Model("MLP, MNIST", 1024, 0.2, _load_digits, _mlp, Categorical),
    "cnn": Model("CNN, 100 classes", 1024, 0.2, _load_hundred_classes, _cnn, Categorical),
    "lstm": Model("LSTM, IMDB", 128, 0.2, _load_reviews, _lstm, Bernoulli),
}


def train(run: Run, model: str, rank: str, seed: int, anneal: float = 0.0) -> nn.Module:
    """One network, trained by the run's settings.

    Args:
        run: Whose ``epochs``, ``lr`` and ``batch_size`` hold, by model.
        model: "mlp", "cnn" or "lstm".
        rank: "mean-field", "1-tied", "2-tied" or "3-tied".
        seed: Of its start and training.
        anneal: Share of the training over which the KL comes in, in steps of 100 batches.
    """
    s, one = run.settings, MODELS[model]
    data, _ = one.load(run)
    epochs = s["epochs"][model]
    config = TrainConfig(
        epochs=epochs,
        batch_size=s["batch_size"] or one.batch_size,
        lr=s["lr"][model],
        anneal=anneal * epochs,
        anneal_every=100 if anneal else 1,
        checkpoint_every=max(1, epochs // 4),
        log_every=10**6,
    )
    kind = "annealed" if anneal else "plain"
    trained, _ = run.trained(
        f"kt-{model}-{rank}-{kind}-{epochs}-epochs",
        seed,
        lambda: one.convert(run, RANKS[rank], one.prior_std),
        data,
        config,
        likelihood=one.likelihood(),
    )
    return trained.eval()


@torch.no_grad()
def figures(run: Run, model: str, trained: nn.Module, seed: int) -> dict[str, float]:
    """Negative ELBO, NLL and accuracy on the test set.

    The ELBO averages the log-likelihoods of draws, the NLL is that of their averaged probabilities.
    """
    one = MODELS[model]
    (train_x, _), (x, y) = one.load(run)
    device = next(trained.parameters()).device
    likelihood = one.likelihood().to(device)
    samples = run.settings["samples"]
    average, nll, right = 0.0, 0.0, 0.0
    with SeededRandom(derive(seed, "predict")):
        for rows, labels in zip(x.split(_ROWS), y.split(_ROWS)):
            labels = labels.to(device)
            labels = labels.float() if isinstance(likelihood, Bernoulli) else labels
            # All rows of a draw have the same weights, as in training.
            outputs = lb.predict(trained, rows.to(device), samples, joint=True, likelihood=likelihood).outputs
            scores = likelihood.log_prob(outputs, labels).double()  # [S, B]
            average -= float(scores.mean(0).sum())
            nll -= float((scores.logsumexp(0) - torch.tensor(float(len(scores))).log()).sum())
            right += float(_right(outputs, labels, likelihood))
    count = len(y)
    return {
        "elbo": average / count + float(lb.kl(trained)) / len(train_x),
        "nll": nll / count,
        "accuracy": 100 * right / count,
    }


def _right(outputs: Tensor, labels: Tensor, likelihood: Likelihood) -> Tensor:
    if isinstance(likelihood, Bernoulli):
        return ((outputs.squeeze(-1).sigmoid().mean(0) > 0.5) == labels.bool()).sum()
    return metrics.accuracy(outputs.softmax(-1).mean(0), labels) * len(labels)
