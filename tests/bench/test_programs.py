"""Tables of wide layers and of the digits say what the files say."""

import json

from leanbayes.bench.programs import DIGITS, WIDE, digits_page, wide_page

ABOUT = {"command": "python -m x --out results", "device": "A device", "date": "2030-01-01", "versions": {"torch": "3"}}
LAYER = {
    "name": "linear1",
    "local_over_products": 1.25,
    "at_most": 1.1,
    "holds": False,
    "local_over_plain": 2.0,
    "seconds": {"local": 0.005, "products": 0.004, "plain": 0.0025},
    "work": {"kinds": {"products": 0.0041, "fused by the compiler": 0.0009}},
}
DRAW = {
    "name": "k-tied, 8 x 8",
    "pass": "forward",
    "bytes": 400,
    "bandwidth": 1e7,
    "seconds": 44e-6,
    "draw_over_bytes": 1.1,
    "at_most": 1.2,
    "holds": True,
}
SIZES = {"width": 8, "rows": 2, "tokens": 4, "repeats": 1}


def write(folder, name, **content):
    (folder / name).write_text(json.dumps(ABOUT | content))


def test_wide_layers(tmp_path):
    write(tmp_path, WIDE, rows=[LAYER], draws=[DRAW], settings=SIZES)
    text = wide_page(tmp_path)
    assert "| linear1 | 5.000 | 4.000 | **1.25** (≤ 1.10) | 2.00 |" in text
    assert "| layer | products | fused by the compiler |\n|---|---:|---:|\n| linear1 | 4.100 | 0.900 |" in text
    assert "| k-tied, 8 x 8 | forward | 44.0 | 40.0 | 1.10 (≤ 1.20) |" in text
    assert text.endswith("`python -m x`, 2030-01-01, A device, torch 3. Source: `results/bench-wide-cuda.json`.")


def test_a_profile_stands_where_a_bound_is_missed_alone(tmp_path):
    write(tmp_path, WIDE, rows=[LAYER | {"holds": True}], draws=[DRAW], settings=SIZES)
    assert "Where the time goes" not in wide_page(tmp_path)


def test_the_digits(tmp_path):
    row = {"name": "whole command", "cuda_over_cpu": 0.5, "seconds": {"cpu": 40.0, "cuda": 20.0}}
    write(tmp_path, DIGITS, rows=[row], devices={"cpu": "cpu, 4 threads", "cuda": "A GPU"})
    lines = digits_page(tmp_path).splitlines()
    assert lines[:3] == [
        "|  | cpu, 4 threads, s | A GPU, s | cuda over cpu |",
        "|---|---:|---:|---:|",
        "| whole command | 40.0 | 20.0 | 0.50 |",
    ]


def test_there_may_be_no_result(tmp_path):
    assert wide_page(tmp_path) == "There is no `results/bench-wide-cuda.json` yet."
    assert digits_page(tmp_path) == "There is no `results/bench-digits.json` yet."
