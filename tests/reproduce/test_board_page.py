"""The page of the board says what the results say."""

import json

import pytest

from leanbayes.reproduce.board_page import better_page, networks_page, tables_page

ABOUT = {
    "verdict": "falls short", "gap": "the trees are better", "preset": "short", "date": "2030-01-01",
    "title": "A title", "command": "leanbayes reproduce", "device": "cpu", "versions": {}, "seconds": 1.0, "rows": [],
    "checks": [], "notes": ["a note"],
}  # fmt: skip


def write(folder, id, figure):
    (folder / f"{id}.json").write_text(json.dumps(ABOUT | {"id": id, "figure": figure}))


@pytest.fixture
def tables(tmp_path):
    """Two regressions and a classification; trees are better on yacht and quicker, and have no figure on energy."""
    titles = {"default": "leanbayes, default", "rank1": "leanbayes, rank-1", "random-forest": "random forest"}

    def by(default, rank1, trees):
        keys = ("yacht", "energy", "wine")[: len(default)] if len(default) > 1 else ("wine",)
        return {
            name: dict(zip(keys, v)) for name, v in (("default", default), ("rank1", rank1), ("random-forest", trees))
        }

    means = {
        "log density": by([-1.0, 0.5], [-1.5, 0.75], [-0.5, None]),
        "rmse": by([1.0, 1.0], [1.0, 2.0], [2.0, None]),
        "coverage": by([0.88, 0.8], [0.95, 0.9], [0.6, None]),
        "nll": by([0.1], [0.2], [0.3]),
        "accuracy": by([0.9], [0.95], [0.97]),
        "ece": by([0.1], [0.2], [0.3]),
        "seconds": by([8.0, 4.0, 6.0], [9.0, 9.0, 9.0], [1.0, None, 0.5]),
    }
    figure = {"titles": titles, "tables": {"yacht": "Yacht", "energy": "Energy", "wine": "wine"}, "means": means}
    write(tmp_path, "board-tables", figure)
    return tmp_path


def networks(folder, unclear, rank1=0.13):
    titles = {"plain": "Plain network", "deep-ensemble": "Deep ensemble (5)", "rank1": "Rank-1 Gaussian (4)"}
    values = {
        "nll": (0.2, 0.12, rank1), "accuracy": (0.94, 0.96, 0.95), "ece": (0.03, 0.01, 0.005),
        "overhead": (1.0, 5.0, 1.01), "seconds": (30.0, 150.0, 120.0), "parameters": (100, 500, 101),
    }  # fmt: skip
    means = {m: {name: {"cifar10": v} for name, v in zip(titles, numbers)} for m, numbers in values.items()}
    lean = {"rank1": {"share": 0.875, "unclear": unclear}}
    figure = {"titles": titles, "sets": {"cifar10": "CIFAR-10"}, "networks": {"cifar10": "resnet18"}, "means": means}
    write(folder, "board-networks", figure | {"paired": {}, "lean": {"cifar10": lean}})


def test_without_results_the_page_says_so(tmp_path):
    for text in (tables_page(tmp_path, ""), networks_page(tmp_path, ""), better_page(tmp_path)):
        assert text.startswith("There is no result for `board-") and "leanbayes reproduce board-" in text


def test_generated_data_say_nothing_of_what_is_better(tables):
    result = json.loads((tables / "board-tables.json").read_text())
    (tables / "board-tables.json").write_text(json.dumps(result | {"notes": ["generated data"]}))
    assert "The data are generated, so the figures mean nothing." in tables_page(tables, "")
    assert better_page(tables).startswith("There is no result for `board-tables` on real data yet")


def test_tables_are_ranked_and_the_best_is_bold(tables):
    (tables / "board-tables.png").write_bytes(b"")
    lines = tables_page(tables, "../results/").splitlines()
    assert "|  | log density | RMSE | coverage | NLL | accuracy | ECE | seconds |" in lines
    ranks = "0.75 (0/2) | 0.00 (2/2) | 0.50 (1/2) | 0.00 (1/1) | 1.00 (0/1)".replace(" (", "&nbsp;(")
    default = f"| leanbayes, default | {ranks} |"
    assert any(line.startswith(default) for line in lines)
    assert "| random forest | **-0.500** | - |" in lines and "| leanbayes, rank-1 | -1.500 | **0.750** |" in lines
    assert "![A title](../results/board-tables.png)" in lines and "- a note" in lines
    assert any(line.startswith("It falls short: the trees are better.") for line in lines)


def test_what_is_better_on_tables_is_named(tables):
    text = better_page(tables)
    assert "By log density or NLL, something else is best on 1 of 3 tables:" in text
    assert "- Yacht: random forest, -0.5000; leanbayes, default has -1.000" in text
    assert "- wine: random forest, 0.9700; leanbayes, rank-1 has 0.9500" in text
    # On the tables that both were run on.
    assert "- random forest: 0.75 s; on the same tables, the default takes 7 s" in text
    assert "energy" not in text.lower()


def test_networks_have_their_figures_and_what_is_better(tmp_path):
    networks(tmp_path, unclear=[])
    page = networks_page(tmp_path, "")
    assert "CIFAR-10, network `resnet18`:" in page
    assert "| Rank-1 Gaussian (4) | 95.00% | 0.1300 | 0.0050 | 1.010x | 120 s |" in page
    better = better_page(tmp_path)
    assert "- CIFAR-10, Deep ensemble (5): NLL 0.1200 with 5.00 times the parameters; Rank-1" in better
    assert "plain network:" not in better
    networks(tmp_path, unclear=[["nll", "plain"]])
    assert "- CIFAR-10, the plain network: no method of at most 1.2 times the parameters" in better_page(tmp_path)
    networks(tmp_path, unclear=[], rank1=0.11)
    assert "the lowest NLL on every set" in better_page(tmp_path)
