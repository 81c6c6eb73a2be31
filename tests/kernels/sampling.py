"""What draws, choices and divergences by kernels must be: asked of the interpreter and of GPUs."""

import warnings

import pytest
import torch

from leanbayes.kernels.gaussian_kl import free_kl, free_kl_reference, tied_kl, tied_kl_reference
from leanbayes.kernels.patch_choice import chosen, chosen_reference
from leanbayes.kernels.weight_sample import (
    free_draws,
    free_draws_measured,
    free_draws_reference,
    tied_draws,
    tied_draws_measured,
    tied_draws_reference,
)

# Weights by how they lie in memory, with the axis of their output features.
LAYOUTS = {
    "dense": (lambda: torch.randn(37, 150), 0),
    "dense-in-out": (lambda: torch.randn(150, 37), 1),
    "dense-transposed": (lambda: torch.randn(70, 33).t(), 0),
    "one-row": (lambda: torch.randn(1, 9), 0),
    "one-column": (lambda: torch.randn(9, 1), 0),
    "vector-last": (lambda: torch.randn(1, 9), 1),
    "conv1d": (lambda: torch.randn(5, 7, 3), 0),
    "conv2d": (lambda: torch.randn(20, 7, 3, 3), 0),
    "conv2d-channels-last": (lambda: torch.randn(20, 7, 3, 3).to(memory_format=torch.channels_last), 0),
    "conv2d-1x1-channels-last": (lambda: torch.randn(20, 7, 1, 1).to(memory_format=torch.channels_last), 0),
    "conv3d-channels-last": (lambda: torch.randn(6, 5, 2, 3, 2).to(memory_format=torch.channels_last_3d), 0),
    "transposed": (lambda: torch.randn(8, 6, 3, 3), 1),
    "transposed-channels-last": (lambda: torch.randn(8, 6, 3, 3).to(memory_format=torch.channels_last), 1),
}
each_layout = pytest.mark.parametrize("layout", LAYOUTS)

# Relative errors: hardware sines and logarithms of noise are good to a few 1e-7 of 1.
# The interpreter cuts bfloat16 off where GPUs round it.
TOLERANCES = {torch.float32: 5e-6, torch.bfloat16: 6e-3, torch.float16: 5e-4}


class NaNsInNewMemory:
    """Context manager in which what is not written shows: memory that is asked for is filled with NaN."""

    def __enter__(self):
        self.quiet = warnings.catch_warnings()
        self.quiet.__enter__()
        # It comes with a mode that warns of much else.
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert torch.empty(3).isnan().all()

    def __exit__(self, *error):
        torch.use_deterministic_algorithms(False)
        self.quiet.__exit__(*error)


def keys_of(n, device, seed=0):
    return torch.randint(2**62, (n,), generator=torch.Generator().manual_seed(seed)).to(device)


def weight(layout, device, dtype=torch.float32):
    make, out_axis = LAYOUTS[layout]
    # `to` keeps the order in memory.
    return make().to(device, dtype), out_axis


def factors(loc, out_axis, rank):
    out = loc.shape[out_axis]
    options = {"device": loc.device, "dtype": loc.dtype}
    return torch.randn(out, rank, **options) * 0.3 - 1, torch.randn(loc.numel() // out, rank, **options) * 0.3 - 1


def relative_error(found, expected):
    scale = expected.double().square().mean().sqrt().clamp_min(1e-30)
    return ((found.double() - expected).square().mean().sqrt() / scale).item()


def compare(fused, reference, parameters, tolerance, grad_tolerance=None):
    """Value and gradients of a fused function against its reference in float64, in NaN-filled memory."""
    with NaNsInNewMemory():
        ours = [p.detach().requires_grad_() for p in parameters]
        truth = [p.detach().double().requires_grad_() for p in parameters]
        value, expected = fused(*ours), reference(*truth)
        grad = torch.randn_like(value)
        value.backward(grad)
        expected.backward(grad.double())
    assert value.shape == expected.shape
    assert relative_error(value, expected) < tolerance
    for mine, theirs in zip(ours, truth, strict=True):
        assert mine.grad.dtype == mine.dtype and mine.grad.stride() == mine.stride()
        limit = max(grad_tolerance or tolerance, TOLERANCES[mine.dtype])
        assert relative_error(mine.grad, theirs.grad) < limit
    return value


def check_tied(layout, device, rank=2, n=2, dtype=torch.float32, param_dtype=torch.float32):
    loc, out_axis = weight(layout, device, param_dtype)
    parameters, keys = (loc, *factors(loc, out_axis, rank)), keys_of(n, device)

    def draw(function, wanted):
        return lambda *p: function(*p, keys, out_axis=out_axis, dtype=wanted)

    value = compare(
        draw(tied_draws, dtype), draw(tied_draws_reference, torch.float64), parameters, TOLERANCES[dtype], 5e-6
    )
    assert value.dtype == dtype
    assert all(size == 1 or a == b for size, a, b in zip(loc.shape, value.stride()[1:], loc.stride(), strict=True))


def check_tied_deviation(layout, device):
    loc, out_axis = weight(layout, device)
    parameters, keys = factors(loc, out_axis, 3), keys_of(3, device)
    trained = loc.clone().requires_grad_()
    compare(
        lambda u, v: tied_draws(trained, u, v, keys, out_axis=out_axis, with_loc=False),
        lambda u, v: tied_draws_reference(
            loc.double(), u, v, keys, out_axis=out_axis, with_loc=False, dtype=torch.float64
        ),
        parameters,
        TOLERANCES[torch.float32],
    )
    assert trained.grad is None


def check_free(layout, device, n=2, dtype=torch.float32, param_dtype=torch.float32):
    loc, _ = weight(layout, device, param_dtype)
    raw = torch.randn_like(loc) * 3 - 2
    keys = keys_of(n, device)

    def draw(function, wanted):
        return lambda *p: function(*p, keys, dtype=wanted)

    value = compare(
        draw(free_draws, dtype), draw(free_draws_reference, torch.float64), (loc, raw), TOLERANCES[dtype], 5e-6
    )
    assert value.dtype == dtype
    assert all(size == 1 or a == b for size, a, b in zip(loc.shape, value.stride()[1:], loc.stride(), strict=True))


def check_small_deviations_are_accurate(device):
    """Element by element: a logarithm next to 1 would lose small standard deviations."""
    raw = torch.linspace(-30, 30, 2001, device=device)
    keys, loc = keys_of(1, device), torch.zeros(2001, device=device)
    eps = free_draws_reference(loc, raw, keys) / torch.nn.functional.softplus(raw.double())
    found = free_draws(loc, raw, keys, with_loc=False)[0].double()
    expected = torch.nn.functional.softplus(raw.double()) * eps[0]
    clear = eps[0].abs() > 0.1  # next to 0 the noise itself is rounded
    torch.testing.assert_close(found[clear], expected[clear], rtol=5e-5, atol=0)


def check_tied_kl(layout, device, centred, rank=2, param_dtype=torch.float32):
    loc, out_axis = weight(layout, device, param_dtype)
    centre = torch.randn_like(loc) if centred else 0.2

    def exact(*p):
        return tied_kl_reference(*p, centre.double() if centred else centre, 0.3, out_axis)

    value = compare(
        lambda *p: tied_kl(*p, centre, 0.3, out_axis), exact, (loc, *factors(loc, out_axis, rank)), 2e-6, 5e-6
    )
    assert value.dtype == torch.float32


def check_free_kl(layout, device, centred, param_dtype=torch.float32):
    loc, _ = weight(layout, device, param_dtype)
    centre = torch.randn_like(loc) if centred else 0.2
    raw = torch.randn_like(loc) * 3 - 2

    def exact(*p):
        return free_kl_reference(*p, centre.double() if centred else centre, 0.3)

    value = compare(lambda *p: free_kl(*p, centre, 0.3), exact, (loc, raw), 2e-6, 5e-6)
    assert value.dtype == torch.float32


def check_measured(layout, device, family, with_loc=True, centred=False, n=1, dtype=torch.float32, param=torch.float32):
    """Draws and divergence in one go: those of one after the other, and the gradients of both together and alone."""
    loc, out_axis = weight(layout, device, param)
    centre, keys = torch.randn_like(loc) if centred else 0.2, keys_of(n, device)
    exact_centre = centre.double() if centred else centre
    options, exact = {"with_loc": with_loc}, {"with_loc": with_loc, "dtype": torch.float64}
    if family == "tied":
        options["out_axis"] = exact["out_axis"] = out_axis
        parameters = (loc, *factors(loc, out_axis, 2))
        draw, measure, both = tied_draws, lambda *p: tied_kl(*p, centre, 0.3, out_axis), tied_draws_measured
        reference = (tied_draws_reference, lambda *p: tied_kl_reference(*p, exact_centre, 0.3, out_axis))
    else:
        parameters = (loc, torch.randn_like(loc) * 3 - 2)
        draw, measure, both = free_draws, lambda *p: free_kl(*p, centre, 0.3), free_draws_measured
        reference = (free_draws_reference, lambda *p: free_kl_reference(*p, exact_centre, 0.3))
    with NaNsInNewMemory():
        ours = [p.detach().requires_grad_() for p in parameters]
        truth = [p.detach().double().requires_grad_() for p in parameters]
        draws, divergence = both(*ours, keys, centre, 0.3, **options, dtype=dtype)
        assert draws.equal(draw(*ours, keys, **options, dtype=dtype)) and draws.dtype == dtype
        assert relative_error(divergence, measure(*ours).double()) < 2e-6 and divergence.shape == ()
        exact_draws, exact_divergence = reference[0](*truth, keys, **exact), reference[1](*truth)
        grad, grad_divergence = torch.randn_like(draws), torch.tensor(0.7, device=device)
        for parts in ((True, True), (True, False), (False, True)):
            found = [out for out, part in zip((draws, divergence), parts, strict=True) if part]
            expected = [out for out, part in zip((exact_draws, exact_divergence), parts, strict=True) if part]
            slopes = [g for g, part in zip((grad, grad_divergence), parts, strict=True) if part]
            gradients = torch.autograd.grad(found, ours, slopes, allow_unused=True)
            true = torch.autograd.grad(
                expected, truth, [g.double() for g in slopes], allow_unused=True, retain_graph=True
            )
            for mine, theirs, p in zip(gradients, true, ours, strict=True):
                steps = zip(mine.stride(), p.stride(), p.shape, strict=True)
                assert mine.dtype == p.dtype and all(size == 1 or a == b for a, b, size in steps)
                if theirs is None:  # as of deviations, which the mean is not in
                    assert not mine.any()
                else:
                    assert relative_error(mine, theirs) < TOLERANCES[p.dtype]


def check_choice(device, copies, shape=(31, 37), n=3, dtype=torch.float32):
    values = torch.randn(copies, *shape, device=device).to(dtype)
    probs = torch.rand(copies, device=device).softmax(0)
    keys = keys_of(n, device)
    compare(lambda c: chosen(c, probs, keys), lambda c: chosen_reference(c, probs, keys), (values,), 1e-12, 1e-6)


def check_noise_is_independent(draw, size):
    """Correlations of neighbours, of samples and of keys, each with a standard error of 1 / sqrt(size)."""
    noise = draw(keys_of(4, "cpu")).double().flatten(1).cpu()  # [4, size]
    again = draw(keys_of(4, "cpu", seed=1)).double().flatten(1).cpu()
    assert not torch.equal(noise, again)
    rows = torch.cat([noise, again, noise[:1].roll(1, 1), noise[:1].roll(2, 1), noise[:1].roll(4, 1)])
    rows = (rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True)
    correlation = rows @ rows.T / size - torch.eye(len(rows))
    assert correlation.abs().max() < 5 / size**0.5


def check_directional_derivative(function, parameters, step=1e-2):
    """Central differences along a random direction, where noise is the same at both ends."""
    parameters = [p.detach().requires_grad_() for p in parameters]
    directions = [torch.randn_like(p) for p in parameters]
    value = function(*parameters)
    weights = torch.randn_like(value)
    grads = torch.autograd.grad(value, parameters, weights)
    slope = sum((g.double() * d.double()).sum() for g, d in zip(grads, directions, strict=True))
    ends = []
    for sign in (1, -1):
        moved = [(p + sign * step * d).detach() for p, d in zip(parameters, directions, strict=True)]
        ends.append((function(*moved).double() * weights.double()).sum())
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / (2 * step), rtol=5e-3, atol=0)
