"""Show layers, parameters and overhead of a saved model, or of a network with a method.

For example ``leanbayes summary resnet18 --method rank1``, or ``leanbayes summary runs/digits``.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from leanbayes.cli import _options as shared
from leanbayes.cli._errors import UsageError
from leanbayes.cli._saved import find_saved
from leanbayes.cli._tables import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.add_argument(
        "model", metavar="MODEL", help="name in leanbayes.models, saved file, or folder of `fit` or `compare`"
    )
    parser.add_argument(
        "--method",
        metavar="METHOD",
        help="convert the network with this method first, or choose a method of a comparison",
    )
    shared.add_common(parser, samples=None)


def run(options: argparse.Namespace) -> int:
    """Do it."""
    path, notes = Path(options.model).expanduser(), ()
    if path.is_file() and options.method is not None:
        raise UsageError("--method converts a network by name; a saved model has its method already")
    if path.is_dir():
        saved = find_saved(options.model, options.method)
        path, notes = saved.folder, saved.notes
    from leanbayes import load, models
    from leanbayes._summary import summary
    from leanbayes.compare import load_checkpoint

    if path.is_dir():
        model = load_checkpoint(path).model
    elif path.is_file():
        model = load(path)
    elif options.model in models.names():
        model = models.create(options.model)
        model = model if options.method is None else shared.find_preset(options.method).convert(model)
    else:
        raise UsageError(
            f"there is no saved model {options.model} and no network of that name; the networks are "
            f"{', '.join(models.names())}"
        )
    found = summary(model)
    if options.json:
        layers = [dataclasses.asdict(layer) | {"method": repr(layer.method)} for layer in found.layers]
        plain = {name: getattr(found, name) for name in ("model", "left", "notes")}
        counts = ("parameters", "plain_parameters", "overhead", "bytes", "plain_bytes", "bytes_overhead")
        print_json(plain | {name: getattr(found, name) for name in counts} | {"layers": layers})
    else:
        print(found)
        for note in notes:
            print(f"note: {note}")
    return 0
