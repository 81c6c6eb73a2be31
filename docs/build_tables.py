"""Writes the tables of README.md and the documentation between their markers.

    python docs/build_tables.py            writes
    python docs/build_tables.py --check    fails where a table is not what this program writes

Parameter counts come from `lb.summary`, measured figures from the files in results/. A table stands between
`<!-- table: NAME -->` and `<!-- end of table -->`.
"""

import argparse
import functools
import json
import math
import pathlib
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import leanbayes as lb
from leanbayes.bench.page import bounds_table, speed_page, speed_summary
from leanbayes.bench.programs import digits_page, wide_page
from leanbayes.models import create
from leanbayes.report.content import parse
from leanbayes.report.summary import summarise
from leanbayes.reproduce.board_page import better_page, networks_page, tables_page
from leanbayes.reproduce.ledger import LEDGER, SYSTEMS
from leanbayes.reproduce.page import results_page
from leanbayes.reproduce.result import HOLDS, SHOWN, on_generated_data, published, read_result, spread

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "docs/board.md",
    "docs/factor-priors.md",
    "docs/index.md",
    "docs/k-tied.md",
    "docs/methods.md",
    "docs/patching.md",
    "docs/quantization.md",
    "docs/records.md",
    "docs/results.md",
    "docs/speed.md",
    "docs/variance-layers.md",
)

# What each system looks like on a ResNet-18 with 1000 classes: text, method, selector.
RESNET18 = [
    ("Variance Networks: one noise rate per layer", lb.VariationalDropout(), None),
    ("Ensemble Model Patching: 5 copies of the batch norms", lb.EMP(components=5), lb.norms()),
    ("Ensemble Model Patching: batch norms and output layer", lb.EMP(components=5), None),
    ("Rank-1 BNN: 4 components", lb.Rank1(components=4), None),
    ("k-tied Normal: rank 2", lb.KTied(rank=2), None),
    ("for comparison: mean-field", lb.MeanField(), None),
    ("for comparison: 5 networks", lb.DeepEnsemble(members=5), None),
]


def resnet18_table() -> str:
    """Parameters that each system adds to a ResNet-18."""
    lines = ["| system | method | parameters | added | overhead |", "|---|---|---:|---:|---:|"]
    for text, method, where in RESNET18:
        s = lb.summary(lb.bayesianize(create("resnet18"), method, where=where))
        call = _call(method) + (f", where=lb.{where!r}" if where is not None else "")
        lines.append(
            f"| {text} | `{call}` | {s.parameters:,} | {s.parameters - s.plain_parameters:,} | {s.overhead:.4f}x |"
        )
    return "\n".join(lines)


def _call(method: lb.Method) -> str:
    """A method as the table writes it: the arguments that say how large it is."""
    sizes = [name for name in ("components", "rank", "members") if hasattr(method, name)]
    return f"lb.{type(method).__name__}({', '.join(f'{name}={getattr(method, name)}' for name in sizes)})"


DIGITS = "results/compare-digits.json"
MEASURES = {
    "accuracy": ("accuracy", "{:.2%}"),
    "nll": ("NLL (nats)", "{:.4f}"),
    "ece": ("ECE, 15 bins", "{:.4f}"),
    "brier": ("Brier", "{:.4f}"),
}
# The questions of the report whose answers stand below the table.
CONCLUSIONS = ("Which method should you choose?", "And if cost is no object?", "How sure is this?")


def digits_table() -> str:
    """Every method on the digits, as results/compare-digits.json has it, and what the report says of it."""
    data = json.loads((ROOT / DIGITS).read_text())
    lines = [f"| method | {' | '.join(title for title, _ in MEASURES.values())} | parameters |"]
    lines.append("|---|" + "---:|" * (len(MEASURES) + 1))
    for entry in data["methods"]:
        cells = [_mean_and_spread(entry["metrics"][name], form) for name, (_, form) in MEASURES.items()]
        lines.append(f"| {entry['title']} | {' | '.join(cells)} | {entry['overhead']:.3f}x |")
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    train, valid, test = data["settings"]["examples"]
    seeds = f"mean ± standard deviation over the seeds {', '.join(map(str, data['seeds']))}"
    lines += ["", f"`{data['command']}`, {data['date'][:10]}, {data['device']}, {versions}; {seeds}."]
    lines.append(f"{train} training images, {valid} for validation, {test} test images. Source: `{DIGITS}`.")
    said = {finding.question: " ".join([finding.answer, *finding.more]) for finding in summarise(parse(data))}
    lines += ["", "The report concludes:", ""]
    return "\n".join([*lines, *(f"- {said[question]}" for question in CONCLUSIONS if question in said)])


def _mean_and_spread(values: list[float], form: str) -> str:
    mean = form.format(statistics.mean(values))
    return mean if len(set(values)) == 1 else f"{mean} ± {form.format(statistics.stdev(values))}"


def results() -> str:
    """Published figures beside those in results/."""
    return results_page(ROOT / "results", "../results/")


def reproduced_text() -> str:
    """How many published figures and tables were run, and which of them fall short."""
    found = {id: read_result(ROOT / f"results/{id}.json") for id in LEDGER}
    lines = ["| paper | figures and tables | run | hold | fall short | on generated data |"]
    lines.append("|---|---:|---:|---:|---|---|")
    for prefix, title in SYSTEMS.items():
        ids = [id for id in found if id.split("-")[0] == prefix]
        results = {id: found[id] for id in ids if found[id] is not None}
        short = [_linked(id) for id, result in results.items() if result["verdict"] != HOLDS]
        generated = [_linked(id) for id, result in results.items() if on_generated_data(result)]
        cells = [len(ids), len(results), len(results) - len(short), ", ".join(short), ", ".join(generated)]
        lines.append(f"| {title} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


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
        result = read_result(ROOT / f"results/{id}.json")
        if result is None:
            continue
        found = {metrics[r["metric"]]: r for r in result["rows"] if r["name"] == label and r["metric"] in metrics}
        if not found:
            raise ValueError(f"results/{id}.json has no row {label!r} with one of the metrics of {name}")
        lines.append(f"| {text} | {' | '.join(_with_published(found.get(title)) for title in titles)} |")
        sources[f"`results/{id}.json`"] = result["preset"]
    made = ", ".join(f"{path} (preset {preset})" for path, preset in sources.items())
    note = f"Mean ± standard deviation over seeds; the published figure is in brackets. Source: {made}."
    return "\n".join([*lines, "", note])


def _with_published(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    known = row["published"] is not None
    return spread(row["measured"]) + (f" ({published(row['published'])})" if known else "")


def _means(id: str) -> dict[tuple[str, str], float]:
    """The figures of a result by name and metric, averaged over seeds."""
    rows = json.loads((ROOT / f"results/{id}.json").read_text())["rows"]
    return {(row["name"], row["metric"]): statistics.fmean(row["measured"]) for row in rows}


def transition_text() -> str:
    """What the picture of learning curves shows."""
    text = (
        "*Test accuracy during training, on 2000 test images; averages are over 5 samples. LeNet-5 has noise in all "
        "layers. The dashed lines replace the weights of `dense1` by noise alone, N(0, alpha loc^2), and by the same "
        "noise with the deviations shuffled over the weights; below is log alpha of `dense1`."
    )
    if not (ROOT / "results/vn-priors.json").exists():
        return f"{text} Drawn from `results/vn-mnist.json`.*"
    return (
        f"{text} The VGG-like network has noise in its last three convolutions and its first dense layer. There the "
        "dashed lines replace all four, and log alpha is that of the dense one. Drawn from `results/vn-mnist.json` and "
        "`results/vn-priors.json`, where its training is short; the long one of `results/vn-cifar10.json` ends the "
        "same way.*"
    )


def mmd_text() -> str:
    """What the bound says of the trained layers of vn-mnist and vn-mmd."""
    weights = json.loads((ROOT / "results/vn-mmd.json").read_text())["figure"]["weights"]
    found = {metric: value for (_, metric), value in _means("vn-mmd").items()}
    log_alpha = _means("vn-mnist")["variance, dense1", "log alpha"]
    bound = lb.analysis.mmd_bound(math.exp(log_alpha), weights)
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
    runs = json.loads((ROOT / "results/vn-kappa.json").read_text())["figure"]["runs"]
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
    found = {id: read_result(ROOT / f"results/{id}.json") for id in LEDGER if id.startswith("vn-")}
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


INT8 = "results/bench-int8-cpu.json"


def int8_table() -> str:
    """What eight bits cost networks that were trained on the digits."""
    data = json.loads((ROOT / INT8).read_text())
    metrics = {"nll": ("NLL", "{:.4f}"), "accuracy": ("accuracy", "{:.2%}"), "ece": ("ECE", "{:.4f}")}
    titles = [title for title, _ in metrics.values()]
    lines = [f"| network | {' | '.join(titles)} | bytes | time |", "|---|" + "---:|" * (len(titles) + 2)]
    for row in data["digits"]:
        pairs = [(row["float32"][name], row["int8"][name], form) for name, (_, form) in metrics.items()]
        cells = [" → ".join(form.format(statistics.fmean(kind)) for kind in (a, b)) for a, b, form in pairs]
        cells += [f"{row['bytes_int8'] / row['bytes_float32']:.2f}x", f"{row['int8_over_float32']:.2f}x"]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    first = data["digits"][0]
    seeds = f"means over the seeds {', '.join(map(str, data['seeds']))}"
    lines += ["", f"{first['examples']} test images, {first['samples']} samples, {seeds}. {_int8_source(data)}"]
    return "\n".join(lines)


def int8_layers_table() -> str:
    """Times of rank-1 layers in eight bits and in bfloat16 over those in float32."""
    data = json.loads((ROOT / INT8).read_text())
    lines = ["| layer | rows | int8 | bfloat16 | bytes |", "|---|---:|---:|---:|---:|"]
    for row in data["rows"]:
        times = [f"{row[f'{kind}_over_float32']:.2f}x" for kind in ("int8", "bfloat16")]
        size = row["bytes_int8"] / row["bytes_float32"]
        lines.append(f"| {row['name']} | {row['batch']} | {' | '.join(times)} | {size:.2f}x |")
    return "\n".join([*lines, "", _int8_source(data)])


def _int8_source(data: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    products = "with" if data["int8_products"] else "without"
    machine = f"{data['device']} {products} int8 products"
    return f"`{data['command']}`, {data['date']}, {machine}, {versions}. Source: `{INT8}`."


FINETUNE = "results/emp-finetune.json"
FINETUNE_METRICS = ("top-1, %", "ECE, %", "NLL, nats")


def finetune_table(path: pathlib.Path = ROOT / FINETUNE) -> str:
    """What tuning the patches of a trained network buys, on clean and on corrupted images."""
    result = read_result(path, SHOWN)
    if result is None:
        return f"There is no `{FINETUNE}` yet."
    rows = result["rows"]
    metrics = [name + text for text in ("", ", corrupted images") for name in FINETUNE_METRICS]
    lines = [f"| network | {' | '.join(metrics)} |", "|---|" + "---:|" * len(metrics)]
    for name in dict.fromkeys(row["name"] for row in rows):
        found = {row["metric"]: spread(row["measured"]) for row in rows if row["name"] == name}
        if all(metric in found for metric in metrics):
            lines.append(f"| {name} | {' | '.join(found[metric] for metric in metrics)} |")
    verdict = "All checks hold." if result["verdict"] == HOLDS else f"It falls short: {result['gap']}."
    if on_generated_data(result):
        verdict += " The images are generated, so the figures mean nothing."
    times = [f"{row['name']}: {spread(row['measured'])} %" for row in rows if row["metric"].startswith("time, %")]
    lines += ["", f"{verdict} Time over that of training, {'; '.join(times)}."]
    lines.append(f"`{result['command']}`, {result['date']}, {result['device']}. Source: `{FINETUNE}`.")
    return "\n".join(lines)


# Columns of a table of one result: metrics, and what stands above them.
FACTOR_PRIORS = {
    "probability of a size below 0.1": "below 0.1",
    "probability of a size above 5": "above 5",
    "tail index, Hill": "tail index, Hill",
    "tail index over the same range, by integral": "by integral",
    "tail index in the limit": "in the limit",
}
RECORDS = {f"{name}, test": f"{name}" for name in ("NLL, nats", "AUC-PR", "ECE")} | {"parameters": "parameters"}


def result_table(id: str, head: str, metrics: dict[str, str], root: pathlib.Path = ROOT) -> str:
    """The figures of one result, a line for each name, the published ones in brackets."""
    result = read_result(root / f"results/{id}.json", SHOWN)
    if result is None:
        return f"There is no `results/{id}.json` so far."
    lines = [f"| {head} | {' | '.join(metrics.values())} |", "|---|" + "---:|" * len(metrics)]
    for name in dict.fromkeys(row["name"] for row in result["rows"]):
        found = {row["metric"]: row for row in result["rows"] if row["name"] == name}
        lines.append(f"| {name} | {' | '.join(_with_published(found.get(metric)) for metric in metrics)} |")
    verdict = "All checks hold." if result["verdict"] == HOLDS else f"It falls short: {result['gap']}."
    if on_generated_data(result):
        verdict += " On generated data, so the figures cannot be compared with the published ones in brackets."
    lines += ["", verdict, f"`{result['command']}`, {result['date']}, {result['device']}. Source: `results/{id}.json`."]
    return "\n".join(lines)


def _linked(id: str) -> str:
    """A result, with the way to its figures from README.md."""
    return f"[`{id}`](docs/results.md#{id})"


def verdicts_table(prefix: str, folder: pathlib.Path = ROOT / "results") -> str:
    """What every result of one paper says, and which have none so far."""
    ids = [id for id in LEDGER if id.split("-")[0] == prefix]
    found = {id: read_result(folder / f"{id}.json") for id in ids}
    lines = ["| result | what | verdict | preset |", "|---|---|---|---|"]
    for id, result in found.items():
        if result is not None:
            verdict = HOLDS if result["verdict"] == HOLDS else f"{result['verdict']}: {result['gap']}"
            lines.append(f"| [`{id}`](results.md#{id}) | {LEDGER[id]} | {verdict} | {result['preset']} |")
    missing = [f"`{id}`" for id, result in found.items() if result is None]
    return "\n".join([*lines, *(["", f"Without a result so far: {', '.join(missing)}."] if missing else [])])


TABLES: dict[str, Callable[[], str]] = {
    "factor-priors": functools.partial(result_table, "r1-priors", "prior of the factors", FACTOR_PRIORS),
    "records": functools.partial(result_table, "r1-ehr", "method", RECORDS),
    "patching-finetune": finetune_table,
    "tied-results": functools.partial(verdicts_table, "kt"),
    "board-tables": functools.partial(tables_page, ROOT / "results", "../results/"),
    "board-networks": functools.partial(networks_page, ROOT / "results", "../results/"),
    "board-better": functools.partial(better_page, ROOT / "results"),
    "int8": int8_table,
    "int8-layers": int8_layers_table,
    "resnet18": resnet18_table,
    "digits": digits_table,
    "results": results,
    "speed": functools.partial(speed_summary, ROOT / "results"),
    "speed-bounds": bounds_table,
    "speed-digits": functools.partial(digits_page, ROOT / "results"),
    "speed-wide": functools.partial(wide_page, ROOT / "results"),
    "speed-networks": functools.partial(speed_page, ROOT / "results", "../results/"),
    "reproduced": reproduced_text,
    "variance-transition": transition_text,
    "variance-mmd": mmd_text,
    "variance-kappa": kappa_text,
    "variance-samples": samples_text,
    "variance-gaps": gaps_table,
} | {name: functools.partial(variance_table, name) for name in VARIANCE}


def fill(text: str, tables: dict[str, str]) -> str:
    """A page with the tables between its markers replaced; an unknown name is an error."""

    def replace(match: re.Match[str]) -> str:
        return f"{match[1]}\n{tables[match[2]]}\n{match[3]}"

    return re.sub(r"(<!-- table: (\S+) -->)\n.*?(<!-- end of table -->)", replace, text, flags=re.DOTALL)


def main() -> int:
    """Write the tables, or say which pages are out of date."""
    parser = argparse.ArgumentParser(description="Write the generated tables of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page would change")
    options = parser.parse_args()
    tables = {name: build() for name, build in TABLES.items()}
    stale = []
    for page in PAGES:
        path = ROOT / page
        before = path.read_text()
        after = fill(before, tables)
        if after != before:
            stale.append(page)
            if not options.check:
                path.write_text(after)
    if options.check and stale:
        print(f"out of date: {', '.join(stale)}; run python docs/build_tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
