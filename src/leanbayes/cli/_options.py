"""Options that several sub-commands share."""

from __future__ import annotations

import argparse
import datetime
import difflib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from leanbayes.cli._errors import UsageError, spelled

_Number = TypeVar("_Number", int, float)

PRESET_NAMES = (
    "plain",
    "mc-dropout",
    "deep-ensemble",
    "mean-field",
    "k-tied",
    "variational-dropout",
    "variance-layer",
    "batch-ensemble",
    "rank1",
    "rank1-cauchy",
    "emp",
    "ecmp",
)
_READER_OPTIONS = (
    "target", "task", "categories", "numbers", "drop", "missing", "na", "header", "separator", "order_by", "group_by",
    "target_scale", "classes", "split", "size", "download",
)  # fmt: skip


def count(text: str) -> int:
    """A whole number from 1."""
    value = _number(text, int, "a whole number")
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def count_or_auto(text: str) -> int | str:
    """A whole number from 1, or "auto"."""
    if text != "auto" and not text.strip().lstrip("+-").isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number or 'auto', not {text!r}")
    return text if text == "auto" else count(text)


def count_or_zero(text: str) -> int:
    """A whole number from 0."""
    return 0 if text == "0" else count(text)


def seed(text: str) -> int:
    """A whole number from 0."""
    value = _number(text, int, "a whole number")
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text}")
    return value


def positive(text: str) -> float:
    """A number above 0."""
    value = _number(text, float, "a number")
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value


def _number(text: str, kind: Callable[[str], _Number], what: str) -> _Number:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}") from None


def separator(text: str) -> str:
    """One character; a tab is hard to type."""
    found = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(found) != 1:
        raise argparse.ArgumentTypeError(f"must be a single character or 'tab', not {text!r}")
    return found


def method(text: str) -> str:
    """The name of a preset, or where your own method is defined: ``module:attribute``."""
    if text in PRESET_NAMES or ":" in text:
        return text
    near = difflib.get_close_matches(text, PRESET_NAMES, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    names = ", ".join(PRESET_NAMES)
    raise argparse.ArgumentTypeError(f"must be one of {names}, or your own as module:attribute, not {text!r}{hint}")


def methods(text: str) -> str:
    """The same, or "all"."""
    return text if text == "all" else method(text)


def find_preset(name: str) -> Any:
    """The preset of a name, or one's own of ``module:attribute``: a method, a preset, or a function that makes one."""
    from leanbayes.compare import own_preset, preset

    if ":" not in name:
        return preset(name)
    # As with `python -m`, modules of the folder that one works in are found.
    if "" not in sys.path:
        sys.path.insert(0, "")
    return own_preset(name)


class Several(argparse.Action):
    """Values of a flag that may be given again, as those must that begin with a dash: ``--drop=-a --drop=-b``."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        """Adds to what was given before, and replaces a default."""
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, [*([] if before is self.default else before or []), *values])


def add_data(parser: argparse.ArgumentParser) -> None:
    """The data set and how its files are read."""
    parser.add_argument(
        "data",
        metavar="DATA",
        help="a data set's name (digits, mnist, cifar10, uci-concrete, ...), or a file or folder",
    )
    group = parser.add_argument_group("data")
    group.add_argument("--root", help="folder of named data sets (default: LEANBAYES_DATA or ~/.cache/leanbayes)")
    group.add_argument("--download", action="store_true", default=None, help="download a missing public data set")
    group.add_argument(
        "--target", help="column to predict (default: one with a usual name, such as target, else the last)"
    )
    group.add_argument("--task", choices=("classification", "binary", "regression"), help="kind of target")
    group.add_argument(
        "--categories",
        nargs="+",
        action=Several,
        metavar="COLUMN",
        help="columns to treat as categories, even if they hold numbers",
    )
    group.add_argument(
        "--numbers",
        nargs="+",
        action=Several,
        metavar="COLUMN",
        help="columns to treat as numbers, even if they look like ids",
    )
    group.add_argument("--drop", nargs="+", action=Several, metavar="COLUMN", help="columns of a table to leave out")
    group.add_argument(
        "--missing",
        choices=("impute", "mean", "drop", "error"),
        help="missing values: fill in the mean and flag it, only fill, drop the rows, or stop (default: impute)",
    )
    group.add_argument("--na", nargs="+", action=Several, metavar="TEXT", help="more texts that mean a missing value")
    group.add_argument(
        "--no-header", dest="header", action="store_false", default=None, help="the CSV file has no header line"
    )
    group.add_argument(
        "--separator",
        type=separator,
        help="separator of the cells of a CSV file: a character or 'tab' (default: detected)",
    )
    group.add_argument(
        "--order-by",
        metavar="COLUMN",
        help="a table's column of dates or numbers: test on the last rows by it (default: rows drawn at random)",
    )
    group.add_argument(
        "--group-by",
        metavar="COLUMN",
        help="a table's column that says what rows belong to, such as a patient: no two parts share one, so "
        "that figures are for new ones (default: rows drawn one by one)",
    )
    group.add_argument(
        "--target-scale",
        choices=("auto", "linear", "log"),
        help="predict a number as it is or its logarithm (default: the logarithm of clearly skewed targets of tables)",
    )
    group.add_argument("--classes", type=count, help="number of classes of an NPZ file")
    group.add_argument("--split", type=seed, help="which published split of a UCI set")
    group.add_argument("--size", type=count, help="height and width to scale a folder's images to (default: 224)")
    group.add_argument("--limit", type=count, help="use at most this many examples of each part, for a quick try")


def add_network(parser: argparse.ArgumentParser) -> None:
    """The network and what it may cost."""
    group = parser.add_argument_group("training")
    group.add_argument("--budget", default="fast", help="'fast', 'normal' or a number of epochs (default: fast)")
    group.add_argument(
        "--class-weight", choices=("balanced",), help="count rare classes as much as frequent ones in training"
    )
    group.add_argument("--batch-size", type=count, help="examples in an optimiser step")
    group.add_argument("--lr", type=positive, help="initial learning rate (default: 0.002; 0.1 for SGD)")
    group.add_argument(
        "--augment",
        action=argparse.BooleanOptionalAction,
        help="crop and flip training images at random (default: colour images only)",
    )
    group.add_argument("--model", help="a network from leanbayes.models, instead of the one chosen for the data")
    group.add_argument(
        "--hidden",
        type=count,
        nargs="+",
        metavar="UNITS",
        help="widths of the hidden layers of a multilayer perceptron",
    )
    group.add_argument(
        "--patience",
        type=count_or_zero,
        metavar="N",
        help="stop training after N evaluations (of up to 40) without a better validation NLL; 0: never "
        "(default: 20; never for images on which 'normal' trains a residual network)",
    )
    group.add_argument(
        "--restore-best",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="end with the weights of the best validation NLL instead of the last (default: yes)",
    )
    group.add_argument(
        "--refit", action="store_true", help="then train again on training and validation rows, for as many steps"
    )
    group.add_argument(
        "--heteroscedastic", action="store_true", help="in a regression, have the network predict the noise of each row"
    )
    group.add_argument("--resume", action="store_true", help="continue the run in the output folder")


def add_saved(parser: argparse.ArgumentParser) -> None:
    """A folder that `fit` or `compare` wrote, and which of the methods of a comparison."""
    parser.add_argument("checkpoint", metavar="FOLDER", help="folder that `fit` or `compare` wrote")
    parser.add_argument(
        "--method", metavar="METHOD", help="method of a comparison (default: the one its report recommends)"
    )


def add_common(parser: argparse.ArgumentParser, samples: int | None = 32) -> None:
    """Prediction, device and output."""
    if samples is not None:
        parser.add_argument(
            "--samples",
            type=count_or_auto,
            default=samples,
            help=f"samples per prediction; 'auto' adds more until the uncertainty settles (default: {samples})",
        )
        parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to compute")
    parser.add_argument("--json", action="store_true", help="print JSON to standard output")
    parser.add_argument("--config", metavar="FILE", help="YAML or JSON file that sets these options by name")


def load_data(options: argparse.Namespace) -> Any:
    """The data set that the options name."""
    from dataclasses import replace

    from leanbayes.data import load

    given = {name: getattr(options, name) for name in _READER_OPTIONS if getattr(options, name, None) is not None}
    dataset = load(options.data, options.root, **given)
    dataset = replace(dataset, notes=tuple(map(spelled, dataset.notes)))
    if options.limit is not None:
        dataset = dataset.limited(options.limit)
    if getattr(options, "class_weight", None) is None:
        return dataset
    if dataset.task == "regression":
        raise UsageError(
            f"{dataset.name} is a regression, whose examples have no classes to weight; leave out --class-weight"
        )
    return dataset.balanced()


def describe(dataset: Any, screen: Any) -> None:
    """Show what was loaded, and what its reader did."""
    for line in (_inventory(dataset), *(f"note: {note}" for note in dataset.notes)):
        screen.print(line, markup=False, highlight=False, soft_wrap=True)


def _inventory(dataset: Any) -> str:
    """A data set on one line, divided as training will divide it."""
    from leanbayes.compare.train import train_and_valid_counts

    kind = "regression" if dataset.task == "regression" else f"{len(dataset.class_names)} classes"
    shape = " x ".join(map(str, dataset.schema.shape))
    inputs = f"{'series' if dataset.inputs == 'series' else f'{dataset.inputs}s'} of {shape}"
    if dataset.inputs == "table":
        inputs = f"{shape} input{'' if shape == '1' else 's'}"
    parts = ("training", "validation", "testing")
    counts = [*train_and_valid_counts(dataset), len(dataset.test)]
    rows = ", ".join(f"{count:,} for {part}" for count, part in zip(counts, parts))
    return f"{dataset.name}: {inputs}, {kind}; {rows}"


def budget(options: argparse.Namespace, dataset: Any) -> Any:
    """The budget that the options give."""
    from dataclasses import replace

    from leanbayes.compare import Budget

    chosen = Budget.of(options.budget, len(dataset.train), options.batch_size, dataset.schema)
    chosen = replace(chosen, restore_best=options.restore_best, refit=options.refit)
    if options.patience is not None:
        chosen = replace(chosen, patience=options.patience or None)
    return chosen if options.lr is None else replace(chosen, lr=options.lr)


def output_folder(options: argparse.Namespace, what: str) -> Path:
    """Where to write: ``--out``, else a folder that is named after the data and the time."""
    if options.out is not None:
        return Path(options.out).expanduser()
    if options.resume:
        raise UsageError("--resume needs --out, the folder to continue in")
    name = re.sub(r"[^\w.-]+", "-", Path(str(options.data)).name) or "data"
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{what}-{name}-{stamp}"


def device_of(options: argparse.Namespace) -> str:
    """The device for tensors."""
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "--device cuda was asked for, but this machine has no GPU that torch can use; use --device cpu"
        )
    if options.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return options.device
