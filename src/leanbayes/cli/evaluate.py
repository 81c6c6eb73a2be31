"""Measure a saved model on rows it has not seen: those held out in training, or other data with targets.

For example ``leanbayes evaluate runs/digits``, or ``leanbayes evaluate runs/prices new.csv``.
"""

from __future__ import annotations

import argparse

from leanbayes.cli import _options as shared
from leanbayes.cli._errors import spelled
from leanbayes.cli._saved import find_saved
from leanbayes.cli._tables import console, counted, metric_table, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    shared.add_saved(parser)
    parser.add_argument(
        "data",
        nargs="?",
        metavar="DATA",
        help="name of a data set (its test part), or a file with targets (default: the rows held out in training)",
    )
    parser.add_argument("--root", help="folder of named data sets")
    parser.add_argument(
        "--split", type=shared.seed, help="which published split of a UCI set (default: that of the training)"
    )
    parser.add_argument(
        "--include-seen", action="store_true", help="also measure rows that the model was trained or validated on"
    )
    shared.add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Do it."""
    found = find_saved(options.checkpoint, options.method)
    from leanbayes.compare import load_checkpoint, unseen_rows
    from leanbayes.compare.measure import measure, predict_all

    saved = load_checkpoint(found.folder, shared.device_of(options))
    rows = unseen_rows(saved, options.data, options.root, split=options.split, include_seen=options.include_seen)
    x, y = rows.part.tensor(), rows.part.y
    scale = saved.schema.normalisation
    prediction = predict_all(saved.model, scale(x), options.samples, saved.likelihood)
    metrics = measure(prediction, scale.scale_targets(y), scale.targets)
    notes = [*found.notes, *map(spelled, rows.notes)]
    data = options.data or saved.about.get("data", "its data")
    if options.json:
        about = {"checkpoint": str(found.folder), "data": data, "samples": prediction.samples}
        counts = {"examples": len(y), "seen_in_training": rows.seen, "left_out": rows.left_out}
        print_json({**about, **counts, "notes": notes, "metrics": metrics})
        return 0
    screen = console()
    screen.print(metric_table(f"{data}: {counted(len(y), 'example')}", metrics))
    for note in notes:
        screen.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    return 0
