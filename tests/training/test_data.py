"""Batches of tensors: every example once, in an order that the seed and the epoch decide."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from leanbayes.training.data import Place, TensorSource, as_tensors, split_data
from leanbayes.training.parts import make_source

CPU = torch.device("cpu")


def numbered(count):
    return torch.arange(count, dtype=torch.float32).view(-1, 1), torch.arange(count)


def source(count, batch_size=4, rank=0, world=1, **options):
    return TensorSource(*numbered(count), place=Place(CPU, rank, world), batch_size=batch_size, **options)


def labels(batches):
    return [batch.y.tolist() for batch in batches]


def test_each_example_once_and_inputs_follow_targets():
    batches = list(source(10).begin(0))
    assert [batch.rows for batch in batches] == [4, 4, 2]
    assert sorted(sum(labels(batches), [])) == list(range(10))
    for batch in batches:
        assert batch.x.flatten().tolist() == batch.y.tolist()


def test_order_is_a_function_of_seed_and_epoch():
    assert labels(source(10).begin(3)) == labels(source(10).begin(3))
    orders = {str(labels(source(10, seed=seed).begin(epoch))) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


def test_goes_on_within_an_epoch():
    assert labels(source(10).begin(2, start=1)) == labels(source(10).begin(2))[1:]
    assert labels(source(10).begin(2, start=3)) == []


def test_last_batch():
    assert [batch.rows for batch in source(10, drop_last=True).begin(0)] == [4, 4]
    # One of a single example is left out, since a batch norm cannot train on it.
    assert [batch.rows for batch in source(9).begin(0)] == [4, 4]
    assert [batch.rows for batch in source(3, batch_size=1).begin(0)] == [1, 1, 1]
    assert [batch.rows for batch in source(1).begin(0)] == [1]
    assert [batch.rows for batch in source(9, training=False).begin(0)] == [4, 4, 1]
    for count in range(1, 14):
        tested = source(count)
        assert tested.batches == len(list(tested.begin(0)))


@pytest.mark.parametrize("count", [8, 9, 10, 13])
def test_ranks_share_each_batch(count):
    whole = labels(source(count, batch_size=4).begin(1))
    parts = [labels(source(count, batch_size=4, rank=rank, world=2).begin(1)) for rank in (0, 1)]
    assert [len(batch) for batch in parts[0]] == [len(batch) for batch in parts[1]]
    for first, second, both in zip(*parts, whole):
        assert set(first) | set(second) <= set(both)
        assert not set(first) & set(second)


@pytest.mark.parametrize("count", range(1, 14))
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_evaluate_each_example_once(count, world):
    found, lengths = [], set()
    for rank in range(world):
        batches = list(source(count, batch_size=6, rank=rank, world=world, training=False).begin(0))
        lengths.add(len(batches))
        for batch in batches:
            kept = batch.y if batch.weights is None else batch.y[batch.weights > 0]
            found += kept.tolist()
    assert sorted(found) == list(range(count))
    assert len(lengths) == 1, "a rank would wait for the others for ever"


def test_augmentation_has_a_seed_for_each_batch():
    def shift(x, generator):
        return x + torch.rand(x.shape, generator=generator)

    first = [batch.x for batch in source(10, augment=shift).begin(1)]
    again = [batch.x for batch in source(10, augment=shift).begin(1, start=1)]
    assert torch.equal(first[1], again[0])
    shifts = [batch.x - batch.y.view(-1, 1) for batch in source(10, augment=shift).begin(1)]
    assert not torch.equal(shifts[0], shifts[1])


def test_mappings_weights_and_arrays():
    x, y = numbered(6)
    part = ({"a": x.double().numpy(), "b": (x, x)}, y.numpy(), np.ones(6))
    found = make_source(part, Place(CPU), batch_size=4, seed=0, training=True)
    batch = next(found.begin(0))
    assert batch.x["a"].dtype == torch.float32
    assert torch.equal(batch.x["b"][1].flatten(), batch.y.float())
    assert batch.weights.tolist() == [1, 1, 1, 1]


def test_what_counts_as_data():
    x, y = numbered(6)
    part = SimpleNamespace(x=x, y=y)
    assert split_data(SimpleNamespace(train=part, valid=None)) == (part, None)
    assert split_data({"train": part, "valid": 1}) == (part, 1)
    assert split_data(part) == (part, None)
    assert as_tensors(part)[1] is y
    assert as_tensors(torch.utils.data.TensorDataset(x, y))[0] is x
    assert as_tensors([(x, y), (x, y)]) is None
    with pytest.raises(ValueError, match="needs 'train'"):
        split_data({"x": x, "y": y})


@pytest.mark.parametrize(
    "part, message",
    [
        (None, "not nothing"),
        ("digits", "not str"),
        (7, "not int"),
        ((torch.zeros(3, 1), torch.zeros(4)), "there are 3 inputs, but the targets have shape \\(4,\\)"),
        ((torch.zeros(0, 1), torch.zeros(0)), "no example"),
        ((torch.tensor([[0.0], [float("nan")]]), torch.zeros(2)), "NaN in 1 of 2 rows"),
        (("text", torch.zeros(2)), "must be tensors"),
    ],
)
def test_refuses(part, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make_source(part, Place(CPU), batch_size=2, seed=0, training=True)


def test_refuses_shares_that_do_not_come_out():
    with pytest.raises(ValueError, match="not a multiple of the 2 processes"):
        source(10, batch_size=3, world=2)
    with pytest.raises(ValueError, match="1 examples cannot be shared between"):
        source(1, batch_size=2, world=2)
