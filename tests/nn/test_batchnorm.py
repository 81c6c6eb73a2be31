"""Batch normalisation of folded samples in training: pooled statistics, or those of each sample."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.nn.batchnorm import per_sample_batch_norm
from leanbayes.testing import run_apart, run_folded
from tests.families import everywhere
from tests.networks import SmallNet

N = 3


def statistics(model):
    return {name: value.clone() for name, value in model.named_buffers()}


def make(method):
    torch.manual_seed(0)
    model = lb.bayesianize(SmallNet(), method, where=everywhere).train()
    return model, torch.randn(5, 2, 4, 4)


def test_pooled_statistics_are_those_of_the_folded_batch_and_move_once():
    model, x = make(lb.MeanField(init_std=0.3))
    seen = []
    handle = model.norm.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with lb.sampling(n=N):
        model(lb.fold(x, N))
    handle.remove()
    expected = SmallNet().norm.train()
    expected(seen[0])
    torch.testing.assert_close(statistics(model.norm), statistics(expected))
    assert seen[0].shape[0] == N * 5
    assert model.norm.num_batches_tracked == 1


@pytest.mark.parametrize("method", [lb.MeanField(init_std=0.3), lb.EMP(init_std=0.3), lb.ECMP(init_std=0.3)])
def test_per_sample_statistics_normalise_as_a_loop_does(method):
    model, x = make(method)
    start = copy.deepcopy(model)
    folded = run_folded(model, x, N, bn="per_sample")
    torch.testing.assert_close(folded, run_apart(copy.deepcopy(start), x, N), rtol=1e-4, atol=1e-5)
    pooled = run_folded(copy.deepcopy(start), x, N)
    assert not torch.allclose(folded, pooled, atol=1e-3)
    # One update, towards the mean of the samples' statistics.
    each = []
    generators = [torch.Generator().manual_seed(s) for s in range(N)]
    for s in range(N):
        single = copy.deepcopy(start)
        with lb.sampling(generator=generators[s]):
            single(x)
        each.append(statistics(single))
    for name, value in statistics(model).items():
        if value.is_floating_point():
            mean = torch.stack([entry[name] for entry in each]).mean(0)
            torch.testing.assert_close(value, mean, rtol=1e-5, atol=1e-6)
        else:
            assert value == 1


def test_its_gradients_are_the_loops():
    model, x = make(lb.MeanField(init_std=0.3))
    trained = list(model.parameters())
    folded = torch.autograd.grad(run_folded(model, x, N, bn="per_sample").square().sum(), trained)
    apart = torch.autograd.grad(run_apart(model, x, N).square().sum(), trained)
    for ours, expected in zip(folded, apart):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)


def test_eval_mode_does_not_care():
    model, x = make(lb.MeanField(init_std=0.3))
    model.eval()
    with torch.no_grad():
        assert torch.equal(run_folded(model, x, N, bn="per_sample"), run_folded(model, x, N))
    assert model.norm.num_batches_tracked == 0


def test_the_modules_are_as_before_afterwards():
    model, x = make(lb.MeanField())
    with lb.sampling(n=N, bn="per_sample"):
        model(lb.fold(x, N))
        assert "forward" not in vars(model.norm)
        with pytest.raises(RuntimeError):
            model(torch.randn(N, 7, 4, 4))
    assert "forward" not in vars(model.norm)


@pytest.mark.parametrize("method", [lb.DeepEnsemble(members=2), lb.DeepEnsemble(members=2, of=lb.EMP(init_std=0.3))])
def test_members_of_an_ensemble(method):
    """Four samples, two of each member: every sample is normalised by itself."""
    torch.manual_seed(0)
    model = lb.bayesianize(SmallNet(), method).train()
    x = torch.randn(5, 2, 4, 4)
    start = copy.deepcopy(model)
    folded = run_folded(model, x, 4, bn="per_sample", component="all")
    torch.testing.assert_close(folded, run_apart(start, x, 4, component="all"), rtol=1e-4, atol=1e-5)
    tracked = [value for name, value in model.named_buffers() if name.endswith("num_batches_tracked")]
    assert all(value.tolist() == [1, 1] for value in tracked)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}])
def test_against_one_module_per_sample(options, dtype):
    torch.manual_seed(0)
    module = nn.BatchNorm1d(4, **options).to(dtype)
    x = torch.randn(N, 6, 4, 5).to(dtype)
    apart, loose = [], {"rtol": 0.05, "atol": 0.05} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    for s in range(N):
        single = copy.deepcopy(module)
        apart.append((single(x[s]), single))
    y = per_sample_batch_norm(module, x.flatten(0, 1), N)
    torch.testing.assert_close(y, torch.cat([out for out, _ in apart]), **loose)
    if module.track_running_stats:
        for name in ("running_mean", "running_var"):
            mean = torch.stack([getattr(single, name) for _, single in apart]).mean(0)
            torch.testing.assert_close(getattr(module, name), mean, **loose)


def test_rows_that_do_not_divide_into_samples_are_an_error():
    with pytest.raises(ValueError, match="5 rows does not divide into 2 samples"):
        per_sample_batch_norm(nn.BatchNorm1d(4), torch.randn(5, 4), 2)
