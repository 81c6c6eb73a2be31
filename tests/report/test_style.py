"""Contrast in both themes, after WCAG 2."""

import itertools
import re
from importlib import resources

import pytest

STYLE = resources.files("leanbayes.report").joinpath("style.css").read_text(encoding="utf-8")
COLOURS = {name: pair for name, *pair in re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", STYLE)}
METHODS = [name for name in COLOURS if re.fullmatch(r"m\d+", name)]


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(one, two):
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "soft", "accent", "star", "wrong"])
def test_text_can_be_read(name, theme):
    for ground in ("bg", "panel"):
        assert contrast(COLOURS[name][theme], COLOURS[ground][theme]) >= 4.5


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_marks_stand_out(theme):
    assert len(METHODS) == 12
    assert all(contrast(COLOURS[name][theme], COLOURS["bg"][theme]) >= 4 for name in METHODS)
    assert len({COLOURS[name][theme] for name in METHODS}) == 12


def test_no_two_of_28_methods_look_alike():
    from leanbayes.report.svg import _DASHES, _SHAPES, colour, dash, mark

    assert len(_SHAPES) == 7 and len(_DASHES) == 4
    looks = {(colour(i), mark(0, 0, i)) for i in range(28)}
    assert len(looks) == 28
    assert len({(dash(i), mark(0, 0, i)) for i in range(28)}) == 28
    assert not any(dash(a) == dash(b) for a, b in itertools.pairwise(range(12)))
