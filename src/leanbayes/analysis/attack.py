"""The iterative fast sign attack on averaged predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._predict import predict
from leanbayes._summary import _table
from leanbayes.analysis._data import batches, check_labelled, check_scores
from leanbayes.training.seeds import derive


@dataclass(frozen=True)
class AttackCurve:
    """How an attack goes, before it (entry 0) and after each of its steps; `print` shows it as a table.

    Attributes:
        success: If targeted, the share of examples predicted as their target; otherwise the share no longer predicted
            as their label.
        entropy: Mean entropy of the predictive distribution, in nats.
        step: Length of a step.
        samples: Number of samples averaged.
        targeted: Whether examples are driven towards a class, or away from one.
        examples: Number of examples.
    """

    success: tuple[float, ...]
    entropy: tuple[float, ...]
    step: float
    samples: int
    targeted: bool
    examples: int

    def to_dict(self) -> dict[str, Any]:
        """The curve as JSON values."""
        return asdict(self) | {"success": list(self.success), "entropy": list(self.entropy)}

    def __str__(self) -> str:
        rows = [["step", "success", "entropy"]]
        both = zip(self.success, self.entropy)
        return _table(rows + [[str(i), f"{s:.2%}", f"{e:.4f}"] for i, (s, e) in enumerate(both)], ">>>")


def iterative_fast_sign(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    step: float = 0.5,
    steps: int = 10,
    samples: int = 10,
    targeted: bool = True,
    bounds: tuple[float, float] | None = (0, 255),
    seed: int = 0,
    batch_size: int = 128,
    every_step: bool = False,
) -> Tensor:
    r"""Change inputs so that a model takes them for a different class.

    Each step follows the sign of the gradient of the averaged prediction's log-likelihood, which goes through all
    samples at once:

    .. math:: x \leftarrow \mathrm{clip}\Big(x \pm \epsilon\, \mathrm{sign}\, \nabla_x
        \log \frac{1}{S} \sum_s p(y \mid x, w_s)\Big)

    with + and y the class to be mistaken for if `targeted`, otherwise with - and y the true class. Every step makes new
    draws. An enclosing `lb.sampling` applies, so ``lb.sampling(mean=True)`` attacks the means.

    Args:
        model: A converted model, a plain one or a deep ensemble, used in eval mode. Its parameters get no gradients.
        x: Inputs ``[N, ...]`` in floating point, in the units that the model takes.
        y: Classes ``[N]``.
        step: Length of a step in those units; the default is for pixels from 0 to 255.
        steps: Number of steps.
        samples: Samples whose prediction is averaged.
        targeted: Whether y are the classes to be predicted, or the true ones.
        bounds: Smallest and largest value of an input, None for no bounds.
        seed: Of the draws; torch's own generators are left alone.
        batch_size: Rows attacked at once; their samples are held for the gradient.
        every_step: Whether to return the inputs before the attack and after each step.

    Returns:
        The attacked inputs ``[N, ...]``, or ``[steps + 1, N, ...]`` with `every_step`.

    Example:
        >>> import torch, leanbayes as lb
        >>> net = lb.bayesianize(torch.nn.Linear(4, 3), lb.VarianceLayer())
        >>> x, target = torch.zeros(5, 4), torch.full((5,), 2)
        >>> lb.analysis.iterative_fast_sign(net, x, target, step=0.1, steps=3, bounds=(-1, 1)).abs().max() <= 0.3
        tensor(True)
    """
    _check(model, x, y, bounds, batch_size)
    attack = _Attack(model, step, steps, samples, targeted, bounds, seed)
    attacked = []
    for number, (part, labels) in enumerate(batches(model, x, y, batch_size)):
        path = list(attack.path(number, part, labels))
        attacked.append((torch.stack(path) if every_step else path[-1]).to(x.device))
    return torch.cat(attacked, 1 if every_step else 0)


def attack_curve(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    step: float = 0.5,
    steps: int = 10,
    samples: int = 10,
    targeted: bool = True,
    bounds: tuple[float, float] | None = (0, 255),
    seed: int = 0,
    batch_size: int = 128,
) -> AttackCurve:
    """Attack a model and predict after each step, with samples that the attack has not seen.

    Args:
        model: See `iterative_fast_sign`, as for all arguments; the attack is the same.
        x: Inputs ``[N, ...]``.
        y: Classes ``[N]``.
        step: Length of a step.
        steps: Number of steps.
        samples: Samples of the attack and of each evaluation.
        targeted: Whether y are the classes to be predicted, or the true ones.
        bounds: Smallest and largest value of an input.
        seed: Of the draws.
        batch_size: Rows attacked at once.

    Returns:
        An `AttackCurve`.
    """
    _check(model, x, y, bounds, batch_size)
    attack = _Attack(model, step, steps, samples, targeted, bounds, seed)
    sums = torch.zeros(steps + 1, 2, dtype=torch.float64)
    for number, (part, labels) in enumerate(batches(model, x, y, batch_size)):
        for taken, changed in enumerate(attack.path(number, part, labels)):
            prediction = predict(model, changed, samples, seed=derive(seed, "evaluation", number, taken))
            success = (prediction.label == labels) == targeted
            sums[taken] += torch.stack([success.double().sum(), prediction.entropy.double().sum()]).cpu()
    success, entropy = (sums / len(x)).T.tolist()
    return AttackCurve(tuple(success), tuple(entropy), step, samples, targeted, len(x))


class _Attack:
    """The settings of an attack, and its steps."""

    def __init__(
        self,
        model: nn.Module,
        step: float,
        steps: int,
        samples: int,
        targeted: bool,
        bounds: tuple[float, float] | None,
        seed: int,
    ) -> None:
        if not step > 0:
            raise ValueError(f"step is a positive length, not {step!r}")
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"steps is a whole number from 1, not {steps!r}")
        self.model = model
        self.length = step if targeted else -step
        self.steps = steps
        self.samples = samples
        self.bounds = (-math.inf, math.inf) if bounds is None else bounds
        self.seed = seed

    def path(self, number: int, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        """The inputs of one batch before the attack and after each step."""
        x = x.detach()
        yield x
        for taken in range(self.steps):
            gradient = self._gradient(x, y, derive(self.seed, "attack", number, taken))
            x = (x + self.length * gradient.sign()).clamp(*self.bounds)
            yield x

    @torch.enable_grad()
    def _gradient(self, x: Tensor, y: Tensor, seed: int) -> Tensor:
        x = x.detach().requires_grad_()
        prediction = predict(self.model, x, self.samples, seed=seed, grad=True)
        check_scores(prediction.outputs.shape[1:], y)
        return torch.autograd.grad(prediction.log_prob(y).sum(), x)[0]


def _check(model: nn.Module, x: Tensor, y: Tensor, bounds: tuple[float, float] | None, batch_size: int) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"the attack takes a model, not {type(model).__name__}")
    check_labelled(x, y, batch_size)
    if not x.is_floating_point():
        raise TypeError(f"the attack changes inputs by fractions; convert the {x.dtype} inputs to floating point")
    if bounds is None:
        return
    if not isinstance(bounds, Sequence) or len(bounds) != 2:
        raise TypeError(f"bounds are the smallest and the largest value of an input, or None, not {bounds!r}")
    low, high = float(x.min()), float(x.max())
    if not bounds[0] <= low <= high <= bounds[1]:
        raise ValueError(
            f"inputs reach from {low:g} to {high:g}, beyond bounds={bounds}; pass the range of the inputs as bounds"
        )
