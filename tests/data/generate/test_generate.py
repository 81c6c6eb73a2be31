import numpy as np
import pytest
import torch
from torch import nn

from leanbayes.data import generate, load, names
from leanbayes.data.generate import _courses, _records

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


def test_records_can_be_learnt_and_the_process_predicts_them_best():
    data = generate.dataset("mimic-iii", rows=1500, hours=24, valid=0.0, test=0.4)
    x, y = data.ready("train")
    share = y.float().mean()
    assert 0.1 < share < 0.2
    model = fit(x.mean(1), y, 2, nn.functional.cross_entropy)
    x, y = data.ready("test")
    with torch.no_grad():
        learnt = model(x.mean(1)).log_softmax(1).gather(1, y.unsqueeze(1)).mean()
        accuracy = (model(x.mean(1)).argmax(1) == y).float().mean()
    constant = torch.distributions.Bernoulli(share).log_prob(y.float()).mean()
    risk = torch.from_numpy(generate.risk_of_death(data.test.x.double().numpy()))
    best = torch.distributions.Bernoulli(risk).log_prob(y.double()).mean()
    assert 0.9 * constant < learnt < best and accuracy > 0.85


def test_the_risk_of_records():
    usual = np.array([usual.value for usual in _courses.USUAL])
    sick = usual + np.array([usual.change for usual in _courses.USUAL])
    healthy = np.broadcast_to(usual, (1, 24, 23))
    assert generate.risk_of_death(healthy) == pytest.approx(1 / (1 + np.exp(4.8)))
    # All five systems at 1 throughout: no trend.
    logit = -4.8 + 1.8 + 1.5 + 2
    assert generate.risk_of_death(np.broadcast_to(sick, (1, 24, 23))) == pytest.approx(1 / (1 + np.exp(-logit)))
    # What comes later, and what has not been measured, makes no difference.
    later = np.concatenate([healthy, np.broadcast_to(sick, (1, 5, 23))], 1)
    assert generate.risk_of_death(later) == generate.risk_of_death(healthy)
    assert generate.risk_of_death(np.full((1, 24, 46), np.nan)) == generate.risk_of_death(healthy)
    with pytest.raises(ValueError, match="at least 24 hours of all 23 variables"):
        generate.risk_of_death(healthy[:, :20])


def test_the_risk_is_that_of_what_is_read(tmp_path, monkeypatch):
    """The outcomes are drawn by the risk of the series that the reader makes of the tables."""
    drawn = []
    own = _records.risk_of_death
    monkeypatch.setattr(_records, "risk_of_death", lambda x: drawn.append(own(x)) or drawn[-1])
    generate.write_mimic(tmp_path, rows=40)
    read = load("mimic-iii", root=tmp_path, valid=0.0, test=0.0)
    risk = generate.risk_of_death(read.train.x.double().numpy())
    # Of the first stays four are left out.
    expected = np.delete(drawn[0], [0, 1, 2, 3])
    np.testing.assert_allclose(risk, expected, rtol=1e-4)


def test_regression_can_be_learnt():
    data = generate.dataset("uci-yacht", rows=300)
    x, y = data.ready("train")
    model = fit(x, y, 1, lambda out, y: (out.squeeze(1) - y).square().mean())
    x, y = data.ready("test")
    assert (model(x).squeeze(1) - y).square().mean() < 0.8 * y.var()


def test_too_few_records(tmp_path):
    with pytest.raises(ValueError, match="rows must be at least 12, not 5"):
        generate.write_mimic(tmp_path, rows=5)
    with pytest.raises(ValueError, match="hours must be at least 24, not 20"):
        generate.write_mimic(tmp_path, hours=20)
