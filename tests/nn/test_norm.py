"""Normalisation layers with K copies of scale and shift, against the plain norms."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.testing import assert_folds

NORMS = {
    "batch1d": (lambda: nn.BatchNorm1d(4), (6, 4)),
    "batch1d_sequence": (lambda: nn.BatchNorm1d(4, momentum=None), (6, 4, 3)),
    "batch2d": (lambda: nn.BatchNorm2d(4), (6, 4, 3, 2)),
    "batch2d_no_statistics": (lambda: nn.BatchNorm2d(4, track_running_stats=False), (6, 4, 3, 2)),
    "batch3d": (lambda: nn.BatchNorm3d(4), (6, 4, 3, 2, 2)),
    "layer": (lambda: nn.LayerNorm(4), (6, 3, 4)),
    "layer_2_axes": (lambda: nn.LayerNorm((3, 4)), (6, 2, 3, 4)),
    "layer_no_bias": (lambda: nn.LayerNorm(4, bias=False), (6, 4)),
    "rms": (lambda: nn.RMSNorm(4), (6, 3, 4)),
    "group": (lambda: nn.GroupNorm(2, 4), (6, 4, 5)),
    "instance1d": (lambda: nn.InstanceNorm1d(4, affine=True), (6, 4, 5)),
    "instance2d": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (6, 4, 3, 2)),
    "instance3d": (lambda: nn.InstanceNorm3d(4, affine=True), (6, 4, 3, 2, 2)),
}
METHODS = {"emp": lb.EMP(components=3, init_std=0.3), "ecmp": lb.ECMP(components=3, init_std=0.3)}


def make(name, method):
    torch.manual_seed(0)
    build, shape = NORMS[name]
    plain = build()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return plain, lb.bayesianize(copy.deepcopy(plain), method, where=lb.norms()), torch.randn(shape)


def with_copy(plain, layer, k):
    other = copy.deepcopy(plain)
    for name, parameter in other.named_parameters():
        parameter.data = getattr(layer, name).posterior.copies[k].detach().clone()
    return other


def buffers(module):
    return {name.removeprefix("core."): value for name, value in module.named_buffers()}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NORMS)
def test_a_component_is_the_plain_norm_with_its_copy(name, method, training):
    plain, layer, x = make(name, METHODS[method])
    layer.train(training)
    for k in range(3):
        expected = with_copy(plain, layer, k).train(training)
        expected.load_state_dict(buffers(layer), strict=False)
        with lb.sampling(component=k):
            torch.testing.assert_close(layer(x), expected(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(buffers(layer), buffers(expected))
        point = lb.point_estimate(layer, component=k)
        assert type(point) is type(plain)
        torch.testing.assert_close(dict(point.state_dict()), dict(expected.state_dict()))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", NORMS)
def test_means_take_the_plain_norms_own_path(name, grad, training):
    """Bit for bit, with the plain weights where there is one copy, and with the means where there are more."""
    for components in (1, 3):
        plain, layer, x = make(name, lb.EMP(components=components, init_std=0.3))
        expected = (plain if components == 1 else lb.point_estimate(layer)).train(training)
        layer.train(training)
        with torch.set_grad_enabled(grad), lb.sampling(mean=True):
            y = layer(x)
        with torch.set_grad_enabled(grad):
            assert torch.equal(y, expected(x))
        assert all(torch.equal(value, buffers(expected)[key]) for key, value in buffers(layer).items())


def test_a_shift_that_another_layer_shares_is_there_with_means_too():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    model[1].bias = model[0].bias
    plain = copy.deepcopy(model)
    x = torch.randn(3, 4)
    model = lb.bayesianize(model, lb.EMP(components=1), where=lb.norms())
    with lb.sampling(mean=True):
        assert torch.equal(model(x), plain(x))


# Without running statistics the examples of a batch mix in eval mode too, in the plain module as here.
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", [name for name in NORMS if name != "batch2d_no_statistics"])
def test_folds(name, method):
    _, layer, x = make(name, METHODS[method])
    assert_folds(layer, x)


@pytest.mark.parametrize("name", NORMS)
def test_one_copy_per_batch_for_scale_and_shift_together(name):
    plain, layer, x = make(name, lb.EMP(components=4, init_std=0.3))
    expected = [with_copy(plain, layer, k).eval()(x) for k in range(4)]
    layer.eval()
    drawn = [layer(x) for _ in range(30)]
    used = [next(k for k in range(4) if torch.allclose(y, expected[k], atol=1e-5)) for y in drawn]
    assert len(set(used)) > 1


@pytest.mark.parametrize("name", NORMS)
def test_one_copy_per_example(name):
    plain, layer, x = make(name, lb.EMP(components=3, init_std=0.3, draw="example"))
    expected = torch.stack([with_copy(plain, layer, k).eval()(x) for k in range(3)])
    y = layer.eval()(x)
    used = [next(k for k in range(3) if torch.allclose(y[i], expected[k, i], atol=1e-5)) for i in range(6)]
    assert len(set(used)) > 1
    with lb.sampling(joint=True):
        joint = layer(x)
    assert any(torch.allclose(joint, expected[k], atol=1e-5) for k in range(3))
    with lb.sampling(component=1):
        torch.testing.assert_close(layer(x), expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NORMS)
def test_single_elements_of_cross_patches_come_from_single_copies(name):
    _, layer, x = make(name, lb.ECMP(components=3, init_std=0.3))
    with lb.sampling(hold=True) as state:
        y = layer.eval()(x)
        scale = layer.weight.rsample(1, state)[0]
        shift = layer.bias.rsample(1, state)[0] if layer.bias is not None else torch.zeros_like(scale)
    assert (layer.weight.posterior.copies == scale).any(0).all()
    plain = lb.point_estimate(layer).eval()
    plain.weight.data = scale.detach()
    if layer.bias is not None:
        plain.bias.data = shift.detach()
    torch.testing.assert_close(y, plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NORMS)
def test_gradients_reach_the_copies_that_were_drawn(name, method):
    _, layer, x = make(name, METHODS[method])
    with lb.sampling(component=1):
        layer(x).square().sum().backward()
    for parameter in (layer.weight, layer.bias):
        if parameter is not None:
            grad = parameter.posterior.copies.grad
            assert grad[1].abs().sum() > 0
            assert grad[0].abs().sum() == grad[2].abs().sum() == 0


@pytest.mark.parametrize("name", [name for name in NORMS if "batch" in name and "no_statistics" not in name])
def test_running_statistics_are_shared_and_move_once_per_step(name):
    plain, layer, x = make(name, METHODS["emp"])
    assert sorted(buffers(layer)) == ["num_batches_tracked", "running_mean", "running_var"]
    with lb.sampling(n=3):
        layer.train()(lb.fold(x, 3))
    plain.train()(lb.fold(x, 3))
    torch.testing.assert_close(buffers(layer), buffers(plain))
    assert buffers(layer)["num_batches_tracked"] == 1


@pytest.mark.parametrize(
    ("norm", "shape"), [(nn.InstanceNorm1d(4, affine=True), (4, 5)), (nn.InstanceNorm2d(4, affine=True), (4, 3, 2))]
)
@pytest.mark.parametrize("draw", ["batch", "example"])
def test_an_instance_without_a_batch_axis(norm, shape, draw):
    layer = lb.bayesianize(copy.deepcopy(norm), lb.EMP(init_std=1e-9, draw=draw))
    x = torch.randn(shape)
    torch.testing.assert_close(layer(x), norm(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="without a batch axis, but n=2"), lb.sampling(n=2):
        layer(x)


@pytest.mark.parametrize("draw", ["batch", "example"])
def test_a_layer_norm_of_one_example(draw):
    norm, x = nn.LayerNorm(4), torch.randn(4)
    layer = lb.bayesianize(copy.deepcopy(norm), lb.EMP(init_std=1e-9, draw=draw))
    torch.testing.assert_close(layer(x), norm(x), rtol=1e-5, atol=1e-5)


def test_synchronised_batch_norm_on_one_device():
    plain = nn.SyncBatchNorm(4).eval()
    layer = lb.bayesianize(copy.deepcopy(plain), lb.EMP())
    x = torch.randn(5, 4, 3)
    with lb.sampling(mean=True):
        torch.testing.assert_close(layer(x), plain(x), rtol=1e-5, atol=1e-5)
    assert type(lb.point_estimate(layer)) is nn.SyncBatchNorm


def test_learned_mixing_gets_gradients():
    layer = lb.bayesianize(nn.LayerNorm(4), lb.EMP(components=3, init_std=0.3, learn_mixing=True))
    layer(torch.randn(5, 4)).square().sum().backward()
    assert layer.mixing.logits.grad.abs().sum() > 0


@pytest.mark.parametrize("norm", [nn.LayerNorm(4, elementwise_affine=False), nn.BatchNorm1d(4, affine=False)])
def test_a_norm_without_scale_and_shift_is_left_alone(norm):
    model = nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 2))
    model = lb.bayesianize(model, lb.EMP())
    assert model[1] is norm
    assert ("1", type(norm).__name__, "it has no scale and shift") in model.leanbayes_report.left
    with pytest.raises(ValueError, match="1 .* was asked for by name, but it has no scale and shift"):
        lb.bayesianize(nn.Sequential(nn.Linear(4, 4), norm), lb.EMP(), where=lb.named("1"))
