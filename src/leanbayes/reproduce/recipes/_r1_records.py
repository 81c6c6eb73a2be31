"""Hospital records for the LSTM of r1-ehr: events by hour, the methods of table 4, and their scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._sampling import SeededRandom
from leanbayes.data import Dataset, generate
from leanbayes.metrics import functional as metrics
from leanbayes.models import create
from leanbayes.posteriors._method import Method
from leanbayes.reproduce.run import Run
from leanbayes.training import TrainConfig
from leanbayes.training.seeds import derive

NAME = "mimic-iii"
PARTS = ("valid", "test")
# Rows that are predicted at once.
_ROWS = 500
# Draws by which the best epoch is found, over all components.
_VALID_DRAWS = 8


class Way(NamedTuple):
    """What is chosen on the validation rows.

    Attributes:
        lr: Learning rate.
        option: Weight decay of points, standard deviation of the prior of weights and embeddings, or probability of a
            factor to start at +1, see `OPTIONS`.
        embedding_std: Standard deviation of the prior of the embeddings beside rank-1 factors, None for others.
        clip: Largest factor of a Cauchy posterior, None for no limit.
    """

    lr: float
    option: float
    embedding_std: float | None = None
    clip: float | None = None

    def __str__(self) -> str:
        return "-".join(f"{value:g}" for value in self if value is not None)


# What the option of a method is called, and the setting that lists its values.
OPTIONS = {
    "deterministic": ("weight decay", "weight_decays"),
    "batchensemble": ("probability of +1", "signs"),
    "embeddings": ("prior deviation", "prior_stds"),
    "bayesian": ("prior deviation", "prior_stds"),
    "gaussian": ("probability of +1", "signs"),
    "cauchy": ("probability of +1", "signs"),
    # Its members are trained as the deterministic network is.
    "ensemble": ("weight decay", None),
}


def ways(run: Run, method: str, embedding_std: float | None = None) -> list[Way]:
    """What is tried for a method."""
    name = OPTIONS[method][1]
    if name is None:
        return []
    s = run.settings
    clips = s["clips"] if method == "cauchy" else (None,)
    return [Way(lr, option, embedding_std, clip) for lr in s["rates"] for option in s[name] for clip in clips]


def records(run: Run) -> Dataset:
    """The stays, divided by patient."""
    s = run.settings
    return run.load(NAME, rows=s["rows"], hours=s["hours"], valid=s["valid"], test=s["test"])


class Events:
    """Measurements as events: one for each range of values of each variable, in the hours in which it was observed.

    Args:
        train: Measurements of the training rows ``[N, T, 2 F]``, values and then whether they were observed; quantiles
            of the observed ones divide the ranges.
        bins: Ranges of a variable.
        together: Hours that make one step of the series.
    """

    def __init__(self, train: Tensor, bins: int, together: int = 1) -> None:
        values, observed = train.chunk(2, dim=2)
        inner = torch.linspace(0, 1, bins + 1)[1:-1]
        self.bins = bins
        self.together = together
        self.edges = []
        for value, seen in zip(values.unbind(2), observed.unbind(2)):
            found = value[seen > 0].sort().values
            # A variable that nobody measured has no event.
            place = (inner * (len(found) - 1)).round().long() if len(found) else torch.zeros(0, dtype=torch.long)
            self.edges.append(found[place].contiguous())

    @property
    def vocabulary(self) -> int:
        """Number of events."""
        return len(self.edges) * self.bins

    def __call__(self, x: Tensor) -> Tensor:
        """Ids ``[N, T / together, together * F]`` of what was observed, 0 elsewhere."""
        values, observed = x.chunk(2, dim=2)
        each = [
            1 + number * self.bins + torch.searchsorted(edges, value.nan_to_num().contiguous(), right=True)
            for number, (edges, value) in enumerate(zip(self.edges, values.unbind(2)))
        ]
        ids = torch.stack(each, 2) * (observed > 0)  # [N, T, F]
        return ids.unflatten(1, (-1, self.together)).flatten(2)


def events(run: Run) -> tuple[dict[str, tuple[Tensor, Tensor]], int]:
    """Ids and outcomes of the three parts, and the number of events."""
    data = records(run)
    encode = Events(data.train.tensor(), run.settings["bins"], run.settings["together"])
    parts = {"train": data.train, "valid": data.valid, "test": data.test}
    return {name: (encode(part.tensor()), part.y.float()) for name, part in parts.items()}, encode.vocabulary


def convert(run: Run, net: nn.Module, method: str, way: Way) -> nn.Module:
    """The network as one of the methods of table 4."""
    count = run.settings["components"]
    if method == "deterministic":
        return net
    if method == "ensemble":
        return lb.bayesianize(net, lb.DeepEnsemble(count))
    return lb.bayesianize(net, _rules(run, method, way))


def _rules(run: Run, method: str, way: Way) -> Mapping[str, Method | None]:
    s = run.settings
    if method in ("embeddings", "bayesian"):
        prior = lb.Normal(0.0, way.option)
        embedding = {"embedding": lb.MeanField(prior), "*": None}
        return embedding if method == "embeddings" else {"*": lb.MeanField(prior, bias="same")}
    rank1: dict[str, Any] = {"components": s["components"], "random_sign": way.option, "init_spread": s["spread"]}
    if method == "batchensemble":
        return {"embedding": None, "*": lb.BatchEnsemble(**rank1)}
    assert way.embedding_std is not None
    posterior = {"gaussian": "normal", "cauchy": "cauchy"}[method]
    # Factors of the LSTM, too, are drawn for each example, as in the paper; a draw for the whole batch is the default.
    rank1 |= {"posterior": posterior, "estimator": "rank1", "clip": way.clip}
    # The stochastic embeddings are kept, and shared by the components.
    embeddings = lb.MeanField(lb.Normal(0.0, way.embedding_std))
    return {"embedding": embeddings, "*": lb.Rank1(**rank1)}


def trained(run: Run, method: str, way: Way, seed: int) -> tuple[nn.Module, list[dict[str, Any]]]:
    """One network at its best epoch on the validation rows, and what happened epoch by epoch."""
    s = run.settings
    data, vocabulary = events(run)
    points = OPTIONS[method][0] == "weight decay"
    single = method in ("deterministic", "embeddings", "bayesian")
    config = TrainConfig(
        epochs=s["epochs"],
        batch_size=s["batch_size"],
        lr=way.lr,
        weight_decay=way.option if points else 0.0,
        anneal=s["anneal"] * s["epochs"],
        clip=1.0,
        restore_best=True,
        valid_samples=_VALID_DRAWS if single else max(1, _VALID_DRAWS // s["components"]),
        checkpoint_every=s["epochs"],
        log_every=10**6,
        precision="32",
        compile=False,
    )

    def build() -> nn.Module:
        sizes = {name: s[name] for name in ("embedding", "hidden", "dense")}
        return convert(run, create("event_lstm", vocabulary=vocabulary, **sizes), method, way)

    rows = {name: data[name] for name in ("train", "valid")}
    model, history = run.trained(f"r1-ehr-{method}-{way}", seed, build, rows, config, likelihood=lb.Bernoulli())
    return model.eval(), history


def valid_nll(run: Run, method: str, way: Way, seed: int) -> float:
    """The NLL on the validation rows, by which a way is chosen."""
    model, _ = trained(run, method, way, seed)
    return _scores(run, model, *events(run)[0]["valid"], seed)["nll"]


def scores(run: Run, method: str, way: Way, seed: int) -> dict[str, Any]:
    """NLL, AUC-PR and ECE of a network on validation and test rows, its NLL row by row, and its parameters."""
    model, history = trained(run, method, way, seed)
    data, _ = events(run)
    best = min(range(len(history)), key=lambda epoch: history[epoch]["valid_nll"])
    found: dict[str, Any] = {name: _scores(run, model, *data[name], seed) for name in PARTS}
    found["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    return found | {"best epoch": best + 1}


@torch.no_grad()
def _scores(run: Run, model: nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Any]:
    device = next(model.parameters()).device
    likelihood = lb.Bernoulli()
    nll, probability = [], []
    with SeededRandom(derive(seed, "predict")):
        for rows, labels in zip(x.split(_ROWS), y.split(_ROWS)):
            prediction = lb.predict(model, rows.to(device), run.settings["samples"], likelihood=likelihood)
            nll.append(-prediction.log_prob(labels.to(device)).double().flatten().cpu())
            probability.append(prediction.probs.double().flatten().cpu())
    return measured(torch.cat(nll), torch.cat(probability), y)


def measured(nll: Tensor, probability: Tensor, y: Tensor) -> dict[str, Any]:
    """The three metrics, and the NLL of every row."""
    return {
        "nll": float(nll.mean()),
        "auc_pr": float(metrics.average_precision(probability, y)),
        "ece": float(metrics.expected_calibration_error(probability, y)),
        "each": [round(value, 6) for value in nll.tolist()],
    }


def process_scores(run: Run, part: str) -> dict[str, Any]:
    """The metrics of the probabilities by which the outcomes of generated records were drawn."""
    data = records(run).part("valid" if part == "valid" else "test")
    risk = torch.from_numpy(generate.risk_of_death(data.tensor().double().numpy()))
    y = data.y.double()
    return measured(-torch.distributions.Bernoulli(risk).log_prob(y), risk, y)
