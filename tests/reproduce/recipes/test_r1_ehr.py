"""Hospital records: events, methods as in table 4, what is chosen on which rows, and checks that can fail."""

import math

import numpy as np
import pytest
import torch

import leanbayes as lb
from leanbayes.data import generate
from leanbayes.models import create
from leanbayes.reproduce import Run, execute
from leanbayes.reproduce.recipe import recipes
from leanbayes.reproduce.recipes import _r1_records as ehr
from leanbayes.reproduce.recipes import r1_ehr

SETTINGS = recipes()["r1-ehr"].presets["smoke"]


@pytest.fixture
def run(tmp_path):
    return Run("r1-ehr", "smoke", SETTINGS, (0,), tmp_path, progress=False)


def test_events_are_quantiles_of_what_training_observed():
    values = torch.arange(8.0).view(8, 1, 1)
    train = torch.cat([values, torch.ones(8, 1, 1)], 2)
    encode = ehr.Events(train, bins=4)
    assert encode.vocabulary == 4
    assert encode(train).flatten().unique(return_counts=True)[1].max() <= 3
    assert encode(train).flatten().tolist() == sorted(encode(train).flatten().tolist())
    others = torch.tensor([[[-50.0, 1.0]], [[50.0, 1.0]], [[3.0, 0.0]], [[math.nan, 0.0]]])
    assert encode(others).flatten().tolist() == [1, 4, 0, 0]


def test_events_of_two_variables_and_hours_together():
    seen = torch.ones(5, 4, 2)
    train = torch.cat([torch.stack([torch.arange(20.0).view(5, 4), -torch.arange(20.0).view(5, 4)], 2), seen], 2)
    apart, together = ehr.Events(train, 3), ehr.Events(train, 3, together=2)
    ids = apart(train)
    assert ids[..., 0].max() <= 3 < ids[..., 1].min() and ids.max() == 6
    assert torch.equal(together(train)[2, 1], torch.cat([ids[2, 2], ids[2, 3]]))


def test_a_variable_that_nobody_measured_has_no_edges():
    train = torch.cat([torch.full((3, 2, 1), math.nan), torch.zeros(3, 2, 1)], 2)
    assert (ehr.Events(train, 4)(train) == 0).all()


@pytest.mark.parametrize(
    ("method", "layers"),
    [
        ("batchensemble", {"dense": "BatchEnsemble", "lstm": "BatchEnsemble", "output": "BatchEnsemble"}),
        ("embeddings", {"embedding": "MeanField"}),
        ("bayesian", dict.fromkeys(("embedding", "lstm", "dense", "output"), "MeanField")),
        ("gaussian", {"embedding": "MeanField", "lstm": "Rank1", "dense": "Rank1", "output": "Rank1"}),
        ("cauchy", {"embedding": "MeanField", "lstm": "Rank1", "dense": "Rank1", "output": "Rank1"}),
    ],
)
def test_methods_are_those_of_the_table(run, method, layers):
    model = ehr.convert(
        run, create("event_lstm", vocabulary=6, embedding=3, hidden=4, dense=3), method, ehr.Way(0.1, 1.0, 0.2)
    )
    found = {layer.path: type(layer.method).__name__ for layer in model.modules() if hasattr(layer, "method")}
    assert found == layers
    if method in ("gaussian", "cauchy"):
        assert model.get_submodule("lstm").estimator == "rank1"
    if method == "bayesian":
        assert isinstance(model.get_submodule("output").bias, lb.parameter.RandomParameter)


def test_limits_are_tried_for_the_tails_of_cauchy_factors_alone(run):
    assert {way.clip for way in ehr.ways(run, "gaussian", 0.2)} == {None}
    clips = [way.clip for way in ehr.ways(run, "cauchy", 0.2)]
    assert None in clips and 1.5 in clips
    net = create("event_lstm", vocabulary=6, embedding=3, hidden=4, dense=3)
    model = ehr.convert(run, net, "cauchy", ehr.Way(0.1, 1.0, 0.2, 1.5))
    assert model.get_submodule("dense").weight.posterior.clip == 1.5


def test_the_network_that_is_scored_is_that_of_the_best_epoch(run):
    """The training is loaded for the scores: a network of the last epoch would be another one."""
    way = ehr.ways(run, "embeddings")[0]
    chosen = ehr.valid_nll(run, "embeddings", way, 0)
    scores = ehr.scores(run, "embeddings", way, 0)
    assert scores["valid"]["nll"] == chosen
    assert scores["valid"]["nll"] == pytest.approx(np.mean(scores["valid"]["each"]), abs=1e-5)


def test_the_choice_is_by_validation_rows_alone(tmp_path, monkeypatch):
    run = Run("r1-ehr", "smoke", SETTINGS | {"weight_decays": (0.0, 1.0)}, (0,), tmp_path, progress=False)
    monkeypatch.setattr(ehr, "valid_nll", lambda run, method, way, seed: 1 - way.option)
    monkeypatch.setattr(ehr, "scores", None)
    chosen = r1_ehr._choose(run)
    assert {method: way.embedding_std for method, way in chosen.items() if way.embedding_std is not None} == {
        "gaussian": 0.3, "cauchy": 0.3,
    }  # fmt: skip
    assert {method: way.option for method, way in chosen.items()} == {
        "deterministic": 1.0, "batchensemble": 1.0, "embeddings": 0.3, "bayesian": 0.3, "gaussian": 1.0, "cauchy": 1.0,
        "ensemble": 1.0,
    }  # fmt: skip


def test_outcomes_follow_the_process(run):
    known = ehr.process_scores(run.changed(rows=1500), "test")
    data = ehr.records(run.changed(rows=1500)).test
    risk = generate.risk_of_death(data.tensor().double().numpy())
    entropy = -(risk * np.log(risk) + (1 - risk) * np.log1p(-risk))
    spread = np.sqrt((risk * (1 - risk) * np.log(risk / (1 - risk)) ** 2).mean() / len(risk))
    assert abs(known["nll"] - entropy.mean()) < 4 * spread
    assert known["nll"] < 0.75 * _entropy(float(data.y.double().mean()))


def _entropy(p):
    return -(p * math.log(p) + (1 - p) * math.log(1 - p))


def scored(**nll):
    both = {"auc_pr": 0.4, "ece": 0.02}
    return {
        name: [{part: both | {"nll": nll.get(name, 0.3), "each": [nll.get(name, 0.3)] * 3} for part in ehr.PARTS}]
        for name in r1_ehr.METHODS
    }


def test_checks_fail_where_rank_1_is_no_better():
    checks = {check.text: check.holds for check in r1_ehr._checks(scored(gaussian=0.2, fully=0.1, bayesian=0.1))}
    assert checks["rank-1, Gaussian: NLL below that of deterministic"]
    assert not checks["rank-1, Gaussian: NLL below that of fully Bayesian"]
    assert not checks["rank-1, Gaussian: AUC-PR above that of deterministic"]
    assert not checks["rank-1, Cauchy: NLL below that of deterministic"]


def test_predictions_better_than_the_process_are_a_leak():
    best = torch.rand(400, generator=torch.Generator().manual_seed(0)).tolist()
    known = {"test": {"each": best}}

    def ones(off):
        return [{"test": {"each": [value + off + 0.1 * (row % 2) for row, value in enumerate(best)]}}]

    assert r1_ehr._no_leak("a", ones(0.0), known).holds
    assert not r1_ehr._no_leak("a", ones(-0.2), known).holds


def test_a_copy_of_the_tables_is_read(tmp_path):
    generate.write_mimic(tmp_path / "data", rows=40)
    run = Run("r1-ehr", "smoke", SETTINGS, (0,), tmp_path, data=tmp_path / "data", progress=False)
    run.generate_without(ehr.NAME, "generated", **r1_ehr._options(run))
    assert not run.generated and len(ehr.records(run).train)
    (tmp_path / "data/mimic-iii/ICUSTAYS.csv").unlink()
    run = Run("r1-ehr", "smoke", SETTINGS, (0,), tmp_path, data=tmp_path / "data", progress=False)
    with pytest.raises(FileNotFoundError, match="not complete"):
        run.generate_without(ehr.NAME, "generated", **r1_ehr._options(run))


def test_without_a_copy_the_result_says_so(tmp_path):
    (tmp_path / "empty").mkdir()
    small = {"epochs": 1, "weight_decays": (0.0,), "signs": (1.0,), "prior_stds": (0.3,)}
    result = execute(
        recipes()["r1-ehr"], preset="smoke", settings=small, data=tmp_path / "empty", work=tmp_path, progress=False
    )
    assert any(note.startswith("generated records: MIMIC-III") for note in result["notes"])
    assert result["figure"]["process"] is not None
