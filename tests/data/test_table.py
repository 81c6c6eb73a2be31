import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from leanbayes.data import TableError, generate, load, read_rows


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_rows_are_what_was_written(tmp_path, ending):
    path = generate.write_table(tmp_path / f"a.{ending}", rows=50, features=3)
    read = load(path)
    x, y = generate.regression(50, 3)
    parts = read.train, read.valid, read.test
    assert [len(part) for part in parts] == [36, 4, 10]
    found = torch.cat([torch.cat([part.x, part.y.unsqueeze(1)], 1) for part in parts]).numpy()
    expected = np.column_stack([x, y])
    np.testing.assert_array_equal(found[np.argsort(found[:, 0])], expected[np.argsort(expected[:, 0])])
    assert read.task == "regression" and read.shape == (3,) and read.schema.target == "y" and read.notes == ()


def test_text_target_gives_classes(tmp_path):
    read = load(generate.write_table(tmp_path / "a.csv", task="classification"))
    assert read.task == "classification" and read.class_names == ("high", "low")
    assert torch.bincount(read.test.y).tolist() == [20, 20]


def test_target_by_name_and_columns_left_out(tmp_path):
    path = generate.write_table(tmp_path / "a.csv", colour=True)
    read = load(path, target="x2", drop=["colour", "y"])
    assert [column.name for column in read.schema.columns] == ["x1", "x3", "x4"] and read.schema.target == "x2"


def test_texts_are_categories_without_being_told(tmp_path):
    path = generate.write_table(tmp_path / "a.csv", colour=True)
    found, told = load(path), load(path, categories=["colour"])
    assert found.schema == told.schema and found.notes == ("categories: 'colour'",)
    assert torch.equal(found.train.x, told.train.x)


def test_categories_become_inputs(tmp_path):
    path = generate.write_table(tmp_path / "a.csv", colour=True)
    read = load(path, categories=["colour"])
    assert read.schema.columns[-1].categories == ("blue", "green", "red") and read.shape == (7,)
    ready, _ = read.ready("test")
    assert (ready[:, 4:].sum(1) == 1).all() and set(ready[:, 4:].unique().tolist()) == {0.0, 1.0}


def test_categories_are_fitted_on_the_training_rows(tmp_path):
    # Every row has a value of its own, so that only those of training rows can be categories.
    (tmp_path / "a.csv").write_text("k,y\n" + "".join(f"v{i},{i}.5\n" for i in range(20)))
    read = load(tmp_path / "a.csv", categories=["k"], test=5, valid=3)
    assert read.shape == (12,)
    assert (read.train.x.sum(1) == 1).all() and (read.valid.x == 0).all() and (read.test.x == 0).all()


def test_missing_values_are_reported(tmp_path):
    path = generate.write_table(tmp_path / "a.csv", missing=7)
    with pytest.raises(ValueError, match=r"a.csv has missing values \(7 in 'x1'\); pass missing='impute'$"):
        load(path, missing="error")


def test_missing_values_left_out(tmp_path):
    read = load(generate.write_table(tmp_path / "a.csv", missing=7), missing="drop")
    assert len(read.train) + len(read.valid) + len(read.test) == 193
    assert read.notes == ("7 of 200 rows were left out for missing values: 7 in 'x1'",)


def test_missing_values_filled_with_the_training_mean(tmp_path):
    read = load(generate.write_table(tmp_path / "a.csv", missing=40), missing="mean")
    assert len(read.train) + len(read.valid) + len(read.test) == 200
    gaps = read.train.x[:, 0].isnan()
    ready, _ = read.ready("train")
    assert gaps.any() and (ready[gaps, 0] == 0).all() and ready.isfinite().all()
    mean, std = read.normalisation.inputs.mean[0], read.normalisation.inputs.std[0]
    known = read.train.x[~gaps, 0]
    assert mean == pytest.approx(float(known.mean())) and std == pytest.approx(float(known.std(unbiased=False)))


def test_missing_values_are_flagged(tmp_path):
    path = generate.write_table(tmp_path / "a.csv", missing=40, colour=True)
    read, plain = load(path), load(path, missing="mean")
    column = read.schema.columns[0]
    assert column.indicator and column.features == ("x1", "x1 is missing") and read.shape == (plain.shape[0] + 1,)
    gaps = read.train.x[:, 0].isnan()
    assert gaps.any() and torch.equal(read.train.x[:, 1], gaps.double())
    assert torch.equal(read.train.x[:, 2:], plain.train.x[:, 1:])
    ready, _ = read.ready("train")
    # The mean of what is known, and an indicator that is not scaled.
    assert (ready[gaps, 0] == 0).all() and torch.equal(ready[:, 1], gaps.float()) and ready.isfinite().all()
    assert read.normalisation.inputs.mean[0] == pytest.approx(float(read.train.x[~gaps, 0].mean()))


def test_only_gaps_of_training_rows_get_an_input(tmp_path):
    lines = [f"{i * 0.7},{i % 5}.5,{i}.25" for i in range(40)]
    test_row = 40 - load_rows(tmp_path, lines)  # a row that is held out
    values = lines[test_row].split(",")
    lines[test_row] = f",{values[1]},{values[2]}"
    (tmp_path / "a.csv").write_text("a,b,y\n" + "\n".join(lines) + "\n")
    read = load(tmp_path / "a.csv")
    assert read.shape == (2,) and read.test.x.isnan().sum() == 1
    assert read.ready("test")[0].isfinite().all()


def load_rows(tmp_path, lines):
    """How far from the end the first row of the test part stands."""
    (tmp_path / "a.csv").write_text("a,b,y\n" + "\n".join(lines) + "\n")
    first = float(load(tmp_path / "a.csv").test.y[0])
    return len(lines) - next(row for row, line in enumerate(lines) if float(line.split(",")[2]) == first)


@pytest.mark.parametrize("missing", ["impute", "mean", "drop"])
def test_rows_without_a_target_are_left_out(tmp_path, missing):
    rows = "".join(f"{i * 1.5},{'' if i % 4 == 0 else i + 0.5}\n" for i in range(20))
    (tmp_path / "a.csv").write_text("x,y\n" + rows)
    read = load(tmp_path / "a.csv", missing=missing)
    assert len(read.train) + len(read.valid) + len(read.test) == 15
    assert read.notes == ("5 of 20 rows were left out because they lack 'y'",)


def whole_numbers(tmp_path, values):
    lines = "".join(f"{i / 7},{values[i % len(values)]}\n" for i in range(200))
    (tmp_path / "a.csv").write_text("x,y\n" + lines)
    return tmp_path / "a.csv"


def test_few_whole_numbers_are_classes_unless_told_otherwise(tmp_path):
    path = whole_numbers(tmp_path, [3, 5, 10])
    assert load(path).class_names == ("3", "5", "10")
    assert load(path, task="regression").task == "regression"
    assert load(whole_numbers(tmp_path, range(21))).task == "regression"
    assert load(whole_numbers(tmp_path, [0.5, 1.5])).task == "regression"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_whole_numbers_beside_gaps_are_classes_too(tmp_path, ending):
    """Programs make floats of whole numbers where one is missing: 0 and 1 become 0.0 and 1.0."""
    labels = [None if i % 50 == 0 else float(i % 2) for i in range(200)]
    if ending == "csv":
        lines = [f"{i / 7},{'' if label is None else label}" for i, label in enumerate(labels)]
        (tmp_path / "a.csv").write_text("x,y\n" + "\n".join(lines) + "\n")
    else:
        table = pyarrow.table({"x": [i / 7 for i in range(200)], "y": labels})
        pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    read = load(tmp_path / f"a.{ending}")
    assert read.class_names == ("0", "1") and len(read.train) + len(read.valid) + len(read.test) == 196
    assert load(tmp_path / f"a.{ending}", task="regression").task == "regression"


def test_free_text_alone_is_nothing_to_learn_from(tmp_path):
    (tmp_path / "a.csv").write_text("review,y\n" + "".join(f"a good film {i},{i % 2}\n" for i in range(40)))
    with pytest.raises(TableError, match="turn texts into numbers first, such as sentence embeddings$"):
        load(tmp_path / "a.csv")


def test_one_target_at_a_time(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,z\n1,2,3\n")
    with pytest.raises(TypeError, match=r"target is the name of one column, not \['y', 'z'\]"):
        load(tmp_path / "a.csv", target=["y", "z"])


def test_binary_has_two_classes(tmp_path):
    read = load(whole_numbers(tmp_path, [0, 1]), task="binary")
    assert read.task == "binary" and read.classes == 2
    with pytest.raises(ValueError, match="a binary task has 2 classes"):
        load(whole_numbers(tmp_path, [0, 1, 2]), task="binary")


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("x,y\n1,a\n2,a\n3,a\n", {}, "the target 'y' of a.csv has only the value 'a'; two classes are needed"),
        ("y\n1\n2\n", {}, "a.csv has a single column, 'y', where inputs and a target are needed; if"),
        ("x|y\n1|2\n", {"separator": ";"}, r"a.csv has a single column, 'x\|y'"),
        ("x,y\n1,2\n", {"target": "z"}, "a.csv has no column 'z'"),
        ("x,y\n1,2\n", {"drop": ["z"]}, "a.csv has no column 'z'"),
        ("x,y,z\n1,2,3\n", {"target": "y,z"}, "'y,z' names several columns of a.csv, and a model predicts one of them"),
        ("x,y\n1,2\n", {"target": "x", "categories": ["x"]}, "the target 'x' of a.csv is among the categories"),
        ("x,y\n1,2\n", {"missing": "zero"}, "missing is one of 'impute', 'mean', 'drop', 'error', not 'zero'"),
        ("x,y\n1,2\n", {"task": "ranking"}, "task is one of"),
        (
            "x,y\n1,a\n2,b\n",
            {"task": "regression"},
            r"the target 'y' of a.csv holds text \('a'\).*; pass task='classification'$",
        ),
        ("x,z,y\n,1,1.5\n2,,2.5\n", {"missing": "drop"}, "every row of a.csv has a missing value"),
        ("x,y\n,1.5\n,2.5\n,3.5\n", {}, r"a.csv has no column besides the target 'y' that .*'x' \(no values\)"),
        ("x,y\na,1.5\nb,2.5\n", {"numbers": ["x"]}, r"column 'x' of a.csv holds no numbers .* 'a'; pass numbers=\[\]"),
        ("x,y\n1,2.5\n2,3.5\n", {"drop": ["xx"]}, "a.csv has no column 'xx'; did you mean"),
        ("x,y\n1,2.5\n", {"numbers": ["x"], "drop": ["x"]}, "'x' of a.csv is named in more than one of"),
        ("x,y\ninf,1.5\n1,2.5\n", {}, r"column 'x' of a.csv holds an infinite number in row 1, .*; pass na=\['inf'\]"),
        ("x,y\n1,1.5\n2,inf\n3,-inf\n", {}, r"the target .* infinite number in row 2, .*; pass na=\['-inf', 'inf'\]"),
        ("x,Price\n1,2\n2,3\n", {"target": "price"}, "has no column 'price'; did you mean 'Price'.; pass target='Pr"),
        ("x,y\n1,3\n2,3\n", {}, "the target 'y' of a.csv has only the value '3'; two classes"),
        (
            "x,y\n" + "".join(f"{i},{i}\n" for i in range(30)),
            {"task": "classification"},
            "30 values in 30 rows, too many",
        ),
        ("x,y\n1,2.5\n", {"test": 0.9}, "cannot hold out 1 of 1 examples"),
    ],
)
def test_tables_and_options_that_do_not_fit(tmp_path, content, options, message):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "a.csv", **options)


def test_lists_are_not_texts(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(TypeError, match="categories, numbers, drop and na are lists of strings"):
        load(tmp_path / "a.csv", drop="x")


MESSY = (
    "Kunden-Nr;Straße;Größe;Umsatz;Eintritt;Aktiv;Bemerkung;Leer;Land;PLZ;Kündigt\r\n"
    + "".join(
        f"K{100 + 7 * i};{'Mühlweg' if i % 3 else 'Am Bach'};{'k.A.' if i % 10 == 0 else f'{i},5'};"
        f"{i}.{100 + i},25 €;{1 + i % 28:02d}.{1 + i % 12:02d}.20{10 + i % 9};{'ja' if i % 2 else 'nein'};"
        f'"Anruf {i * i}; ""dringend""";;DE;0{1067 + i % 3};{"ja" if i % 4 else "nein"}\r\n'
        for i in range(1, 81)
    )
    + ";;;;;;;;;;\r\n"
)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8", "utf-8-sig", "utf-16"])
def test_a_table_as_people_have_them(tmp_path, encoding):
    (tmp_path / "a.csv").write_bytes(MESSY.encode(encoding))
    read = load(tmp_path / "a.csv")
    columns = {column.name: column for column in read.schema.columns}
    assert {name: column.kind for name, column in columns.items()} == {
        "Straße": "category", "Größe": "number", "Umsatz": "number", "Eintritt": "date", "Aktiv": "boolean",
        "PLZ": "category",
    }  # fmt: skip
    assert columns["PLZ"].categories == ("01067", "01068", "01069") and columns["Größe"].indicator
    assert read.schema.target == "Kündigt" and read.class_names == ("ja", "nein") and read.schema.ids == ("Kunden-Nr",)
    assert len(read.train) + len(read.valid) + len(read.test) == 80
    notes = " ".join(read.notes)
    for text in (
        "'Kündigt', the last column, was taken", "8 in 'Größe'", "dates: 'Eintritt'", "yes or no: 'Aktiv'",
        "decimal comma: 'Größe', 'Umsatz'", "'Kunden-Nr' (names", "'Bemerkung' (another text", "'Leer' (no values)",
        "'Land' (the same value",
    ):  # fmt: skip
        assert text in notes
    assert ("Windows-1252" in notes) == (encoding == "cp1252")
    everything = torch.cat([read.train.x, read.valid.x, read.test.x])
    names = [name for column in read.schema.columns for name in column.features]
    number = names.index("Umsatz")
    assert sorted(everything[:, number].tolist()) == [i * 1000 + 100 + i + 0.25 for i in range(1, 81)]


def test_dates_become_days_and_cycles(tmp_path):
    start = np.datetime64("2024-02-27")
    dates = [start + np.timedelta64(3 * day, "D") for day in range(40)]
    (tmp_path / "a.csv").write_text("when,y\n" + "".join(f"{date},{n}.5\n" for n, date in enumerate(dates)))
    read = load(tmp_path / "a.csv")
    (column,) = read.schema.columns
    assert column.parts == ("days", "year (sine)", "year (cosine)", "week (sine)", "week (cosine)")
    first = dates[int(read.train.y.min() - 0.5)]  # of the training rows
    for part in (read.train, read.test):
        own = [dates[int(y - 0.5)] for y in part.y.tolist()]
        assert part.x[:, 0].tolist() == [int((date - first) / np.timedelta64(1, "D")) for date in own]
        weekdays = np.array([date.astype(object).weekday() for date in own])
        np.testing.assert_allclose(part.x[:, 3], np.sin(2 * np.pi * weekdays / 7), atol=1e-12)
        np.testing.assert_allclose(part.x[:, 4], np.cos(2 * np.pi * weekdays / 7), atol=1e-12)
    ready, _ = read.ready("train")
    assert float(ready[:, 0].mean()) == pytest.approx(0, abs=1e-6) and torch.equal(
        ready[:, 3], read.train.x[:, 3].float()
    )


def test_all_problems_in_one_message(tmp_path):
    rows = "".join(f"{'' if i == 2 else i * 1.5},{'inf' if i == 3 else i % 3},1,{i}.5\n" for i in range(30))
    (tmp_path / "a.csv").write_text("a,b,c,y\n" + rows)
    with pytest.raises(ValueError) as error:
        load(tmp_path / "a.csv", missing="error", drop=["c"], task="binary")
    assert str(error.value) == (
        "a.csv has 3 problems: (1) column 'b' of a.csv holds an infinite number in row 4, which can count as "
        "missing; (2) a.csv has missing values (1 in 'a'); (3) the target 'y' of a.csv has 30 values in 30 rows, too "
        "many for classes; pass na=['inf'], missing='impute', task='regression'"
    )
    fixes = error.value.fixes
    assert [column.name for column in load(tmp_path / "a.csv", drop=["c"], **fixes).schema.columns] == ["a", "b"]
    # A name that no column has takes a thought.
    with pytest.raises(
        ValueError, match=r"2 problems: \(1\) a.csv has no column 'x'.*; pass missing='impute'$"
    ) as error:
        load(tmp_path / "a.csv", missing="error", drop=["x", "b"])
    assert error.value.fixes == {}
    with pytest.raises(ValueError, match=r"no column 'x'.*; pass na=\['none', 'inf'\]$"):
        load(tmp_path / "a.csv", drop=["x", "c"], na=["none"])


@pytest.mark.parametrize(
    ("header", "row", "target"),
    [
        ("a,Label,b", "{i}.5,{k},{i}.25", "Label"),
        ("y,a,b", "{i}.5,{k},{i}.25", "y"),
        ("a,b,price", "{i}.5,{k},{i}.25", "price"),
    ],
)
def test_the_target_is_found(tmp_path, header, row, target):
    (tmp_path / "a.csv").write_text(header + "\n" + "".join(row.format(i=i, k=i % 3) + "\n" for i in range(30)))
    read = load(tmp_path / "a.csv")
    assert read.schema.target == target and ("the last column" in " ".join(read.notes)) == (target == "price")


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("target,label,b", "{i}.5,{k},{i}.25", "'target', 'label' all sound like one; pass target='NAME'"),
        (
            "a,b,id",
            "{i}.5,{k},{i}",
            "the last one, 'id', cannot be predicted; it could be one of 'a', 'b'; pass target=",
        ),
        ("a,b,when", "{i}.5,{k},2024-01-{d:02d}", "'when', cannot be predicted; it could be one of 'a', 'b'"),
        ("a,when", "{i}.5,2024-01-{d:02d}", "it could be one of 'a'; pass target='a'"),
    ],
)
def test_a_target_that_is_not_clear_is_asked_for(tmp_path, header, row, message):
    lines = "".join(row.format(i=i, k=i % 3, d=1 + i % 28) + "\n" for i in range(30))
    (tmp_path / "a.csv").write_text(header + "\n" + lines)
    with pytest.raises(ValueError, match="it is not clear which column of a.csv to predict") as error:
        load(tmp_path / "a.csv")
    assert message in str(error.value)


def test_ids_are_flagged_and_can_be_used(tmp_path):
    rows = "".join(f"{1000 + 7 * i},{i},{(i * 37) % 101},{i}.5\n" for i in range(40))
    (tmp_path / "a.csv").write_text("OrderID,,x,y\n" + rows)
    read = load(tmp_path / "a.csv")
    assert read.schema.ids == ("OrderID", "column 2") and [c.name for c in read.schema.columns] == ["x"]
    used = load(tmp_path / "a.csv", numbers=["OrderID"])
    assert [c.name for c in used.schema.columns] == ["OrderID", "x"] and used.schema.ids == ("column 2",)


def test_many_values_keep_the_frequent_ones(tmp_path):
    random = np.random.RandomState(0)
    cities = [f"city {n}" for n in np.minimum(random.geometric(0.03, size=600), 90)]
    (tmp_path / "a.csv").write_text("city,y\n" + "".join(f"{city},{n}.5\n" for n, city in enumerate(cities)))
    read = load(tmp_path / "a.csv")
    (column,) = read.schema.columns
    assert len(column.categories) == 50 and "the 50 most frequent of" in " ".join(read.notes)
    train = [cities[int(y - 0.5)] for y in read.train.y.tolist()]
    counts = {city: train.count(city) for city in set(train)}
    assert min(counts[city] for city in column.categories) >= max(
        count for city, count in counts.items() if city not in column.categories
    )


def test_a_few_texts_among_numbers_are_missing_values(tmp_path):
    rows = "".join(f"{'about 3' if i in (5, 6) else i * 1.5},{i}.5\n" for i in range(60))
    (tmp_path / "a.csv").write_text("x,y\n" + rows)
    read = load(tmp_path / "a.csv")
    assert read.schema.columns[0].kind == "number" and read.schema.columns[0].others == ("about 3",)
    assert "'x' ('about 3' counted as missing)" in " ".join(read.notes)


def test_nothing_is_learnt_from_rows_that_are_held_out(tmp_path):
    """Other values in the rows of validation and test change nothing that is stored."""

    def rows(change):
        found = []
        for i in range(60):
            values = [f"{i * 0.5}", ["red", "blue"][i % 2], f"2024-03-{1 + i % 28:02d}", f"{i}.5"]
            if i in change:
                values[:3] = [str(1e6 + i), "violet", f"19{50 + i % 40}-01-01"]
            found.append(",".join(values))
        return "a,colour,when,y\n" + "\n".join(found) + "\n"

    (tmp_path / "a.csv").write_text(rows(()))
    before = load(tmp_path / "a.csv")
    held = {int(y - 0.5) for part in (before.valid, before.test) for y in part.y.tolist()}
    (tmp_path / "a.csv").write_text(rows(held))
    after = load(tmp_path / "a.csv")
    assert after.schema == before.schema and torch.equal(after.train.x, before.train.x)
    assert not torch.equal(after.test.x, before.test.x)


def test_spellings_of_yes_and_no_are_one_class(tmp_path):
    answers = ["Yes", "yes", "YES", "no", "No", "no"]
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i}.5,{answers[i % 6]}\n" for i in range(60)))
    read = load(tmp_path / "a.csv")
    assert read.class_names == ("YES", "no")
    new = read_rows(tmp_path / "a.csv", read.schema)
    assert new.y is not None and new.y.tolist() == [int(i % 6 > 2) for i in range(60)]


def test_classes_with_few_rows_and_those_that_may_be_one_are_noted(tmp_path):
    classes = ["red"] * 30 + ["Red"] * 20 + ["green"] * 3
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i}.5,{name}\n" for i, name in enumerate(classes)))
    assert load(tmp_path / "a.csv").notes[:2] == (
        "one class of 'y' has fewer than 10 rows: 'green' (3)",
        "classes of 'y' that differ only in case are kept apart: 'Red' and 'red'",
    )


def test_texts_that_stand_for_no_target_are_named(tmp_path):
    rows = "".join(f"{i * 0.5},{'unknown' if i % 30 == 7 else 37 * i % 61 + 0.5}\n" for i in range(60))
    (tmp_path / "a.csv").write_text("x,y\n" + rows)
    assert load(tmp_path / "a.csv").notes == (
        "2 of 60 rows were left out because they lack 'y' or have one that stands for none ('unknown')",
    )


def test_the_options_that_solve_wrong_ones_do(tmp_path):
    many = "".join(f"a{i % 7},{i * 0.5 + 0.25},{i % 5}.5\n" for i in range(1100))
    (tmp_path / "a.csv").write_text("text,value,y\n" + many)
    options = {"numbers": ["text"], "categories": ["value"]}
    with pytest.raises(TableError) as error:
        load(tmp_path / "a.csv", **options)
    assert error.value.fixes == {"numbers": [], "categories": []}
    assert len(load(tmp_path / "a.csv", **options | error.value.fixes).schema.columns) == 2


def test_seconds_beyond_59_are_no_time(tmp_path):
    """strptime takes 12:00:60 for 12:01:00; as one of many it counts as missing, and among new rows it is an error."""
    times = [f"{n % 24:02d}:{7 * n % 60:02d}:{n % 60:02d}" for n in range(60)]
    lines = [f"{time},{n}.5" for n, time in enumerate(times)]
    (tmp_path / "a.csv").write_text("at,y\n" + "\n".join([*lines, "12:00:60,3.5"]) + "\n")
    read = load(tmp_path / "a.csv")
    assert read.schema.columns[0].kind == "date" and read.schema.columns[0].others == ("12:00:60",)
    assert "'at' ('12:00:60' counted as missing)" in " ".join(read.notes)
    (tmp_path / "a.csv").write_text("at,y\n" + "\n".join(lines) + "\n")
    (tmp_path / "new.csv").write_text("at\n12:00:60\n")
    with pytest.raises(TableError, match="column 'at' of new.csv holds no date"):
        read_rows(tmp_path / "new.csv", load(tmp_path / "a.csv").schema)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_numbers_with_more_digits_than_a_float_are_codes(tmp_path, ending):
    """Accounts 9007199254740992 and 9007199254740993 are one number to a float."""
    first = 2**53
    table = {
        "account": [first + n for n in range(60)],
        "branch": [first + n % 3 for n in range(60)],
        "x": [37 * n % 61 + 0.5 for n in range(60)],
        "y": [n + 0.5 for n in range(60)],
    }
    write = pyarrow.csv.write_csv if ending == "csv" else pyarrow.parquet.write_table
    write(pyarrow.table(table), tmp_path / f"a.{ending}")
    read = load(tmp_path / f"a.{ending}")
    assert read.schema.ids == ("account",)
    assert read.schema.columns[0].categories == tuple(str(first + n) for n in range(3))
    rows = read_rows(tmp_path / f"a.{ending}", read.schema)
    assert rows.x[:3, :3].tolist() == torch.eye(3).tolist() and not rows.unseen
    assert list(map(int, rows.kept["account"])) == table["account"]


def test_times_and_durations_of_parquet_files(tmp_path):
    seconds = [37 * n % 61 * 60 for n in range(60)]
    table = pyarrow.table(
        {
            "at": pyarrow.array(seconds, pyarrow.time32("s")),
            "took": pyarrow.array([1000 * s for s in seconds], pyarrow.duration("ms")),
            "y": [n + 0.5 for n in range(60)],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    read = load(tmp_path / "a.parquet")
    at, took = read.schema.columns
    assert (at.kind, took.kind, took.unit) == ("date", "number", "s")
    rows = read_rows(tmp_path / "a.parquet", read.schema)
    assert rows.x[:, -1].tolist() == seconds and rows.y.tolist() == table["y"].to_pylist()
    (tmp_path / "new.csv").write_text("at,took\n00:37:00,37 min\n")
    assert torch.equal(read_rows(tmp_path / "new.csv", read.schema).x[0], rows.x[1])


def test_dates_are_no_target(tmp_path):
    (tmp_path / "a.csv").write_text(
        "x,sent\n" + "".join(f"{i * 0.7},2024-0{1 + i % 9}-{1 + i % 28}\n" for i in range(60))
    )
    for task in (None, "regression"):
        with pytest.raises(TableError, match="the target 'sent' of a.csv holds dates, which cannot be predicted; turn"):
            load(tmp_path / "a.csv", target="sent", task=task)


@pytest.mark.parametrize(("rare", "said"), [(30, True), (120, False)])
def test_a_class_of_nearly_all_rows_is_noted(tmp_path, rare, said):
    (tmp_path / "a.csv").write_text("x,fraud\n" + "".join(f"{i * 0.7},{int(i < rare)}\n" for i in range(600)))
    found = [note for note in load(tmp_path / "a.csv").notes if note.startswith("95% of the rows are of the class '0'")]
    assert bool(found) == said
