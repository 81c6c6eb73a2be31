"""Linear operators."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.ops import BagLookup, Conv, Dense, DenseTransposed, LinearOp, expand_rows, op_for, register_op
from leanbayes.testing import OpSuite, assert_close


class TestDense(OpSuite):
    def make_module(self):
        return nn.Linear(4, 3)

    def make_input(self, rows):
        return torch.randn(rows, 4)


class TestDenseOnSequences(TestDense):
    def make_input(self, rows):
        return torch.randn(rows, 2, 5, 4)


class TestDenseWithoutBias(TestDense):
    def make_module(self):
        return nn.Linear(4, 3, bias=False)


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))

    def forward(self, x):
        return (x.flatten(0, -2) @ self.weight + self.bias).view(*x.shape[:-1], 3)


class TestDenseTransposed(OpSuite):
    def make_module(self):
        return Transposed()

    def make_op(self, module):
        return DenseTransposed(4, 3)

    def make_input(self, rows):
        return torch.randn(rows, 2, 4)

    def test_equals_the_module(self):
        op, module, x = self._parts()
        assert_close(op(x, module.weight, module.bias), module(x))


class SpatialSuite(OpSuite):
    size = (5,)

    def make_input(self, rows):
        return torch.randn(rows, self.make_module().in_channels, *self.size)


class TestConv1d(SpatialSuite):
    def make_module(self):
        return nn.Conv1d(4, 6, 2, stride=2, dilation=2, padding=1, groups=2)


class TestConv1dSame(SpatialSuite):
    def make_module(self):
        return nn.Conv1d(2, 3, 3, padding="same", padding_mode="circular")


class TestConv2dReflect(SpatialSuite):
    size = (4, 3)

    def make_module(self):
        return nn.Conv2d(2, 3, (3, 1), padding=(1, 2), padding_mode="reflect", bias=False)


class TestDepthwiseConv2d(SpatialSuite):
    size = (3, 3)

    def make_module(self):
        return nn.Conv2d(3, 6, 2, groups=3, padding="valid")


class TestConv3dReplicate(SpatialSuite):
    size = (2, 3, 2)

    def make_module(self):
        return nn.Conv3d(2, 2, (1, 2, 2), padding=(0, 1, 1), padding_mode="replicate", stride=(1, 1, 2))


class TestConvWithSymmetricSamePadding(SpatialSuite):
    size = (4, 5)

    def make_module(self):
        return nn.Conv2d(2, 3, (3, 2), dilation=(1, 2), padding="same")

    def test_its_gradients_are_written_out(self):
        assert op_for(self.make_module()).has_gradients


def test_gradients_of_what_is_padded_first_are_left_to_autograd():
    assert not op_for(nn.Conv2d(2, 3, (3, 2), padding="same")).has_gradients
    assert not op_for(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect")).has_gradients


class TestConvTranspose1d(SpatialSuite):
    size = (3,)

    def make_module(self):
        return nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1, groups=2)


class TestConvTranspose2d(SpatialSuite):
    size = (2, 3)

    def make_module(self):
        return nn.ConvTranspose2d(2, 3, 2, stride=(1, 2), output_padding=(0, 1), dilation=(1, 2), padding=(0, 1))


class TestConvTranspose3d(SpatialSuite):
    size = (2, 1, 2)

    def make_module(self):
        return nn.ConvTranspose3d(2, 2, (1, 2, 2), groups=2)


class TestEmbedding(OpSuite):
    def make_module(self):
        return nn.Embedding(5, 3)

    def make_input(self, rows):
        return torch.randint(0, 5, (rows, 4))


def test_padding_row_gets_no_gradient():
    module = nn.Embedding(4, 2, padding_idx=1)
    weight = torch.randn(4, 2, requires_grad=True)
    op_for(module)(torch.tensor([0, 1]), weight).sum().backward()
    assert weight.grad[1].tolist() == [0.0, 0.0] and weight.grad[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode):
    module = nn.EmbeddingBag(6, 3, mode=mode, padding_idx=2)
    op = op_for(module)
    x = torch.tensor([[0, 1, 1], [5, 2, 3]])
    assert isinstance(op, BagLookup) and torch.equal(op(x, module.weight), module(x))
    flat, offsets = torch.tensor([0, 1, 5, 5]), torch.tensor([0, 3])
    assert torch.equal(replace(op, offsets=offsets)(flat, module.weight), module(flat, offsets))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_dense_rows_on_any_axis(axis):
    op, weights = Dense(4, 3), torch.randn(2, 3, 4)
    x = torch.randn(6, 6, 6, 4)
    y = op.stacked(x, weights, torch.ones(2, 3), axis)
    parts = [op(part, w, torch.ones(3)) for part, w in zip(x.chunk(2, axis), weights)]
    assert_close(y, torch.cat(parts, axis))
    factor = torch.randn(2, 4)
    scaled = torch.cat([part * f for part, f in zip(x.chunk(2, axis), factor)], axis)
    assert_close(op.scale(x, factor, axis), scaled)


@pytest.mark.parametrize(
    ("module", "x"), [(nn.Linear(3, 2), torch.randn(0, 3)), (nn.Conv1d(3, 2, 1), torch.randn(0, 3, 4))], ids=str
)
def test_empty_batches(module, x):
    layer = lb.nn.BayesianLayer(module, lb.MeanField())
    for estimator in ("weight", "local", "flipout"):
        with lb.sampling(n=2, estimator=estimator):
            assert layer(x).shape == module(x).shape


def test_rows_are_repeated_for_samples():
    values = torch.tensor([[1.0], [2.0]])
    assert expand_rows(values, 6).flatten().tolist() == [1, 1, 1, 2, 2, 2]
    assert expand_rows(values, 2) is values
    with pytest.raises(ValueError, match="5 rows does not divide into 2 samples; fold the input with lb.fold"):
        expand_rows(values, 5)


def test_modules_with_a_forward_of_their_own_have_no_op():
    class Strange(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    class Plain(nn.Linear):
        pass

    assert op_for(Strange(2, 2)) is None
    assert op_for(Plain(2, 2)) == Dense(2, 2)
    assert op_for(nn.ReLU()) is None


def test_ops_are_values():
    assert op_for(nn.Conv2d(2, 3, 3)) == op_for(nn.Conv2d(2, 3, 3)) != op_for(nn.Conv2d(2, 3, 3, stride=2))
    assert isinstance(op_for(nn.Conv2d(2, 3, 3)), Conv) and isinstance(hash(Dense(2, 2)), int)


def test_a_new_op_is_registered_once():
    class Scale(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(size, 1))

        def forward(self, x):
            return x @ self.weight

    @register_op(Scale)
    def scale(module) -> LinearOp:
        return DenseTransposed(module.weight.shape[0], 1)

    layer = lb.nn.BayesianLayer(Scale(3), lb.MeanField())
    assert layer(torch.randn(5, 3)).shape == (5, 1)
    with pytest.raises(ValueError, match="an op for Scale is already registered"):
        register_op(Scale)(scale)


def test_an_op_that_maps_otherwise_has_its_parents_gradients_no_longer():
    class Doubled(Dense):
        def __call__(self, x, weight, bias=None):
            return super().__call__(x, 2 * weight, bias)

    class AlsoWritten(Doubled):
        def gradients(self, grad, x, weight, wanted):
            raise NotImplementedError

    assert Dense(3, 2).has_gradients and not Doubled(3, 2).has_gradients and AlsoWritten(3, 2).has_gradients
