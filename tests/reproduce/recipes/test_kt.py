"""Parts of the k-tied recipes."""

import math

import pytest
import torch

import leanbayes as lb
from leanbayes.reproduce import PartDone, execute
from leanbayes.reproduce.recipe import recipes
from leanbayes.reproduce.recipes import _kt_mlp, kt_convergence, kt_matrix_normal, kt_steptime
from leanbayes.reproduce.run import Run


@pytest.mark.parametrize("id", ["kt-params", "kt-matrix-normal"])
def test_what_needs_no_training_holds(id, tmp_path):
    result = execute(recipes()[id], preset="smoke", work=tmp_path, progress=False)
    assert all(check["holds"] for check in result["checks"]) and result["verdict"] == "not judged"


def test_the_matrix_normal_is_the_gaussian_with_a_kronecker_product():
    torch.manual_seed(0)
    rows, columns = (torch.randn(n, n, dtype=torch.float64) for n in (3, 4))
    rows, columns = (m @ m.mT + torch.eye(len(m), dtype=m.dtype) for m in (rows, columns))
    points = torch.randn(5, 3, 4, dtype=torch.float64)
    whole = torch.distributions.MultivariateNormal(torch.zeros(12, dtype=torch.float64), torch.kron(columns, rows))
    found = kt_matrix_normal._matrix_normal(points, rows, columns)
    torch.testing.assert_close(found, whole.log_prob(points.mT.flatten(1)))


def test_no_matrix_normal_is_nearer_than_the_nearest():
    torch.manual_seed(0)
    u, v = torch.rand(4, 2, dtype=torch.float64), torch.rand(5, 2, dtype=torch.float64)
    std = u @ v.mT
    best = kt_matrix_normal._nearest(std, 500)
    independent = torch.distributions.MultivariateNormal(
        torch.zeros(20, dtype=torch.float64), std.mT.flatten().square().diag()
    )
    for _ in range(50):
        rows, columns = (torch.randn(n, n, dtype=torch.float64) for n in (4, 5))
        rows, columns = (0.1 * (m @ m.mT) + 0.3 * torch.eye(len(m), dtype=m.dtype) for m in (rows, columns))
        other = torch.distributions.MultivariateNormal(torch.zeros(20, dtype=torch.float64), torch.kron(columns, rows))
        assert best <= float(torch.distributions.kl_divergence(independent, other)) + 1e-9


def test_the_ratio_is_that_of_means_over_elements():
    torch.manual_seed(0)
    mean, std, draws = 3.0, 2.0, 20_000
    gradients = [[mean + std * torch.randn(50)] for _ in range(draws // 50)]
    expected = (mean**2 + std**2) / std**2
    error = 4 * expected * math.sqrt(2 / draws)
    # The variance over so many batches is a little too small.
    assert _kt_mlp._ratio(gradients) == pytest.approx(expected * (1 + 50 / draws), abs=error)


def test_batches_hold_every_image_once_an_epoch():
    batches = list(_kt_mlp._batches(20, 5, 8, seed=0))
    assert len(batches) == 8
    for start in (0, 4):
        assert torch.cat(batches[start : start + 4]).sort().values.tolist() == list(range(20))


def test_all_standard_deviations_of_the_second_layer_are_watched():
    for rank, count in ((None, 1), (2, 2)):
        model = _kt_mlp.build(rank, 0.2, (20, 20))
        assert len(_kt_mlp._spreads(model)) == count
        posterior = model.get_submodule("dense2.weight.posterior")
        assert torch.allclose(posterior.scale().mean().log(), torch.tensor(0.01).log(), atol=0.1)
        assert isinstance(model.get_submodule("dense2").bias, lb.parameter.RandomParameter)


@pytest.mark.parametrize(("goal", "expected"), [(8.0, 10), (6.0, 15), (4.0, 20), (1.0, 30)])
def test_steps_to_a_value_are_interpolated(goal, expected):
    one = {"steps": [10, 20, 30], "elbo": [8.0, 4.0, 2.0]}
    assert kt_convergence._steps_to(one, goal) == expected


def test_either_network_can_be_timed_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(kt_steptime, "_figures", lambda run, kind, place: {"seconds": {}, "bytes": {}})
    run = Run("kt-steptime", "smoke", {}, (0,), tmp_path, only=["wide-*"], progress=False)
    with pytest.raises(PartDone) as part:
        kt_steptime.measure(run.changed(wide=[8, 8], rounds=1))
    assert part.value.open == ["printed-cpu"] and "wide-cpu" in str(list(tmp_path.rglob("*.json")))
