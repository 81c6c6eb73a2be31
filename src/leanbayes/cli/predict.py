"""Predict new examples with their uncertainty, from a table, arrays, texts or images to a CSV, NPZ or JSON file.

For example ``leanbayes predict runs/digits new.npz --out predictions.csv``.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from pathlib import Path
from typing import Any

from leanbayes.cli import _options as shared
from leanbayes.cli._errors import UsageError
from leanbayes.cli._tables import console, print_json

_ENDINGS = (".csv", ".npz", ".json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="folder that `fit` or `compare` wrote")
    parser.add_argument("input", metavar="INPUT", help="CSV, Parquet, NPZ or TXT file, image or folder of images")
    parser.add_argument("--out", help="file to write, ending in .csv, .npz or .json (default: CSV on the screen)")
    shared.add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Do it."""
    out = None if options.out is None else Path(options.out).expanduser()
    if out is not None and out.suffix not in _ENDINGS:
        raise UsageError(f"--out must end in {', '.join(_ENDINGS)}, not {out.suffix or 'nothing'}")
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"the folder {out.parent} does not exist; create it first")
    from leanbayes.compare import load_checkpoint
    from leanbayes.compare.measure import predict_all
    from leanbayes.data import read_new

    saved = load_checkpoint(options.checkpoint, shared.device_of(options))
    x, _ = read_new(options.input, saved.schema)
    if not len(x):
        raise UsageError(f"{options.input} holds no rows to predict")
    prediction = predict_all(saved.model, saved.schema.normalisation(x), options.samples, saved.likelihood)
    columns = _files(options.input, saved.schema) | _columns(prediction, saved.schema)
    if options.json and out is None:
        print_json(columns)
    elif out is None:
        sys.stdout.write(_csv(columns))
    else:
        _write(out, columns)
        console(options.json).print(f"{len(x)} predictions: {out}", markup=False, highlight=False, soft_wrap=True)
        if options.json:
            print_json({"predictions": str(out), "rows": len(x)})
    return 0


def _files(given: str, schema: Any) -> dict[str, list[Any]]:
    """A column of the files that were read, where each is one image."""
    from leanbayes.data.folder import image_paths

    paths = image_paths(Path(given).expanduser()) if schema.inputs == "image" else []
    return {"file": list(map(str, paths))} if paths else {}


def _columns(prediction: Any, schema: Any) -> dict[str, list[Any]]:
    """What is written: the label and probabilities, or mean and interval in the target's units; then uncertainties."""
    if schema.task == "regression":
        scale = schema.normalisation
        lower, upper = prediction.quantile([0.025, 0.975]).squeeze(-1)
        return {
            "mean": scale.restore_targets(prediction.mean.squeeze(-1).double()).tolist(),
            "std": scale.restore_std(prediction.std.squeeze(-1).double()).tolist(),
            "lower95": scale.restore_targets(lower.double()).tolist(),
            "upper95": scale.restore_targets(upper.double()).tolist(),
        }
    names = schema.class_names
    found: dict[str, list[Any]] = {"label": [names[number] for number in prediction.label.tolist()]}
    for name in ("confidence", "entropy", "mutual_information"):
        found[name] = getattr(prediction, name).tolist()
    return found | {f"p_{name}": prediction.probs[:, number].tolist() for number, name in enumerate(names)}


def _csv(columns: dict[str, list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([f"{v:.6g}" if isinstance(v, float) else v for v in row] for row in zip(*columns.values()))
    return text.getvalue()


def _write(out: Path, columns: dict[str, list[Any]]) -> None:
    from leanbayes.compare.checkpoint import write_json
    from leanbayes.training.files import write_bytes

    if out.suffix == ".json":
        write_json(out, columns)
    elif out.suffix == ".csv":
        write_bytes(out, _csv(columns).encode())
    else:
        import numpy as np

        buffer = io.BytesIO()
        arrays: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
        np.savez(buffer, **arrays)
        write_bytes(out, buffer.getvalue())
