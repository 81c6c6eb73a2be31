"""Divergences by kernels, in Triton's interpreter."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from leanbayes.kernels import gaussian_kl
from leanbayes.kernels._dispatch import interpreted
from leanbayes.kernels.gaussian_kl import free_kl, tied_kl, tied_kl_reference
from tests.kernels.sampling import check_free_kl, check_tied_kl, each_layout, factors, weight

in_interpreter = pytest.mark.skipif(not interpreted(), reason="test_interpreted.py runs it in Triton's interpreter")


@in_interpreter
@each_layout
@pytest.mark.parametrize("centred", [False, True])
def test_tied_divergence_and_its_gradients(layout, centred):
    check_tied_kl(layout, "cpu", centred)


@in_interpreter
@each_layout
@pytest.mark.parametrize("centred", [False, True])
def test_free_divergence_and_its_gradients(layout, centred):
    check_free_kl(layout, "cpu", centred)


@in_interpreter
@pytest.mark.parametrize("param_dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_parameters(param_dtype):
    check_tied_kl("dense", "cpu", True, 3, param_dtype)
    check_free_kl("dense", "cpu", False, param_dtype)


@in_interpreter
def test_it_is_the_divergence_of_torch():
    loc, raw = torch.randn(60, 70), torch.randn(60, 70) - 3
    log_u, log_v = factors(loc, 0, 2)
    prior = Normal(torch.tensor(0.1).double(), torch.tensor(0.4).double())
    for found, std in (
        (free_kl(loc, raw, 0.1, 0.4), torch.nn.functional.softplus(raw.double())),
        (tied_kl(loc, log_u, log_v, 0.1, 0.4), log_u.double().exp() @ log_v.double().exp().T),
    ):
        expected = kl_divergence(Normal(loc.double(), std), prior).sum()
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)


@in_interpreter
def test_extreme_deviations_and_gradients_are_finite():
    raw = torch.linspace(-80, 80, 3001).requires_grad_()
    value = free_kl(torch.zeros(3001), raw, 0.0, 0.3)
    value.backward()
    std = torch.nn.functional.softplus(raw.detach().double())
    expected = kl_divergence(Normal(torch.zeros(3001).double(), std), Normal(torch.zeros(1).double(), 0.3)).sum()
    torch.testing.assert_close(value.detach().double(), expected, rtol=1e-6, atol=0)
    # log softplus(raw) is about raw where that is far below 0.
    torch.testing.assert_close(raw.grad[:100], torch.full((100,), -1.0))


@in_interpreter
@pytest.mark.parametrize("trained", [(True, False), (False, True)])
def test_frozen_parameters_get_no_gradient(trained):
    loc, out_axis = weight("dense", "cpu")
    log_u, log_v = factors(loc, out_axis, 2)
    raw = torch.randn_like(loc)
    loc.requires_grad_(trained[0])
    for other in (log_u, log_v, raw):
        other.requires_grad_(trained[1])
    (tied_kl(loc, log_u, log_v, 0.0, 1.0) + free_kl(loc, raw, 0.0, 1.0)).backward()
    assert (loc.grad is not None) == trained[0]
    assert all((other.grad is not None) == trained[1] for other in (log_u, log_v, raw))


@in_interpreter
def test_second_derivatives_are_refused():
    loc = torch.randn(8, 9).requires_grad_()
    (grad,) = torch.autograd.grad(free_kl(loc, torch.randn(8, 9), 0.0, 1.0), loc, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        grad.sum().backward()


@in_interpreter
def test_registrations_pass_torchs_own_checks():
    loc, out_axis = weight("conv2d-channels-last", "cpu")
    parameters = [p.requires_grad_() for p in (loc, *factors(loc, out_axis, 2))]
    torch.library.opcheck(gaussian_kl._tied, (*parameters, None, 0.1, 0.3, out_axis))
    centre = torch.randn_like(loc)
    torch.library.opcheck(gaussian_kl._free, (parameters[0], torch.randn_like(loc).requires_grad_(), centre, 0.0, 0.3))


def test_without_triton_the_reference_is_computed():
    loc, out_axis = weight("transposed", "cpu", torch.float64)
    parameters = (loc, *factors(loc, out_axis, 2))
    assert tied_kl(*parameters, 0.1, 0.3, out_axis).equal(tied_kl_reference(*parameters, 0.1, 0.3, out_axis))
