"""Local reparameterisation and flipout on a GPU: the epilogue's kernel, compiled and recorded steps, what is kept."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import leanbayes as lb
from leanbayes._sampling import Sampling, using
from leanbayes.kernels._dispatch import fused
from leanbayes.kernels.local_epilogue import local_epilogue
from leanbayes.testing import assert_mean_close, assert_variance_close, sample_streams
from tests.kernels import local_epilogue_checks as checks
from tests.kernels.philox_checks import check_kernel_equals_reference, check_moments, in_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_kernels_are_there():
    assert fused(torch.empty(1, device="cuda"))


def test_the_generator_is_its_reference():
    check_kernel_equals_reference("cuda")


def test_the_generators_numbers_have_their_moments():
    check_moments(torch.stack([in_kernel(torch.tensor([key], device="cuda"), 1_000_001, True) for key in range(4)]))


@pytest.mark.parametrize("dtype", checks.TOLERANCE, ids=str)
@pytest.mark.parametrize(("shape", "samples"), [*checks.SHAPES, ((512, 64, 33, 31), 4)])
@pytest.mark.parametrize("layout", checks.LAYOUTS)
def test_values_and_gradients(shape, samples, dtype, layout):
    checks.check_values_and_gradients(shape, samples, dtype, layout, "cuda")


def test_one_sample_alone_is_one_of_many():
    checks.check_one_sample_alone_is_one_of_many("cuda")


def test_noise_has_its_moments():
    checks.check_noise_has_its_moments("cuda", 1_000_001)


def test_nothing_is_left_unwritten():
    checks.check_nothing_is_left_unwritten("cuda")


def test_more_elements_than_32_bits_count():
    shape = (2**31 + 4096,)
    if torch.cuda.mem_get_info()[0] < 6 * shape[0] * 2:
        pytest.skip("needs more memory")
    var = torch.ones(shape, dtype=torch.bfloat16, device="cuda")
    keys = torch.tensor([5], device="cuda")
    y, _ = local_epilogue(None, var, keys, torch.bfloat16, False)
    end = y[-4096:].double()
    assert_mean_close(end, 0.0)
    assert_variance_close(end, 1.0)
    assert not torch.equal(end, y[:4096].double())


def networks():
    yield "conv", (lambda: nn.Conv2d(8, 16, 3, padding=1)), (16, 8, 9, 9)
    yield "grouped", (lambda: nn.Conv2d(8, 16, 3, stride=2, groups=4, bias=False)), (16, 8, 9, 9)
    yield "transposed", (lambda: nn.ConvTranspose2d(8, 4, 2, stride=2)), (16, 8, 5, 5)
    yield "dense", (lambda: nn.Linear(24, 40)), (64, 24)
    yield "sequence", (lambda: nn.Linear(24, 40)), (16, 7, 24)


each_layer = pytest.mark.parametrize(("build", "shape"), [pytest.param(b, s, id=name) for name, b, s in networks()])
each_estimator = pytest.mark.parametrize("estimator", ["local", "flipout"])


def make(build, shape, estimator, last=True):
    torch.manual_seed(0)
    layer = lb.nn.BayesianLayer(build(), lb.MeanField(init_std=0.3, bias="same", estimator=estimator)).cuda()
    x = torch.randn(shape, device="cuda")
    if last and x.dim() == 4:
        layer, x = layer.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    return layer, x.requires_grad_()


@each_layer
@each_estimator
def test_half_precision_has_the_gradients_of_full_precision(build, shape, estimator):
    layer, x = make(build, shape, estimator)

    def run(**options):
        with torch.autocast("cuda", **options), using(Sampling(n=2, streams=sample_streams(2))):
            y = layer(x)
        return y, torch.autograd.grad(y.float().square().sum(), [x, *layer.parameters()])

    exact, expected = run(enabled=False)
    for dtype, tolerance in ((torch.bfloat16, 0.05), (torch.float16, 0.02)):
        y, grads = run(dtype=dtype)
        assert y.dtype == dtype
        assert (y - exact).norm() < tolerance * exact.norm()
        for found, truth in zip(grads, expected):
            assert (found - truth).norm() < tolerance * truth.norm()


@each_layer
@each_estimator
def test_draws_are_those_of_drawn_weights(build, shape, estimator):
    layer, x = make(build, shape, estimator)
    x = x.detach()[:2]
    moments = []
    for name in (estimator, "weight"):
        with torch.no_grad(), using(Sampling(n=3000, estimator=name)):
            y = lb.split(layer(lb.fold(x, 3000)), 3000).flatten(1).double()
        moments.append((y.mean(0), y.var(0)))
    (mean, var), (truth, truth_var) = moments
    assert ((mean - truth).abs() < 6 * (2 * truth_var / 3000).sqrt()).all()
    assert (var / truth_var - 1).abs().max() < 6 * (4 / 3000) ** 0.5


@each_layer
@each_estimator
@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_kept(build, shape, estimator, compiled):
    if estimator == "flipout" and len(shape) == 2:
        pytest.skip("signs of vectors are as large as these")
    layer, x = make(build, shape, estimator)
    # Between two elementwise functions, as in a network.
    scale = nn.Parameter(torch.ones((), device="cuda"))

    def function(x):
        return layer(torch.relu(x * scale).to(torch.bfloat16))

    run = torch.compile(function, fullgraph=True) if compiled else function
    kept = []
    with torch.autocast("cuda", torch.bfloat16), saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = run(x.detach())
    y.float().square().mean().backward()
    limit = max(p.numel() for p in layer.parameters())
    sizes = sorted(t.numel() for t in kept if t.dtype == torch.bfloat16 and t.numel() > limit)
    assert sizes == sorted([x.numel(), *([y.numel()] if estimator == "local" else [])])
    assert all(p.grad.isfinite().all() for p in [scale, *layer.parameters()])


@each_layer
@each_estimator
def test_compiled_steps_draw_anew_and_train(build, shape, estimator):
    layer, x = make(build, shape, estimator)
    compiled = torch.compile(layer, fullgraph=True)
    outputs = []
    for _ in range(3):
        with torch.autocast("cuda", torch.bfloat16):
            outputs.append(compiled(x))
        outputs[-1].float().square().mean().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    assert not torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[1], outputs[2])
    deviation = (outputs[0] - outputs[1]).float().std()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        eager = (layer(x) - layer(x)).float().std()
    assert 0.8 < deviation / eager < 1.25


def test_a_compiled_seed_repeats():
    layer, x = make(lambda: nn.Conv2d(8, 16, 3, padding=1), (16, 8, 9, 9), "local")
    compiled = torch.compile(layer, fullgraph=True)
    outputs = []
    for seed in (1, 1, 2):
        with torch.no_grad(), lb.sampling(seed=seed):
            outputs.append(compiled(x.detach()))
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])


@each_layer
@each_estimator
def test_replays_of_a_recording_draw_anew(build, shape, estimator):
    layer, x = make(build, shape, estimator)
    x = x.detach()

    def step():
        for p in layer.parameters():
            p.grad = None
        with torch.autocast("cuda", torch.bfloat16):
            y = layer(x)
        y.float().square().mean().backward()
        return y

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    results = []
    for _ in range(3):
        graph.replay()
        results.append((y.clone(), [p.grad.clone() for p in layer.parameters()]))
    for (first, first_grads), (second, second_grads) in zip(results, results[1:]):
        assert not torch.equal(first, second)
        assert not any(torch.equal(a, b) for a, b in zip(first_grads[1:], second_grads[1:]))
    noise = torch.stack([result[0] for result in results]).float()
    assert noise.std(0).mean() > 0


def test_peak_memory_of_a_chain():
    """Ten layers keep ten inputs, which are the outputs of others, and ten slopes."""
    size = 64 * 2**20  # bytes of one activation
    rows = size // (2 * 1024)
    for estimator, each in (("local", 2), ("flipout", 1)):
        torch.manual_seed(0)
        layers = [nn.Linear(1024, 1024, bias=False) for _ in range(10)]
        method = lb.MeanField(init_std=0.01, estimator=estimator)
        model = lb.bayesianize(nn.Sequential(*layers), method).cuda()
        # A sequence, so that signs are small.
        x = torch.randn(rows // 256, 256, 1024, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            model(x).float().mean().backward()  # kernels are compiled now
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            y = model(x)
            kept = torch.cuda.memory_allocated() - before
        # Beside activations each layer keeps its mean, variance or deviation in both precisions.
        weights = 10 * 1024 * 1024 * 16
        assert kept < (10 * each + 1.5) * size + weights, f"{estimator} keeps {kept / size:.1f} activations"
        del y
