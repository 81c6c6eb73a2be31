import csv
import gzip
from datetime import datetime

import numpy as np
import pytest
import torch

from leanbayes.data import Variable, generate, load
from leanbayes.data._mimic_variables import VARIABLES


@pytest.fixture
def folder(tmp_path):
    return generate.write_mimic(tmp_path, rows=20)


def rows(folder, name):
    with open(folder / f"{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def hours_between(start, end):
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() / 3600


def taken(folder):
    """Stays by the rules, one by one: adults, one stay, one unit, 48 hours."""
    born = {row["SUBJECT_ID"]: row["DOB"] for row in rows(folder, "PATIENTS")}
    stays = rows(folder, "ICUSTAYS")
    admissions = [stay["HADM_ID"] for stay in stays]
    return [
        stay
        for stay in stays
        if hours_between(born[stay["SUBJECT_ID"]], stay["INTIME"]) / 24 / 365.25 >= 18
        and admissions.count(stay["HADM_ID"]) == 1
        and stay["FIRST_CAREUNIT"] == stay["LAST_CAREUNIT"]
        and hours_between(stay["INTIME"], stay["OUTTIME"]) >= 48
    ]


def reference(folder, variables):
    """Values and masks of every stay by a loop over the events, by ascending admission."""
    events = rows(folder, "CHARTEVENTS") + rows(folder, "LABEVENTS")
    result = []
    for stay in sorted(taken(folder), key=lambda stay: int(stay["HADM_ID"])):
        own = [event for event in events if event["HADM_ID"] == stay["HADM_ID"]]
        series = np.full((48, 2 * len(variables)), np.nan)
        for number, variable in enumerate(variables):
            cells = [[] for _ in range(48)]
            for event in own:
                hour = hours_between(stay["INTIME"], event["CHARTTIME"])
                usable = event["VALUENUM"] and event.get("ERROR") != "1" and 0 <= hour < 48
                if int(event["ITEMID"]) in variable.items and usable:
                    value = float(event["VALUENUM"])
                    if int(event["ITEMID"]) in variable.fahrenheit:
                        value = (value - 32) / 1.8
                    if int(event["ITEMID"]) in variable.fraction and value <= 1:
                        value *= 100
                    if variable.low < value <= variable.high:
                        cells[int(hour)].append(value)
            for hour, cell in enumerate(cells):
                series[hour, len(variables) + number] = bool(cell)
                if cell:
                    series[hour, number] = np.mean(cell)
                elif hour:
                    series[hour, number] = series[hour - 1, number]
        result.append(series)
    return np.stack(result)


def test_series_equal_a_loop_over_the_events(folder):
    variables = (VARIABLES[0], VARIABLES[5], VARIABLES[7], VARIABLES[13])
    read = load(folder, variables=variables, seed=1)
    x = torch.cat([read.train.x, read.valid.x, read.test.x]).numpy()
    expected = reference(folder, variables).astype(np.float32)
    assert x.shape == expected.shape == (len(taken(folder)), 48, 8)
    key = [row.tobytes() for row in np.nan_to_num(expected, nan=-1)]
    found = [row.tobytes() for row in np.nan_to_num(x, nan=-1)]
    close = [
        min(np.abs(np.nan_to_num(row, nan=-1) - np.nan_to_num(other, nan=-1)).max() for other in expected) for row in x
    ]
    assert max(close) < 1e-4 and len(set(key)) == len(set(found))


def test_outcome_is_death_in_hospital(folder):
    read = load(folder, valid=0.0, test=0.0)
    died = {row["HADM_ID"]: int(row["HOSPITAL_EXPIRE_FLAG"]) for row in rows(folder, "ADMISSIONS")}
    expected = [died[stay["HADM_ID"]] for stay in sorted(taken(folder), key=lambda stay: int(stay["HADM_ID"]))]
    assert read.train.y.tolist() == expected and read.task == "binary" and read.inputs == "series"
    assert read.class_names == ("survived", "died in hospital")


def test_missing_hours_are_the_training_mean(folder):
    read = load(folder)
    x, y = read.ready("train")
    assert x.isfinite().all() and x.dtype == torch.float32 and x.shape[1:] == (48, 2 * len(VARIABLES)) == read.shape
    assert (x[read.train.x.isnan()] == 0).all()
    assert [column.name for column in read.schema.columns][::23] == [
        "heart rate (1/min)",
        "heart rate (1/min), observed",
    ]


def test_masks_are_an_option(folder):
    assert load(folder, masks=False, hours=24).shape == (24, len(VARIABLES))


def test_what_was_left_out_is_said(folder):
    notes = load(folder).notes
    assert notes[0] == f"{len(taken(folder))} of 21 stays were used"
    assert "1 stays of patients under 18 years were left out" in notes
    assert "2 stays of admissions with several stays were left out" in notes
    assert "1 stays with a transfer between units were left out" in notes
    assert "1 stays shorter than 48 hours were left out" in notes


def test_no_patient_is_in_two_parts(folder):
    from leanbayes.data.mimic import _patients

    people = np.repeat(np.arange(30), 3)
    parts = [set(people[part].tolist()) for part in _patients(people, 0.2, 0.2, seed=0)]
    assert [len(part) for part in parts] == [19, 5, 6]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]


def test_layouts_are_read_alike(tmp_path, folder):
    packed = generate.write_mimic(tmp_path / "packed", rows=20, compressed=True)
    lower = tmp_path / "lower"
    lower.mkdir()
    for file in folder.iterdir():
        head, _, body = file.read_text().partition("\n")
        (lower / file.name.lower()).write_text(f"{head.lower()}\n{body}")
    read = [load(path) for path in (folder, packed, lower)] + [load("mimic-iii", root=tmp_path)]
    assert all(torch.equal(other.train.x.nan_to_num(), read[0].train.x.nan_to_num()) for other in read[1:])


def test_batches_of_events_do_not_matter(folder, monkeypatch):
    import pyarrow.csv

    whole = load(folder)
    opened = pyarrow.csv.open_csv

    def small(file, read_options=None, **options):
        return opened(file, pyarrow.csv.ReadOptions(block_size=4096), **options)

    monkeypatch.setattr(pyarrow.csv, "open_csv", small)
    torch.testing.assert_close(load(folder).train.x, whole.train.x, equal_nan=True)


def test_one_table_of_events_is_enough(folder):
    (folder / "CHARTEVENTS.csv").unlink()
    lab = load(folder).train.x
    assert lab[:, :, 0].isnan().all() and not lab[:, :, 13].isnan().all()
    (folder / "LABEVENTS.csv").unlink()
    with pytest.raises(FileNotFoundError, match="has neither CHARTEVENTS nor LABEVENTS"):
        load(folder)


def test_tables_that_are_missing_or_damaged(folder):
    (folder / "ADMISSIONS.csv").rename(folder / "other.csv")
    with pytest.raises(FileNotFoundError, match="lacks ADMISSIONS.csv or ADMISSIONS.csv.gz; the tables come from"):
        load(folder)
    (folder / "ADMISSIONS.csv").write_text("HADM_ID\n1\n")
    with pytest.raises(ValueError, match="lacks the column HOSPITAL_EXPIRE_FLAG; it has HADM_ID"):
        load(folder)
    (folder / "ADMISSIONS.csv").write_text("HADM_ID,HOSPITAL_EXPIRE_FLAG\n1,no\n")
    with pytest.raises(ValueError, match="ADMISSIONS.csv cannot be read: .*'no'"):
        load(folder)
    (folder / "ADMISSIONS.csv").write_text("HADM_ID,HOSPITAL_EXPIRE_FLAG\n")
    with pytest.raises(ValueError, match="ADMISSIONS of .* has no rows"):
        load(folder)
    (folder / "ADMISSIONS.csv").unlink()
    (folder / "ADMISSIONS.csv.gz").write_bytes(gzip.compress(b"HADM_ID,HOSPITAL_EXPIRE_FLAG\n1,0\n")[:-12])
    with pytest.raises(ValueError, match="ADMISSIONS.csv.gz cannot be read: Truncated"):
        load(folder)


def test_no_stay_is_long_enough(folder):
    with pytest.raises(ValueError, match="none of the 21 stays of .* for 200 hours"):
        load(folder, hours=200)


def test_own_variables(folder):
    read = load(folder, variables=[Variable("potassium", (50971,))])
    assert [column.name for column in read.schema.columns] == ["potassium", "potassium, observed"]


def test_mimic_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="MIMIC-III is not complete: .* lacks PATIENTS.csv"):
        load("mimic-iii", root=tmp_path)


def test_no_item_belongs_to_two_variables():
    items = [item for variable in VARIABLES for item in variable.items]
    assert len(items) == len(set(items))
