"""Pieces of work that several machines do: they share the folder of results, and nothing else."""

import json
import threading

import pytest

from leanbayes.data import generate
from leanbayes.reproduce import LegOver, Outcome, PartDone, Row, Run, execute, status
from tests.reproduce.conftest import make_recipe


def third(run, seed):
    return (seed + 1) / 3


def measure(run):
    return Outcome([Row("net", "third", None, run.each_seed(third))])


def shared(run):
    return Outcome([Row("net", "third", None, run.as_recipe("vn-toy").each_seed(third))])


def of_data(run):
    test = run.load("mnist", valid=0).test
    return Outcome(
        [Row("net", "labels", None, [run.unit(f"seed{seed}", lambda: int(test.y.sum())) for seed in run.seeds])]
    )


def leave_out(run, seed):
    raise AssertionError(f"seed {seed} was done elsewhere")


def nothing_to_do(run):
    return Outcome([Row("net", "third", None, run.each_seed(leave_out))])


@pytest.fixture
def on(tmp_path, monkeypatch):
    """Runs a recipe on a machine with a work folder of its own; results are shared."""

    def do(machine, *, measure=measure, id="vn-toy", **options):
        for function in (execute, Run.unit):
            monkeypatch.setitem(function.__globals__, "device_name", lambda _: machine)
        recipe = make_recipe(id, measure=measure)
        return execute(recipe, work=tmp_path / machine, out=tmp_path / "out", progress=False, **options)

    return do


def only_first(on, machine, **options):
    with pytest.raises(PartDone):
        on(machine, only=["seed0"], **options)


def beside(tmp_path):
    return sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.json"))


def test_another_machine_goes_on_and_the_result_has_all(on, tmp_path):
    only_first(on, "first")
    assert beside(tmp_path) == ["units/short/vn-toy/seed0.json"]
    result = on("second")
    assert result["rows"][0]["measured"] == pytest.approx([1 / 3, 2 / 3], rel=1e-9)
    assert beside(tmp_path) == ["vn-toy.json"]
    # The work folder has them still, so that nothing is done again there.
    assert on("second", measure=nothing_to_do)["rows"] == result["rows"]


def test_files_are_small_and_say_where_they_were_made(on, tmp_path):
    only_first(on, "first")
    text = (tmp_path / "out/units/short/vn-toy/seed0.json").read_text()
    piece = json.loads(text)
    assert text.count("\n") == 1 and piece["value"] == 0.3333333333
    assert piece["made"]["device"] == "first" and set(piece["made"]) == {"device", "versions", "date", "seconds"}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_result_says_where_its_pieces_were_made(on, workers):
    only_first(on, "first")
    result = on("second", workers=workers)
    brought, here = result["legs"]
    assert (brought["device"], brought["pieces"], here["device"]) == ("first", 1, "second")
    assert result["device"] == "second" and result["seconds"] == brought["seconds"] + here["seconds"]
    (note,) = result["notes"]
    assert note.startswith("made in pieces: ") and "1 on first, leanbayes " in note


def test_a_machine_that_only_puts_pieces_together_made_nothing(on):
    only_first(on, "first")
    with pytest.raises(PartDone):
        on("first", only=["seed1"], seeds=(0, 1, 2))
    result = on("second", measure=nothing_to_do)
    assert result["device"] == "first" and result["notes"] == [] and result["legs"][0]["pieces"] == 2


@pytest.mark.parametrize("change", [{"settings": {"epochs": 3}}, {"preset": "paper"}])
def test_pieces_with_other_settings_are_not_used(on, change):
    only_first(on, "first")
    with pytest.raises(AssertionError, match="seed 0"):
        on("second", measure=nothing_to_do, **change)


def of_epochs(name, settings):
    return {"epochs": settings["epochs"]} if name == "seed0" else {}


def decided(work):
    return lambda run: Outcome([Row("net", "third", None, run.decided_by(of_epochs).each_seed(work))])


def test_settings_that_do_not_decide_a_piece_may_change(on):
    on("first", measure=decided(third), settings={"limit": 0.7})
    with pytest.raises(AssertionError, match="seed 0"):
        on("first", measure=decided(leave_out), settings={"epochs": 3}, replace=True)
    result = on("first", measure=decided(leave_out))
    assert result["rows"][0]["measured"] == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize("data, brought", [("data0", 1), ("data1", 0)])
def test_pieces_on_other_data_are_not_used(on, tmp_path, data, brought):
    for seed in (0, 1):
        generate.write("mnist", tmp_path / f"data{seed}", rows=(40, 20), seed=seed)
    only_first(on, "first", measure=of_data, data=tmp_path / "data0")
    result = on("second", measure=of_data, data=tmp_path / data)
    assert [leg["device"] for leg in result["legs"]] == ["first"] * brought + ["second"]


def test_a_machine_without_the_data_of_a_piece_does_others(on, tmp_path):
    generate.write("mnist", tmp_path / "data", rows=(40, 20))
    (tmp_path / "empty").mkdir()
    only_first(on, "first", measure=of_data, data=tmp_path / "data")
    with pytest.raises(PartDone) as part:
        on("second", measure=decided(third), data=tmp_path / "empty", only=["seed1"])
    assert part.value.open == ["seed0"]
    assert on("first", measure=of_data, data=tmp_path / "data")["legs"][0]["pieces"] == 1


def test_a_smoke_run_keeps_nothing_there(on, tmp_path):
    only_first(on, "first", preset="smoke")
    assert beside(tmp_path) == []


def test_pieces_of_other_seeds_stay(on, tmp_path):
    with pytest.raises(PartDone):
        on("first", only=["seed2"], seeds=(0, 1, 2))
    on("first")
    assert beside(tmp_path) == ["units/short/vn-toy/seed2.json", "vn-toy.json"]


def test_pieces_that_two_results_share_go_with_the_result_that_they_are_of(on, tmp_path):
    on("first", id="vn-kl", measure=shared)
    assert beside(tmp_path) == ["units/short/vn-toy/seed0.json", "units/short/vn-toy/seed1.json", "vn-kl.json"]
    on("second", measure=nothing_to_do)
    assert beside(tmp_path) == ["vn-kl.json", "vn-toy.json"]
    on("first", id="vn-kl", measure=shared)
    assert beside(tmp_path) == ["vn-kl.json", "vn-toy.json"]


def test_the_list_counts_them(on, tmp_path):
    only_first(on, "first")
    entry = next(entry for entry in status(tmp_path / "out") if entry["id"] == "vn-toy")
    assert entry["pieces"] == {"short": 1}
    on("first")
    assert all("pieces" not in entry for entry in status(tmp_path / "out"))


def test_threads_may_finish_together(make_run, tmp_path):
    def work(seed):
        make_run(folder=tmp_path / f"work{seed}", results=tmp_path / "out").unit(f"seed{seed}", lambda: seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run = make_run(results=tmp_path / "out")
    assert [run.unit(f"seed{seed}", lambda: None) for seed in range(8)] == list(range(8))


def test_a_piece_counts_the_seconds_of_all_legs(make_run, monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("leanbayes.reproduce.run.time.monotonic", lambda: float(next(clock)))

    def cut_short():
        raise LegOver("the time is over")

    with pytest.raises(LegOver):
        make_run().unit("a", cut_short)
    run = make_run()
    run.unit("a", lambda: 1)
    assert run.pieces.used["vn-toy", "a"]["made"]["seconds"] == 20.0
