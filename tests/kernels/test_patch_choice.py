"""The choice among copies by kernels, in Triton's interpreter."""

import pytest
import torch

from leanbayes.kernels import patch_choice
from leanbayes.kernels._dispatch import interpreted
from leanbayes.kernels.patch_choice import chosen
from leanbayes.kernels.patch_choice.reference import choice_index, edges_of
from leanbayes.testing import assert_probability_close
from tests.kernels.sampling import check_choice, keys_of

in_interpreter = pytest.mark.skipif(not interpreted(), reason="test_interpreted.py runs it in Triton's interpreter")


@in_interpreter
@pytest.mark.parametrize("copies", [1, 2, 3, 5, 8, 33])
def test_choices_and_their_gradients(copies):
    check_choice("cpu", copies)


@in_interpreter
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_copies(dtype):
    check_choice("cpu", 3, dtype=dtype)


@in_interpreter
@pytest.mark.parametrize("shape", [(1,), (3,), (5, 1), (7, 2, 3, 3)])
@pytest.mark.parametrize("n", [1, 4])
def test_shapes(shape, n):
    check_choice("cpu", 5, shape, n)


@in_interpreter
def test_keys_may_lie_apart_in_memory():
    copies, probs, keys = torch.randn(3, 40), torch.full((3,), 1 / 3), keys_of(12, "cpu").view(3, 4)[:, 1]
    assert chosen(copies, probs, keys).equal(chosen(copies, probs, keys.clone()))


@in_interpreter
def test_copies_are_chosen_with_their_probabilities_and_independently():
    probs = torch.tensor([0.5, 0.0, 0.3, 0.2])
    copies = torch.arange(4.0).view(4, 1, 1).expand(4, 50, 60).contiguous()
    which = chosen(copies, probs, keys_of(4, "cpu")).flatten(1)  # [4, 3000]
    for k, probability in enumerate(probs.tolist()):
        assert_probability_close(which.flatten() == k, probability)
        assert_probability_close((which[0] == k) & (which[1] == k), probability**2)
        for step in (1, 2, 3, 4):
            assert_probability_close(
                ((which[:, step:] == k) & (which[:, :-step] == k)).flatten(), probability**2, sigmas=6.0
            )


@in_interpreter
def test_second_derivatives_are_refused_and_registrations_right():
    copies = torch.randn(3, 7, 5).requires_grad_()
    probs, keys = torch.full((3,), 1 / 3), keys_of(2, "cpu")
    (grad,) = torch.autograd.grad(chosen(copies, probs, keys).square().sum(), copies, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        grad.sum().backward()
    torch.library.opcheck(patch_choice._chosen, (copies, edges_of(probs), keys))


def test_rounded_probabilities_never_choose_beyond_the_last_copy():
    probs = torch.full((7,), 1 / 7) - 1e-4  # their sum is under 1
    index = choice_index(probs, keys_of(50, "cpu"), 400)
    assert index.max() == 6 and index.min() == 0
