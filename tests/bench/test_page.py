"""Tables say what the files say, and there is none where there is no file."""

import json

import pytest

from leanbayes.bench.page import bounds_table, speed_page, speed_summary
from leanbayes.bench.picture import draw
from leanbayes.bench.result import OtherRun
from leanbayes.bench.tables import (
    contender_table,
    figures_of,
    line_of,
    peer_table,
    profile_table,
    source_of,
    start_up_text,
)

PEER = {"package": "other", "version": "1.2", "ours": "mean-field", "same_family": True}


def row(contender, part="step", mode="captured", samples=None, status="done", **more):
    figures = {"seconds": 0.011, "plain_seconds": 0.01, "ratio": 1.1} if status == "done" else {}
    return {"contender": contender, "mode": mode, "part": part, "samples": samples, "status": status} | figures | more


RESULT = {
    "id": "speed-resnet18",
    "title": "ResNet-18 for CIFAR",
    "command": "leanbayes bench resnet18",
    "device": "A device",
    "versions": {"torch": "2.9", "other": "1.2"},
    "date": "2030-01-01",
    "settings": {
        "precision": "bf16",
        "batch": 512,
        "rows": 256,
        "repeats": 20,
        "device": "cuda",
        "network": "resnet18",
    },
    "plain_parameters": 1000,
    "rows": [
        row("plain", ratio=1.0, seconds=0.01),
        row("plain", mode="eager", ratio=1.0, seconds=0.02),
        row("rank1", at_most=1.15, holds=True, parameters=1100),
        row("rank1", mode="eager", ratio=1.9, at_most=1.8, holds=False, parameters=1100),
        row("rank1", "predict", samples=20, ratio=1.0, parameters=1100),
        row("rank1", "predict", samples=100, ratio=0.9, parameters=1100),
        {k: v for k, v in row("rank1", "memory", bytes=2e9).items() if "seconds" not in k},
        row("mc-dropout", ratio=1.3, parameters=1000),
        row("k-tied/local", status="skipped", reason="it does not apply"),
        row("other, noisy", **PEER, over_ours=2.5, at_least=2.0, holds=True),
        row("third", package="third", version=None, status="skipped", reason="third cannot be imported"),
        row("rank1", "scaling", "eager", axis="batch", value=2),
        row("rank1", "scaling", "eager", axis="batch", value=4, bytes=3e6, plain_bytes=2e6),
    ],
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "speed-resnet18-cuda-bf16.json").write_text(json.dumps(RESULT))
    return tmp_path


def test_a_table_of_ratios_with_bounds():
    lines = contender_table(RESULT).splitlines()
    assert lines[0] == (
        "| method | parameters | step, captured | step, eager | 20-sample prediction, captured | "
        "100-sample prediction, captured | memory of a step, captured |"
    )
    assert lines[2] == "| `rank1` | 1.100x | 1.10 (≤ 1.15) | **1.90** (≤ 1.80) | 1.00 | 0.90 | 1.10 |"
    assert "| k-tied/local | skipped: it does not apply |" in lines[3]
    assert lines[-1] == "| plain network | 1,000 | 10 ms | 20 ms |  |  |  |"
    assert len({line.count("|") for line in lines}) == 1


def test_a_table_of_peers():
    lines = peer_table(RESULT).splitlines()
    assert lines[0] == "| library | compared with | step, captured |"
    assert lines[2:] == [
        "| other, noisy 1.2 | `mean-field` | 2.50 (≥ 2.00) |",
        "| third | third cannot be imported | |",
    ]
    assert peer_table(RESULT | {"rows": RESULT["rows"][:3]}) == ""


def test_the_first_page_shows_stated_bounds_alone(folder):
    text = speed_summary(folder)
    assert "`rank1`" in text and "mc-dropout" not in text and "100-sample" not in text
    assert "A device, 2030-01-01, torch 2.9, other 1.2." in text and "`leanbayes bench" not in text
    assert "Source: `results/speed-resnet18-cuda-bf16.json`." in text


def test_the_page_shows_everything(folder):
    assert draw(RESULT, folder / "speed-resnet18-cuda-bf16.png")
    text = speed_page(folder, "../results/")
    assert text.startswith("### ResNet-18 for CIFAR, A device, bfloat16\n\n| method |")
    for part in ("mc-dropout", "other, noisy 1.2", "- third: skipped, third cannot be imported"):
        assert part in text
    assert "](../results/speed-resnet18-cuda-bf16.png)" in text


def test_there_is_no_table_where_there_is_no_result(tmp_path):
    assert speed_summary(tmp_path) == speed_page(tmp_path, "") == ""


def test_a_file_that_is_no_result_is_an_error(tmp_path):
    (tmp_path / "speed-mlp-cpu-32.json").write_text("[]")
    with pytest.raises(OtherRun, match=r"is not a result of `leanbayes bench`"):
        speed_page(tmp_path, "")


def test_bounds_are_those_of_the_code():
    text = bounds_table()
    assert "| `emp` | 1.05 | 1.30 | 1.10 | 1.05 |" in text and "| any other `/local` | 2.05 |" in text
    assert "WRN-28-10 with `rank1` within 1.15 at a batch of 512" in text


def test_lines_of_the_terminal():
    assert line_of(RESULT["rows"][3]) == "rank1, step, eager: 11.000 ms, 1.90x plain (at most 1.80: no)"
    assert line_of(RESULT["rows"][9]).endswith("1.10x plain, 2.50x ours (at least 2.00: yes)")
    assert line_of(RESULT["rows"][6]) == "rank1, memory of a step, captured: 2000 MB, 1.10x plain"
    assert line_of(RESULT["rows"][-1]).startswith("rank1, batch 4, eager")
    assert list(figures_of(RESULT))[0] == "2 of 3 stated bounds hold"


def profiled(contender, mode="eager", **more):
    kinds = {"products": 0.006, "norms": 0.002} if contender == "plain" else {"products": 0.006, "norms": 0.003}
    busy = sum(kinds.values())
    plain = {"plain_kinds": {"products": 0.006, "norms": 0.002}, "plain_busy": 0.008, "plain_seconds": 0.01}
    figures = {"kinds": kinds, "busy": busy, "launches": 40.0, **plain}
    return row(contender, "profile", mode, **figures, **more) | {"seconds": busy + 0.002}


def test_profiles_stand_where_bounds_are_missed(folder):
    added = [profiled("emp"), profiled("rank1"), profiled("plain"), row("emp", mode="eager", at_most=1.3, holds=True)]
    result = RESULT | {"rows": [*RESULT["rows"], *added]}
    (folder / "speed-resnet18-cuda-bf16.json").write_text(json.dumps(result))
    text = speed_page(folder, "")
    assert (
        "| | products | norms | all work | waiting | launches |\n|---|---:|---:|---:|---:|---:|\n"
        "| plain network | 6.00 | 2.00 | 8.00 | 2.00 | 40 |\n| `rank1` | +0.00 | +1.00 | +1.00 | +0.00 | 40 |\n\n"
    ) in text
    assert text.count("Where the time of a step goes") == 1
    # A network without bounds has the profiles that were asked for.
    free = [each for each in result["rows"] if "at_most" not in each]
    assert "`emp` | +0.00" in profile_table(RESULT | {"rows": free}, "eager")


def test_several_networks_are_several_sections(folder):
    other = RESULT | {"title": "MLP", "rows": [row("plain"), row("emp", "predict", samples=100)]}
    (folder / "speed-mlp-cuda-bf16.json").write_text(json.dumps(other))
    text = speed_page(folder, "")
    assert [line for line in text.splitlines() if line.startswith("###")] == [
        "### MLP, A device, bfloat16",
        "### ResNet-18 for CIFAR, A device, bfloat16",
    ]
    assert "| method | parameters | step, captured | 100-sample prediction, captured |" in text


def test_start_ups_are_those_of_what_was_compiled():
    begun = {"startup_s": 71.6, "startup_cached": False, "startup_at_most": 60.0, "startup_holds": False}
    rows = [row("rank1", startup_s=9.0, startup_cached=True), row("emp", **begun)]
    text = start_up_text(RESULT | {"rows": rows})
    assert text == "Seconds until captured steps run, compiling included, at most 60: `emp` **72**."
    assert line_of(rows[0]).endswith("1.10x plain, first after 9 s (compiled before)")
    # What was measured as such takes the place of what other figures tell by the way.
    apart = row("emp", part="start", **begun | {"startup_s": 50.0, "startup_holds": True})
    assert "`emp` 50." in start_up_text(RESULT | {"rows": [*rows, apart]})
    assert line_of(apart) == "emp, start of a step, captured: 50 s"
    assert start_up_text(RESULT) == ""


def test_each_run_is_said_where_several_made_the_rows():
    made = {"command": "leanbayes bench resnet18 --methods emp", "date": "2029-12-31", "versions": {"torch": "2.9"}}
    now = RESULT | {"versions": {"torch": "2.9"}}
    text = source_of(now | {"rows": [row("emp", made=made), row("rank1")]}, "x.json")
    assert (
        "`leanbayes bench resnet18 --methods emp`, 2029-12-31; `leanbayes bench resnet18`, 2030-01-01, A device, "
        "torch 2.9. Source"
    ) in text
    assert "medians over rounds" in text and "medians of" in source_of(now, "x.json")
    brief = source_of(now | {"rows": [row("emp", made=made), row("rank1")]}, "x.json", commands=False)
    assert "A device, 2029-12-31 and 2030-01-01, torch 2.9. Source" in brief and "leanbayes bench" not in brief
    other = source_of(RESULT | {"rows": [row("emp", made=made), row("rank1")]}, "x.json")
    assert "2029-12-31 (torch 2.9); `leanbayes bench resnet18`, 2030-01-01 (torch 2.9, other 1.2), A device." in other


def test_nothing_is_drawn_of_nothing(tmp_path):
    assert not draw(RESULT | {"rows": []}, tmp_path / "x.png") and not (tmp_path / "x.png").exists()
