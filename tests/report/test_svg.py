import pytest

from leanbayes.report.svg import Axis, axis


@pytest.mark.parametrize("values", [[0.1, 0.2], [3.0], [0.0], [-5, 5], [1e-4, 1e4], [1e-9, 2e-9], [0, 1e9]])
def test_an_axis_holds_its_values_and_ticks(values):
    found = axis(values, 0, 100)
    assert all(0 <= found(value) <= 100 for value in values)
    ticks = found.ticks(5)
    assert 1 <= len(ticks) <= 12
    assert all(-1e-6 <= found(tick) <= 100 + 1e-6 for tick in ticks)


def test_logarithmic_axes():
    found = Axis(1, 100, 0, 200, log=True)
    assert found(10) == pytest.approx(100)
    assert found.ticks(5) == [1, 3, 10, 30, 100]
    assert axis([0.01, 10], 0, 1).log
    assert not axis([0, 10], 0, 1).log


def test_an_axis_from_zero():
    assert axis([0.5, 2], 0, 1, log=False, zero=True).low == 0
