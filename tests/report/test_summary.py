import pytest

from leanbayes.report.content import parse
from leanbayes.report.summary import recommended, summarise
from tests.report import fake


def method(name, overhead=1.0, **metrics):
    return {"name": name, "title": name.title(), "overhead": overhead, "metrics": metrics}


def answers(*methods, **other):
    return {finding.question: finding.answer for finding in summarise(parse({"methods": list(methods), **other}))}


PLAIN = method("plain", accuracy=[0.9, 0.9], nll=[0.30, 0.32], ece=[0.05, 0.05])
DROPOUT = method("mc_dropout", accuracy=[0.9, 0.9], nll=[0.28, 0.28], ece=[0.04, 0.04])
RANK1 = method("rank1", 1.1, accuracy=[0.92, 0.92], nll=[0.2, 0.2], ece=[0.01, 0.01])
ENSEMBLE = method("ensemble", 5.0, accuracy=[0.93, 0.93], nll=[0.18, 0.18], ece=[0.02, 0.02])


def test_a_small_method_that_beats_both_baselines_is_chosen():
    found = answers(PLAIN, DROPOUT, RANK1, ENSEMBLE)
    assert found["Which method to choose?"] == (
        "Choose Rank1. With 1.10× the plain network's parameters it beats the plain network and Mc_Dropout in "
        "NLL (0.2000 against 0.3100 and 0.2800) and ECE (0.0100 against 0.0500 and 0.0400), and loses no accuracy "
        "against the plain network."
    )
    assert found["And if cost does not matter?"] == (
        "Ensemble has the best negative log-likelihood (NLL): 0.1800, at 5.00× the parameters of the plain network."
    )
    assert (
        "Rank1 has the smallest calibration error (ECE), 0.0100"
        in found["Whose probabilities can be taken at face value?"]
    )


@pytest.mark.parametrize(
    "change",
    [{"accuracy": [0.89, 0.9]}, {"ece": [0.045, 0.045]}, {"nll": [0.29, 0.29]}],
    ids=["accuracy", "ece", "nll"],
)
def test_nothing_is_claimed_when_one_condition_fails(change):
    loser = RANK1 | {"metrics": RANK1["metrics"] | change}
    assert answers(PLAIN, DROPOUT, loser, ENSEMBLE)["Which method to choose?"].startswith("No method at up to 1.2×")


def test_a_large_method_is_not_chosen_as_small():
    large = RANK1 | {"overhead": 1.21}
    assert answers(PLAIN, DROPOUT, large)["Which method to choose?"].startswith("No method at up to 1.2×")


def test_a_lead_within_the_noise_is_said_to_be():
    noisy = RANK1 | {"metrics": RANK1["metrics"] | {"nll": [0.1, 0.4]}}
    answer = answers(PLAIN, DROPOUT, noisy)["Which method to choose?"]
    assert (
        "Its lead over the plain network in NLL and over Mc_Dropout in NLL is within one standard deviation" in answer
    )


def test_a_baseline_without_numbers_is_not_said_to_be_beaten():
    empty = {"name": "mc_dropout", "title": "MC dropout"}
    assert "MC dropout" not in answers(PLAIN, empty, RANK1)["Which method to choose?"]


def test_noise_between_methods():
    twin = method("emp", nll=[0.19, 0.17])
    near = method("ecmp", nll=[0.18, 0.19])
    assert answers(twin, near)["How sure is this?"].startswith(
        "Over 2 seeds, Ecmp is within one standard deviation of Emp"
    )
    assert "one seed" in answers(PLAIN, RANK1, seeds=[0])["How sure is this?"]


def test_corruption_and_unfamiliar_inputs():
    plain = PLAIN | {"corrupted": {"5": {"nll": [2.0]}}, "ood": {"name": "letters", "auroc": [0.8]}}
    rank1 = RANK1 | {"corrupted": {"5": {"nll": [1.0]}}, "ood": {"name": "letters", "auroc": [0.9]}}
    found = answers(plain, rank1, data="digits")
    assert found["Which holds up on corrupted data?"] == (
        "At severity 5, Rank1 has the best NLL, 1.000, against 2.000 for the plain network."
    )
    assert found["Which recognises unfamiliar inputs?"] == (
        "Rank1 tells letters from digits best by its entropy: AUROC 90.00\u00a0%, against 80.00\u00a0% for the plain "
        "network."
    )


def test_regression_speaks_of_densities_and_coverage():
    comparison = parse(fake.comparison(task="regression"))
    text = " ".join(finding.answer for finding in summarise(comparison))
    assert "LPD" in text and "closest to the nominal 95\u00a0%" in text
    assert "NLL" not in text


def test_failed_methods_are_not_chosen():
    failed = RANK1 | {"status": "failed", "error": "out of memory"}
    chosen = recommended(parse({"methods": [PLAIN, failed]}))
    assert chosen is not None and chosen.name == "plain"


def test_nothing_to_say():
    assert answers({"name": "plain"}) == {}
    assert list(answers(RANK1).values()) == ["Only Rank1 has results, so there is nothing to choose from."]
