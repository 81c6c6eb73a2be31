"""Component groups: who shares the index of a mixture."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from leanbayes import noise
from leanbayes._sampling import Sampling, current_frame
from leanbayes.ops import rows_per_sample


class ComponentGroup(nn.Module):
    """Owns the index of a mixture: the whole model's for rank-1 and ensembles, one layer's for EMP.

    Args:
        components: Number of components K.
        name: How messages name the group.
        learn_mixing: Whether the mixing probabilities are learned (logits, from uniform) or stay uniform.
    """

    def __init__(self, components: int, name: str = "the model", learn_mixing: bool = False) -> None:
        super().__init__()
        self.components = components
        self.name = name
        self.logits = nn.Parameter(torch.zeros(components)) if learn_mixing else None
        self.layers = 1  # that share it

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
        """Component of each of n samples ``[n]``, the same wherever the group is asked during one forward pass."""
        fixed = self.fixed_index(n, like, spec)
        if fixed is not None:
            return fixed
        return self.once(n, lambda: noise.categorical((n,), self.probs(like), spec))

    def once(self, n: int, draw: Callable[[], Tensor]) -> Tensor:
        """What `draw` gives for n samples, drawn once during one forward pass or held context."""
        frame = current_frame()
        if frame is None or frame.of_layer:
            self.check_no_rerun()
            self._warn_of_layers_apart()
        if frame is None:
            return draw()
        key = (id(self), n)
        if key not in frame.components:
            frame.components[key] = draw()
        return frame.components[key]

    def check_no_rerun(self) -> None:
        """Raise in a backward pass: activation checkpointing would draw another component for each layer."""
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            raise RuntimeError(
                "activation checkpointing ran a layer again without its component; pass "
                "context_fn=lb.checkpoint_contexts (and use_reentrant=False) to the checkpoint"
            )

    def _warn_of_layers_apart(self) -> None:
        if self.layers > 1 and self.components > 1 and not torch.compiler.is_compiling():
            warnings.warn(
                f"a part of {self.name} was called on its own, so that each of the {self.layers} layers that share a "
                "component draws another one; call it within lb.sampling(hold=True), which holds one draw for all",
                stacklevel=2,
            )

    def row_index(self, rows: int, like: Tensor, spec: Sampling) -> Tensor:
        """Component of each row ``[rows]``: that of the row's sample, or of the row itself where the state has it."""
        component = spec.component
        index = component.to(like.device) if isinstance(component, Tensor) else self.index(spec.n, like, spec)
        return index.repeat_interleave(rows_per_sample(rows, index.shape[0]), output_size=rows)

    def fixed_index(self, n: int, like: Tensor, spec: Sampling) -> Tensor | None:
        """The index ``[n]`` where the sampling state settles it, None where it is to be drawn."""
        component = spec.component
        if isinstance(component, Tensor):
            raise ValueError(
                f"components were given per row, but {self.name} has a layer that draws one weight for all rows of a "
                "sample; use tile=True"
            )
        if isinstance(component, int):
            if component >= self.components:
                raise ValueError(
                    f"component={component} does not exist: {self.name} has {self.components} components, "
                    f"0 to {self.components - 1}"
                )
            return torch.full((n,), component, device=like.device)
        if component in ("all", "stratified"):
            if component == "all" and n % self.components:
                raise ValueError(
                    f"component='all' needs n to be a multiple of the {self.components} components of {self.name}, "
                    f"not n={n}"
                )
            return (torch.arange(n, device=like.device) + spec.offset) % self.components
        return None
