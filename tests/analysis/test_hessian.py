"""curvature against torch's Hessian and finite differences, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import leanbayes as lb
from leanbayes.analysis import curvature


class Positions(nn.Module):
    """A dense layer on sequences, whose positions are mixed afterwards."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(3, 4)
        self.output = nn.Linear(5 * 4, 3)

    def forward(self, x):
        return self.output(F.softplus(self.dense(x)).flatten(1))


class Flattened(Positions):
    """The same, but a row of the dense layer's input is a position of an example."""

    def forward(self, x):
        return self.output(F.softplus(self.dense(x.reshape(-1, 3))).view(len(x), -1))


class PositionsFirst(Positions):
    """The same with positions on the first axis; seven of them here, as many as there are examples."""

    def __init__(self):
        super().__init__()
        self.output = nn.Linear(7 * 4, 3)

    def forward(self, x):
        return self.output(F.softplus(self.dense(x.movedim(1, 0))).movedim(0, 1).flatten(1))


def grouped():
    """A group norm behind the layer."""
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Softplus(), nn.Flatten(), nn.Linear(16, 3))


def attended():
    """A plain attention layer behind the layer."""
    attention = nn.TransformerEncoderLayer(6, 2, 7, batch_first=True)
    return nn.Sequential(nn.Linear(6, 6), attention, nn.Flatten(), nn.Linear(30, 3))


def behind(layer, *shape):
    """A network with batch norm, softplus and a dense layer behind the first layer."""
    features = layer(torch.zeros(2, *shape))[0].numel()
    channels = layer.weight.shape[0]
    norm = nn.BatchNorm1d(channels) if isinstance(layer, nn.Linear | nn.Conv1d) else nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.uniform_(0.5, 2)
    return nn.Sequential(layer, norm, nn.Softplus(), nn.Flatten(), nn.Linear(features, 3))


# The network, the shape of one input, the name of the layer: more positions than inputs, and the other way round.
NETWORKS = {
    "dense": (lambda: behind(nn.Linear(6, 5), 6), (6,), "0"),
    "output": (lambda: behind(nn.Linear(6, 5), 6), (6,), "4"),
    "sequence": (Positions, (5, 3), "dense"),
    "flattened": (Flattened, (5, 3), "dense"),
    "positions_first": (PositionsFirst, (7, 3), "dense"),
    "group_norm": (grouped, (2, 4, 4), "0"),
    "attention": (attended, (5, 6), "0"),
    "conv": (lambda: behind(nn.Conv2d(2, 3, 2, padding=1), 2, 4, 4), (2, 4, 4), "0"),
    "few_positions": (lambda: behind(nn.Conv2d(3, 4, 3), 3, 4, 4), (3, 4, 4), "0"),
    "stride": (lambda: behind(nn.Conv2d(2, 4, 3, stride=2, padding=1), 2, 5, 5), (2, 5, 5), "0"),
    "groups": (lambda: behind(nn.Conv2d(4, 6, 2, groups=2, bias=False), 4, 3, 4), (4, 3, 4), "0"),
    "circular": (lambda: behind(nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular"), 2, 7), (2, 7), "0"),
}


def problem(name):
    torch.manual_seed(0)
    make, shape, layer = NETWORKS[name]
    net = make().double().train()
    return net, torch.randn(7, *shape, dtype=torch.float64), torch.randint(3, (7,)), layer


def loss_of(net, name, x, y):
    """The summed loss as a function of one weight."""
    net = net.eval()

    @sdpa_kernel(SDPBackend.MATH)
    def loss(weight):
        return F.cross_entropy(torch.func.functional_call(net, {f"{name}.weight": weight}, (x,)), y, reduction="sum")

    return loss, net.get_parameter(f"{name}.weight").detach()


@pytest.mark.parametrize("name", NETWORKS)
def test_equals_the_diagonal_of_the_hessian(name):
    net, x, y, layer = problem(name)
    model = lb.bayesianize(net, lb.MeanField(init_std=0.2), where=lb.named(layer))
    loss, weight = loss_of(lb.point_estimate(model), layer, x, y)
    hessian = torch.autograd.functional.hessian(loss, weight).reshape(weight.numel(), weight.numel())
    wanted = 0.04 * hessian.diagonal().abs().view(weight.shape)
    assert wanted.abs().max() > 1e-3
    for options in ({}, {"batch_size": 3, "chunk": 4}, {"chunk": 1}):
        (found,) = curvature(model, x, y, **options).values()
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-10)


def test_equals_finite_differences():
    net, x, y, layer = problem("stride")
    model = lb.bayesianize(net, lb.VariationalDropout(init_log_alpha=-1), where=lb.named(layer))
    loss, weight = loss_of(lb.point_estimate(model), layer, x, y)
    found = curvature(model, x, y)[layer].flatten()
    var = model[0].weight.moments().var.flatten()
    step = 1e-3
    for k in range(0, weight.numel(), 7):
        unit = torch.zeros_like(weight).flatten()
        unit[k] = step
        unit = unit.view(weight.shape)
        second = (loss(weight + unit) - 2 * loss(weight) + loss(weight - unit)) / step**2
        assert found[k].item() == pytest.approx((var[k] * second.abs()).item(), rel=1e-4, abs=1e-8)


def test_all_weights_are_at_their_means():
    net, x, y, _ = problem("dense")
    model = lb.bayesianize(net, {"0": lb.VarianceLayer(), "4": lb.MeanField(init_std=3.0)})
    first, second = (curvature(model, x, y, layer="0") for _ in range(2))
    assert list(first) == ["0"] and torch.equal(first["0"], second["0"])
    loss, zero = loss_of(lb.point_estimate(model), "0", x, y)
    hessian = torch.autograd.functional.hessian(loss, zero).reshape(30, 30).diagonal().view(5, 6)
    torch.testing.assert_close(first["0"], net[0].weight.moments().var * hessian.abs())


def test_model_is_left_alone():
    net, x, y, _ = problem("conv")
    model = lb.bayesianize(net, lb.MeanField())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = curvature(model.train(), x, y)
    assert list(found) == ["0", "4"] and not any(value.requires_grad for value in found.values())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert model.training and not model[0]._forward_hooks


def test_layers_that_are_not_served_are_named():
    model = lb.bayesianize(nn.Sequential(nn.Embedding(5, 2), nn.Flatten()), lb.MeanField(), where=lb.named("0"))
    with pytest.raises(TypeError, match="0 is of type Embedding; leave it out"):
        curvature(model, torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, dtype=torch.long))
    shared = lb.bayesianize(nn.Linear(3, 3), lb.MeanField())
    with pytest.raises(ValueError, match="0 is called 2 times in one pass"):
        curvature(nn.Sequential(shared, shared), torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))


@pytest.mark.slow
def test_a_weight_stored_with_its_inputs_first():
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    torch.manual_seed(0)
    net = nn.Sequential(conv1d(4, 5), nn.Softplus(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        net[0].weight.normal_()
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randint(3, (6,))
    model = lb.bayesianize(net, lb.MeanField(init_std=0.2), where=lb.named("0"))
    loss, weight = loss_of(lb.point_estimate(model), "0", x, y)
    hessian = torch.autograd.functional.hessian(loss, weight).reshape(20, 20)
    torch.testing.assert_close(curvature(model, x, y)["0"], 0.04 * hessian.diagonal().abs().view(5, 4))


def test_a_weight_of_two_layers_is_refused():
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Softplus(), nn.Linear(4, 4, bias=False))
    net[2].weight = net[0].weight
    model = lb.bayesianize(net, lb.MeanField())
    with pytest.raises(ValueError, match="0 shares its weight with another layer"):
        curvature(model, torch.randn(5, 4), torch.randint(4, (5,)))


def test_sums_over_batches_are_in_full_precision():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 3))
    model = lb.bayesianize(net, lb.MeanField(), where=lb.named("0")).bfloat16()
    # Equal terms: added one by one in half precision, they soon no longer move the sum.
    x, y = torch.ones(1000, 4).bfloat16(), torch.zeros(1000, dtype=torch.long)
    whole, one_by_one = (curvature(model, x, y, batch_size=size)["0"].sum().item() for size in (1000, 1))
    assert one_by_one == pytest.approx(whole, rel=0.01)


def test_a_compiled_model_has_the_names_of_the_plain_one():
    net, x, y, _ = problem("dense")
    model = lb.bayesianize(net, lb.MeanField())
    found = curvature(torch.compile(model, backend="eager"), x, y, layer="0")
    torch.testing.assert_close(found, curvature(model, x, y, layer="0"))


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"y": torch.zeros(4, dtype=torch.long)}, ValueError, "one class label for each of 5 inputs"),
        ({"y": torch.full((5,), -100)}, ValueError, "labels must be from 0 to 2 for 3 outputs"),
        ({"y": torch.full((5,), 3)}, ValueError, "reach from 3 to 3; renumber them"),
        ({"x": torch.zeros(0, 4), "y": torch.zeros(0, dtype=torch.long)}, ValueError, "at least one input"),
        ({"x": torch.full((5, 4), torch.nan)}, ValueError, "NaN in 5 of 5 rows"),
        ({"x": torch.zeros(5, 2, 4)}, ValueError, r"outputs \[B, C\]"),
        ({"x": [[0.0] * 4] * 5}, TypeError, "x is a tensor, not list"),
        ({"batch_size": 0}, ValueError, "batch_size is a whole number from 1"),
        ({"chunk": -1}, ValueError, "chunk is a whole number from 1"),
    ],
)
def test_errors_say_what_is_wrong(changes, error, message):
    model = lb.bayesianize(nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 3)), lb.MeanField())
    arguments = {"x": torch.zeros(5, 4), "y": torch.zeros(5, dtype=torch.long)} | changes
    with pytest.raises(error, match=message):
        curvature(model, **arguments)
