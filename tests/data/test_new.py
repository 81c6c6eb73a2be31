import datetime
import json

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from leanbayes.data import Schema, generate, load, read_new
from leanbayes.data._new import read_rows


def saved(schema):
    return Schema.from_json(json.loads(json.dumps(schema.to_json())))


@pytest.fixture
def trained(tmp_path):
    return load(generate.write_table(tmp_path / "train.csv", colour=True, features=2), categories=["colour"])


def test_new_rows_are_encoded_as_training_rows_were(tmp_path, trained):
    # The same file again: every row must come out as in training.
    x, y = read_new(tmp_path / "train.csv", saved(trained.schema))
    rows = {tuple(row) for row in x.tolist()}
    assert all(tuple(row) in rows for row in torch.cat([trained.train.x, trained.test.x]).tolist())
    assert sorted(y.tolist()) == sorted(torch.cat([trained.train.y, trained.valid.y, trained.test.y]).tolist())


def test_images_come_from_one_file_or_a_folder(tmp_path):
    generate.write_image_folder(tmp_path / "tree", rows=(12, 6), size=(12, 12))
    dataset = load(tmp_path / "tree", size=12)
    x, y = read_new(tmp_path / "tree" / "val", saved(dataset.schema))
    # The test part is the same folder, class by class.
    assert y is None and torch.equal(x, dataset.test.tensor())
    first = min((tmp_path / "tree" / "val").rglob("*.png"))
    assert torch.equal(read_new(first, dataset.schema)[0], x[:1])
    with pytest.raises(ValueError, match=r"has inputs of shape \(3, 8, 8\), but the network takes \(1, 8, 8\)"):
        read_new(first, load("digits").schema)


def test_a_table_does_not_fit_a_network_of_arrays(tmp_path, trained):
    np.savez(tmp_path / "own.npz", x=np.random.rand(20, 3), y=np.random.rand(20))
    with pytest.raises(
        ValueError, match="on arrays without column names, so the columns of train.csv cannot be matched"
    ):
        read_new(tmp_path / "train.csv", load(tmp_path / "own.npz").schema)


def test_a_folder_without_images_is_an_error(tmp_path, trained):
    for schema in (trained.schema, load("digits").schema):
        with pytest.raises(ValueError, match="is a folder without images for this network; pass a file"):
            read_new(tmp_path, schema)


def test_columns_may_come_in_another_order_without_the_target(tmp_path, trained):
    (tmp_path / "new.csv").write_text("note,colour,x2,x1\nhello,green,2,1\n,violet,4,3\n")
    x, y = read_new(tmp_path / "new.csv", trained.schema)
    assert y is None and x.tolist() == [[1, 2, 0, 1, 0], [3, 4, 0, 0, 0]]
    assert trained.normalisation(x).dtype == torch.float32


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x1,colour\n1,red\n", "new.csv lacks the column 'x2', which the network was trained on"),
        ("x1,X2,colour\n1,2,red\n", "lacks the column 'x2', which the network was trained on; its others are 'X2'"),
        ("x1,x2,colour\n1,a,red\n", r"column 'x2' of new.csv holds text \('a' in row 1\)$"),
        ("x1,x2,colour\na,b,red\n", r"new.csv has 2 problems: \(1\) column 'x1' .*; \(2\) column 'x2'"),
        ("x1,x2,colour\n1,inf,red\n", "column 'x2' of new.csv holds an infinite number"),
    ],
)
def test_tables_that_do_not_fit(tmp_path, trained, content, message):
    (tmp_path / "new.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_new(tmp_path / "new.csv", trained.schema)


def test_missing_values_are_allowed_where_training_had_them(tmp_path):
    trained = load(generate.write_table(tmp_path / "a.csv", features=2, missing=9), missing="mean")
    (tmp_path / "new.csv").write_text("x1,x2\n,7\n")
    x, _ = read_new(tmp_path / "new.csv", saved(trained.schema))
    assert trained.normalisation(x)[0, 0] == 0


def test_missing_values_are_an_error_where_training_allowed_none(tmp_path):
    trained = load(generate.write_table(tmp_path / "a.csv", features=2), missing="error")
    (tmp_path / "new.csv").write_text("x1,x2\n1,\n")
    with pytest.raises(ValueError, match="column 'x2' of new.csv misses 1 values"):
        read_new(tmp_path / "new.csv", saved(trained.schema))


KINDS = "id;size;zone;when;yes;colour;y\n" + "".join(
    f"A{i * 31};{i},5;{i % 3};{1 + i % 28}.{1 + i % 12}.2023;{'ja' if i % 2 else 'nein'};"
    f"{['rot', 'grün', ''][i % 3]};{i},25\n"
    for i in range(60)
)


@pytest.fixture
def kinds(tmp_path):
    (tmp_path / "train.csv").write_text(KINDS)
    return load(tmp_path / "train.csv", categories=["zone"])


def test_what_was_learnt_is_repeated(tmp_path, kinds):
    """One row at a time, in another order of columns, from CSV and Parquet: always the numbers of training."""
    x, y = read_new(tmp_path / "train.csv", saved(kinds.schema))
    rows = [line.split(";") for line in KINDS.splitlines()]
    for number in (0, 1, 7, 30):
        order = np.random.RandomState(number).permutation(7)
        lines = [";".join(np.array(row)[order]) for row in (rows[0], rows[number + 1])]
        (tmp_path / "one.csv").write_text("\n".join(lines) + "\n")
        one, target = read_new(tmp_path / "one.csv", saved(kinds.schema))
        assert torch.equal(one.nan_to_num(-1), x[number : number + 1].nan_to_num(-1)) and target[0] == y[number]
    table = pyarrow.csv.read_csv(tmp_path / "train.csv", parse_options=pyarrow.csv.ParseOptions(delimiter=";"))
    typed = {name: table[name].to_pylist() for name in table.column_names}
    typed["size"] = [float(value.replace(",", ".")) for value in typed["size"]]
    typed["when"] = [datetime.datetime.strptime(value, "%d.%m.%Y") for value in typed["when"]]
    typed["yes"] = [value == "ja" for value in typed["yes"]]
    typed["colour"] = [value or None for value in typed["colour"]]
    pyarrow.parquet.write_table(pyarrow.table(typed), tmp_path / "new.parquet")
    again, _ = read_new(tmp_path / "new.parquet", saved(kinds.schema))
    assert torch.equal(again.nan_to_num(-1), x.nan_to_num(-1))


def test_the_same_values_written_otherwise(tmp_path, kinds):
    (tmp_path / "a.csv").write_text("size;zone;when;yes;colour\n1234,5;1;5.3.2024;ja;rot\n")
    (tmp_path / "b.csv").write_text("size,zone,when,yes,colour\n1234.5,1.0,2024-03-05,yes,rot\n")
    assert torch.equal(*(read_new(tmp_path / name, kinds.schema)[0] for name in ("a.csv", "b.csv")))


def test_unseen_categories_are_counted(tmp_path, kinds):
    text = "id;size;zone;when;yes;colour\nX1;1,5;1;5.3.2024;ja;lila\nX2;;9;5.3.2024;vielleicht;lila\nX3;2;1;;ja;\n"
    (tmp_path / "new.csv").write_text(text)
    rows = read_rows(tmp_path / "new.csv", kinds.schema, keep=["size"])
    assert rows.unseen == {"zone": 1, "yes": 1, "colour": 2}
    assert rows.kept == {"id": ["X1", "X2", "X3"], "size": ["1,5", None, "2"]}
    (strange, filled) = rows.notes
    assert "1 in 'zone' ('9'), 1 in 'yes' ('vielleicht'), 2 in 'colour' ('lila')" in strange
    assert "1 in 'size', of which training had none, 1 in 'when', of which training had none, 1 in 'colour'" in filled
    assert kinds.normalisation(rows.x).isfinite().all()
    with pytest.raises(ValueError, match="has no column 'weight' to keep; it has id, size"):
        read_rows(tmp_path / "new.csv", kinds.schema, keep=["weight"])


def test_texts_among_numbers_that_are_categories(tmp_path):
    rows = "".join(f"{'A' if i % 30 == 0 else i % 3}.0,{i}.5\n".replace("A.0", "A") for i in range(60))
    (tmp_path / "train.csv").write_text("zone,y\n" + rows)
    schema = saved(load(tmp_path / "train.csv", categories=["zone"], test=0, valid=0).schema)
    assert schema.columns[0].categories == ("0", "1", "2", "A")
    (tmp_path / "new.csv").write_text("zone\n1\nA\nB\n2.0\n")
    found = read_rows(tmp_path / "new.csv", schema)
    assert found.x.tolist() == [[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0]]
    assert found.unseen == {"zone": 1}


def test_yes_and_no_may_be_1_and_0(tmp_path, kinds):
    head = "size;zone;when;yes;colour\n"
    (tmp_path / "a.csv").write_text(head + "1;1;5.3.2024;ja;rot\n1;1;5.3.2024;nein;rot\n")
    (tmp_path / "b.csv").write_text(head + "1;1;5.3.2024;1;rot\n1;1;5.3.2024;0;rot\n")
    assert torch.equal(*(read_new(tmp_path / name, kinds.schema)[0] for name in ("a.csv", "b.csv")))


def test_columns_of_another_kind(tmp_path, kinds):
    date = datetime.datetime(2024, 1, 1)
    table = {"size": [date], "zone": ["1"], "when": [5.0], "yes": [date], "colour": ["rot"]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "new.parquet")
    with pytest.raises(ValueError) as error:
        read_new(tmp_path / "new.parquet", kinds.schema)
    for text in ("'size' of new.parquet holds dates where training had numbers", "'when' of new.parquet holds numbers",
                 "'yes' of new.parquet holds dates where training had yes or no"):  # fmt: skip
        assert text in str(error.value)


def test_rows_without_a_target(tmp_path, kinds):
    (tmp_path / "new.csv").write_text("id;size;zone;when;yes;colour;y\nX1;1;1;;ja;rot;1,5\nX2;2;1;;ja;rot;\n")
    assert read_new(tmp_path / "new.csv", kinds.schema)[1] is None
    rows = read_rows(tmp_path / "new.csv", kinds.schema, targets="needed")
    assert rows.y.tolist() == [1.5] and len(rows.x) == 1 and rows.kept["id"] == ["X1"]
    assert "1 of 2 rows of new.csv were left out, as they have no 'y'" in rows.notes
    (tmp_path / "new.csv").write_text("id;size;zone;when;yes;colour;y\nX1;1;1;;ja;rot;much\n")
    assert read_rows(tmp_path / "new.csv", kinds.schema, targets="ignored").y is None
    with pytest.raises(ValueError, match="the target 'y' of new.csv holds 'much'"):
        read_rows(tmp_path / "new.csv", kinds.schema, targets="needed")


def test_options_of_the_file_are_remembered(tmp_path):
    (tmp_path / "a.csv").write_text("".join(f"{2 * i};{i % 7};{i + 0.5}\n" for i in range(30)))
    schema = load(tmp_path / "a.csv", header=False).schema
    (tmp_path / "new.csv").write_text("1;2\n3;4\n")
    assert read_new(tmp_path / "new.csv", saved(schema))[0].tolist() == [[1, 2], [3, 4]]


def test_classes_of_the_target(tmp_path):
    schema = load(generate.write_table(tmp_path / "a.csv", features=1, task="classification")).schema
    (tmp_path / "new.csv").write_text("x1,y\n1,low\n2,high\n")
    assert read_new(tmp_path / "new.csv", schema)[1].tolist() == [1, 0]
    (tmp_path / "new.csv").write_text("x1,y\n1,low\n2,middle\n")
    with pytest.raises(ValueError, match="the target 'y' of new.csv holds 'middle', which training did not have"):
        read_new(tmp_path / "new.csv", schema)


def test_arrays(tmp_path):
    schema = load("digits").schema
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 1, 8, 8), np.float32), y=np.array([3, 4]))
    x, y = read_new(tmp_path / "new.npz", schema)
    assert x.shape == (2, 1, 8, 8) and y.tolist() == [3, 4]
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 1, 9, 8)))
    with pytest.raises(ValueError, match=r"has inputs of shape \(1, 9, 8\), but the network takes \(1, 8, 8\)"):
        read_new(tmp_path / "new.npz", schema)
    np.savez(tmp_path / "new.npz", x=np.zeros((1, 8, 8), np.uint8), y=np.array([10]))
    with pytest.raises(ValueError, match="from 0 to 9, but the one at position 0 is 10"):
        read_new(tmp_path / "new.npz", schema)
    np.savez(tmp_path / "new.npz", z=np.zeros(1))
    with pytest.raises(ValueError, match="new.npz lacks the array 'x'; it holds z"):
        read_new(tmp_path / "new.npz", schema)


def test_texts(tmp_path):
    data = generate.dataset("imdb", length=6)
    word = data.schema.vocabulary[0]
    (tmp_path / "new.txt").write_text(f"{word.upper()}, unheard!\n{word}\n")
    x, y = read_new(tmp_path / "new.txt", saved(data.schema))
    assert y is None and x.tolist() == [[1, 4, 2, 0, 0, 0], [1, 4, 0, 0, 0, 0]]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_texts_in_any_encoding_keep_their_lines(encoding, tmp_path):
    data = generate.dataset("imdb", length=6)
    word = data.schema.vocabulary[0]
    (tmp_path / "new.txt").write_bytes(f"{word}\r\ncaf\u00e9 {word}\r\n\f{word}".encode(encoding))
    rows = read_rows(tmp_path / "new.txt", saved(data.schema))
    assert rows.x.tolist() == [[1, 4, 0, 0, 0, 0], [1, 2, 4, 0, 0, 0], [1, 2, 0, 0, 0, 0]]
    assert ("Windows-1252" in " ".join(rows.notes)) == (encoding == "cp1252")


def test_a_text_that_is_cut_off_is_named(tmp_path):
    (tmp_path / "new.txt").write_bytes("gut".encode("utf-16")[:-1])
    with pytest.raises(ValueError, match="new.txt cannot be read as text .*; save it as UTF-8"):
        read_rows(tmp_path / "new.txt", saved(generate.dataset("imdb", length=6).schema))


def test_texts_without_a_known_word_are_counted(tmp_path):
    data = generate.dataset("imdb", length=6)
    (tmp_path / "new.txt").write_text(f"{data.schema.vocabulary[0]}\n\nunheard!\n")
    rows = read_rows(tmp_path / "new.txt", saved(data.schema))
    assert len(rows.x) == 3
    assert rows.notes == ("2 of 3 texts of new.txt hold no word that training knew; predictions for them mean nothing",)


def test_files_of_another_kind(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(ValueError, match="cannot read a.csv; pass an image, a folder of images or an NPZ file with x"):
        read_new(tmp_path / "a.csv", load("digits").schema)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_new(tmp_path / "b.csv", load("digits").schema)


def test_new_rows_without_names_cannot_be_told_apart(tmp_path):
    (tmp_path / "a.csv").write_text("x,z,y\n" + "".join(f"{i},{i % 4},{i}.5\n" for i in range(40)))
    schema = load(tmp_path / "a.csv").schema
    (tmp_path / "new.csv").write_text("1,2\n3,4\n")
    with pytest.raises(ValueError, match="holds numbers instead of column names; add a line of names$"):
        read_rows(tmp_path / "new.csv", schema)
