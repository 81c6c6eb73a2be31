"""Fingerprints: the same for the same examples, another for any other."""

from dataclasses import replace

import numpy as np
import torch

from leanbayes.data import Part, generate, load
from leanbayes.data._fingerprint import of_dataset, of_examples, of_rows


def part(rows=6, seed=0):
    x, y = generate.regression(rows, 3, seed=seed)
    return Part(torch.from_numpy(x), torch.from_numpy(y))


def test_a_data_set_is_known_by_its_rows(tmp_path):
    paths = [generate.write_table(tmp_path / name, rows=50) for name in ("a.csv", "b.parquet")]
    first, second = (of_dataset(load(path)) for path in paths)
    assert first == second
    assert of_dataset(load(paths[0], seed=1)) != first
    assert of_dataset(load(generate.write_table(tmp_path / "c.csv", rows=50, seed=1))) != first


def test_a_complete_one_looks_at_every_row():
    read = generate.dataset("uci-yacht", rows=3000)
    x = read.train.x.clone()
    x[1] += 1
    changed = replace(read, train=Part(x, read.train.y))
    assert of_dataset(changed) == of_dataset(read)  # the quick one looks at a thousand
    assert of_dataset(changed, complete=True) != of_dataset(read, complete=True)


def test_pairs_have_one_and_loaders_have_none():
    x, y = torch.zeros(3, 2), torch.zeros(3)
    assert of_examples((x, y)) == of_examples((x.clone(), y)) != of_examples((x + 1, y))
    assert of_examples([(x, y)]) is None


def test_every_row_has_a_number_of_its_own():
    whole = of_rows(part(600))
    assert whole.dtype == np.uint64 and len(np.unique(whole)) == 600
    order = torch.randperm(600)
    assert np.array_equal(of_rows(part(600).take(order)), whole[order.numpy()])
    assert of_rows(part(600).take(torch.arange(0))).shape == (0,)


def test_input_and_target_count():
    given = part()
    assert not set(of_rows(given)) & set(of_rows(Part(given.x, given.y + 1)))
    assert not set(of_rows(given)) & set(of_rows(Part(given.x + 1, given.y)))
    labels = torch.arange(6)
    assert not set(of_rows(Part(given.x, labels))) & set(of_rows(Part(given.x, labels + 1)))


def test_the_form_of_a_row_does_not_count():
    given = part()
    assert np.array_equal(of_rows(given), of_rows(Part(given.x.float(), given.y.float())))
    images = torch.randint(0, 256, (6, 1, 4, 4), dtype=torch.uint8)
    labels = torch.arange(6)
    assert np.array_equal(of_rows(Part(images, labels)), of_rows(Part(images / 255, labels.int())))
    zeros = torch.tensor([[0.0, torch.nan]])
    other = torch.from_numpy(np.array([[-0.0, -np.nan]]))
    assert np.array_equal(of_rows(Part(zeros, labels[:1])), of_rows(Part(other, labels[:1])))
    assert not np.array_equal(of_rows(Part(zeros, labels[:1])), of_rows(Part(zeros.nan_to_num(0), labels[:1])))


def test_images_that_are_read_when_they_are_asked_for(tmp_path):
    photos = generate.write_image_folder(tmp_path, rows=(8, 4), size=(10, 8))
    lazy, eager = (load(photos, size=8, lazy=each) for each in (True, False))
    assert np.array_equal(of_rows(lazy.train), of_rows(eager.train))
    assert of_dataset(lazy, complete=True) == of_dataset(eager, complete=True)
