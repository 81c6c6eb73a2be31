import pytest

from leanbayes.data import load

ROWS = [f"{'north' if n % 2 else 'south'},{n % 7},{n}.5" for n in range(60)]
SUM, MEAN = sum(n % 7 for n in range(60)), sum(n % 7 for n in range(60)) / 60


def notes_and_rows(tmp_path, *last, first=()):
    (tmp_path / "a.csv").write_text("\n".join(["region,units,revenue", *first, *ROWS, *last]) + "\n")
    data = load(tmp_path / "a.csv", target="revenue")
    return data.notes, sum(len(part) for part in (data.train, data.valid, data.test))


@pytest.mark.parametrize(
    ("last", "note"),
    [
        ([f"Total,{SUM},"], "the last row ('Total') was left out, as it sums up the others"),
        ([f"TOTAL:,{SUM},1800"], "the last row ('TOTAL:') was left out, as it sums up the others"),
        ([f"Mittelwert,{MEAN:.2f},30"], "the last row ('Mittelwert') was left out, as it sums up the others"),
        (
            [f"Sum,{SUM},1800", f"Mean,{MEAN:.3f},30"],
            "the last 2 rows ('Sum', 'Mean') were left out, as they sum up the others",
        ),
    ],
)
def test_rows_that_sum_up_the_others(tmp_path, last, note):
    notes, rows = notes_and_rows(tmp_path, *last)
    assert note in notes and rows == 60


@pytest.mark.parametrize("last", ["Total,3,17.5", "north,204,1800.0"], ids=["no sum", "no name"])
def test_rows_like_any_other(tmp_path, last):
    notes, rows = notes_and_rows(tmp_path, last)
    assert not [note for note in notes if "sums up" in note] and rows == 61


def test_names_that_are_repeated(tmp_path):
    notes, rows = notes_and_rows(tmp_path, "region, units ,revenue", first=["region,units,revenue"])
    assert "2 lines that repeat the names of the columns were left out" in notes and rows == 60


def test_nothing_but_names_is_no_table(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\na,b\n")
    with pytest.raises(ValueError, match="has no rows; a table with one row per example is needed"):
        load(tmp_path / "a.csv")


def test_one_and_zero_among_true_and_false(tmp_path):
    cells = ["true", "False", "1", "0", "TRUE"]
    (tmp_path / "a.csv").write_text("flag,x,y\n" + "".join(f"{cells[n % 5]},{n},{n % 2}\n" for n in range(60)))
    column = load(tmp_path / "a.csv", target="y").schema.columns[0]
    assert (column.name, column.kind, column.format) == ("flag", "boolean", "true/false")
