"""metrics.jsonl and TensorBoard's files, also after a resume."""

import json

import pytest

from leanbayes.training import fit
from leanbayes.training.logs import FILE_NAME, Logs
from tests.training.problems import config, data, network, without_times


def lines(folder):
    return [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]


def test_lines_of_steps_and_epochs(tmp_path):
    x, y = data()
    history = fit(network(), {"train": (x, y), "valid": (x, y)}, config(), out=tmp_path)
    found = lines(tmp_path)
    # 3 steps in an epoch, a line after every second.
    assert [(line["kind"], line["step"]) for line in found] == [
        *(("step", 2), ("epoch", 3), ("step", 4), ("step", 6), ("epoch", 6), ("step", 8), ("epoch", 9))
    ]
    assert [line for line in found if line["kind"] == "epoch"] == [{"kind": "epoch"} | r for r in history.records]


def test_resuming_repeats_no_line(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings = {"checkpoint_steps": 2, "log_every": 1}
    fit(network(), data(), config(epochs=4, **settings), out=whole)
    fit(network(), data(), config(epochs=2, **settings), out=parts)
    with open(parts / FILE_NAME, "a") as file:
        file.write('{"kind": "step", "step": 7}\n{"kind": "st')  # of a process that was killed later
    fit(network(), data(), config(epochs=4, **settings), out=parts, resume=True)
    assert without_times(lines(parts)) == without_times(lines(whole))


def test_nowhere():
    logs = Logs(None, tensorboard=True)
    logs.write("step", {"step": 1})
    logs.close()
    assert logs.size == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit(network(), data(), config(epochs=2, tensorboard=True), out=tmp_path)
    fit(network(), data(), config(epochs=3, tensorboard=True), out=tmp_path, resume=True)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("epoch/loss")] == [3, 6, 9]
    assert [event.step for event in events.Scalars("step/nll")] == [2, 4, 6, 8]
