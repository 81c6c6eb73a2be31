"""RandomParameter: the leaf that owns a distribution over one tensor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._autograd import _top_saved_tensors_default_hooks

from leanbayes import noise
from leanbayes._owners import WithSettings, derived, note_move, owners, sorted_owners
from leanbayes._sampling import (
    Frame,
    Identity,
    Sampling,
    check_rerun,
    current_frame,
    may_run_again,
    note_dependence,
    tell_when_spent,
)
from leanbayes.groups import ComponentGroup
from leanbayes.kernels._autograd import reverse_mode_alone
from leanbayes.ops import LinearOp
from leanbayes.posteriors._base import Factors, Moments, Posterior, first_parameter
from leanbayes.posteriors._divergence import Divergence
from leanbayes.posteriors._joined import Team, single
from leanbayes.posteriors.sparse import sparse_copy
from leanbayes.priors import Prior

_AS_IT_IS = nullcontext()
_SIGNS = "signs"


class RandomParameter(WithSettings):
    """A posterior and a prior for one tensor: what layers draw from, what reports the KL, what tied layers share.

    What it draws during one pass is kept in the pass's frame, so that an example meets one draw wherever the weight is
    used. It is no tensor, but answers what third-party code asks of one (`shape`, `dtype`, `device`, ...).

    Args:
        posterior: The distribution.
        prior: The bound prior, None where the family has no KL.
        padding: A row of an embedding that carries no noise and no KL, with its index; the posterior is then over the
            other rows.
    """

    answers_for_parts = True

    def __init__(self, posterior: Posterior, prior: Prior | None, padding: tuple[int, Tensor] | None = None) -> None:
        super().__init__()
        self.posterior = posterior
        self.prior = prior
        self.padding_idx = None if padding is None else padding[0]
        self.padding_row = None if padding is None else nn.Parameter(padding[1].detach().clone())
        self.identity = Identity()
        # Set where several layers use this weight.
        self.tied = False
        # Axes whose features no user of the weight may give signs: those that some user looks up by index.
        self.unsigned_axes: frozenset[int] = frozenset()
        # The estimator that its one user draws by, None where that depends on the input.
        self.used_by: str | None = None
        # Axes of that user's features, with how many there are.
        self.features: tuple[tuple[int, int], ...] = ()

    # Every layer asks for it several times in a pass, and what a module registers takes torch long to find.
    @property
    def posterior(self) -> Posterior:
        """The distribution."""
        return self._modules["posterior"]  # pyright: ignore[reportReturnType]

    @posterior.setter
    def posterior(self, value: Posterior) -> None:
        self._modules["posterior"] = value

    def rsample(self, n: int, spec: Sampling) -> Tensor:
        """Draw n weights ``[n, *shape]``."""
        drawn = self.draws(n, spec)
        return drawn.unsqueeze(0) if n == 1 else drawn

    def draws(self, n: int, spec: Sampling) -> Tensor:
        """The same; a single one, of n = 1, as it is, ``[*shape]``."""
        return self._once("draw", n, spec, lambda: single(self._pad(self._draw(n, spec, True))))

    @property
    def draws_copies(self) -> bool:
        """Whether every draw is one of a few copies as it stands."""
        return self.posterior.draws_copies and self.padding_row is None

    def choice(self, n: int, spec: Sampling) -> Tensor:
        """Which of the copies each of n draws is ``[n]``."""
        return self._once("choice", n, spec, lambda: self.posterior.choice(n, spec))

    def deviation(self, n: int, spec: Sampling) -> Tensor:
        """Draw n weights less their mean ``[n, *shape]``."""
        drawn = self.deviations(n, spec)
        return drawn.unsqueeze(0) if n == 1 else drawn

    def deviations(self, n: int, spec: Sampling) -> Tensor:
        """The same; a single one, of n = 1, as it is, ``[*shape]``."""
        drawn = self._once("deviation", n, spec, lambda: single(self._draw(n, spec, False)))
        return self._pad(drawn, torch.zeros_like)

    def _draw(self, n: int, spec: Sampling, with_mean: bool) -> Tensor:
        """New draws ``[n, *shape]``, or deviations; with the divergence where the pass is asked for that, too."""
        frame, posterior = current_frame(), self.posterior
        divergences = None if frame is None else frame.divergences
        # A graph of its own has one backward pass for all that comes out of it, draws and divergence.
        apart = frame is not None and frame.compiled != torch.compiler.is_compiling()
        if divergences is not None and not apart and id(posterior) not in divergences:
            found = posterior.draw_measured(n, spec, self.prior, with_mean)
            if found is not None:
                divergences[id(posterior)] = (self.prior, found[1])
                return found[0]
        return posterior.rsample(n, spec) if with_mean else posterior.deviation(n, spec)

    def factors(self, rows: int, spec: Sampling, *, vectors: bool = False) -> Factors:
        """A weight and feature scales, one draw per row; one per sample where its rows share it."""
        shared = self.shares_factors(spec, vectors)
        count = spec.n if shared else rows
        points = self.posterior.points_in_turn(count, spec) if shared else None
        if points is not None:
            return points
        return self._once("factors", count, spec, lambda: self.posterior.factors(count, spec))

    def shares_factors(self, spec: Sampling, vectors: bool) -> bool:
        """Whether all rows of a sample get one draw: in joint mode, and where they are vectors that get a point.

        All of them have that point anyway. Repeated for each of them, its scales would be as large as the input.
        """
        if spec.joint:
            return True
        if not vectors or not self.posterior.deterministic():
            return False
        group = self.posterior.component_group()
        return group is None or group.given_rows(spec) is None

    def signs(self, axis: int, features: int, rows: int, spec: Sampling) -> Tensor | None:
        """Random signs ``[rows, features]`` for one axis of the weight, None where that axis must have none."""
        if axis in self.unsigned_axes:
            return None
        shape, posterior = (rows, features), self.posterior
        return self._once(f"{_SIGNS} {axis}", rows, spec, lambda: noise.signs(shape, first_parameter(posterior), spec))

    def factors_fit(self, op: LinearOp) -> bool:
        """Whether the factors are scales of the op's features.

        They are not where a tied layer with another op owns them, and not where a padding row is left out of them.
        """
        owner = self.posterior.op
        return self.padding_row is None and owner is not None and owner.same_axes(op)

    def moments(self) -> Moments:
        """Mean and variance of the elements."""
        moments = self._seen_with_others("moments", "local")
        if moments is None:
            moments = self.posterior.moments()
        if self.padding_row is None:
            return moments
        mean = torch.zeros_like(moments.var, dtype=self.dtype) if moments.mean is None else moments.mean
        return Moments(self._pad(mean), self._pad(moments.var, torch.zeros_like))

    def thin_variance(self, op: LinearOp) -> tuple[Tensor, Tensor, LinearOp] | None:
        """The variance as r channels, a weight of `op`, and the matrix that an op maps them to outputs by.

        None where it is not of low rank, or where that would not save work.
        """
        thin = self.posterior.thin_variance(op.out_axis) if self.padding_row is None else None
        if thin is None:
            return None
        mixing = op.mixing(thin[1])
        return None if mixing is None else (thin[0], *mixing)

    def mean(self, component: int | None = None) -> Tensor:
        """The posterior mean."""
        count = self.posterior.components
        if component is not None and count > 1 and not 0 <= component < count:
            raise ValueError(f"component={component} does not exist; there are {count}, counted from 0")
        return self._pad(self.posterior.mean(component))

    def centre(self) -> Tensor:
        """The posterior mean for a product; rounded as autocast would do it where it is rounded with others."""
        found = self._seen_with_others("mean", "flipout")
        return self.mean() if found is None else found

    def means(self, n: int, spec: Sampling) -> Tensor:
        """The mean ``[*shape]``, or one per sample ``[n, *shape]`` where components are spread over the samples."""
        component = spec.component
        if self.posterior.components == 1:
            return self.mean()
        if isinstance(component, int):
            return self.mean(component)
        group = self.posterior.component_group()
        if isinstance(component, Tensor) or (group is not None and group.given_rows(spec) is not None):
            raise ValueError("components per row do not go with mean=True; choose one component for all rows")
        if component == "all":
            if n % self.posterior.components:
                raise ValueError(f"component='all' needs n to be a multiple of {self.posterior.components}, not n={n}")
            return self._mean_of_each([s % self.posterior.components for s in range(n)])
        given = None if group is None else spec.assigned.get(id(group.identity))
        if given is None:
            return self.mean()
        return self._mean_of_each([int(k) for k in given.index])

    def _mean_of_each(self, index: list[int]) -> Tensor:
        means = {k: self.mean(k) for k in dict.fromkeys(index)}
        return torch.stack([means[k] for k in index])

    def kl(self, mixture: str = "mean", constant: bool | None = None) -> Tensor:
        """KL divergence from the prior in nats, summed over the elements: one float32 scalar (float64 for doubles)."""
        terms = [term.value() if isinstance(term, Divergence) else term for term in self.kl_terms(mixture, constant)]
        return torch.stack(terms).sum() if terms else torch.zeros((), device=self.device)

    def kl_terms(self, mixture: str, constant: bool | None) -> list[Any]:
        """What the weight adds to a model's total, see `leanbayes.kl`."""
        posterior, prior = self.posterior, self.prior
        terms = posterior.divergence_terms(prior, mixture, constant)
        return [Divergence(posterior, prior, constant)] if terms is None else terms

    def parameter_kinds(self) -> dict[str, str]:
        """What `param_groups` and `freeze` take the parameters for: "points", "means" or "variational"."""
        kinds = {} if self.padding_row is None else {"padding_row": "points"}
        for name, _ in self.posterior.named_parameters():
            original = name in self.posterior.original
            kind = "points" if name in self.posterior.outside_kl else "means" if original else "variational"
            kinds[f"posterior.{name}"] = kind
        return kinds

    def component_parts(self) -> list[tuple[ComponentGroup, list[Any]]]:
        """The index that serves the whole model, where the weight follows one; there is nothing inside it."""
        group = self.posterior.component_group()
        return [] if group is None else [(group, [])]

    def plain_sizes(self) -> list[tuple[int, int]]:
        """Elements and bytes per element of what the plain model has in its place."""
        return [(self.numel(), self.dtype.itemsize)]

    def draws_noise(self) -> bool:
        """Whether draws (of one component) differ."""
        return not self.posterior.deterministic()

    def prune_(self, index: Tensor, keep_means: bool = False) -> None:
        """Leave the entries ``index`` ``[K]`` of the flattened weight alone random; its KL counts 0 from then on."""
        self.posterior = sparse_copy(self.posterior, index, keep_means)
        self.prior = None

    def set_point_(self, value: Tensor) -> None:
        """Load a plain weight."""
        if self.padding_row is not None:
            with torch.no_grad():
                self.padding_row.copy_(value[self.padding_idx])
            value = remove_row(value, self.padding_idx)
        self.posterior.set_point_(value)

    def _apply(self, *args: Any, **kwargs: Any) -> RandomParameter:
        moved = super()._apply(*args, **kwargs)
        note_move()  # it may now be drawn with others
        return moved

    def _once(self, what: str, n: int, spec: Sampling, draw: Callable[[], Any]) -> Any:
        """What `draw` gives, drawn once during one pass or held context."""
        frame, compiling = current_frame(), torch.compiler.is_compiling()
        if frame is None:
            if not compiling:
                check_rerun(self)
            return draw()
        component = None if isinstance(spec.component, Tensor) else spec.component
        # Exported for batches of any size, the number of rows is a symbol, which has no hash.
        count = str(n) if isinstance(n, torch.SymInt) else n
        key = (id(self.identity), what, count, component)
        kept = frame.kept.get(key)
        if kept is not None:
            # A second run of this use alone would draw anew.
            if not compiling and may_run_again():
                note_dependence(self, True)
            return kept
        if compiling:
            frame.kept[key] = draw()
            return frame.kept[key]
        check_rerun(self)
        if may_run_again():
            note_dependence(self, False)
        # A part that runs without gradients may draw what a later one learns from.
        with torch.enable_grad() if frame.wants_gradients() else _AS_IT_IS:
            if frame.root is None or not self._drawn_with_others(frame, what, key, spec):
                frame.kept[key] = draw()
                tell_when_spent(frame, frame.kept[key])
        return frame.kept[key]

    def _drawn_with_others(self, frame: Frame, what: str, key: tuple[Any, ...], spec: Sampling) -> bool:
        """Draw this weight and all of its kind in the model that runs, where they can be drawn in one go."""
        kind = self.posterior.together_key(what) if what in _KIND_OF else None
        if kind is None and what.startswith(_SIGNS):
            return self._signs_with_others(frame, key, spec)
        # Whoever comes later with another number of rows draws for itself alone.
        if kind is None or self.padding_row is not None or (kind, what) in frame.kept:
            return False
        frame.kept[kind, what] = None
        partners, posteriors = _team(frame.root, what, kind)
        if len(partners) < 2 or not any(self._is_copy_of(each) for each in partners):
            return False
        draws = self.posterior.draw_together(posteriors, what, key[2], spec)
        for partner, drawn in zip(partners, draws):
            if drawn is not None:
                frame.kept.setdefault((id(partner.identity), *key[1:]), drawn)
                if frame.lasting:
                    tell_when_spent(frame, drawn)
        return key in frame.kept

    def _signs_with_others(self, frame: Frame, key: tuple[Any, ...], spec: Sampling) -> bool:
        """Draw the signs of all weights in the model that flipout uses, where this is one of them."""
        rows, component = key[2:]
        if self.used_by != "flipout" or not isinstance(rows, int) or (_SIGNS, rows) in frame.kept:
            return False
        frame.kept[_SIGNS, rows] = None
        like = first_parameter(self.posterior)
        users = [each for each in _used_by(frame.root, "flipout") if each.device == like.device]
        if len(users) < 2:
            return False
        found = [(each, axis, size) for each in users for axis, size in each.features if axis not in each.unsigned_axes]
        drawn = noise.signs((rows, sum([size for *_, size in found])), like, spec)
        dtype = noise.autocast_dtype(like)
        # What they change has the precision of autocast: all are rounded at once instead of one by one.
        parts = (drawn if dtype is None else drawn.to(dtype)).split([size for *_, size in found], 1)
        for (each, axis, _), part in zip(found, parts):
            frame.kept.setdefault((id(each.identity), f"{_SIGNS} {axis}", rows, component), part)
        return key in frame.kept

    def _seen_with_others(self, view: str, by: str) -> Any:
        """A view of this weight that was computed for all of its kind that an estimator uses; None where alone.

        Their gradients are then computed for all at once, too.
        """
        frame = current_frame()
        if self.used_by != by or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return None
        # What a checkpointed block computes must be the same in its second run, which has other others.
        if frame is None or frame.joined is None or frame.root is None or _top_saved_tensors_default_hooks(True):
            return None
        place = (view, noise.autocast_dtype(first_parameter(self.posterior)))
        if (*place, self.identity) not in frame.joined:
            users, posteriors = self._users_alike(frame, view) if reverse_mode_alone() else ([], [])
            found = self.posterior.view_together(posteriors, view) if len(users) > 1 else ()
            frame.joined[*place, self.identity] = (self, None)
            frame.joined |= {(*place, each.identity): (each, one) for each, one in zip(users, found)}
        user, found = frame.joined[*place, self.identity]
        return found if self._is_copy_of(user) else None

    def _users_alike(self, frame: Frame, view: str) -> tuple[list[RandomParameter], list[Posterior]]:
        """The weights of the model that are seen together with this one, and their posteriors."""
        kind = None if self.padding_row is not None else self.posterior.together_key(view)
        return _team(frame.root, view, kind)

    def _is_copy_of(self, other: RandomParameter) -> bool:
        """Whether this is another one or a replica of it, with the same tensors."""
        if self is other:
            return True
        return self.identity is other.identity and first_parameter(self.posterior) is first_parameter(other.posterior)

    def _pad(self, value: Tensor, row: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        if self.padding_row is None:
            return value
        extra = self.padding_row if row is None else row(self.padding_row)
        extra = extra.to(value.dtype).expand(*value.shape[:-2], 1, value.shape[-1])
        index = self.padding_idx
        return torch.cat([value[..., :index, :], extra, value[..., index:, :]], -2)

    @property
    def shape(self) -> torch.Size:
        """Shape of the plain weight."""
        shape = self.posterior.shape
        return shape if self.padding_row is None else torch.Size((shape[0] + 1, *shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters."""
        return first_parameter(self.posterior).dtype

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return first_parameter(self.posterior).device

    @property
    def requires_grad(self) -> bool:
        """Whether any parameter of the distribution is trained."""
        return any(p.requires_grad for p in self.parameters())

    @property
    def ndim(self) -> int:
        """Number of axes of the plain weight."""
        return len(self.shape)

    def dim(self) -> int:
        """Number of axes of the plain weight."""
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        """Shape of the plain weight, or one axis of it."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Number of elements of the plain weight."""
        return self.shape.numel()

    def is_floating_point(self) -> bool:
        """True, as of any weight."""
        return True


def _kind(what: str, by: str | None = None) -> Callable[[Any], Any]:
    def of(owner: Any) -> Any:
        alone = (
            not isinstance(owner, RandomParameter) or owner.padding_row is not None or by not in (None, owner.used_by)
        )
        return None if alone else owner.posterior.together_key(what)

    return of


# By what is drawn, a function that says with whom.
_KIND_OF = {what: _kind(what) for what in ("draw", "deviation", "factors", "choice")}
_KIND_OF |= {"mean": _kind("mean", "flipout"), "moments": _kind("moments", "local")}


def _used_by(model: nn.Module, name: str) -> list[RandomParameter]:
    """The weights of a model whose one user draws by an estimator."""

    def make() -> list[RandomParameter]:
        found = owners(model, "kl_terms")
        return [each for each in found if isinstance(each, RandomParameter) and each.used_by == name]

    return derived(model, ("used by", name), make)


def _team(model: nn.Module, what: str, kind: Any) -> tuple[list[RandomParameter], list[Posterior]]:
    """The weights of a model that are drawn or seen together, and their posteriors.

    They are the same lists for as long as the model consists of the same modules.
    """

    def make() -> dict[Any, tuple[list[RandomParameter], list[Posterior]]]:
        found = sorted_owners(model, "kl_terms", _KIND_OF[what])
        return {key: (weights, Team([each.posterior for each in weights])) for key, weights in found.items()}

    return derived(model, ("team", what), make).get(kind, ([], []))


def remove_row(value: Tensor, index: int | None) -> Tensor:
    """A table without one row."""
    assert index is not None
    return torch.cat([value[:index], value[index + 1 :]])
