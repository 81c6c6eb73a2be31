"""Notes on values that look like mistakes."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from leanbayes.data import load, read_rows
from leanbayes.data._dataset import Column

RANDOM = np.random.RandomState(0)
AGE = RANDOM.randint(18, 80, 200)
NOISE = np.round(RANDOM.randn(200), 4)


def notes(path, age=AGE, y=NOISE, word="far"):
    path = path / "a.csv"
    path.write_text("age,noise,y\n" + "".join(f"{a},{n},{t}\n" for a, n, t in zip(age, NOISE, y)))
    return [note for note in load(path, target="y").notes if word in note]


@pytest.mark.parametrize(
    ("strange", "rows", "text"),
    [("-999", 20, "-999"), ("-99.0", 1, "-99.0"), ("1e12", 1, "1e12"), ("9999", 2, "9999")],
)
def test_numbers_that_stand_for_none(tmp_path, strange, rows, text):
    said = notes(tmp_path, np.where(np.arange(200) < rows, strange, AGE.astype(str)))
    assert len(said) == 1 and "the others are from 18 to 79" in said[0] and said[0].endswith(f"pass na=['{text}']")


def test_several_values_far_from_all_others(tmp_path):
    spikes = np.where(np.arange(200) < 2, [1e9, -2e9] * 100, NOISE)
    said = notes(tmp_path, y=spikes)[0]
    assert "such as -2e+09 in 2 rows of 'y'" in said and said.endswith("pass na=['1000000000.0', '-2000000000.0']")


@pytest.mark.parametrize("usual", [RANDOM.lognormal(0, 2, 200), RANDOM.poisson(0.3, 200), AGE % 2 * 1000, AGE * 0])
def test_skewed_numbers_counts_and_codes_get_no_note(tmp_path, usual):
    assert not notes(tmp_path, usual)


def test_typed_numbers_have_no_text_to_name(tmp_path):
    table = pyarrow.table({"age": np.where(np.arange(200) < 9, -999, AGE), "y": NOISE})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert [note for note in load(tmp_path / "a.parquet").notes if note.endswith("empty those cells")]


def test_new_numbers_far_beyond_those_of_training(tmp_path):
    notes(tmp_path)
    schema = load(tmp_path / "a.csv").schema
    assert [Column.from_json(column.to_json()) for column in schema.columns] == list(schema.columns)
    (tmp_path / "new.csv").write_text("age,noise\n20,0.1\n-999,0.1\n,\n")
    said = [note for note in read_rows(tmp_path / "new.csv", schema).notes if "beyond" in note]
    assert said == [
        "numbers of new.csv are far beyond those of training, where predictions mean little: -999 in row 2 of 'age' "
        "(training had 18 to 79)"
    ]
    (tmp_path / "new.csv").write_text("age,noise\n20,0.1\n110,0.1\n")
    assert not read_rows(tmp_path / "new.csv", schema).notes
