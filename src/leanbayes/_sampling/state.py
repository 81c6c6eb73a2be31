"""The sampling state: how the layers of a converted model draw. Every thread has its own."""

from __future__ import annotations

import dataclasses
import enum
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from leanbayes._sampling.frames import Frame
from leanbayes._sampling.streams import Stream, check_seed

Where = bool | Callable[[str, torch.nn.Module], bool]


@dataclass(frozen=True, eq=False)
class Assigned:
    """Components that were chosen for one group beforehand.

    Attributes:
        index: The component of each sample, whole numbers or a tensor ``[n]``; or that of each row, ``[rows]``.
        per_row: Whether it counts rows.
        cycle: Start and stride where the components take turns: that of sample s is ``(start + s) // stride % K``.
            Computed so, they need not be copied to a device.
    """

    index: tuple[int, ...] | Tensor
    per_row: bool = False
    cycle: tuple[int, int] | None = None


# eq=False: a component may be a tensor, whose == is not a bool.
@dataclass(frozen=True, eq=False)
class Sampling:
    """How layers draw. Read it with `current_sampling`, change it with `sampling`.

    Attributes:
        n: Samples folded in the batch axis, sample index outermost.
        joint: One draw per sample for all rows; otherwise the layer's estimator decides.
        mean: Use posterior means only, everywhere or where a selector says.
        zero_mean: Drop the posterior means, everywhere or where a selector says.
        estimator: Overrides the layers' own estimators.
        component: A mixture component for all rows, ``"random"``, ``"all"`` (sample s uses component s % K), or a
            tensor ``[rows]`` with the component of each row.
        batch_dim: Axis of the examples in inputs of three and more axes (1 for sequence-first models).
        generator: Source of all draws, eager only.
        stream: Source of all draws that has a seed of its own.
        streams: One such source per sample, so that a sample does not depend on how samples are chunked.
        assigned: By ``id`` of a component group's identity, the components that `ELBO` and `predict` have chosen.
        scores_choices: Whether the objective adds the score of drawn choices to the gradient of learned mixing.
        whole_gradients: Whether each member of an ensemble gets the gradient of one network, although the loss is
            averaged over the members.
        marginal: Whether the rows of one sample may share their noise, as only the distribution of each example counts;
            layers then draw in the fastest way that has this distribution.
        kept: What does not change between the passes of one prediction, such as scales, by posterior; None computes it
            for every pass.
    """

    n: int = 1
    joint: bool = False
    mean: Where = False
    zero_mean: Where = False
    estimator: str | None = None
    component: int | str | Tensor = "random"
    batch_dim: int = 0
    generator: torch.Generator | None = None
    stream: Stream | None = None
    streams: tuple[Stream, ...] | None = None
    assigned: Mapping[int, Assigned] = field(default_factory=dict)
    scores_choices: bool = False
    whole_gradients: bool = False
    marginal: bool = False
    kept: dict[Any, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or isinstance(self.n, bool) or self.n < 1:
            raise ValueError(f"sampling(n=...) takes a whole number of samples from 1, not {self.n!r}")
        if self.mean is True and self.zero_mean is True:
            raise ValueError("sampling(mean=True, zero_mean=True) leaves nothing to compute; choose one of the two")
        if isinstance(self.component, str) and self.component not in ("random", "all"):
            raise ValueError(f"component is 'random', 'all' or an index, not {self.component!r}")
        if isinstance(self.component, int) and self.component < 0:
            raise ValueError(f"component counts from 0; {self.component} is negative")

    def replace(self, **changes: Any) -> Sampling:
        """This state with some fields changed."""
        return dataclasses.replace(self, **changes)

    def jointly(self) -> Sampling:
        """This state with one draw per sample for all rows, the same object for all layers of a pass."""
        if torch.compiler.is_compiling():
            return self.replace(joint=True)
        if "_jointly" not in self.__dict__:
            self.__dict__["_jointly"] = self.replace(joint=True)
        return self.__dict__["_jointly"]

    def may_share_rows(self) -> bool:
        """Whether one draw per sample may serve all its rows: asked for, or quicker where nobody said how to draw."""
        return self.joint or (self.marginal and self.estimator is None and not isinstance(self.component, Tensor))

    def source(self, n: int) -> Sampling:
        """A state for n draws outside of any pass, from the same source of noise."""
        return Sampling(n=n, generator=self.generator, stream=self.stream)

    def leaves_components_open(self) -> bool:
        """Whether every component is to be drawn."""
        return not self.assigned and isinstance(self.component, str) and self.component == "random"

    def is_default(self) -> bool:
        """Whether layers draw as they do outside of any context; asked in eager code by every layer."""
        if "_default" not in self.__dict__:
            self.__dict__["_default"] = self._is_default()
        return self.__dict__["_default"]

    def _is_default(self) -> bool:
        plain = self.n == 1 and self.mean is False and self.zero_mean is False and self.leaves_components_open()
        undirected = self.generator is None and self.stream is None and self.streams is None
        return plain and undirected and not self.joint and self.estimator is None and self.batch_dim == 0


class _Local(threading.local):
    """The open contexts and passes of this thread, and how many second runs of checkpointed blocks are under way."""

    def __init__(self) -> None:
        self.states: list[Sampling] = [Sampling()]
        self.frames: list[Frame] = []
        self.reruns = 0


LOCAL = _Local()


def current_sampling() -> Sampling:
    """The sampling state in force in this thread."""
    return LOCAL.states[-1]


def current_frame() -> Frame | None:
    """The frame of the pass in progress or of the held context; None for a layer that is called on its own."""
    return LOCAL.frames[-1] if LOCAL.frames else None


class using:  # noqa: N801 - reads as prose: with using(state)
    """Context manager that puts a ready-made `Sampling` in force, with a frame of its own where one is given."""

    def __init__(self, state: Sampling, frame: Frame | None = None) -> None:
        self.state = state
        self.frame = frame
        self.frames = 0

    def __enter__(self) -> Sampling:
        self.frames = len(LOCAL.frames)
        LOCAL.states.append(self.state)
        if self.frame is not None:
            LOCAL.frames.append(self.frame)
        return self.state

    def __exit__(self, *error: object) -> None:
        # Ctrl-C skips the hooks that close a pass: whatever was opened inside ends here.
        while len(LOCAL.frames) > self.frames:
            LOCAL.frames.pop()
        LOCAL.states.pop()


class _Given(enum.Enum):
    NOT = 0


# A member of an enumeration: earlier compilers do not follow a plain object as a default.
_INHERIT: Any = _Given.NOT


class sampling:  # noqa: N801 - reads as prose: with sampling(n=8)
    """Changes how converted models draw while the context lasts, in this thread.

    Arguments that are not given keep the value of an enclosing context.

    Args:
        n: Samples folded in the batch axis; the model's input must be folded with `fold`.
        mean: Use the posterior means: True for all layers, or a selector. Families with a shared component index
            use component 0 unless `component` says otherwise.
        zero_mean: Drop the means of the random weights: True for all layers, or a selector.
        seed: Draws are repeatable whatever ran before and whatever other threads do; torch's own generators are not
            touched. Eager and compiled code draw different numbers.
        component: ``"random"``, ``"all"`` (sample s uses component s % K, n must be a multiple of K), an index, or a
            tensor ``[rows]`` with that of each row, where rows have weights of their own.
        estimator: Overrides the layers' own estimators; recurrent and bilinear layers and norms keep theirs where it
            does not apply to them.
        hold: One draw for the whole context: every call of the model uses the same weights (eager only). Gradients go
            back through the draw once: add up the losses of several calls before ``backward``.
        joint: One draw per sample for all rows, whatever the layers' estimators.
        batch_dim: Axis of the examples in inputs of three and more axes; 1 for sequence-first models.
        generator: A `torch.Generator` to draw from (eager only).

    Example:
        >>> import torch, leanbayes as lb
        >>> model = lb.bayesianize(torch.nn.Linear(3, 2), lb.MeanField())
        >>> x = torch.ones(5, 3)
        >>> with lb.sampling(n=4, seed=0):
        ...     outputs = lb.split(model(lb.fold(x, 4)), 4)
        >>> outputs.shape
        torch.Size([4, 5, 2])
    """

    def __init__(
        self,
        n: int = _INHERIT,
        *,
        mean: Where = _INHERIT,
        zero_mean: Where = _INHERIT,
        seed: int | None = None,
        component: int | str | Tensor = _INHERIT,
        estimator: str | None = _INHERIT,
        hold: bool = False,
        joint: bool = _INHERIT,
        batch_dim: int = _INHERIT,
        generator: torch.Generator | None = _INHERIT,
    ) -> None:
        given = {
            "n": n,
            "mean": mean,
            "zero_mean": zero_mean,
            "component": component,
            "estimator": estimator,
            "joint": joint,
            "batch_dim": batch_dim,
            "generator": generator,
        }
        self.changes = {name: value for name, value in given.items() if value is not _INHERIT}
        if "component" in self.changes:
            self.changes["assigned"] = {}
        if "generator" in self.changes:
            self.changes |= {"stream": None, "streams": None}
        self.hold = hold
        self.seed = seed
        self.entered: list[using] = []
        # Bad arguments are reported where they are written, not where the context is entered.
        if not torch.compiler.is_compiling():
            _check_given({**self.changes, "hold": hold})
            if seed is not None:
                check_seed(seed)
                if isinstance(generator, torch.Generator):
                    raise ValueError("sampling takes seed= or generator=, not both: either says where draws come from")
        current_sampling().replace(**self.changes)

    def __enter__(self) -> Sampling:
        state = current_sampling().replace(**self.changes)
        if self.seed is not None:
            state = state.replace(stream=Stream(self.seed), streams=None, generator=None)
        if self.hold:
            state = state.replace(joint=True)
        context = using(state, Frame(held=True) if self.hold else None)
        self.entered.append(context)
        return context.__enter__()

    def __exit__(self, *error: object) -> None:
        self.entered.pop().__exit__(*error)


def _check_given(changes: dict[str, Any]) -> None:
    """Raise where an argument is of no type that it takes; not in `Sampling`, which layers and passes make anew."""
    for name in ("mean", "zero_mean"):
        where = changes.get(name, False)
        if not isinstance(where, bool) and not callable(where):
            raise TypeError(f"sampling({name}=...) takes True, False or a selector such as lb.norms(), not {where!r}")
    for name in ("hold", "joint"):
        if not isinstance(changes.get(name, False), bool):
            raise TypeError(f"sampling({name}=...) takes True or False, not {changes[name]!r}")
    component = changes.get("component", 0)
    if isinstance(component, bool) or not isinstance(component, (int, str, Tensor)):
        raise TypeError(f"component is 'random', 'all' or an index, not {component!r}")
    if isinstance(component, Tensor) and (component.dim() != 1 or not _holds_whole_numbers(component)):
        raise ValueError(
            "a tensor of components has one whole number for each row, [rows], not shape "
            f"{tuple(component.shape)} of {component.dtype}"
        )
    generator = changes.get("generator")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"sampling(generator=...) takes a torch.Generator, not {generator!r}")
    axis = changes.get("batch_dim", 0)
    if isinstance(axis, bool) or not isinstance(axis, int) or axis < 0:
        raise ValueError(f"sampling(batch_dim=...) takes an axis, counted from 0, not {axis!r}")


def _holds_whole_numbers(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
