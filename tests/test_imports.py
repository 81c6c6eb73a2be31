"""The tree is an order: a package knows what stands before it, and imports it at the top."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src/leanbayes"
# From what knows nothing to what knows all; names on one line may know each other.
ORDER = [
    ("_version", "_checks", "_registry", "_estimator_registry", "_inputs", "_moves", "_rows", "_owners"),
    ("_sampling", "noise"),
    ("kernels", "compiling"),
    ("ops",),
    ("priors",),
    ("groups",),
    ("posteriors",),
    ("parameter", "methods"),
    ("_kl", "_components"),
    ("estimators",),
    ("models",),
    ("nn",),
    ("convert",),
    ("_apart",),
    ("_int8", "_quantize", "_summary", "_save", "_saved_file", "_pretrained"),
    ("objectives",),
    ("_modes", "_prediction", "_prefix", "_auto_samples", "_chunks", "_sample_plan", "_predict"),
    ("_machine", "corruptions", "data", "metrics", "testing", "training"),
    ("analysis", "huggingface", "rl"),
    ("compare",),
    ("learn",),
    ("bench", "board", "report", "reproduce"),
    ("cli",),
    ("__main__",),
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
# Up to here nothing is imported within functions; commands and readers do so where a dependency is heavy.
CORE = LEVEL["_predict"]
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def part(module):
    """The name under the package that a module belongs to, None for other packages."""
    names = module.split(".")
    return names[1] if names[0] == "leanbayes" and len(names) > 1 else None


def imported(path):
    """Parts of the package that a file imports, each with whether that is at the top of the file."""
    tree = ast.parse(path.read_text())
    top = {id(node) for statement in tree.body if isinstance(statement, (ast.Import, ast.ImportFrom, ast.If))
           for node in ast.walk(statement)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            package = node.module == "leanbayes"
            found = [f"leanbayes.{alias.name}" for alias in node.names] if package else [node.module]
        else:
            continue
        for module in found:
            if part(module) is not None:
                yield part(module), id(node) in top


def owner(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_what_stands_before_it(path):
    own = owner(path)
    assert own in LEVEL, f"{own} has no place in the order"
    for name, at_the_top in imported(path):
        known = name in LEVEL
        # Names of the package itself stand for all of it: what is built on the library imports it as users do.
        if not known:
            assert LEVEL[own] > CORE, f"{path.name} imports leanbayes.{name}"
            continue
        assert LEVEL[name] <= LEVEL[own], f"{path.name} imports {name}, which comes after {own}"
        assert at_the_top or LEVEL[own] > CORE, f"{path.name} imports {name} within a function"


def test_no_file_of_the_core_names_a_family():
    families = {path.stem for path in (PACKAGE / "posteriors").glob("[a-z]*.py")}
    core = [path for path in FILES if owner(path) in ("_kl", "_components", "groups", "_sampling", "objectives")]
    for path in core:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("leanbayes.posteriors."):
                assert node.module.rsplit(".", 1)[1] not in families, f"{path.name} imports {node.module}"
