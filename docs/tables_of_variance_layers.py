"""What the page on variance layers shows of the files in results/."""

import json
import math
import statistics
from collections.abc import Iterator
from typing import Any

from tables_of_results import RESULTS, with_published

from leanbayes.analysis import mmd_bound
from leanbayes.reproduce.ledger import ids_of
from leanbayes.reproduce.result import HOLDS, read_result, spread

ONE, MEANS, MANY = "accuracy of one sample, %", "accuracy of mean propagation, %", "accuracy of 20 samples, %"
_ATTACKED = ("deterministic", "dropout", "deep ensemble", "variance", "variance ensemble")
_STEPS = 20
# Tables of docs/variance-layers.md: what the rows are; the rows, (id of the result, name there, text); the columns.
VARIANCE: dict[str, tuple[str, list[tuple[str, str, str]], dict[str, str]]] = {
    "variance-accuracy": (
        "network",
        [
            ("vn-mnist", "dropout", "LeNet-5 on MNIST, dropout"),
            ("vn-mnist", "variance", "LeNet-5 on MNIST, variational dropout in all layers"),
            (
                "vn-mnist",
                "zero-mean",
                "LeNet-5 on MNIST, dropout before `dense1`, a variance layer from the start, followed by \\|x\\|",
            ),
            ("vn-cifar10", "dropout", "VGG-like network on CIFAR-10, dropout"),
            ("vn-cifar10", "variance", "VGG-like network on CIFAR-10, variational dropout in four layers"),
        ],
        {MEANS: "means of the weights, %", ONE: "one sample, %", MANY: "20 samples, %"},
    ),
    "variance-layers": (
        "layer",
        [("vn-mnist", f"variance, {name}", f"`{name}`") for name in ("conv1", "conv2", "dense1", "dense2")],
        {"log alpha": "log alpha"},
    ),
    "variance-controls": (
        "change to `dense1`",
        [
            ("vn-mnist", "variance", "none"),
            ("vn-mnist", "variance, zero-mean sample of dense1", "means dropped"),
            (
                "vn-mnist",
                "variance, permuted deviations of dense1",
                "means dropped and deviations shuffled",
            ),
        ],
        {MANY: "20 samples, %"},
    ),
    "variance-params": (
        "distribution of `dense1`",
        [
            ("vn-params", "zero-mean, |x|", "`VarianceLayer()`, followed by an absolute value"),
            ("vn-params", "zero-mean, ReLU", "`VarianceLayer()`"),
            ("vn-params", "layer", '`VariationalDropout(share="layer")`'),
            ("vn-params", "neuron", '`VariationalDropout(share="neuron")`'),
            ("vn-params", "weight", '`VariationalDropout(share="weight")`'),
            ("vn-params", "additive", "`MeanField(prior=LogUniform())`"),
        ],
        {
            "ELBO, nats (published: unknown units)": "ELBO, nats",
            "KL, nats (published: unknown units)": "KL, nats",
            MEANS: "means, %",
            MANY: "20 samples, %",
        },
    ),
    "variance-noise": (
        "`dense1`",
        [
            ("vn-noise", "gaussian", "`VarianceLayer()`"),
            ("vn-noise", "bernoulli", '`VarianceLayer(noise="bernoulli", estimator="flipout")`'),
            ("vn-noise", "uniform", '`VarianceLayer(noise="uniform", estimator="flipout")`'),
        ],
        {ONE: "one sample, %", MANY: "20 samples, %"},
    ),
    "variance-tanh": (
        "variance layers",
        [
            ("vn-tanh", "variance layers: none", "none"),
            ("vn-tanh", "variance layers: conv2", "`conv2`"),
            ("vn-tanh", "variance layers: dense1", "`dense1`"),
            ("vn-tanh", "variance layers: conv2 and dense1", "`conv2` and `dense1`"),
            ("vn-tanh", "variance layers: dense1, no shift (control)", "`dense1`, without the batch norm"),
        ],
        {ONE: "one sample, %", MANY: "20 samples, %"},
    ),
    "variance-priors": (
        "prior",
        [
            ("vn-priors", "log-uniform", "`LogUniform()`"),
            ("vn-priors", "Student-t", "`StudentT(1e-16)`"),
            ("vn-priors", "ARD", "`ARD()`"),
        ],
        {"smallest log alpha": "smallest log alpha", MEANS: "means, %", MANY: "20 samples, %"},
    ),
    "variance-attack": (
        "attacked",
        [("vn-attack", name, name) for name in _ATTACKED],
        {
            "accuracy before the attack, %": "accuracy before, %",
            f"successful attacks, mean over {_STEPS} steps, %": f"successful attacks, mean over {_STEPS} steps, %",
            f"successful attacks after {_STEPS} steps, %": f"after {_STEPS} steps, %",
            "entropy before, nats": "entropy before, nats",
            "entropy after, nats": "after, nats",
        },
    ),
    "variance-pruning": (
        "`dense1`, criterion",
        [
            ("vn-prune", "zero-mean", "`VarianceLayer()`, by standard deviation"),
            ("vn-prune", "layer-wise", "`VariationalDropout()`, by standard deviation"),
            ("vn-kappa", "weights removed by kappa at no loss", "`VariationalDropout()`, softplus, by kappa"),
            ("vn-kappa", "weights replaced by their means at no loss", "the same, replaced by means instead of zero"),
        ],
        {
            "sparsity at a loss of at most 0.1 points, %": "removed at a loss of at most 0.1 points, %",
            "share, %": "removed at a loss of at most 0.1 points, %",
        },
    ),
}


def variance_table(name: str) -> str:
    """Measured figures, the published ones in brackets, of the results that are there."""
    head, rows, metrics = VARIANCE[name]
    titles = list(dict.fromkeys(metrics.values()))
    lines = [f"| {head} | {' | '.join(titles)} |", "|---|" + "---:|" * len(titles)]
    sources: dict[str, str] = {}
    for id, label, text in rows:
        result = read_result(RESULTS / f"{id}.json")
        if result is None:
            continue
        found = {metrics[r["metric"]]: r for r in result["rows"] if r["name"] == label and r["metric"] in metrics}
        if not found:
            raise ValueError(f"results/{id}.json has no row {label!r} with one of the metrics of {name}")
        lines.append(f"| {text} | {' | '.join(with_published(found.get(title)) for title in titles)} |")
        sources[f"`results/{id}.json`"] = result["preset"]
    made = ", ".join(f"{path} (preset {preset})" for path, preset in sources.items())
    note = f"Mean ± standard deviation over seeds; the published figure is in brackets. Source: {made}."
    return "\n".join([*lines, "", note])


def _means(id: str) -> dict[tuple[str, str], float]:
    """The figures of a result by name and metric, averaged over seeds."""
    rows = json.loads((RESULTS / f"{id}.json").read_text())["rows"]
    return {(row["name"], row["metric"]): statistics.fmean(row["measured"]) for row in rows}


def transition_text() -> str:
    """What the picture of learning curves shows."""
    text = (
        "*Test accuracy during training, on 2000 test images; averages are over 5 samples. LeNet-5 has noise in all "
        "layers. The dashed lines replace the weights of `dense1` by noise alone, N(0, alpha loc^2), and by the same "
        "noise with the deviations shuffled over the weights; below is log alpha of `dense1`."
    )
    if not (RESULTS / "vn-priors.json").exists():
        return f"{text} Drawn from `results/vn-mnist.json`.*"
    return (
        f"{text} The VGG-like network has noise in its last three convolutions and its first dense layer. There the "
        "dashed lines replace all four, and log alpha is that of the dense one. Drawn from `results/vn-mnist.json` and "
        "`results/vn-priors.json`, where its training is short; the long one of `results/vn-cifar10.json` ends the "
        "same way.*"
    )


def mmd_text() -> str:
    """What the bound says of the trained layers of vn-mnist and vn-mmd."""
    weights = json.loads((RESULTS / "vn-mmd.json").read_text())["figure"]["weights"]
    found = {metric: value for (_, metric), value in _means("vn-mmd").items()}
    log_alpha = _means("vn-mnist")["variance, dense1", "log alpha"]
    bound = mmd_bound(math.exp(log_alpha), weights)
    return (
        f"`dense1` has D = {weights:,} weights, so the bound drops below 2 at log alpha = "
        f"{found['log alpha above which the bound is below 2']:.2f}. With noise in all four layers it ends at "
        f"{log_alpha:.2f}, where the bound is {bound.bound:.1f}: {'vacuous' if bound.vacuous else 'not vacuous'}. "
        f"With noise in `dense1` alone it ends at {found['log alpha']:.2f}, with a bound of "
        f"{found['bound sqrt(2 D / (pi alpha))']:.2f} and a distance of "
        f"{found['exact distance 2 erf(sqrt(D / (8 alpha)))']:.2f}; there, the largest change of a class probability "
        "when the means are dropped is "
        f"{found['largest change of a class probability without the means']:.4f}. Means over the seeds. Sources: "
        "`results/vn-mmd.json`, `results/vn-mnist.json`."
    )


def kappa_text() -> str:
    """What the softplus network of vn-kappa shows about log alpha."""
    runs = json.loads((RESULTS / "vn-kappa.json").read_text())["figure"]["runs"]
    steps = [tuple(statistics.fmean(values) for values in zip(*step)) for step in zip(*map(_kappa_steps, runs))]
    # The last look at which the means still predict.
    before = [step for step in steps if step[2] >= 90][-1]
    (epoch, alpha, mean, above), (_, last_alpha, last_mean, last_above) = before, steps[-1]
    return (
        f"In our run with softplus after `dense1` and noise in that layer only, log alpha is {alpha:.1f} after "
        f"{epoch:.0f} epochs, yet the means alone still predict {mean:.1f} % of 2000 test images. At that point log10 "
        f"kappa is above 1.5 for {above:.1%} of the weights. At the end log alpha is {last_alpha:.1f}, the means "
        f"predict {last_mean:.1f} %, and kappa is above the threshold for {last_above:.1%}. Means over the seeds. "
        "Source: `results/vn-kappa.json`."
    )


def _kappa_steps(run: dict[str, list[float]]) -> list[tuple[float, ...]]:
    return list(zip(run["epoch"], run["log_alpha"], run["mean"], run["above"]))


def samples_text() -> str:
    """What single draws and their averages reach."""
    single = {metric: value for (name, metric), value in _means("vn-samples").items() if name == "single draws"}
    ((average, value),) = [(name, v) for (name, _), v in _means("vn-samples").items() if name.startswith("average")]
    mnist = _means("vn-mnist")
    return (
        f"Single draws, each one network for all test images, reach {single['mean accuracy, %']:.1f} % on "
        f"average and {single['best accuracy, %']:.1f} % at best; the {average} of them reaches {value:.2f} %. Draws "
        f"for each image reach {mnist['variance', ONE]:.2f} % alone and {mnist['variance', MANY]:.2f} % averaged over "
        "20. Means over the seeds. Sources: `results/vn-samples.json`, `results/vn-mnist.json`."
    )


# Figures that far below the published ones are listed: ten images of MNIST's test set, where they are percentages.
NOTICED = 0.1
# Means that predict no better are those of variance layers.
CHANCE = 12


def gaps_table() -> str:
    """Where the results on Variance Networks fall short: checks that fail, lower accuracies, and what has no result."""
    found = {id: read_result(RESULTS / f"{id}.json") for id in ids_of("vn")}
    results = {id: result for id, result in found.items() if result is not None}
    lines = [f"Figures more than {NOTICED} below the published ones, percentages in points:", ""]
    lines += ["| result | what | published | ours | short by |", "|---|---|---:|---:|---:|"]
    lines += [row for result in results.values() for row in _lower_figures(result)]
    lines += ["", "Checks that fail:", ""]
    failed = [result for result in results.values() if result["verdict"] != HOLDS]
    lines += [f"- `{result['id']}`: {result['gap']}" for result in failed]
    missing = [f"`{id}`" for id, result in found.items() if result is None]
    if missing:
        lines += ["", f"No result yet: {', '.join(missing)}."]
    return "\n".join(lines)


def _lower_figures(result: dict[str, Any]) -> Iterator[str]:
    for row in result["rows"]:
        published = _published_number(row)
        # Mean propagation through variance layers is meant to fail.
        if published is None or row["metric"] == MEANS and published <= CHANCE:
            continue
        short = published - statistics.fmean(row["measured"])
        if short > NOTICED:
            figures = f"{row['published']} | {spread(row['measured'])} | {short:.2f}"
            name = row["name"].replace("|", "\\|")
            yield f"| `{result['id']}` | {name}, {row['metric']} | {figures} |"


def _published_number(row: dict[str, Any]) -> float | None:
    """The published figure of which more is better; None of others, such as bounds in unknown units."""
    if not row["metric"].startswith(("accuracy", "share", "sparsity", "log alpha")):
        return None
    found = row["published"]
    if isinstance(found, str):
        return float(found.removeprefix("> ")) if found.startswith("> ") else None
    return found
