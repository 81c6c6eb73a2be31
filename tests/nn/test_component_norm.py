"""Norms of which every component of a rank-1 mixture has its own."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.testing import assert_close, assert_folds


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6)
    )


def converted(method=None, spread=True):
    model = lb.bayesianize(network(), method or lb.BatchEnsemble(3, norms="component", init_spread=0.5))
    if spread:
        generator = torch.Generator().manual_seed(1)
        for layer in norms(model):
            for parameter in (layer.weight, layer.bias):
                parameter.posterior.copies.data += torch.randn(parameter.posterior.copies.shape, generator=generator)
    return model


def norms(model):
    return [module for module in model.modules() if isinstance(module, lb.nn.ComponentBatchNorm)]


def inputs(rows=8):
    return torch.randn(rows, 2, 4, 4, generator=torch.Generator().manual_seed(2))


def plain_norm(layer, k, template):
    """The plain norm of one component."""
    norm = copy.deepcopy(template)
    norm.load_state_dict(
        {
            "weight": layer.weight.posterior.copies[k].detach(),
            "bias": layer.bias.posterior.copies[k].detach(),
            "running_mean": layer.core.running_mean[k],
            "running_var": layer.core.running_var[k],
            "num_batches_tracked": layer.core.num_batches_tracked,
        }
    )
    return norm


def test_each_component_is_a_plain_batch_norm_of_its_rows_in_training():
    model = converted().double()
    layer = norms(model)[0]
    references = [plain_norm(layer, k, nn.BatchNorm2d(4).double()) for k in range(3)]
    x = torch.randn(7, 4, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    index = torch.tensor([2, 0, 0, 2, 0, 2, 2])  # no row of component 1
    with lb.sampling(component=index):
        y = layer(x)
    for k in (0, 2):
        assert_close(y[index == k], references[k](x[index == k]))
    for k in range(3):
        assert_close(layer.core.running_mean[k], references[k].running_mean)
        assert_close(layer.core.running_var[k], references[k].running_var)
    assert torch.equal(layer.core.running_mean[1], torch.zeros(4, dtype=torch.float64))
    assert layer.core.num_batches_tracked == 1


def test_gradients_are_those_of_plain_norms():
    model = converted().double()
    layer = norms(model)[0]
    references = [plain_norm(layer, k, nn.BatchNorm2d(4).double()) for k in range(3)]
    x = torch.randn(6, 4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3), requires_grad=True)
    other = x.detach().clone().requires_grad_()
    index = torch.tensor([2, 0, 1, 2, 1, 0])
    with lb.sampling(component=index):
        layer(x).pow(3).sum().backward()
    sum(references[k](other[index == k]).pow(3).sum() for k in range(3)).backward()
    assert_close(x.grad, other.grad)
    for k in range(3):
        assert_close(layer.weight.posterior.copies.grad[k], references[k].weight.grad)
        assert_close(layer.bias.posterior.copies.grad[k], references[k].bias.grad)


@pytest.mark.parametrize("training", [True, False])
def test_a_tiled_batch_gives_what_its_components_give_one_by_one(training):
    model = converted().double().train(training)
    x = inputs().double()
    alone = []
    for k in range(3):
        with lb.sampling(component=k):
            alone.append(copy.deepcopy(model)(x))
    with lb.sampling(n=3, component="all"):
        together = lb.split(model(lb.fold(x, 3)), 3)
    assert_close(together, torch.stack(alone))


def test_training_by_tiles_and_by_example():
    for tile in (True, False):
        model = converted(lb.Rank1(3, norms="component"))
        elbo = lb.ELBO(model, 100, tile=tile)
        y = torch.randint(6, (8,), generator=torch.Generator().manual_seed(0))
        elbo(inputs(), y).loss.backward()
        for layer in norms(model):
            assert layer.core.num_batches_tracked == 1
            assert layer.weight.posterior.copies.grad.abs().sum() > 0


def test_without_a_component_the_means_are_the_plain_model_bit_for_bit():
    plain = network().eval()
    model = converted(lb.Rank1(3, norms="component"), spread=False).eval()
    with lb.sampling(mean=True):
        assert torch.equal(model(inputs()), plain(inputs()))


def test_predictions_and_folding():
    model = converted(lb.Rank1(3, norms="component")).eval()
    assert_folds(model, inputs())
    assert lb.predict(model, inputs(), samples=6).outputs.shape == (6, 8, 6)


def test_point_estimate_bakes_scale_shift_and_statistics_of_a_component():
    model = converted()
    for _ in range(3):
        with lb.sampling(n=3, component="all"):
            model(lb.fold(inputs(), 3))
    model.eval()
    for k in range(3):
        plain = lb.point_estimate(model, component=k)
        assert type(plain[1]) is nn.BatchNorm2d
        with lb.sampling(component=k):
            assert_close(plain(inputs()), model(inputs()))
    drawn = lb.point_estimate(model, seed=0)
    assert any(torch.equal(drawn[1].running_mean, norms(model)[0].core.running_mean[k]) for k in range(3))


def test_a_plain_checkpoint_serves_every_component():
    plain = network()
    plain(inputs())
    model = lb.bayesianize(network(), lb.Rank1(3, norms="component"))
    model.load_state_dict(plain.state_dict(), strict=False)
    assert_close(norms(model)[0].core.running_mean, plain[1].running_mean.expand(3, -1))
    with lb.sampling(mean=True):
        assert_close(model.eval()(inputs()), plain.eval()(inputs()))


def test_saved_and_loaded(tmp_path):
    model = converted(lb.Rank1(3, norms="component", clip=5.0)).eval()
    lb.save(model, tmp_path / "model.safetensors")
    again = lb.load(tmp_path / "model.safetensors", network()).eval()
    with lb.sampling(component=2, seed=0):
        first = model(inputs())
    with lb.sampling(component=2, seed=0):
        assert torch.equal(first, again(inputs()))


def test_refreshed_statistics_are_those_of_each_component():
    model = converted()
    x = inputs(32)
    lb.analysis.refresh_batchnorm(model, [x])
    for k in range(3):
        with lb.sampling(component=k):
            out = model.train()[0](x)
        assert_close(norms(model)[0].core.running_mean[k], out.mean((0, 2, 3)))


def test_norms_decay_as_plain_ones_and_add_no_divergence():
    model = converted(lb.Rank1(3, norms="component"))
    groups = {group["name"]: group["params"] for group in lb.param_groups(model, 0.1, 1e-4)}
    for layer in norms(model):
        assert any(layer.weight.posterior.copies is p for p in groups["points"])
    shared = lb.bayesianize(network(), lb.Rank1(3))
    assert_close(lb.kl(model), lb.kl(shared))


def test_layer_norms_have_scales_of_each_component():
    torch.manual_seed(0)
    model = lb.bayesianize(
        nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), lb.BatchEnsemble(2, norms="component", init_spread=0.0)
    )
    points = model[1].weight.posterior
    points.copies.data[1] *= 3
    x = torch.randn(5, 3)
    index = torch.tensor([0, 1, 1, 0, 1])
    with lb.sampling(component=index):
        y = model(x)
    with lb.sampling(component=0):
        first = model(x)
    assert_close(y, torch.where(index.unsqueeze(1) == 1, 3 * first, first))
    outputs = lb.ELBO(model, 10, tile=False)(x, torch.zeros(5, dtype=torch.long)).outputs
    assert outputs.shape == (1, 5, 4)


def test_norms_of_components_know_no_other_devices():
    with pytest.raises(ValueError, match="use norms='shared' with SyncBatchNorm"):
        lb.bayesianize(nn.Sequential(nn.Linear(3, 4), nn.SyncBatchNorm(4)), lb.Rank1(2, norms="component"))


def test_norms_is_one_of_two():
    with pytest.raises(ValueError, match="norms"):
        lb.Rank1(norms="own")
    with pytest.raises(ValueError, match="norms"):
        lb.BatchEnsemble(norms="own")


def test_shared_norms_stay_plain():
    model = lb.bayesianize(network(), lb.Rank1(3))
    assert type(model[1]) is nn.BatchNorm2d
