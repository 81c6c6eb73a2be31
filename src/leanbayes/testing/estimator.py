"""The checks that every estimator passes, for any layer that it serves."""

from __future__ import annotations

from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor, nn

from leanbayes._estimator_registry import estimator as registered
from leanbayes._sampling import Sampling, fold, own_frame, sampling, split, using
from leanbayes.nn.layer import BayesianLayer
from leanbayes.parameter import RandomParameter
from leanbayes.testing.folding import run_apart, run_folded
from leanbayes.testing.op import design
from leanbayes.testing.statistics import assert_close, assert_mean_close, assert_same_moments, assert_same_quantiles


class EstimatorSuite:
    """Subclass it in a test module and provide a layer to draw from; pytest finds the checks.

    ::

        class TestMine(EstimatorSuite):
            estimator = "mine"

            def make_layer(self):
                return lb.nn.BayesianLayer(nn.Linear(3, 2), lb.MeanField(init_std=0.3))

            def make_input(self, rows):
                return torch.randn(rows, 3)

    Attributes:
        estimator: The registered name.
        one_weight_per_example: Whether all outputs of one example come from one draw of the weight, so that not only
            each output but their joint distribution is that of drawn weights; None is what the estimator promises.
        draws: Draws of the statistical checks.
    """

    estimator: str
    one_weight_per_example: bool | None = None
    draws: int = 4000

    def make_layer(self) -> BayesianLayer:
        """A small layer whose noise shows."""
        raise NotImplementedError

    def make_input(self, rows: int) -> Tensor:
        """An input of the layer with that many rows."""
        raise NotImplementedError

    def setup_method(self) -> None:
        """Fix the seed."""
        torch.manual_seed(0)

    def _sums(self) -> bool:
        promised = registered(self.estimator).one_weight
        return promised if self.one_weight_per_example is None else self.one_weight_per_example

    def test_outputs_are_distributed_as_those_of_drawn_weights(self) -> None:
        """Mean and variance (quantiles where tails are heavy) of each output, and of sums of outputs."""
        check_distribution(self.make_layer(), self.make_input(1), self.estimator, self.draws, sums=self._sums())

    def test_a_weight_that_is_used_twice_is_drawn_once(self) -> None:
        """Or its second use is refused, where the estimator does not promise one weight."""
        layer, x = self.make_layer(), self.make_input(2)
        with own_frame(), using(Sampling(estimator=self.estimator)):
            first = layer(x)
            if registered(self.estimator).one_weight:
                assert_close(layer(x), first, what="a layer called twice in one pass")
                return
            try:
                layer(x)
            except RuntimeError:
                return
        raise AssertionError("a second use was drawn anew without a word")

    def test_folded_samples_equal_separate_runs(self) -> None:
        """Outputs and gradients, at the same noise, with the layer's own, joint and held draws."""
        check_folding(self.make_layer(), self.make_input(2), self.estimator)

    def test_without_noise_it_is_the_plain_op(self) -> None:
        """Within 1e-5 for every component."""
        layer = self.make_layer()
        silence_(layer)
        check_silence(layer, self.make_input(2), self.estimator)

    def test_gradients_have_the_expectation_of_drawn_weights(self) -> None:
        """Of a loss that is not linear in the outputs."""
        check_expected_gradient(self.make_layer(), self.make_input(1), self.estimator)

    def test_means_can_be_dropped(self) -> None:
        """`zero_mean` leaves the distribution around the means (of the drawn component)."""
        layer, x = self.make_layer(), self.make_input(1)
        if layer.weight.posterior.heavy_tailed:
            raise SkipTest("heavy tails have no mean")
        check_distribution(layer, x, self.estimator, self.draws, sums=self._sums(), zero_mean=True)


def check_distribution(
    layer: BayesianLayer,
    x: Tensor,
    estimator: str,
    draws: int = 4000,
    *,
    reference_draws: int | None = None,
    sums: bool = True,
    zero_mean: bool = False,
) -> None:
    """Fail where outputs do not have the moments (quantiles where tails are heavy) of explicitly drawn weights.

    Args:
        layer: The layer.
        x: One example ``[1, ...]``.
        estimator: The estimator to draw with.
        draws: Number of draws from it.
        reference_draws: Number of drawn weights.
        sums: Whether sums of outputs are compared too, and so their covariances.
        zero_mean: Whether the means are dropped.
    """
    state = Sampling(n=draws, estimator=estimator, zero_mean=zero_mean)
    with torch.no_grad(), using(state):
        outputs = split(layer(fold(x, draws)), draws).flatten(1)
    reference = drawn_outputs(layer, x, reference_draws or draws, zero_mean).flatten(1)
    if sums:
        mixing = torch.randn(outputs.shape[1], 3)
        outputs = torch.cat([outputs, outputs @ mixing], 1)
        reference = torch.cat([reference, reference @ mixing], 1)
    compare = assert_same_quantiles if layer.weight.posterior.heavy_tailed else assert_same_moments
    compare(outputs, reference, what=f"outputs by {estimator}")


def drawn_outputs(layer: BayesianLayer, x: Tensor, n: int, zero_mean: bool = False) -> Tensor:
    """Outputs ``[n, B, ...]`` of explicitly drawn weights, by what each entry of the weight adds to them."""
    spec = Sampling(n=n)
    # One frame: a weight and a bias that share a component index draw it together.
    with torch.no_grad(), own_frame():
        weights = _draws(layer.weight, spec, zero_mean)  # [n, *shape]
        bias: Any = layer.bias
        if isinstance(bias, RandomParameter):
            bias = _draws(bias, spec, zero_mean)
        columns = design(layer.op, x, layer.weight.shape)  # [entries, *output]
        outputs = torch.tensordot(weights.flatten(1).to(columns.dtype), columns, 1)
        if bias is None:
            return outputs
        flat = layer.op.add_bias(outputs.flatten(0, 1), bias)
        return flat.unflatten(0, (n, -1))


def _draws(parameter: RandomParameter, spec: Sampling, zero_mean: bool) -> Tensor:
    return parameter.deviation(spec.n, spec) if zero_mean else parameter.rsample(spec.n, spec)


def check_folding(layer: BayesianLayer, x: Tensor, estimator: str, n: int = 3) -> None:
    """Fail where n folded samples are not n runs of one sample, or gradients not the mean of single ones.

    The runs of one sample keep their graphs until one backward at the end, so that noise which a later run overwrites
    shows in the gradients.
    """
    state = torch.get_rng_state()
    for name, joint in (("marginal", False), ("joint", True)):
        folded, apart = (run(layer, x, n, estimator=estimator, joint=joint) for run in (run_folded, run_apart))
        assert_close(folded, apart, what=f"{name} samples, folded against separate")
        grads = _gradient(layer, folded), _gradient(layer, apart)
        assert_close(*grads, what=f"gradients of {name} samples, folded against separate")
    check_hold(layer, x, estimator, n)
    if not torch.equal(torch.get_rng_state(), state):
        raise AssertionError("a layer drew from torch's own generator although the samples have theirs")


def check_hold(layer: BayesianLayer, x: Tensor, estimator: str, n: int) -> None:
    """Fail where a held draw changes between calls, or when samples are folded."""
    twice = _HeldTwice(layer)
    with torch.no_grad():
        first, second = run_folded(twice, x, n, estimator=estimator).unbind(-1)
        assert_close(first, second, what="two calls in one held context")
        apart = run_apart(twice, x, n, estimator=estimator)[..., 0]
        assert_close(first, apart, what="held samples, folded against separate")


class _HeldTwice(nn.Module):
    """Calls a layer twice with one held draw."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with sampling(hold=True):
            return torch.stack([self.layer(x), self.layer(x)], -1)


def _gradient(layer: nn.Module, outputs: Tensor) -> Tensor:
    """Gradient of a bounded loss, averaged over samples, in all parameters."""
    loss = torch.tanh(outputs).square().flatten(1).sum(1).mean()
    parameters = [p for p in layer.parameters() if p.requires_grad]
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    flat = [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, grads)]
    return torch.cat(flat)


def check_silence(layer: BayesianLayer, x: Tensor, estimator: str, tolerance: float = 1e-5) -> None:
    """Fail where a layer without noise is not the plain op at its mean, for each component."""
    posterior = layer.weight.posterior
    bias: Any = layer.bias
    shared = posterior.shared_index
    for k in range(posterior.components if shared else 1):
        state = Sampling(n=2, estimator=estimator, component=k if shared else "random")
        with torch.no_grad(), using(state):
            outputs = split(layer(fold(x, 2)), 2)
            point = bias.mean() if isinstance(bias, RandomParameter) else bias
            expected = layer.op(x, layer.weight.mean(k if shared else None), point)
        assert_close(outputs, expected.expand(2, *expected.shape), tolerance, "a layer without noise")


def check_expected_gradient(layer: BayesianLayer, x: Tensor, estimator: str, runs: int = 60, n: int = 30) -> None:
    """Fail where the mean gradient of a loss differs from that with drawn weights."""
    grads = []
    for name in (estimator, "weight"):
        rows = []
        for _ in range(runs):
            with using(Sampling(n=n, estimator=name)):
                rows.append(_gradient(layer, split(layer(fold(x, n)), n)))
        grads.append(torch.stack(rows).double())
    assert_mean_close(grads[0] - grads[1], 0.0, what=f"gradient by {estimator} less that of drawn weights")


def silence_(layer: nn.Module) -> None:
    """Take the noise out of everything random in a layer or model; whatever draws it knows how."""
    for part in layer.modules():
        if hasattr(type(part), "silence_"):
            part.silence_()  # pyright: ignore[reportCallIssue]
