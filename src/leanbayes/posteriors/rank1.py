"""Rank-1 posteriors: distributions on two vectors that scale a shared weight; BatchEnsemble is the Dirac case."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leanbayes import noise
from leanbayes._checks import check_choice, check_count, check_number, check_positive
from leanbayes._registry import register_posterior
from leanbayes._sampling import Sampling, current_sampling
from leanbayes.groups import ComponentGroup
from leanbayes.ops import LinearOp
from leanbayes.posteriors._base import Dirac, Factors, Posterior
from leanbayes.posteriors._divergence import Divergence, JointTerm, why_infinite
from leanbayes.posteriors._factors import CauchyPosterior, HalfCauchyPosterior, LogNormalPosterior
from leanbayes.posteriors._joined import Team, fact, joined_for
from leanbayes.posteriors._method import Method, check_prior
from leanbayes.posteriors.component_points import ComponentPoints
from leanbayes.posteriors.mean_field import MeanFieldPosterior
from leanbayes.priors import Cauchy, HalfCauchy, Normal, Prior

_FAMILIES: dict[str, Any] = {
    "normal": MeanFieldPosterior,
    "cauchy": CauchyPosterior,
    "lognormal": LogNormalPosterior,
    "halfcauchy": HalfCauchyPosterior,
    "delta": lambda value, scale: Dirac(value),
}
_NORMS = ("shared", "component")
# The authors' start: dropout rate 1e-3 as a standard deviation, sqrt(p / (1 - p)).
_DEFAULT_STD = math.sqrt(1e-3 / (1 - 1e-3))


class Rank1Posterior(Posterior):
    """``W * r s^T`` or ``W + r s^T`` with K components of r ``[K, out]`` and s ``[K, in]``, and a shared point W.

    Args:
        value: The shared weight W.
        op: The layer's op.
        group: Owner of the component index.
        output: Distribution of r.
        input: Distribution of s.
        output_prior: Bound prior of r, None where it is a point.
        input_prior: Bound prior of s, None where it is a point.
        additive: Whether r s^T is added to W or multiplies it.
        clip: Largest absolute value of a drawn factor, None for no limit.
    """

    offers = frozenset({"draws", "factors"})
    original = ("weight",)
    outside_kl = ("weight",)
    shared_index = True

    def __init__(
        self,
        value: Tensor,
        op: LinearOp,
        group: ComponentGroup,
        output: Any,
        input: Any,
        output_prior: Prior | None,
        input_prior: Prior | None,
        additive: bool,
        clip: float | None = None,
    ) -> None:
        super().__init__()
        self.weight = value if isinstance(value, nn.Parameter) else nn.Parameter(value.detach().clone())
        self.op = op
        self.output = output
        self.input = input
        self.output_prior = output_prior
        self.input_prior = input_prior
        self.additive = additive
        self.clip = clip
        self.components = group.components
        self.heavy_tailed = output.heavy_tailed or input.heavy_tailed
        # Not a submodule: the group belongs to the model, and a layer's state dict lists what the layer owns.
        self._group = (group,)

    @property
    def group(self) -> ComponentGroup:
        """Owner of the component index."""
        return self._group[0]

    @property
    def shape(self) -> torch.Size:
        """See `Posterior`."""
        return self.weight.shape

    def rsample(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`."""
        return self._draw(self.group.index(n, self.weight, spec), spec)

    def factors(self, rows: int, spec: Sampling) -> Factors:
        """See `Posterior`; each row draws its own factors of its sample's component."""
        index = self._index_of_rows(rows, spec)
        s, r = self._limited(self.input.rsample_rows(index, spec), self.output.rsample_rows(index, spec))
        return Factors(self.weight, in_scale=s, out_scale=r, additive=self.additive)

    def points_in_turn(self, n: int, spec: Sampling) -> Factors | None:
        """See `Posterior`."""
        if not (isinstance(self.input, Dirac) and isinstance(self.output, Dirac)):
            return None
        first = self.group.first_in_turn(n, spec)
        if first is None:
            return None
        s, r = self.input.loc, self.output.loc
        if n < self.components:
            s, r = s.narrow(0, first, n), r.narrow(0, first, n)
        return Factors(self.weight, in_scale=s, out_scale=r, additive=self.additive)

    def _limited(self, s: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """Drawn factors within the limit; points are left alone."""
        if self.clip is None:
            return s, r
        s = s if self.input_prior is None else s.clamp(-self.clip, self.clip)
        return s, r if self.output_prior is None else r.clamp(-self.clip, self.clip)

    def _index_of_rows(self, rows: int, spec: Sampling) -> Tensor:
        if spec.joint:
            return self.group.index(rows, self.weight, spec)
        return self.group.row_index(rows, self.weight, spec)

    def together_key(self, what: str) -> tuple[Any, ...] | None:
        """See `Posterior`: factors of one mixture are drawn together."""
        keys = (self.output.join_key(), self.input.join_key())
        return (id(self.group.identity), *keys) if what == "factors" and None not in keys else None

    @classmethod
    def draw_together(cls, parts: list[Any], what: str, n: int, spec: Sampling) -> list[Any]:
        """See `Posterior`."""
        index = parts[0]._index_of_rows(n, spec)
        drawn: dict[Posterior, Tensor] = {}
        for factors, positions in fact(parts, "factors", lambda: _factors_alike(parts)):
            drawn |= zip(factors, _rows_of_all(factors, positions, index, spec))
        found = []
        for part in parts:
            s, r = part._limited(drawn[part.input], drawn[part.output])
            found.append(Factors(part.weight, in_scale=s, out_scale=r, additive=part.additive))
        return found

    def mean(self, component: int | None = None) -> Tensor:
        """See `Posterior`."""
        component = 0 if component is None else component
        if not 0 <= component < self.components:
            raise ValueError(f"component={component} does not exist; there are {self.components}, counted from 0")
        picked = slice(component, component + 1)
        return self._combine(self.input.mean()[picked], self.output.mean()[picked])[0].to(self.weight.dtype)

    def deviation(self, n: int, spec: Sampling) -> Tensor:
        """See `Posterior`; each draw less the mean of its own component."""
        index = self.group.index(n, self.weight, spec)
        means = self._combine(self.input.mean()[index], self.output.mean()[index])
        return self._draw(index, spec) - means

    def _draw(self, index: Tensor, spec: Sampling) -> Tensor:
        return self._combine(
            *self._limited(self.input.rsample_rows(index, spec), self.output.rsample_rows(index, spec))
        )

    def _combine(self, s: Tensor, r: Tensor) -> Tensor:
        product = self.op.outer(self.shape, s, r)  # [n, *shape], or broadcastable to it
        return self.weight + product if self.additive else self.weight * product

    def set_point_(self, value: Tensor) -> None:
        """See `Posterior`."""
        with torch.no_grad():
            self.weight.copy_(value)

    def deterministic(self) -> bool:
        """See `Posterior`."""
        return self.output.deterministic() and self.input.deterministic()

    def silence_(self) -> None:
        """See `Posterior`."""
        self.output.silence_()
        self.input.silence_()

    def component_group(self) -> ComponentGroup:
        """See `Posterior`."""
        return self.group

    def divergence_terms(self, prior: Any, mixture: str, constant: bool | None) -> list[Any]:
        """See `Posterior`: the mean or sum of the components' divergences, or what a joint mixture needs."""
        random = [(q, p) for q, p in self.pairs() if p is not None]  # points count 0
        if mixture == "joint":
            return [self._joint_term(q, p if constant is None else p.with_constant(constant)) for q, p in random]
        share = 1 if mixture == "sum" else 1 / self.components
        return [Divergence(q, p, constant, share, stacked_axes=1) for q, p in random]

    def pairs(self) -> tuple[tuple[Any, Prior | None], tuple[Any, Prior | None]]:
        """The distributions of r and s, each with its bound prior."""
        return (self.output, self.output_prior), (self.input, self.input_prior)

    def _joint_term(self, q: Any, p: Prior) -> JointTerm:
        """One draw from each component, under each component and under the prior less what it leaves out."""
        if not p.proper:
            raise ValueError(
                f"mixture='joint' needs a normalised density of the prior, which {type(p).__name__} does not have; use "
                "mixture='mean' or 'sum', or another prior"
            )
        index = torch.arange(self.components, device=self.weight.device)
        z = q.rsample_rows(index, current_sampling().source(self.components))  # [K, d], row k from component k
        log_p = (p.log_prob(z) + p.left_out()).sum(-1)
        return JointTerm(self.group, q.log_prob(z.unsqueeze(1)).sum(-1), log_p)


def _factors_alike(parts: list[Rank1Posterior]) -> list[tuple[list[Any], list[int]]]:
    """Factors of several posteriors that are drawn as one, and measured as one, with the positions of their ops."""
    kinds: dict[Any, tuple[list[Any], list[int]]] = {}
    for part in parts:
        for factor, prior in part.pairs():
            key = (factor.join_key(), None if isinstance(prior, nn.Module) else prior)
            factors, positions = kinds.setdefault(key, (Team([]), []))
            factors.append(factor)
            positions.append(part.op.positions())
    return list(kinds.values())


def _rows_of_all(parts: list[Any], positions: list[int], index: Tensor, spec: Sampling) -> list[Tensor]:
    """A draw ``[rows, d]`` from each of several posteriors ``[K, d]``, with so many axes of one behind."""
    whole = joined_for(parts, spec, kept_axes=1)
    drawn = whole.rsample_rows(index, spec)
    dtype = noise.autocast_dtype(drawn)
    if dtype is not None:
        # What they scale has that precision: all are rounded at once instead of one by one.
        drawn = drawn.to(dtype)
    most = max(positions)
    shaped = drawn.view(*drawn.shape, *(1,) * most)  # for most of them at once
    found = shaped.split(next(iter(whole.laid_out.values())).sizes, 1)
    return [each if axes == most else each.flatten(1 + axes) for each, axes in zip(found, positions)]


@register_posterior("Rank1")
@dataclass(frozen=True)
class Rank1(Method):
    """A rank-1 BNN (Dusenberry et al. 2020): w = W * r s^T with a K-component mixture over r (output) and s (input).

    One component index serves the whole model. Biases are shared points, and so are norms unless `norms` says
    otherwise.

    Args:
        components: Number K of mixture components.
        posterior: "normal", "cauchy", "lognormal", "halfcauchy" or "delta" (points).
        prior: Prior of the factors; None is Cauchy(1, 0.1) for "cauchy", HalfCauchy(1) for "halfcauchy", else
            Normal(1, 0.1).
        on: Which vectors are random: "both", "input" or "output"; the other one has K point estimates.
        form: "multiplicative", or "additive": W + r s^T with r started at 0 and its prior centred there.
        random_sign: Probability that an entry starts at +1 rather than -1; the papers use 0.5 to train from scratch.
        init_std: Initial standard deviation (scale) of the factors, None for the authors' 0.0316. A half-Cauchy uses
            its median as its scale and ignores this.
        init_spread: Spread of the components' initial means; component 0 keeps the exact start.
        norms: "shared", or "component", which gives every component its own scale, shift and batch-norm statistics
            (ensemble batch norm).
        clip: Largest absolute value of a drawn factor, such as 10 for the tails of "cauchy"; None for no limit. The
            divergence ignores the limit.
    """

    components: int = 4
    posterior: str = "normal"
    prior: Prior | None = None
    on: str = "both"
    form: str = "multiplicative"
    random_sign: float = 1.0
    init_std: float | None = None
    init_spread: float = 0.0
    estimator: str = "auto"
    norms: str = "shared"
    clip: float | None = None

    scope: ClassVar[str | None] = "model"
    offers: ClassVar[frozenset[str]] = Rank1Posterior.offers

    def __post_init__(self) -> None:
        check_count(self, components=self.components)
        check_choice(self, tuple(_FAMILIES), posterior=self.posterior)
        check_choice(self, ("both", "input", "output"), on=self.on)
        check_choice(self, ("multiplicative", "additive"), form=self.form)
        self._check_estimator(self.estimator)
        check_choice(self, _NORMS, norms=self.norms)
        for name in ("init_std", "clip"):
            if getattr(self, name) is not None:
                check_positive(self, **{name: getattr(self, name)})
        check_number(self, 0, 1, random_sign=self.random_sign)
        check_number(self, 0, init_spread=self.init_spread)
        if self.posterior in ("lognormal", "halfcauchy"):
            if self.random_sign != 1:
                raise ValueError(
                    f"a {self.posterior} factor is positive: random_sign must be 1, not {self.random_sign}"
                )
            if self.form == "additive":
                raise ValueError(
                    f"a {self.posterior} factor cannot start at 0; form='additive' needs another posterior"
                )
        if self.prior is not None:
            check_prior(self, self.prior)
        if self.posterior != "delta":
            probe = _FAMILIES[self.posterior](torch.ones(1, 1), 0.1)
            problem = why_infinite(probe, self.factor_prior().bind(torch.ones(1, 1), 1))
            if problem is not None:
                raise ValueError(problem)

    def factor_prior(self) -> Prior:
        """The prior of the factors, the default where none is given."""
        if self.prior is not None:
            return self.prior
        if self.posterior == "cauchy":
            return Cauchy(1.0, 0.1)
        return HalfCauchy(1.0) if self.posterior == "halfcauchy" else Normal(1.0, 0.1)

    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """See `Method`."""
        assert group is not None
        if op is None:
            return _norm_points(value, group)
        additive = self.form == "additive"
        in_size, out_size = op.features(value.shape, op.in_axis), op.features(value.shape, op.out_axis)
        output, output_prior = self._factor(out_size, value, self.on in ("both", "output"), zero=additive)
        input_, input_prior = self._factor(in_size, value, self.on in ("both", "input"), zero=False)
        return Rank1Posterior(value, op, group, output, input_, output_prior, input_prior, additive, self.clip)

    def _factor(self, size: int, like: Tensor, random: bool, zero: bool) -> tuple[Posterior, Prior | None]:
        options = {"dtype": like.dtype, "device": like.device}
        start = torch.where(torch.rand(self.components, size, device=like.device) < self.random_sign, 1.0, -1.0)
        start = start.to(like.dtype)
        spread = self.init_spread * torch.randn(self.components, size, **options)
        spread[0] = 0
        if zero:
            start = spread
        else:
            # A positive factor must stay so: its spread is one of logarithms.
            start = start * (spread.exp() if self.posterior in ("lognormal", "halfcauchy") else 1 + spread)
        if not random or self.posterior == "delta":
            return Dirac(start), None
        prior = self.factor_prior()
        if zero:
            centre = {"mean": 0.0} if hasattr(prior, "mean") else {"loc": 0.0} if hasattr(prior, "loc") else {}
            prior = dataclasses.replace(prior, **centre)  # pyright: ignore[reportArgumentType]
        scale = _DEFAULT_STD if self.init_std is None else self.init_std
        return _FAMILIES[self.posterior](start, scale), prior.bind(start, size)

    def bind_prior(self, value: Tensor, fan: int) -> Prior | None:
        """See `Method`; the posterior keeps the priors of its factors."""
        return None

    @property
    def kinds(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Method`."""
        return _with_norms(Method.kinds, self.norms)

    @property
    def default_kinds(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Method`."""
        return _with_norms(Method.default_kinds, self.norms)


@register_posterior("BatchEnsemble")
@dataclass(frozen=True)
class BatchEnsemble(Method):
    """BatchEnsemble (Wen et al. 2020): `Rank1` with Dirac components; no KL.

    Args:
        components: Number K of members.
        random_sign: Probability that an entry starts at +1 rather than -1.
        init_spread: Spread of the members' initial factors around 1; member 0 starts at exactly 1.
        norms: "shared", or "component" for separate norms of each member, see `Rank1`.
    """

    components: int = 4
    random_sign: float = 1.0
    init_spread: float = 0.1
    estimator: str = "auto"
    norms: str = "shared"

    scope: ClassVar[str | None] = "model"
    offers: ClassVar[frozenset[str]] = Rank1Posterior.offers

    def __post_init__(self) -> None:
        check_count(self, components=self.components)
        check_number(self, 0, 1, random_sign=self.random_sign)
        check_number(self, 0, init_spread=self.init_spread)
        check_choice(self, _NORMS, norms=self.norms)
        self._check_estimator(self.estimator)

    def as_rank1(self) -> Rank1:
        """The same as a `Rank1`."""
        return Rank1(
            components=self.components,
            posterior="delta",
            random_sign=self.random_sign,
            init_spread=self.init_spread,
            estimator=self.estimator,
            norms=self.norms,
        )

    def build(self, value: Tensor, op: LinearOp | None, group: ComponentGroup | None = None) -> Posterior:
        """See `Method`."""
        return self.as_rank1().build(value, op, group)

    def bind_prior(self, value: Tensor, fan: int) -> Prior | None:
        """See `Method`."""
        return None

    @property
    def kinds(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Method`."""
        return _with_norms(Method.kinds, self.norms)

    @property
    def default_kinds(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Method`."""
        return _with_norms(Method.default_kinds, self.norms)


def _norm_points(value: Tensor, group: ComponentGroup) -> ComponentPoints:
    """A scale or shift of a norm for each component, all started at the plain one."""
    return ComponentPoints(value.detach().expand(group.components, *value.shape), group)


def _with_norms(kinds: frozenset[str], norms: str) -> frozenset[str]:
    return kinds | {"norm"} if norms == "component" else kinds
