"""What an estimator is given, and which one a layer uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from leanbayes._estimator_registry import Estimator, estimator, estimators_for, is_estimator
from leanbayes._sampling import Frame, Sampling, current_frame
from leanbayes.ops import LinearOp, UnevenRowsError, rows_per_sample
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors._base import Posterior


# Not frozen: it is made for every call of a layer, and one that is takes three times as long to make.
@dataclass(eq=False, slots=True)
class Call:
    """One application of a layer: draw ``op(x, w) + b`` for random w (and possibly random b).

    Attributes:
        op: The layer's op.
        x: Input, its rows at `batch_dim`, samples outermost.
        weight: The random weight.
        bias: A random bias, a point, or None.
        spec: The sampling state.
        batch_dim: Axis of the rows.
        zero_mean: Whether the means of the random weights are dropped.
        path: The layer's name, for messages.
    """

    op: LinearOp
    x: Tensor
    weight: RandomParameter
    bias: RandomParameter | Tensor | None
    spec: Sampling
    batch_dim: int = 0
    zero_mean: bool = False
    path: str = ""

    @property
    def rows(self) -> int:
        """Number of rows, samples included."""
        return self.x.shape[self.batch_dim]

    def weights(self) -> Tensor:
        """Drawn weights ``[n, *shape]``, one for all rows of a sample."""
        return self._stacked(self.weight)

    @property
    def draws_copies(self) -> bool:
        """Whether the output is always that of one of a few copies of the layer."""
        bias = not isinstance(self.bias, RandomParameter) or self.bias.draws_copies
        return self.weight.draws_copies and bias and not self.zero_mean and not self.op.index_input

    def choice(self) -> Tensor:
        """Which copy each sample draws ``[n]``."""
        return self.weight.choice(self.spec.n, self.spec)

    def copies(self) -> tuple[Tensor, Tensor | None]:
        """All copies of the weight ``[K, *shape]``, and those of the bias ``[K, out]``, or a point ``[out]``."""
        bias = self.bias.posterior.stack() if isinstance(self.bias, RandomParameter) else self.bias
        return self.weight.posterior.stack(), bias

    def biases(self) -> Tensor | None:
        """The bias: a point ``[out]``, or draws ``[n, out]``."""
        if not isinstance(self.bias, RandomParameter):
            return self.bias
        return self._stacked(self.bias)

    def _stacked(self, parameter: RandomParameter) -> Tensor:
        drawn = self.drawn(parameter)
        return drawn.unsqueeze(0) if self.spec.n == 1 else drawn

    def drawn(self, parameter: RandomParameter) -> Tensor:
        """Draws of the weight or the bias ``[n, *shape]``; that of a single sample ``[*shape]``."""
        n, spec = self.spec.n, self.spec
        return parameter.deviations(n, spec) if self.zero_mean else parameter.draws(n, spec)


def applicable(posterior: Posterior, ops: Sequence[LinearOp]) -> list[Estimator]:
    """The estimators that can use what a posterior offers and that all ops on its weight admit, preferred first."""
    return [each for each in estimators_for(posterior.offers) if all(_admits(op, each, ops) for op in ops)]


def _admits(op: LinearOp, each: Estimator, ops: Sequence[LinearOp]) -> bool:
    if op.whole_weights and not each.shares_weight:
        return False
    if each.scales_input:
        return not op.index_input and op.same_axes(ops[0])
    return True


def resolve(wanted: str, posterior: Posterior, ops: Sequence[LinearOp], family: str, once: bool) -> tuple[str, str]:
    """The estimator to use for one vector per example, and that for all other inputs.

    Args:
        wanted: The name that was asked for, or "auto".
        posterior: That of the weight.
        ops: What the weight is used in.
        family: The method's name.
        once: Whether the weight is known to be used once in a pass.

    Raises:
        ValueError: If the one that was asked for does not apply; the message lists those that do.
    """
    found = applicable(posterior, ops)
    if wanted != "auto":
        names = tuple(each.name for each in found)
        if wanted not in names:
            known = wanted in {each.name for each in estimators_for(posterior.offers)}
            tied = " and the layers that its weight is tied to" if known and len(ops) > 1 else ""
            unknown = "" if is_estimator(wanted) else " (no estimator has that name)"
            kind = type(ops[0]).__name__
            raise ValueError(
                f"estimator {wanted!r} does not apply to {family} on {kind}{tied}{unknown}; it offers {names}"
            )
        return wanted, wanted
    general = next(each.name for each in found if each.one_weight and each.preference)
    if once and posterior.gaussian:
        exact = (each.name for each in found if each.exact_on_vectors or each.name == general)
        return next(exact), general
    return general, general


def draw(name: str, call: Call) -> Tensor:
    """Draw a layer's output by an estimator, as all uses of its weight in this pass do.

    In joint mode, where the rows are no examples of the model (windows of an image, frames of a film), and in
    predictions where that is quicker, one draw per sample serves all rows.
    """
    frame = current_frame()
    if call.spec.n > 1:
        _check_samples(frame, call)
    shared = call.spec.joint
    chosen = estimator(name)
    if call.spec.may_share_rows() and chosen.sharing is not None:
        chosen, shared = estimator(chosen.sharing), True
    # `local` is had by name alone where it is not exact: what it does to positions, it does to windows.
    if not shared and chosen.one_weight and _other_rows(frame, call):
        shared = True
    if shared and not chosen.joint:
        chosen = estimator("weight")
    shared = shared or chosen.shares_weight
    if frame is not None:
        chosen, shared = _agreed(frame, chosen, shared, call)
    if shared and not call.spec.joint:
        call.spec = call.spec.jointly()
    return chosen.function(call)


def _check_samples(frame: Frame | None, call: Call) -> None:
    """Raise where it is unclear which of the folded samples a row belongs to."""
    n, rows = call.spec.n, None if frame is None or frame.of_layer else frame.rows
    if not rows or rows % n:
        rows_per_sample(call.rows, n)
        return
    # Some of the rows may be as many of each sample, as valid tokens are, or not, as where a random layer chose them.
    # Predictions can do without folding, so they do not rely on it.
    if call.rows % (rows if call.spec.marginal else n):
        raise UnevenRowsError(
            f"a layer got {call.rows} rows where the model has {rows}, so it is unclear which of the {n} folded "
            "samples a row belongs to; draw one sample at a time, in an ELBO by tile=False and samples=1"
        )


def _other_rows(frame: Frame | None, call: Call) -> bool:
    """Whether a layer sees another number of rows than the model."""
    if frame is None or frame.of_layer or frame.rows == call.rows:
        return False
    flattened = call.op.one_position(call.x) and frame.rows is not None and call.rows > frame.rows
    if call.spec.n > 1 and call.spec.batch_dim > 0 and flattened:
        raise ValueError(
            f"a layer got {call.rows} rows where the model has {frame.rows} on axis {call.spec.batch_dim}, so it is "
            f"unclear which of the {call.spec.n} folded samples a row belongs to; draw one sample at a time"
        )
    return True


def _agreed(frame: Frame, chosen: Estimator, shared: bool, call: Call) -> tuple[Estimator, bool]:
    """The estimator that a weight was first drawn by in this pass, where it can serve here too."""
    before = frame.uses.get(id(call.weight.identity))
    if before is None:
        frame.uses[id(call.weight.identity)] = (chosen.name, shared)
        return chosen, shared
    name, for_all_rows = before
    earlier = estimator(name)
    if for_all_rows or (name == chosen.name and not shared and earlier.one_weight):
        return earlier, for_all_rows
    layer = call.path or "the layer"
    if not earlier.one_weight:
        raise RuntimeError(
            f"the weight of {layer} is used again in one pass after estimator {name!r}, which draws outputs and keeps "
            "no weight; choose an estimator that draws one weight for all uses, such as 'flipout' or 'weight'"
        )
    raise RuntimeError(
        f"the weight of {layer} was drawn for each of {frame.rows} examples by estimator {name!r} and is used again in "
        f"the same pass on {call.rows} rows by {chosen.name!r}; choose estimator='weight' for it"
    )
