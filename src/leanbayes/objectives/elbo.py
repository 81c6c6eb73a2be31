"""The training objective: the negative ELBO per example, with the one scale that is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from leanbayes._apart import draws_by_itself, folds_apart
from leanbayes._components import every_component, mixture_parts, per_row
from leanbayes._inputs import call, check_no_nan, output_tensor, rows
from leanbayes._kl import kl
from leanbayes._owners import derived, owners, settled
from leanbayes._rows import example_axes, examples_first
from leanbayes._sampling import Sampling, Stream, current_frame, current_sampling, fold, one_pass
from leanbayes.nn._replica import is_compiled
from leanbayes.objectives.likelihoods import Categorical, Likelihood
from leanbayes.objectives.steps import StepCounter, stop_looking
from leanbayes.posteriors._divergence import Mixture


class Terms(NamedTuple):
    """What an `ELBO` returns.

    Attributes:
        loss: Per example: ``nll + weight * kl / dataset_size``; minimise this.
        nll: Negative log-likelihood, summed over an example's targets, averaged over examples.
        kl: The model's whole KL divergence in nats.
        outputs: The model's outputs ``[S, B, ...]``, one slice per sample and component.
    """

    loss: Tensor
    nll: Tensor
    kl: Tensor
    outputs: Tensor


class ELBO(nn.Module):
    """The negative evidence lower bound per example: ``nll + weight * kl / dataset_size``.

    The KL is computed in `forward`, so this module is what `DistributedDataParallel` and FSDP wrap and what
    `torch.compile` compiles. The loss does not depend on the batch size, on gradient accumulation (average the
    micro-batches) or on the number of ranks, and ranks draw different noise even if they share a seed. Each member of a
    `DeepEnsemble` gets the gradient it would have as a separate network; the reported loss is their average.

    Args:
        model: A converted model (a plain one has no KL).
        dataset_size: Number of training examples over all ranks; targets inside one example do not count.
        likelihood: How outputs explain targets.
        kl_weight: A number, or a schedule of the optimiser step: `LinearAnneal`, `StepAnneal` or any callable
            ``step -> weight``. Steps are counted when an optimiser of the model's parameters steps.
        components: For families with a shared component index: "average" the components' log-likelihoods, or take
            that of the "mixture" (log-mean-exp over components and samples).
        tile: Run every component on the batch, instead of drawing one per example. If parts with their own components
            were converted one by one, there are as many samples as the largest part has components, spread evenly over
            each part.
        samples: Draws per component (and example). Learned mixing (`EMP`, `ECMP`) compares draws and takes at least two
            in training.
        mixture: How `kl` treats mixtures.

    Example:
        >>> import torch, leanbayes as lb
        >>> model = lb.bayesianize(torch.nn.Linear(3, 2), lb.Rank1())
        >>> elbo = lb.ELBO(model, dataset_size=1000)
        >>> terms = elbo(torch.randn(8, 3), torch.randint(2, (8,)))
        >>> terms.loss.backward()
        >>> terms.outputs.shape
        torch.Size([4, 8, 2])
    """

    step: Tensor
    weight_now: Tensor

    def __init__(
        self,
        model: nn.Module,
        dataset_size: int | None = None,
        likelihood: Likelihood | None = None,
        kl_weight: float | Callable[[int], float] = 1.0,
        components: Literal["average", "mixture"] = "average",
        tile: bool = True,
        samples: int = 1,
        *,
        mixture: Mixture = "mean",
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(f"ELBO takes an nn.Module, not {type(model).__name__}")
        if dataset_size is None:
            raise TypeError(
                "ELBO needs dataset_size, the number of training examples over all ranks: ELBO(model, 50_000)"
            )
        if not _is_count(dataset_size):
            raise ValueError(f"dataset_size is a positive number of examples, not {dataset_size!r}")
        if not callable(kl_weight) and not isinstance(kl_weight, (Real, Tensor)):
            raise TypeError(f"kl_weight takes a number from 0 or a schedule, not {kl_weight!r}")
        if not isinstance(tile, bool):
            raise ValueError(f"tile is True or False, not {tile!r}")
        if components not in ("average", "mixture"):
            raise ValueError(f"components is 'average' or 'mixture', not {components!r}")
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise ValueError(f"samples is a whole number from 1, not {samples!r}")
        if likelihood is not None and not isinstance(likelihood, Likelihood):
            raise TypeError(f"likelihood takes one such as lb.Categorical(), not {likelihood!r}")
        self.model = model
        self.likelihood = Categorical() if likelihood is None else likelihood
        self.dataset_size = int(dataset_size)
        self.kl_weight: float | Callable[[int], float] = kl_weight
        self.components = components
        self.tile = tile
        self.samples = samples
        self.mixture: Mixture = mixture
        reference = next(model.parameters(), torch.zeros(()))
        self.register_buffer("step", torch.zeros((), dtype=torch.long, device=reference.device))
        self.register_buffer("weight_now", torch.ones((), device=reference.device), persistent=False)
        # The same as `step`, on the host: reading a buffer would stop a GPU's queue.
        self._count = 0
        # Shapes of one example's targets and outputs, once a batch has passed the checks.
        self._seen: tuple[torch.Size, torch.Size] | None = None
        self._set_weight()
        self.register_load_state_dict_post_hook(_refresh_weight)
        self._counter = StepCounter(self)

    def forward(self, x: Any, y: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None) -> Terms:
        """Run the model on a batch and compute the loss.

        Args:
            x: A tensor ``[B, ...]``, a mapping of tensors (passed by keyword) or a tuple (by position).
            y: Targets ``[B, ...]``.
            weights: How often each example counts, ``[B]``, from 0.
            mask: Which target elements count, one entry for each: shaped as y, without the class axis where y holds
                probabilities.
        """
        if self.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._counter.before_pass()
        state = current_sampling()
        batch_dim = state.batch_dim
        batch = rows(x, batch_dim)
        # Of outputs that have so many entries on two axes, the targets say which is that of the examples.
        if y is None:
            raise TypeError("an ELBO compares outputs with targets: elbo(x, y) takes y, a tensor, not None")
        _check_tensors(y=y, weights=weights, mask=mask)
        axis = next(iter(example_axes([y.shape], [batch], batch_dim)), 0)
        y = examples_first(y, batch, batch_dim)
        mask = None if mask is None else examples_first(mask, batch, batch_dim)
        self._check_sizes(y, batch)
        self._check_weights(weights, batch)
        passed = self._run_checked(x, y, state, batch, axis)
        outputs = passed.outputs
        scores = self.likelihood.per_example(self.likelihood.training_score(outputs, y), mask)  # [S, B]
        per_example = scores
        if self.components == "mixture":
            per_example = torch.logsumexp(scores, 0) - math.log(scores.shape[0])
        if weights is not None:
            weights = weights.to(scores.dtype)
            per_example = per_example * weights
        nll = -per_example.mean()
        loss = torch.addcmul(
            nll, self.weight_now.to(nll.device), passed.divergence.to(nll.device), value=1 / self.dataset_size
        )
        if passed.choices:
            loss = loss + _choice_gradient(passed.choices, scores if weights is None else scores * weights)
        return Terms(loss, nll, passed.divergence, outputs)

    if TYPE_CHECKING:
        # To type checkers, a call of a module gives anything.
        def __call__(self, x: Any, y: Tensor, *, weights: Tensor | None = None, mask: Tensor | None = None) -> Terms:
            """See `forward`."""
            ...

    def advance(self) -> None:
        """Count one optimiser step; needed where no `torch.optim` optimiser steps, or a CUDA graph replays it."""
        self._count += 1
        self.step.fill_(self._count)
        self._set_weight()

    def extra_repr(self) -> str:
        """The settings."""
        return f"dataset_size={self.dataset_size}, kl_weight={self.kl_weight}, components={self.components!r}"

    def _layout(self, state: Sampling, batch: int) -> Sampling:
        """The sampling state for one batch: how many samples are folded, and which components they use."""
        samples = 1 if state.mean is True else self.samples
        if self._learns_choices() and self.training and torch.is_grad_enabled() and state.mean is not True:
            if self.components == "mixture":
                raise ValueError(
                    "components='mixture' is not offered with learn_mixing=True, whose gradient compares single draws; "
                    "use components='average'"
                )
            samples, state = max(samples, 2), state.replace(scores_choices=True)
        parts = mixture_parts(self.model)
        if not parts or not isinstance(state.component, str) or state.component != "random":
            return state if state.n == samples else state.replace(n=samples)
        like = next(self.model.parameters())
        if not self.tile and state.mean is not True:
            assigned = per_row(parts, samples * batch, like, state)
            return state.replace(n=samples, assigned=assigned, whole_gradients=True)
        return every_component(parts, samples, like, state.replace(whole_gradients=True))

    def _learns_choices(self) -> bool:
        """Whether the gradient of something in the model compares two draws."""

        def ask() -> bool:
            return any([owner.needs_two_draws for owner in owners(self.model, "needs_two_draws")])

        return derived(self.model, "needs two draws", ask)

    def _run(self, x: Any, state: Sampling, batch: int, axis: int) -> _Passed:
        with settled(self.model):
            spec = self._layout(_apart_from_other_ranks(state), batch)
            with one_pass(spec, spec.n * batch, self.model, measured=True):
                output = output_tensor(call(self.model, fold(x, spec.n, state.batch_dim)))
                frame = current_frame()
                divergence = kl(self.model, self.mixture)
        output = examples_first(output, spec.n * batch, state.batch_dim, known=axis)
        outputs = _split_rows(output, spec.n, batch)
        return _Passed(outputs, divergence, [] if frame is None else frame.choices)

    def _run_checked(self, x: Any, y: Tensor, state: Sampling, batch: int, axis: int) -> _Passed:
        """Run the model; bad values are reported before they can move its statistics."""
        if not self._looks_at(y):
            passed = self._run(x, state, batch, axis)
            self._check_outputs_known(passed.outputs)
            return passed
        stop_looking()
        check_no_nan(x)
        if self._seen is not None and self._seen[0] == y.shape[1:]:
            self.likelihood.check(torch.empty((1, batch, *self._seen[1]), device="meta"), y)
            return self._run(x, state, batch, axis)
        if self._seen is None:
            self._check_apart(x, state)
        # What fits the labels is known only once the model has run: keep what a failing run would change.
        kept = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        passed = self._run(x, state, batch, axis)
        try:
            self.likelihood.check(passed.outputs, y)
            lacking = self.likelihood.lacks_outputs(passed.outputs)
            if lacking is not None:
                if _world_size() > 1:
                    self._check_outputs_known(passed.outputs)
                self.likelihood.add_outputs_(lacking)
        except (TypeError, ValueError):
            with torch.no_grad():
                for name, buffer in self.model.named_buffers():
                    buffer.copy_(kept[name])
            raise
        self._seen = (y.shape[1:], passed.outputs.shape[2:])
        return passed

    def _looks_at(self, values: Tensor) -> bool:
        """Whether values are checked."""
        # Looking at them stops a GPU's queue, so there it is done on the first step alone; compiled code never looks.
        return not torch.compiler.is_compiling() and (values.device.type == "cpu" or self._seen is None)

    def _check_apart(self, x: Any, state: Sampling) -> None:
        """Raise where folded samples would mix, found on a few rows of the first batch."""
        chosen = not isinstance(state.component, str)
        folds = self.samples > 1 or (self.tile and not chosen and mixture_parts(self.model))
        # Processes would have to try it all together, and what is held may not be drawn for other rows.
        if not folds or _world_size() > 1 or current_frame() is not None or is_compiled(self.model):
            return
        # What fails with a few rows may work with those that there are, and says by itself what is wrong.
        model, axis = self.model, state.batch_dim
        if draws_by_itself(model, x, axis) or folds_apart(model, x, axis, when_in_doubt=True):
            return
        parts = mixture_parts(model)
        otherwise = " and tile=False, or one component at a time: with lb.sampling(component=k)" if parts else ""
        raise ValueError(
            "folded samples mix in this model: it moves its examples to another axis, gives a layer rows that are no "
            "examples, or lets the rows of a batch interact; keep the examples on the first axis (or say which with "
            f"lb.sampling(batch_dim=...)), or train with samples=1{otherwise}"
        )

    def _check_outputs_known(self, outputs: Tensor) -> None:
        count = self.likelihood.lacks_outputs(outputs)
        if count is not None:
            name = type(self.likelihood).__name__
            raise ValueError(
                f"a learned precision for each of {count} outputs cannot be created in compiled code, or once the "
                f"model is in several processes; say how many there are: {name}('learned', outputs={count})"
            )

    def _check_sizes(self, y: Tensor, batch: int) -> None:
        if batch == 0:
            raise ValueError("the batch is empty, so its loss has no mean; leave it out")
        if y.shape[:1] != (batch,):
            raise ValueError(f"the input has {batch} examples, but the targets have shape {tuple(y.shape)}")
        total = batch * _world_size()
        # Batches of an evaluation are of other data.
        if self.training and total > self.dataset_size:
            raise ValueError(
                f"dataset_size={self.dataset_size} is smaller than the batch of {total} examples; it counts the "
                "training examples over all ranks, not batches"
            )

    def _check_weights(self, weights: Tensor | None, batch: int) -> None:
        if weights is None:
            return
        # Of another shape they could spread over other examples.
        if weights.shape != (batch,):
            raise ValueError(f"weights of shape {tuple(weights.shape)} do not fit {batch} examples; give one for each")
        if self._looks_at(weights) and not bool(((weights >= 0) & weights.isfinite()).all()):
            raise ValueError(
                "weights say how often each example counts: finite numbers from 0, but these reach from "
                f"{float(weights.min()):g} to {float(weights.max()):g}"
            )

    def _apply(self, *args: Any, **kwargs: Any) -> ELBO:
        moved = super()._apply(*args, **kwargs)
        # Half precision would round the weight: the KL is in float32, whatever dtype the model has.
        self.weight_now = self.weight_now.float()
        self._set_weight()
        return moved

    def _set_weight(self) -> None:
        weight = self.kl_weight(self._count) if callable(self.kl_weight) else float(self.kl_weight)
        if not 0 <= weight < math.inf:
            raise ValueError(f"the KL weight must be a finite number from 0, not {weight!r}")
        self.weight_now.fill_(weight)

    def after_step(self) -> None:
        """Called by `StepCounter` after a step of the optimiser."""
        # A recording would count the same step again and again; who plays it calls `advance`.
        if not (self.step.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.advance()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_counter": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._counter = StepCounter(self)


class _Passed(NamedTuple):
    """What a pass through the model gave: outputs ``[S, B, ...]``, the KL, and what learned mixing has chosen."""

    outputs: Tensor
    divergence: Tensor
    choices: list[Tensor]


def _choice_gradient(choices: list[Tensor], scores: Tensor) -> Tensor:
    """Zero, with the gradient that the NLL has in the log-probabilities of drawn choices.

    The score-function estimate, for which the other samples' NLL of the same example is the baseline; see also
    `leanbayes.posteriors._learned_choice`.

    Args:
        choices: Log-probabilities of what was chosen, ``[S]`` for all rows of a sample or ``[S * B]``.
        scores: Log-likelihoods ``[S, B]``.
    """
    cost = -scores.detach()
    others = (cost.sum(0) - cost) / (len(cost) - 1)
    advantage = cost - others
    total = torch.zeros((), dtype=cost.dtype, device=cost.device)
    for log_prob in choices:
        per_row = log_prob if log_prob.numel() == cost.numel() else log_prob.unsqueeze(1).expand(cost.shape)
        change = (per_row - per_row.detach()).reshape(cost.shape)
        total = total + (advantage * change.to(cost.dtype)).mean()
    return total


def _is_count(value: Any) -> bool:
    """Whether it is a whole number from 1, of whatever type."""
    try:
        return not isinstance(value, (bool, str)) and int(value) == value and value >= 1
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def _check_tensors(**values: Any) -> None:
    """Raise if something is not a tensor; what is left out is None."""
    for name, value in values.items():
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, not {type(value).__name__}; convert it with torch.as_tensor")


def _refresh_weight(module: ELBO, incompatible: Any) -> None:
    module._count = int(module.step)
    module._set_weight()


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _apart_from_other_ranks(state: Sampling) -> Sampling:
    """A state whose noise differs between ranks, also where all were seeded alike; one process is left as it is."""
    if _world_size() == 1 or state.generator is not None or state.streams is not None:
        return state
    world, rank, compiling = _world_size(), dist.get_rank(), torch.compiler.is_compiling()
    if state.stream is None:
        common = torch.randint(2**31, ())
    elif compiling:
        common = state.stream.next_key()
    else:
        common = torch.randint(2**31, (), generator=state.stream.generator(torch.device("cpu")))
    seed = common * world + rank
    return state.replace(stream=Stream(seed if compiling else int(seed)))


def _split_rows(output: Tensor, n: int, batch: int) -> Tensor:
    """``[n * B, ...]`` as ``[n, B, ...]``."""
    if output.dim() == 0 or output.shape[0] != n * batch:
        raise ValueError(
            f"the model returned {tuple(output.shape)} for {n} folded samples of {batch} examples; expected "
            f"{n * batch} rows: the model must treat the rows of a batch alike"
        )
    return output.unflatten(0, (n, batch))
