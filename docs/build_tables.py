"""Writes the tables of README.md and the documentation between their markers.

    python docs/build_tables.py            writes
    python docs/build_tables.py --check    fails where a table is not what this program writes

Parameter counts come from `lb.summary`, measured figures from the files in results/. A table stands between
`<!-- table: NAME -->` and `<!-- end of table -->`.
"""

import argparse
import json
import pathlib
import re
import statistics
import sys
from collections.abc import Callable

import leanbayes as lb
from leanbayes.models import create

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/index.md", "docs/methods.md")

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


def demo_table() -> str:
    """The figures of `make demo`, as results/demo-digits.json has them."""
    source = "results/demo-digits.json"
    data = json.loads((ROOT / source).read_text())
    names = list(data["runs"])
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    rows = {"accuracy": "{:.2%}", "nll": "{:.4f}", "ece": "{:.4f}", "parameters": "{:,.0f}", "cpu seconds": "{:.1f}"}
    labels = {"nll": "NLL (nats)", "ece": "ECE, 15 bins", "cpu seconds": "training, CPU seconds"}
    for row, form in rows.items():
        cells = [_mean_and_spread([run[row] for run in runs], form) for runs in data["runs"].values()]
        lines.append(f"| {labels.get(row, row)} | " + " | ".join(cells) + " |")
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    seeds = f"mean ± standard deviation over the seeds {', '.join(map(str, data['seeds']))}"
    lines += ["", f"`{data['command']}`, {data['date']}, {data['device']}, {versions}; {seeds}."]
    lines.append(f"Method: `{data['method']}`. Source: `{source}`.")
    return "\n".join(lines)


def _mean_and_spread(values: list[float], form: str) -> str:
    mean = form.format(statistics.mean(values))
    return mean if len(set(values)) == 1 else f"{mean} ± {form.format(statistics.stdev(values))}"


TABLES: dict[str, Callable[[], str]] = {"resnet18": resnet18_table, "demo": demo_table}


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
