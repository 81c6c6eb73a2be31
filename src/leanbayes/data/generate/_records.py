"""Synthetic hospital records in MIMIC-III's table layout."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from leanbayes.data._files import PathLike
from leanbayes.data._mimic_variables import VARIABLES, Variable

# A usual value of each measurement, and by how much a very sick patient differs.
_USUAL: tuple[tuple[float, float], ...] = (
    (80, 35), (120, -35), (65, -20), (85, -25), (17, 10), (37, 1), (97, -7), (40, 40), (3.8, -2), (4.5, -3), (5.6, -3),
    (130, 70), (7.4, -0.15), (1.5, 5), (1.0, 2), (18, 40), (139, 5), (4.1, 1), (25, -8), (0.8, 5), (33, -6),
    (220, -110), (9, 9),
)  # fmt: skip
_LABORATORY = range(50_000, 52_000)
_EVENT_COLUMNS = {
    "CHARTEVENTS": "ROW_ID SUBJECT_ID HADM_ID ICUSTAY_ID ITEMID CHARTTIME STORETIME CGID VALUE VALUENUM VALUEUOM "
    "WARNING ERROR RESULTSTATUS STOPPED",
    "LABEVENTS": "ROW_ID SUBJECT_ID HADM_ID ITEMID CHARTTIME VALUE VALUENUM VALUEUOM FLAG",
}
_PATIENTS = "ROW_ID SUBJECT_ID GENDER DOB DOD DOD_HOSP DOD_SSN EXPIRE_FLAG"
_ADMISSIONS = (
    "ROW_ID SUBJECT_ID HADM_ID ADMITTIME DISCHTIME DEATHTIME ADMISSION_TYPE ADMISSION_LOCATION DISCHARGE_LOCATION "
    "INSURANCE LANGUAGE RELIGION MARITAL_STATUS ETHNICITY EDREGTIME EDOUTTIME DIAGNOSIS HOSPITAL_EXPIRE_FLAG "
    "HAS_CHARTEVENTS_DATA"
)
_ICUSTAYS = (
    "ROW_ID SUBJECT_ID HADM_ID ICUSTAY_ID DBSOURCE FIRST_CAREUNIT LAST_CAREUNIT FIRST_WARDID LAST_WARDID INTIME "
    "OUTTIME LOS"
)

_Row = dict[str, object]


def write_mimic(root: PathLike, *, rows: int = 60, hours: int = 60, seed: int = 0, compressed: bool = False) -> Path:
    """Tables of `rows` intensive-care stays in ``mimic-iii`` below the root.

    The first stays include some that a reader leaves out: a child, a short stay, a transfer and an admission with two
    stays (the cases that `read_mimic` names), besides rows marked as errors and impossible values.

    Args:
        root: The folder to write to.
        rows: Number of stays, at least 12.
        hours: Length of the usual stay.
        seed: Of everything random.
        compressed: Whether to write ``.csv.gz``.

    Returns:
        The folder of the tables.
    """
    if rows < 12:
        raise ValueError(f"rows must be at least 12, not {rows}")
    folder = Path(root) / "mimic-iii"
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(seed)
    tables: dict[str, list[_Row]] = {name: [] for name in ("PATIENTS", "ADMISSIONS", "ICUSTAYS", *_EVENT_COLUMNS)}
    for number in range(rows):
        _add_stay(tables, number, hours, random)
    # The second stay of an admission.
    tables["ICUSTAYS"].append(tables["ICUSTAYS"][3] | {"ICUSTAY_ID": 39_999})
    headers = {"PATIENTS": _PATIENTS, "ADMISSIONS": _ADMISSIONS, "ICUSTAYS": _ICUSTAYS, **_EVENT_COLUMNS}
    for name, header in headers.items():
        _write(folder / f"{name}.csv", header.split(), tables[name], compressed)
    return folder


def _add_stay(tables: dict[str, list[_Row]], number: int, hours: int, random: np.random.RandomState) -> None:
    # Some patients come twice, in two admissions.
    subject, admission, stay = 10_000 + number - (number % 5 == 4), 20_000 + number, 30_000 + number
    start = datetime(2150, 1, 1) + timedelta(hours=100 * number)
    end = start + timedelta(hours=20 if number == 1 else hours)
    sickness = random.uniform()
    died = int(random.uniform() < 1 / (1 + np.exp(-12 * (sickness - 0.65))))
    ids: _Row = {"SUBJECT_ID": subject, "HADM_ID": admission}
    if number % 5 != 4:
        age = 10 if number == 0 else int(random.randint(20, 90))
        tables["PATIENTS"].append(
            {"SUBJECT_ID": subject, "GENDER": "F", "DOB": _time(start - timedelta(days=366 * age))}
        )
    tables["ADMISSIONS"].append(
        ids
        | {"ADMITTIME": _time(start), "DISCHTIME": _time(end), "HOSPITAL_EXPIRE_FLAG": died, "HAS_CHARTEVENTS_DATA": 1}
    )
    unit = {"FIRST_CAREUNIT": "MICU", "LAST_CAREUNIT": "SICU" if number == 2 else "MICU"}
    times = {"INTIME": _time(start), "OUTTIME": _time(end), "LOS": (end - start).total_seconds() / 86_400}
    tables["ICUSTAYS"].append(ids | {"ICUSTAY_ID": stay, "DBSOURCE": "metavision"} | unit | times)
    for variable, (usual, change) in zip(VARIABLES, _USUAL):
        _add_events(tables, ids, stay, start, variable, usual + change * sickness, random)


def _add_events(
    tables: dict[str, list[_Row]],
    ids: _Row,
    stay: int,
    start: datetime,
    variable: Variable,
    level: float,
    random: np.random.RandomState,
) -> None:
    """Vital signs about every two hours, laboratory tests about every eight, from an hour before the stay on."""
    count = 8 if variable.items[-1] in _LABORATORY else 30
    for hour, item in zip(random.uniform(-1, 60, size=count), random.choice(variable.items, size=count).tolist()):
        name = "LABEVENTS" if item in _LABORATORY else "CHARTEVENTS"
        value = level * (1 + 0.03 * random.standard_normal())
        if item in variable.fahrenheit:
            value = 1.8 * value + 32
        if item in variable.fraction:
            value = value / 100
        value = round(value, 3)
        row = ids | {"ITEMID": item, "CHARTTIME": _time(start + timedelta(hours=float(hour)))}
        if name == "CHARTEVENTS":
            row |= {"ICUSTAY_ID": stay, "ERROR": int(random.uniform() < 0.02)}
            if row["ERROR"]:
                value = 1.5 * value
        tables[name].append(row | {"VALUE": value, "VALUENUM": value if random.uniform() < 0.98 else ""})


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _write(path: Path, header: Sequence[str], rows: Iterable[_Row], compressed: bool) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, header, restval="")
    writer.writeheader()
    for number, row in enumerate(rows, start=1):
        writer.writerow({"ROW_ID": number} | row)
    data = text.getvalue().encode("utf-8")
    if compressed:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(data, mtime=0))
    else:
        path.write_bytes(data)
