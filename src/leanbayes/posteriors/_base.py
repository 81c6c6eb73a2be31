"""What every posterior offers: draws, a mean, and the views that estimators use."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leanbayes import noise
from leanbayes._owners import WithSettings
from leanbayes._sampling import Sampling
from leanbayes.noise import full_precision


# Not frozen, as many are made in every pass, and what is frozen takes three times as long to make.
@dataclass(eq=False)
class Moments:
    """Mean (None where it is zero) and variance of independent elements, in float32 or float64."""

    mean: Tensor | None
    var: Tensor


@dataclass(eq=False)
class Factors:
    """A weight and the scales of its input and output features, one row of scales per draw.

    The drawn weight is ``weight * outer(out_scale, in_scale)``, or ``weight + outer(out_scale, in_scale)`` where
    `additive`. Scales are ``[draws, features]``, or with axes of one for an op's `positions`; None stands for ones.
    """

    weight: Tensor
    in_scale: Tensor | None
    out_scale: Tensor | None
    additive: bool = False


# Elements of parameters that are joined, where calls cost more than the work in them; one by one, larger ones stay in a
# CPU's caches.
_JOINED_UP_TO = {"cpu": 1 << 17}
_ELSEWHERE = 1 << 22


def may_join(parameter: Tensor) -> bool:
    """Whether a parameter is small enough to be worth no calls of its own."""
    return parameter.numel() <= _JOINED_UP_TO.get(parameter.device.type, _ELSEWHERE)


def each_draw(function: Callable[[Tensor], Tensor], eps: Tensor) -> Tensor:
    """``function(eps)`` of noise ``[n, ...]`` and parameters ``[...]``.

    Of a single draw without its first axis: the gradient of broadcasting is a copy.
    """
    return function(eps.squeeze(0)).unsqueeze(0) if eps.shape[0] == 1 else function(eps)


class Posterior(WithSettings, ABC):
    """A distribution over one tensor.

    Subclasses give `rsample` and `mean`; the other views are optional. Nothing drawn is kept on the module.

    Attributes:
        offers: The views that estimators may use: ``"draws"`` (`rsample`, always there), ``"symmetric"`` (`deviation`,
            of independent elements whose signs may be flipped), ``"moments"``, ``"factors"``, ``"copies"``.
        gaussian: Whether linear maps of it are normal, so that its moments say all about them.
        original: Parameters that came from the plain model (frozen by `freeze=True`).
        outside_kl: Parameters that no KL term contains (weight decay may act on them).
        support: ``"real"`` or ``"positive"``.
        heavy_tailed: Whether mean and variance are infinite; the "mean" is then a location.
        has_density: Whether `log_prob` or `joint_log_prob` is there, as Monte Carlo KL terms need.
        components: Number of mixture components, 1 where there is no mixture.
        shared_index: Whether one component index serves the whole model.
        op: The op whose features its `factors` scale.
        elementwise: Whether all its parameters have the shape of the tensor and meet element by element, so that
            several of its kind can be seen as one. Said by each class for itself.
        stacked_axes: Axes of its parameters in front of those of the tensor.
        draws_copies: Whether every draw is one of a few copies as it stands, see `stack` and `choice`.
        known: What was computed of a posterior that several are joined to, whose values stay; None of others.
        laid_out: Of such a posterior, where the elements of each part lie, by parameter.
    """

    offers: frozenset[str] = frozenset({"draws"})
    gaussian: bool = False
    original: tuple[str, ...] = ()
    outside_kl: tuple[str, ...] = ()
    support: ClassVar[str] = "real"
    heavy_tailed: bool = False
    components: int = 1
    shared_index: ClassVar[bool] = False
    op: Any = None  # a `LinearOp`
    elementwise: ClassVar[bool] = False
    stacked_axes: ClassVar[int] = 0
    draws_copies: bool = False
    known: dict[str, Tensor] | None = None
    laid_out: dict[str, Any]

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Shape of the tensor that the distribution is over."""

    @abstractmethod
    def rsample(self, n: int, spec: Sampling) -> Tensor:
        """Draw n times: ``[n, *shape]``, differentiable in the parameters."""

    @abstractmethod
    def mean(self, component: int | None = None) -> Tensor:
        """The mean (of one component, where a shared index chooses among them)."""

    @abstractmethod
    def set_point_(self, value: Tensor) -> None:
        """Put the distribution where conversion of a plain weight `value` would, keeping what is learned beside it."""

    def deviation(self, n: int, spec: Sampling) -> Tensor:
        """Draws less the mean: ``[n, *shape]``."""
        return self.rsample(n, spec) - self.mean()

    def draw_measured(self, n: int, spec: Sampling, prior: Any, with_mean: bool) -> tuple[Tensor, Tensor] | None:
        """`rsample`, or `deviation`, and the divergence from a prior, where one kernel does both; None elsewhere."""
        return None

    def stack(self) -> Tensor:
        """All copies ``[K, *shape]``, where a draw is one of them."""
        raise NotImplementedError(f"{type(self).__name__} is not made of copies")

    def choice(self, n: int, spec: Sampling) -> Tensor:
        """Which copy each of n draws is ``[n]``."""
        raise NotImplementedError(f"{type(self).__name__} is not made of copies")

    def moments(self) -> Moments:
        """Mean and variance of the elements, where they are independent."""
        raise NotImplementedError(f"{type(self).__name__} has no independent elements with known moments")

    def thin_variance(self, out_axis: int) -> tuple[Tensor, Tensor] | None:
        """The variance of the elements as a product, where it is one of thin matrices and `moments` are offered.

        Args:
            out_axis: Axis of the output features.

        Returns:
            The channels, shaped as the tensor with r in the place of the output features, and ``[out, r]``.
        """
        return None

    def factors(self, rows: int, spec: Sampling) -> Factors:
        """A weight and feature scales, one draw per row."""
        raise NotImplementedError(f"{type(self).__name__} is not made of feature scales")

    def points_in_turn(self, n: int, spec: Sampling) -> Factors | None:
        """The factors of n samples as they lie in memory, where nothing has to be drawn or gathered; None elsewhere."""
        return None

    def log_prob(self, value: Tensor) -> Tensor:
        """Elementwise log density at ``[..., *shape]``, where elements are independent."""
        raise NotImplementedError(f"{type(self).__name__} has no elementwise density")

    def joint_log_prob(self, value: Tensor) -> Tensor:
        """Log density ``[...]`` of whole tensors ``[..., *shape]``; to be given where elements are correlated."""
        return self.log_prob(value).flatten(value.dim() - len(self.shape)).sum(-1)

    @property
    def has_density(self) -> bool:
        """Whether the density of a whole tensor is known."""
        kind = type(self)
        return kind.log_prob is not Posterior.log_prob or kind.joint_log_prob is not Posterior.joint_log_prob

    def divergence_terms(self, prior: Any, mixture: str, constant: bool | None) -> list[Any] | None:
        """What it adds to a model's KL, None for the divergence from its bound prior.

        A mixture with priors of its own says what its mean, sum or joint divergence is made of (see `JointTerm`).
        Numbers and `Divergence`s are asked for once, and again when an attribute of a distribution has been replaced.
        """
        return None

    def component_group(self) -> Any:
        """The group whose index serves the whole model, None where there is none."""
        return None

    def entries(self, index: Tensor) -> Posterior | None:
        """The same family over the entries ``index`` ``[K]`` of the flattened tensor, None where it is another one."""
        return None

    def silence_(self) -> None:
        """Take the noise out, in place: every draw (of one component) becomes the mean."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to take its noise out")

    def deterministic(self) -> bool:
        """Whether all draws (of one component) are equal, as for Dirac components."""
        return False

    def join_key(self) -> tuple[Any, ...] | None:
        """What it has in common with those that it can be joined with to one posterior; None where with none."""
        if not vars(type(self)).get("elementwise"):  # a subclass may have other parameters
            return None
        first = first_parameter(self)
        return (type(self), first.dtype, first.device) if may_join(first) else None

    def joined_state(self, parts: list[Any]) -> dict[str, Any]:
        """Attributes of the posterior that several are joined to, beside their parameters."""
        return {}

    @classmethod
    def measured_alone(cls, parts: list[Any]) -> list[Any]:
        """Those of several posteriors that could be joined whose divergence had better be computed on its own."""
        return []

    def together_key(self, what: str) -> tuple[Any, ...] | None:
        """What it has in common with those that are drawn in one go; None where it is alone.

        That is asked of a "draw", a "deviation", a "choice", "factors", a "mean" and "moments".
        """
        return None

    @classmethod
    def view_together(cls, parts: list[Any], view: str) -> Sequence[Any]:
        """The "mean" or the "moments" of several posteriors, in the precision in which autocast multiplies them."""
        raise NotImplementedError

    @classmethod
    def draw_together(cls, parts: list[Any], what: str, n: int, spec: Sampling) -> Sequence[Any]:
        """The draws of several posteriors with one `together_key`, each as if it were drawn alone.

        A single draw or deviation, of n = 1, is one tensor ``[*shape]``. None stands for what is better drawn alone.
        """
        raise NotImplementedError


def first_parameter(posterior: nn.Module) -> Tensor:
    """The first of `parameters()`, found quicker where it is the posterior's own."""
    for value in posterior._parameters.values():
        if value is not None:
            return value
    return next(posterior.parameters())


def inverse_softplus(value: Tensor) -> Tensor:
    """X with softplus(x) = value, accurate for small values."""
    return value + torch.log(-torch.expm1(-value))


def initial_raw(loc: Tensor, scale: float) -> nn.Parameter:
    """A parameter of the shape of `loc` whose softplus is `scale`."""
    # Not by a tensor: under torch.device("meta") it would have no value.
    raw = scale + math.log(-math.expm1(-scale))
    return nn.Parameter(torch.full_like(loc.detach(), raw))


class Elementwise(Posterior):
    """Independent elements ``transform(location + scale * noise)``; subclasses give `scale`.

    Args:
        loc: Initial location; an `nn.Parameter` is used as it is, so that tied and optimised weights stay so.
    """

    original = ("loc",)
    draw_noise: ClassVar[Callable[..., Tensor]] = staticmethod(noise.normal)

    def __init__(self, loc: Tensor) -> None:
        super().__init__()
        self.loc = loc if isinstance(loc, nn.Parameter) else nn.Parameter(loc.detach().clone())

    @property
    def shape(self) -> torch.Size:
        """See `Posterior`."""
        return self.loc.shape

    @abstractmethod
    def scale(self) -> Tensor:
        """Scale of each element, in float32 at least."""

    def scale_for(self, spec: Sampling) -> Tensor:
        """`scale`, computed once where `spec` keeps it for several passes."""
        if spec.kept is None:
            return self.scale()
        if self not in spec.kept:
            spec.kept[self] = self.scale()
        return spec.kept[self]

    def location(self) -> Tensor:
        """Location of each element, in float32 at least."""
        return full_precision(self.loc)

    def transform(self, value: Tensor) -> Tensor:
        """Map from the location-scale variable to the tensor's element."""
        return value

    def rsample(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        eps = self.draw_noise((n, *self.shape), self.loc, spec)
        location, scale = self.location(), self.scale_for(spec)
        return each_draw(lambda eps: self.transform(torch.addcmul(location, scale, eps)), eps)

    def rsample_rows(self, index: Tensor, spec: Sampling) -> Tensor:
        """Draw ``[rows, d]`` from the components ``index`` ``[rows]`` of stacked parameters ``[K, d]``."""
        eps = self.draw_noise((index.shape[0], *self.shape[1:]), self.loc, spec)
        # Not by indexing, whose gradient sorts the index.
        loc, scale = self.location().index_select(0, index), self.scale_for(spec).index_select(0, index)
        return self.transform(torch.addcmul(loc, scale, eps))

    def mean(self, component: int | None = None) -> Tensor:
        """See `Posterior`."""
        return self.loc

    def set_point_(self, value: Tensor) -> None:
        """See `Posterior`."""
        with torch.no_grad():
            self.loc.copy_(value)


class Dirac(Posterior):
    """A point mass: an ordinary parameter, stacked ``[K, d]`` where it is one of the factors of a mixture."""

    elementwise = True
    original = ("loc",)
    outside_kl = ("loc",)

    def __init__(self, loc: Tensor) -> None:
        super().__init__()
        self.loc = loc if isinstance(loc, nn.Parameter) else nn.Parameter(loc.detach().clone())

    @property
    def shape(self) -> torch.Size:
        """See `Posterior`."""
        return self.loc.shape

    def rsample(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        return self.loc.expand(n, *self.shape)

    def rsample_rows(self, index: Tensor, spec: Sampling) -> Tensor:
        """The points of the components ``index`` ``[rows]``."""
        return self.loc.index_select(0, index)

    def mean(self, component: int | None = None) -> Tensor:
        """See `Posterior`."""
        return self.loc

    def set_point_(self, value: Tensor) -> None:
        """See `Posterior`."""
        with torch.no_grad():
            self.loc.copy_(value)

    def silence_(self) -> None:
        """See `Posterior`; a point has none."""

    def deterministic(self) -> bool:
        """See `Posterior`."""
        return True
