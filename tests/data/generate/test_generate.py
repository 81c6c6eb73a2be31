import pytest
import torch
from torch import nn

from leanbayes.data import generate, names

NAMES = [name for name in names() if name not in ("digits", "uci-*")] + ["uci-yacht"]


@pytest.mark.parametrize("name", NAMES)
def test_every_set_can_be_generated(name):
    data = generate.dataset(name)
    assert data.name == f"synthetic {name}"
    assert len(data.train) and len(data.valid) and len(data.test)
    x, y = data.ready("train")
    assert tuple(x.shape[1:]) == data.shape and len(x) == len(y)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides(name):
    rows = {"rows": 15} if name == "mimic-iii" else {}
    first, again, other = (generate.dataset(name, seed=seed, **rows) for seed in (1, 1, 2))
    assert torch.equal(first.ready("train")[0], again.ready("train")[0])
    assert first.train.x.shape != other.train.x.shape or not torch.equal(
        first.ready("train")[0], other.ready("train")[0]
    )


def test_rows_and_options_of_the_reader():
    data = generate.dataset("cifar100", rows=(120, 40), labels="coarse", valid=20)
    assert (len(data.train), len(data.valid), len(data.test), data.classes) == (100, 20, 40, 20)


def test_sets_without_a_generator():
    with pytest.raises(ValueError, match="no generator for 'digits'; there are mnist"):
        generate.dataset("digits")


def fit(x, y, outputs, loss):
    model = nn.Linear(x.shape[1], outputs)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_images_can_be_learnt(name):
    data = generate.dataset(name)
    x, y = data.ready("train")
    model = fit(x.flatten(1), y, 10, nn.functional.cross_entropy)
    x, y = data.ready("test")
    assert (model(x.flatten(1)).argmax(1) == y).float().mean() > 0.9


def test_reviews_can_be_learnt():
    data = generate.dataset("imdb", rows=(200, 100))

    def counts(ids):
        return nn.functional.one_hot(ids, 60).float().sum(1)[:, 4:]

    x, y = data.ready("train")
    model = fit(counts(x), y, 2, nn.functional.cross_entropy)
    x, y = data.ready("test")
    assert (model(counts(x)).argmax(1) == y).float().mean() > 0.9


def test_records_can_be_learnt():
    data = generate.dataset("mimic-iii", rows=120)
    x, y = data.ready("train")
    assert 0.1 < y.float().mean() < 0.9
    model = fit(x.mean(1), y, 2, nn.functional.cross_entropy)
    x, y = data.ready("test")
    accuracy = (model(x.mean(1)).argmax(1) == y).float().mean()
    assert accuracy > max(y.float().mean(), 1 - y.float().mean()) - 0.05 and accuracy > 0.7


def test_regression_can_be_learnt():
    data = generate.dataset("uci-yacht", rows=300)
    x, y = data.ready("train")
    model = fit(x, y, 1, lambda out, y: (out.squeeze(1) - y).square().mean())
    x, y = data.ready("test")
    assert (model(x).squeeze(1) - y).square().mean() < 0.8 * y.var()


def test_too_few_records(tmp_path):
    with pytest.raises(ValueError, match="rows must be at least 12, not 5"):
        generate.write_mimic(tmp_path, rows=5)
