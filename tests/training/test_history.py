"""History: the best epoch, and how long ago it was."""

import pytest

from leanbayes.training import History


def history(values, **settings):
    name = settings.get("monitor", "valid_nll")
    records = [{"epoch": number, "seconds": 1.0} | ({} if v is None else {name: v}) for number, v in enumerate(values)]
    return History(records, **settings)


def test_less_is_better():
    tested = history([0.5, 0.3, 0.4, None, 0.3])
    assert (tested.best["epoch"], tested.waited) == (1, 2)
    assert tested["valid_nll"] == [0.5, 0.3, 0.4, 0.3]
    assert (len(tested), tested.seconds, tested.last["epoch"]) == (5, 5.0, 4)


def test_more_is_better_for_accuracies():
    assert history([0.5, 0.7, 0.6], monitor="valid_accuracy").best["epoch"] == 1


def test_min_delta():
    tested = history([0.5, 0.45, 0.2], min_delta=0.1)
    assert (tested.best["epoch"], tested.waited) == (2, 0)
    assert history([0.5, 0.45], min_delta=0.1).waited == 1


@pytest.mark.parametrize("monitor", ["valid_nll", "valid_accuracy"])
def test_what_is_no_number_is_worse_than_anything(monitor):
    nan = float("nan")
    tested = history([nan, nan, 0.4, nan], monitor=monitor)
    assert (tested.best["epoch"], tested.waited) == (2, 1)
    assert history([nan, nan, nan], monitor=monitor).waited == 2


def test_empty():
    assert (History().best, History().waited, History().last) == ({}, 0, {})
    with pytest.raises(KeyError, match="no epoch has 'valid_nll'; they have epoch, seconds"):
        history([None])["valid_nll"]
