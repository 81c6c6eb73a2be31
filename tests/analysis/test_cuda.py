"""The analyses on a GPU give what they give on the CPU, where nothing is drawn."""

import copy

import pytest
import torch

import leanbayes as lb
from leanbayes.analysis import (
    attack_curve,
    compress,
    compress_report,
    curvature,
    gradient_snr,
    iterative_fast_sign,
    phases,
    prune,
    pruning_curve,
    refresh_batchnorm,
    std_spectrum,
)
from tests.analysis.compressible import spread
from tests.networks import SmallNet

pytestmark = pytest.mark.gpu

X = torch.randn(20, 2, 4, 4, generator=torch.Generator().manual_seed(3))
Y = torch.randint(3, (20,), generator=torch.Generator().manual_seed(4))


@pytest.fixture
def models():
    torch.manual_seed(0)
    model = lb.bayesianize(SmallNet(), lb.VariationalDropout(init_log_alpha=-1)).eval()
    return model, copy.deepcopy(model).cuda()


def test_scores_of_means(models):
    here, there = (phases(model, X, Y, samples=3).together.mean for model in models)
    assert here.nll == pytest.approx(there.nll, rel=1e-4)


def test_curvature(models):
    here, there = (curvature(model, X, Y) for model in models)
    for name, value in here.items():
        torch.testing.assert_close(there[name].cpu(), value, rtol=1e-3, atol=1e-6)


def test_attacks_of_means(models):
    with lb.sampling(mean=True):
        here = iterative_fast_sign(models[0], X, Y, step=0.1, steps=2, bounds=None)
        there = iterative_fast_sign(models[1], X.cuda(), Y.cuda(), step=0.1, steps=2, bounds=None)
    assert there.is_cuda and (there.cpu() - here).abs().gt(1e-5).float().mean() < 0.02
    curve = attack_curve(models[1], X.cuda(), Y.cuda(), step=0.1, steps=2, bounds=None)
    assert len(curve.success) == 3


def test_pruning(models):
    here, there = (prune(model, sparsity=0.8) for model in models)
    for name, value in here.state_dict().items():
        assert torch.equal(there.state_dict()[name].cpu(), value)
    assert pruning_curve(models[1], X, Y, sparsities=[0.5], samples=2).points[0].sparsity == pytest.approx(
        0.5, abs=0.01
    )


@pytest.fixture
def mean_field():
    torch.manual_seed(0)
    model = spread(lb.bayesianize(SmallNet(), lb.MeanField()))
    return model, copy.deepcopy(model).cuda()


def test_compression(mean_field):
    here, there = (compress_report(compress(model, rank=1), model) for model in mean_field)
    assert [row.kl for row in there.layers] == pytest.approx([row.kl for row in here.layers], rel=1e-3)
    assert next(compress(mean_field[1], rank=2).parameters()).is_cuda
    here, there = (std_spectrum(model).layers[0].std.values for model in mean_field)
    assert there == pytest.approx(here, rel=1e-4)


def test_statistics_of_means(mean_field):
    for model in mean_field:
        with lb.sampling(mean=True):
            refresh_batchnorm(model, X.split(5))
    here, there = (model.norm for model in mean_field)
    torch.testing.assert_close(there.running_mean.cpu(), here.running_mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(there.running_var.cpu(), here.running_var, rtol=1e-3, atol=1e-4)


def test_noise_of_gradients(mean_field):
    here, there = (gradient_snr(lb.ELBO(model, dataset_size=100), (X, Y), repeats=50) for model in mean_field)
    assert [row.name for row in there.layers] == [row.name for row in here.layers] and there.mean > 1
