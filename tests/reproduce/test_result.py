"""What a result says follows from its checks."""

import pytest

from leanbayes.reproduce import Check, Outcome, Row
from leanbayes.reproduce.result import published, read_result, spread


def test_the_verdict_is_that_of_the_checks():
    good, bad = Check("a", True, "of no meaning"), Check("b", False, "off by 3")
    assert (Outcome(checks=[good]).verdict, Outcome(checks=[good]).gap) == ("holds", "")
    outcome = Outcome(checks=[good, bad, Check("c", False, "none found")])
    assert (outcome.verdict, outcome.gap) == ("falls short", "off by 3; none found")
    assert [check["gap"] for check in outcome.to_json()["checks"]] == ["", "off by 3", "none found"]


def test_a_check_that_fails_says_by_how_much():
    with pytest.raises(ValueError, match="'b' does not hold and must say"):
        Check("b", False)


def test_rows_are_plain_numbers():
    torch = pytest.importorskip("torch")
    row = Row("net", "accuracy", None, [torch.tensor(0.5), 1]).to_json()
    assert row == {"name": "net", "metric": "accuracy", "published": None, "measured": [0.5, 1.0]}
    assert all(type(value) is float for value in row["measured"])


def test_texts_of_a_table():
    assert spread([1.0, 2.0, 3.0]) == "2 ± 1"
    assert spread([2.0, None]) == "2"
    assert spread([99.25]) == "99.25"
    assert [published(value) for value in (None, 0.5, 11689512, "curve")] == ["-", "0.5", "11,689,512", "curve"]


def test_what_is_no_result_is_none(tmp_path):
    for name, text in {"a": "{", "b": "[]", "c": '{"id": "x"}', "d": '{"verdict": "holds"}'}.items():
        (tmp_path / name).write_text(text)
        assert read_result(tmp_path / name) is None
    assert read_result(tmp_path / "missing") is None
