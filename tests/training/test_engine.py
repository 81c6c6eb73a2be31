"""fit: learns, equals the loop written by hand, stops in time, and says in one sentence what is wrong."""

import copy
import errno
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import leanbayes as lb
from leanbayes.training import OutputError, TrainingInterrupted, fit
from leanbayes.training.data import Place, TensorSource
from leanbayes.training.files import read_state
from leanbayes.training.seeds import seed_all
from tests.training.problems import assert_same, config, data, network, weights, without_times

METHODS = [
    None,
    lb.MeanField(),
    lb.KTied(rank=1),
    lb.VariationalDropout(),
    lb.VarianceLayer(),
    lb.Rank1(),
    lb.BatchEnsemble(),
    lb.EMP(),
    lb.ECMP(),
    lb.MCDropout(),
    lb.DropConnect(),
    lb.DeepEnsemble(members=2),
]


def kind(method):
    return "plain" if method is None else type(method).__name__


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


@pytest.mark.parametrize("method", METHODS, ids=kind)
def test_the_loss_goes_down(method):
    history = fit(network(method), data(), config(epochs=12, lr=0.03))
    assert history["loss"][-1] < history["loss"][0]
    assert history.stopped is None


def order(x, y, epoch, batch_size=32):
    place = Place(torch.device("cpu"))
    return TensorSource(x, y, place=place, batch_size=batch_size).order(epoch).split(batch_size)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_equals_a_loop_by_hand(optimizer):
    x, y = data()
    settings = config(optimizer=optimizer, weight_decay=0.1, momentum=0.5, clip=0.05)
    trained, net = network(), network()
    fit(trained, (x, y), settings)
    made = {
        "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.5, weight_decay=0.1),
    }[optimizer](net.parameters())
    for epoch in range(3):
        for indices in order(x, y, epoch):
            made.zero_grad()
            F.cross_entropy(net(x[indices]), y[indices]).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            made.step()
    for ours, theirs in zip(trained.parameters(), net.parameters()):
        torch.testing.assert_close(ours, theirs)


def test_the_kl_counts_once_per_example_of_the_data():
    x, y = data()
    trained, model = network(lb.MeanField()), network(lb.MeanField())
    with lb.sampling(mean=True):
        fit(trained, (x, y), config(optimizer="sgd", momentum=0.0, epochs=1, kl_weight=0.5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for indices in order(x, y, 0):
            optimizer.zero_grad()
            (F.cross_entropy(model(x[indices]), y[indices]) + 0.5 * lb.kl(model) / 96).backward()
            optimizer.step()
    for ours, theirs in zip(trained.parameters(), model.parameters()):
        torch.testing.assert_close(ours, theirs)


# 100 examples leave a smaller last batch, and a smaller last group of passes.
@pytest.mark.parametrize("examples", [96, 100])
@pytest.mark.parametrize("method", [None, lb.MeanField(), lb.Rank1()], ids=kind)
def test_accumulation_equals_a_large_batch(method, examples):
    large, small = network(method), network(method)
    with lb.sampling(mean=True):
        first = fit(large, data(examples), config(batch_size=48, optimizer="sgd", clip=0.1))
        second = fit(small, data(examples), config(batch_size=12, accumulate=4, optimizer="sgd", clip=0.1))
    assert first["step"] == second["step"]
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-5)
    for ours, theirs in zip(large.parameters(), small.parameters()):
        torch.testing.assert_close(ours, theirs)


def test_clipping_bounds_the_step():
    before = network()
    after = copy.deepcopy(before)
    fit(after, data(), config(optimizer="sgd", momentum=0.0, lr=1.0, epochs=1, batch_size=96, clip=0.01))
    change = torch.cat([(a - b).flatten() for a, b in zip(after.parameters(), before.parameters())])
    assert change.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_early_stopping_and_the_best_weights(tmp_path):
    x, y = data()
    parts = {"train": (x, y), "valid": (x, 1 - y)}  # learning makes it worse from the first epoch on
    settings = config(epochs=20, lr=0.05, patience=3, restore_best=True)
    first = network()
    fit(first, (x, y), config(epochs=1, lr=0.05))
    for out in (None, tmp_path):
        model = network()
        history = fit(model, parts, settings, out=out)
        assert len(history) == 4 and history.best["epoch"] == 1
        assert history.stopped == "no better valid_nll in 3 evaluations"
        assert_same(weights(model), weights(first))
    # It stays stopped, unless the patience is raised.
    assert len(fit(network(), parts, settings, out=tmp_path, resume=True)) == 4
    longer = config(epochs=20, lr=0.05, patience=5)
    assert len(fit(network(), parts, longer, out=tmp_path, resume=True)) == 6


@pytest.mark.parametrize("changes", [{"patience": 1}, {"restore_best": True}, {}], ids=str)
def test_a_monitor_that_no_record_has_is_one_clear_error(changes):
    parts = {"train": data(), "valid": data(40, seed=1)}
    epochs = []
    settings = config(monitor="valid_loss", valid_every=2, **changes)
    with pytest.raises(ValueError, match="monitor='valid_loss' .* epoch 2, which has epoch, step, .*, valid_nll"):
        fit(network(), parts, settings, callbacks=[lambda event: epochs.append(event.record["epoch"])])
    assert epochs == [1, 2]


def test_a_monitor_without_validation_data():
    with pytest.raises(ValueError, match="monitor='los' .* which has epoch, step, loss"):
        fit(network(), data(), config(monitor="los", patience=1))
    assert fit(network(), data(), config(monitor="loss", patience=1)).best["epoch"] == 3
    assert fit(network(), data(), config()).best == {}

    def measure(event):
        event.record["own"] = event.record["epoch"]

    history = fit(network(), data(), config(monitor="own", patience=1), callbacks=[measure])
    assert (len(history), history.best["epoch"]) == (2, 1)


def test_there_may_be_more_validation_data_than_training_data():
    x, y = data(96)
    loader = DataLoader(TensorDataset(x, y), batch_size=96)
    for valid in ((x, y), loader):
        history = fit(network(), {"train": (x[:8], y[:8]), "valid": valid}, config(epochs=1, batch_size=64))
        assert "valid_nll" in history.last


def test_callbacks(tmp_path):
    seen = []

    def watch(event):
        seen.append((event.record["epoch"], len(event.history), event.model is model))
        return len(seen) == 2

    model = network()
    history = fit(model, data(), config(epochs=9), callbacks=[watch], out=tmp_path)
    assert seen == [(1, 1, True), (2, 2, True)]
    assert history.stopped == "a callback ended it"
    assert len(fit(network(), data(), config(epochs=9), out=tmp_path, resume=True)) == 2


def test_loaders_and_weights():
    x, y = data()
    halves = torch.cat([torch.zeros(48), torch.full((48,), 2.0)])
    weighted, half = network(), network()
    settings = config(optimizer="sgd", batch_size=96)
    fit(weighted, (x, y, halves), settings)
    fit(half, DataLoader(TensorDataset(x[48:], y[48:]), batch_size=48), settings)
    for ours, theirs in zip(weighted.parameters(), half.parameters()):
        torch.testing.assert_close(ours, theirs)


def test_the_kl_counts_once_per_example_that_a_sampler_chooses():
    x, y = data()
    chosen, part = network(lb.MeanField()), network(lb.MeanField())
    settings = config(optimizer="sgd", epochs=1, batch_size=24)
    with lb.sampling(mean=True):
        fit(chosen, DataLoader(TensorDataset(x, y), batch_size=24, sampler=SubsetRandomSampler(range(24))), settings)
        fit(part, (x[:24], y[:24]), settings)
    for ours, theirs in zip(chosen.parameters(), part.parameters()):
        torch.testing.assert_close(ours, theirs)


def test_augmentation():
    seen = []

    def shift(x, generator):
        seen.append(torch.rand((), generator=generator).item())
        return x + 100

    history = fit(network(), data(), config(epochs=2), augment=shift)
    assert len(set(seen)) == len(seen) == 6
    assert history["nll"][0] > 0.5


def test_regression_with_learned_noise():
    x, _ = data()
    likelihood = lb.Gaussian("learned", init_precision=0.1)
    fit(nn.Linear(2, 1), (x, x.sum(1)), config(epochs=30, lr=0.05), likelihood=likelihood)
    assert likelihood.log_precision.exp().item() > 0.5


def test_more_samples_and_a_mixture():
    model = network(lb.Rank1())
    history = fit(model, data(), config(epochs=2, samples=3, components="mixture", mixture="sum", tile=False))
    assert len(history) == 2


def test_half_precision():
    history = fit(network(lb.MeanField()), data(), config(epochs=12, lr=0.03, precision="bf16-mixed"))
    assert history["loss"][-1] < history["loss"][0]


def test_compiled_equals_eager():
    eager, compiled = network(), network()
    fit(eager, data(), config())
    fit(compiled, data(), config(compile="eager"))
    for ours, theirs in zip(compiled.parameters(), eager.parameters()):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
@pytest.mark.inductor
def test_compiled_by_inductor():
    history = fit(network(lb.MeanField()), data(), config(epochs=12, lr=0.03, compile=True))
    assert history["loss"][-1] < history["loss"][0]


def test_files(tmp_path):
    x, y = data()
    fit(network(), (x, y), config(), out=tmp_path / "a")
    assert names(tmp_path / "a") == ["last.pt", "metrics.jsonl"]
    fit(network(), {"train": (x, y), "valid": (x, y)}, config(), out=tmp_path / "b")
    assert names(tmp_path / "b") == ["best.pt", "last.pt", "metrics.jsonl"]


def test_gradients_are_let_go():
    model = network()
    fit(model, data(), config())
    assert all(parameter.grad is None for parameter in model.parameters())


class Stop(Exception):
    pass


# What is wrong with the data, the model or the folder


@pytest.mark.parametrize(
    "changes, arguments, message",
    [
        ({}, {"data": None}, "not nothing"),
        ({}, {"data": (torch.zeros(4, 3), torch.zeros(4).long())}, "shapes cannot be multiplied"),
        ({}, {"data": (torch.zeros(4, 2), torch.tensor([0, 1, 2, 1]))}, "labels must be from 0 to 1"),
        ({}, {"data": (torch.zeros(4, 2), torch.zeros(4))}, "class labels are whole numbers"),
        ({}, {"data": []}, "does not say how many examples"),
        ({"dataset_size": 4}, {"data": iter([])}, "gave no batch"),
        ({"patience": 2}, {}, "patience watches valid_nll, which needs validation data"),
        ({"restore_best": True}, {}, "restore_best watches valid_nll, which needs validation data"),
        ({"schedule": "cosine"}, {"data": iter([])}, "the length of an epoch"),
        ({"device": "cuda"}, {}, "needs a GPU"),
    ],
)
def test_one_sentence(changes, arguments, message):
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises((TypeError, ValueError, RuntimeError), match=message):
        fit(network(), **({"data": data(), "config": config(**changes)} | arguments))


def test_all_labels_are_looked_at_before_the_first_step():
    x, y = data()
    y[order(x, y, 0)[-1][-1]] = 7  # in the last batch
    model = network()
    before = weights(model)
    with pytest.raises(ValueError, match="labels must be from 0 to 1"):
        fit(model, (x, y), config())
    assert_same(weights(model), before)
    with pytest.raises(ValueError, match="labels must be from 0 to 1"):
        fit(model, {"train": data(), "valid": (x, y)}, config())


def test_data_that_can_be_gone_through_only_once():
    x, y = data()

    def once():
        return ((x[i : i + 32], y[i : i + 32]) for i in range(0, 96, 32))

    settings = config(dataset_size=96)
    with pytest.raises(ValueError, match="gave no batch in epoch 2; pass something that can be iterated again"):
        fit(network(), once(), settings)
    with pytest.raises(ValueError, match="none left; pass something that can be iterated again"):
        fit(network(), {"train": (x, y), "valid": once()}, settings)
    assert len(fit(network(), once(), config(dataset_size=96, epochs=1))) == 1


def test_a_config_that_is_none():
    with pytest.raises(TypeError, match="TrainConfig, not dict"):
        fit(network(), data(), {"epochs": 3})


def test_a_loss_that_is_not_finite(tmp_path):
    x, _ = data()
    settings = config(optimizer="sgd", lr=1e30, checkpoint_steps=1)
    with pytest.raises(FloatingPointError, match="lower lr or set clip; the checkpoint of step 1 is intact"):
        fit(nn.Linear(2, 1), (x, x.sum(1)), settings, likelihood=lb.Gaussian(1.0), out=tmp_path)
    assert read_state(tmp_path / "last.pt")["step"] == 1


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputError, match="cannot write in the output folder"):
        fit(network(), data(), config(), out=tmp_path / "out")


def test_a_disk_that_fills_up(tmp_path, monkeypatch):
    def fill(event):
        if event.record["epoch"] == 2:
            monkeypatch.setattr(os, "fsync", full)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OutputError, match=r"last\.pt: No space left on device; .* intact"):
        fit(network(), data(), config(), out=tmp_path, callbacks=[fill])
    monkeypatch.undo()
    assert read_state(tmp_path / "last.pt")["epoch"] == 1
    assert names(tmp_path) == ["last.pt", "metrics.jsonl"]
    resumed, whole = network(), network()
    fit(resumed, data(), config(), out=tmp_path, resume=True)
    fit(whole, data(), config())
    assert_same(weights(resumed), weights(whole))


def test_ctrl_c(tmp_path):
    def interrupt(event):
        if event.record["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(TrainingInterrupted, match="resume=True goes on from the checkpoint of step 3"):
        fit(network(), data(), config(), out=tmp_path, callbacks=[interrupt])
    assert read_state(tmp_path / "last.pt")["epoch"] == 1
    with pytest.raises(KeyboardInterrupt, match="no checkpoint to resume from"):
        fit(network(), data(), config(), callbacks=[interrupt])


def test_a_folder_in_use(tmp_path):
    fit(network(), data(), config(), out=tmp_path)
    with pytest.raises(OutputError, match="already holds a run; pass resume=True"):
        fit(network(), data(), config(), out=tmp_path)


def test_checkpoints_that_do_not_fit(tmp_path):
    fit(network(), data(), config(), out=tmp_path)
    with pytest.raises(OutputError, match=r"started with lr=0\.01, not 0\.5"):
        fit(network(), data(), config(lr=0.5), out=tmp_path, resume=True)
    with pytest.raises(OutputError, match="started on 96 training examples, and the data has 64"):
        fit(network(), data(64), config(), out=tmp_path, resume=True)
    with pytest.raises(OutputError, match="cannot continue with these rows: it did not record its own; choose another"):
        fit(network(), data(), config(), out=tmp_path, resume=True, identity={"rows": "a"})
    with pytest.raises(OutputError, match="belongs to another model"):
        fit(network(lb.MeanField()), data(), config(), out=tmp_path, resume=True)
    # The weights of a plain network load into a converted one, and into every member of an ensemble.
    with pytest.raises(OutputError, match="belongs to another model"):
        fit(network(lb.DeepEnsemble(members=2)), data(), config(), out=tmp_path, resume=True)
    torch.save({"format": 99}, tmp_path / "last.pt")
    with pytest.raises(OutputError, match="not a checkpoint that this version can read"):
        fit(network(), data(), config(), out=tmp_path, resume=True)


def test_a_checkpoint_of_other_rows_is_not_resumed(tmp_path):
    known = {"data": "table.csv", "split": 0, "limit": None, "rows": "a"}
    fit(network(), data(), config(), out=tmp_path, identity=known)
    for changed, expected in {
        ("split", 2): "it had split=0 instead of 2",
        ("limit", 5): "it had no limit instead of limit=5",
        ("split", None): "it had split=0 instead of none",
        ("rows", "b"): "table.csv has changed since",
    }.items():
        with pytest.raises(OutputError, match=f"the run in .* cannot continue with these rows: {expected}; choose"):
            fit(network(), data(), config(), out=tmp_path, resume=True, identity=known | dict([changed]))
    # The same rows, and rows of which nothing is known.
    for identity in (known, None):
        fit(network(), data(), config(), out=tmp_path, resume=True, identity=identity)


# Resuming


RESUMED = {
    "a method with noise": {"method": lb.MeanField()},
    "a mixture, one component per example": {"method": lb.Rank1(), "tile": False},
    "dropout": {"dropout": 0.3},
    "momentum": {"optimizer": "sgd", "schedule": "cosine", "warmup": 0.5, "epochs": 4},
    "accumulation": {"accumulate": 2, "batch_size": 8, "anneal": 2.0, "method": lb.KTied(rank=1)},
}


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize("after", [1, 4, 6, 11])
def test_resuming_is_exact(tmp_path, name, after):
    """The run ends after some optimiser steps, within and between epochs, and goes on."""
    settings = dict(RESUMED[name])
    method, dropout = settings.pop("method", None), settings.pop("dropout", 0.0)
    settings = config(**({"epochs": 4, "checkpoint_steps": 1} | settings))
    parts = {"train": data(), "valid": data(40, seed=1)}
    whole = network(method, dropout=dropout)
    history = fit(whole, parts, settings, augment=_jitter)

    calls = []

    def stop(x, generator):
        calls.append(1)
        if len(calls) > after * settings.accumulate:
            raise Stop
        return _jitter(x, generator)

    with pytest.raises(Stop):
        fit(network(method, dropout=dropout), parts, settings, augment=stop, out=tmp_path)
    assert read_state(tmp_path / "last.pt")["step"] == after
    torch.manual_seed(99)
    resumed = network(method, seed=5, dropout=dropout)
    again = fit(resumed, parts, settings, augment=_jitter, out=tmp_path, resume=True)
    assert_same(weights(resumed), weights(whole))
    assert without_times(again.records) == without_times(history.records)


def _jitter(x, generator):
    return x + 0.1 * torch.randn(x.shape, generator=generator)


class Drawing(torch.utils.data.Dataset):
    """Items that draw from torch's generator in the training process."""

    def __init__(self):
        self.x, self.y = data()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(2), self.y[index]


@pytest.mark.parametrize("after", [2, 3, 5])
def test_resuming_a_loader_is_exact(tmp_path, after):
    def loader():
        return DataLoader(Drawing(), batch_size=32, shuffle=True)

    whole, resumed = network(lb.MeanField()), network(lb.MeanField(), seed=5)
    settings = config(checkpoint_steps=1)
    fit(whole, loader(), settings)

    def stop(x, generator):
        calls.append(1)
        if len(calls) > after:
            raise Stop
        return x

    calls = []
    with pytest.raises(Stop):
        fit(network(lb.MeanField()), loader(), settings, augment=stop, out=tmp_path)
    fit(resumed, loader(), settings, out=tmp_path, resume=True)
    assert_same(weights(resumed), weights(whole))


def test_resuming_a_finished_run(tmp_path):
    model, again = network(), network(seed=5)
    first = fit(model, data(), config(), out=tmp_path)
    second = fit(again, data(), config(), out=tmp_path, resume=True)
    assert second.records == first.records
    assert_same(weights(again), weights(model))


def test_more_epochs(tmp_path):
    whole, parts = network(lb.MeanField()), network(lb.MeanField())
    fit(whole, data(), config(epochs=5))
    fit(parts, data(), config(epochs=2), out=tmp_path)
    fit(parts, data(), config(epochs=5), out=tmp_path, resume=True)
    assert_same(weights(parts), weights(whole))


def test_the_same_seed_gives_the_same_weights():
    first, second, other = network(lb.MeanField()), network(lb.MeanField()), network(lb.MeanField())
    fit(first, data(), config())
    torch.rand(7)
    fit(second, data(), config())
    fit(other, data(), config(seed=1))
    assert_same(weights(first), weights(second))
    assert not torch.equal(weights(first)["0.bias"], weights(other)["0.bias"])


def _draws():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()


@pytest.mark.parametrize("ends", ["well", "by an error"])
def test_the_generators_go_on_as_if_nothing_had_been_trained(ends, tmp_path):
    def stop(event):
        raise Stop

    def train(resume=False):
        try:
            callbacks = [] if ends == "well" else [stop]
            fit(network_kept, data(), config(), out=tmp_path, resume=resume, callbacks=callbacks)
        except Stop:
            pass

    network_kept = network(lb.MeanField())
    seed_all(7, torch.device("cpu"))
    wanted = _draws(), _draws(), _draws()
    seed_all(7, torch.device("cpu"))
    found = [_draws()]
    for resume in (False, True):
        train(resume)
        found.append(_draws())
    assert tuple(found) == wanted


def test_importing_is_light():
    code = "import sys, leanbayes.training; print([m for m in ('lightning', 'lightning_fabric', 'tensorboard', 'rich')"
    found = subprocess.run(
        [sys.executable, "-c", f"{code} if m in sys.modules])"], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
