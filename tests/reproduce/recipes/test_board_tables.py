"""The board of tables: who is run on which of them."""

import pytest

from leanbayes.board.contender import Contender
from leanbayes.reproduce import Run
from leanbayes.reproduce.recipe import recipes
from leanbayes.reproduce.recipes import board_tables

SETTINGS = recipes()["board-tables"].presets["smoke"] | {"contenders": ("default", "random-forest", "slow")}


@pytest.mark.parametrize(("device", "most", "is_run"), [("cpu", 10, False), ("cuda", 10, True), ("cpu", 500, True)])
def test_what_takes_hours_on_a_cpu_is_left_to_a_gpu_on_long_tables(device, most, is_run, tmp_path, monkeypatch):
    forest = board_tables.CONTENDERS["random-forest"]
    slow = Contender("slow", regress=forest.regress, classify=forest.classify, most_rows_on_cpu=most)
    monkeypatch.setattr(board_tables, "CONTENDERS", board_tables.CONTENDERS | {"slow": slow})
    asked = []

    def scores(run, kind, table, name, number):
        asked.append(name)
        return dict.fromkeys(("rmse", "log density", "coverage", "seconds", "nll", "accuracy", "ece"), 1.0)

    monkeypatch.setattr(board_tables, "_scores", scores)
    run = Run("board-tables", "smoke", SETTINGS, (0,), tmp_path, progress=False, device=device)
    outcome = board_tables.measure(run)
    assert ("slow" in asked) == is_run and "random-forest" in asked
    noted = any(note.startswith("slow is run on tables of up to 10 training rows on a CPU") for note in run.notes)
    assert noted != is_run
    assert {row.name for row in outcome.rows} >= {"random forest"}
