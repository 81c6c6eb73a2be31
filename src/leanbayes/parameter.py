"""RandomParameter: the leaf that owns a distribution over one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from leanbayes._sampling import Frame, Sampling, current_frame
from leanbayes.posteriors._base import Factors, Moments, Posterior

if TYPE_CHECKING:
    from leanbayes.ops import LinearOp
    from leanbayes.priors._base import Prior


class RandomParameter(nn.Module):
    """A posterior and a prior for one tensor: what layers draw from, what reports the KL, what tied layers share.

    It is no tensor, but answers what third-party code asks of one (`shape`, `dtype`, `device`, ...).

    Args:
        posterior: The distribution.
        prior: The bound prior, None where the family has no KL.
        padding: A row of an embedding that carries no noise and no KL, with its index; the posterior is then over the
            other rows.
    """

    def __init__(self, posterior: Posterior, prior: Prior | None, padding: tuple[int, Tensor] | None = None) -> None:
        super().__init__()
        self.posterior = posterior
        self.prior = prior
        self.padding_idx = None if padding is None else padding[0]
        self.padding_row = None if padding is None else nn.Parameter(padding[1].detach().clone())
        # Set where several layers use this weight: one function then means one draw for all of them.
        self.tied = False
        # Set for the weights of recurrent cells: one draw serves all steps of a forward pass.
        self.one_draw_per_forward = False

    def rsample(self, n: int, spec: Sampling) -> Tensor:
        """Draw n weights ``[n, *shape]``."""
        return self._shared("draw", n, spec, lambda: self._pad(self.posterior.rsample(n, spec)))

    def deviation(self, n: int, spec: Sampling) -> Tensor:
        """Draw n weights less their mean ``[n, *shape]``."""
        draw = self._shared("deviation", n, spec, lambda: self.posterior.deviation(n, spec))
        return self._pad(draw, torch.zeros_like) if self.padding_row is not None else draw

    def factors(self, rows: int, spec: Sampling) -> Factors:
        """A weight and feature scales, one draw per row; in joint mode one per sample."""
        count = spec.n if spec.joint else rows
        return self._shared("factors", count, spec, lambda: self.posterior.factors(count, spec))

    def factors_fit(self, op: LinearOp) -> bool:
        """Whether the factors are scales of the op's features.

        They are not where a tied layer with another op owns them, and not where a padding row is left out of them.
        """
        owner: LinearOp = self.posterior.op  # pyright: ignore[reportAssignmentType]
        return self.padding_row is None and (owner.in_axis, owner.out_axis) == (op.in_axis, op.out_axis)

    def moments(self) -> Moments:
        """Mean and variance of the elements."""
        moments = self.posterior.moments()
        if self.padding_row is None:
            return moments
        mean = torch.zeros_like(moments.var, dtype=self.dtype) if moments.mean is None else moments.mean
        return Moments(self._pad(mean), self._pad(moments.var, torch.zeros_like))

    def mean(self, component: int | None = None) -> Tensor:
        """The posterior mean."""
        return self._pad(self.posterior.mean(component))

    def means(self, n: int, spec: Sampling) -> Tensor:
        """The mean ``[*shape]``, or one per sample ``[n, *shape]`` where components are spread over the samples."""
        component = spec.component
        if self.posterior.components == 1 or component == "random":
            return self.mean()
        if isinstance(component, int):
            return self.mean(component)
        if isinstance(component, Tensor):
            raise ValueError("components per row do not go with mean=True; choose one component for all rows")
        if component == "stratified" and not self.posterior.shared_index:
            return self.mean()
        if component == "all" and n % self.posterior.components:
            raise ValueError(f"component='all' needs n to be a multiple of {self.posterior.components}, not n={n}")
        each = [self.mean(k) for k in range(self.posterior.components)]
        return torch.stack([each[(spec.offset + s) % len(each)] for s in range(n)])

    def kl(self, mixture: str = "mean", constant: bool | None = None) -> Tensor:
        """KL divergence from the prior in nats, summed over the elements: one float32 scalar (float64 for doubles)."""
        from leanbayes._kl import kl_divergence

        return kl_divergence(self.posterior, self.prior, mixture=mixture, constant=constant)

    def set_point_(self, value: Tensor) -> None:
        """Load a plain weight."""
        if self.padding_row is not None:
            with torch.no_grad():
                self.padding_row.copy_(value[self.padding_idx])
            value = remove_row(value, self.padding_idx)
        self.posterior.set_point_(value)

    def _shared(self, what: str, n: int, spec: Sampling, draw: Callable[[], Any]) -> Any:
        # In joint mode, and within a sequence, every user of this weight must see the same draw.
        if not (spec.joint or self.one_draw_per_forward):
            return draw()
        frame: Frame | None = current_frame()
        if frame is None:
            return draw()
        component = None if isinstance(spec.component, Tensor) else spec.component
        key = (id(self), what, n, component)
        if key not in frame.draws:
            frame.draws[key] = draw()
        return frame.draws[key]

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
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.parameters()).device

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


def remove_row(value: Tensor, index: int | None) -> Tensor:
    """A table without one row."""
    assert index is not None
    return torch.cat([value[:index], value[index + 1 :]])
