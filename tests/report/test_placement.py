import itertools

import numpy as np
import pytest

from leanbayes.report.placement import Box, place_labels, spread_out

BOUNDS = Box(60, 30, 940, 370)


def test_labels_cover_neither_each_other_nor_points():
    rng = np.random.default_rng(0)
    points = [(float(x), float(y)) for x, y in rng.uniform((150, 80), (500, 300), (12, 2))]
    places = place_labels(points, ["Rank-1 (Gaussian)"] * 12, BOUNDS)
    for a, b in itertools.combinations([place.box for place in places], 2):
        assert a.overlap(b) == 0
    for place in places:
        assert place.box.inside(BOUNDS)
        assert all(not Box(x - 5, y - 5, x + 5, y + 5).overlap(place.box) for x, y in points)


def test_points_in_one_place_still_get_separate_labels():
    places = place_labels([(300.0, 200.0)] * 6, ["method"] * 6, BOUNDS)
    assert not any(a.box.overlap(b.box) for a, b in itertools.combinations(places, 2))


def test_a_label_that_fits_nowhere_is_kept():
    assert len(place_labels([(5.0, 5.0)], ["a very long name"], Box(0, 0, 10, 10))) == 1
    assert place_labels([], [], BOUNDS) == []


def test_spreading_out_keeps_order_gap_and_bounds():
    wanted = [50.0, 51.0, 52.0, 10.0, 99.0, 98.0]
    placed = spread_out(wanted, gap=12, low=0, high=100)
    order = np.argsort(wanted)
    assert list(np.argsort(placed)) == list(order)
    assert np.diff(np.sort(placed)).min() >= 12 - 1e-9
    assert min(placed) >= 0 and max(placed) <= 100


def test_spreading_out_more_than_fits_uses_all_the_room():
    assert spread_out([5.0] * 5, gap=50, low=0, high=100) == pytest.approx([0, 25, 50, 75, 100])
