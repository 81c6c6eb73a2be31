"""Work is done once, in as many legs as it takes, and ends as if it had been done in one."""

import json
import os
import pickle
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.data import generate
from leanbayes.reproduce import LegOver, PartDone
from leanbayes.reproduce.datasets import OWN_FOLDER
from leanbayes.training import OutputError, SideBySide, TrainConfig
from tests.reproduce.conftest import examples, network
from tests.training.problems import assert_same, weights, without_times


@pytest.fixture
def folders_of_mnist(tmp_path):
    """Writes small files in MNIST's layout, each time into another folder."""
    made = []

    def make(**options):
        made.append(tmp_path / f"data{len(made)}")
        generate.write("mnist", made[-1], rows=(40, 20), **options)
        return made[-1]

    return make


class TestUnit:
    def test_is_done_once(self, make_run):
        done = []
        for _ in range(2):
            assert make_run().unit("a", lambda: done.append(1) or {"x": (1, 2.5)}) == {"x": [1, 2.5]}
        assert len(done) == 1

    def test_is_done_again_with_other_settings_or_data(self, make_run, tmp_path):
        assert make_run(settings={"epochs": 1}).unit("a", lambda: 1) == 1
        assert make_run(settings={"epochs": 2}).unit("a", lambda: 2) == 2
        assert make_run(preset="smoke", settings={"epochs": 2}).unit("a", lambda: 3) == 3
        assert make_run(preset="smoke", settings={"epochs": 2}, data=tmp_path).unit("a", lambda: 4) == 4

    def test_is_done_again_on_other_data(self, make_run, folders_of_mnist):
        def count(folder):
            run = make_run(data=folder)
            return run.unit("a", lambda: done.append(folder) or int(run.load("mnist", valid=0).test.y.sum()))

        done = []
        one, other = folders_of_mnist(seed=0), folders_of_mnist(seed=1)
        assert count(one) == count(one) and done == [one]
        assert count(other) != count(one) and done == [one, other, one]

    def test_is_not_done_again_where_the_same_data_lie_elsewhere(self, make_run, folders_of_mnist):
        def count(folder):
            run = make_run(data=folder)
            return run.unit("a", lambda: done.append(folder) or len(run.load("mnist").test))

        done = []
        assert count(folders_of_mnist()) == count(folders_of_mnist(compressed=True)) == 20
        assert len(done) == 1

    def test_is_not_done_again_where_the_same_tree_of_images_lies_elsewhere(self, make_run, tmp_path):
        def count(folder):
            run = make_run(data=folder)
            return run.unit("a", lambda: done.append(folder) or len(run.load(OWN_FOLDER, size=8, valid=0).test))

        done = []
        generate.write_image_folder(tmp_path / "one")
        shutil.copytree(tmp_path / "one", tmp_path / "other")
        assert count(tmp_path / "one") == count(tmp_path / "other") and done == [tmp_path / "one"]

    def test_asks_for_its_data_when_it_is_done(self, make_run, folders_of_mnist, tmp_path):
        run = make_run(data=folders_of_mnist())
        run.unit("a", lambda: len(run.load("mnist").test))
        with pytest.raises(FileNotFoundError, match="MNIST was not found"):
            make_run(data=tmp_path).unit("a", lambda: 0)

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"about": {}}'])
    def test_is_done_again_where_its_file_cannot_be_used(self, make_run, tmp_path, text):
        make_run().unit("a", lambda: 1)
        (tmp_path / "work/units/vn-toy/a.json").write_text(text)
        assert make_run().unit("a", lambda: 2) == 2 == make_run().unit("a", lambda: 3)

    # Former versions kept no fingerprints.
    @pytest.mark.parametrize("field", ["fingerprints", "value"])
    def test_is_done_again_where_its_file_lacks_a_field(self, make_run, tmp_path, field):
        make_run().unit("a", lambda: 1)
        path = tmp_path / "work/units/vn-toy/a.json"
        kept = json.loads(path.read_text())
        del kept[field]
        path.write_text(json.dumps(kept))
        assert make_run().unit("a", lambda: 2) == 2

    def test_belongs_to_its_recipe(self, make_run):
        assert make_run("vn-toy").unit("a", lambda: 1) == 1
        assert make_run("vn-kl").unit("a", lambda: 2) == 2

    def test_is_a_whole_file_or_none(self, make_run, tmp_path):
        run = make_run()
        with pytest.raises(ZeroDivisionError):
            run.unit("a", lambda: 1 / 0)
        run.unit("b", lambda: float("nan"))
        files = {path.name: path for path in (tmp_path / "work").rglob("*") if path.is_file()}
        assert list(files) == ["b.json"]
        assert json.loads(files["b.json"].read_text())["value"] is None

    def test_brings_its_notes_back(self, make_run):
        first = make_run(preset="smoke")
        first.unit("a", lambda: len(first.load("mnist", rows=(40, 20)).test))
        second = make_run(preset="smoke")
        assert second.unit("a", lambda: None) == 20 and second.notes == first.notes == ["generated data"]

    def test_ends_a_leg_only_after_some_work(self, make_run):
        run = make_run(limit_s=1e-9)
        assert run.unit("a", lambda: 1) == 1
        with pytest.raises(LegOver, match="vn-toy"):
            run.unit("b", lambda: 2)
        # What is there costs nothing.
        assert run.unit("a", lambda: 3) == 1


def write_process(run, number):
    if number < 0:
        raise ValueError("a number below 0")
    run.note(f"noted {number}")
    return {"process": os.getpid(), "threads": torch.get_num_threads(), "number": number}


def read_missing(run, number):
    raise FileNotFoundError(f"no file {number}")


def train_network(run, seed):
    config = TrainConfig(epochs=4, batch_size=16)
    return len(run.trained("net", seed, network, examples(), config)[1])


def write_name(run, name, seed):
    return [name, seed, os.getpid()]


class TestUnits:
    PIECES = {f"piece{number}": (number,) for number in range(3)}

    def test_some_are_done_alone_and_last(self, make_run):
        pieces = {name: (k,) for k, name in enumerate(("time", "a", "b"))}
        found = make_run(workers=2).units(write_process, pieces, alone=["time"])
        assert list(found) == ["time", "a", "b"] and found["time"]["process"] == os.getpid()
        assert os.getpid() not in (found["a"]["process"], found["b"]["process"])

    def test_what_is_alone_comes_last_in_one_process_too(self, make_run):
        done = []
        pieces = {"time": ("time",), "a": ("a",)}
        make_run().units(lambda run, name: done.append(name), pieces, alone=["time"])
        assert done == ["a", "time"]

    def test_one_process_does_them_itself(self, make_run):
        found = make_run().units(write_process, self.PIECES)
        assert [one["number"] for one in found.values()] == [0, 1, 2]
        assert {one["process"] for one in found.values()} == {os.getpid()}

    def test_several_processes_do_what_is_not_done(self, make_run):
        make_run().unit("piece1", lambda: {"number": "done before"})
        run = make_run(workers=2)
        found = run.units(write_process, self.PIECES)
        assert list(found) == list(self.PIECES) and found["piece1"] == {"number": "done before"}
        others = [found["piece0"], found["piece2"]]
        assert [one["number"] for one in others] == [0, 2] and {one["threads"] for one in others} == {1}
        assert os.getpid() not in {one["process"] for one in others}
        assert run.notes == ["noted 0", "noted 2"]

    @pytest.mark.parametrize("workers", [1, 2])
    def test_every_seed_of_every_name(self, make_run, workers):
        run = make_run(workers=workers, seeds=(3, 5))
        found = run.each_seed_of(write_name, (name for name in "ab"))
        assert {name: [one[:2] for one in ones] for name, ones in found.items()} == {
            "a": [["a", 3], ["a", 5]],
            "b": [["b", 3], ["b", 5]],
        }
        assert (os.getpid() in {one[2] for ones in found.values() for one in ones}) == (workers == 1)
        assert [one["number"] for one in make_run(seeds=(0, 2)).each_seed(write_process)] == [0, 2]

    def test_a_leg_ends_between_two(self, make_run):
        run = make_run(workers=2, limit_s=1e-9)
        with pytest.raises(LegOver):
            run.units(write_process, self.PIECES)
        assert len(make_run().units(lambda run, number: number, self.PIECES)) == 3
        assert isinstance(make_run().unit("piece0", lambda: None), dict)

    def test_a_leg_ends_within_a_training_of_another_process(self, make_run):
        for _ in range(3):
            with pytest.raises(LegOver):
                make_run(workers=2, limit_s=1e-9).each_seed(train_network)
        # Each leg has done one of the four epochs.
        assert make_run(workers=2, limit_s=1e-9).each_seed(train_network) == [4]

    @pytest.mark.parametrize("workers", [1, 2])
    def test_others_go_on_after_an_error_which_comes_through(self, workers, make_run, capfd):
        pieces = {"bad": (-1,), **self.PIECES}
        with pytest.raises(ValueError, match="a number below 0"):
            make_run(workers=workers).units(write_process, pieces)
        assert capfd.readouterr().err.count("bad failed: ValueError: a number below 0") == 1
        assert [make_run().unit(name, lambda: None)["number"] for name in self.PIECES] == [0, 1, 2]

    @pytest.mark.parametrize("workers", [1, 2])
    def test_what_others_lack_too_is_told_once(self, workers, make_run, capfd):
        # Any of those that are under way at the same time may be the first.
        with pytest.raises(FileNotFoundError, match=rf"no file [0-{workers - 1}]$"):
            make_run(workers=workers).units(read_missing, {f"piece{number}": (number,) for number in range(4)})
        assert capfd.readouterr().err == ""

    def test_processes_end_with_the_one_that_began_them(self):
        script = """
import time
from leanbayes.reproduce.workers import in_processes

def pieces():
    yield 0
    yield 600
    print("begun", flush=True)
    yield 600

if __name__ == "__main__":
    in_processes(time.sleep, pieces(), 2, lambda: None)
"""
        parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None and parent.stdout.readline() == "begun\n"
        parent.kill()
        parent.communicate(timeout=60)  # ends when no process holds the pipe any more

    @pytest.mark.skipif(sys.platform == "win32", reason="signals of process groups")
    @pytest.mark.parametrize("pieces", ["[600]", "[0, 600]"], ids=["starting", "at work"])
    def test_ctrl_c_ends_processes_without_a_word_of_theirs(self, pieces):
        script = f"""
import os, signal, time
from leanbayes.reproduce.workers import in_processes

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background would ignore

def pieces():
    yield from {pieces}
    time.sleep(0.5)  # until Python runs there
    os.killpg(0, signal.SIGINT)
    time.sleep(600)

if __name__ == "__main__":
    try:
        in_processes(time.sleep, pieces(), 2, lambda: None)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""
        words = [sys.executable, "-c", script]
        done = subprocess.run(words, start_new_session=True, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_part_with_other_settings_shares_the_rest(make_run):
    run = make_run()
    part = run.changed(extra=3)
    assert part.settings == run.settings | {"extra": 3} and "extra" not in run.settings
    part.note("something")
    assert run.notes == ["something"] and part.leg is run.leg and part.folder == run.folder


def test_data_are_read_once_and_do_not_travel(make_run):
    run = make_run(preset="smoke")
    first = run.load("mnist", rows=(40, 20))
    assert run.load("mnist", rows=(40, 20)) is first and run.load("mnist", rows=(20, 20)) is not first
    there = pickle.loads(pickle.dumps(run))
    again = there.load("mnist", rows=(40, 20))
    assert again is not first and torch.equal(again.train.x, first.train.x) and there.notes == ["generated data"]


class TestTrained:
    @pytest.fixture
    def whole(self, make_run, train, tmp_path):
        """The model and the records of a training without legs."""
        return train(make_run(folder=tmp_path / "whole"))

    @pytest.mark.parametrize("every", [1, 2])
    def test_ends_in_legs_as_it_does_in_one(self, make_run, train, whole, every):
        legs = 0
        while True:
            legs += 1
            try:
                model, records = train(make_run(limit_s=1e-9), checkpoint_every=every)
                break
            except LegOver:
                assert legs < 10
        # Each leg has done its way to one checkpoint, and the last epochs need no further leg.
        assert legs == 4 // every
        assert_same(weights(model), weights(whole[0]))
        assert without_times(records) == without_times(whole[1])

    def test_waits_while_another_run_trains_the_same(self, make_run, train, whole, tmp_path, capsys):
        folder = tmp_path / "work" / "trainings" / "net-seed0"
        folder.mkdir(parents=True)
        program = (
            "import sys, time; from pathlib import Path; from leanbayes.training.files import claim; "
            "lock = claim(Path(sys.argv[1])); print('claimed', flush=True); time.sleep(2)"
        )
        command = [sys.executable, "-c", program, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout.readline() == "claimed\n"
            model, _ = train(make_run())
        assert_same(weights(model), weights(whole[0]))
        assert capsys.readouterr().err.count("another run trains in") == 1

    def test_does_not_wait_for_a_folder_that_cannot_be_locked(self, make_run, train, monkeypatch):
        def acquire(self, timeout):
            raise NotImplementedError

        monkeypatch.setattr("filelock.FileLock.acquire", acquire)
        with pytest.raises(OutputError, match="cannot lock the output folder"):
            train(make_run(limit_s=5))

    @pytest.mark.parametrize("best", [True, False])
    def test_ends_with_the_best_weights_where_a_recipe_asks_for_them(self, make_run, train, best):
        x, y = examples()
        after = []

        def keep(event):
            after.append(weights(event.model))

        # What is learned from the training rows is wrong on these.
        rows = {"train": (x, y), "valid": (x, 1 - y)}
        changes = {"restore_best": True} if best else {}
        model, records = train(make_run(), data=rows, callbacks=(keep,), **changes)
        losses = [record["valid_nll"] for record in records]
        first = losses.index(min(losses))
        assert first < len(losses) - 1
        assert_same(weights(model), after[first if best else -1])

    def test_a_leg_loses_no_epoch(self, make_run, train):
        seen = []
        for _ in range(4):
            try:
                train(make_run(limit_s=1e-9), callbacks=[lambda event: seen.append(event.record["epoch"])])
            except LegOver:
                pass
        assert seen == [1, 2, 3, 4]

    def test_what_a_callback_notes_is_there_in_a_later_leg(self, make_run, train):
        def note(event):
            event.record["noted"] = 10 * event.record["epoch"]

        for _ in range(4):
            try:
                _, records = train(make_run(limit_s=1e-9), callbacks=[note])
            except LegOver:
                pass
        assert [record["noted"] for record in records] == [10, 20, 30, 40]

    def test_is_shared_by_recipes(self, make_run, train):
        first, _ = train(make_run("vn-mnist"))
        seen = []
        second, records = train(make_run("vn-mmd"), callbacks=[seen.append])
        assert_same(weights(first), weights(second))
        assert not seen and len(records) == 4

    def test_loads_what_is_done_when_the_time_is_over(self, make_run, train):
        train(make_run())
        run = make_run(limit_s=1e-9)
        run.unit("a", lambda: 1)
        train(run)
        with pytest.raises(LegOver):
            train(run, key="other")

    @pytest.mark.parametrize("change", [{"lr": 0.1}, {"epochs": 5}, {"batch_size": 8}])
    def test_another_configuration_is_an_error(self, make_run, train, change):
        train(make_run())
        with pytest.raises(OutputError, match=f"was started with {next(iter(change))}=.*--work"):
            train(make_run(), **change)

    def test_a_network_of_another_method_is_an_error(self, make_run, train):
        def patched(init_std):
            return lambda: SideBySide([lb.bayesianize(nn.Linear(2, 2), lb.EMP(init_std=init_std)) for _ in range(3)])

        x, y = examples()
        data = (torch.stack([x] * 3, 1), torch.stack([y] * 3, 1))
        train(make_run(), data=data, build=patched(0.1))
        train(make_run(), data=data, build=patched(0.1))
        with pytest.raises(OutputError, match="was started with methods=.*init_std=0.1.*, not .*init_std=0.2"):
            train(make_run(), data=data, build=patched(0.2))

    def test_how_it_is_computed_is_free(self, make_run, train):
        train(make_run())
        train(make_run(), log_every=7, checkpoint_every=4)

    def test_generated_data_are_not_real_ones(self, make_run, train, tmp_path):
        train(make_run(preset="smoke"))
        with pytest.raises(OutputError, match="data='generated', not 'real'"):
            train(make_run(preset="smoke", data=tmp_path))

    def test_other_data_are_an_error(self, make_run, train):
        train(make_run())
        x, y = examples()
        with pytest.raises(OutputError, match="was started on different data; .*--data, or another --work"):
            train(make_run(), data=(x, 1 - y))
        with pytest.raises(OutputError, match="was started on different data"):
            train(make_run(), data=(x + 1, y))

    def test_seeds_give_other_networks_and_the_same_seed_the_same(self, make_run, train):
        torch.manual_seed(1)
        first = weights(train(make_run(), key="a")[0])
        torch.manual_seed(2)
        assert_same(first, weights(train(make_run(), key="b")[0]))
        other = weights(train(make_run(), key="a", seed=1)[0])
        assert not torch.equal(first["0.weight.posterior.loc"], other["0.weight.posterior.loc"])

    def test_augments(self, make_run, train, monkeypatch):
        seen = []

        def augment(x, generator):
            seen.append(x.shape)
            return x

        run = make_run()
        trained = run.trained
        monkeypatch.setattr(run, "trained", lambda *args, **rest: trained(*args, augment=augment, **rest))
        train(run)
        assert seen == [(16, 2)] * 16


def test_real_data_are_asked_for_outside_smoke_runs(make_run, tmp_path):
    with pytest.raises(FileNotFoundError, match="MNIST was not found"):
        make_run(data=tmp_path).load("mnist")
    assert make_run(preset="smoke").load("mnist").name == "synthetic mnist"


def test_a_data_folder_that_is_not_there_is_an_error(make_run, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no data folder .*missing; pass .* with --data"):
        make_run(data=tmp_path / "missing")


def test_a_pattern_may_match_the_pieces_of_one_stage_alone(make_run):
    def in_stages(run):
        first = run.units(lambda run, a: a, {"trial-a": (1,), "trial-b": (2,)})
        return run.units(lambda run, a: a, {f"test-{max(first.values())}": (3,)})

    for _ in range(2):  # the second time there is nothing to do
        with pytest.raises(PartDone) as part:
            in_stages(make_run(only=["trial-*"]))
        assert part.value.open == ["test-2"]
    with pytest.raises(ValueError, match="no piece of work matches other-"):
        in_stages(make_run(only=["other-*"]))
    assert in_stages(make_run(only=["test-2"])) == {"test-2": 3}


def test_only_some_pieces_of_work_are_done(make_run):
    done = []

    def work(run, value):
        done.append(value)
        return value

    pieces = {"a-seed0": (1,), "b-seed0": (2,), "b-seed1": (3,)}
    for _ in range(2):  # what is done already is not done again
        with pytest.raises(PartDone) as part:
            make_run(only=["b*", "c"]).units(work, pieces)
        assert part.value.open == ["a-seed0"] and done == [2, 3]
    with pytest.raises(ValueError, match=r"piece of work matches c; there are a-seed0, b-seed0, b-seed1"):
        make_run(only=["c"]).units(work, pieces)
    with pytest.raises(PartDone):
        make_run(only=["c"]).unit("d", lambda: done.append(0))
    # Results are there once all is done, whoever did it.
    assert make_run(only=["a*"]).units(work, pieces) == {"a-seed0": 1, "b-seed0": 2, "b-seed1": 3}
    assert done == [2, 3, 1]
