import json

import numpy as np
import pytest

from leanbayes.data import TableError, load, read_rows
from leanbayes.data._dataset import Origin, Schema

VISITS = 4


def table(tmp_path, patients=60, *, name="patient_id", target="outcome", **options):
    """Visits of patients, all of one outcome each, in an order of their own."""
    rows = [
        f"P{p:03},{p % 7 + visit / 10},{'ABC'[visit % 3]},{'ill' if p % 4 == 0 else 'well'}"
        for visit in range(VISITS)
        for p in range(patients)
    ]
    (tmp_path / "a.csv").write_text("\n".join([f"{name},x,ward,outcome", *rows]) + "\n")
    return load(tmp_path / "a.csv", target=target, **options)


def parts_of(read):
    return read.train, read.valid, read.test


def test_no_two_parts_share_a_patient(tmp_path):
    read = table(tmp_path, group_by="patient_id")
    groups = [set(part.groups.tolist()) for part in parts_of(read)]
    assert [len(group) for group in groups] == [39, 9, 12]
    assert len(set.union(*groups)) == 60
    assert [len(part) for part in parts_of(read)] == [156, 36, 48]
    # A quarter of the patients is ill, in each part.
    assert [int((part.y == 0).sum()) for part in parts_of(read)] == [40, 8, 12]
    assert [column.name for column in read.schema.columns] == ["x", "ward"]
    assert read.schema.group == "patient_id" and "patient_id" in read.schema.ids
    assert Schema.from_json(json.loads(json.dumps(read.schema.to_json()))) == read.schema
    assert (
        "no two parts share a value of 'patient_id': 39 for training, 9 for validation, 12 for testing; the figures "
        "are for new ones" in read.notes
    )


def test_training_adds_no_rows_of_a_group_to_the_validation_part(tmp_path):
    from leanbayes.compare.train import train_and_valid_counts

    read = table(tmp_path, group_by="patient_id")
    assert train_and_valid_counts(read) == (156, 36)
    assert train_and_valid_counts(read.limited(50)) == (50, 36)


def test_a_regression(tmp_path):
    read = table(tmp_path, target="x", group_by="patient_id")
    groups = [set(part.groups.tolist()) for part in parts_of(read)]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 60


def test_few_groups_say_little(tmp_path):
    (note,) = [note for note in table(tmp_path, 10, group_by="patient_id").notes if "share" in note]
    assert note.endswith("; the figures are for new ones, about which so few say little")


def test_rows_without_a_target_do_not_count(tmp_path):
    table(tmp_path, group_by="patient_id")
    lines = (tmp_path / "a.csv").read_text().splitlines()
    lines = [line.rsplit(",", 1)[0] + "," if line.startswith("P00") else line for line in lines]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    read = load(tmp_path / "a.csv", target="outcome", group_by="patient_id")
    assert sum(len(set(part.groups.tolist())) for part in parts_of(read)) == 50


def test_it_is_part_of_how_the_data_were_read(tmp_path):
    read = table(tmp_path, group_by="patient_id")
    options = Origin(**json.loads(json.dumps(vars(read.origin)))).options
    assert options["group_by"] == "patient_id"
    assert (load(tmp_path / "a.csv", **options).test.x == read.test.x).all()


def test_new_rows_of_the_same_groups_are_known_however_they_are_written(tmp_path):
    lines = [f"{n % 40},{n}.5,{n % 3}" for n in range(200)]
    (tmp_path / "a.csv").write_text("\n".join(["site,x,y", *lines]) + "\n")
    read = load(tmp_path / "a.csv", target="y", group_by="site")
    (tmp_path / "b.csv").write_text("x,site\n1,7.0\n2,55\n3,\n4,\n5,7\n")
    groups = read_rows(tmp_path / "b.csv", read.schema).groups
    known = {number for part in parts_of(read) for number in part.groups.tolist()}
    assert [number in known for number in groups.tolist()] == [True, False, False, False, True]
    assert len(groups.unique()) == 4
    (tmp_path / "c.csv").write_text("x\n1\n")
    assert read_rows(tmp_path / "c.csv", read.schema).groups is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_by": "patient"}, "a.csv has no column 'patient'; did you mean 'patient_id'"),
        ({"group_by": "outcome"}, "column 'outcome' of a.csv has 2 values; to train, validate and test .* takes 3"),
        (
            {"group_by": "ward", "order_by": "x"},
            "group_by='ward' tests on whole groups, and order_by='x' on the last rows; name one",
        ),
        ({"group_by": "ward", "target": "ward"}, "values of 'ward', which is no input and cannot be the target"),
        ({"group_by": "ward", "categories": ["ward"]}, "cannot be one of the columns to use as well"),
    ],
)
def test_what_groups_do_not_go_with(tmp_path, options, message):
    with pytest.raises(TableError, match=message):
        table(tmp_path, **options)


def test_rows_of_no_group_are_an_error(tmp_path):
    (tmp_path / "a.csv").write_text("g,x,y\n" + "".join(f"{n % 9 or ''},{n},{n % 2}\n" for n in range(90)))
    message = "column 'g' of a.csv misses 10 values, so that these rows are of no group; fill them in, or remove"
    with pytest.raises(TableError, match=message):
        load(tmp_path / "a.csv", target="y", group_by="g")


@pytest.mark.parametrize(
    ("name", "patients", "is_noted"),
    [("patient_id", 60, True), ("Patient", 60, True), ("ward", 60, False), ("patient_id", 12, False)],
)
def test_a_note_suggests_groups(tmp_path, name, patients, is_noted):
    notes = [note for note in table(tmp_path, patients, name=name).notes if "group_by" in note]
    assert len(notes) == is_noted
    if notes:
        assert notes[0] == (
            f"{name!r} has 60 values, of 4.0 rows each on average, and test rows were drawn from among the rows of the "
            f"same ones; to measure predictions for those that training has not seen, pass group_by={name!r}"
        )


def test_no_note_where_each_row_has_its_own(tmp_path):
    (tmp_path / "a.csv").write_text("patient_id,x,y\n" + "".join(f"{n},{n % 17},{n % 2}\n" for n in range(90)))
    assert not [note for note in load(tmp_path / "a.csv", target="y").notes if "group_by" in note]


def test_no_note_where_rows_are_tested_in_their_order(tmp_path):
    # The two exclude each other, and the order was asked for.
    assert not [note for note in table(tmp_path, order_by="x").notes if "group_by" in note]


def test_groups_are_taken_along():
    import torch

    from leanbayes.data._dataset import Part

    part = Part(torch.arange(6.0), torch.arange(6.0), torch.arange(6) // 2)
    assert part.take(np.array([5, 0])).groups.tolist() == [2, 0]
    assert part.spaced(3).groups.tolist() == [0, 1, 2]
