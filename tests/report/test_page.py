import copy
import html.parser
import json
import re
import xml.etree.ElementTree as ET

import pytest

from leanbayes.report.content import parse
from leanbayes.report.page import render
from tests.report import fake

PLOTS = ["quality-cost", "calibration-parameters", "reliability", "severity", "entropy", "examples", "training"]
HOSTILE = "<img src=x onerror=alert(1)>\"'&</script><script>alert(2)</script>"


class Page(html.parser.HTMLParser):
    """What a test asks about a page; fails on elements that are not closed."""

    VOID = frozenset({"meta", "img", "input", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.headings = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if re.fullmatch(r"h\d", tag):
            self.headings.append(int(tag[1]))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, name, key=None):
        return [attrs for tag, attrs in self.elements if tag == name and (key is None or key in attrs)]

    @property
    def plots(self):
        return [attrs["data-plot"] for attrs in self.all("figure", "data-plot")]


def page(content):
    return Page(render(parse(content)))


@pytest.fixture(scope="module")
def full():
    return render(parse(fake.comparison()))


def test_every_plot_is_there(full):
    assert Page(full).plots == PLOTS


def test_nothing_comes_from_outside(full):
    assert not re.search(r"https?://|@import|url\(", full)
    found = Page(full)
    assert not found.all("link") and not found.all("iframe")
    assert not [attrs for attrs in found.all("script") if "src" in attrs]
    assert all(attrs["src"].startswith("data:image/png;base64,") for attrs in found.all("img"))


def test_structure_for_screen_readers(full):
    found = Page(full)
    for landmark in ("header", "nav", "main", "footer"):
        assert len(found.all(landmark)) == 1
    assert found.headings[0] == 1 and found.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(found.headings, found.headings[1:]))
    pictures = re.findall(r"<svg.*?</svg>", full, re.DOTALL)
    for picture in map(ET.fromstring, pictures):
        hidden = picture.get("aria-hidden") == "true"
        assert hidden or (picture.get("role") == "img" and picture[0].tag == "title" and picture[1].tag == "desc")
    ids = [attrs["id"] for _, attrs in found.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = [attrs["href"].removeprefix("#") for attrs in found.all("a", "href")]
    assert set(targets) <= set(ids)
    assert all("alt" in attrs for attrs in found.all("img"))
    assert all(attrs.get("scope") in ("row", "col") for attrs in found.all("th"))


def test_no_number_is_broken(full):
    assert not re.search(r"\b(nan|inf|None)\b", re.sub(r"<(script|style)>.*?</\1>", "", full, flags=re.DOTALL))


def hostile(value):
    if isinstance(value, str):
        return value if value in ("classification", "done") else HOSTILE
    if isinstance(value, list):
        return [hostile(item) for item in value]
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()}
    return value


def test_every_string_is_escaped():
    content = hostile(fake.comparison(methods=2))
    content["versions"] = {HOSTILE: HOSTILE}
    content["metrics"] = ["accuracy", HOSTILE]
    for method in content["methods"]:
        method["error"] = None
        method["metrics"][HOSTILE] = [0.5]
        method["corrupted"]["1"][HOSTILE] = [0.5]
        method["examples"]["certain"][0]["probs"] = {HOSTILE: 1.0}
    content["methods"].append({"name": HOSTILE, "status": "failed", "error": HOSTILE})
    text = render(parse(content))
    assert "<img src=x" not in text and "onerror=alert(1)>" not in text
    assert text.count("<script>") == 1
    found = page(content)
    assert not [attrs for _, attrs in found.elements if any(key.startswith("on") for key in attrs)]


@pytest.mark.parametrize(
    ("key", "plot"),
    [
        ("corrupted", "severity"),
        ("entropy", "entropy"),
        ("reliability", "reliability"),
        ("history", "training"),
        ("examples", "examples"),
    ],
)
def test_a_missing_part_is_left_out(key, plot):
    content = fake.comparison(methods=3)
    for method in content["methods"]:
        del method[key]
    assert page(content).plots == [name for name in PLOTS if name != plot]


def test_every_key_may_be_missing():
    content = fake.comparison(methods=1)
    for key in content:
        if key != "methods":
            page({k: v for k, v in content.items() if k != key})
    for key in content["methods"][0]:
        for value in ("absent", "text", [None], {"x": None}):
            changed = copy.deepcopy(content)
            for method in changed["methods"]:
                method[key] = value
                if value == "absent":
                    del method[key]
            page(changed)


def test_the_least_there_can_be():
    assert page({"methods": [{}]}).plots == []


def test_regression():
    found = page(fake.comparison(task="regression"))
    assert found.plots == ["quality-cost", "calibration-parameters", "coverage", "position", "intervals", "training"]
    keys = [attrs["data-key"] for attrs in found.all("th", "data-key")]
    assert keys == ["method", "rmse", "lpd", "coverage", "width", "parameters", "train_seconds", "predict_ms"]


def test_best_values_are_marked_in_words():
    content = fake.comparison(methods=3)
    text = render(parse(content))
    row = text[text.index('data-name="deep_ensemble"') :]
    assert "★" in row and " (best)" in row
    assert text.count("★") == text.count(" (best)")


def test_ties_with_the_best_are_marked_in_words():
    content = fake.comparison(methods=10)
    text = render(parse(content))
    rows = {name: text[text.index(f'data-name="{name}"') :].partition("</tr>")[0] for name in ("rank1", "plain")}
    # The ensemble is best; 0.092 is two standard errors away, less than ten methods need, and 0.131 is twelve.
    assert "≈" in rows["rank1"] and " (tied with the best)" in rows["rank1"]
    assert "≈" not in rows["plain"]
    assert "a paired test on the 359 test examples" in text


def test_figures_at_chance_are_called_so():
    content = fake.comparison(methods=2, seeds=1)
    content["methods"][0]["metrics"]["accuracy"] = [0.1]
    content["methods"][1]["ood"]["auroc"] = [0.3]
    text = render(parse(content))
    rows = [text[text.index(f'data-name="{name}"') :].partition("</tr>")[0] for name in ("plain", "mc_dropout")]
    assert all(row.count("below chance") == 1 for row in rows)
    assert "AUROC 30.00%, below chance" in text


@pytest.mark.parametrize(
    ("ends", "written", "word"),
    [((0.1, 0.4), "10–40%", False), ((0.1, 0.96), "10–96%", True), (None, None, False)],
    ids=["better", "too few examples", "not known"],
)
def test_false_alarms_have_a_range(ends, written, word):
    content = fake.comparison(methods=2, seeds=1)
    ood = content["methods"][1]["ood"]
    ood |= {"fpr95": [0.2]}
    ood |= {} if ends is None else {"fpr95_low": [ends[0]], "fpr95_high": [ends[1]]}
    text = render(parse(content))
    cell = text.partition('data-name="mc_dropout"')[2].partition("20.00%")[2].partition("</td>")[0]
    assert ends is None or written in cell
    assert ("at chance" in cell) == word and ("95% of its values" in text) == (ends is not None)


def test_all_false_alarms_are_at_chance_and_never_below():
    """A score that is the same for all examples calls all of them strange, as a guess may."""
    content = fake.comparison(methods=2, seeds=1)
    content["methods"][0]["ood"] |= {"auroc": [0.5], "fpr95": [1.0], "fpr95_low": [1.0], "fpr95_high": [1.0]}
    row = render(parse(content)).partition('data-name="plain"')[2].partition("</tr>")[0]
    assert row.count("at chance") == 2 and "below chance" not in row


def test_axes_of_shares_end_at_one():
    content = fake.comparison(methods=3, seeds=1)
    for method in content["methods"]:
        method["metrics"]["accuracy"] = [0.99]
    assert ">105%<" not in render(parse(content)) and ">100%<" in render(parse(content))


def test_no_star_where_even_the_best_is_a_guess():
    content = fake.comparison(methods=2, seeds=1)
    for method, auroc in zip(content["methods"], (0.1, 0.3)):
        method["ood"] |= {"auroc": [auroc], "fpr95": [0.2 - 0.1 * auroc]}
    row = render(parse(content)).partition('data-name="mc_dropout"')[2].partition("</tr>")[0]
    auroc, fpr95 = row.partition("30.00%")[0].rpartition("<td")[2], row.partition("17.00%")[0].rpartition("<td")[2]
    assert "★" not in auroc and "★" in fpr95


def test_an_entropy_of_zero_is_certain_for_classes_alone(full):
    regression = render(parse(fake.comparison() | {"task": "regression"}))
    assert "in nats: 0 is certain." in full and "in nats: the lower, the more certain." in regression


def test_a_handful_of_examples_gives_stars_to_costs_alone():
    content = fake.comparison(methods=2)
    columns = len(page(content).all("th", "data-key")) - 1
    stars = {}
    for count in (359, 5):
        rows = render(parse(content | {"examples": {"test": count}})).partition("<tbody>")[2].split("<tr")[1:3]
        stars[count] = [any("★" in row.split("<td")[1 + column] for row in rows) for column in range(columns)]
    # Accuracy, NLL, ECE, Brier, AUROC and FPR95; then what methods cost.
    assert stars[359][:6] == [True] * 6 and not any(stars[5][:6])
    assert stars[5][6:] == stars[359][6:] and any(stars[5])


@pytest.mark.parametrize(
    ("date", "shown"),
    [("2026-11-08T09:05:26+00:00", "8 November 2026, 09:05 UTC"), ("2026-11-18 10:40", "18 November 2026, 10:40"),
     ("yesterday", "yesterday")],
)  # fmt: skip
def test_dates_are_written_for_people(date, shown):
    assert f"<dd>{shown}</dd>" in render(parse(fake.comparison(methods=1) | {"date": date}))


@pytest.mark.parametrize(("seeds", "large"), [(1, False), (3, True)])
def test_one_seed_gives_no_choice_in_large_type(seeds, large):
    text = render(parse(fake.comparison(seeds=seeds)))
    assert ('class="verdict-line"' in text) is large and ('class="tentative-line"' in text) is not large


def test_counts_and_notes_are_shown():
    text = render(parse(fake.comparison(methods=2)))
    assert "1,294 for training, 144 for validation, 359 for testing" in text
    assert "3 missing values were replaced by the mean of their column." in text
    assert "Corrupted data, by severity: Gaussian noise" in text and "Unfamiliar inputs: letters." in text
    # They may say that the figures are worth nothing.
    assert text.index('id="notes-title"') < text.index('id="table-title"')


@pytest.mark.parametrize("seeds", [1, 3])
def test_captions_speak_of_seeds_where_there_are_several(seeds):
    text = render(parse(fake.comparison(methods=2, seeds=seeds)))
    assert ("the ECE is the mean over the seeds" in text) == (seeds > 1)
    assert ("averaged over the kinds of corruption and the seeds" in text) == (seeds > 1)


def test_bins_of_few_examples_say_how_few():
    found = page(fake.comparison(methods=1))
    few = [attrs for attrs in found.all("circle") if attrs.get("class") == "dot few"]
    labels = [attrs for attrs in found.all("text") if attrs.get("class") == "count"]
    assert len(few) == len(labels) == 4  # of 1, 4, 6 and 9 examples


def test_a_failed_method_is_shown_with_its_reason():
    content = fake.comparison(methods=3)
    content["methods"][2] |= {"status": "failed", "error": "the loss is not finite"}
    text = render(parse(content))
    assert "Methods that did not finish" in text and "the loss is not finite" in text
    row = text[text.index('data-name="deep_ensemble"') :].partition("</tr>")[0]
    assert "data-value" not in row.partition("</th>")[2]


def test_one_method_and_one_seed():
    content = json.loads(json.dumps(fake.comparison(methods=1, seeds=1)))
    assert page(content).plots == PLOTS


def test_constant_values():
    content = fake.comparison(methods=2)
    for method in content["methods"]:
        method |= {"metrics": {"accuracy": [1.0], "nll": [0.0], "ece": [0.0]}, "predict_ms_per_example": [0.0]}
        method["history"] = [{"epoch": 1, "nll": 0.0}, {"epoch": 2, "nll": 0.0}]
        method["entropy"] = {"edges": [0, 1], "in": [0], "out": [0]}
    page(content)
