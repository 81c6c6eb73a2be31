"""torch.export: programs that draw anew in every run, and programs of the means."""

import pytest
import torch

import leanbayes as lb
from tests.families import ALL, LAYERWISE, ONE_OF_EACH, everywhere
from tests.networks import SmallNet

X = torch.randn(4, 2, 4, 4, generator=torch.Generator().manual_seed(0))
# Few components without noise: two runs may well agree.
COARSE = ("batch_ensemble", "batch_ensemble_signs", "ensemble", "emp")


def make(family):
    torch.manual_seed(0)
    model = lb.bayesianize(SmallNet(), ALL[family], where=everywhere if family in LAYERWISE else None)
    return model.eval()


@pytest.mark.parametrize("family", ALL)
def test_a_program_draws_anew_in_every_run(family):
    model = make(family)
    with torch.no_grad():
        program = torch.export.export(model, (X,)).module()
        outputs = [program(X) for _ in range(2)]
    assert all(output.shape == (4, 3) and output.isfinite().all() for output in outputs)
    assert family in COARSE or not torch.equal(*outputs)


@pytest.mark.parametrize("family", COARSE)
def test_a_program_uses_every_component(family):
    model = make(family)
    with torch.no_grad():
        program = torch.export.export(model, (X,)).module()
        assert len({program(X).sum().item() for _ in range(30)}) > 1


@pytest.mark.parametrize("family", ONE_OF_EACH)
def test_a_program_of_the_means(family):
    model = make(family)
    with torch.no_grad(), lb.sampling(mean=True):
        program = torch.export.export(model, (X,)).module()
        expected = model(X)
    torch.testing.assert_close(program(X), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["rank1", "mc_dropout", "mean_field"])
def test_a_program_for_batches_of_any_size(family):
    model = make(family)
    with torch.no_grad():
        program = torch.export.export(model, (X,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).module()
        assert program(X).shape == (4, 3)
        outputs = program(X[:1].expand(400, -1, -1, -1))
    assert outputs.shape == (400, 3)
    # Each row is a draw of its own example, whose mean and spread are those of the model.
    wanted = lb.predict(model, X[:1], samples=400, seed=0).outputs[:, 0]
    error = (outputs.var(0) + wanted.var(0)).div(400).sqrt()
    assert ((outputs.mean(0) - wanted.mean(0)).abs() < 5 * error).all()


def test_a_program_of_folded_samples():
    model = make("rank1")
    with torch.no_grad(), lb.sampling(n=3):
        program = torch.export.export(model, (lb.fold(X, 3),)).module()
        assert lb.split(program(lb.fold(X, 3)), 3).shape == (3, 4, 3)
