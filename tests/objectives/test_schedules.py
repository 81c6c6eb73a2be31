import pytest

import leanbayes as lb


def test_linear_anneal_rises_in_a_straight_line_and_stays():
    schedule = lb.LinearAnneal(10)
    assert [schedule(step) for step in (0, 5, 10, 99)] == [0.0, 0.5, 1.0, 1.0]


def test_step_anneal_rises_every_so_many_steps():
    schedule = lb.StepAnneal(per=5e-5, every=100)
    assert schedule(99) == 0.0
    assert schedule(100) == pytest.approx(5e-3)
    assert schedule(199) == pytest.approx(5e-3)
    assert schedule(10**6) == 1.0


@pytest.mark.parametrize(
    "make", [lambda: lb.LinearAnneal(0), lambda: lb.StepAnneal(-1.0), lambda: lb.StepAnneal(0.1, 0)]
)
def test_bad_arguments_are_errors(make):
    with pytest.raises(ValueError, match="takes a"):
        make()
