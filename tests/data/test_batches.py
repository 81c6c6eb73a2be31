import json
import threading

import pytest
import torch

from leanbayes.data import Batches
from leanbayes.data.augment import Chain, Flip, PadCrop


def numbered(rows, batch_size, **options):
    return Batches(torch.arange(rows), torch.arange(rows) * 10, batch_size, **options)


def rows_of(batches):
    return [x.tolist() for x, _ in batches]


def test_rows_in_order():
    assert rows_of(numbered(5, 2)) == [[0, 1], [2, 3], [4]]
    assert rows_of(numbered(5, 2, drop_last=True)) == [[0, 1], [2, 3]]
    assert len(numbered(5, 2)) == 3 and len(numbered(5, 2, drop_last=True)) == 2


def test_an_epoch_has_every_row_once_with_its_target():
    batches = numbered(103, 10, shuffle=True)
    for _ in range(3):
        pairs = [(x, y) for x, y in batches]
        x, y = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
        assert torch.equal(x.sort().values, torch.arange(103)) and torch.equal(y, x * 10)


def test_order_is_a_function_of_seed_and_epoch():
    first, second = numbered(50, 8, shuffle=True, seed=3), numbered(50, 8, shuffle=True, seed=3)
    torch.manual_seed(99)
    epochs = [rows_of(first) for _ in range(3)]
    assert [rows_of(second) for _ in range(3)] == epochs
    assert epochs[0] != epochs[1] != epochs[2]
    assert rows_of(numbered(50, 8, shuffle=True, seed=4)) != epochs[0]


def test_iteration_draws_nothing_from_the_global_generator():
    state = torch.get_rng_state()
    list(Batches(torch.rand(9, 1, 4, 4), torch.zeros(9), 4, shuffle=True, augment=Flip()))
    # torch.rand above is the only draw.
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    torch.rand(9, 1, 4, 4)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("stop", range(14))
def test_resume_is_exact(stop):
    x, y = torch.rand(23, 3, 6, 6), torch.arange(23)

    def make():
        return Batches(x, y, 5, shuffle=True, seed=1, augment=Chain(PadCrop(2), Flip()))

    reference = make()
    whole = [batch for _ in range(3) for batch in reference]
    first, seen = make(), []
    state = first.state_dict()
    while len(seen) < stop:
        for batch in first:
            seen.append(batch)
            state = json.loads(json.dumps(first.state_dict()))
            if len(seen) == stop:
                break
    resumed = make()
    resumed.load_state_dict(state)
    while len(seen) < len(whole):
        seen += list(resumed)
    assert len(seen) == len(whole)
    for (a, b), (c, d) in zip(seen, whole):
        assert torch.equal(a, c) and torch.equal(b, d)


def test_a_state_of_the_last_batch_resumes_at_the_end_of_the_epoch():
    batches = numbered(4, 2)
    states = [batches.state_dict() for _ in batches]
    resumed = numbered(4, 2)
    resumed.load_state_dict(states[-1])
    assert rows_of(resumed) == [] and resumed.epoch == 1 and rows_of(resumed) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("change", [{"batch_size": 3}, {"seed": 1}, {"shuffle": True}, {"drop_last": True}])
def test_resuming_something_else_is_an_error(change):
    other = numbered(**({"rows": 8, "batch_size": 2} | change))
    with pytest.raises(ValueError, match=f"cannot resume: {next(iter(change))} was"):
        other.load_state_dict(numbered(8, 2).state_dict())
    with pytest.raises(ValueError, match="cannot resume: rows was 8, but is 9 now"):
        numbered(9, 2).load_state_dict(numbered(8, 2).state_dict())


def test_augmentation_comes_before_the_transform_and_only_touches_inputs():
    x = torch.full((6, 1, 2, 2), 100, dtype=torch.uint8)
    seen = []

    def augment(images, generator):
        seen.append(images.dtype)
        return images + 1

    batches = Batches(
        x, torch.zeros(6), 3, augment=augment, transform=lambda z: z / 2, target_transform=lambda y: y + 5
    )
    for images, targets in batches:
        assert (images == 50.5).all() and (targets == 5).all()
    assert seen == [torch.uint8, torch.uint8] and (x == 100).all()


def test_augmentation_differs_between_steps_and_epochs():
    x = torch.arange(16.0).view(1, 1, 4, 4).expand(64, 1, 4, 4).contiguous()
    batches = Batches(x, torch.zeros(64), 32, augment=PadCrop(2))
    pictures = [images for _ in range(2) for images, _ in batches]
    assert all(not torch.equal(pictures[a], pictures[b]) for a in range(4) for b in range(a))


@pytest.mark.parametrize("rows", [24, 23])
@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_share_one_global_order(rows, shuffle):
    whole = rows_of(numbered(rows, 6, shuffle=shuffle, seed=2))
    ranks = [rows_of(numbered(rows, 3, shuffle=shuffle, seed=2, rank=r, world_size=2)) for r in range(2)]
    assert len(ranks[0]) == len(ranks[1]) == len(whole)
    for batch, first, second in zip(whole, *ranks):
        filled = batch if rows % 2 == 0 or len(batch) == 6 else [*batch, whole[0][0]]
        assert sorted(first + second) == sorted(filled)


class Slow:
    """Rows that are read when they are asked for, and note by whom."""

    def __init__(self, rows):
        self.rows = rows
        self.threads = []

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        self.threads.append(threading.current_thread().name)
        return index.float()


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_that_are_not_in_memory_are_read_ahead(shuffle):
    lazy = Slow(11)
    batches = Batches(lazy, torch.arange(11), 4, shuffle=shuffle)
    eager = Batches(torch.arange(11.0), torch.arange(11), 4, shuffle=shuffle)
    assert rows_of(batches) == rows_of(eager)
    assert len(lazy.threads) == 3 and len(set(lazy.threads)) == 2


def test_an_error_in_reading_ahead_reaches_the_loop():
    class Broken(Slow):
        def __getitem__(self, index):
            if 9 in index:
                raise ValueError("image 9 cannot be read")
            return index

    with pytest.raises(ValueError, match="image 9"):
        list(Batches(Broken(12), torch.arange(12), 4))


def test_device_is_where_batches_are():
    x, _ = next(iter(numbered(4, 2, device="cpu")))
    assert x.device.type == "cpu"


def test_augmentation_draws_on_the_device_of_the_batch():
    def augment(images, generator):
        assert generator.device == images.device
        return images

    list(Batches(torch.zeros(4, 1, 2, 2), torch.zeros(4), 2, augment=augment, device="cpu"))


@pytest.mark.gpu
def test_the_order_is_the_same_on_every_device():
    x, y = torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8), torch.arange(50)
    for a, b in zip(Batches(x, y, 8, shuffle=True), Batches(x, y, 8, shuffle=True, device="cuda")):
        assert torch.equal(a[0], b[0].cpu()) and torch.equal(a[1], b[1].cpu()) and b[0].is_cuda


@pytest.mark.gpu
def test_augmentation_on_a_gpu_is_a_function_of_the_seed():
    x, y = torch.rand(50, 3, 8, 8), torch.arange(50)

    def images(seed):
        augment = Chain(PadCrop(2), Flip())
        batches = Batches(x, y, 8, shuffle=True, seed=seed, augment=augment, device="cuda")
        return torch.cat([batch for batch, _ in batches])

    assert torch.equal(images(1), images(1)) and not torch.equal(images(1), images(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"seed": -1}, "a seed is a whole number from 0 on, not -1"),
        ({"rank": 2, "world_size": 2}, "rank must be from 0 to 1, not 2"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        numbered(**({"rows": 4, "batch_size": 2} | options))


def test_inputs_need_targets():
    with pytest.raises(ValueError, match="4 inputs but 3 targets"):
        Batches(torch.zeros(4), torch.zeros(3), 2)
