"""Train and measure methods on one data set, and write a report.

For example ``leanbayes compare digits``, or ``leanbayes compare table.csv --target price --seeds 0 1 2``.
"""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from leanbayes.cli import _options as shared
from leanbayes.cli._errors import MethodsFailed
from leanbayes.cli._tables import answer, comparison_table, console, print_json, verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    shared.add_data(parser)
    shared.add_network(parser)
    parser.add_argument(
        "--method",
        nargs="+",
        action=shared.Several,
        type=shared.methods,
        default=["all"],
        metavar="METHOD",
        help=f"any of {', '.join(shared.PRESET_NAMES)}, or your own as module:attribute (default: all)",
    )
    parser.add_argument(
        "--seeds",
        type=shared.seed,
        nargs="+",
        action=shared.Several,
        default=[0],
        help="seeds; one network is trained per method and seed (default: 0)",
    )
    parser.add_argument("--ood", help="name or file of out-of-distribution data of the same shape (default: generated)")
    parser.add_argument("--out", help="output folder (default: runs/compare-DATA-TIME)")
    shared.add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Do it; 1 where a method failed."""
    out = shared.output_folder(options, "compare")
    screen = console(options.json)
    device = shared.device_of(options)
    own = [name for name in options.method if ":" in name]
    names = [*shared.PRESET_NAMES, *own] if "all" in options.method else options.method
    methods = [shared.find_preset(name) for name in dict.fromkeys(names)]
    dataset = shared.load_data(options)
    from leanbayes.compare import compare
    from leanbayes.data import load

    def watch(event: str, entry: dict[str, Any]) -> None:
        if event == "start":
            screen.print(f"{entry['title']} ...", highlight=False)
        elif entry["status"] != "done":
            screen.print(f"  failed: {entry['error']}", markup=False, highlight=False)

    shared.describe(dataset, screen)
    result = compare(
        dataset,
        methods,
        shared.budget(options, dataset),
        seeds=options.seeds,
        samples=options.samples,
        out=out,
        device=device,
        resume=options.resume,
        network=options.model,
        hidden=options.hidden,
        augment=options.augment,
        ood=None if options.ood is None else load(options.ood, options.root),
        command=shlex.join(["leanbayes", *options.words]),
        watch=watch,
        heteroscedastic=options.heteroscedastic,
    )
    from leanbayes.report import write_report

    page = write_report(out)
    screen.print(comparison_table(result, screen.width))
    screen.print(verdict(result), markup=False, highlight=False)
    screen.print()
    screen.print(f"figures: {out / 'compare.json'}", markup=False, highlight=False, soft_wrap=True)
    screen.print(f"report:  {page}", markup=False, highlight=False, soft_wrap=True)
    if options.json:
        print_json(result | answer(result))
    failed = [entry["name"] for entry in result["methods"] if entry["status"] != "done"]
    if failed:
        raise MethodsFailed(f"{len(failed)} of {len(result['methods'])} methods failed: {', '.join(failed)}")
    return 0
