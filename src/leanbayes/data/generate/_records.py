"""Synthetic hospital records in MIMIC-III's table layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._extras import need
from leanbayes.data._files import PathLike
from leanbayes.data._mimic_variables import VARIABLES, Variable
from leanbayes.data.generate._courses import HOURS, courses, risk_of_death
from leanbayes.data.mimic import carry_forward, clean

_LABORATORY = range(50_000, 52_000)
_SECONDS_PER_HOUR = 3600
_SECONDS_PER_YEAR = 366 * 24 * _SECONDS_PER_HOUR
_FIRST_STAY = int(np.datetime64("2150-01-01", "s").astype(np.int64))
# Shares of hours in which vital signs are measured, and laboratory tests made.
_VITAL, _TESTED = 0.5, 0.13
# Share of events that are followed by one with nothing to read: marked as an error, impossible, or without a value.
_SPOILT = 0.05
_COLUMNS = {
    "PATIENTS": "ROW_ID SUBJECT_ID GENDER DOB DOD DOD_HOSP DOD_SSN EXPIRE_FLAG",
    "ADMISSIONS": "ROW_ID SUBJECT_ID HADM_ID ADMITTIME DISCHTIME DEATHTIME ADMISSION_TYPE ADMISSION_LOCATION "
    "DISCHARGE_LOCATION INSURANCE LANGUAGE RELIGION MARITAL_STATUS ETHNICITY EDREGTIME EDOUTTIME DIAGNOSIS "
    "HOSPITAL_EXPIRE_FLAG HAS_CHARTEVENTS_DATA",
    "ICUSTAYS": "ROW_ID SUBJECT_ID HADM_ID ICUSTAY_ID DBSOURCE FIRST_CAREUNIT LAST_CAREUNIT FIRST_WARDID LAST_WARDID "
    "INTIME OUTTIME LOS",
    "CHARTEVENTS": "ROW_ID SUBJECT_ID HADM_ID ICUSTAY_ID ITEMID CHARTTIME STORETIME CGID VALUE VALUENUM VALUEUOM "
    "WARNING ERROR RESULTSTATUS STOPPED",
    "LABEVENTS": "ROW_ID SUBJECT_ID HADM_ID ITEMID CHARTTIME VALUE VALUENUM VALUEUOM FLAG",
}

_Table = dict[str, NDArray[Any]]


def write_mimic(root: PathLike, *, rows: int = 60, hours: int = 60, seed: int = 0, compressed: bool = False) -> Path:
    """Tables of `rows` intensive-care stays in ``mimic-iii`` below the root; needs pyarrow.

    Who dies is drawn by `risk_of_death` of the record as `read_mimic` reads it, so that the best predictions are known.
    The first stays include some that a reader leaves out: a child, a short stay, a transfer and an admission with two
    stays (the cases that `read_mimic` names), besides rows marked as errors, impossible values and empty ones.

    Args:
        root: The folder to write to.
        rows: Number of stays, at least 12.
        hours: Length of the usual stay, at least 24.
        seed: Of everything random.
        compressed: Whether to write ``.csv.gz``.

    Returns:
        The folder of the tables.
    """
    if rows < 12:
        raise ValueError(f"rows must be at least 12, not {rows}")
    if hours < HOURS:
        raise ValueError(f"hours must be at least {HOURS}, not {hours}")
    folder = Path(root) / "mimic-iii"
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(seed)
    events = _events(rows, hours, random)
    died = random.uniform(size=rows) < risk_of_death(_as_read(events, rows, hours))
    tables = _people(rows, hours, died, random)
    events = _with_others(events, random)
    laboratory = _in_laboratory(events["ITEMID"])
    for name, chosen in (("CHARTEVENTS", ~laboratory), ("LABEVENTS", laboratory)):
        tables[name] = _event_table({column: values[chosen] for column, values in events.items()}, tables["ICUSTAYS"])
    # The second stay of an admission, which has no events.
    tables["ICUSTAYS"] = {name: np.append(column, column[3]) for name, column in tables["ICUSTAYS"].items()}
    tables["ICUSTAYS"]["ICUSTAY_ID"][-1] = 9_999
    for name, table in tables.items():
        _write(folder / f"{name}.csv", _COLUMNS[name].split(), table, compressed)
    return folder


def _events(rows: int, hours: int, random: np.random.RandomState) -> _Table:
    """What is measured of all stays, at most once an hour: number of the stay, hour, item and value as recorded."""
    values = courses(rows, hours, random)
    tested = np.array([variable.items[-1] in _LABORATORY for variable in VARIABLES])
    stay, hour, which = np.nonzero(random.uniform(size=values.shape) < np.where(tested, _TESTED, _VITAL))
    value = values[stay, hour, which]
    item = np.zeros(len(value), np.int64)
    for number, variable in enumerate(VARIABLES):
        own = which == number
        item[own] = random.choice(variable.items, size=int(own.sum()))
        value[own] = _recorded(value[own], item[own], variable)
    return {"stay": stay, "hour": hour, "which": which, "ITEMID": item, "value": value}


def _recorded(value: NDArray[np.float64], item: NDArray[np.int64], variable: Variable) -> NDArray[np.float64]:
    """Possible values in the units of their items, with the digits that are written down."""
    whole = variable.name.startswith("coma scale")
    value = value.round().clip(1) if whole else value
    value = value.clip(variable.low + 1e-2 * (1 + variable.low), variable.high)
    value = np.where(np.isin(item, variable.fahrenheit), 1.8 * value + 32, value)
    value = np.where(np.isin(item, variable.fraction), value / 100, value)
    return value.round(3)


def _as_read(events: _Table, rows: int, hours: int) -> NDArray[np.float64]:
    """The series ``[rows, hours, variables]`` that a reader makes of the events."""
    value, possible = clean(events["value"], events["ITEMID"], events["which"], VARIABLES)
    assert possible.all()
    series = np.full((rows, hours, len(VARIABLES)), np.nan)
    series[events["stay"], events["hour"], events["which"]] = value
    return carry_forward(series)


def _people(rows: int, hours: int, died: NDArray[np.bool_], random: np.random.RandomState) -> dict[str, _Table]:
    """Patients, some of whom come twice, their admissions and their stays."""
    number = np.arange(rows)
    again = number % 5 == 4
    ids: _Table = {"SUBJECT_ID": 10_000 + number - again, "HADM_ID": 20_000_000 + number}
    start = _FIRST_STAY + 100 * _SECONDS_PER_HOUR * number
    end = start + np.where(number == 1, 20, hours) * _SECONDS_PER_HOUR
    age = np.where(number == 0, 10, random.randint(20, 90, size=rows))
    ward = np.full(rows, "MICU")
    patients: _Table = {"SUBJECT_ID": ids["SUBJECT_ID"], "GENDER": np.full(rows, "F")}
    patients["DOB"] = _time(start - age * _SECONDS_PER_YEAR)
    admissions: _Table = ids | {"ADMITTIME": _time(start), "DISCHTIME": _time(end)}
    admissions |= {"HOSPITAL_EXPIRE_FLAG": died.astype(np.int64), "HAS_CHARTEVENTS_DATA": np.ones(rows, np.int64)}
    stays: _Table = ids | {"ICUSTAY_ID": 30_000_000 + number, "DBSOURCE": np.full(rows, "metavision")}
    stays |= {"FIRST_CAREUNIT": ward, "LAST_CAREUNIT": np.where(number == 2, "SICU", ward)}
    stays |= {"INTIME": _time(start), "OUTTIME": _time(end), "LOS": (end - start) / (24 * _SECONDS_PER_HOUR)}
    first_time = {name: column[~again] for name, column in patients.items()}
    return {"PATIENTS": first_time, "ADMISSIONS": admissions, "ICUSTAYS": stays}


def _with_others(events: _Table, random: np.random.RandomState) -> _Table:
    """The events, and further ones that a reader must pass over."""
    spoilt = np.flatnonzero(random.uniform(size=len(events["value"])) < _SPOILT)
    early = np.flatnonzero((events["hour"] == 0) & (random.uniform(size=len(events["hour"])) < 0.5))
    more = {name: values[np.concatenate([spoilt, early])] for name, values in events.items()}
    kind = np.concatenate([random.randint(3, size=len(spoilt)), np.full(len(early), 3)])
    # Only charts can be marked as errors.
    kind[(kind == 0) & _in_laboratory(more["ITEMID"])] = 1
    more["hour"] = np.where(kind == 3, -1, more["hour"])
    more["value"] = np.select([kind == 0, kind == 1, kind == 2], [1.5 * more["value"], -1.0, np.nan], more["value"])
    joined = {name: np.concatenate([events[name], values]) for name, values in more.items()}
    joined["ERROR"] = np.concatenate([np.zeros(len(events["value"]), np.int64), (kind == 0).astype(np.int64)])
    order = random.permutation(len(joined["hour"]))
    return {name: values[order] for name, values in joined.items()} | {"minute": random.uniform(size=len(order))}


def _event_table(events: _Table, stays: _Table) -> _Table:
    own = {name: stays[name][events["stay"]] for name in ("SUBJECT_ID", "HADM_ID", "ICUSTAY_ID")}
    start = stays["INTIME"][events["stay"]].astype(np.int64)
    seconds = ((events["hour"] + events["minute"]) * _SECONDS_PER_HOUR).astype(np.int64)
    values = {"ITEMID": events["ITEMID"], "VALUENUM": events["value"], "ERROR": events["ERROR"]}
    return own | {"CHARTTIME": _time(start + seconds), "VALUE": events["value"]} | values


def _in_laboratory(item: NDArray[np.int64]) -> NDArray[np.bool_]:
    return (item >= _LABORATORY.start) & (item < _LABORATORY.stop)


def _time(seconds: NDArray[np.int64]) -> NDArray[np.datetime64]:
    return seconds.astype("datetime64[s]")


def _write(path: Path, header: list[str], table: _Table, compressed: bool) -> None:
    """A table as CSV; columns that it has nothing for are empty, as are values that are NaN."""
    csv, arrow = need("pyarrow.csv", "hospital records"), need("pyarrow", "hospital records")
    rows = len(next(iter(table.values())))
    table = {"ROW_ID": np.arange(1, rows + 1)} | table
    columns = [
        arrow.array(table[name], from_pandas=True) if name in table else arrow.nulls(rows, arrow.string())
        for name in header
    ]
    options = csv.WriteOptions(quoting_style="needed")
    name = f"{path.name}.gz" if compressed else path.name
    with arrow.output_stream(str(path.with_name(name)), compression="gzip" if compressed else None) as file:
        csv.write_csv(arrow.table(columns, names=header), file, options)
