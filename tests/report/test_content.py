import math

import pytest

from leanbayes.report.content import parse


def entry(**parts):
    return parse({"methods": [{"name": "plain", **parts}]}).entries[0]


def test_mean_and_standard_deviation_over_seeds():
    spread = entry(metrics={"nll": [1.0, 2.0, 3.0]}).measures["nll"]
    assert spread.mean == 2.0
    assert spread.std == 1.0
    assert entry(metrics={"nll": 0.5}).measures["nll"].std is None


@pytest.mark.parametrize("value", [None, [], [None], "much", math.nan, [math.inf], {}, True, 10**400])
def test_values_that_are_no_numbers_are_absent(value):
    assert "nll" not in entry(metrics={"nll": value}).measures


def test_overhead_follows_from_the_parameters():
    assert entry(parameters=120, plain_parameters=100).mean("overhead") == pytest.approx(1.2)
    assert "overhead" not in entry(parameters=120, plain_parameters=0).measures


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"augment": "Flip(p=0.5)"}, "Flip(p=0.5)"), ({"augment": None}, "none"), ({}, None), (3, None)],
)
def test_augmentation_is_stated_where_it_is_known(settings, expected):
    facts = dict(parse({"methods": [{"name": "plain"}], "settings": settings}).facts)
    assert facts.get("Augmentation") == expected


def test_broken_parts_are_absent():
    found = entry(
        entropy={"edges": [0, 1, 2], "in": [1], "out": [1, 2]},
        reliability={"count": [0, 3], "confidence": [None, 0.9], "accuracy": [None, 1.0]},
        history=[{"epoch": 1, "nll": None}, "x"],
        corrupted={"1": {"nll": []}, "worst": {"nll": [1]}, "2": {"nll": [1]}},
        examples={"certain": [{"image": [[0]], "probs": {}}, 3], "uncertain": None},
    )
    assert found.entropy is None
    assert [b.count for b in found.reliability] == [3]
    assert found.history == ({"epoch": 1.0},)
    assert list(found.corrupted) == [2]
    assert found.certain == found.uncertain == ()


def test_other_names_of_metrics():
    comparison = parse(
        {"metrics": ["log_predictive_density"], "methods": [{"metrics": {"log_predictive_density": [-1]}}]}
    )
    assert comparison.metrics == ("lpd",)
    assert comparison.entries[0].mean("lpd") == -1


def test_a_failed_method_has_no_results():
    comparison = parse({"methods": [{"name": "emp", "status": "failed", "error": "out of memory"}, {"name": "plain"}]})
    assert [e.name for e in comparison.done] == ["plain"]
    assert comparison.entries[0].failed == "out of memory"
