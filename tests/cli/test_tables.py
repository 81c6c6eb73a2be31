"""The table of a comparison marks what is no better than chance, and the choice is what the report says."""

import io

import pytest
from rich.console import Console

from leanbayes.cli._tables import answer, comparison_table, metric_table, verdict
from leanbayes.report.content import parse
from leanbayes.report.summary import summarise
from tests.report import fake


def shown(result):
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(comparison_table(result))
    return console.export_text()


def test_blind_methods_are_marked():
    result = fake.comparison(methods=3, seeds=1)
    assert "*" not in shown(result) and "359 test examples" in shown(result) and "one seed" in shown(result)
    result["methods"][1]["ood"]["auroc"] = [0.51]
    text = shown(result)
    assert text.count("*") == 2 and "51.00%*" in text and "not clearly better than chance (50%)" in text


def test_brackets_in_the_name_of_a_file_are_no_markup():
    assert "sales [final].csv: 359 test" in shown(fake.comparison() | {"data": "sales [final].csv"})


def test_the_verdict_is_that_of_the_report():
    result = fake.comparison(seeds=1)
    first = summarise(parse(result))[0]
    assert verdict(result).splitlines() == [first.answer, *(f"- {remark}" for remark in first.more)]
    assert first.more and verdict({"methods": []}) == ""


def test_programs_get_the_answer_too():
    result = fake.comparison(seeds=1)
    assert answer(result) == {"recommended": "rank1", "verdict": verdict(result)}
    result["examples"]["test"] = 5
    assert answer(result)["recommended"] is None


def test_a_title_wider_than_its_table_stays_on_one_line():
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(metric_table("Rank-1 Gaussian (4), 359 test examples", {"nll": 0.2}))
    assert console.export_text().splitlines()[0].rstrip() == "Rank-1 Gaussian (4), 359 test examples"


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_figure_is_cut_off_and_prices_have_no_exponent(width):
    result = fake.comparison(methods=3, seeds=1, task="regression")
    for entry in result["methods"]:
        entry["metrics"]["rmse"] = entry["metrics"]["width"] = [45123.4]
        entry["corrupted"] = {"1": {"lpd": [-12.7]}}
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(comparison_table(result, width))
    text = console.export_text()
    assert "…" not in text and text.count("45,123") >= 3 and ("shifted LPD" in text) == (width == 120)
