"""Batches of DataLoaders and other iterables: the order does not depend on what ran before."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from leanbayes.training.data import Place
from leanbayes.training.loader import unpack
from leanbayes.training.parts import make_source

CPU = torch.device("cpu")


def loader(count=10, **options):
    x = torch.arange(count, dtype=torch.float32).view(-1, 1)
    return DataLoader(TensorDataset(x, torch.arange(count)), batch_size=4, **options)


def source(part, rank=0, world=1, training=True):
    return make_source(part, Place(CPU, rank, world), batch_size=4, seed=0, training=training)


def by_batches(sampler, count=10):
    x = torch.arange(count, dtype=torch.float32).view(-1, 1)
    return DataLoader(TensorDataset(x, torch.arange(count)), batch_sampler=sampler)


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


class Drawn(Dataset):
    """Items that show what each generator gave, and the seed that torch names."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        worker = get_worker_info()
        seed = 0.0 if worker is None else random.Random(worker.seed).random()
        numbers = [float(torch.rand((), dtype=torch.float64)), np.random.rand(), random.random(), seed]
        return torch.tensor(numbers, dtype=torch.float64), torch.tensor(index)


class DrawnStream(IterableDataset):
    """The same, shared out by itself."""

    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        first = 8 * get_worker_info().id
        return (Drawn()[index] for index in range(first + self.rank, first + 8, 2))


def own_init(worker):
    np.random.seed(torch.initial_seed() % 2**32)


def drawn_by(rank, epoch=1, start=0, kind="sampler", workers=2):
    options = {"batch_size": 4, "num_workers": workers}
    made = {
        "sampler": lambda: DataLoader(Drawn(), shuffle=True, **options),
        "generator": lambda: DataLoader(Drawn(), shuffle=True, generator=torch.Generator(), **options),
        "own init": lambda: DataLoader(Drawn(), shuffle=True, worker_init_fn=own_init, **options),
        "shared": lambda: DataLoader(Drawn(), sampler=DistributedSampler(Drawn(), 2, rank), **options),
        "shared, generator": lambda: DataLoader(
            Drawn(), sampler=DistributedSampler(Drawn(), 2, rank), generator=torch.Generator(), **options
        ),
        "stream": lambda: DataLoader(DrawnStream(rank), **options),
    }[kind]()
    before = dict(vars(made))
    batches = list(source(made, rank, 2).begin(epoch, start))
    assert vars(made) == before
    return torch.cat([batch.x for batch in batches]), sum(labels(batches), [])


@pytest.mark.parametrize("kind", ["sampler", "generator", "own init", "shared", "shared, generator", "stream"])
def test_29_workers_of_several_ranks_draw_different_numbers(kind):
    (first, mine), (second, others) = (drawn_by(rank, kind=kind) for rank in (0, 1))
    assert sorted(mine + others) == list(range(16))
    for name, column in (("torch", 0), ("numpy", 1), ("random", 2)):
        numbers = torch.cat([first[:, column], second[:, column]])
        assert len(numbers.unique()) == 16, f"two workers drew the same from {name}"
    seeds = [set(values[:, 3].tolist()) for values in (first, second)]
    assert all(len(found) == 2 for found in seeds) and not seeds[0] & seeds[1]


def test_29_what_workers_draw_is_a_function_of_seed_and_epoch():
    for rank in (0, 1):
        torch.manual_seed(rank + 5)
        first = drawn_by(rank)
        torch.manual_seed(rank + 7)
        again, other, later = drawn_by(rank), drawn_by(rank, epoch=2), drawn_by(rank, start=1)
        assert torch.equal(again[0], first[0]) and again[1] == first[1]
        assert not set(other[0].flatten().tolist()) & set(first[0].flatten().tolist())
        assert torch.equal(later[0], first[0][4:]) and later[1] == first[1][4:]


@pytest.mark.parametrize("kind", ["sampler", "generator", "shared"])
def test_29_without_workers_ranks_draw_different_numbers_too(kind):
    # Numpy and Python follow the process's own generators, which `fit` seeds by rank.
    (first, mine), (second, others) = (drawn_by(rank, kind=kind, workers=0) for rank in (0, 1))
    assert sorted(mine + others) == list(range(16))
    assert not set(first[:4, 0].tolist()) & set(second[:4, 0].tolist())


def evens(generator=None):
    return SubsetRandomSampler(range(0, 10, 2), generator)


class Odds(Sampler):
    """A sampler that torch does not have."""

    def __iter__(self):
        return iter(range(1, 10, 2))


def test_the_sampler_says_how_many_examples_an_epoch_has():
    weighted = WeightedRandomSampler([1.0] * 10, num_samples=30)
    assert source(loader(sampler=evens())).examples == 5
    assert source(loader(sampler=weighted)).examples == 30
    assert source(by_batches(BatchSampler(evens(), 2, False))).examples == 5
    # Sharing out is no choice of examples.
    assert source(loader(sampler=DistributedSampler(range(10), 2, 0))).examples == 10


def test_no_number_of_examples_where_nothing_says_it():
    assert source(loader(sampler=Odds())).examples is None
    assert source(by_batches([[0, 1], [2, 3]])).examples is None
    # Every item is a batch, and how many examples it holds is its own affair.
    items = [(torch.zeros(3, 1), torch.zeros(3).long())] * 4
    assert source(DataLoader(items, batch_size=None)).examples is None


def test_an_iterable_dataset_may_say_its_length():
    class Stream(IterableDataset):
        def __len__(self):
            return 8

        def __iter__(self):
            return iter([(torch.zeros(1), 0)] * 8)

    assert source(DataLoader(Stream(), batch_size=4)).examples == 8
    assert len(list(source(DataLoader(Stream(), batch_size=4), 0, 2).begin(0))) == 2


def test_a_generator_within_a_batch_sampler_starts_from_the_epochs_seed():
    def make():
        return source(by_batches(BatchSampler(evens(torch.Generator()), 2, False)))

    first = labels(make().begin(3))
    tested = make()
    list(tested.begin(0))
    assert labels(tested.begin(3)) == first
    assert labels(tested.begin(3, start=1)) == first[1:]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_ranks_share_what_a_sampler_chooses(own, wrapped):
    def make(rank):
        sampler = SubsetRandomSampler(range(0, 10, 2)[:4], torch.Generator() if own else None)
        part = by_batches(BatchSampler(sampler, 1, False)) if wrapped else loader(sampler=sampler)
        return source(part, rank, 2)

    torch.manual_seed(1)
    first = make(0)
    mine = labels(first.begin(0))
    torch.manual_seed(2)
    others = labels(make(1).begin(0))
    assert sorted(sum(mine + others, [])) == [0, 2, 4, 6]
    assert (first.examples, first.batches, len(mine)) == (4, len(mine), 2 if wrapped else 1)


def test_ranks_have_as_many_examples_whatever_the_number():
    for training, wanted in ((True, 2), (False, 3)):
        parts = [sum(labels(source(loader(sampler=evens()), rank, 2, training).begin(0)), []) for rank in (0, 1)]
        assert [len(part) for part in parts] == [wanted, wanted]
        assert set(sum(parts, [])) <= {0, 2, 4, 6, 8}


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_ranks_evaluate_each_example_once(world, weighted):
    weights = torch.arange(1.0, 11.0)
    tensors = (torch.zeros(10, 1), torch.arange(10), *([weights] if weighted else []))
    found = []
    for rank in range(world):
        part = DataLoader(TensorDataset(*tensors), batch_size=2)
        for batch in source(part, rank, world, training=False).begin(0):
            given = torch.ones(batch.rows) if batch.weights is None else batch.weights
            found += [(y, w) for y, w in zip(batch.y.tolist(), given.tolist()) if w > 0]
    assert sorted(found) == [(y, float(weights[y]) if weighted else 1.0) for y in range(10)]


def test_ranks_draw_the_same_from_a_sampler_that_repeats():
    def drawn(rank, world):
        sampler = RandomSampler(range(10), replacement=True, num_samples=100)
        torch.manual_seed(rank)  # processes have different generators
        begun = source(loader(sampler=sampler), rank, world).begin(0)
        return sum(labels(begun), [])

    assert sorted(drawn(0, 2) + drawn(1, 2)) == sorted(drawn(0, 1))


def test_a_sampler_that_cannot_be_shared_out_is_one_clear_error():
    for part in (loader(sampler=Odds()), by_batches([[0, 1], [2, 3]])):
        with pytest.raises(ValueError, match="with several processes .* DistributedSampler"):
            source(part, 0, 2)
    shared = DistributedSampler(range(10), 2, 1, shuffle=False)
    assert labels(source(loader(sampler=shared), 1, 2).begin(0)) == [[1, 3, 5, 7], [9]]
    assert labels(source(by_batches(BatchSampler(shared, 4, False)), 1, 2).begin(0)) == [[1, 3, 5, 7], [9]]


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
