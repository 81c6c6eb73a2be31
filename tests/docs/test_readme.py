"""The code of README.md and the documentation runs, and what they say of the tests and results is so."""

import dataclasses
import pkgutil
import re
import shlex
import sys
import types
from pathlib import Path
from unittest import SkipTest

import build_tables
import pytest
from tables_of_results import FINETUNE_METRICS, finetune_table, result_table, verdicts_table

import leanbayes as lb
from leanbayes import _estimator_registry, _registry, methods, ops
from leanbayes.cli._main import _parse
from leanbayes.convert import converters
from leanbayes.posteriors import _divergence
from leanbayes.reproduce import PRESETS, Check, Outcome, Recipe, Row, execute

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- not run: [^\n]+ -->\n)?^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(path):
    """The Python blocks of a page that are to run, each with the line it starts on."""
    text = path.read_text()
    return [(m[2], text[: m.start(2)].count("\n")) for m in BLOCK.finditer(text) if m[1] is None]


WITH_CODE = [path for path in PAGES if blocks(path)]
each_page = pytest.mark.parametrize("path", WITH_CODE, ids=[path.name for path in WITH_CODE])


@pytest.fixture
def own_registries(monkeypatch):
    """What a page registers is forgotten after its test."""
    for module, name in (
        (_registry, "_REGISTRY"),
        (_divergence, "_PAIRS"),
        (ops, "_OPS"),
        (converters, "_CONVERTERS"),
        (_estimator_registry, "_ESTIMATORS"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name).copy())


def run_page(path, monkeypatch):
    """Run the blocks of a page one after the other, in one module."""
    page = types.ModuleType(f"page_{path.stem}")
    monkeypatch.setitem(sys.modules, page.__name__, page)  # pickles look classes up there
    for code, line in blocks(path):
        exec(compile("\n" * line + code, str(path), "exec"), vars(page))
    return page


def run_tests(page):
    """Run the test functions and suites that a page defines; returns how many checks passed."""
    passed = 0
    for name, value in list(vars(page).items()):
        checks = [value] if name.startswith("test_") else []
        if name.startswith("Test"):
            checks = [getattr(value(), check) for check in dir(value) if check.startswith("test_")]
        for check in checks:
            getattr(getattr(check, "__self__", None), "setup_method", lambda: None)()
            try:
                check()
            except SkipTest:
                continue
            passed += 1
    return passed


@each_page
def test_code_blocks_run(path, monkeypatch, tmp_path, own_registries):
    monkeypatch.chdir(tmp_path)
    page = run_page(path, monkeypatch)
    passed = run_tests(page)
    if path.name == "extending.md":
        assert passed > 25


def test_registries_are_as_they_were():
    assert not {"LaplaceField", "LaplacePrior"} & set(methods.registered())


def test_the_readme_shows_the_example_that_is_a_file():
    code = (ROOT / "examples/plain_loop.py").read_text().split('"""\n', 1)[1].strip()
    assert blocks(ROOT / "README.md")[0][0].strip() == code


def test_the_table_of_tuned_patches_says_what_the_result_says(tmp_path):
    path = tmp_path / "emp-finetune.json"
    assert finetune_table(path).startswith("There is no ")

    def measure(run):
        metrics = [name + text for text in ("", ", corrupted images") for name in FINETUNE_METRICS]
        rows = [Row("as trained", metric, None, [number + 0.5]) for number, metric in enumerate(metrics)]
        rows.append(Row("patches tuned", "time, % of that of training", None, [4.0]))
        return Outcome(rows, [Check("ECE", False, "the ECE is 3 above")])

    empty = dict.fromkeys(PRESETS, {})
    recipe = Recipe("emp-finetune", "A title", empty, dict.fromkeys(PRESETS, (0,)), measure)
    execute(recipe, work=tmp_path / "work", out=tmp_path, command="leanbayes reproduce emp-finetune")
    table = finetune_table(path)
    assert "| as trained | 0.5 | 1.5 | 2.5 | 3.5 | 4.5 | 5.5 |" in table and "| patches tuned |" not in table
    assert "It falls short: the ECE is 3 above. Time over that of training, patches tuned: 4 %." in table


def test_a_table_of_one_result_has_its_figures_and_verdict(tmp_path):
    metrics = {"NLL": "loss", "ECE": "error"}
    assert result_table("new", "method", metrics, tmp_path / "results") == "There is no `results/new.json` so far."

    def measure(run):
        rows = [Row("a", "NLL", 0.25, [0.5, 0.7]), Row("a", "other", None, [1.0]), Row("b", "ECE", None, [0.1])]
        return Outcome(rows, [Check("a is good", False, "a is bad")], notes=["generated rows"])

    empty = dict.fromkeys(PRESETS, {})
    recipe = Recipe("new", "something new", empty, dict.fromkeys(PRESETS, (0,)), measure)
    execute(recipe, preset="short", work=tmp_path / "work", out=tmp_path / "results", progress=False)
    lines = result_table("new", "method", metrics, tmp_path / "results").splitlines()
    assert lines[:4] == [
        "| method | loss | error |",
        "|---|---:|---:|",
        "| a | 0.6 ± 0.14 (0.25) |  |",
        "| b |  | 0.1 |",
    ]
    assert "It falls short: a is bad. On generated data" in lines[5]


def test_the_table_of_verdicts_names_what_holds_what_does_not_and_what_is_missing(tmp_path):
    for id, gap in (("kt-params", ""), ("kt-snr", "the ratio is 3")):
        recipe = Recipe(
            id,
            "A title",
            dict.fromkeys(PRESETS, {}),
            dict.fromkeys(PRESETS, (0,)),
            lambda run, gap=gap: Outcome([Row("one", "ratio", None, [1.0])], [Check("a ratio", not gap, gap)]),
        )
        execute(recipe, work=tmp_path / "work", out=tmp_path)
    table = verdicts_table("kt", tmp_path)
    assert "| [`kt-params`](results.md#kt-params) | parameter counts of k-tied networks | holds | short |" in table
    assert "| falls short: the ratio is 3 | short |" in table
    assert "Without a result so far: `kt-spectrum`, `kt-heatmap`" in table and "`vn-" not in table


def test_tables_are_what_the_program_writes():
    tables = {name: build() for name, build in build_tables.TABLES.items()}
    for page in build_tables.PAGES:
        text = (ROOT / page).read_text()
        assert "<!-- table: " in text
        assert build_tables.fill(text, tables) == text, f"{page} is out of date; run python docs/build_tables.py"


def test_every_pitfall_names_its_test():
    page = (ROOT / "docs/pitfalls.md").read_text()
    named = re.findall(r"`(test_\d\d_\w+)`", page)
    there = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        there |= set(re.findall(r"^ *def (test_\d\d_\w+)\(", path.read_text(), re.MULTILINE))
    assert set(named) <= there
    numbers = [int(number) for number in re.findall(r"^## (\d+)\.", page, re.MULTILINE)]
    assert numbers == list(range(1, 34)) == sorted({int(name[5:7]) for name in named})


def test_the_reference_has_every_public_name():
    listed = set(
        re.findall(r"^::: leanbayes\.(?:learn\.)?(\w+)", (ROOT / "docs/reference.md").read_text(), re.MULTILINE)
    )
    assert not set(lb.__all__) - listed


def test_methods_are_listed_with_their_arguments():
    text = (ROOT / "docs/methods.md").read_text()
    for name, cls in methods.registered().items():
        if issubclass(cls, lb.Method) and cls.__module__.startswith("leanbayes."):
            signature = re.search(rf"`{name}\(([^`]*)\)`[^|]", text)
            assert signature, f"{name} has no signature"
            shown = re.findall(r"(\w+)=", signature[1])
            fields = {field.name for field in dataclasses.fields(cls)}
            assert set(shown) <= fields <= {*shown, "estimator"}, name


def test_links_between_pages_lead_somewhere():
    for path in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text()):
            page = path.parent / target if target else path
            assert page.exists(), f"{path.name} links to {target}"
            assert not anchor or anchor in anchors(page), f"{path.name} links to {target}#{anchor}"


def anchors(page):
    """What links may name behind the #: the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower())) for heading in headings}


@pytest.mark.parametrize("home", ["README.md", "docs/index.md"])
def test_every_page_is_found_from_the_first_one(home):
    linked = set(re.findall(r"\]\((?:docs/)?([\w-]+\.md)\)", (ROOT / home).read_text()))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"} <= linked


def test_commands_have_arguments_that_exist():
    for path in PAGES:
        text = path.read_text()
        lines = re.findall(r"^(leanbayes .*?)(?: +#.*)?$", text, re.MULTILINE)
        named = [" ".join(code.split()) for code in re.findall(r"`(leanbayes \w+ [^`]+)`", text)]
        for command in dict.fromkeys(lines + named):
            try:
                _parse([word.strip("[]") for word in shlex.split(command)[1:] if word != "..."])
            except SystemExit:
                pytest.fail(f"{path.name}: {command}")


def test_names_exist():
    """Also those in sentences and in code that is not run."""
    for path in PAGES:
        text = path.read_text()
        for name in re.findall(r"\blb((?:\.\w+)+)", text):
            assert exists(f"leanbayes{name}"), f"{path.name} names lb{name}"
        for name in re.findall(r"`(leanbayes(?:\.\w+)+)", text):
            assert name == "leanbayes.safetensors" or exists(name), f"{path.name} names {name}"


def exists(dotted):
    try:
        pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True
