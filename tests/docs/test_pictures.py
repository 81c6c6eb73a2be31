"""The pictures that are drawn from results show those that are there."""

import copy
import importlib
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
pictures = importlib.import_module("make_pictures")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    pictures.plt.close("all")


@pytest.mark.parametrize("name", pictures.FROM_RESULTS)
def test_a_picture_shows_the_results_that_are_there(name):
    with Image.open(ROOT / f"docs/images/{name}.png") as image:
        drawn = image.info["Source"]
    assert drawn == pictures.fingerprint(pictures.read_results(name)), f"run python docs/make_pictures.py {name}"


def test_the_fingerprint_is_that_of_figures_and_not_of_the_day():
    results = pictures.read_results("variance-samples")
    later, other = copy.deepcopy(results), copy.deepcopy(results)
    later["vn-samples"]["date"] = "2000-01-01"
    other["vn-samples"]["figure"]["draws"][0] += 0.01
    assert pictures.fingerprint(later) == pictures.fingerprint(results) != pictures.fingerprint(other)


def test_the_transition_has_a_column_for_each_network():
    results = pictures.read_results("variance-transition")
    shown = [results["vn-mnist"]["figure"]["curves"], results["vn-priors"]["figure"]["log-uniform"]]
    axes = pictures.transition(results).axes
    for curves, upper, lower in zip(shown, axes[:2], axes[2:], strict=True):
        for line, name in zip(upper.lines, pictures.CURVES, strict=True):
            assert line.get_xdata().tolist() == curves["epoch"] and line.get_ydata().tolist() == curves[name]
        assert lower.lines[0].get_ydata().tolist() == curves["log alpha"]


def test_pruning_starts_at_the_dense_network():
    results = pictures.read_results("variance-pruning")
    left, right = pictures.pruning(results).axes
    dense = [one["dense"] for networks in results["vn-prune"]["figure"].values() for one in networks]
    assert [line.get_ydata()[0] for line in left.lines] == dense
    assert {line.get_xdata()[0] for line in (*left.lines, *right.lines)} == {100.0}
    levels = [float(level) for level in results["vn-kappa"]["figure"]["runs"][0]["pruned"]]
    assert right.lines[0].get_xdata()[1:] == pytest.approx([100 - 100 * level for level in levels])


def test_outlines_of_activations_have_one_height():
    results = pictures.read_results("variance-activations")
    for axes in pictures.activations(results).axes:
        tops = [max(line.get_ydata()) - place for place, line in enumerate(axes.lines)]
        assert tops == pytest.approx([0.9] * len(tops))
