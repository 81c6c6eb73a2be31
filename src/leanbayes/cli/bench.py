"""Measure what methods cost beside the plain network and other libraries: time, memory, parameters.

For example ``leanbayes bench``, or ``leanbayes bench resnet18 --methods rank1 emp --device cuda --out results``.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
from pathlib import Path
from typing import Any

from leanbayes.cli import _options as shared
from leanbayes.cli._errors import MethodsFailed, UsageError
from leanbayes.cli._tables import console, print_json

_PARTS = {"cpu": ("step", "predict"), "cuda": ("step", "predict", "memory")}
_MODES = {"cpu": ("eager",), "cuda": ("eager", "captured")}
_SAMPLES = {"cpu": (20,), "cuda": (20, 100)}
_PRECISION: dict[str, Any] = {"cpu": "32", "cuda": "bf16"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.add_argument(
        "networks",
        nargs="*",
        metavar="NETWORK",
        help="mlp, lenet5, resnet18, lstm, transformer, wrn28-10, pyramidnet "
        "(default: mlp and lenet5, or resnet18 on a GPU)",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        action=shared.Several,
        metavar="NAME",
        help="methods, such as rank1 or mean-field/weight, with the estimator after a slash (default: all)",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute")
    parser.add_argument("--precision", choices=("32", "bf16"), help="default: 32, or bf16 on a GPU")
    parser.add_argument("--batch", type=shared.count, help="examples of a training step (default: the network's own)")
    parser.add_argument("--rows", type=shared.count, help="examples of a prediction (default: the network's own)")
    parser.add_argument(
        "--samples",
        type=shared.count,
        nargs="+",
        action=shared.Several,
        metavar="N",
        help="samples of a prediction (default: 20; on a GPU also 100)",
    )
    parser.add_argument("--repeats", type=shared.count, help="rounds to take medians of (default: 5, or 20 on a GPU)")
    parser.add_argument(
        "--modes",
        nargs="+",
        action=shared.Several,
        choices=("eager", "captured"),
        help="default: eager, or both on a GPU",
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        action=shared.Several,
        choices=("step", "predict", "memory", "profile", "start", "scaling"),
        help="default: step and predict; on a GPU also memory",
    )
    parser.add_argument(
        "--peers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also measure other libraries, if installed",
    )
    parser.add_argument("--out", metavar="FOLDER", help="folder for results and pictures (default: runs/bench-TIME)")
    parser.add_argument("--resume", action="store_true", help="add the rows missing from the results in --out")
    shared.add_common(parser, samples=None)


def run(options: argparse.Namespace) -> int:
    """Do it; 1 where a method of ours failed."""
    device = shared.device_of(options)
    out = _folder(options)
    screen = console(options.json)
    from leanbayes.bench.contenders import contenders
    from leanbayes.bench.networks import DEFAULTS, network
    from leanbayes.bench.picture import draw
    from leanbayes.bench.run import Plan, bench, file_name
    from leanbayes.bench.tables import figures_of

    plan = Plan(
        device=device,
        precision=options.precision or _PRECISION[device],
        batch=options.batch,
        rows=options.rows,
        repeats=options.repeats or (20 if device == "cuda" else 5),
        modes=tuple(options.modes or _MODES[device]),
        parts=tuple(options.parts or _PARTS[device]),
        methods=None if options.methods is None else tuple(options.methods),
        peers=options.peers,
        samples=tuple(options.samples or _SAMPLES[device]),
    )
    # What cannot be meant is said before minutes go into the first network.
    contenders(plan.methods)
    chosen = [network(name) for name in options.networks or DEFAULTS[device]]
    results = []
    for one in chosen:
        screen.print(f"{one.title} ...", highlight=False)
        command = _command(one.name, options)
        result = bench(one.name, plan, out, resume=options.resume, command=command, watch=_watch(screen))
        results.append(result)
        path = out / file_name(one.name, plan.device, plan.precision)
        drawn = draw(result, path.with_suffix(".png"))
        for line in figures_of(result):
            screen.print(line, markup=False, highlight=False)
        screen.print(f"figures: {path}", markup=False, highlight=False, soft_wrap=True)
        if drawn:
            screen.print(f"picture: {path.with_suffix('.png')}", markup=False, highlight=False, soft_wrap=True)
    if options.json:
        print_json(results)
    failed = _failed(results)
    if failed:
        raise MethodsFailed(f"{len(failed)} methods failed: {', '.join(failed)}; the result files say why")
    return 0


def _folder(options: argparse.Namespace) -> Path:
    if options.out is not None:
        return Path(options.out).expanduser()
    if options.resume:
        raise UsageError("--resume needs --out, the folder to continue in")
    return Path("runs") / f"bench-{datetime.datetime.now().strftime('%Y%m%d-%H%M%S')}"


def _command(name: str, options: argparse.Namespace) -> str:
    """The command for one network, without where its files went."""
    words = ["leanbayes", "bench", name]
    for option in ("methods", "samples", "modes", "parts"):
        if getattr(options, option):
            words += [f"--{option}", *map(str, getattr(options, option))]
    for option in ("precision", "batch", "rows", "repeats"):
        if getattr(options, option) is not None:
            words += [f"--{option}", str(getattr(options, option))]
    if options.device != "auto":
        words += ["--device", options.device]
    return shlex.join(words if options.peers else [*words, "--no-peers"])


def _watch(screen: Any) -> Any:
    """Shows each row as it comes, so that a long run can be followed."""
    from leanbayes.bench.tables import line_of

    return lambda row: screen.print(f"  {line_of(row)}", markup=False, highlight=False, soft_wrap=True)


def _failed(results: list[dict[str, Any]]) -> list[str]:
    """Contenders of ours with a figure that is missing for another reason than that it does not apply."""
    rows = [row for result in results for row in result["rows"] if row["status"] == "failed" and "package" not in row]
    return list(dict.fromkeys(row["contender"] for row in rows))
