"""`leanbayes reproduce`: what it prints, and its exit codes."""

import json

import pytest

from leanbayes.cli import main
from leanbayes.data import generate
from leanbayes.reproduce import Outcome, Row
from tests.reproduce.conftest import make_recipe


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command in an empty folder; returns the exit code, the output and the error output."""
    monkeypatch.chdir(tmp_path)

    def do(*words):
        code = main(["reproduce", *words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return do


def test_lists_the_ledger(run, only):
    only(make_recipe("vn-kl"))
    code, out, _ = run()
    assert code == 0
    for text in (
        "Variance Networks",
        "vn-toy",
        "kt-matrix-normal",
        "planned",
        "ready",
        "Beyond the papers",
        "emp-finetune",
    ):
        assert text in out
    code, out, _ = run("--json")
    assert code == 0 and {entry["id"]: entry["status"] for entry in json.loads(out)}["vn-kl"] == "ready"


def test_shows_published_and_measured(run, only, tmp_path):
    only(make_recipe())
    code, out, _ = run("vn-toy", "--device", "cpu", "--set", "limit=0.55", "--seeds", "0", "2")
    assert code == 0
    for text in ("published", "0.9", "0.6 ± 0.14", "yes  the first is below the limit", "verdict: holds", "a note"):
        assert text in out
    assert str(tmp_path) not in out and "results/vn-toy.json" in out
    stored = json.loads((tmp_path / "results/vn-toy.json").read_text())
    assert stored["command"] == "leanbayes reproduce vn-toy --preset short --device cpu --seeds 0 2 --set limit=0.55"
    code, out, _ = run()
    assert f"holds (short, {stored['date']})" in out


def test_a_result_that_falls_short_is_a_result(run, only):
    only(make_recipe())
    code, out, _ = run("vn-toy", "--json")
    assert code == 0 and json.loads(out)[0]["verdict"] == "falls short"
    code, out, _ = run("vn-toy")
    assert "no   the first" in out and "verdict: falls short: it is not below" in out


def test_a_smoke_run_is_not_judged(run, only):
    only(make_recipe())
    code, out, _ = run("vn-toy", "--preset", "smoke", "--device", "cpu")
    assert code == 0 and "verdict: not judged: a smoke run shows that everything runs" in out
    assert "falls short" not in out and "the first is below the limit" not in out
    _, out, _ = run("vn-toy", "--preset", "smoke", "--json")
    assert json.loads(out)[0]["verdict"] == "not judged"


def test_patterns_choose_several(run, only):
    only(make_recipe("vn-kl"), make_recipe("vn-toy"), make_recipe("kt-snr"))
    _, out, _ = run("vn-*", "vn-kl", "--json")
    assert [result["id"] for result in json.loads(out)] == ["vn-kl", "vn-toy"]


def test_a_time_limit_ends_a_leg_with_3(run, only, tmp_path):
    done = []

    def measure(run):
        for name in "ab":
            run.unit(name, lambda: done.append(1))
        return Outcome()

    only(make_recipe("vn-kl"), make_recipe("vn-toy", measure))
    words = ("vn-kl", "vn-toy", "--time-limit", "1e-9")
    code, out, _ = run(*words)
    assert code == 3 and "stopped in vn-kl, finished: none" in out and "the same command goes on" in out
    # Each leg does one of the four pieces.
    code, out, _ = run(*words)
    assert code == 3 and "stopped in vn-toy, finished: vn-kl" in out and not done
    assert [run(*words)[0] for _ in range(2)] == [3, 0] and len(done) == 2
    assert (tmp_path / "results/vn-toy.json").exists()


def test_a_flag_that_is_given_again_adds_to_what_was_given(run, only):
    def measure(run):
        found = run.each_seed_of(lambda run, name, seed: seed, "abc")
        return Outcome([Row("one", "number", None, found["a"])])

    only(make_recipe(measure=measure))
    code, out, _ = run("vn-toy", "--seeds", "0", "--seeds", "3", "--only", "a-seed0", "--only", "a-seed3", "b-*")
    assert code == 0 and "open: c-seed0, c-seed3" in out


@pytest.mark.parametrize(
    "words, message",
    [
        (["vn-to"], "no published result 'vn-to'; did you mean vn-toy"),
        (["xxxxxx"], "no published result 'xxxxxx'; `leanbayes reproduce` lists them"),
        (["zz-*"], "no published result 'zz-*'"),
        (["kt-snr"], "kt-snr is planned and has no recipe yet; there are vn-toy"),
        (["vn-toy", "--set", "epochs"], "--set takes NAME=VALUE"),
        (["vn-toy", "--set", "epoch=1"], "no setting 'epoch'"),
    ],
)
def test_mistakes_are_one_sentence(run, only, words, message):
    only(make_recipe())
    code, _, err = run(*words)
    assert code == 1 and err.startswith("leanbayes: error: ") and message in err and err.count("\n") == 1


def test_missing_data_are_fetched_where_the_advice_is_followed(run, only, tmp_path, monkeypatch):
    fetched = []

    def fetch(name, folder):
        fetched.append(name)
        generate.write(name, tmp_path, rows=(40, 20))

    def measure(run):
        run.load("mnist")
        return Outcome()

    monkeypatch.setattr("leanbayes.data.mnist.obtain", fetch)
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    only(make_recipe(measure=measure))
    code, _, err = run("vn-toy")
    assert code == 1 and "pass --download" in err and not fetched
    code, out, _ = run("vn-toy", "--download", "--json")
    assert code == 0 and fetched == ["mnist"] and json.loads(out)[0]["command"].endswith("--download")
    # Who asks for data gets them in a smoke run, too.
    _, out, _ = run("vn-toy", "--preset", "smoke", "--download", "--json")
    assert json.loads(out)[0]["notes"] == []


def test_a_file_that_is_no_result_is_named_and_replaced(run, only, tmp_path):
    only(make_recipe())
    (tmp_path / "results").mkdir()
    (tmp_path / "results/vn-toy.json").write_text('{"verdict": "holds"}')
    code, out, _ = run()
    assert code == 0 and "kt-matrix-normal" in out and out.count("results/vn-toy.json is no result") == 1
    assert run("vn-toy")[0] == 0 and "is no result" not in run()[1]


def test_a_short_run_does_not_replace_a_paper_one(run, only):
    only(make_recipe())
    assert run("vn-toy", "--preset", "paper")[0] == 0
    code, _, err = run("vn-toy")
    assert code == 1 and "pass --replace" in err
    assert run("vn-toy", "--replace")[0] == 0


@pytest.mark.parametrize(
    "values, words, ids, settings",
    [
        ({"ids": "vn-toy", "set": "epochs=5"}, [], ["vn-toy"], {"epochs": 5, "limit": 0.5}),
        ({"ids": ["vn-kl", "vn-toy"], "set": ["epochs=5"]}, [], ["vn-kl", "vn-toy"], {"epochs": 5, "limit": 0.5}),
        ({"ids": ["vn-toy"]}, ["vn-kl"], ["vn-kl"], {"epochs": 2, "limit": 0.5}),
        (
            {"set": ["epochs=5", "limit=0.4"]},
            ["vn-kl", "--set", "epochs=6"],
            ["vn-kl"],
            {"epochs": 6, "limit": 0.4},
        ),
    ],
)
def test_a_file_gives_ids_and_settings(run, only, tmp_path, values, words, ids, settings):
    only(make_recipe("vn-kl"), make_recipe("vn-toy"))
    (tmp_path / "config.json").write_text(json.dumps(values))
    code, out, _ = run(*words, "--json", "--config", "config.json")
    assert code == 0
    assert [(result["id"], result["settings"]) for result in json.loads(out)] == [(id, settings) for id in ids]


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "vn-toy.json holds a result of the preset paper"),
        (["--replace", "--set", "extra=3"], "vn-toy has no setting 'extra'"),
    ],
)
def test_all_that_is_chosen_is_checked_before_the_first_starts(run, only, words, message):
    done = []
    only(make_recipe())
    assert run("vn-toy", "--preset", "paper")[0] == 0
    only(make_recipe("vn-kl", done.append, extra=1), make_recipe("vn-toy", done.append))
    code, _, err = run("vn-*", *words)
    assert code == 1 and message in err and not done


def test_ctrl_c_says_how_to_go_on(run, only):
    def measure(run):
        raise KeyboardInterrupt

    only(make_recipe(measure=measure))
    code, _, err = run("vn-toy")
    assert code == 130 and "interrupted in vn-toy" in err and "the same command goes on" in err


def test_single_pieces_of_work_are_done_one_by_one(run, only, tmp_path):
    def measure(run):
        found = run.units(lambda run, value: value, {f"net{k}": (float(k),) for k in range(3)})
        return Outcome([Row("net", "value", None, list(found.values()))], [], {}, [])

    only(make_recipe("vn-kl", measure), make_recipe("vn-toy", measure))
    code, out, _ = run("vn-*", "--only", "net0", "net2")
    assert code == 0 and out.count("done what --only asks for; open: net1") == 2
    assert not (tmp_path / "results").exists() or not list((tmp_path / "results").glob("*.json"))
    _, out, _ = run()
    assert "ready, 2 pieces done (short)" in " ".join(out.split())
    code, out, _ = run("vn-toy")
    assert code == 0 and "verdict" in out
