"""The tree is an order: a package knows what stands before it, and imports it at the top."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src/leanbayes"
# From what knows nothing to what knows all; of two names on one line, either may know the other, but not both.
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
    ("bench", "report"),
    ("board",),
    ("reproduce",),
    ("cli",),
    ("__main__",),
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
# Up to here, nothing imports the package as users do.
CORE = LEVEL["_predict"]
# Files that import others of the package within functions, and what for; commands do so to answer at once.
LATE = {
    "board/ours.py": "scikit-learn is missing where the board is only shown",
    "huggingface/__init__.py": "transformers is heavy",
    "reproduce/recipe.py": "every recipe is found in its folder",
    "training/__init__.py": "Lightning is heavy",
}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def module(path):
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported(path):
    """What a file imports from the package, as dotted names, each with whether that is at the top of the file."""
    tree = ast.parse(path.read_text())
    top = {id(node) for statement in tree.body if isinstance(statement, (ast.Import, ast.ImportFrom, ast.If))
           for node in ast.walk(statement)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            before = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for name in [before + alias.name for alias in node.names]:
                if name.startswith("leanbayes."):
                    yield name, id(node) in top


def owner(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_what_stands_before_it(path):
    own = owner(path)
    assert own in LEVEL, f"{own} has no place in the order"
    for dotted, at_the_top in imported(path):
        name = dotted.split(".")[1]
        known = name in LEVEL
        # Names of the package itself stand for all of it: what is built on the library imports it as users do.
        if not known:
            assert LEVEL[own] > CORE, f"{path.name} imports leanbayes.{name}"
            continue
        assert LEVEL[name] <= LEVEL[own], f"{path.name} imports {name}, which comes after {own}"
        late = own == "cli" or path.relative_to(PACKAGE).as_posix() in LATE
        assert at_the_top or late, f"{path.name} imports {name} within a function"


def test_no_two_files_or_packages_need_each_other():
    modules = {module(path) for path in FILES}
    files = {module(path): {_home(name, modules) for name, _ in imported(path)} for path in FILES}
    packages = {}
    for name, others in files.items():
        own = packages.setdefault(_package(name), set())
        own |= {_package(other) for other in others} - {_package(name)}
    for graph in (files, packages):
        TopologicalSorter(graph).prepare()  # raises an error that names what is in a circle


def _package(name):
    return ".".join(name.split(".")[:2])


def _home(name, modules):
    """The module of a dotted name; the package itself for names that users import from it."""
    while name not in modules and "." in name:
        name = name.rpartition(".")[0]
    return name


def test_importing_the_package_is_light():
    code = (
        "import sys, torch, numpy; before = set(sys.modules); import leanbayes; "
        "print([name for name in set(sys.modules) - before if name not in sys.stdlib_module_names])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(ast.literal_eval(found.stdout)) == ["leanbayes", "leanbayes._version"]


def test_training_and_predicting_need_no_more_than_torch():
    """Triton comes with torch; the rest is in the extras."""
    code = (
        "import sys, torch, numpy; before = set(sys.modules)\n"
        "import leanbayes as lb\n"
        "net = lb.bayesianize(torch.nn.Linear(3, 2), lb.Rank1())\n"
        "lb.ELBO(net, 4)(torch.randn(4, 3), torch.tensor([0, 1, 0, 1])).loss.backward()\n"
        "lb.predict(net, torch.randn(2, 3))\n"
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(tops & {'pandas', 'pyarrow', 'scipy', 'sklearn', 'matplotlib', 'transformers', 'lightning', "
        "'lightning_fabric', 'torchmetrics', 'torchvision', 'tqdm', 'yaml', 'rich'}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_no_file_of_the_core_names_a_family():
    families = {path.stem for path in (PACKAGE / "posteriors").glob("[a-z]*.py")}
    core = [path for path in FILES if owner(path) in ("_kl", "_components", "groups", "_sampling", "objectives")]
    for path in core:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("leanbayes.posteriors."):
                assert node.module.rsplit(".", 1)[1] not in families, f"{path.name} imports {node.module}"
