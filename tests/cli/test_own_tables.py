"""A messy file of one's own, from `compare` to `predict`, in commands without flags."""

import csv
import html
import json
import shlex

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from leanbayes.cli import main
from leanbayes.data import load
from tests.cli.commands import answer, failure

SMALL = ["--budget", "1", "--hidden", "8", "--samples", "4", "--device", "cpu"]


def lines(rows, seed=0):
    """Customers with umlauts, decimal commas, dates, gaps, ids, and yes or no at the end."""
    random = np.random.RandomState(seed)
    for i in range(rows):
        size, active = random.normal(80, 20), random.rand() < 0.6
        leaves = "ja" if (size - 80) / 20 + active + random.normal(0, 0.5) > 0.5 else "nein"
        cells = [f"K{100 + 7 * i}", random.choice(["Mühlweg", "Am Bach", ""]), f"{size:.1f}".replace(".", ",")]
        cells += [f"{random.randint(1, 29):02d}.{random.randint(1, 13):02d}.2023", "ja" if active else "nein", leaves]
        yield cells


HEAD = ["Kunden-Nr", "Straße", "Größe", "Eintritt", "Aktiv", "Kündigt"]


def write(path, rows, encoding="cp1252"):
    path.write_bytes("\r\n".join(";".join(row) for row in [HEAD, *rows]).encode(encoding))
    return path


@pytest.fixture(scope="module")
def customers(tmp_path_factory):
    """A messy file and the folder of a comparison on it, made by one command without a flag about the data."""
    folder = tmp_path_factory.mktemp("customers")
    path = write(folder / "kunden.csv", list(lines(80)))
    words = ["compare", str(path), *SMALL, "--method", "plain", "rank1", "--out", str(folder / "out")]
    assert main(words) == 0
    return folder


def test_the_notes_say_what_was_done(customers):
    notes = " ".join(json.loads((customers / "out" / "compare.json").read_text())["notes"])
    for text in ("Windows-1252", "'Kündigt', the last column", "dates: 'Eintritt'", "'Kunden-Nr' (names"):
        assert text in notes


def test_a_column_that_is_the_target_is_named_with_the_flag_that_leaves_it_out(tmp_path, capsys):
    random = np.random.RandomState(0)
    rows = [f"{random.randn():.3f},{price},{price * 0.9:.2f}" for price in random.lognormal(5, 1, 80).round(2)]
    (tmp_path / "a.csv").write_text("\n".join(["size,price,shop's price [EUR]", *rows]) + "\n")
    words = ["compare", tmp_path / "a.csv", "--target", "price", *SMALL, "--method", "plain"]
    leak = "shop's price [EUR]"
    said = (
        f"column {leak!r} is an exact function of the target 'price'; "
        f"if it is not known when you predict, leave it out with --drop {shlex.quote(leak)}"
    )
    assert said in answer(capsys, *words, "--out", tmp_path / "one")["notes"]
    report = html.unescape((tmp_path / "one" / "report.html").read_text())
    assert f"<li>C{said[1:]}.</li>" in report
    left = shlex.split(said)[-2:]
    assert "exact function" not in " ".join(answer(capsys, *words, *left, "--out", tmp_path / "two")["notes"])


def test_what_was_held_out_is_measured_by_default(customers, capsys):
    stored = json.loads((customers / "out" / "compare.json").read_text())
    plain = {name: values[0] for name, values in stored["methods"][0]["metrics"].items()}
    found = answer(capsys, "evaluate", customers / "out", "--method", "plain", "--samples", "4")
    assert (found["examples"], found["left_out"]) == (16, 64) and found["metrics"] == pytest.approx(plain, rel=1e-4)
    again = answer(capsys, "evaluate", customers / "out" / "plain", "--samples", "4")
    assert again["metrics"] == found["metrics"] and again["data"] == "kunden.csv"


def test_the_recommended_method_is_taken(customers, capsys):
    for command in (["evaluate"], ["predict", customers / "kunden.csv"]):
        capsys.readouterr()
        assert main([command[0], str(customers / "out"), *map(str, command[1:]), "--samples", "2"]) == 0
        shown = "".join(capsys.readouterr())
        assert "recommends" in shown and "; choose another with --method: " in shown
    assert main(["summary", str(customers / "out"), "--method", "rank1"]) == 0
    assert "Rank1" in capsys.readouterr().out
    assert "did you mean rank1?" in failure(capsys, "evaluate", customers / "out", "--method", "rank2")
    text = failure(capsys, "evaluate", customers / "out" / "rank1" / "seed0", "--method", "rank1")
    assert "--method chooses one of the methods of a comparison" in text
    assert "holds no trained model" in failure(capsys, "summary", customers)


def test_a_single_method_is_not_recommended(tmp_path, capsys):
    path = write(tmp_path / "a.csv", list(lines(60)))
    assert main(["compare", str(path), *SMALL, "--method", "plain", "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    notes = answer(capsys, "evaluate", tmp_path / "out", "--samples", "2")["notes"]
    assert notes[0] == "this is the plain network, the only method of the comparison"


def test_no_method_is_said_to_be_recommended_where_none_is(tmp_path, capsys):
    path = write(tmp_path / "few.csv", list(lines(30)))
    words = ["compare", str(path), *SMALL, "--method", "plain", "rank1", "--out", str(tmp_path / "out")]
    assert main(words) == 0 and "No answer yet: 6 test examples" in capsys.readouterr().out
    notes = answer(capsys, "evaluate", tmp_path / "out", "--samples", "2")["notes"]
    assert notes[0].startswith("this is the plain network; the report recommends no method yet; choose another")


def test_a_file_that_is_gone_is_asked_for(customers, tmp_path, capsys):
    path = write(tmp_path / "other.csv", list(lines(40)))
    assert main(["fit", str(path), *SMALL, "--method", "plain", "--out", str(tmp_path / "out")]) == 0
    path.unlink()
    assert "other.csv, which is gone; name data" in failure(capsys, "evaluate", tmp_path / "out")


@pytest.mark.parametrize("ending", ["csv", "parquet", "json", "npz"])
def test_ids_stay_beside_their_predictions(customers, tmp_path, capsys, ending):
    rows = list(lines(12, seed=1))
    new, out = write(tmp_path / "new.csv", rows, "utf-8"), tmp_path / f"answers.{ending}"
    words = ["predict", str(customers / "out"), str(new), "--method", "rank1", "--keep", "Größe", "--out", str(out)]
    found = answer(capsys, *words)
    assert found["rows"] == 12 and found["unseen"] == {}
    if ending == "csv":
        table = list(csv.DictReader(out.read_text("utf-8").splitlines()))
        columns = {name: [row[name] for row in table] for name in table[0]}
    elif ending == "parquet":
        columns = pyarrow.parquet.read_table(out).to_pydict()
    else:
        columns = json.loads(out.read_text()) if ending == "json" else dict(np.load(out))
    assert list(columns)[:3] == ["Kunden-Nr", "Größe", "label"]
    assert list(columns["Kunden-Nr"]) == [row[0] for row in rows] and list(columns["Größe"]) == [row[2] for row in rows]


def test_parquet_in_gives_what_csv_gives(customers, tmp_path, capsys):
    rows = list(lines(12, seed=1))
    new = write(tmp_path / "new.csv", rows)
    columns = dict(zip(HEAD[:-1], map(list, zip(*rows))))
    columns["Größe"] = [float(value.replace(",", ".")) for value in columns["Größe"]]
    columns["Aktiv"] = [value == "ja" for value in columns["Aktiv"]]
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "new.parquet")
    words = ["predict", customers / "out", "--method", "rank1"]
    from_csv, from_parquet = (answer(capsys, *words, path) for path in (new, tmp_path / "new.parquet"))
    assert from_csv == from_parquet


def test_unseen_categories_are_counted(customers, tmp_path, capsys):
    rows = list(lines(5, seed=1))
    for row in rows[:2]:
        row[1] = "Neue Gasse"
    out = tmp_path / "a.csv"
    words = ["predict", customers / "out", write(tmp_path / "new.csv", rows), "--method", "plain", "--out", out]
    found = answer(capsys, *words)
    assert found["unseen"] == {"Straße": 2}
    assert any("2 in 'Straße' ('Neue Gasse')" in note for note in found["notes"])


def test_every_problem_and_the_command_that_solves_it(tmp_path, capsys):
    rows = "".join(f"{'' if i % 5 == 2 else i * 1.5},{'inf' if i == 3 else i % 3},{i}.5\n" for i in range(30))
    (tmp_path / "a.csv").write_text("size in m,b,y\n" + rows)
    words = ["fit", tmp_path / "a.csv", "--missing", "error", "--method", "plain", *SMALL, "--out", tmp_path / "out"]
    line = failure(capsys, *words)
    assert "a.csv has 2 problems: (1) column 'b' of a.csv holds an infinite number in row 4, which can" in line
    command = shlex.split(line.split("; run: ")[1])
    assert command[0] == "leanbayes" and main(command[1:]) == 0


def test_the_target_is_asked_for_where_it_is_not_clear(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("target,label,x\n" + "".join(f"{i}.5,{i % 2},{i * 0.3:.1f}\n" for i in range(30)))
    line = failure(capsys, "compare", tmp_path / "a.csv", "--out", tmp_path / "out")
    assert "'target', 'label' all sound like one; pass --target NAME; run: leanbayes compare" in line
    assert line.endswith("--target NAME") and not (tmp_path / "out").exists()


def test_files_without_names_and_with_other_gaps(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("".join(f"{i * 0.5},{'unknown' if i % 4 else i},{i}.5\n" for i in range(40)))
    words = ["fit", tmp_path / "a.csv", *SMALL, "--method", "plain", "--out", tmp_path / "out"]
    line = failure(capsys, *words)
    assert "pass --no-header; run: leanbayes fit" in line and line.endswith(" --no-header")
    assert main([*map(str, words), "--no-header", "--na", "unknown"]) == 0
    assert "missing values were filled and flagged: 30 in 'column 2'" in capsys.readouterr().out


def test_class_weights(tmp_path, capsys):
    """A rare class counts as much as the frequent one."""
    random = np.random.RandomState(0)
    x = random.standard_normal((400, 2))
    rare = x[:, 0] + random.standard_normal(400) > 1.9
    (tmp_path / "a.csv").write_text(
        "a,b,label\n" + "".join(f"{a:.4f},{b:.4f},{'yes' if r else 'no'}\n" for (a, b), r in zip(x, rare))
    )
    weights = load(tmp_path / "a.csv").balanced().class_weights
    counts = np.bincount(load(tmp_path / "a.csv").train.y)
    np.testing.assert_allclose(weights, counts.sum() / (2 * counts))
    found = {}
    for name, words in {"plain": [], "weighted": ["--class-weight", "balanced"]}.items():
        fit = ["fit", tmp_path / "a.csv", "--budget", "60", *SMALL[2:], "--method", "plain", "--out", tmp_path / name]
        answer(capsys, *fit, *words)
        found[name] = answer(capsys, "predict", tmp_path / name, tmp_path / "a.csv")["p_yes"]
    # A softmax that is fitted gives each class its share on average, here of the weights.
    for name, weight in {"plain": np.ones(2), "weighted": np.array(weights)}.items():
        own = weight[rare.astype(int)]
        assert np.average(found[name], weights=own) == pytest.approx(np.average(rare, weights=own), abs=0.1)
    assert "it had --class-weight balanced instead of none" in failure(capsys, *fit, "--resume")


def test_class_weights_of_a_regression(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("a,y\n" + "".join(f"{i * 0.7:.1f},{i}.5\n" for i in range(40)))
    words = ["fit", tmp_path / "a.csv", *SMALL, "--class-weight", "balanced", "--out", tmp_path / "out"]
    assert "is a regression, whose examples have no classes to weight" in failure(capsys, *words)


def test_a_column_of_text_asked_for_as_numbers(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("x,z,y\n" + "".join(f"{i},a{i % 3},{i}.5\n" for i in range(40)))
    words = ["fit", tmp_path / "a.csv", *SMALL, "--method", "plain", "--out", tmp_path / "out", "--numbers", "z"]
    line = failure(capsys, *words)
    assert "; pass no --numbers; run: " in line and main(shlex.split(line.split("; run: ")[1])[1:]) == 0


def test_columns_named_like_flags_can_be_dropped(tmp_path, capsys):
    rows = "".join(f"{i},{i % 7},{i % 5},{i}.5\n" for i in range(40))
    (tmp_path / "a.csv").write_text("--seeds,-h,b,y\n" + rows)
    words = ["fit", tmp_path / "a.csv", *SMALL, "--method", "plain", "--drop=--seeds", "--drop=-h"]
    assert main([*map(str, words), "--out", str(tmp_path / "out")]) == 0
    assert "a.csv: 1 input, regression; 26 for training, 6 for validation, 8 for testing" in capsys.readouterr().out


def test_a_separator_is_one_character(tmp_path, capsys):
    assert main(["fit", "a.csv", "--separator", ";;"]) == 2
    assert "must be a single character or 'tab', not ';;'" in capsys.readouterr().err
    (tmp_path / "a.csv").write_text("x,z\ty\n" + "".join(f"{i},{i % 3}\t{i}.5\n" for i in range(30)))
    words = ["fit", tmp_path / "a.csv", *SMALL, "--method", "plain", "--out", tmp_path / "out", "--separator", "tab"]
    assert main(list(map(str, words))) == 0


def test_figures_are_for_new_groups(tmp_path, capsys):
    lines = [f"P{n % 40:02},{n % 40},{n * 37 % 101},{'yes' if n % 40 % 3 else 'no'}" for n in range(160)]
    (tmp_path / "a.csv").write_text("\n".join(["patient,age,x,ill", *lines]) + "\n")
    quick = ["--budget", "1", "--hidden", "4", "--samples", "2", "--device", "cpu"]
    words = ["compare", str(tmp_path / "a.csv"), *quick, "--method", "plain", "mc-dropout", "--out"]
    assert main([*words, str(tmp_path / "out"), "--group-by", "patient"]) == 0
    shown = capsys.readouterr().out
    assert "note: no two parts share a value of 'patient': 26 for training, 6 for validation, 8 for testing;" in shown
    result = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert (result["examples"]["test"], result["examples"]["test_groups"]) == (32, 8)
    assert "No two parts share a value of &#x27;patient&#x27;" in (tmp_path / "out" / "report.html").read_text()
    model = str(tmp_path / "out" / "plain" / "seed0")
    measured = ["--samples", "2", "--device", "cpu"]

    def notes(*given):
        assert main(["evaluate", model, *given, *measured]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]

    assert "note: the figures are for values of 'patient' that training has not seen" in notes()
    # New rows: three of one that training has, if not more, and one of a patient whom nobody knows.
    fresh = [f"P{n:02},{n},{n + 500},yes" for n in range(40)] + ["P99,3,17,no"]
    (tmp_path / "b.csv").write_text("\n".join(["patient,age,x,ill", *fresh]) + "\n")
    (note,) = [note for note in notes(str(tmp_path / "b.csv")) if "patient" in note]
    assert note == (
        "note: 32 of the 41 rows are of a 'patient' that training has seen (32 of 41 values); figures on them say "
        "nothing about new ones"
    )
    (tmp_path / "c.csv").write_text("age,x,ill\n5,900,yes\n6,901,no\n")
    assert (
        "note: without a column 'patient', it cannot be known which of these rows are of one seen in training"
        in notes(str(tmp_path / "c.csv"))
    )
    (tmp_path / "d.csv").write_text("patient,age,x\nP99,900,1\nP01,901,2\n")
    assert main(["predict", model, str(tmp_path / "d.csv"), *measured]) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()[-3:]] == ["patient", "P99", "P01"]


def test_groups_and_an_order_do_not_go_together(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("g,d,y\n" + "".join(f"{n % 9},{n},{n % 2}\n" for n in range(90)))
    words = ["fit", str(tmp_path / "a.csv"), "--group-by", "g", "--order-by", "d", "--out", str(tmp_path / "out")]
    assert main(words) == 1
    assert "--group-by g tests on whole groups, and --order-by d on the last rows; name one" in capsys.readouterr().err
