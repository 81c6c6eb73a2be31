"""Norms of other libraries with K copies of their parameters, against the plain modules with each copy."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import leanbayes as lb
from leanbayes.convert import converters
from leanbayes.nn import ForeignNormLayer, NormLayer
from leanbayes.nn.foreign_norm import call_in_turn, call_together
from leanbayes.testing import assert_folds


class OtherRMSNorm(nn.Module):
    """As in Llama: computed in float32, returned in the dtype of the input."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states):
        x = hidden_states.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x.to(hidden_states.dtype)

    def extra_repr(self):
        return f"{tuple(self.weight.shape)}"


class OffsetRMSNorm(OtherRMSNorm):
    """As in Gemma: scaled by 1 + weight."""

    def __init__(self, width):
        super().__init__(width)
        nn.init.zeros_(self.weight)

    def forward(self, x):
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y * (1.0 + self.weight.float())).type_as(x)


class OtherLayerNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return self.weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.bias


class LayerNorm2d(nn.LayerNorm):
    """As in timm: over the channels, which come first."""

    def forward(self, x):
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ActivatedGroupNorm(nn.GroupNorm):
    def forward(self, x):
        return F.silu(super().forward(x))


class LogScaleNorm(OtherRMSNorm):
    """Not affine in its weight, and statistics over the positions too."""

    def forward(self, x):
        scale = x.square().flatten(1).mean(1).sqrt().view(-1, *(1,) * (x.dim() - 1))
        return torch.tanh(x / scale * self.weight.exp())


class _Scale(torch.autograd.Function):
    """A function that `torch.func.vmap` cannot run."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).flatten(0, -2).sum(0)


class KernelNorm(OtherRMSNorm):
    def forward(self, x):
        return _Scale.apply(x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(), self.weight)


NORMS = {
    "rms": (lambda: OtherRMSNorm(4), (6, 3, 4)),
    "rms_2_axes": (lambda: OtherRMSNorm(4), (6, 4)),
    "rms_heads": (lambda: OtherRMSNorm(4), (6, 3, 2, 4)),
    "offset": (lambda: OffsetRMSNorm(4), (6, 3, 4)),
    "layer": (lambda: OtherLayerNorm(4), (6, 3, 4)),
    "layer2d": (lambda: LayerNorm2d(4), (6, 4, 3, 2)),
    "group": (lambda: ActivatedGroupNorm(2, 4), (6, 4, 5)),
    "log_scale": (lambda: LogScaleNorm(4), (6, 3, 4)),
    "kernel": (lambda: KernelNorm(4), (6, 3, 4)),
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


def random_parts(layer):
    return {name: getattr(layer, name) for name in ("weight", "bias") if getattr(layer, name, None) is not None}


@pytest.mark.parametrize("name", NORMS)
def test_how_each_is_run(name):
    _, layer, _ = make(name, lb.EMP())
    assert type(layer) is ForeignNormLayer
    assert layer.trailing == (name not in ("layer2d", "group", "log_scale"))
    assert layer.batches == (name != "kernel")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NORMS)
def test_a_component_is_the_plain_norm_with_its_copy(name, method, training):
    plain, layer, x = make(name, METHODS[method])
    layer.train(training)
    for k in range(3):
        expected = with_copy(plain, layer, k).train(training)
        with lb.sampling(component=k):
            assert torch.equal(layer(x), expected(x))
        point = lb.point_estimate(layer, component=k)
        assert type(point) is type(plain)
        assert torch.equal(point(x), expected(x))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", NORMS)
def test_means_are_the_plain_norm_bit_for_bit(name, grad):
    for components in (1, 3):
        plain, layer, x = make(name, lb.EMP(components=components, init_std=0.3))
        expected = plain if components == 1 else lb.point_estimate(layer)
        with torch.set_grad_enabled(grad), lb.sampling(mean=True):
            assert torch.equal(layer(x), expected(x))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NORMS)
def test_folds(name, method):
    _, layer, x = make(name, METHODS[method])
    assert_folds(layer, x)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NORMS)
def test_samples_and_their_gradients_are_those_of_a_loop_over_plain_norms(name, method):
    plain, layer, x = make(name, METHODS[method])
    layer, plain, x = layer.double(), plain.double(), x.double()
    torch.manual_seed(0)
    weights = torch.randn(3 * len(x), *x.shape[1:], dtype=x.dtype)
    with lb.sampling(n=3, hold=True) as state:
        folded = lb.fold(x, 3).clone().requires_grad_()
        y = layer(folded)
        drawn = {key: part.rsample(3, state) for key, part in random_parts(layer).items()}
    inputs = lb.fold(x, 3).clone().requires_grad_()
    chunks = inputs.chunk(3)
    expected = torch.cat(
        [torch.func.functional_call(plain, {key: v[s] for key, v in drawn.items()}, chunks[s]) for s in range(3)]
    )
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-6)
    copies = [part.posterior.copies for part in random_parts(layer).values()]
    ours = torch.autograd.grad((y * weights).sum(), [folded, *copies], retain_graph=True)
    theirs = torch.autograd.grad((expected * weights).sum(), [inputs, *copies])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NORMS)
def test_one_copy_per_example(name):
    plain, layer, x = make(name, lb.EMP(components=3, init_std=0.3, draw="example"))
    expected = torch.stack([with_copy(plain, layer, k)(x) for k in range(3)])
    y = layer(x)
    used = [next(k for k in range(3) if torch.allclose(y[i], expected[k, i], atol=1e-5)) for i in range(6)]
    assert len(set(used)) > 1
    y.square().sum().backward()
    grad = layer.weight.posterior.copies.grad
    assert [bool(grad[k].any()) for k in range(3)] == [k in used for k in range(3)]
    with lb.sampling(joint=True):
        joint = layer(x)
    assert any(torch.allclose(joint, expected[k], atol=1e-5) for k in range(3))


@pytest.mark.parametrize("axis", [0, 1])
def test_in_turn_and_together(axis):
    norm = OtherLayerNorm(4)
    x = torch.randn(6, 6, 4)
    values = {"weight": torch.randn(3, 4), "bias": torch.randn(4)}
    together, in_turn = call_together(norm, values, x, axis), call_in_turn(norm, values, x, axis)
    assert torch.equal(together, in_turn)
    parts = [
        torch.func.functional_call(norm, {**values, "weight": weight}, part)
        for weight, part in zip(values["weight"], x.chunk(3, axis))
    ]
    assert torch.equal(in_turn, torch.cat(parts, axis))
    with pytest.raises(ValueError, match="6 rows does not divide into 4 samples"):
        call_together(norm, {"weight": torch.randn(4, 4)}, x, axis)


@pytest.mark.parametrize("options", [{}, {"draw": "example"}, {"learn_mixing": True}, {"sigma": 0.1}, {"zero": True}])
def test_it_draws_as_torchs_norm_does(options):
    """Equal copies and seeds: the same outputs, gradients and divergence as of `nn.RMSNorm`."""
    method = lb.EMP(components=3, init_std=0.3, **options)
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    results = []
    for norm in (OtherRMSNorm(5), nn.RMSNorm(5, eps=1e-6)):
        torch.manual_seed(0)
        layer = lb.bayesianize(norm, method)
        with lb.sampling(n=2, seed=1):
            y = layer(lb.fold(x, 2))
        loss = y.square().sum() + lb.kl(layer)
        results.append([y, loss, *torch.autograd.grad(loss, list(layer.parameters()))])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_sequence_first():
    _, layer, x = make("rms", METHODS["emp"])
    assert_folds(layer, x, batch_dim=1)
    method = lb.EMP(components=3, init_std=0.3, draw="example")
    plain, layer, x = make("rms", method)
    with lb.sampling(batch_dim=1):
        y = layer(x)
    expected = torch.stack([with_copy(plain, layer, k)(x) for k in range(3)])
    assert all(any(torch.allclose(y[:, i], expected[k, :, i], atol=1e-5) for k in range(3)) for i in range(3))


@pytest.mark.parametrize("draw", ["batch", "example"])
def test_one_example_without_a_batch(draw):
    norm, x = OtherRMSNorm(4), torch.randn(4)
    layer = lb.bayesianize(copy.deepcopy(norm), lb.EMP(init_std=1e-9, draw=draw))
    torch.testing.assert_close(layer(x), norm(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="without a batch axis, but n=2"), lb.sampling(n=2):
        layer(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["rms", "offset"])
def test_half_precision(name, dtype):
    """Inputs in half precision, with parameters in it or in float32: what the plain norm gives, and its dtype."""
    for parameters in (dtype, torch.float32):
        plain, layer, x = make(name, METHODS["emp"])
        plain, layer, x = plain.to(parameters), layer.to(parameters), x.to(dtype)
        with lb.sampling(n=3, hold=True) as state:
            y = layer(lb.fold(x, 3))
            drawn = layer.weight.rsample(3, state).to(parameters)
        expected = torch.cat([torch.func.functional_call(plain, {"weight": w}, (x,)) for w in drawn])
        assert y.dtype == expected.dtype
        assert torch.equal(y, expected)
        y.sum().backward()
        assert layer.weight.posterior.copies.grad.isfinite().all()


def test_autocast():
    plain, layer, x = make("layer2d", METHODS["emp"])
    with torch.autocast("cpu", torch.bfloat16), lb.sampling(n=3, hold=True) as state:
        y = layer(lb.fold(x, 3))
        drawn = [part.rsample(3, state) for part in (layer.weight, layer.bias)]
        copies = [{"weight": weight, "bias": bias} for weight, bias in zip(*drawn)]
        expected = torch.cat([torch.func.functional_call(plain, values, (x,)) for values in copies])
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y, expected)


class Net(nn.Module):
    """Norms of other libraries between dense layers."""

    def __init__(self, norm=OtherRMSNorm):
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.norm = norm(6)
        self.output = nn.Linear(6, 3)

    def forward(self, x):
        return self.output(torch.relu(self.norm(self.inner(x))))


X = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0))


def net(method=None, norm=OtherRMSNorm, **options):
    torch.manual_seed(0)
    return lb.bayesianize(Net(norm), method or METHODS["emp"], **options)


@pytest.mark.parametrize("method", [lb.EMP(3), lb.ECMP(3), lb.Patch(3), lb.Patch(3, assign="element")])
def test_patches_take_it_by_default(method):
    model = net(method)
    assert [name for name, *_ in model.leanbayes_report.converted] == ["norm", "output"]
    assert ("norm", "OtherRMSNorm", method) in model.leanbayes_report.converted
    assert "OtherRMSNorm" in str(lb.summary(model))
    assert "norm" in [name for name, module in model.named_modules() if lb.norms()(name, module)]
    str(model)


def test_other_methods_leave_it_alone():
    model = net(lb.MeanField())
    assert ("norm", "OtherRMSNorm", "MeanField does not support OtherRMSNorm") in model.leanbayes_report.left


def test_the_output_layer_is_not_before_a_norm():
    model = nn.Sequential(nn.Linear(4, 4), OtherRMSNorm(4))
    with pytest.raises(ValueError, match="no output layer was found"):
        lb.output(model)


def test_one_index_for_the_whole_model():
    model = net(lb.Patch(3, assign="model"), where=lb.norms() | lb.named("output"))
    assert_folds(model, X)
    prediction = lb.predict(model, X, samples=3)
    for k in range(3):
        torch.testing.assert_close(prediction.outputs[k], lb.point_estimate(model, component=k)(X))


def test_divergence():
    """sum_k |M_k|^2 / (2 K s^2) - log K."""
    layer = lb.bayesianize(OtherLayerNorm(4), lb.EMP(components=3, prior=lb.Normal(0, 2), init_std=0.3))
    squares = sum(part.posterior.copies.square().sum() for part in random_parts(layer).values())
    torch.testing.assert_close(lb.kl(layer), squares / (2 * 3 * 4) - torch.log(torch.tensor(3.0)))


def test_predictions_are_those_of_the_drawn_networks():
    model = net(lb.EMP(components=2, init_std=0.5), where=lb.norms()).eval()
    expected = torch.stack([lb.point_estimate(model, component=k)(X) for k in range(2)])
    for options in ({}, {"joint": True}, {"chunk": 3}):
        outputs = lb.predict(model, X, samples=12, seed=0, **options).outputs
        used = [next(k for k in range(2) if torch.allclose(y, expected[k], atol=1e-5)) for y in outputs]
        assert set(used) == {0, 1}


def test_training_with_freeze():
    model = net(freeze=True)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained == [f"{name}.posterior.copies" for name in ("norm.weight", "output.weight", "output.bias")]
    elbo = lb.ELBO(model, dataset_size=10, samples=2)
    optimizer = torch.optim.SGD(lb.param_groups(elbo, lr=0.1))
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    elbo(X[:, 0], torch.tensor([0, 1, 2, 0, 1])).loss.backward()
    optimizer.step()
    changed = [name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])]
    assert changed == trained


def test_saving(tmp_path):
    model = net()
    lb.save(model, tmp_path / "net.safetensors")
    again = lb.load(tmp_path / "net.safetensors", Net())
    other = net()
    other.load_state_dict(model.state_dict())
    outputs = []
    for each in (model, again, other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(each.norm) is ForeignNormLayer
        with lb.sampling(n=2, seed=1):
            outputs.append(each(lb.fold(X, 2)))
    assert all(torch.equal(output, outputs[0]) for output in outputs)


def test_a_plain_checkpoint():
    plain, model = Net(), net()
    nn.init.normal_(plain.norm.weight)
    model.load_state_dict(plain.state_dict())
    with lb.sampling(mean=True):
        torch.testing.assert_close(model(X), plain(X), rtol=1e-5, atol=1e-5)
    point = lb.point_estimate(model)
    assert list(point.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(point.norm.weight, plain.norm.weight)


def test_settings_can_be_read():
    layer = lb.bayesianize(OtherRMSNorm(4), lb.EMP())
    assert layer.variance_epsilon == 1e-6
    assert lb.bayesianize(LayerNorm2d(4), lb.EMP()).normalized_shape == (4,)


def test_hooks_go_along():
    model, seen = Net(), []
    model.norm.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    lb.bayesianize(model, lb.EMP())(X)
    assert seen == [(5, 2, 6)]


def test_gradient_checkpointing():
    results = []
    for checkpointed in (False, True):
        model = net()
        with lb.sampling(n=2, seed=1):
            folded = lb.fold(X, 2)
            options = {"use_reentrant": False, "context_fn": lb.checkpoint_contexts}
            y = checkpoint(model, folded, **options) if checkpointed else model(folded)
        results.append(torch.autograd.grad(y.square().sum(), list(model.parameters())))
    torch.testing.assert_close(*results)


def test_in_a_deep_ensemble():
    model = net(lb.DeepEnsemble(members=2, of=METHODS["emp"], reinit=False))
    assert lb.predict(model, X, samples=4).outputs.isfinite().all()


@pytest.mark.parametrize("build", [lambda: OtherRMSNorm(1), lambda: OtherRMSNorm(2), lambda: OtherRMSNorm(3)])
def test_widths_that_are_those_of_the_trial(build):
    layer = lb.bayesianize(build(), METHODS["emp"])
    assert layer.trailing
    assert_folds(layer, torch.randn(3, 2, len(build().weight)))


def test_meta_tensors_and_other_defaults():
    with torch.device("meta"):
        model = lb.bayesianize(Net(), lb.EMP())
    assert type(model.norm) is ForeignNormLayer and model.norm.weight.device.type == "meta"
    state = torch.get_rng_state()
    assert converters.why_unservable(OtherRMSNorm(4)) is None
    assert torch.equal(state, torch.get_rng_state())


# Compiled in one graph.


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("rms", lb.ECMP(3, init_std=0.3)),
        ("offset", lb.EMP(3, init_std=0.3)),
        ("layer2d", lb.EMP(3, init_std=0.3, draw="example")),
        ("kernel", lb.EMP(3, init_std=0.3)),
    ],
)
def test_compiled(name, method, fresh_compiler):
    plain, layer, x = make(name, method)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    copies = layer.weight.posterior.copies
    with lb.sampling(n=3):
        y = compiled(lb.fold(x, 3))
        assert y.shape == (18, *x.shape[1:])
        assert torch.autograd.grad(y.square().sum(), copies)[0].isfinite().all()
    if not isinstance(method, lb.ECMP):
        expected = torch.stack([with_copy(plain, layer, k)(x) for k in range(3)])
        for i, row in enumerate(y):
            assert any(torch.allclose(row, expected[k, i % len(x)], atol=1e-5) for k in range(3))
    with lb.sampling(n=2, component=1):
        ours, eager = compiled(lb.fold(x, 2)), layer(lb.fold(x, 2))
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
    ours, eager = (torch.autograd.grad(each.square().sum(), copies)[0] for each in (ours, eager))
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)


def test_compiled_with_a_selector(fresh_compiler):
    model = net().eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad(), lb.sampling(mean=lb.norms(), component=1):
        torch.testing.assert_close(compiled(X), model(X), rtol=1e-5, atol=1e-5)


def test_exported():
    _, layer, x = make("rms", METHODS["emp"])
    with torch.no_grad(), lb.sampling(n=3):
        program = torch.export.export(layer, (lb.fold(x, 3),)).module()
        assert len({program(lb.fold(x, 3)).sum().item() for _ in range(20)}) > 1


# What cannot be served is left alone, with a reason.


class BatchedNorm(OtherRMSNorm):
    def forward(self, x):
        return self.weight * (x - x.mean(0)) / (x.std(0) + 1e-6)


class NoisyNorm(OtherRMSNorm):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5, self.training)


class AlwaysNoisyNorm(OtherRMSNorm):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5)


class GatedNorm(OtherRMSNorm):
    def forward(self, x, gate=None):
        return super().forward(x if gate is None else x * gate)


class FixedShapeNorm(OtherRMSNorm):
    def forward(self, x):
        return super().forward(x.view(-1, 17, 19, 6)).view(x.shape)


class PooledNorm(OtherRMSNorm):
    def forward(self, x):
        return super().forward(x).mean(-1)


class TrackedNorm(OtherRMSNorm):
    def __init__(self, width):
        super().__init__(width)
        self.register_buffer("steps", torch.zeros(()))


class MatrixNorm(OtherRMSNorm):
    def __init__(self, width):
        super().__init__(width)
        self.weight = nn.Parameter(torch.ones(1, width))


class NestedNorm(OtherRMSNorm):
    def __init__(self, width):
        super().__init__(width)
        self.act = nn.ReLU()


class Calibrator(nn.Module):
    """One scale per feature, as norms have, in a module that is none."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * self.weight


class OwnBatchNorm(nn.BatchNorm1d):
    def forward(self, x):
        return 2 * super().forward(x.transpose(1, 2)).transpose(1, 2)


class OwnLayerNorm(nn.LayerNorm):
    def __init__(self, width):
        super().__init__(width, elementwise_affine=False)

    def forward(self, x):
        return 2 * super().forward(x)


REASONS = {
    BatchedNorm: "it treats the rows of a batch together",
    NoisyNorm: "its output depends on more than its input",
    AlwaysNoisyNorm: "its output depends on more than its input",
    GatedNorm: "no conversion of GatedNorm is known",
    FixedShapeNorm: "no conversion of FixedShapeNorm is known",
    PooledNorm: "no conversion of PooledNorm is known",
    TrackedNorm: "no conversion of TrackedNorm is known",
    MatrixNorm: "no conversion of MatrixNorm is known",
    NestedNorm: "no conversion of NestedNorm is known",
    Calibrator: "no conversion of Calibrator is known",
    OwnBatchNorm: "OwnBatchNorm defines its own forward",
    OwnLayerNorm: "OwnLayerNorm defines its own forward",
}


@pytest.mark.parametrize("kind", REASONS)
def test_what_cannot_be_served_is_left_alone(kind):
    model = net(norm=kind)
    assert type(model.norm) is kind
    assert ("norm", kind.__name__, REASONS[kind]) in model.leanbayes_report.left
    with pytest.raises(ValueError, match=f"was asked for by name, but {REASONS[kind]}"):
        lb.bayesianize(Net(kind), lb.EMP(), where=lb.named("norm"))


def test_a_forward_that_was_replaced():
    plain = Net()
    forward = plain.norm.forward
    plain.norm.forward = lambda x: 2 * forward(x)
    model = lb.bayesianize(plain, lb.EMP())
    assert ("norm", "OtherRMSNorm", "its forward was replaced") in model.leanbayes_report.left


def test_a_subclass_without_a_forward_of_its_own_is_torchs_norm():
    class Renamed(nn.LayerNorm):
        pass

    assert type(lb.bayesianize(Renamed(4), lb.EMP())) is NormLayer


def test_who_registers_a_type_has_the_last_word(monkeypatch):
    monkeypatch.setattr(converters, "_CONVERTERS", dict(converters._CONVERTERS))

    class Special(ForeignNormLayer):
        pass

    @lb.register_conversion(LayerNorm2d, kind="norm")
    def convert(module, method, scope, path, batch_dim):
        return Special(module, method, batch_dim=batch_dim, scope=scope, path=path)

    assert type(lb.bayesianize(LayerNorm2d(4), lb.EMP())) is Special


def test_trying_a_norm_warns_of_nothing_and_leaves_it_as_it_was():
    norm = KernelNorm(4).eval()
    before = copy.deepcopy(norm.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert converters.why_unservable(norm) is None
    assert not norm.training and torch.equal(norm.weight, before["weight"]) and norm.weight.grad is None
