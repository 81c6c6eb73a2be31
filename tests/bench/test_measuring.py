"""Functions take turns, and a round is filled with calls."""

import time

import pytest
import torch

from leanbayes.bench.figures import against_ours, timing, verdict
from leanbayes.bench.measuring import interleaved, peak_bytes, quartiles

CPU = torch.device("cpu")


def test_functions_take_turns_and_rounds_begin_with_another():
    called = []
    times = interleaved({name: lambda name=name: called.append(name) for name in "abc"}, 3, CPU)
    assert "".join(called) == "abc" + "abc" + "bca" + "cab"
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_a_round_is_filled_with_calls_and_gives_the_time_of_one():
    calls = []

    def slow():
        calls.append(1)
        time.sleep(0.002)

    (times,) = interleaved({"slow": slow}, 2, CPU, round_s=0.01).values()
    # Three calls to warm up, then at most five in each round; a busy machine sleeps for longer.
    assert 3 + 2 <= len(calls) <= 3 + 2 * 5
    assert min(times) >= 0.002


def test_quartiles_of_few_values():
    assert quartiles([2.0]) == [2.0, 2.0] and quartiles([1.0, 3.0]) == [1.5, 2.5]


def test_ratios_are_of_medians_and_their_spread_of_rounds():
    times = {"plain": [1.0, 1.0, 4.0], "ours": [2.0, 3.0, 8.0], "peer": [6.0, 6.0, 6.0]}
    found = timing(times, "ours", "plain")
    assert (found["seconds"], found["plain_seconds"], found["ratio"]) == (3.0, 1.0, 3.0)
    assert found["ratio_quartiles"] == [2.0, 2.5]
    assert against_ours(times, "peer", "ours")["over_ours"] == 2.0


def test_memory_of_a_recording_counts_what_it_keeps_whatever_building_gives_back(monkeypatch):
    held = {"earlier recordings of compiled code": 700, "networks": 100}

    def total(device=None):
        return sum(held.values())

    def build():
        torch._dynamo.reset()  # as capturing does
        held["recording"] = 300
        return lambda: None

    monkeypatch.setattr(torch._dynamo, "reset", lambda: held.pop("earlier recordings of compiled code", None))
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *device: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", total)
    for name in ("memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device: held["networks"])
    assert peak_bytes(build, torch.device("cuda")) == 300


@pytest.mark.parametrize(("ratio", "holds"), [(1.15, True), (1.151, False)])
def test_a_bound_is_kept_or_not(ratio, holds):
    assert verdict(ratio, 1.15) == {"at_most": 1.15, "holds": holds}
    assert verdict(ratio, None) == {}
