"""What is checked of the epilogue on every device that its kernel runs on."""

import torch

from leanbayes.kernels.local_epilogue import local_epilogue
from leanbayes.kernels.local_epilogue.reference import FLOOR, local_epilogue_reference
from tests.kernels.philox_checks import check_moments

# Relative RMS errors. Triton's interpreter cuts bfloat16 off instead of rounding it, hence twice its steps.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
SHAPES = [
    ((7, 5), 1),
    ((6, 5), 3),
    ((3,), 1),
    ((2, 1, 1, 1), 2),
    ((1023, 3), 1),
    ((1, 4097), 1),
    ((4, 3, 5, 7), 2),
    ((6, 8, 4, 4), 3),
    ((3, 2, 2, 3, 2), 1),
    ((0, 4), 1),
]
LAYOUTS = ("contiguous", "channels_last", "permuted", "sliced", "different")


def laid_out(value, layout, second):
    """The same values in another memory layout; in two different ones for mean and variance."""
    if layout == "different":
        layout = "permuted" if second else "contiguous"
    if layout == "channels_last" and value.dim() == 4:
        return value.contiguous(memory_format=torch.channels_last)
    if layout == "permuted":
        return value.mT.contiguous().mT if value.dim() > 1 else value
    if layout == "sliced":
        return torch.cat([value, value], -1)[..., : value.shape[-1]]
    return value


def make(shape, samples, dtype, layout="contiguous", device="cpu"):
    generator = torch.Generator().manual_seed(sum(shape))
    mean = torch.randn(shape, generator=generator).to(device, dtype)
    var = torch.rand(shape, generator=generator).to(device, dtype)
    # No variance at all, less than none, and at the floor.
    for at, value in enumerate((0.0, -1e-3, FLOOR)):
        if var.numel() > 8:
            var.view(-1)[3 * at] = value
    keys = torch.randint(2**62, (samples,), generator=generator).to(device)
    return laid_out(mean, layout, False), laid_out(var, layout, True), keys


def error(found, truth):
    difference = (found.double() - truth.double()).square().mean()
    return (difference / truth.double().square().mean().clamp_min(1e-30)).sqrt()


def truth_of(mean, var, keys):
    """Output and gradients in float64 by autograd, from the reference's noise."""
    ones = torch.ones_like(mean, dtype=torch.float32)
    eps = local_epilogue_reference(None, 1.0 * ones, keys, torch.float32, False)[0].double() / (1 - FLOOR**0.5)
    # Noise lies in the memory of the output, which has the layout of the mean.
    mean, var = mean.detach().double().requires_grad_(), var.detach().double().requires_grad_()
    y = mean + (var.clamp_min(FLOOR).sqrt() - FLOOR**0.5) * eps
    return mean, var, y


def check_values_and_gradients(shape, samples, dtype, layout, device):
    mean, var, keys = make(shape, samples, dtype, layout, device)
    mean.requires_grad_()
    var.requires_grad_()
    y, slope = local_epilogue(mean, var, keys, dtype, True)
    assert y.dtype == dtype and slope.dtype == (torch.float32 if dtype == torch.float16 else dtype)
    if not y.numel():
        assert y.shape == shape
        return
    exact_mean, exact_var, exact = truth_of(mean, var, keys)
    assert error(y, exact) < TOLERANCE[dtype]
    grad = torch.randn(shape, device=device).to(dtype)
    y.backward(grad)
    exact.backward(grad.double())
    assert torch.equal(mean.grad, grad)
    # A variance at the floor has a slope of 10^8 that would hide all others.
    usual = exact_var > 2 * FLOOR
    assert error(var.grad[usual], exact_var.grad[usual]) < TOLERANCE[dtype]
    below = exact_var < FLOOR
    assert torch.equal(var.grad[below], torch.zeros_like(var.grad[below]))
    assert torch.equal(y[below], mean[below])


def check_one_sample_alone_is_one_of_many(device):
    mean, var, keys = make((6, 8, 3, 3), 3, torch.float32, "channels_last", device)
    together = local_epilogue(mean, var, keys, torch.float32, False)[0]
    for s in range(3):
        rows = slice(2 * s, 2 * s + 2)
        alone = local_epilogue(mean[rows], var[rows], keys[s : s + 1], torch.float32, False)[0]
        torch.testing.assert_close(together[rows], alone, rtol=0, atol=0)


def check_noise_has_its_moments(device, count=40_001):
    # Ones with 1e-8 taken off, of which float32 knows nothing.
    ones = torch.ones(4, count, device=device)
    keys = torch.arange(4, device=device)
    check_moments(local_epilogue(None, ones, keys, torch.float32, False)[0])


def check_nothing_is_left_unwritten(device):
    """Memory that held NaN before is written to the last element."""
    for shape, samples in SHAPES:
        size = torch.Size(shape).numel()
        dirty = [torch.full((size,), torch.nan, device=device) for _ in range(4)]
        del dirty
        for tensor in local_epilogue(*make(shape, samples, torch.float32, device=device), torch.float32, True):
            assert tensor.isfinite().all()
