"""Draws, choices and divergences by kernels on a GPU: truth, one graph, recorded steps, and memory."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._sampling import Sampling
from leanbayes.kernels._dispatch import fused
from leanbayes.kernels.gaussian_kl import free_kl, tied_kl
from leanbayes.kernels.patch_choice import chosen
from leanbayes.kernels.weight_sample import free_draws, tied_draws, tied_draws_reference
from leanbayes.posteriors.k_tied import KTiedPosterior
from leanbayes.posteriors.mean_field import MeanFieldPosterior
from leanbayes.posteriors.patch import PatchGroup, PatchPosterior
from leanbayes.testing import assert_mean_close, assert_probability_close, assert_variance_close
from tests.kernels.sampling import (
    LAYOUTS,
    check_choice,
    check_directional_derivative,
    check_free,
    check_free_kl,
    check_measured,
    check_noise_is_independent,
    check_small_deviations_are_accurate,
    check_tied,
    check_tied_deviation,
    check_tied_kl,
    compare,
    each_layout,
    factors,
    keys_of,
    relative_error,
    weight,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_param_dtype = pytest.mark.parametrize("param_dtype", DTYPES, ids=str)


@pytest.fixture(autouse=True)
def exact_matrix_products():
    """The references' products in float32 must not be rounded to fewer bits."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def test_kernels_are_there():
    assert fused(torch.empty(1, device="cuda"))


@each_layout
@each_dtype
def test_tied_draws_and_their_gradients(layout, dtype):
    check_tied(layout, "cuda", dtype=dtype)
    check_tied_deviation(layout, "cuda")


@each_layout
@each_dtype
def test_free_draws_and_their_gradients(layout, dtype):
    for n in (1, 3):
        check_free(layout, "cuda", n, dtype)


@pytest.mark.parametrize("rank", range(1, 17))
def test_ranks(rank):
    for layout, n in (("dense", 1), ("conv2d-channels-last", 3)):
        check_tied(layout, "cuda", rank, n)
    check_tied_kl("dense", "cuda", False, rank)


@each_dtype
@each_param_dtype
def test_dtypes(dtype, param_dtype):
    check_tied("dense", "cuda", 2, 2, dtype, param_dtype)
    check_free("conv2d-channels-last", "cuda", 2, dtype, param_dtype)


@each_layout
@each_param_dtype
@pytest.mark.parametrize("centred", [False, True])
def test_divergences_and_their_gradients(layout, centred, param_dtype):
    check_tied_kl(layout, "cuda", centred, param_dtype=param_dtype)
    check_free_kl(layout, "cuda", centred, param_dtype)


@each_layout
@each_dtype
@pytest.mark.parametrize("family", ["tied", "free"])
def test_draws_and_divergence_in_one_go(layout, dtype, family):
    for with_loc, centred, n in ((True, False, 1), (False, True, 3)):
        check_measured(layout, "cuda", family, with_loc, centred, n, dtype)


@pytest.mark.inductor
@pytest.mark.parametrize("method", [lb.KTied(init_std=0.1), lb.MeanField(init_std=0.1, estimator="weight")], ids=str)
def test_a_compiled_step_has_the_divergence_and_gradients_of_an_eager_one(method):
    torch._dynamo.reset()
    model, x = converted(method), X.cuda()
    parameters = [p for name, p in model.named_parameters() if "posterior" in name]
    found = []
    for elbo in (lb.ELBO(model, 100), torch.compile(lb.ELBO(model, 100), fullgraph=True)):
        terms = elbo(x, Y.cuda())
        found.append([terms.kl.detach(), *torch.autograd.grad(terms.kl, parameters)])
    for eager, compiled in zip(*found, strict=True):
        assert relative_error(compiled, eager.double()) < 1e-5


@pytest.mark.parametrize("copies", [1, 2, 3, 5, 8, 33, 64])
@each_dtype
def test_choices_and_their_gradients(copies, dtype):
    check_choice("cuda", copies, dtype=dtype)
    check_choice("cuda", copies, (7, 2, 3, 3), 1, dtype)


@pytest.mark.parametrize("shape", [(512, 4608), (1000, 1001), (30_011, 64), (64, 30_011)], ids=str)
def test_large_weights(shape):
    loc = torch.randn(shape, device="cuda")
    parameters, keys = (loc, *factors(loc, 0, 2)), keys_of(2, "cuda")
    compare(
        lambda *p: tied_draws(*p, keys, dtype=torch.float32),
        lambda *p: tied_draws_reference(*p, keys, dtype=torch.float64),
        parameters,
        5e-6,
        2e-5,
    )


def test_samples_that_together_have_more_elements_than_32_bits_count():
    if torch.cuda.get_device_properties(0).total_memory < 40 * 2**30:
        pytest.skip("needs 40 GiB")
    loc = torch.randn(4096, 4096, device="cuda", requires_grad=True)
    raw = torch.full_like(loc, -2.0).requires_grad_()
    log_u, log_v = (p.requires_grad_() for p in factors(loc, 0, 2))
    keys = keys_of(130, "cuda")
    for draw in (
        lambda keys: tied_draws(loc, log_u, log_v, keys, dtype=torch.bfloat16),
        lambda keys: free_draws(loc, raw, keys, dtype=torch.bfloat16),
    ):
        draws = draw(keys)
        assert draws.numel() > 2**31
        assert draws[-1:].equal(draw(keys[-1:]))
        # The gradient of the last sample alone.
        grad = torch.zeros_like(draws)
        grad[-1] = torch.randn_like(draws[-1])
        parameters = [p for p in (loc, log_u, log_v, raw)]
        found = torch.autograd.grad(draws, parameters, grad, allow_unused=True)
        alone = torch.autograd.grad(draw(keys[-1:]), parameters, grad[-1:], allow_unused=True)
        for a, b in zip(found, alone, strict=True):
            assert a is None or relative_error(a, b.double()) < 1e-6
        del draws, grad, found


def test_small_deviations_are_accurate():
    check_small_deviations_are_accurate("cuda")


def test_noise_is_independent_between_elements_samples_and_keys():
    loc, log_u, log_v = (torch.zeros(*s, device="cuda") for s in ((600, 700), (600, 1), (700, 1)))
    check_noise_is_independent(lambda keys: tied_draws(loc, log_u, log_v, keys.cuda()), 420_000)
    check_noise_is_independent(lambda keys: free_draws(loc, torch.full_like(loc, 0.5413), keys.cuda()), 420_000)


def test_draws_have_the_moments_of_the_posterior():
    for make in (
        lambda: KTiedPosterior(torch.randn(70, 80), 2, 0.3),
        lambda: MeanFieldPosterior(torch.randn(70, 80), 0.3),
    ):
        posterior = make().cuda()
        assert posterior.is_fused()
        with torch.no_grad():
            draws, deviations = posterior.rsample(3000, Sampling(n=3000)), posterior.deviation(3000, Sampling(n=3000))
            # The largest of 5,600 standardised errors is about 4.
            assert_mean_close(draws, posterior.mean(), sigmas=6)
            assert_variance_close(draws, posterior.std().square(), sigmas=6)
            assert_mean_close(deviations, 0.0, sigmas=6)
            assert_variance_close(deviations, posterior.std().square(), sigmas=6)


def test_copies_are_chosen_alike():
    posterior = PatchPosterior(torch.randn(70, 80), PatchGroup(3, False, True), 0.5).cuda()
    with torch.no_grad():
        draws = posterior.rsample(2000, Sampling(n=2000))
    which = (draws[:, None] - posterior.copies).abs().argmin(1)
    for k in range(3):
        assert_probability_close(which == k, 1 / 3, sigmas=6)


def test_backward_makes_the_noise_of_forward():
    for layout in LAYOUTS:
        loc, out_axis = weight(layout, "cuda")
        keys = keys_of(3, "cuda")
        draw = lambda *p, keys=keys, out_axis=out_axis: tied_draws(*p, keys, out_axis=out_axis)  # noqa: E731
        check_directional_derivative(draw, (loc, *factors(loc, out_axis, 2)))
        check_directional_derivative(lambda *p, keys=keys: free_draws(*p, keys), (loc, torch.randn_like(loc)))


def test_the_same_keys_give_the_same_bits():
    loc = torch.randn(1000, 1001, device="cuda", requires_grad=True)
    log_u, log_v = (p.requires_grad_() for p in factors(loc, 0, 2))
    raw, keys = torch.randn_like(loc).requires_grad_(), keys_of(3, "cuda")
    copies = torch.randn(5, 1000, 1001, device="cuda", requires_grad=True)
    probs, parameters = torch.full((5,), 0.2, device="cuda"), [loc, log_u, log_v, raw, copies]
    found = []
    for _ in range(2):
        loss = tied_draws(loc, log_u, log_v, keys).square().sum() + free_draws(loc, raw, keys).square().sum()
        loss = loss + tied_kl(loc, log_u, log_v, 0.0, 0.3) + free_kl(loc, raw, 0.0, 0.3)
        loss = loss + chosen(copies, probs, keys).square().sum()
        found.append([loss.detach(), *torch.autograd.grad(loss, parameters)])
    assert all(a.equal(b) for a, b in zip(*found, strict=True))


METHODS = [
    lb.KTied(init_std=0.1, estimator="weight"),
    lb.KTied(init_std=0.1, estimator="flipout"),
    lb.KTied(init_std=0.1, estimator="weight", prior=lb.Pretrained(0.2)),
    lb.MeanField(init_std=0.1, estimator="weight", bias="same"),
    lb.MeanField(init_std=0.1, estimator="flipout"),
    lb.ECMP(components=3),
]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{type(m).__name__}-{METHODS.index(m)}")
each_format = pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last], ids=str)

X = torch.randn(6, 16, 8, 8, generator=torch.Generator().manual_seed(1))
Y = torch.randint(5, (6,), generator=torch.Generator().manual_seed(2))


def converted(method, memory=torch.contiguous_format):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(16, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 32, 3, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 32, 3),
        nn.AdaptiveAvgPool2d(8),
        nn.Flatten(),
        nn.Linear(2048, 5),
    )
    where = lb.types(nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
    return lb.bayesianize(net.to(memory_format=memory), method, where=where).cuda()


@each_method
@each_format
def test_models_train_and_their_draws_keep_the_memory_format(method, memory):
    model = converted(method, memory)
    x = X.cuda().to(memory_format=memory)
    if not isinstance(method, lb.ECMP):
        assert model[2].weight.rsample(2, Sampling(n=2))[0].is_contiguous(memory_format=memory)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            terms = lb.ELBO(model, 100)(x, Y.cuda())
        model.zero_grad()
        terms.loss.backward()
        assert terms.loss.isfinite() and terms.kl.dtype == torch.float32
        assert all(p.grad.isfinite().all() and p.grad.dtype == p.dtype for p in model.parameters())


@each_method
def test_divergences_agree_with_the_cpu(method):
    model = converted(method)
    found = lb.kl(model)
    grads = torch.autograd.grad(found, list(model.parameters()), allow_unused=True)
    model.cpu()
    expected = lb.kl(model)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=0)
    plain = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)
    for ours, theirs in zip(grads, plain, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or relative_error(ours.cpu(), theirs.double()) < 1e-5


@each_method
def test_seeds_and_chunks(method):
    model, x = converted(method), X.cuda()
    state = torch.cuda.get_rng_state()
    first, again, other = (lb.predict(model, x, 4, seed=seed, joint=True, chunk=4).outputs for seed in (0, 0, 1))
    assert first.equal(again) and not first.equal(other)
    parts = lb.predict(model, x, 4, seed=0, joint=True, chunk=2).outputs
    torch.testing.assert_close(parts, first, rtol=1e-2, atol=1e-3)
    assert torch.cuda.get_rng_state().equal(state)


@pytest.mark.inductor
@each_method
@each_format
def test_inductor_keeps_one_graph(method, memory):
    torch._dynamo.reset()
    model = converted(method, memory)
    x = X.cuda().to(memory_format=memory)
    elbo = torch.compile(lb.ELBO(model, 100), fullgraph=True)
    losses = []
    for _ in range(3):
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            terms = elbo(x, Y.cuda())
        terms.loss.backward()
        losses.append(terms.loss.item())
    assert len(set(losses)) == 3
    assert all(p.grad.isfinite().all() for p in model.parameters())
    outputs = [lb.predict(torch.compile(model.eval(), fullgraph=True), x, 2, seed=s).outputs for s in (0, 0, 1)]
    assert outputs[0].equal(outputs[1]) and not outputs[0].equal(outputs[2])


def test_compiled_gradients_are_those_of_the_compiled_draw():
    torch._dynamo.reset()
    loc, out_axis = weight("conv2d-channels-last", "cuda")
    parameters = [p.requires_grad_() for p in (loc, *factors(loc, out_axis, 2))]
    keys = keys_of(2, "cuda")
    grad = torch.randn(2, *loc.shape, device="cuda")

    def step(*p):
        return (tied_draws(*p, keys) * grad).sum() + tied_kl(*p, 0.0, 0.3)

    value, compiled = step(*parameters), torch.compile(step, fullgraph=True)(*parameters)
    torch.testing.assert_close(compiled, value)
    for ours, eager in zip(
        torch.autograd.grad(compiled, parameters), torch.autograd.grad(value, parameters), strict=True
    ):
        assert relative_error(ours, eager.double()) < 1e-5


# The gradients beside the recording are meant to be computed on another stream.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning")
def test_a_recorded_step_draws_anew_at_every_replay_and_its_backward_follows():
    loc = torch.randn(300, 500, device="cuda", requires_grad=True)
    log_u, log_v = (p.requires_grad_() for p in factors(loc, 0, 2))
    weights = torch.randn(2, 300, 500, device="cuda")

    def step():
        keys = torch.randint(2**62, (2,), device="cuda")
        draws = tied_draws(loc, log_u, log_v, keys)
        loss = (draws * weights).sum() + tied_kl(loc, log_u, log_v, 0.0, 0.3)
        return keys, draws, torch.autograd.grad(loss, (loc, log_u, log_v))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        keys, draws, grads = step()
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(draws.clone())
        assert draws.equal(tied_draws(loc, log_u, log_v, keys))
        loss = (tied_draws(loc, log_u, log_v, keys) * weights).sum() + tied_kl(loc, log_u, log_v, 0.0, 0.3)
        for recorded, eager in zip(grads, torch.autograd.grad(loss, (loc, log_u, log_v)), strict=True):
            torch.testing.assert_close(recorded, eager)
    assert not seen[0].equal(seen[1]) and not seen[1].equal(seen[2])


def peak_bytes(function):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, result


@pytest.mark.parametrize("family", ["tied", "free"])
def test_a_draw_costs_its_own_memory_and_its_backward_that_of_the_gradients(family):
    size = 4096 * 4096
    loc = torch.randn(4096, 4096, device="cuda", requires_grad=True)
    keys = keys_of(1, "cuda")
    if family == "tied":
        others = [p.requires_grad_() for p in factors(loc, 0, 2)]
        draw = lambda: tied_draws(loc, *others, keys, dtype=torch.bfloat16)  # noqa: E731
        divergence = lambda: tied_kl(loc, *others, 0.0, 0.3)  # noqa: E731
        gradients = 4
    else:
        others = [torch.full_like(loc, -4.0).requires_grad_()]
        draw = lambda: free_draws(loc, *others, keys, dtype=torch.bfloat16)  # noqa: E731
        divergence = lambda: free_kl(loc, *others, 0.0, 0.3)  # noqa: E731
        gradients = 8
    torch.autograd.grad(draw().float().mean() + divergence(), [loc, *others])
    forward, drawn = peak_bytes(draw)
    assert forward < 2.05 * size
    grad = torch.randn_like(drawn)
    # Two columns of each factor in float32: one part for each row of a tile, which has 128 columns, and one for each of
    # its columns, which has 16 rows.
    gradients += 2 * 4 * (1 / 128 + 1 / 16) if family == "tied" else 0
    backward, _ = peak_bytes(lambda: torch.autograd.grad(drawn, [loc, *others], grad))
    assert backward < (gradients + 0.1) * size
    value, total = peak_bytes(divergence)
    assert value < 0.05 * size
    backward, _ = peak_bytes(lambda: torch.autograd.grad(total, [loc, *others]))
    assert backward < (gradients + 0.1) * size


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_kernels_run_where_the_weight_is():
    loc = torch.randn(64, 80, device="cuda:1", requires_grad=True)
    log_u, log_v = factors(loc, 0, 2)
    keys = keys_of(2, "cuda:1")
    draws = tied_draws(loc, log_u, log_v, keys)
    assert relative_error(draws, tied_draws_reference(loc, log_u, log_v, keys).double()) < 5e-6
