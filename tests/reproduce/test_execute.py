"""A recipe becomes a result file and a picture, and never replaces a better result unasked."""

import json
import time

import pytest

from leanbayes.reproduce import LegOver, Outcome, Recipe, Row, execute
from leanbayes.training import OutputError
from tests.reproduce.conftest import make_recipe, quick

FIELDS = [
    "id", "title", "command", "preset", "settings", "seeds", "device", "versions", "date", "seconds", "legs",
    "rows", "checks", "verdict", "gap", "notes", "figure",
]  # fmt: skip


def double(run, seed):
    return 2 * seed


def by_processes(run):
    return Outcome([Row("seed", "double", None, run.each_seed(double))])


@pytest.fixture
def folders(tmp_path):
    return {"work": tmp_path / "work", "out": tmp_path / "out"}


def test_the_file_has_everything(folders):
    result = execute(make_recipe(), settings={"limit": 0.4}, command="the command", **folders)
    stored = json.loads((folders["out"] / "vn-toy.json").read_text())
    assert stored == result and list(stored) == FIELDS
    assert stored["settings"] == {"epochs": 2, "limit": 0.4} and stored["seeds"] == [0, 1]
    assert stored["rows"] == [{"name": "first", "metric": "accuracy", "published": 0.9, "measured": [0.5, 0.6]}]
    assert (stored["verdict"], stored["gap"], stored["notes"]) == ("falls short", "it is not below", ["a note"])
    assert set(stored["versions"]) == {"leanbayes", "torch", "python"} and stored["command"] == "the command"


def test_given_seeds_take_the_place_of_the_presets(folders):
    assert execute(make_recipe(), seeds=[3], **folders)["rows"][0]["measured"] == [0.8]


@pytest.mark.parametrize(
    "seeds, message",
    [
        ([0, 1, 0], "the seed 0 was given twice"),
        ([-1], "from 0 to 2\\*\\*63 - 1, not -1"),
        ([2**63], "from 0 to 2\\*\\*63 - 1, not 9223372036854775808"),
        ([0.5], "whole numbers .* not 0.5"),
        ([], "at least one whole number, not an empty list"),
    ],
)
def test_seeds_are_checked(folders, seeds, message):
    done = []
    with pytest.raises(ValueError, match=message):
        execute(make_recipe(measure=done.append), seeds=seeds, **folders)
    assert not done


def test_a_smoke_run_has_a_place_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    execute(make_recipe(), preset="smoke")
    execute(make_recipe("vn-kl"), preset="short")
    assert [
        str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("vn-*.json")) if "legs" not in str(path)
    ] == [
        "results/vn-kl.json",
        "runs/reproduce/smoke/vn-toy.json",
    ]


@pytest.mark.parametrize("first, second", [("paper", "short"), ("paper", "smoke"), ("short", "smoke")])
def test_a_smaller_preset_replaces_no_larger_one(folders, first, second):
    execute(make_recipe(), preset=first, **folders)
    done = []
    with pytest.raises(OutputError, match=f"preset {first}, which one of the preset {second} .*--replace"):
        execute(make_recipe(measure=done.append), preset=second, **folders)
    assert not done
    assert execute(make_recipe(), preset=second, replace=True, **folders)["preset"] == second


def test_a_preset_replaces_itself_and_smaller_ones(folders):
    for preset in ("smoke", "short", "short", "paper"):
        assert execute(make_recipe(), preset=preset, **folders)["preset"] == preset


@pytest.mark.parametrize(
    "lesser, message",
    [
        ({"seeds": [0]}, "a result of 2 seeds, which one of 1 seed .*--replace"),
        ({"settings": {"epochs": 1}}, "a result with epochs=2, which one with epochs=1 .*--replace"),
        ({"preset": "paper", "seeds": [0]}, "a result of 2 seeds, which one of 1 seed"),
    ],
)
def test_fewer_seeds_or_other_settings_replace_no_result_of_the_preset(folders, lesser, message):
    before = execute(make_recipe(), **folders)
    done = []
    with pytest.raises(OutputError, match=message):
        execute(make_recipe(measure=done.append), **lesser, **folders)
    assert not done and json.loads((folders["out"] / "vn-toy.json").read_text()) == before
    lesser_result = execute(make_recipe(), **lesser, replace=True, **folders)
    # The same once more loses nothing.
    assert execute(make_recipe(), **lesser, **folders)["seeds"] == lesser_result["seeds"]


def test_a_result_on_generated_data_replaces_none_on_real_data(folders):
    def measure(run):
        run.note("generated images")
        return Outcome()

    before = execute(make_recipe(), **folders)
    with pytest.raises(OutputError, match="a result on real data, which one on generated data .*--replace"):
        execute(make_recipe(measure=measure), **folders)
    assert json.loads((folders["out"] / "vn-toy.json").read_text()) == before
    assert execute(make_recipe(measure=measure), replace=True, **folders)["notes"] == ["generated images"]


def test_smoke_results_are_replaced_freely(folders):
    execute(make_recipe(), preset="smoke", **folders)
    assert execute(make_recipe(), preset="smoke", seeds=[0], settings={"epochs": 1}, **folders)["seeds"] == [0]


def test_settings_are_checked(folders):
    with pytest.raises(ValueError, match="no setting 'epoch'; it has epochs, limit"):
        execute(make_recipe(), settings={"epoch": 3}, **folders)
    with pytest.raises(ValueError, match="epochs of vn-toy is a whole number above 0, such as 2, not 'many'"):
        execute(make_recipe(), settings={"epochs": "many"}, **folders)
    with pytest.raises(ValueError, match="preset is one of smoke, short, paper, not 'long'"):
        execute(make_recipe(), preset="long", **folders)


@pytest.mark.parametrize(
    "setting, message",
    [
        ({"epochs": 2.5}, "epochs of vn-toy is a whole number above 0, such as 2, not 2.5"),
        ({"epochs": 0}, "whole number above 0, such as 2, not 0"),
        ({"epochs": -1}, "whole number above 0, such as 2, not -1"),
        ({"epochs": True}, "whole number above 0, such as 2, not True"),
        ({"limit": float("nan")}, "a number above 0, such as 0.5, not nan"),
        ({"means": 3}, "a list of one item or more, each a number above 0, such as .1.0., not 3"),
        ({"means": []}, "a list of one item or more, .* not .."),
        ({"means": [1.0, "x"]}, "a list of one item or more, .* not .1.0, 'x'."),
        ({"fast": 1}, "true or false, such as true, not 1"),
        ({"name": 1}, 'a text, such as "a", not 1'),
    ],
)
def test_settings_are_of_the_kind_of_the_presets(folders, setting, message):
    done = []
    recipe = make_recipe(measure=done.append, means=[1.0], fast=True, name="a")
    with pytest.raises(ValueError, match=message):
        execute(recipe, settings=setting, **folders)
    assert not done


def test_a_setting_that_is_an_empty_list_takes_values(folders):
    result = execute(make_recipe(kinds=()), settings={"kinds": ["fog", "snow"]}, **folders)
    assert result["settings"]["kinds"] == ["fog", "snow"]
    with pytest.raises(ValueError, match="the setting kinds of vn-toy is a list of one item or more, not 3"):
        execute(make_recipe(kinds=()), settings={"kinds": 3}, **folders)


def test_settings_keep_the_type_of_the_presets(folders):
    given = {"epochs": 3, "limit": 1, "offset": -2, "means": [2, 3.5], "fast": False, "name": "b"}
    recipe = make_recipe(offset=0, means=[1.0], fast=True, name="a")
    settings = execute(recipe, settings=given, **folders)["settings"]
    assert settings == given and isinstance(settings["limit"], float) and isinstance(settings["means"][0], float)


def test_the_seconds_of_all_legs_count(folders):
    def slow(run):
        for name in "ab":
            run.unit(name, lambda: time.sleep(0.2))
        return Outcome()

    with pytest.raises(LegOver):
        execute(make_recipe(measure=slow), limit_s=0.1, **folders)
    assert not (folders["out"] / "vn-toy.json").exists()
    result = execute(make_recipe(measure=slow), limit_s=0.1, **folders)
    assert len(result["legs"]) == 2 and result["seconds"] == sum(leg["seconds"] for leg in result["legs"]) >= 0.4
    assert {leg["device"] for leg in result["legs"]} == {result["device"]}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_result_says_where_its_work_was_done_and_not_where_it_was_read(folders, monkeypatch, workers):
    def on(device, seeds=(0, 1), **options):
        monkeypatch.setitem(execute.__globals__, "device_name", lambda _: device)
        recipe = make_recipe(measure=by_processes)
        result = execute(recipe, command=f"on {device}", seeds=seeds, workers=workers, **options, **folders)
        return result["device"], result["command"], len(result["legs"])

    assert on("first") == ("first", "on first", 1)
    assert on("second") == ("first", "on first", 2)
    assert on("third", seeds=(0, 1, 2)) == ("third", "on third", 3)
    changed = {"settings": {"epochs": 3}, "replace": True}
    assert on("fourth", seeds=(0, 1, 2), **changed) == ("fourth", "on fourth", 4)


def test_a_result_without_units_was_made_now(folders, monkeypatch):
    for device in ("first", "second"):
        monkeypatch.setitem(execute.__globals__, "device_name", lambda _, name=device: name)
        assert execute(make_recipe(measure=lambda run: Outcome()), **folders)["device"] == device


@pytest.mark.parametrize("text", ["{", '{"other": 1}', '{"legs": [{}]}'])
def test_a_file_of_legs_that_cannot_be_used_is_begun_anew(folders, text):
    path = folders["work"] / "short/legs/vn-toy.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert len(execute(make_recipe(), **folders)["legs"]) == 1


def test_what_the_run_noted_is_in_the_result(folders):
    def measure(run):
        run.load("mnist", rows=(40, 20))
        return Outcome(notes=["shorter"])

    assert execute(make_recipe(measure=measure), preset="smoke", **folders)["notes"] == ["shorter", "generated data"]


def test_the_picture_is_drawn_from_the_data_of_the_file(folders):
    pytest.importorskip("matplotlib")
    seen = []

    def draw(figure, canvas):
        seen.append(figure)
        canvas.subplots().plot(figure["values"])

    execute(make_recipe(draw=draw), **folders)
    stored = json.loads((folders["out"] / "vn-toy.json").read_text())
    assert seen == [stored["figure"]]
    first = (folders["out"] / "vn-toy.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    execute(make_recipe(draw=draw), **folders)
    assert (folders["out"] / "vn-toy.png").read_bytes() == first


def test_a_recipe_has_all_presets():
    presets = {name: {} for name in ("smoke", "short", "paper")}
    with pytest.raises(ValueError, match="'vn-toy' needs presets for smoke, short, paper, not smoke"):
        Recipe("vn-toy", "", {"smoke": {}}, presets, quick)
    with pytest.raises(ValueError, match="at least one seed"):
        Recipe("vn-toy", "", presets, {name: () for name in presets}, quick)
