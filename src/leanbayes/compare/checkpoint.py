"""A trained model with what is needed to use it on new data, and to know new data from old: files in a folder."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanbayes._save import load, save
from leanbayes.compare.seen import GROUPS, SEEN, Seen, read_seen
from leanbayes.data import Schema
from leanbayes.objectives import Categorical, Gaussian
from leanbayes.objectives.likelihoods import Likelihood
from leanbayes.training.files import prepare_folder, write_bytes

MODEL, ABOUT = "model.safetensors", "model.json"


@dataclass(frozen=True)
class Checkpoint:
    """A model that can predict.

    Attributes:
        model: The converted model.
        likelihood: How its outputs are read.
        schema: Of the data that it was trained on.
        about: Method, data and settings, as they were saved.
        seen: The rows that it was trained and validated on, None where they were not noted.
    """

    model: nn.Module
    likelihood: Likelihood
    schema: Schema
    about: dict[str, Any]
    seen: Seen | None = None


def write_json(path: Path, value: Any, *, compact: bool = False) -> None:
    """Write plain values, whole or not at all, in one line where `compact`; numbers that JSON has not become null."""
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 1}
    write_bytes(path, (json.dumps(finite(value), allow_nan=False, **layout) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file; None where it is not there or cannot be used."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def as_json(value: Any) -> Any:
    """A value as JSON gives it back."""
    return json.loads(json.dumps(finite(value)))


def save_checkpoint(
    folder: str | os.PathLike[str],
    model: nn.Module,
    likelihood: Likelihood,
    schema: Schema,
    *,
    seen: Seen | None = None,
    **about: Any,
) -> None:
    """Write a trained model and its schema into a folder.

    Args:
        folder: Where to write.
        model: The trained model.
        likelihood: How its outputs are read.
        schema: Of the data that it was trained on.
        seen: The rows that it was trained and validated on, so that they are not measured again.
        **about: Plain values to note.
    """
    folder = prepare_folder(folder)
    # Of a model that stood here before.
    for name in (SEEN, GROUPS):
        (folder / name).unlink(missing_ok=True)
    for name, content in ({} if seen is None else seen.files()).items():
        write_bytes(folder / name, content)
    record = {} if seen is None else {"seen": seen.to_json()}
    write_json(folder / ABOUT, {**about, **record, **_noise(likelihood), "schema": schema.to_json()})
    save(model, folder / MODEL)


def load_checkpoint(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Checkpoint:
    """Read what `save_checkpoint` wrote.

    Args:
        path: The folder, or the model's file in it.
        device: Where the model goes.

    Returns:
        The model, ready to predict.

    Raises:
        FileNotFoundError: If there is no such checkpoint.
        ValueError: If a file is damaged.
    """
    folder = Path(path).expanduser()
    folder = folder.parent if folder.name == MODEL else folder
    for name in (MODEL, ABOUT):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} holds no trained model ({name} is missing); pass the folder that `leanbayes fit` or "
                "`leanbayes compare` wrote"
            )
    try:
        about = json.loads((folder / ABOUT).read_text("utf-8"))
        schema, precision, seen = about.pop("schema"), about.pop("precision"), about.pop("seen", None)
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ValueError(f"{folder / ABOUT} is damaged; train the model again") from None
    likelihood = Categorical() if precision is None else Gaussian(precision)
    factor, most = about.pop("noise_factor", None), about.pop("noise_most", None)
    if factor is not None:
        likelihood = Gaussian(held_out=True)
        likelihood.log_factor.fill_(math.log(factor))
        if most is not None:
            likelihood.log_most.fill_(math.log(most))
    model = load(folder / MODEL).to(device).eval()
    rows = None if seen is None else read_seen(seen, folder)
    return Checkpoint(model, likelihood.to(device), Schema.from_json(schema), about, rows)


def _noise(likelihood: Likelihood) -> dict[str, float | None]:
    """The precision of a regression, or the factor of the variance that its network predicts and the most of it."""
    if not isinstance(likelihood, Gaussian):
        return {"precision": None}
    if likelihood.heteroscedastic:
        if not likelihood.held_out:
            return {"precision": None, "noise_factor": 1.0}
        factor, most = (float(value.exp()) for value in (likelihood.log_factor, likelihood.log_most))
        return {"precision": None, "noise_factor": factor, "noise_most": most}
    zeros = torch.zeros(1, 1, 1, device=_device(likelihood))
    return {"precision": 1 / float(likelihood.split(zeros)[1].detach().exp())}


def _device(module: nn.Module) -> torch.device | None:
    return next((t.device for t in (*module.parameters(), *module.buffers())), None)


def finite(value: Any) -> Any:
    """Plain values for JSON: None for numbers that it does not have, lists for tuples."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
