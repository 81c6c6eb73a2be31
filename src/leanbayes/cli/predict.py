"""Predict new examples with their uncertainty: tables, arrays, texts or images in; CSV, Parquet, NPZ or JSON out.

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
from leanbayes.cli._saved import find_saved
from leanbayes.cli._tables import console, counted, print_json

_ENDINGS = (".csv", ".parquet", ".npz", ".json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    shared.add_saved(parser)
    parser.add_argument("input", metavar="INPUT", help="CSV, Parquet, NPZ or TXT file, image or folder of images")
    parser.add_argument("--out", help=f"file to write, ending in {', '.join(_ENDINGS)} (default: CSV on the screen)")
    parser.add_argument(
        "--keep",
        nargs="+",
        action=shared.Several,
        metavar="COLUMN",
        default=[],
        help="columns of a table to copy to the output, besides its ids",
    )
    shared.add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Do it."""
    out = None if options.out is None else Path(options.out).expanduser()
    if out is not None and out.suffix not in _ENDINGS:
        raise UsageError(f"--out must end in {', '.join(_ENDINGS)}, not {out.suffix or 'nothing'}")
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"the folder {out.parent} does not exist; create it first")
    found = find_saved(options.checkpoint, options.method)
    from leanbayes.compare import load_checkpoint
    from leanbayes.compare.measure import predict_all
    from leanbayes.data import read_rows

    saved = load_checkpoint(found.folder, shared.device_of(options))
    rows = read_rows(options.input, saved.schema, targets="ignored", keep=options.keep)
    if not len(rows.x):
        raise UsageError(f"{options.input} holds no rows to predict")
    prediction = predict_all(saved.model, saved.schema.normalisation(rows.x), options.samples, saved.likelihood)
    own = _columns(prediction, saved.schema)
    # A column of the file that is called as one of ours is no less the file's.
    kept = {f"{name} (input)" if name in own else name: values for name, values in rows.kept.items()}
    columns = kept | _files(options.input, saved.schema) | own
    notes = [*found.notes, *rows.notes]
    # The standard output may be the table itself.
    screen = console(options.json or out is None)
    for note in notes:
        screen.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    if options.json and out is None:
        print_json({name: list(map(_plain, values)) for name, values in columns.items()})
    elif out is None:
        sys.stdout.write(_csv(columns))
    else:
        _write(out, columns)
        screen.print(f"{counted(len(rows.x), 'prediction')}: {out}", markup=False, highlight=False, soft_wrap=True)
        if options.json:
            print_json({"predictions": str(out), "rows": len(rows.x), "unseen": rows.unseen, "notes": notes})
    return 0


def _plain(value: Any) -> Any:
    """A value as JSON has it; dates of a Parquet file become texts."""
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _files(given: str, schema: Any) -> dict[str, list[Any]]:
    """A column of the files that were read, where each is one image."""
    from leanbayes.data.folder import image_paths

    paths = image_paths(Path(given).expanduser()) if schema.inputs == "image" else []
    return {"file": list(map(str, paths))} if paths else {}


def _columns(prediction: Any, schema: Any) -> dict[str, list[Any]]:
    """What is written: the label and probabilities, or mean and interval in the target's units; then uncertainties."""
    if schema.task == "regression":
        from leanbayes.compare.units import moments, restored

        scale = schema.normalisation.targets
        mean, std = moments(prediction, scale)
        lower, upper = prediction.quantile([0.025, 0.975])
        tensors = {"mean": mean, "std": std, "lower95": restored(lower, scale), "upper95": restored(upper, scale)}
        return {name: values.squeeze(-1).tolist() for name, values in tensors.items()}
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


def _parquet(columns: dict[str, list[Any]]) -> bytes:
    import importlib

    try:
        arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    except ModuleNotFoundError:
        raise UsageError("writing Parquet needs pyarrow; install it with: pip install 'leanbayes[data]'") from None
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table(columns), sink)
    return sink.getvalue().to_pybytes()


def _write(out: Path, columns: dict[str, list[Any]]) -> None:
    from leanbayes.compare.checkpoint import write_json
    from leanbayes.training.files import write_bytes

    if out.suffix == ".json":
        write_json(out, {name: list(map(_plain, values)) for name, values in columns.items()})
    elif out.suffix == ".parquet":
        write_bytes(out, _parquet(columns))
    elif out.suffix == ".csv":
        write_bytes(out, _csv(columns).encode())
    else:
        import numpy as np

        buffer = io.BytesIO()
        # Without pickle, an array has no empty place; the text is empty then.
        arrays: dict[str, Any] = {
            name: np.array(["" if value is None else value for value in map(_plain, values)])
            for name, values in columns.items()
        }
        np.savez(buffer, **arrays)
        write_bytes(out, buffer.getvalue())
