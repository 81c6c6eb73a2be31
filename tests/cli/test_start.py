"""The command line starts quickly, and helps with misspelt words."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import leanbayes as lb
from leanbayes.cli import main
from leanbayes.compare import Preset, own_preset
from tests.cli.commands import failure
from tests.cli.test_own_tables import SMALL

HEAVY = {"torch", "numpy", "rich", "sklearn", "pyarrow"}


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["compare", "--help"], ["compare", "--smaples", "3"]])
def test_nothing_heavy_is_imported_for_help(words):
    code = (
        f"import sys; from leanbayes.cli import main; main({words!r}); print(); print({HEAVY!r} & sys.modules.keys())"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "set()"


def test_the_package_runs_as_a_program():
    command = [sys.executable, "-m", "leanbayes"]
    assert subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    failed = subprocess.run([*command, "summary", "nothing"], capture_output=True, text=True, check=False)
    assert failed.returncode == 1 and "leanbayes: error: " in failed.stderr


def test_every_public_name_is_there():
    for name in lb.__all__:
        assert getattr(lb, name) is not None
    with pytest.raises(AttributeError, match="module 'leanbayes' has no attribute 'Rank2'"):
        lb.Rank2  # noqa: B018


def test_names_live_where_type_checkers_see_them():
    tree = ast.parse(Path(lb.__file__).read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    homes = {name: module for table in (lb._CORE, lb._APART) for module, names in table.items() for name in names}
    assert homes | dict.fromkeys(lb._PACKAGES, "leanbayes") == seen and set(seen) == set(lb.__all__)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["compare", "digits", "--smaples", "3"], "(did you mean --samples?)"),
        (["compare", "digits", "--epochs", "3", "--learning-rate=1"], "(did you mean --budget and --lr?)"),
        (["compare", "digits", "--lr", "abc"], "--lr: must be a number, not 'abc'"),
        (["compare", "digits", "--batch-size", "abc"], "--batch-size: must be a whole number, not 'abc'"),
        (["compare", "digits", "--metod=plain", "--sed", "1"], "(did you mean --method and --seeds?)"),
        (["comprae", "digits"], "(did you mean compare?)"),
        (["compare", "digits", "--method", "rnak1"], "(did you mean rank1?)"),
        (["compare", "digits", "--missing", "imput"], "(did you mean impute?)"),
    ],
)
def test_the_nearest_word_is_suggested(capsys, words, hint):
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert hint in line


OWN = """
import leanbayes as lb
from leanbayes.compare import Preset

wide = lb.Rank1(components=2)
tempered = Preset("tempered", "Tempered rank-1", lb.Rank1(components=2), kl_weight=0.1)
rank1 = lb.KTied(rank=1)
number = 3


def made():
    return lb.EMP(components=2)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module with methods of one's own, in the current folder."""
    (tmp_path / "my_methods.py").write_text(OWN)
    (tmp_path / "a.csv").write_text("a,y\n" + "".join(f"{i * 0.7:.1f},{i}.5\n" for i in range(40)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield tmp_path
    sys.modules.pop("my_methods", None)


def test_methods_of_ones_own(own, capsys):
    names = ["plain", *(f"my_methods:{name}" for name in ("wide", "tempered", "rank1", "made"))]
    assert main(["compare", "a.csv", *SMALL, "--method", *names, "--out", "out", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    entries = {entry["name"]: entry for entry in result["methods"]}
    assert list(entries) == ["plain", "wide", "tempered", "own-rank1", "made"]
    assert entries["wide"]["method"].startswith("Rank1(components=2,") and entries["tempered"]["kl_weight"] == 0.1
    assert main(["fit", "a.csv", *SMALL, "--method", "my_methods:wide", "--out", "fitted"]) == 0
    assert main(["evaluate", "fitted", "--samples", "2"]) == 0
    assert main(["summary", "mlp", "--method", "my_methods:made"]) == 0


def test_what_is_no_method_of_ones_own(own, capsys):
    words = ["fit", "a.csv", *SMALL, "--out", "out", "--method"]
    assert "there is no module 'your_methods'" in failure(capsys, *words, "your_methods:wide")
    assert "'my_methods:number' is not a method" in failure(capsys, *words, "my_methods:number")
    text = failure(capsys, *words, "my_methods:missing")
    assert "the module 'my_methods' has no 'missing'; its methods are" in text and "wide, tempered" in text


def test_a_method_without_settings():
    assert own_preset("leanbayes:MeanField") == Preset("MeanField", "MeanField", lb.MeanField())
