"""The page of results says what the files say."""

import json

from leanbayes.reproduce import execute
from leanbayes.reproduce.ledger import BEYOND, LEDGER
from leanbayes.reproduce.page import results_page
from tests.reproduce.conftest import make_recipe, quick

BENCHMARK = {
    "id": "bench-predict-loop",
    "command": "python -m benchmarks.run --out /somewhere --repeats 5",
    "device": "A device",
    "versions": {"torch": "2.9"},
    "date": "2030-01-01",
    "rows": [
        {"name": "MLP, a | b", "samples": 50, "batch": 256, "predict_over_loop": 0.0719, "seconds": {"loop": 1.0}}
    ],
}


def test_a_result_is_shown_with_its_gap(tmp_path):
    out = tmp_path / "results"
    execute(make_recipe(), work=tmp_path / "work", out=out, command="leanbayes reproduce vn-toy")
    (out / "vn-toy.png").write_bytes(b"")
    page = results_page(out, "../results/")
    for text in (
        "## Variance Networks\n\n### vn-toy\n\nA title. **Falls short:** it is not below.",
        "| what | metric | published | measured | n |\n| --- | --- | ---: | ---: | ---: |",
        "| first | accuracy | 0.9 | 0.55 ± 0.071 | 2 |",
        "- no: the first is below the limit",
        "Preset short, `leanbayes reproduce vn-toy`, ",
        "- a note",
        "![A title](../results/vn-toy.png)",
        "| [`vn-toy`](#vn-toy) | four classes in the plane",
        "two variance neurons | **falls short** | short |",
        "| `kt-snr` | signal-to-noise ratio of gradients early in training | no result yet |  |",
    ):
        assert text in page, text
    assert page.startswith("## Overview\n\n**Variance Networks**\n\n| result | what | verdict | preset |")
    assert "| `vn-toy` |" not in page and "#speed" not in page and "## Speed" not in page


def test_a_result_that_holds_says_so(tmp_path):
    execute(make_recipe(limit=1.0), work=tmp_path / "work", out=tmp_path)
    page = results_page(tmp_path, "")
    assert "variance neurons | holds | short |" in page
    assert "A title. **Holds.**" in page and "- yes: the first" in page and "![" not in page


def test_a_result_on_generated_data_says_so_beside_its_verdict(tmp_path):
    def measure(run):
        run.load("mnist", rows=(40, 20))
        return quick(run)

    execute(make_recipe(measure=measure), preset="smoke", work=tmp_path / "work", out=tmp_path)
    execute(make_recipe("vn-kl"), work=tmp_path / "work", out=tmp_path)
    page = results_page(tmp_path, "")
    assert "**Not judged:** a smoke run. **On generated data,**" in page and page.count("On generated data") == 1
    assert "| not judged, on generated data | smoke |" in page and page.count("on generated data |") == 1


def test_what_no_paper_shows_stands_apart(tmp_path):
    execute(make_recipe("vn-toy"), work=tmp_path / "work", out=tmp_path)
    execute(make_recipe("emp-finetune"), work=tmp_path / "work", out=tmp_path)
    page = results_page(tmp_path, "")
    assert "## Ensemble Model Patching" not in page
    assert page.index("### vn-toy") < page.index("## Beyond the papers\n\n### emp-finetune")
    assert page.index("**k-tied Normal**") < page.index("**Beyond the papers**") < page.index("| `emp-ablation` | ")


def test_benchmarks_are_tables_of_ratios(tmp_path):
    (tmp_path / "bench-predict-loop-cuda.json").write_text(json.dumps(BENCHMARK))
    page = results_page(tmp_path, "")
    assert "[at the end](#speed)" in page
    assert "### Prediction with many samples against a loop over samples, A device" in page
    assert "| network | samples | batch | predict over loop |" in page
    assert "| MLP, a \\| b | 50 | 256 | 0.07 |" in page
    assert "`python -m benchmarks.run --repeats 5`, 2030-01-01, A device, torch 2.9." in page


def test_other_files_are_left_out(tmp_path):
    (tmp_path / "compare-digits.json").write_text("{}")
    (tmp_path / "vn-toy.json").write_text('{"verdict": "holds", "preset": "short", "date": "", "gap": ""}')
    page = results_page(tmp_path, "")
    assert page.count("\n| `") == len(LEDGER) + len(BEYOND) and page.count("\n## ") == 0
