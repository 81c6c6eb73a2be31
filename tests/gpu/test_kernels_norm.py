"""The norm between rank-1 layers on a GPU, for odd sizes and those that its tiles were chosen for."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.test_scaled_norm import (
    CASES,
)
from tests.kernels.test_scaled_norm import (
    test_known_statistics_give_what_plain_torch_gives as check_eval,
)
from tests.kernels.test_scaled_norm import (
    test_values_and_gradients_are_those_of_plain_torch as check_training,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPES = [(5, 6, 3, 4), (3, 70, 5, 3), (4, 160, 24, 24), (3, 128, 16, 16), (6, 256, 8, 8), (5, 512, 4, 4)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("check", [check_training, check_eval], ids=["training", "eval"])
def test_the_kernels_give_what_plain_torch_gives(check, shape, dtype):
    for parts, relu, plain in CASES[-4:] + CASES[::5]:
        check(parts, relu, plain, dtype, "cuda", shape)
