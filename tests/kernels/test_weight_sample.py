"""Draws of weights by kernels, in Triton's interpreter."""

import pytest
import torch

from leanbayes.kernels import weight_sample
from leanbayes.kernels._dispatch import interpreted
from leanbayes.kernels._layout import matrix_layout
from leanbayes.kernels.weight_sample import free_draws, tied_draws
from leanbayes.testing import assert_mean_close, assert_variance_close
from tests.kernels.sampling import (
    LAYOUTS,
    check_directional_derivative,
    check_free,
    check_measured,
    check_noise_is_independent,
    check_small_deviations_are_accurate,
    check_tied,
    check_tied_deviation,
    each_layout,
    factors,
    keys_of,
    weight,
)

in_interpreter = pytest.mark.skipif(not interpreted(), reason="test_interpreted.py runs it in Triton's interpreter")


@each_layout
def test_every_entry_has_one_place_in_memory_and_its_factors(layout):
    loc, out_axis = weight(layout, "cpu")
    found = matrix_layout(loc.shape, loc.stride(), out_axis)
    positions = found.positions(loc.device)
    assert positions.flatten().sort().values.equal(torch.arange(loc.numel()))
    # The matrix of output features by the rest, as the kernels find it and as the axes say.
    by_place = loc.as_strided((loc.numel(),), (1,))[positions]
    column = torch.arange(found.columns)
    entry = (column % found.period) * (found.columns // found.period) + column // found.period
    matrix = loc.movedim(out_axis, 0).flatten(1)
    assert (by_place.T if found.swapped else by_place).equal(matrix[:, entry] if not found.swapped else matrix)


def test_memory_with_gaps_and_odd_orders_are_left_to_plain_torch():
    gaps, odd = torch.randn(8, 8)[:, :5], torch.randn(3, 4, 5, 6).permute(0, 2, 1, 3)
    assert matrix_layout(gaps.shape, gaps.stride(), 0) is None
    assert matrix_layout(odd.shape, odd.stride(), 0) is None
    assert not weight_sample.free_fit(gaps, gaps) and weight_sample.free_fit(odd, odd.clone())
    assert not weight_sample.free_fit(torch.randn(4, 4), torch.randn(4, 4).t())
    assert not weight_sample.tied_fit(torch.randn(40, 40), torch.randn(40, 17), 0)


@in_interpreter
@each_layout
def test_tied_draws_and_their_gradients(layout):
    check_tied(layout, "cpu")


@in_interpreter
@pytest.mark.parametrize("rank", [1, 3, 16])
@pytest.mark.parametrize("n", [1, 3])
def test_ranks_and_samples(rank, n):
    check_tied("conv2d-channels-last", "cpu", rank, n)


@in_interpreter
@pytest.mark.parametrize("param_dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dtypes(dtype, param_dtype):
    check_tied("dense", "cpu", 2, 2, dtype, param_dtype)
    check_free("conv2d-channels-last", "cpu", 2, dtype, param_dtype)


@in_interpreter
@pytest.mark.parametrize("layout", ["dense", "conv2d-channels-last", "transposed", "transposed-channels-last"])
def test_deviations_leave_the_mean_alone(layout):
    check_tied_deviation(layout, "cpu")


@in_interpreter
@each_layout
@pytest.mark.parametrize("n", [1, 3])
def test_free_draws_and_their_gradients(layout, n):
    check_free(layout, "cpu", n)


@in_interpreter
@pytest.mark.parametrize("layout", ["dense", "dense-transposed", "one-row", "conv2d-channels-last", "transposed"])
@pytest.mark.parametrize("family", ["tied", "free"])
def test_draws_and_divergence_in_one_go(layout, family):
    check_measured(layout, "cpu", family)


@in_interpreter
@pytest.mark.parametrize("family", ["tied", "free"])
@pytest.mark.parametrize("with_loc", [True, False])
@pytest.mark.parametrize("centred", [True, False])
def test_what_is_drawn_and_measured(family, with_loc, centred):
    check_measured("conv2d-channels-last", "cpu", family, with_loc, centred, 3, torch.bfloat16)
    check_measured("dense", "cpu", family, with_loc, centred, 1, torch.float32, torch.bfloat16)


@in_interpreter
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_draws_alone_have_a_gradient_without_noise_too():
    """A divergence of weights without noise is infinite, as is its slope."""
    loc, keys = torch.randn(6, 5, requires_grad=True), keys_of(1, "cpu")
    raw = torch.full((6, 5), -200.0, requires_grad=True)
    draws, _ = weight_sample.free_draws_measured(loc, raw, keys, 0.0, 1.0)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(draws.sum(), (loc, raw)))
    logs = [torch.full((size, 2), -200.0, requires_grad=True) for size in (6, 5)]
    draws, _ = weight_sample.tied_draws_measured(loc, *logs, keys, 0.0, 1.0)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(draws.sum(), (loc, *logs)))


@in_interpreter
def test_parameters_that_have_changed_since_the_draw_are_told():
    loc, raw, keys = torch.randn(6, 5, requires_grad=True), torch.zeros(6, 5, requires_grad=True), keys_of(1, "cpu")
    draws, _ = weight_sample.free_draws_measured(loc, raw, keys, 0.0, 1.0)
    with torch.no_grad():
        raw.add_(1)
    with pytest.raises(RuntimeError, match="before the optimiser's step"):
        draws.sum().backward()


def test_keys_may_lie_apart_in_memory():
    loc, raw = torch.randn(9, 8), torch.randn(9, 8)
    log_u, log_v = factors(loc, 0, 2)
    keys = keys_of(12, "cpu").view(3, 4)[:, 1]
    assert tied_draws(loc, log_u, log_v, keys).equal(tied_draws(loc, log_u, log_v, keys.clone()))
    assert free_draws(loc, raw, keys).equal(free_draws(loc, raw, keys.clone()))


@in_interpreter
def test_small_deviations_are_accurate():
    check_small_deviations_are_accurate("cpu")


@in_interpreter
def test_draws_have_the_moments_of_the_posterior():
    """Standardised by the posterior's mean and standard deviation, all elements are alike."""
    loc, raw = torch.randn(60, 70), torch.randn(60, 70)
    log_u, log_v = factors(loc, 0, 2)
    keys = keys_of(4, "cpu")
    for draws, std in (
        (tied_draws(loc, log_u, log_v, keys), log_u.exp() @ log_v.exp().T),
        (free_draws(loc, raw, keys), torch.nn.functional.softplus(raw)),
    ):
        standard = ((draws - loc) / std).flatten()
        assert_mean_close(standard, 0.0)
        assert_variance_close(standard, 1.0)
        assert_mean_close(standard**3, 0.0)
        assert_mean_close(standard**4, 3.0)
        # Of each quarter of the rows as well: no part is without noise, or with another's.
        assert_variance_close(standard.view(4, 4, -1).permute(0, 2, 1).flatten(0, 1), 1.0)


@in_interpreter
def test_noise_is_independent_between_elements_samples_and_keys():
    loc, log_u, log_v = torch.zeros(60, 70), torch.zeros(60, 1), torch.zeros(70, 1)
    check_noise_is_independent(lambda keys: tied_draws(loc, log_u, log_v, keys), 4200)
    check_noise_is_independent(lambda keys: free_draws(loc, torch.full_like(loc, 0.5413), keys), 4200)


@in_interpreter
def test_backward_makes_the_noise_of_forward():
    loc, out_axis = weight("conv2d-channels-last", "cpu")
    keys = keys_of(3, "cpu")
    parameters = (loc, *factors(loc, out_axis, 2))
    check_directional_derivative(lambda *p: tied_draws(*p, keys), parameters)
    check_directional_derivative(lambda *p: free_draws(*p, keys), (loc, torch.randn_like(loc)))


@in_interpreter
def test_a_sample_depends_on_its_key_alone():
    loc, out_axis = weight("dense", "cpu")
    log_u, log_v = factors(loc, out_axis, 2)
    keys = keys_of(3, "cpu")
    together = tied_draws(loc, log_u, log_v, keys)
    for s in range(3):
        assert together[s : s + 1].equal(tied_draws(loc, log_u, log_v, keys[s : s + 1]))


@in_interpreter
def test_gradients_are_the_same_every_time_whatever_layout_they_come_in():
    loc, out_axis = weight("conv2d-channels-last", "cpu")
    parameters = [p.requires_grad_() for p in (loc, *factors(loc, out_axis, 2))]
    keys, found = keys_of(2, "cpu"), []
    grad = torch.randn(2, *loc.shape)
    for same in (grad, grad.clone(), grad.to(memory_format=torch.preserve_format).movedim(1, 2).clone().movedim(2, 1)):
        found.append(torch.autograd.grad(tied_draws(*parameters, keys), parameters, same))
    expanded = torch.autograd.grad(tied_draws(*parameters, keys).sum(), parameters)
    ones = torch.autograd.grad(tied_draws(*parameters, keys), parameters, torch.ones_like(grad))
    for first, second, third in zip(*found, strict=True):
        assert first.equal(second) and first.equal(third)
    assert all(a.equal(b) for a, b in zip(expanded, ones, strict=True))


@in_interpreter
@pytest.mark.parametrize("trained", [(True, False), (False, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_frozen_parameters_get_no_gradient(trained, dtype):
    loc, out_axis = weight("dense", "cpu")
    log_u, log_v = factors(loc, out_axis, 2)
    raw, keys = torch.randn_like(loc), keys_of(1, "cpu")
    loc.requires_grad_(trained[0])
    for other in (log_u, log_v, raw):
        other.requires_grad_(trained[1])
    tied_draws(loc, log_u, log_v, keys, dtype=dtype).sum().backward()
    free_draws(loc, raw, keys, dtype=dtype).sum().backward()
    assert (loc.grad is not None) == trained[0]
    assert all((other.grad is not None) == trained[1] for other in (log_u, log_v, raw))
    if trained[0]:
        assert loc.grad.equal(torch.full_like(loc, 2.0))


@in_interpreter
def test_second_derivatives_are_refused():
    loc, out_axis = weight("dense", "cpu")
    parameters = [p.requires_grad_() for p in factors(loc, out_axis, 2)]
    value = tied_draws(loc, *parameters, keys_of(1, "cpu")).square().sum()
    grads = torch.autograd.grad(value, parameters, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        grads[0].sum().backward()


@in_interpreter
@pytest.mark.filterwarnings("ignore:Detected non-contiguous")
def test_registrations_pass_torchs_own_checks():
    plain, constant, own = (False, None, 0.0, 1.0), (True, None, 0.1, 0.3), (True, torch.randn(37, 150), 0.0, 0.3)
    for layout, prior in (("dense", own), ("conv2d-channels-last", constant), ("transposed-channels-last", plain)):
        loc, out_axis = weight(layout, "cpu")
        keys = keys_of(2, "cpu")
        parameters = [p.requires_grad_() for p in (loc, *factors(loc, out_axis, 2))]
        raw = torch.randn_like(loc).requires_grad_()
        torch.library.opcheck(weight_sample._tied, (*parameters, keys, out_axis, True, torch.bfloat16, *prior))
        torch.library.opcheck(weight_sample._free, (parameters[0], raw, keys, False, torch.float32, *prior))


def test_without_triton_the_reference_draws():
    """In plain torch, where the interpreter is off: the noise is the same, to rounding."""
    for layout in LAYOUTS:
        loc, out_axis = weight(layout, "cpu", torch.float64)
        draws = tied_draws(loc, *factors(loc, out_axis, 2), keys_of(2, "cpu"), out_axis=out_axis, dtype=torch.float64)
        assert draws.shape == (2, *loc.shape) and draws.isfinite().all()
