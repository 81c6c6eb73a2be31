"""Batches of DataLoaders and other iterables: the order does not depend on what ran before."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from leanbayes.training.data import Place, make_source
from leanbayes.training.loader import unpack

CPU = torch.device("cpu")


def loader(count=10, **options):
    x = torch.arange(count, dtype=torch.float32).view(-1, 1)
    return DataLoader(TensorDataset(x, torch.arange(count)), batch_size=4, **options)


def source(part, rank=0, world=1, training=True):
    return make_source(part, Place(CPU, rank, world), batch_size=4, seed=0, training=training)


def labels(batches):
    return [batch.y.tolist() for batch in batches]


@pytest.mark.parametrize("own", [False, True])
def test_shuffles_by_seed_and_epoch(own):
    def make():
        return source(loader(shuffle=True, generator=torch.Generator() if own else None))

    torch.manual_seed(1)
    first = labels(make().begin(3))
    torch.manual_seed(2)
    tested = make()
    list(tested.begin(0))
    assert labels(tested.begin(3)) == first
    assert labels(tested.begin(4)) != first
    assert sorted(sum(first, [])) == list(range(10))
    assert (tested.examples, tested.batches) == (10, 3)


def test_beginning_draws_nothing():
    tested = source(loader(shuffle=True))
    torch.manual_seed(0)
    wanted = torch.rand(())
    torch.manual_seed(0)
    tested.begin(0)
    assert torch.rand(()) == wanted


def test_goes_on_within_an_epoch():
    whole = labels(source(loader(shuffle=True)).begin(2))
    assert labels(source(loader(shuffle=True)).begin(2, start=2)) == whole[2:]
    assert labels(source(loader(shuffle=True)).begin(2, start=3)) == []


class Noisy(Dataset):
    """Items that draw from all generators."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.rand(1) + np.random.rand() + random.random(), torch.tensor(index)


def test_workers_give_the_same_when_resumed():
    made = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=1)
    whole = [batch.x for batch in source(made).begin(1)]
    assert torch.equal(next(source(made).begin(1, start=1)).x, whole[1])


def test_ranks_share_the_examples():
    parts = [sum(labels(source(loader(shuffle=True), rank, 2).begin(0)), []) for rank in (0, 1)]
    assert sorted(parts[0] + parts[1]) == list(range(10))
    again = sum(labels(source(loader(shuffle=True), 0, 2).begin(1)), [])
    assert again != parts[0]


class Stateful:
    """An iterable that can go to a place itself."""

    def __init__(self):
        self.place = 0

    def __iter__(self):
        while self.place < 3:
            self.place += 1
            yield torch.full((2, 1), float(self.place)), torch.zeros(2).long()
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def test_uses_the_state_of_an_iterable():
    first = source(Stateful())
    batches = first.begin(0)
    next(batches)
    state = first.state()
    tested = source(Stateful())
    tested.load_state(state)
    assert [batch.x[0].item() for batch in tested.begin(0, start=1)] == [2.0, 3.0]
    assert [batch.x[0].item() for batch in tested.begin(1)] == [1.0, 2.0, 3.0]


def test_batches_of_the_data_package():
    from leanbayes.data import Batches

    def make():
        x = torch.arange(10.0).view(-1, 1)
        return Batches(x, torch.arange(10), 4, shuffle=True, seed=3, transform=lambda x: x * 2)

    tested = source(make())
    assert (tested.examples, tested.batches) == (10, 3)
    first, second = list(tested.begin(0)), list(tested.begin(1))
    assert torch.equal(first[0].x.flatten(), 2.0 * first[0].y)
    assert labels(first) != labels(second)
    interrupted = source(make())
    list(interrupted.begin(0))
    next(interrupted.begin(1))
    resumed = source(make())
    resumed.load_state(interrupted.state())
    assert labels(resumed.begin(1, start=1)) == labels(second)[1:]


def test_an_iterable_without_length():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([(torch.zeros(1), 0)] * 8)

    tested = source(DataLoader(Stream(), batch_size=4))
    assert (tested.examples, tested.batches) == (None, None)
    assert len(list(tested.begin(0))) == 2


def test_batches():
    x, y = torch.zeros(2, 3), torch.zeros(2).long()
    assert unpack((x, y)) == (x, y, None)
    assert unpack([x, y, x])[2] is x
    assert unpack({"input_ids": x, "labels": y})[0] == {"input_ids": x}
    for item in (x, (x,), (x, 3), {"input_ids": x}):
        with pytest.raises(TypeError, match="a batch is"):
            unpack(item)
