"""The checks that every op passes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.ops import LinearOp, op_for
from leanbayes.testing.statistics import assert_close


class OpSuite:
    """Subclass it in a test module and provide the plain module that the op stands for; pytest finds the checks.

    ::

        class TestMine(OpSuite):
            def make_module(self):
                return MyLayer(3, 2)

            def make_input(self, rows):
                return torch.randn(rows, 3)
    """

    def make_module(self) -> Any:
        """A small plain module with a `weight` and maybe a `bias`."""
        raise NotImplementedError

    def make_input(self, rows: int) -> Tensor:
        """An input of the module with that many rows."""
        raise NotImplementedError

    def make_op(self, module: nn.Module) -> LinearOp:
        """The op, by default the one registered for the module's type."""
        op = op_for(module)
        assert op is not None, f"no op is registered for {type(module).__name__}"
        return op

    def setup_method(self) -> None:
        """Fix the seed."""
        torch.manual_seed(0)

    def test_equals_the_module(self) -> None:
        """Bit for bit, with the module's own weight."""
        op, module, x = self._parts()
        assert torch.equal(op(x, module.weight, self._bias(module)), module(x))

    def test_knows_its_batch_axis(self) -> None:
        """An input has one; some of its parts have none."""
        op, _, x = self._parts()
        assert op.batched(x) and not all(op.batched(x[(0,) * k]) for k in range(1, x.dim() + 1))

    def test_is_linear_in_the_weight(self) -> None:
        """``op(x, a v + b w) = a op(x, v) + b op(x, w)``, and the bias is added."""
        op, module, x = self._parts()
        v, w = torch.randn_like(module.weight), torch.randn_like(module.weight)
        assert_close(op(x, 2 * v - 3 * w), 2 * op(x, v) - 3 * op(x, w), what="linearity")
        bias = self._bias(module)
        if bias is not None:
            assert_close(op(x, v, bias), op.add_bias(op(x, v), bias), what="bias")

    def test_stacked_equals_the_loop(self) -> None:
        """One weight and bias for the rows of each sample; also with no rows, where the plain op takes that."""
        op, module, _ = self._parts()
        x = self.make_input(6)
        weights = torch.randn(3, *module.weight.shape)
        plain = self._bias(module)
        bias = None if plain is None else torch.randn(3, *plain.shape)
        y = op.stacked(x, weights, bias)
        parts = [op(part, weights[s], None if bias is None else bias[s]) for s, part in enumerate(x.chunk(3))]
        assert_close(y, torch.cat(parts), what="stacked")
        try:
            empty = op(x[:0], weights[0])
        except (RuntimeError, IndexError):
            return
        assert op.stacked(x[:0], weights).shape == empty.shape

    def test_gradients_written_out_are_those_of_autograd(self) -> None:
        """In input, weight and bias, of one weight and of one per sample."""
        op, module, _ = self._parts()
        if not op.has_gradients:
            return
        x = self.make_input(6).requires_grad_()
        for n in (1, 3):
            weights = torch.randn(n, *module.weight.shape, requires_grad=True)
            biases = torch.randn(n, op.out_features, requires_grad=True)
            y = op.stacked(x, weights, biases)
            assert op.output_shape(x, weights[0]) == y.shape
            grad = torch.randn_like(y)
            expected = torch.autograd.grad(y, (x, weights, biases), grad)
            found = *op.stacked_gradients(grad, x, weights, (True, True)), op.stacked_bias_gradient(grad, n)
            for what, ours, truth in zip(("input", "weight", "bias"), found, expected):
                assert ours is not None
                assert_close(ours, truth, what=f"gradient in the {what} of {n} samples")
            assert op.stacked_gradients(grad, x, weights, (False, False)) == (None, None)

    def test_square_gives_the_variance(self) -> None:
        """The variance of the output of independent weights is ``op(square(x), var)``."""
        op, module, x = self._parts()
        var = torch.rand_like(module.weight)
        columns = design(op, x, module.weight.shape)  # [entries, *output]
        expected = (columns.square() * var.flatten().view(-1, *(1,) * (columns.dim() - 1))).sum(0)
        assert_close(op(op.square(x), var), expected, what="variance")

    def test_features_of_the_weight(self) -> None:
        """The two feature axes of the weight count the op's inputs and outputs."""
        op, module, _ = self._parts()
        assert op.features(module.weight.shape, op.in_axis) == op.in_features
        assert op.features(module.weight.shape, op.out_axis) == op.out_features

    def test_outer_finds_the_features_of_each_entry(self) -> None:
        """Each entry of the weight meets one input and one output feature, found by trying all of them."""
        op, module, x = self._parts()
        shape = module.weight.shape
        in_factor = torch.randn(2, op.in_features)
        out_factor = torch.randn(2, op.out_features)
        inputs, outputs = met_features(op, self.make_input(4), shape)
        expected = in_factor[:, inputs] * out_factor[:, outputs]
        got = op.outer(shape, in_factor, out_factor).expand(2, *shape)
        assert_close(got.flatten(1), expected, what="outer")
        assert_close(op.outer(shape, in_factor, None).expand(2, *shape).flatten(1), in_factor[:, inputs])
        assert_close(op.outer(shape, None, out_factor).expand(2, *shape).flatten(1), out_factor[:, outputs])

    def test_scaling_features_scales_the_weight(self) -> None:
        """``scale(op(scale(x, s), w), r) = op(x, w * outer(s, r))``, the same for all rows and for each."""
        op, module, _ = self._parts()
        x = self.make_input(4)
        s, r = torch.randn(2, op.in_features), torch.randn(2, op.out_features)
        weights = module.weight * op.outer(module.weight.shape, None if op.index_input else s, r)
        scaled = op(x if op.index_input else op.scale(x, s), module.weight)
        assert_close(op.scale(scaled, r), op.stacked(x, weights), what="scaled features")

    def _parts(self) -> tuple[LinearOp, Any, Tensor]:
        module = self.make_module()
        return self.make_op(module), module, self.make_input(2)

    def _bias(self, module: Any) -> Tensor | None:
        return getattr(module, "bias", None)


def design(op: LinearOp, x: Tensor, shape: torch.Size) -> Tensor:
    """The op's output for each single entry of the weight set to 1: ``[entries, *output]``."""
    size = shape.numel()
    like = torch.get_default_dtype() if op.index_input else x.dtype
    basis = torch.eye(size, dtype=like).view(size, *shape)
    return torch.stack([op(x, entry) for entry in basis])


def met_features(op: LinearOp, x: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Input and output feature of each entry of a weight, by which outputs it moves for which inputs."""
    size = shape.numel()
    outputs = torch.empty(size, dtype=torch.long)
    inputs = torch.empty(size, dtype=torch.long)
    if op.index_input:
        x = torch.arange(op.in_features).view(-1, *(1,) * (x.dim() - 1))
        moved = design(op, x, shape) != 0  # [entries, words, ..., out]
        moved = moved.flatten(2, -2).any(2) if moved.dim() > 3 else moved
        return moved.any(2).long().argmax(1), moved.any(1).long().argmax(1)
    single = [op.scale(torch.ones_like(x), row.expand(1, -1)) for row in torch.eye(op.in_features)]
    moved = torch.stack([design(op, part, shape) for part in single]).abs()  # [in, entries, *output]
    for entry in range(size):
        per_input = moved[:, entry]
        inputs[entry] = int(per_input.flatten(1).sum(1).argmax())
        outputs[entry] = _moved_output(op, per_input.sum(0))
    return inputs, outputs


def _moved_output(op: LinearOp, y: Tensor) -> int:
    scores = [float(op.scale(y, row.expand(1, -1)).sum()) for row in torch.eye(op.out_features)]
    return max(range(len(scores)), key=scores.__getitem__)
