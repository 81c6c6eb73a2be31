"""The meter's means are those of the examples, whenever values are fetched."""

import pytest
import torch

from leanbayes.objectives import Terms
from leanbayes.training.meter import Meter

CPU = torch.device("cpu")


def terms(loss):
    value = torch.tensor(loss, requires_grad=True)
    return Terms(value * 1, value * 2, value * 3, value)


def itself(values):
    return values


def test_means_over_examples():
    meter = Meter(CPU)
    meter.add(terms(1.0), 3)
    meter.add(terms(5.0), 1)
    assert meter.close_window(itself) == {"loss": 2.0, "nll": 4.0, "kl": 6.0}
    meter.add(terms(8.0), 4)
    assert meter.close_window(itself)["loss"] == 8.0
    assert meter.close_epoch(itself)["loss"] == 5.0
    assert meter.epoch == [0.0] * 4


def test_sums_do_not_depend_on_when_they_are_fetched():
    losses = torch.rand(600).tolist()
    first, second = Meter(CPU), Meter(CPU)
    for number, loss in enumerate(losses):
        first.add(terms(loss), 1 + number % 5)
        second.add(terms(loss), 1 + number % 5)
        if number % 7 == 0:
            second.fetch()
    assert first.close_epoch(itself) == second.close_epoch(itself)


def test_over_processes_and_state():
    meter = Meter(CPU)
    meter.add(terms(1.0), 2)
    other = Meter(CPU)
    other.load_state_dict(meter.state_dict())
    assert other.close_epoch(lambda sums: [value + add for value, add in zip(sums, [6, 0, 0, 2])])["loss"] == 2.0


def test_holds_no_graph():
    meter = Meter(CPU)
    meter.add(terms(1.0), 2)
    assert not meter._pending.requires_grad


def test_double_precision_values():
    meter = Meter(CPU)
    value = torch.tensor(1 / 3, dtype=torch.float64)
    meter.add(Terms(value, value, value.float(), value), 1)
    assert meter.close_epoch(itself)["loss"] == 1 / 3
    with pytest.raises(IndexError):
        meter._slots[999]
