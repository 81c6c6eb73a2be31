"""Rows that a model was trained on are not measured again, and a run does not go on with other rows than it began."""

import json

import numpy as np
import pytest

from leanbayes.cli import main
from leanbayes.compare import compare
from leanbayes.data import generate, load
from leanbayes.training.engine import _Training

SMALL = ["--budget", "1", "--hidden", "4", "--samples", "4", "--device", "cpu"]
PLAIN = ["--method", "plain"]


def answer(capsys, *words) -> dict:
    """What a command that succeeds prints as JSON."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def failure(capsys, *words) -> str:
    """The one line that a command that fails writes."""
    capsys.readouterr()
    assert main(list(map(str, words))) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("leanbayes: error: ")
    return line


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


def test_a_comparison_of_other_rows_is_not_continued(uci, tmp_path, capsys):
    words = ["compare", "uci-yacht", "--root", tmp_path, *SMALL, "--out", tmp_path / "out", *PLAIN]
    answer(capsys, *words)
    before = (tmp_path / "out" / "compare.json").read_bytes()
    for changed, expected in {
        ("--split", 2): "it had --split 0 instead of 2",
        ("--limit", 5): "it had no limit instead of --limit 5",
    }.items():
        line = failure(capsys, *words, *changed, "--resume")
        assert f"cannot go on with these rows: {expected}; choose another folder" in line
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
    assert "cannot go on with these rows: it had --split 0 instead of 2; choose another folder" in line
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
