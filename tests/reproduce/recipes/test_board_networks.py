"""board-networks: what its checks ask, and how one method is trained and measured."""

import pytest
import torch

from leanbayes.board.networks import LAPLACE, METRICS, TITLES, Conditions, scores
from leanbayes.compare import PRESETS, compare
from leanbayes.data import generate
from leanbayes.reproduce import execute
from leanbayes.reproduce.recipe import recipes
from leanbayes.reproduce.recipes import board_networks as board
from leanbayes.reproduce.result import HOLDS

EXAMPLES = 400


def record(name, place, seed, nll, overhead=1.0, accuracy=0.95):
    """Figures of a method whose losses are about as large as said; better ones are better calibrated, too."""
    generator = torch.Generator().manual_seed(seed)
    hard = torch.rand(EXAMPLES, generator=generator, dtype=torch.float64) - 0.5
    noise = 0.02 * torch.rand(EXAMPLES, generator=torch.Generator().manual_seed(len(name)), dtype=torch.float64)
    right = (torch.arange(EXAMPLES) >= (1 - accuracy) * EXAMPLES).long()
    confidence = torch.full((EXAMPLES,), accuracy + nll / 5)
    examples = {"nll": (nll + hard + noise).tolist(), "confidence": confidence.tolist(), "right": right.tolist()}
    figures = {"accuracy": accuracy, "nll": nll, "ece": nll / 5, "seconds": 10.0, "network": "resnet18"}
    return figures | {"parameters": 100 * overhead, "overhead": overhead, "how": "", "examples": examples}


NLL = dict.fromkeys(TITLES, 0.2) | {"mc-dropout": 0.19, "deep-ensemble": 0.1, "rank1": 0.13}
SIZES = {"deep-ensemble": 5.0, "mean-field": 2.0}


def run_with(monkeypatch, tmp_path, changes=None, missing=(), accuracy=0.95):
    found = NLL | (changes or {})

    def stub(run, place, name, seed):
        if (place, name) in missing:
            return {"failed": "RuntimeError: it is lost"}
        if name == LAPLACE:
            return {"missing": "laplace cannot be imported"}
        return record(name, place, seed, found[name], SIZES.get(name, 1.05), accuracy)

    monkeypatch.setattr(board, "_scores", stub)
    return execute(recipes()["board-networks"], preset="short", work=tmp_path, out=tmp_path / "out", progress=False)


def test_a_lean_method_that_is_clearly_better_and_near_the_ensemble_holds(monkeypatch, tmp_path):
    result = run_with(monkeypatch, tmp_path)
    assert result["verdict"] == HOLDS and len(result["checks"]) == 3
    lean = result["figure"]["lean"]["cifar10"]
    assert next(iter(lean)) == "rank1" and "mean-field" not in lean and "deep-ensemble" not in lean
    assert lean["rank1"] == {"share": pytest.approx(0.7), "unclear": []}
    assert lean["emp"]["unclear"]
    assert "Last-layer Laplace (laplace-torch) was not run: laplace cannot be imported" in result["notes"]
    test = result["figure"]["paired"]["imdb"]["rank1"]["plain"]
    assert test["nll"]["difference"] == pytest.approx(-0.07, abs=0.01) and test["nll"]["z"] < -10
    assert test["accuracy"] == {"difference": 0, "z": 0}
    ranks = [row for row in result["rows"] if row["metric"].startswith("NLL, nats: mean rank")]
    assert ranks[0]["name"] == TITLES["deep-ensemble"] and ranks[0]["metric"].endswith("on 3 sets, 3 won")


def test_what_is_missing_to_hold_is_said(monkeypatch, tmp_path):
    changes = {"rank1": 0.16}
    result = run_with(monkeypatch, tmp_path, changes, missing={("imdb", "emp")}, accuracy=0.93)
    every, accurate, lean = (check["gap"] for check in result["checks"])
    assert every == "without a figure: EMP (5) on IMDB"
    assert accurate == "CIFAR-10: accuracy of the plain network: 93 %, 1 short"
    assert lean == "Rank-1 Gaussian (4), the best of them by NLL: 40% of the gain"
    assert "EMP (5) failed on IMDB: RuntimeError: it is lost" in result["notes"]


def test_every_method_of_compare_takes_part():
    settings = recipes()["board-networks"].presets["short"]
    assert set(settings["methods"]) == {*PRESETS, LAPLACE} and settings["budget"] == "normal"


def test_one_method_is_trained_as_compare_does_it(tmp_path):
    data = generate.dataset("imdb", rows=(40, 20))
    given = Conditions("1", 2, seed=3, device="cpu", folder=tmp_path / "board", progress=False)
    found = scores(data, "rank1", given)
    result = compare(data, ["rank1"], "1", seeds=(3,), samples=2, out=tmp_path / "other", device="cpu", progress=False)
    (entry,) = result["methods"]
    assert {name: found[name] for name in METRICS} == {name: entry["metrics"][name][0] for name in METRICS}
    assert found["parameters"] == entry["parameters"] and found["network"] == "text_lstm"
    examples = found["examples"]
    assert [sum(values) / 20 for values in (examples["nll"], examples["right"])] == [
        pytest.approx(found["nll"], rel=1e-4), pytest.approx(found["accuracy"]),
    ]  # fmt: skip
    assert scores(data, "rank1", given) == found  # what is there is not trained again


@pytest.mark.filterwarnings("ignore")  # that library's own
def test_laplace_takes_the_plain_network(tmp_path):
    pytest.importorskip("laplace")
    data = generate.dataset("imdb", rows=(40, 20))
    given = Conditions("1", 2, seed=0, device="cpu", folder=tmp_path, progress=False)
    plain, found = (scores(data, name, given) for name in ("plain", LAPLACE))
    assert found["seconds"] > plain["seconds"] and found["parameters"] == plain["parameters"]
    assert found["accuracy"] == plain["accuracy"] and found["nll"] != plain["nll"]
    assert max(found["examples"]["confidence"]) < max(plain["examples"]["confidence"])
