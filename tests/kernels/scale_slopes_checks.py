"""What gradients of a scaling by a kernel must be: asked of the interpreter and of GPUs."""

import torch

from leanbayes.kernels.scale_slopes import scale_slopes, scale_slopes_reference
from leanbayes.kernels.scale_slopes.triton import scaled_layout
from tests.kernels.sampling import TOLERANCES, NaNsInNewMemory, relative_error

LAST = torch.channels_last

# What is scaled, the axes that have a scale of their own, and the positions that share one.
CASES = {
    "image": (lambda: torch.randn(3, 5, 7, 6), (0, 1), 42),
    "image, channels last": (lambda: torch.randn(3, 5, 7, 6).to(memory_format=LAST), (0, 1), 42),
    "many channels, channels last": (lambda: torch.randn(2, 133, 3, 3).to(memory_format=LAST), (0, 1), 9),
    "large image": (lambda: torch.randn(1, 2, 40, 55), (0, 1), 2200),
    "large image, channels last": (lambda: torch.randn(1, 17, 40, 55).to(memory_format=LAST), (0, 1), 2200),
    "one scale for all rows": (lambda: torch.randn(40, 9, 6, 6).to(memory_format=LAST), (1,), 40 * 36),
    "sequence": (lambda: torch.randn(4, 5, 9), (0, 2), 5),
    "sequence first": (lambda: torch.randn(5, 4, 9), (1, 2), 5),
    "volume": (lambda: torch.randn(2, 3, 2, 3, 4).to(memory_format=torch.channels_last_3d), (0, 1), 24),
    "one scale": (lambda: torch.randn(7, 11), (), 77),
}


def scaled(case, device="cpu", dtype=torch.float32):
    """A gradient, the value and its scale."""
    make, own, positions = CASES[case]
    value = make().to(device, dtype)
    scale = torch.randn([size if axis in own else 1 for axis, size in enumerate(value.shape)]).to(device, dtype)
    layout = scaled_layout(value, scale)
    assert layout is not None and layout.positions == positions
    return torch.randn_like(value), value, scale


def check(case, device, dtype=torch.float32):
    grad, value, scale = scaled(case, device, dtype)
    with torch.no_grad(), NaNsInNewMemory():
        in_value, in_scale = scale_slopes(grad, value, scale)
    expected = scale_slopes_reference(grad.double(), value.double(), scale.double())
    assert in_value.dtype == dtype and in_value.stride() == grad.stride()
    assert in_scale.dtype == torch.float32 and in_scale.shape == scale.shape
    assert relative_error(in_value, expected[0]) < TOLERANCES[dtype]
    assert relative_error(in_scale, expected[1]) < TOLERANCES[torch.float32]
