import torch
from sklearn.datasets import load_digits

from leanbayes.data import load


def test_all_digits_are_there_once():
    digits = load("digits", seed=3)
    x = torch.cat([digits.train.x, digits.valid.x, digits.test.x])
    images = torch.tensor(load_digits().images, dtype=torch.float32) / 16
    assert sorted(map(tuple, x.flatten(1).tolist())) == sorted(map(tuple, images.flatten(1).tolist()))
    assert (len(digits.train), len(digits.valid), len(digits.test)) == (1294, 144, 359)


def test_seed_decides_the_parts():
    assert torch.equal(load("digits").test.x, load("digits").test.x)
    assert not torch.equal(load("digits").test.x, load("digits", seed=1).test.x)


def test_every_class_is_in_every_part():
    digits = load("digits", test=0.1, valid=100)
    for part in (digits.train, digits.valid, digits.test):
        share = torch.bincount(part.y, minlength=10) / len(part)
        assert (share - 0.1).abs().max() < 0.02
