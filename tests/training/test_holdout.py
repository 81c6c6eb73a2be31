"""Rows that are held out: how many, which, and what becomes of them."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.training import TrainConfig, fit, fit_many
from leanbayes.training.engine import _Training
from leanbayes.training.holdout import divide, divide_examples, held_out_count, join
from leanbayes.training.parts import Parts
from tests.training.problems import assert_same, config, data, network, weights, without_times

STOPPING = {"hold_out": "auto", "patience": "auto", "restore_best": "auto"}


def test_the_share_grows_as_data_get_fewer():
    counts = [held_out_count(rows) for rows in range(20, 3000)]
    assert all(later >= earlier for earlier, later in zip(counts, counts[1:]))
    assert all(0.1 * rows - 1 <= count <= 0.2 * rows + 1 for rows, count in enumerate(counts, 20))
    assert held_out_count(19) == 0


def test_every_class_is_trained_on():
    labels = np.repeat(np.arange(6), [1, 2, 3, 10, 30, 54])
    for seed in range(20):
        kept, held = divide(100, "auto", seed, labels)
        assert sorted([*kept, *held]) == list(range(100)) and len(held) == 20
        assert set(labels[kept]) == set(range(6))
        assert abs(np.mean(labels[held] == 5) - 0.54) <= 0.05


def test_examples_of_any_form_are_divided_and_joined():
    y = torch.arange(40)
    x = {"a": torch.arange(40.0), "b": (torch.arange(80).view(40, 2),)}
    train, valid = divide_examples((x, y % 2, y.float()), 0.25, 3)
    assert valid is not None and len(valid[1]) == 10
    joined = join(train, valid)
    order = joined[2].argsort()
    assert torch.equal(joined[0]["a"][order], x["a"]) and torch.equal(joined[1][order], y % 2)
    assert torch.equal(joined[0]["b"][0][order], x["b"][0])


def test_training_holds_out_as_if_validation_data_were_given():
    kept, held = divide_examples((*data(), None), "auto", 0)
    by_default, by_hand = network(lb.MeanField()), network(lb.MeanField())
    settings = config(**STOPPING)
    first = fit(by_default, data(), settings)
    second = fit(by_hand, {"train": kept[:2], "valid": held[:2]}, settings)
    assert without_times(first.records) == without_times(second.records)
    assert_same(weights(by_default), weights(by_hand))


def test_the_best_weights_are_the_default():
    x, y = data()
    parts = {"train": (x, y), "valid": (x, 1 - y)}  # learning makes it worse from the first epoch on
    first, model = network(), network()
    fit(first, (x, y), config(epochs=1, lr=0.05))
    history = fit(model, parts, config(epochs=30, lr=0.05, **STOPPING))
    assert (len(history), history.best["epoch"]) == (11, 1)
    assert_same(weights(model), weights(first))


def test_where_nothing_can_be_held_out():
    loader = DataLoader(TensorDataset(*data()), batch_size=32)
    assert "valid_nll" not in fit(network(), loader, config(**STOPPING)).last
    assert "valid_nll" not in fit(network(), data(19), config(**STOPPING)).last
    assert "valid_nll" in fit(network(), data(20), config(**STOPPING)).last
    with pytest.raises(ValueError, match="hold_out=0.1 takes rows of data in memory, not of a DataLoader"):
        fit(network(), loader, config(hold_out=0.1))
    with pytest.raises(ValueError, match="fit_many does not support hold_out"):
        fit_many([network()], [data()], config(hold_out=0.1))
    with pytest.raises(ValueError, match="is fitted to validation data, and there is none"):
        fit(torch.nn.Linear(2, 1), (data()[0], data()[0].sum(1)), config(), likelihood=lb.Gaussian(1.0, held_out=True))


@pytest.mark.parametrize("value", [1.0, -0.1, True, "some", None, 2.5])
def test_bad_shares_are_named(value):
    with pytest.raises(ValueError, match=r"TrainConfig\(hold_out=...\) takes 'auto', a share .*, not "):
        TrainConfig(hold_out=value)


@pytest.mark.parametrize("within", [False, True], ids=["after epochs", "within epochs"])
def test_a_run_that_was_killed_ends_with_the_same_best_weights(tmp_path, monkeypatch, within):
    """The counter, the noise and the best weights come from the checkpoint."""
    x, _ = data()
    y = x.sum(1)
    settings = config(epochs=14, lr=0.2, hold_out=0.3, patience=3, restore_best=True, checkpoint_every=2, refit=True)
    settings = TrainConfig(**settings.to_dict() | ({"checkpoint_steps": 1} if within else {}))

    def run(**options):
        torch.manual_seed(0)
        model, noise = lb.bayesianize(torch.nn.Linear(2, 1), lb.Rank1()), lb.Gaussian("learned", held_out=True)
        history = fit(model, (x, y), settings, likelihood=noise, **options)
        return history, {**weights(model), **{f"noise {name}": value for name, value in weights(noise).items()}}

    whole, wanted = run()
    assert whole.refit is not None and 0 < whole.refit.last["step"] == whole.best["step"]
    total, calls = whole.last["step"], 0
    killed_at = {2, total // 3, total // 2, total + 1, total + 3, total + 8}

    def interrupt(self):
        nonlocal calls
        calls += 1
        if calls in killed_at:
            raise KeyboardInterrupt
        return between(self)

    between = _Training._between_steps
    monkeypatch.setattr(_Training, "_between_steps", interrupt)
    deaths = 0
    while True:
        try:
            history, found = run(out=tmp_path, resume=True)
            break
        except KeyboardInterrupt:
            deaths += 1
    assert deaths == len(killed_at)
    assert_same(found, wanted)
    assert without_times(history.records) == without_times(whole.records)
    assert history.stopped == whole.stopped


def test_a_refit_begins_with_the_learned_precisions_of_the_start():
    x, _ = data()
    y = torch.stack([x[:, 0], 3 * torch.randn(len(x))], 1)
    likelihood = lb.Gaussian("learned", init_precision=2.0)
    torch.manual_seed(0)
    model = torch.nn.Linear(x.shape[1], 2)
    history = fit(model, (x, y), config(epochs=3, hold_out=0.25, refit=True, lr=1e-12), likelihood=likelihood)
    assert history.refit is not None
    torch.testing.assert_close(likelihood.log_precision, torch.full((2,), 2.0).log())


def test_a_refit_is_a_training_on_all_rows_for_the_steps_of_the_best_epoch():
    x, y = data()
    settings = config(epochs=6, schedule="cosine", hold_out=0.25, refit=True, optimizer="sgd", batch_size=24)
    model = network()
    history = fit(model, (x, y), settings)
    assert history.refit is not None
    steps = history.best["step"]
    assert history.refit.last["step"] == steps
    # By hand: the joined rows in the order of each epoch, with the learning rates of the first training.
    parts = Parts.of((x, y), settings).joined()
    byhand = network()
    optimizer = torch.optim.SGD(byhand.parameters(), lr=0.01, momentum=0.9)
    source = _Training(
        *(lb.training.fabric.make_runtime(settings), network(), Parts(parts, None), config(batch_size=24), None),
        *(None, None, (), None),
    ).train
    batches = [batch for epoch in range(6) for batch in source.begin(epoch)][:steps]
    for number, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 + np.cos(np.pi * number / (6 * 3))) / 2
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(byhand(batch.x), batch.y).backward()
        optimizer.step()
    for ours, theirs in zip(model.parameters(), byhand.parameters()):
        torch.testing.assert_close(ours, theirs)


def test_the_noise_of_a_training_is_that_of_its_held_out_rows():
    x, _ = data()
    y = x.sum(1) + x[:, 0] * x[:, 1]
    model, noise = torch.nn.Linear(2, 1), lb.Gaussian(1.0, held_out=True)
    fit(model, (x, y), config(epochs=5, **STOPPING), likelihood=noise)
    _, held = divide_examples((x, y, None), "auto", 0)
    squares = (held[1] - model(held[0]).detach().squeeze(-1)).square()
    variance = float(noise.split(torch.zeros(1, 1, 1))[1].exp())
    assert variance == pytest.approx(float(squares.sum()) / (len(squares) - 2), rel=1e-4)


def test_bad_combinations_are_named():
    with pytest.raises(ValueError, match="refit=True.* trains in one process"):
        TrainConfig(refit=True, devices=2)
    with pytest.raises(ValueError, match="refit watches valid_nll, which needs validation data"):
        fit(network(), data(), config(refit=True))
    with pytest.raises(ValueError, match="patience"):
        TrainConfig(patience="soon")


def test_what_cannot_be_refitted_is_said_before_anything_is_trained():
    def never(event):
        raise AssertionError("it has trained")

    loader = DataLoader(TensorDataset(*data(24)), batch_size=8)
    for parts, monitor in (({"train": data(), "valid": loader}, "valid_nll"), (data(), "loss")):
        with pytest.raises(ValueError, match="refit=True trains on the rows for training and validation together"):
            fit(network(), parts, config(refit=True, monitor=monitor), callbacks=[never])
