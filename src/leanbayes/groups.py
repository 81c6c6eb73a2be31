"""Component groups: who shares the index of a mixture."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes import noise
from leanbayes._owners import WithSettings
from leanbayes._sampling import Assigned, Identity, Sampling, check_component_known, current_frame
from leanbayes.kernels._autograd import traced
from leanbayes.ops import rows_per_sample


class Column(NamedTuple):
    """What one group has of indices that were drawn for several, kept in their place until somebody wants it alone.

    Attributes:
        picked: Indices ``[n, groups]``.
        number: Its column.
    """

    picked: Tensor
    number: int

    def take(self) -> Tensor:
        """The group's own index ``[n]``."""
        return self.picked[:, self.number]


class ComponentGroup(WithSettings):
    """Owns the index of a mixture: the whole model's for rank-1 and ensembles, one layer's for EMP.

    Args:
        components: Number of components K.
        name: How messages name the group.
        learn_mixing: Whether the mixing probabilities are learned (logits, from uniform) or stay uniform.
        routes: Whether its owner runs the components one after the other, and so has to look at the numbers.
    """

    def __init__(
        self, components: int, name: str = "the model", learn_mixing: bool = False, routes: bool = False
    ) -> None:
        super().__init__()
        self.routes = routes
        self.components = components
        self.identity = Identity()
        self.name = name
        self.logits = nn.Parameter(torch.zeros(components)) if learn_mixing else None
        self.layers = 1  # that share it

    def parameter_kinds(self) -> dict[str, str]:
        """What `param_groups` and `freeze` take the parameters for."""
        return {name: "variational" for name, _ in self.named_parameters()}

    def plain_sizes(self) -> list[tuple[int, int]]:
        """The plain model has no mixing probabilities."""
        return []

    @property
    def equal(self) -> bool:
        """Whether all components are equally probable, and stay so."""
        return self.logits is None

    def log_probs(self, like: Tensor) -> Tensor:
        """Logarithms of the mixing probabilities ``[K]``, on the device and in the precision of `like`."""
        dtype = noise.compute_dtype(like.dtype)
        if self.logits is None:
            return torch.full((self.components,), -math.log(self.components), dtype=dtype, device=like.device)
        return self.logits.to(dtype).log_softmax(0)

    def probs(self, like: Tensor) -> Tensor:
        """Mixing probabilities ``[K]``."""
        return self.log_probs(like).exp()

    def index(self, n: int, like: Tensor, spec: Sampling) -> Tensor:
        """Component of each of n samples ``[n]``, the same wherever the group is asked during one pass."""
        fixed = self.fixed_index(n, like, spec)
        if fixed is not None:
            return fixed
        return self.once(n, lambda: self.pick((n,), like, spec))

    def pick(self, shape: tuple[int, ...], like: Tensor, spec: Sampling) -> Tensor:
        """Components drawn by their probabilities."""
        if self.equal:
            return noise.one_of(self.components, shape, like, spec)
        return noise.categorical(shape, self.probs(like), spec)

    def once(self, n: int, draw: Callable[[], Any]) -> Any:
        """What `draw` gives for n samples, drawn once during one pass or held context."""
        frame = current_frame()
        if frame is None or frame.of_layer:
            self.check_alone()
        if frame is None:
            return draw()
        key = (id(self.identity), n)
        kept = frame.kept.get(key)
        if kept is None or isinstance(kept, Column):
            kept = frame.kept[key] = draw() if kept is None else kept.take()
        return kept

    def known_index(self, n: int, like: Tensor, spec: Sampling) -> Tensor | None:
        """The index ``[n]`` where it is settled or was drawn before in this pass, None where it is to be drawn."""
        frame = current_frame()
        if frame is not None and (id(self.identity), n) in frame.kept:
            return self.index(n, like, spec)
        return self.fixed_index(n, like, spec)

    def check_alone(self) -> None:
        """Warn, or raise in a second run, where a layer draws a component that others should share."""
        check_component_known()
        if self.layers > 1 and self.components > 1 and not torch.compiler.is_compiling():
            warnings.warn(
                f"a part of {self.name} was called on its own, so each of the {self.layers} layers that share a "
                "component draws its own; call it inside lb.sampling(hold=True), which holds one draw for all",
                stacklevel=2,
            )

    def row_index(self, rows: int, like: Tensor, spec: Sampling) -> Tensor:
        """Component of each row ``[rows]``: that of the row's sample, or of the row itself where the state has it."""
        given = self.given_rows(spec)
        if given is None:
            index = self.index(spec.n, like, spec)
            return index.repeat_interleave(rows_per_sample(rows, index.shape[0]), output_size=rows)
        if given.shape[0] != rows:
            raise ValueError(
                f"components were given for {given.shape[0]} rows, but a layer of {self.name} sees {rows}, so it is "
                "unclear which component a row has; choose one for all rows, or use tile=True in an ELBO"
            )
        # Looking at values would stop a GPU's queue, and compilers and transformations do not allow it.
        if isinstance(spec.component, Tensor) and given.device.type == "cpu" and rows and not traced():
            self.check_known(int(given.max()), least=int(given.min()))
        return given.to(like.device)

    def given_rows(self, spec: Sampling) -> Tensor | None:
        """The component of each row ``[rows]`` where the state has it, None where it speaks of samples."""
        if isinstance(spec.component, Tensor):
            return spec.component
        given = spec.assigned.get(id(self.identity))
        if given is None or not given.per_row:
            return None
        assert isinstance(given.index, Tensor)
        return given.index

    def fixed_index(self, n: int, like: Tensor, spec: Sampling) -> Tensor | None:
        """The index ``[n]`` where the sampling state settles it, None where it is to be drawn."""
        if spec.leaves_components_open():
            return None
        if self.given_rows(spec) is not None:
            raise ValueError(
                f"components were given per row, but in {self.name} one weight is drawn for all rows of a sample; "
                "choose one component for all rows with lb.sampling(component=k), or use tile=True in an ELBO"
            )
        component = spec.component
        if isinstance(component, int):
            self.check_known(component)
            return torch.full((n,), component, device=like.device)
        if isinstance(component, str) and component == "all":
            if n % self.components:
                raise ValueError(
                    f"component='all' needs n to be a multiple of the {self.components} components of {self.name}, "
                    f"not n={n}"
                )
            return torch.arange(n, device=like.device) % self.components
        given = spec.assigned.get(id(self.identity))
        return None if given is None else self._as_tensor(given, n, like)

    def first_in_turn(self, n: int, spec: Sampling) -> int | None:
        """The component of the first of n samples that have one after the other, as is known beforehand; else None."""
        if not isinstance(spec.component, str):
            return None
        given = spec.assigned.get(id(self.identity))
        start, stride = (0, 1) if spec.component == "all" else (None if given is None else given.cycle) or (0, 0)
        first = start % self.components
        return first if stride == 1 and first + n <= self.components else None

    def _as_tensor(self, given: Assigned, n: int, like: Tensor) -> Tensor:
        assert len(given.index) == n
        if given.cycle is not None:
            start, stride = given.cycle
            return (torch.arange(n, device=like.device) + start) // stride % self.components
        if isinstance(given.index, Tensor):
            return given.index.to(like.device)
        return torch.tensor(given.index, device=like.device)

    def check_known(self, component: int, least: int = 0) -> None:
        """Raise unless there is such a component, and one that is the least of several."""
        for each in (component, least):
            if not 0 <= each < self.components:
                raise ValueError(
                    f"component={each} does not exist: {self.name} has {self.components} components, "
                    f"0 to {self.components - 1}"
                )
