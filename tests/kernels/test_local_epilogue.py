"""The epilogue of local reparameterisation: plain torch in float64 is the truth, the kernel where it is interpreted."""

import pytest
import torch

from leanbayes.kernels.local_epilogue import local_epilogue, slope_dtype
from leanbayes.kernels.local_epilogue.reference import local_epilogue_reference
from tests.kernels import local_epilogue_checks as checks


@pytest.mark.parametrize("dtype", checks.TOLERANCE)
@pytest.mark.parametrize(("shape", "samples"), checks.SHAPES)
def test_values_and_gradients(shape, samples, dtype):
    for layout in checks.LAYOUTS:
        checks.check_values_and_gradients(shape, samples, dtype, layout, "cpu")


def test_one_sample_alone_is_one_of_many():
    checks.check_one_sample_alone_is_one_of_many("cpu")


def test_noise_has_its_moments():
    checks.check_noise_has_its_moments("cpu")


def test_nothing_is_left_unwritten():
    checks.check_nothing_is_left_unwritten("cpu")


def test_noise_follows_from_the_keys():
    mean, var, keys = checks.make((9, 5), 3, torch.float32)
    first = local_epilogue(mean, var, keys, torch.float32, True)
    for again, before in zip(local_epilogue(mean, var, keys, torch.float32, True), first):
        assert torch.equal(again, before)
    other = local_epilogue(mean, var, keys + torch.tensor([0, 1, 0]), torch.float32, True)[0]
    differs = (other != first[0]).any(1)
    assert differs.tolist() == [False] * 3 + [True] * 3 + [False] * 3


def test_without_slope_and_without_mean():
    mean, var, keys = checks.make((9, 5), 1, torch.float32)
    y, slope = local_epilogue(mean, var, keys, torch.float32, True)
    alone, nothing = local_epilogue(mean, var, keys, torch.float32, False)
    assert torch.equal(alone, y) and nothing.numel() == 0
    noise = local_epilogue(None, var, keys, torch.float32, False)[0]
    torch.testing.assert_close(mean + noise, y)


def test_the_slope_is_kept_alone():
    mean, var, keys = checks.make((9, 5), 1, torch.bfloat16)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        local_epilogue(mean.requires_grad_(), var.requires_grad_(), keys, torch.bfloat16, True)
    assert [(t.shape, t.dtype) for t in kept] == [((9, 5), torch.bfloat16)]


def test_it_refuses_second_derivatives():
    mean, var, keys = checks.make((9, 5), 1, torch.float32)
    y, _ = local_epilogue(mean, var.requires_grad_(), keys, torch.float32, True)
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(y.sum(), var, create_graph=True)


def test_nan_and_gradients_of_nan_are_not_hidden():
    mean, var, keys = checks.make((9, 5), 1, torch.float32)
    var[4, 3] = torch.nan
    y, slope = local_epilogue(mean, var, keys, torch.float32, True)
    assert y.isnan().sum() == 1 and y[4, 3].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_registration_is_sound(dtype):
    mean, var, keys = checks.make((4, 3, 5, 7), 2, dtype, "channels_last")
    inputs = (mean.requires_grad_(), var.requires_grad_(), keys, dtype, True)
    # The gradients of the slope are none, of which the test of compiled gradients does not know.
    torch.library.opcheck(
        local_epilogue, inputs, test_utils=("test_schema", "test_faketensor", "test_autograd_registration")
    )


def test_compiled_in_one_graph():
    mean, var, keys = checks.make((4, 3, 5, 7), 2, torch.float32, "channels_last")

    def loss(mean, var):
        return local_epilogue(mean * 2, var * 3, keys, torch.float32, True)[0].square().sum()

    def gradients(function):
        leaves = mean.detach().clone().requires_grad_(), var.detach().clone().requires_grad_()
        return torch.autograd.grad(function(*leaves), leaves)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for found, expected in zip(gradients(compiled), gradients(loss)):
        torch.testing.assert_close(found, expected)


def test_slopes_of_small_variances_fit_their_dtype():
    assert slope_dtype(torch.float16) == torch.float32
    var = torch.full((50,), 1e-14)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        slope = local_epilogue(None, var, torch.tensor([1]), dtype, True)[1]
        assert slope.isfinite().all() and slope.abs().max() > 1e6


def test_the_reference_serves_float64():
    mean, var, keys = checks.make((9, 5), 3, torch.float64)
    y, slope = local_epilogue(mean, var, keys, torch.float64, True)
    expected = local_epilogue_reference(mean, var, keys, torch.float64)
    assert torch.equal(y, expected[0]) and torch.equal(slope, expected[1]) and slope.dtype == torch.float64
