"""Rows that a model was trained on are not measured again, and a run does not go on with other rows than it began."""

import json
import re
import shutil

import numpy as np
import pytest

from leanbayes.cli import main
from leanbayes.compare import compare
from leanbayes.data import generate, load
from leanbayes.training.engine import _Training
from tests.cli.commands import answer

SMALL = ["--budget", "1", "--hidden", "4", "--samples", "4", "--device", "cpu"]
PLAIN = ["--method", "plain"]
MEASURE = ["--samples", "4", "--device", "cpu"]


def failure(capsys, *words) -> str:
    """The one line that a command that fails writes."""
    capsys.readouterr()
    assert main(list(map(str, words))) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("leanbayes: error: ")
    return line


def fit(capsys, data, out, *words) -> dict:
    return answer(capsys, "fit", data, *SMALL, *PLAIN, "--out", out, *words)


def evaluate(capsys, model, data, *words) -> dict:
    return answer(capsys, "evaluate", model, data, *MEASURE, *words)


def counts(found) -> tuple:
    """Rows that were measured, those of them that the model had seen, and rows that were left out."""
    return found["examples"], found["seen_in_training"], found["left_out"]


@pytest.fixture
def uci(tmp_path):
    """A UCI set of 60 rows, 6 of them for the test of each split."""
    folder = generate.write_uci(tmp_path, "yacht", rows=60, features=3)
    return {
        (part, split): set(np.loadtxt(folder / f"index_{part}_{split}.txt", int).tolist())
        for part in ("train", "test")
        for split in range(3)
    }


def write_csv(path, rows, target="y"):
    names = [f"x{number}" for number in range(len(rows[0]) - 1)]
    lines = [",".join([*names, target]), *(",".join(map(repr, map(float, row))) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def some_rows(count=60, seed=0):
    x, y = generate.regression(count, 3, seed=seed)
    return np.column_stack([x, y])


def test_28_rows_seen_in_training_are_not_measured_again(uci, tmp_path, capsys):
    data = ["uci-yacht", "--root", tmp_path]
    trained = answer(capsys, "fit", *data, "--split", 2, *SMALL, *PLAIN, "--out", tmp_path / "uci")
    # A published split: its own test part, without being told which.
    found = evaluate(capsys, tmp_path / "uci", *data)
    assert found["metrics"] == pytest.approx(trained["metrics"], rel=1e-4)
    assert counts(found) == (6, 0, 0)
    # Another split: of its test part, the rows that were not trained on.
    shared = len(uci["test", 0] & uci["train", 2])
    assert 0 < shared < 6
    assert counts(evaluate(capsys, tmp_path / "uci", *data, "--split", 0)) == (6 - shared, 0, shared)
    # A file of one's own: the rows that training held out.
    table = write_csv(tmp_path / "table.csv", some_rows())
    trained = fit(capsys, table, tmp_path / "own")
    found = evaluate(capsys, tmp_path / "own", table)
    assert counts(found) == (12, 0, 48)
    assert found["metrics"] == pytest.approx(trained["metrics"], rel=1e-4)


def test_the_recorded_split_may_be_named(uci, tmp_path, capsys):
    data = ["uci-yacht", "--root", tmp_path]
    answer(capsys, "fit", *data, "--split", 2, *SMALL, *PLAIN, "--out", tmp_path / "model")
    named, silent = (evaluate(capsys, tmp_path / "model", *data, *words) for words in (["--split", 2], []))
    assert named["metrics"] == silent["metrics"]
    assert any("split 2" in note for note in named["notes"])
    assert main(["evaluate", str(tmp_path / "model"), *map(str, data), "--split", "0"]) == 0
    assert "rows were left out" in capsys.readouterr().out


def _parquet(path):
    return generate.write_table(path / "table.parquet", rows=60)


def _arrays(path):
    return generate.write_npz(path / "arrays.npz", rows=60)


def _parts(path):
    x, y = generate.regression(60, 3)
    np.savez(path / "parts.npz", x_train=x[:48], y_train=y[:48], x_test=x[48:], y_test=y[48:])
    return path / "parts.npz"


def _photos(path):
    return generate.write_image_folder(path / "photos", rows=(30, 30), size=(10, 8), parts=None)


@pytest.mark.parametrize(
    ("write", "words"),
    [(_parquet, []), (_arrays, []), (_parts, []), (_photos, ["--size", 8])],
    ids=["parquet", "npz", "npz with parts", "images"],
)
def test_every_file_that_was_trained_on_gives_what_was_held_out(tmp_path, capsys, write, words):
    data = write(tmp_path)
    trained = fit(capsys, data, tmp_path / "model", *words)
    found = evaluate(capsys, tmp_path / "model", data)
    assert counts(found) == (12, 0, 48)
    assert found["metrics"] == pytest.approx(trained["metrics"], rel=1e-4)


def test_options_of_the_training_are_those_of_the_evaluation(tmp_path, capsys):
    data = generate.write_table(tmp_path / "table.csv", rows=60, missing=5)
    dataset = load(data, seed=3, test=0.3, valid=0.2, missing="drop")
    trained = compare(dataset, ["plain"], 1, samples=4, hidden=[4], out=tmp_path / "out", progress=False)
    found = evaluate(capsys, tmp_path / "out" / "plain" / "seed0", data)
    assert counts(found) == (len(dataset.test), 0, len(dataset.train) + len(dataset.valid))
    wanted = {name: values[0] for name, values in trained["methods"][0]["metrics"].items()}
    assert found["metrics"] == pytest.approx(wanted, rel=1e-4)


def test_rows_are_known_wherever_they_stand(tmp_path, capsys):
    rows, fresh = some_rows(), some_rows(5, seed=1)
    fit(capsys, write_csv(tmp_path / "table.csv", rows), tmp_path / "model")
    mixed = np.random.RandomState(0).permutation(np.concatenate([rows, fresh]))
    assert counts(evaluate(capsys, tmp_path / "model", write_csv(tmp_path / "mixed.csv", mixed))) == (17, 0, 48)
    # As numbers of less precision, too.
    np.savez(tmp_path / "mixed.npz", x=mixed[:, :-1].astype(np.float32), y=mixed[:, -1].astype(np.float32))
    assert counts(evaluate(capsys, tmp_path / "model", tmp_path / "mixed.npz")) == (17, 0, 48)
    assert counts(evaluate(capsys, tmp_path / "model", write_csv(tmp_path / "new.csv", fresh))) == (5, 0, 0)


def test_images_are_known_in_another_folder(tmp_path, capsys):
    photos = _photos(tmp_path)
    fit(capsys, photos, tmp_path / "model", "--size", 8)
    more = generate.write_image_folder(tmp_path / "more", rows=(4, 6), size=(10, 8), parts=None, seed=1)
    for number, path in enumerate(sorted(photos.rglob("*.png"))):
        shutil.copy(path, more / path.parent.name / f"copy{number}.png")
    # All are looked at: ten new ones, and the twelve that the training held out.
    assert counts(evaluate(capsys, tmp_path / "model", more)) == (22, 0, 48)


def test_seen_rows_must_be_asked_for(tmp_path, capsys):
    rows = some_rows()
    data = write_csv(tmp_path / "table.csv", rows)
    fit(capsys, data, tmp_path / "model")
    dataset = load(data)
    seen = np.column_stack([dataset.train.x, dataset.train.y])
    known = write_csv(tmp_path / "known.csv", seen)
    line = failure(capsys, "evaluate", tmp_path / "model", known)
    assert re.search(r"all 43 rows of .*known.csv equal .* trained .*; pass .*--include-seen", line)
    found = evaluate(capsys, tmp_path / "model", known, "--include-seen")
    assert counts(found) == (43, 43, 0)
    assert any("43 of the 43 rows" in note for note in found["notes"])
    assert counts(evaluate(capsys, tmp_path / "model", data, "--include-seen")) == (60, 48, 0)
    assert main(["evaluate", str(tmp_path / "model"), str(data), "--include-seen"]) == 0
    assert "48 of the 60 rows were seen in training" in capsys.readouterr().out.replace("\n", " ")


def test_a_run_that_held_nothing_out_has_nothing_to_measure(tmp_path, capsys):
    x, y = generate.regression(40, 3)
    np.savez(tmp_path / "train.npz", x_train=x, y_train=y, x_test=x[:0], y_test=y[:0])
    fit(capsys, tmp_path / "train.npz", tmp_path / "model")
    assert "--include-seen" in failure(capsys, "evaluate", tmp_path / "model", tmp_path / "train.npz")


def test_repeated_rows_of_the_own_test_part_count(tmp_path, capsys):
    data = write_csv(tmp_path / "table.csv", np.tile(some_rows(10), (6, 1)))
    trained = fit(capsys, data, tmp_path / "model")
    found = evaluate(capsys, tmp_path / "model", data)
    assert counts(found) == (12, 12, 48)
    assert found["metrics"] == pytest.approx(trained["metrics"], rel=1e-4)
    assert any("12 of these rows also occur" in note for note in found["notes"])


def test_limited_training_knows_what_it_saw(tmp_path, capsys):
    data = write_csv(tmp_path / "table.csv", some_rows())
    fit(capsys, data, tmp_path / "model", "--limit", 8)
    # The test part is no smaller for it.
    assert evaluate(capsys, tmp_path / "model", data)["examples"] == 12
    copied = write_csv(tmp_path / "copied.csv", np.concatenate([some_rows(), some_rows(1, seed=1)]))
    assert counts(evaluate(capsys, tmp_path / "model", copied)) == (61 - 8 - 5, 0, 8 + 5)


@pytest.mark.parametrize("lost", ["record", "rows"])
def test_older_models_say_that_it_cannot_be_known(uci, tmp_path, capsys, lost):
    data = write_csv(tmp_path / "table.csv", some_rows())
    other = write_csv(tmp_path / "other.csv", some_rows()[::-1])
    fit(capsys, data, tmp_path / "model")
    (tmp_path / "model" / "seen.npy").unlink()
    if lost == "record":
        about = json.loads((tmp_path / "model" / "model.json").read_text())
        del about["seen"]
        (tmp_path / "model" / "model.json").write_text(json.dumps(about))
    found = evaluate(capsys, tmp_path / "model", other)
    assert counts(found) == (60, None, 0)
    assert any("cannot be known" in note for note in found["notes"])
    assert main(["evaluate", str(tmp_path / "model"), str(other)]) == 0
    assert "cannot be known" in capsys.readouterr().out
    # What the record says of the file is enough to find its test part.
    assert evaluate(capsys, tmp_path / "model", data)["examples"] == (60 if lost == "record" else 12)


def test_a_damaged_record_is_one_sentence(tmp_path, capsys):
    data = write_csv(tmp_path / "table.csv", some_rows())
    fit(capsys, data, tmp_path / "model")
    (tmp_path / "model" / "seen.npy").write_bytes(b"\0\1")
    assert "seen.npy or its record" in failure(capsys, "evaluate", tmp_path / "model", data)


def test_a_file_has_no_split(tmp_path, capsys):
    data = write_csv(tmp_path / "table.csv", some_rows())
    fit(capsys, data, tmp_path / "model")
    line = failure(capsys, "evaluate", tmp_path / "model", data, "--split", 1)
    assert "--split 1 chooses a published split" in line
    assert "no data set named 'tabel'" in failure(capsys, "evaluate", tmp_path / "model", "tabel")


def test_a_comparison_of_other_rows_is_not_continued(uci, tmp_path, capsys):
    words = ["compare", "uci-yacht", "--root", tmp_path, *SMALL, "--out", tmp_path / "out", *PLAIN]
    answer(capsys, *words)
    before = (tmp_path / "out" / "compare.json").read_bytes()
    for changed, expected in {
        ("--split", 2): "it had --split 0 instead of 2",
        ("--limit", 5): "it had no limit instead of --limit 5",
    }.items():
        line = failure(capsys, *words, *changed, "--resume")
        assert f"cannot continue with these rows: {expected}; choose another folder" in line
    assert (tmp_path / "out" / "compare.json").read_bytes() == before
    answer(capsys, *words, "--resume")


def test_a_comparison_of_a_file_that_changed_is_not_continued(tmp_path, capsys):
    rows = some_rows(2000)
    data = write_csv(tmp_path / "table.csv", rows)
    words = ["compare", data, *SMALL, "--out", tmp_path / "out", *PLAIN]
    answer(capsys, *words)
    rows[7, 1] += 1
    write_csv(data, rows)
    assert "table.csv has changed since" in failure(capsys, *words, "--resume")


def test_a_comparison_of_other_choices_is_not_continued(tmp_path):
    data = write_csv(tmp_path / "table.csv", some_rows())
    settings = {"out": tmp_path / "out", "progress": False, "hidden": [4], "samples": 2}
    compare(load(data), ["plain"], 1, **settings)
    for changed in ({"seed": 1}, {"valid": 0.2}, {"normalise": "none"}):
        ((name, value),) = changed.items()
        with pytest.raises(OSError, match=f"these rows: it had {name}=.* instead of {value!r};"):
            compare(load(data, **changed), ["plain"], 1, resume=True, **settings)
    without = load(data)
    compare(without, ["plain"], 1, resume=True, **settings)


def test_a_comparison_without_a_record_is_not_continued(tmp_path, capsys):
    words = ["compare", write_csv(tmp_path / "table.csv", some_rows()), *SMALL, "--out", tmp_path / "out", *PLAIN]
    answer(capsys, *words)
    path = tmp_path / "out" / "compare.json"
    stored = json.loads(path.read_text())
    del stored["settings"]["rows"]
    path.write_text(json.dumps(stored))
    assert "it did not record its own" in failure(capsys, *words, "--resume")


def stopped(patch, *words) -> None:
    """Run a command that is interrupted in its second epoch."""
    begin = _Training._begin

    def interrupt(self):
        if self.epoch == 1:
            raise KeyboardInterrupt
        return begin(self)

    with patch.context() as inner:
        inner.setattr(_Training, "_begin", interrupt)
        assert main(list(map(str, words))) == 130


@pytest.mark.parametrize("command", ["fit", "compare"])
def test_an_unfinished_training_of_other_rows_is_not_resumed(uci, tmp_path, capsys, monkeypatch, command):
    out = tmp_path / "out"
    words = [command, "uci-yacht", "--root", tmp_path, *SMALL, "--budget", 3, *PLAIN, "--out", out]
    stopped(monkeypatch, *words)
    line = failure(capsys, *words, "--split", 2, "--resume")
    assert "cannot continue with these rows: it had --split 0 instead of 2; choose another folder" in line
    answer(capsys, *words, "--resume")


def test_a_finished_fit_of_other_rows_is_not_resumed(uci, tmp_path, capsys):
    words = ["fit", "uci-yacht", "--root", tmp_path, *SMALL, *PLAIN, "--out", tmp_path / "out"]
    answer(capsys, *words)
    before = (tmp_path / "out" / "model.json").read_bytes()
    assert "--split 0 instead of 1" in failure(capsys, *words, "--split", 1, "--resume")
    assert (tmp_path / "out" / "model.json").read_bytes() == before
    answer(capsys, *words, "--resume")


def test_seeds_of_other_rows_are_not_returned(uci, tmp_path, capsys):
    words = ["compare", "uci-yacht", "--root", tmp_path, *SMALL, *PLAIN, "--out", tmp_path / "out"]
    answer(capsys, *words)
    # As after a kill within the first method, when some of its seeds are done.
    (tmp_path / "out" / "compare.json").unlink()
    assert "--split 0 instead of 2" in failure(capsys, *words, "--split", 2, "--resume")
