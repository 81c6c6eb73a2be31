"""A whole optimiser step as one CUDA graph, which spares a small network the time between its kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten, tree_unflatten

from leanbayes._sampling import current_sampling
from leanbayes.objectives.elbo import Terms
from leanbayes.training.data import Batch

_ONE_AT_A_TIME = threading.RLock()
# Steps that run as ever before the recording: lazily made buffers and chosen algorithms are then there.
_WARM_UP = 3


class CannotRecord(RuntimeError):
    """A step cannot be recorded; nothing of it has run."""


class GraphedStep:
    """Runs an optimiser step eagerly a few times, then records it and plays the recording.

    A recording is good for batches of one shape; others, such as an epoch's last one, run eagerly. What changes from
    step to step is read from memory: the batch, the learning rates (tensors from the recording on) and the KL weight.

    Args:
        step: Runs forward and backward on a batch and steps the optimiser, on gradients that are zeroed here; must
            not wait for the device.
        optimizer: The optimiser that it steps.
        device: The GPU.
        noise: A generator that the step draws from beside torch's own, that of the sampling state where None; every
            replay moves it on.
    """

    def __init__(
        self,
        step: Callable[[Batch], Terms],
        optimizer: Optimizer,
        device: torch.device,
        noise: torch.Generator | None = None,
    ) -> None:
        self.step = step
        self.noise = noise
        self.optimizer = optimizer
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm = 0

    def __call__(self, batch: Batch) -> tuple[Terms, bool]:
        """One step; and whether it was played, so that the host's own counts must be advanced."""
        if self.graph is None:
            if self.warm < _WARM_UP:
                self.warm += 1
                return self._eagerly(batch), False
            self._record(batch)
        elif not self._fits(batch):
            return self._eagerly(batch), False
        for kept, new in zip(self.inputs, tree_flatten(tuple(batch[:3]))[0]):
            if isinstance(kept, Tensor):
                kept.copy_(new, non_blocking=True)
        assert self.graph is not None
        self.graph.replay()
        return self.terms, True

    def forget(self) -> None:
        """Record anew, after a few steps."""
        self.graph, self.warm = None, 0

    def _eagerly(self, batch: Batch) -> Terms:
        # On the stream of the recording, as autograd keeps to the stream that a parameter was first used on.
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            # The recording writes the gradients where they are now: keep those places.
            self.optimizer.zero_grad(set_to_none=self.graph is None)
            terms = self.step(batch)
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        return terms

    def _record(self, batch: Batch) -> None:
        leaves, spec = tree_flatten(tuple(batch[:3]))
        self.inputs = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        x, y, weights = tree_unflatten(self.inputs, spec)
        for group in self.optimizer.param_groups:
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=self.device)
        self.optimizer.zero_grad(set_to_none=True)
        # One recording at a time in the process; what other threads do meanwhile does not disturb it.
        with _ONE_AT_A_TIME, own_workspaces():
            pool = torch.cuda.graph_pool_handle()
            try:
                with self._recording(pool) as graph:
                    self.terms: Terms = self.step(Batch(x, y, weights, batch.rows))
            except RuntimeError as error:
                self._clear_up(pool)
                raise CannotRecord(
                    "this model's training step cannot be recorded as a CUDA graph, as it waits for the GPU or has "
                    f"shapes that depend on values; set TrainConfig(cuda_graph=False) ({_reason(error)})"
                ) from error
        self.graph = graph

    @contextmanager
    def _recording(self, pool: Any) -> Iterator[torch.cuda.CUDAGraph]:
        graph = torch.cuda.CUDAGraph()
        noise = current_sampling().generator if self.noise is None else self.noise
        if noise is not None and noise.device.type == "cuda":
            graph.register_generator_state(noise)
        with torch.cuda.graph(graph, pool, stream=self.stream, capture_error_mode="thread_local"):
            yield graph

    def _clear_up(self, pool: Any) -> None:
        """End what a failed recording leaves open: its memory pool, and the generators, which then refuse to draw."""
        try:
            torch._C._cuda_endAllocateToPool(self.device.index, pool)
        except RuntimeError:
            pass  # closed already
        self.optimizer.zero_grad(set_to_none=True)  # the gradients there are were never computed
        with self._recording(torch.cuda.graph_pool_handle()):
            torch.empty((), device=self.device).zero_()

    def _fits(self, batch: Batch) -> bool:
        leaves = tree_flatten(tuple(batch[:3]))[0]
        return len(leaves) == len(self.inputs) and all(map(_alike, leaves, self.inputs))


def settings_of(module: nn.Module) -> list[Any]:
    """What a recording of a module's passes depends on beside the values of its tensors, to compare with later."""
    plain = (bool, int, float, str, type(None))
    found: list[Any] = [(p.data_ptr(), p.requires_grad) for p in module.parameters()]
    for part in module.modules():
        found.append({name: value for name, value in vars(part).items() if isinstance(value, plain)})
    return found


def _reason(error: BaseException) -> str:
    """The first error: what follows it says only that there was one."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def own_workspaces() -> Iterator[None]:
    """Let a recording have its own room for matrix products: that of the process may go away before the recording."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype
    return a is b or a == b
