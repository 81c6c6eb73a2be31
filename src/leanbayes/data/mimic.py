"""Hospital records in MIMIC-III's table layout: the first hours of intensive care and who died in hospital."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from leanbayes.data._assemble import assemble
from leanbayes.data._dataset import Column, Dataset, Part
from leanbayes.data._extras import need
from leanbayes.data._files import NotComplete
from leanbayes.data._mimic_variables import VARIABLES, Variable
from leanbayes.data._registry import register, register_folder
from leanbayes.data._split import TEST_STREAM, VALID_STREAM, hold_out

CLASSES = ("survived", "died in hospital")
_TABLES = ("PATIENTS", "ADMISSIONS", "ICUSTAYS", "CHARTEVENTS", "LABEVENTS")
_SECONDS_PER_HOUR = 3600
_GET = (
    "the tables come from https://physionet.org/content/mimiciii, for which access is granted, "
    "and leanbayes.data.generate makes small ones of the same form"
)


def _is_mimic(path: Path) -> bool:
    return _table(path, "PATIENTS") is not None


@register_folder(_is_mimic)
def read_mimic(
    path: Path,
    *,
    hours: int = 48,
    variables: Sequence[Variable] = VARIABLES,
    masks: bool = True,
    min_age: float = 18,
    valid: float = 0.15,
    test: float = 0.15,
    seed: int = 0,
    normalise: str = "standard",
) -> Dataset:
    """In-hospital death, from the measurements of the first hours of an intensive-care stay.

    Read from ``PATIENTS``, ``ADMISSIONS``, ``ICUSTAYS``, and ``CHARTEVENTS`` or ``LABEVENTS`` (or both), each ``.csv``
    or ``.csv.gz``; the events are streamed, so they need not fit in memory. Included are admissions of adults with one
    stay in one unit that lasts at least as long as the hours that are read. Measurements are averaged over each hour,
    without impossible values and those marked as errors. An hour without one keeps the last; before the first, NaN
    stands for the training mean. Patients, not stays, are divided between the parts.

    Args:
        path: The folder of the tables.
        hours: Length T of the series.
        variables: Measurements to read.
        masks: Whether each measurement is followed by a second one that is 1 where it was observed in the hour, so that
            an example has the shape ``[T, 2 F]`` instead of ``[T, F]``.
        min_age: Lowest age of patients, in years.
        valid: Share of the remaining patients for validation.
        test: Share of the patients for test.
        seed: Of these choices.
        normalise: "standard" or "none".
    """
    if hours < 1 or not variables:
        raise ValueError("hours must be at least 1 and variables not empty")
    stays = _stays(path, hours, min_age)
    events = [name for name in ("CHARTEVENTS", "LABEVENTS") if _table(path, name) is not None]
    if not events:
        raise NotComplete(f"MIMIC-III is not complete: {path} has neither CHARTEVENTS nor LABEVENTS; {_GET}")
    total = np.zeros((len(stays.admission), hours, len(variables)))
    count = np.zeros(total.shape, np.int64)
    for name in events:
        _add_events(path, name, stays, variables, total, count)
    values = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    x = carry_forward(values)
    columns = [Column(variable.name) for variable in variables]
    if masks:
        x = np.concatenate([x, (count > 0).astype(np.float64)], axis=2)
        columns += [Column(f"{variable.name}, observed") for variable in variables]
    train, valid_rows, test_rows = _patients(stays.patient, valid, test, seed)
    parts = [
        Part(torch.from_numpy(x[rows]).to(torch.float32), torch.from_numpy(stays.died[rows]))
        for rows in (train, valid_rows, test_rows)
    ]
    return assemble(
        "mimic-iii",
        "binary",
        "series",
        parts[0],
        parts[2],
        parts[1],
        normalise=normalise,
        class_names=CLASSES,
        columns=columns,
        missing="mean",
        notes=stays.notes,
    )


@register("mimic-iii")
# So that the options of the one are known as those of the other.
@wraps(read_mimic)
def _read_named(root: Path, **options: Any) -> Dataset:
    return read_mimic(next((path for path in (root / "mimic-iii", root) if _is_mimic(path)), root), **options)


@dataclass(frozen=True)
class _Stays:
    """The stays to read, by ascending number of the admission."""

    admission: NDArray[np.int64]
    patient: NDArray[np.int64]
    start: NDArray[np.int64]  # seconds
    died: NDArray[np.int64]
    notes: tuple[str, ...]


def _stays(path: Path, hours: int, min_age: float) -> _Stays:
    patients = _read(path, "PATIENTS", {"SUBJECT_ID": "id", "DOB": "time"})
    admissions = _read(path, "ADMISSIONS", {"HADM_ID": "id", "HOSPITAL_EXPIRE_FLAG": "id"})
    stays = _read(
        path,
        "ICUSTAYS",
        {"SUBJECT_ID": "id", "HADM_ID": "id", "INTIME": "time", "OUTTIME": "time", "FIRST_CAREUNIT": "text",
         "LAST_CAREUNIT": "text"},
    )  # fmt: skip
    born = dict(zip(patients["SUBJECT_ID"].tolist(), patients["DOB"].tolist()))
    died = dict(zip(admissions["HADM_ID"].tolist(), admissions["HOSPITAL_EXPIRE_FLAG"].tolist()))
    admission, subject = stays["HADM_ID"], stays["SUBJECT_ID"]
    start, end = stays["INTIME"], stays["OUTTIME"]
    known = np.array([h in died and s in born for h, s in zip(admission.tolist(), subject.tolist())], dtype=bool)
    birth = np.array([born.get(s, 0) for s in subject.tolist()], dtype=np.int64)
    _, place, sizes = np.unique(admission, return_inverse=True, return_counts=True)
    reasons = {
        "without a patient, an admission or a time": ~known | np.any(np.equal([start, end, birth], _NO_TIME), axis=0),
        f"of patients under {min_age:g} years": (start - birth) < min_age * 365.25 * 24 * _SECONDS_PER_HOUR,
        "of admissions with several stays": sizes[place] > 1,
        "with a transfer between units": stays["FIRST_CAREUNIT"] != stays["LAST_CAREUNIT"],
        f"shorter than {hours} hours": (end - start) < hours * _SECONDS_PER_HOUR,
    }
    chosen = ~np.any(list(reasons.values()), axis=0)
    if not chosen.any():
        raise ValueError(f"none of the {len(chosen)} stays of {path} is of an adult in one unit for {hours} hours")
    notes = [f"{int(chosen.sum())} of {len(chosen)} stays were used"]
    notes += [f"{int(left.sum())} stays {reason} were left out" for reason, left in reasons.items() if left.any()]
    rows = np.flatnonzero(chosen)[np.argsort(admission[chosen])]
    outcome = np.array([died[number] for number in admission[rows].tolist()], dtype=np.int64)
    return _Stays(admission[rows], subject[rows], start[rows], outcome, tuple(notes))


def _add_events(
    path: Path, name: str, stays: _Stays, variables: Sequence[Variable], total: NDArray[Any], count: NDArray[Any]
) -> None:
    """Add the values of one table of events to `total` and `count` ``[stays, hours, variables]``."""
    items = np.array([item for variable in variables for item in variable.items], dtype=np.int64)
    owner = np.array([number for number, variable in enumerate(variables) for _ in variable.items], dtype=np.int64)
    by_item = np.argsort(items)
    wanted = {"HADM_ID": "id", "ITEMID": "id", "CHARTTIME": "time", "VALUENUM": "number"}
    for batch in _stream(path, name, wanted, optional={"ERROR": "id"}):
        item = batch["ITEMID"]
        place = np.minimum(np.searchsorted(items, item, sorter=by_item), len(items) - 1)
        stay = np.minimum(np.searchsorted(stays.admission, batch["HADM_ID"]), len(stays.admission) - 1)
        hour = (batch["CHARTTIME"] - stays.start[stay]) // _SECONDS_PER_HOUR
        keep = (items[by_item[place]] == item) & (stays.admission[stay] == batch["HADM_ID"])
        keep &= (hour >= 0) & (hour < total.shape[1]) & np.isfinite(batch["VALUENUM"])
        keep &= batch["CHARTTIME"] != _NO_TIME
        if "ERROR" in batch:
            keep &= batch["ERROR"] != 1
        which = owner[by_item[place[keep]]]
        value, possible = clean(batch["VALUENUM"][keep], item[keep], which, variables)
        where = stay[keep][possible], hour[keep][possible], which[possible]
        np.add.at(total, where, value[possible])
        np.add.at(count, where, 1)


def clean(
    value: NDArray[np.float64], item: NDArray[np.int64], which: NDArray[np.int64], variables: Sequence[Variable]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Values in the unit of their variable, and which of them are possible."""
    fahrenheit = np.isin(item, [number for variable in variables for number in variable.fahrenheit])
    fraction = np.isin(item, [number for variable in variables for number in variable.fraction])
    value = np.where(fahrenheit, (value - 32) / 1.8, value)
    value = np.where(fraction & (value <= 1), value * 100, value)
    low, high = (np.array([getattr(variable, end) for variable in variables]) for end in ("low", "high"))
    return value, (value > low[which]) & (value <= high[which])


def carry_forward(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each missing hour of ``[N, T, F]`` takes the last value before it; NaN where there is none."""
    steps = np.arange(values.shape[1])[None, :, None]
    last = np.maximum.accumulate(np.where(np.isnan(values), -1, steps), axis=1)
    return np.where(last >= 0, np.take_along_axis(values, np.maximum(last, 0), axis=1), np.nan)


def _patients(
    patient: NDArray[np.int64], valid: float, test: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Rows of the three parts, such that no patient is in two of them."""
    people, owner = np.unique(patient, return_inverse=True)
    rest, tested = hold_out(len(people), test, seed, stream=TEST_STREAM)
    trained, validated = hold_out(len(rest), valid, seed, stream=VALID_STREAM)
    groups = rest[trained], rest[validated], tested
    train, held, tests = (np.flatnonzero(np.isin(owner, group)) for group in groups)
    return train, held, tests


# The time of a row that has none.
_NO_TIME = np.iinfo(np.int64).min


def _table(path: Path, name: str) -> Path | None:
    names = (f"{form}{ending}" for form in (name, name.lower()) for ending in (".csv", ".csv.gz"))
    return next((path / file for file in names if (path / file).is_file()), None)


def _read(path: Path, name: str, columns: dict[str, str]) -> dict[str, NDArray[Any]]:
    batches = list(_stream(path, name, columns))
    if not batches:
        raise ValueError(f"the table {name} of {path} has no rows")
    return {column: np.concatenate([batch[column] for batch in batches]) for column in columns}


def _stream(path: Path, name: str, columns: dict[str, str], optional: dict[str, str] | None = None) -> Any:
    """The columns of a table, batch by batch; names are matched whatever their case."""
    csv = need("pyarrow.csv", "hospital records")
    arrow = need("pyarrow", "hospital records")
    file = _table(path, name)
    if file is None:
        error = NotComplete if any(_table(path, other) for other in _TABLES) else FileNotFoundError
        raise error(f"MIMIC-III is not complete: {path} lacks {name}.csv or {name}.csv.gz; {_GET}")
    types = {"id": arrow.int64(), "number": arrow.float64(), "text": arrow.string(), "time": arrow.timestamp("s")}
    try:
        with csv.open_csv(file, csv.ReadOptions(block_size=1 << 16)) as header:
            present = {column.upper(): column for column in header.schema.names}
        if missing := [column for column in columns if column not in present]:
            raise ValueError(f"{file} lacks the column {missing[0]}; it has {', '.join(present)}")
        wanted = columns | {column: kind for column, kind in (optional or {}).items() if column in present}
        convert = csv.ConvertOptions(
            include_columns=[present[column] for column in wanted],
            column_types={present[column]: types[kind] for column, kind in wanted.items()},
            strings_can_be_null=True,
        )
        with csv.open_csv(file, convert_options=convert) as batches:
            for batch in batches:
                if batch.num_rows:
                    yield {c: _values(batch.column(present[c]), kind) for c, kind in wanted.items()}
    # Damaged gzip files are OSErrors to pyarrow.
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"{file} cannot be read: {str(error).splitlines()[0]}") from None


def _values(column: Any, kind: str) -> NDArray[Any]:
    """A column as an array; a missing id is -1, a missing time `_NO_TIME`, a missing number NaN."""
    if kind == "id":
        return column.fill_null(-1).to_numpy(zero_copy_only=False)
    if kind == "time":
        return column.cast("int64").fill_null(_NO_TIME).to_numpy(zero_copy_only=False)
    return column.to_numpy(zero_copy_only=False)
