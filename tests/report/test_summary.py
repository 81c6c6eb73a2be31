import pytest

from leanbayes.report.content import parse
from leanbayes.report.summary import recommended, summarise
from tests.report import fake

CHOICE = "Which method should you choose?"


def method(name, overhead=1.0, **metrics):
    return {"name": name, "title": name.title(), "overhead": overhead, "metrics": metrics}


def findings(*methods, **other):
    content = {"examples": {"test": 400, "ood": 400, "corrupted": 300}, "methods": list(methods), **other}
    return {finding.question: finding for finding in summarise(parse(content))}


def answers(*methods, **other):
    return {question: finding.answer for question, finding in findings(*methods, **other).items()}


def apart(metric="nll", z=-9.0, among=("rank1", "mc_dropout", "plain", "ensemble")):
    """Tests in which every method of a list differs from all after it."""
    return [{"metric": metric, "first": a, "second": b, "z": z} for i, a in enumerate(among) for b in among[i + 1 :]]


PLAIN = method("plain", accuracy=[0.9, 0.9], nll=[0.30, 0.32], ece=[0.05, 0.05])
DROPOUT = method("mc_dropout", accuracy=[0.9, 0.9], nll=[0.28, 0.28], ece=[0.04, 0.04])
RANK1 = method("rank1", 1.1, accuracy=[0.92, 0.92], nll=[0.2, 0.2], ece=[0.01, 0.01])
ENSEMBLE = method("ensemble", 5.0, accuracy=[0.93, 0.93], nll=[0.18, 0.18], ece=[0.02, 0.02])
ALL = (PLAIN, DROPOUT, RANK1, ENSEMBLE)
ENSEMBLE_FIRST = apart(among=("ensemble", "rank1", "mc_dropout", "plain"))


def test_a_small_method_that_beats_plain_training_is_chosen_and_the_ensemble_named():
    found = findings(*ALL, paired=[*ENSEMBLE_FIRST, *apart("accuracy", 0.5)])
    assert found[CHOICE].answer == (
        "Rank1 beats plain training with 1.10× the parameters: NLL 0.2000 instead of 0.3100 on 400 test examples, "
        "while accuracy is a tie (92.00% and 90.00%)."
    )
    assert found[CHOICE].more == ("Ensemble is better (NLL 0.1800) if you can afford 5.00× the parameters.",)
    assert found["And if cost is no object?"].answer == (
        "Ensemble has the best negative log-likelihood (NLL), 0.1800, at 5.00× the parameters of the plain network."
    )
    assert (
        "Rank1 has the smallest calibration error (ECE), 0.0100, against 0.0500 for the plain network."
        in found["Whose probabilities can you take at face value?"].answer
    )


def test_methods_that_no_test_tells_apart_are_tied():
    pairs = [record for record in ENSEMBLE_FIRST if record["second"] == "plain"]
    ties = [record | {"z": 1.0} for record in ENSEMBLE_FIRST if record["second"] != "plain"]
    found = findings(*ALL, paired=pairs + ties)
    assert found[CHOICE].answer.endswith("Mc_Dropout is tied with it.")
    assert found[CHOICE].more == ("Ensemble, at 5.00× the parameters, is tied with it (NLL 0.1800).",)
    assert found["And if cost is no object?"].answer.endswith("Rank1 and Mc_Dropout are tied with it.")
    first = [record | {"z": 1.0 if record["second"] == "plain" else 9.0} for record in ENSEMBLE_FIRST]
    assert findings(*ALL, paired=first)["And if cost is no object?"].answer.endswith(
        ". The plain network is tied with it."
    )
    everyone = findings(*ALL, paired=[record | {"z": 1.0} for record in ENSEMBLE_FIRST])
    assert everyone["And if cost is no object?"].answer.endswith(" All other methods are tied with it.")


def test_plain_training_stays_where_nothing_clearly_beats_it():
    found = findings(*ALL, paired=apart(z=-1.5))
    assert found[CHOICE].answer == (
        "Stay with plain training: on 400 test examples, no method with up to 1.2× its parameters clearly beats its "
        "NLL of 0.3100 without losing accuracy."
    )
    assert recommended(parse({"methods": list(ALL), "paired": apart(z=-1.5)})).name == "plain"


@pytest.mark.parametrize(
    ("methods", "more"),
    [
        ((PLAIN, RANK1 | {"overhead": 1.21}), []),
        ((PLAIN, RANK1), apart("accuracy", -9.0, ("rank1", "plain"))),
        # The more methods, the more of them lead by chance.
        ((PLAIN, DROPOUT, RANK1), apart("nll", -2.1, ("rank1", "mc_dropout", "plain"))),
    ],
    ids=["too large", "less accurate", "chance among several"],
)
def test_nothing_is_chosen_when_one_condition_fails(methods, more):
    pairs = more if more and more[0]["metric"] == "nll" else [*apart(among=("rank1", "plain")), *more]
    assert answers(*methods, paired=pairs)[CHOICE].startswith("Stay with plain training")


def test_where_every_other_method_is_larger_none_is_said_to_have_lost():
    found = answers(PLAIN, ENSEMBLE, paired=apart(z=-1.0, among=("ensemble", "plain")))
    assert found[CHOICE] == (
        "Stay with plain training (NLL 0.3100 on 400 test examples) if you can afford no more than 1.2× its "
        "parameters: every other method here has more."
    )
    assert found["Whose probabilities can you take at face value?"].startswith("Ensemble has the smallest")


def test_without_a_test_nothing_is_said_to_win():
    found = findings(PLAIN, DROPOUT, RANK1)
    assert found[CHOICE].answer.startswith(
        "Rank1 has the best NLL among methods with up to 1.2× the parameters, 0.2000, "
    )
    assert found[CHOICE].answer.endswith("no test says that its lead is more than chance.")
    assert "not tested" in found["How sure is this?"].answer
    # One method that was not tested is enough: nothing can be said of all.
    partly = answers(PLAIN, DROPOUT, RANK1, paired=apart(z=-1.0, among=("rank1", "plain")))
    assert partly[CHOICE].endswith("no test says that its lead is more than chance.")


def test_one_seed_and_few_examples_are_said_to_be():
    once = [PLAIN | {"metrics": {"nll": [0.3]}}, RANK1 | {"metrics": {"nll": [0.2]}}]
    found = findings(*once, seeds=[0], examples={"test": 40}, paired=apart(among=("rank1", "plain")))
    (remark,) = found[CHOICE].more
    assert remark.startswith("With 40 test examples, only large differences show. Each method was trained once")
    assert "40 test examples and one seed" in found["How sure is this?"].answer
    twice = findings(PLAIN, RANK1, seeds=[0, 1], paired=apart(among=("rank1", "plain")))
    assert twice[CHOICE].more == () and "400 test examples and 2 seeds" in twice["How sure is this?"].answer


def test_examples_of_a_group_count_as_one():
    paired = apart(among=("rank1", "plain"))
    few = findings(PLAIN, RANK1, seeds=[0], examples={"test": 400, "test_groups": 30}, paired=paired)
    assert few[CHOICE].more[-1].startswith("With 400 test examples of 30 groups, only large differences show.")
    assert "rest on 400 test examples of 30 groups and one seed" in few["How sure is this?"].answer
    found = findings(PLAIN, RANK1, examples={"test": 400, "test_groups": 4}, paired=paired)
    assert list(found) == [CHOICE]
    assert found[CHOICE].answer.startswith("No answer yet: 400 test examples of 4 groups cannot tell methods apart.")


@pytest.mark.parametrize(("count", "told"), [(1, "1 test example cannot"), (9, "9 test examples cannot")])
def test_a_handful_of_examples_gives_no_answer(count, told):
    found = findings(PLAIN, RANK1, examples={"test": count}, paired=apart(among=("rank1", "plain")))
    assert list(found) == [CHOICE]
    assert found[CHOICE].answer == f"No answer yet: {told} tell methods apart. Collect more data first."


def test_a_method_at_chance_is_not_said_to_be_certain():
    plain = PLAIN | {"ood": {"name": "letters", "auroc": [0.52]}}
    found = findings(plain, RANK1, paired=apart(z=-1.0, among=("rank1", "plain")))
    assert found[CHOICE].more[0] == (
        "Do not rely on the plain network to notice unfamiliar inputs: nothing shows that it is less certain of them "
        "than of the test data (AUROC 52.00%, at chance)."
    )


def test_a_chosen_method_below_chance_is_named_as_such():
    plain = PLAIN | {"ood": {"name": "letters", "auroc": [0.8]}}
    rank1 = RANK1 | {"ood": {"name": "letters", "auroc": [0.4]}}
    dropout = DROPOUT | {"ood": {"name": "letters", "auroc": [0.9]}}
    found = findings(plain, rank1, dropout, data="digits", paired=[
        *apart(among=("rank1", "plain")), *apart(z=-1.0, among=("rank1", "mc_dropout")),
        *apart(z=-1.0, among=("mc_dropout", "plain")),
    ])  # fmt: skip
    assert found[CHOICE].more == (
        "Do not rely on Rank1 to notice unfamiliar inputs: it is more certain of them than of the test data (AUROC "
        "40.00%, below chance). If that matters, take Mc_Dropout (AUROC 90.00%), which is no worse in NLL.",
    )
    assert found["Which recognises unfamiliar inputs?"].answer == (
        "Mc_Dropout: its entropy tells letters from digits best, with an AUROC of 90.00% (50% is chance); "
        "the plain network has 80.00%. Rank1 is below chance."
    )


@pytest.mark.parametrize(
    ("auroc", "count", "word"),
    [(0.5, 400, "at chance"), (0.53, 400, "at chance"), (0.55, 400, None), (0.45, 400, "below chance"),
     (0.55, 40, "at chance"), (0.45, None, "below chance"), (0.51, None, None)],
)  # fmt: skip
def test_chance_depends_on_how_many_examples_there_are(auroc, count, word):
    content = {"methods": [PLAIN | {"ood": {"auroc": [auroc]}}], "examples": {"test": count, "ood": count}}
    comparison = parse(content)
    assert comparison.chance(comparison.entries[0], "auroc") == word


def test_nobody_recognises_unfamiliar_inputs():
    blind = [m | {"ood": {"name": "letters", "auroc": [0.5 - 0.01 * i]}} for i, m in enumerate((PLAIN, RANK1))]
    answer = answers(*blind, data="digits")["Which recognises unfamiliar inputs?"]
    assert answer.startswith("None: no method's entropy tells letters from digits better than chance")


def test_a_network_that_learned_nothing_is_not_chosen():
    found = answers(PLAIN, RANK1, guess={"nll": 0.15}, paired=apart(among=("rank1", "plain")))
    assert found[CHOICE] == (
        "None yet: no method clearly beats the NLL of a constant guess, 0.1500. Train longer, or check the data."
    )


def test_plain_training_is_not_chosen_where_a_guess_is_better():
    against = [{"metric": "nll", "method": name, "z": z} for name, z in (("plain", 5.0), ("ensemble", -5.0))]
    other = {"guess": {"nll": 0.25}, "against_guess": against, "paired": apart(among=("ensemble", "plain"))}
    assert answers(PLAIN, ENSEMBLE, **other)[CHOICE] == (
        "None with up to 1.2× the parameters: none of them clearly beats the NLL of a constant guess, 0.2500. Ensemble "
        "does (0.1800), at 5.00× the parameters."
    )


@pytest.mark.parametrize(("z", "word"), [(-1.5, "at chance"), (1.5, "at chance"), (3.0, "below chance"), (-3.0, None)])
def test_a_lead_over_a_guess_is_tested(z, word):
    leads = [{"metric": "nll", "method": name, "difference": 0.1 * z, "z": z} for name in ("plain", "rank1")]
    content = {"methods": [PLAIN, RANK1], "guess": {"nll": 0.4}, "against_guess": leads, "examples": {"test": 400}}
    comparison = parse(content)
    assert [comparison.chance(entry, "nll") for entry in comparison.entries] == [word] * 2
    chosen = summarise(parse(content | {"paired": apart(z=-1.0, among=("rank1", "plain"))}))[0].answer
    assert chosen.startswith("None yet" if word else "Stay with plain training")


def test_corruption():
    plain, rank1 = (m | {"corrupted": {"5": {"nll": [v]}}} for m, v in ((PLAIN, 2.0), (RANK1, 1.0)))
    assert answers(plain, rank1)["Which holds up on corrupted data?"] == (
        "At severity 5 (300 examples), Rank1 has the best NLL, 1.000, against 2.000 for the plain network. This was "
        "not tested, and may be chance."
    )


def test_regression_speaks_of_densities_and_coverage():
    comparison = parse(fake.comparison(task="regression"))
    text = " ".join(finding.answer for finding in summarise(comparison))
    assert "LPD" in text and "closest to the nominal 95%" in text
    assert "NLL" not in text
    # 1.96 standard errors of a share of 95 % among 359.
    assert "With 359 test examples, 2.3 points either way is within chance." in text


def test_failed_methods_are_not_chosen():
    failed = RANK1 | {"status": "failed", "error": "out of memory"}
    chosen = recommended(parse({"methods": [PLAIN, failed]}))
    assert chosen is not None and chosen.name == "plain"


def test_nothing_to_say():
    assert answers({"name": "plain"}) == {}
    assert list(answers(RANK1).values()) == ["Only Rank1 has results, so there is nothing to choose from."]
