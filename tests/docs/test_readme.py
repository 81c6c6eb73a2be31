"""The code of README.md and the documentation runs, and what they say of the tests and results is so."""

import dataclasses
import importlib.util
import re
import sys
import types
from pathlib import Path
from unittest import SkipTest

import pytest

import leanbayes as lb
from leanbayes import _estimator_registry, _registry, methods, ops
from leanbayes.convert import converters
from leanbayes.posteriors import _divergence

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


def test_tables_are_what_the_program_writes():
    spec = importlib.util.spec_from_file_location("build_tables", ROOT / "docs/build_tables.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    tables = {name: build() for name, build in program.TABLES.items()}
    for page in program.PAGES:
        text = (ROOT / page).read_text()
        assert "<!-- table: " in text
        assert program.fill(text, tables) == text, f"{page} is out of date; run python docs/build_tables.py"


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
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
