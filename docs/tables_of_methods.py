"""Tables of what methods add to a network, and of what they do on the digits, as they are and in eight bits."""

import json
import pathlib
import statistics
from typing import Any

import leanbayes as lb
from leanbayes._machine import versions_text
from leanbayes.models import create
from leanbayes.report.content import parse
from leanbayes.report.summary import summarise

ROOT = pathlib.Path(__file__).resolve().parents[1]

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
    train, valid, test = data["settings"]["examples"]
    seeds = f"mean ± standard deviation over the seeds {', '.join(map(str, data['seeds']))}"
    lines += [
        "",
        f"`{data['command']}`, {data['date'][:10]}, {data['device']}, {versions_text(data['versions'])}; {seeds}.",
    ]
    lines.append(f"{train} training images, {valid} for validation, {test} test images. Source: `{DIGITS}`.")
    said = {finding.question: " ".join([finding.answer, *finding.more]) for finding in summarise(parse(data))}
    lines += ["", "The report concludes:", ""]
    return "\n".join([*lines, *(f"- {said[question]}" for question in CONCLUSIONS if question in said)])


def _mean_and_spread(values: list[float], form: str) -> str:
    mean = form.format(statistics.mean(values))
    return mean if len(set(values)) == 1 else f"{mean} ± {form.format(statistics.stdev(values))}"


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
    products = "with" if data["int8_products"] else "without"
    machine = f"{data['device']} {products} int8 products"
    return f"`{data['command']}`, {data['date']}, {machine}, {versions_text(data['versions'])}. Source: `{INT8}`."
