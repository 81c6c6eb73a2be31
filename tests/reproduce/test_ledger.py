"""The list of published results, and of those that can be run."""

import json

import pytest

from leanbayes.reproduce import BEYOND, LEDGER, PRESETS, SYSTEMS, recipe, register, status
from tests.reproduce.conftest import make_recipe


def test_every_paper_is_there():
    counts = {system: sum(id.startswith(f"{system}-") for id in LEDGER) for system in SYSTEMS}
    assert counts == {"vn": 16, "emp": 9, "r1": 11, "kt": 11}


@pytest.mark.parametrize("id, one", recipe.recipes().items())
def test_recipes_are_of_the_ledger(id, one):
    assert id == one.id and (id in LEDGER) != (id in BEYOND)
    assert set(one.presets) == set(one.seeds) == set(PRESETS)
    json.dumps(dict(one.presets["paper"]))
    assert len({tuple(settings) for settings in one.presets.values()}) == 1, "presets have the same settings"


def test_no_recipe_is_broken():
    assert recipe.broken() == {}


def test_an_id_is_given_once(only):
    only(make_recipe())
    with pytest.raises(ValueError, match="'vn-toy' is already registered"):
        register(make_recipe())


def test_a_module_that_cannot_be_imported_breaks_no_other(monkeypatch, tmp_path):
    from leanbayes.reproduce import recipes as package

    monkeypatch.setattr(recipe, "_BROKEN", {})
    monkeypatch.setitem(LEDGER, "kt-new", "a row whose recipe is broken")
    (tmp_path / "kt_new.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    assert "vn-kl" in recipe.recipes()
    assert list(recipe.broken()) == ["kt-new"]
    entry = next(entry for entry in status(tmp_path) if entry["id"] == "kt-new")
    assert entry["status"] == "broken" and "a_module_that_is_not_there" in entry["gap"]


def test_status_comes_from_the_result_files(only, tmp_path):
    only(make_recipe("vn-toy"), make_recipe("vn-kl"))
    result = {"verdict": "falls short", "preset": "short", "date": "2030-01-01", "gap": "off by 3", "rows": []}
    (tmp_path / "vn-toy.json").write_text(json.dumps(result))
    entries = {entry["id"]: entry for entry in status(tmp_path)}
    assert list(entries) == [*LEDGER, *BEYOND]
    assert [id for id, entry in entries.items() if "beyond" in entry] == list(BEYOND)
    assert entries["vn-toy"] == {
        "id": "vn-toy", "title": LEDGER["vn-toy"], "status": "falls short", "preset": "short", "date": "2030-01-01",
        "gap": "off by 3",
    }  # fmt: skip
    assert entries["vn-kl"]["status"] == "ready" and entries["vn-mnist"]["status"] == "planned"
    (tmp_path / "vn-toy.json").write_text(json.dumps(result | {"notes": ["generated images"]}))
    assert next(entry for entry in status(tmp_path) if entry["id"] == "vn-toy")["generated"] is True


@pytest.mark.parametrize("text", ["{", "[]", '{"verdict": "holds"}'])
def test_a_file_that_is_no_result_hides_no_other(only, tmp_path, text):
    only(make_recipe("vn-toy"))
    result = {"verdict": "holds", "preset": "short", "date": "2030-01-01", "gap": ""}
    (tmp_path / "vn-toy.json").write_text(text)
    (tmp_path / "vn-kl.json").write_text(json.dumps(result))
    entries = {entry["id"]: entry for entry in status(tmp_path)}
    assert entries["vn-kl"]["status"] == "holds" and len(entries) == len(LEDGER) + len(BEYOND)
    assert entries["vn-toy"]["status"] == "unusable"
    assert entries["vn-toy"]["gap"].startswith(f"{tmp_path / 'vn-toy.json'} is no result")
