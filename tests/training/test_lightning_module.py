"""LitELBO in Lightning's Trainer."""

import pickle

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.training import TrainConfig
from tests.training.problems import data, network

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def lightning():
    return pytest.importorskip("lightning.pytorch")


def test_trains(lightning, tmp_path):
    from leanbayes.training import LitELBO

    x, y = data()
    settings = TrainConfig(lr=0.05, schedule="cosine", anneal=1.0, epochs=2)
    module = LitELBO(network(lb.MeanField()), dataset_size=96, config=settings, steps_per_epoch=3)
    assert isinstance(module, lightning.LightningModule)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    loader = DataLoader(TensorDataset(x, y), batch_size=32)
    before = float(lb.ELBO(module.elbo.model, 96)(x, y).loss)
    trainer.fit(module, loader, loader)
    assert float(lb.ELBO(module.elbo.model, 96)(x, y).loss) < before
    assert {"loss", "nll", "kl", "valid_nll", "valid_accuracy"} <= trainer.callback_metrics.keys()
    # The objective counts the Trainer's steps, and both schedules follow.
    assert int(module.elbo.step) == 6
    assert float(module.elbo.weight_now) == 1.0
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-9)
    assert module(x).shape == (96, 2)


def test_validation_counts_each_example_by_its_weight(lightning):
    from leanbayes.training import LitELBO

    (x, y), weight = data(), torch.rand(96, generator=torch.Generator().manual_seed(0)) ** 3
    weight[:40] = torch.tensor([10.0, 0.0] * 4 + [0.0] * 32)  # one batch counts for nothing
    model = network(lb.BatchEnsemble())
    loader = DataLoader(TensorDataset(x, y, weight), batch_size=8)
    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    (found,) = trainer.validate(LitELBO(model, 96), loader, verbose=False)
    prediction = lb.predict(model, x, 4)
    nll, right = -prediction.log_prob(y), prediction.label == y
    assert found["valid_nll"] == pytest.approx(float((nll * weight).sum() / weight.sum()), rel=1e-5)
    assert found["valid_accuracy"] == pytest.approx(float((right * weight).sum() / weight.sum()), rel=1e-5)


def test_a_noise_that_nothing_would_fit_is_refused(lightning):
    from leanbayes.training import LitELBO

    with pytest.raises(ValueError, match="LitELBO holds no rows out"):
        LitELBO(network(), 96, likelihood=lb.Gaussian("learned", held_out=True))


def test_can_be_pickled(lightning):
    from leanbayes.training import LitELBO

    again = pickle.loads(pickle.dumps(LitELBO(network(), dataset_size=96)))
    assert type(again) is LitELBO
    assert torch.equal(again.elbo.model[0].weight, network()[0].weight)


def test_schedules_need_the_length_of_an_epoch(lightning):
    from leanbayes.training import LitELBO

    with pytest.raises(ValueError, match="steps_per_epoch"):
        LitELBO(network(), dataset_size=96, config=TrainConfig(warmup=1.0))
