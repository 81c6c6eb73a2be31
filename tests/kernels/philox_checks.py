"""What is checked of the generator on every device that kernels run on."""

import torch

from leanbayes.kernels._philox import normal4, philox_normal_reference, philox_uniform_reference, uniform4
from leanbayes.kernels._triton import constexpr, jit, tl
from leanbayes.testing import assert_mean_close


@jit
def fill(keys_ptr, out_ptr, count, NORMAL: constexpr, COUNTERS: constexpr):
    counter = tl.program_id(0) * COUNTERS + tl.arange(0, COUNTERS)
    key = tl.load(keys_ptr)
    a, b, c, d = normal4(key, counter) if NORMAL else uniform4(key, counter)
    at = 4 * counter
    tl.store(out_ptr + at, a, mask=at < count)
    tl.store(out_ptr + at + 1, b, mask=at + 1 < count)
    tl.store(out_ptr + at + 2, c, mask=at + 2 < count)
    tl.store(out_ptr + at + 3, d, mask=at + 3 < count)


def in_kernel(key, count, normal):
    out = torch.full((count,), torch.nan, device=key.device)
    fill[(-(-count // 1024),)](key, out, count, NORMAL=normal, COUNTERS=256)
    return out


def check_kernel_equals_reference(device):
    # Also of keys with the highest bit, as streams have them.
    for key in (0, 1, 2**62 - 1, -(2**63), -12345678901234567):
        key = torch.tensor([key], device=device)
        assert torch.equal(in_kernel(key, 1001, False), philox_uniform_reference(key, 1001)[0])
        difference = in_kernel(key, 1001, True) - philox_normal_reference(key, 1001)[0]
        # Fast logarithms next to 1 are good to a few 1e-7, of which a small radius is the root.
        assert difference.square().mean().sqrt() < 1e-5 and difference.abs().max() < 1e-3


def check_moments(draws):
    """Fail where draws ``[keys, count]`` are not independent standard normal numbers."""
    flat = draws.flatten().double()
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        assert_mean_close(flat**power, float(moment), what=f"moment {power}")
    # Words of one counter and counters next to each other; keys next to each other.
    for step in (1, 2, 3, 4, 5):
        assert_mean_close((draws[:, step:] * draws[:, :-step]).flatten(), 0.0, what=f"correlation at distance {step}")
    assert_mean_close((draws[1:] * draws[:-1]).flatten(), 0.0, what="correlation between keys")
    # Box-Muller pairs share a radius; squares must not show it.
    squares = draws.square() - 1
    for step in (1, 2, 3):
        product = (squares[:, step:] * squares[:, :-step]).flatten()
        assert_mean_close(product, 0.0, what=f"correlation of squares at distance {step}")
