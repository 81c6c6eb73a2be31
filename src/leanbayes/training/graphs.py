"""A whole optimiser step as one CUDA graph, which spares a small network the time between its kernels."""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
# Shapes of batches that are recorded at most: full ones, the last one of an epoch, and a few lengths of sequences.
_MOST_RECORDINGS = 4


class CannotRecord(RuntimeError):
    """A step cannot be recorded; nothing of it has run."""


@dataclass(frozen=True)
class _Recording:
    """A step on batches of one shape: where its batch goes, and where its results are."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Any]
    terms: Terms


class GraphedStep:
    """Runs an optimiser step eagerly a few times, then records it and plays the recording.

    A recording is good for batches of one shape. Another shape that comes again, such as that of an epoch's last batch,
    gets a recording of its own; shapes beyond the first few run eagerly. What changes from step to step is read from
    memory: the batch, the learning rates (tensors from the recording on) and the KL weight.

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
        self.warm = 0
        self._recordings: dict[Any, _Recording] = {}
        # How often other shapes came, until they are recorded.
        self._seen: Counter[Any] = Counter()

    @property
    def graph(self) -> torch.cuda.CUDAGraph | None:
        """The first recording, None before there is one."""
        return next((one.graph for one in self._recordings.values()), None)

    def __call__(self, batch: Batch) -> tuple[Terms, bool]:
        """One step; and whether it was played, so that the host's own counts must be advanced."""
        if not self._recordings and self.warm < _WARM_UP:
            self.warm += 1
            return self._eagerly(batch), False
        leaves = tree_flatten(tuple(batch[:3]))[0]
        shape = tuple(map(_shape, leaves))
        if shape not in self._recordings and not self._try_to_record(shape, batch):
            return self._eagerly(batch), False
        recording = self._recordings[shape]
        for kept, new in zip(recording.inputs, leaves):
            if isinstance(kept, Tensor):
                kept.copy_(new, non_blocking=True)
        recording.graph.replay()
        return recording.terms, True

    def forget(self) -> None:
        """Record anew, after a few steps."""
        self._recordings.clear()
        self._seen.clear()
        self.warm = 0

    def _try_to_record(self, shape: Any, batch: Batch) -> bool:
        """Record a step on batches of a new shape where that pays; whether there is a recording now."""
        if not self._recordings:
            self._recordings[shape] = self._record(batch)
            return True
        self._seen[shape] += 1  # the first time may be the only one, and chooses algorithms
        if self._seen[shape] != 2 or len(self._recordings) == _MOST_RECORDINGS:
            return False
        try:
            self._recordings[shape] = self._record(batch)
        except CannotRecord:
            return False  # the others are as good as they were
        return True

    def _eagerly(self, batch: Batch) -> Terms:
        # On the stream of the recording, as autograd keeps to the stream that a parameter was first used on.
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            # Recordings write the gradients where they are now: keep those places.
            self.optimizer.zero_grad(set_to_none=not self._recordings)
            terms = self.step(batch)
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        return terms

    def _record(self, batch: Batch) -> _Recording:
        first = not self._recordings
        leaves, spec = tree_flatten(tuple(batch[:3]))
        inputs = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        x, y, weights = tree_unflatten(inputs, spec)
        for group in self.optimizer.param_groups:
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=self.device)
        if first:
            self.optimizer.zero_grad(set_to_none=True)
        # One recording at a time in the process; what other threads do meanwhile does not disturb it.
        with _ONE_AT_A_TIME, own_workspaces():
            # Recordings never run side by side, so that all use the memory of the first.
            pool = torch.cuda.graph_pool_handle() if self.graph is None else self.graph.pool()
            try:
                with self._recording(pool) as graph:
                    if not first:
                        self.optimizer.zero_grad(set_to_none=False)
                    terms = self.step(Batch(x, y, weights, batch.rows))
            except RuntimeError as error:
                self._clear_up(pool)
                _let_go(error)
                raise CannotRecord(
                    "this model's training step cannot be recorded as a CUDA graph, as it waits for the GPU or has "
                    f"shapes that depend on values; set TrainConfig(cuda_graph=False) ({_reason(error)})"
                ) from error
        return _Recording(graph, inputs, terms)

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


def settings_of(module: nn.Module) -> list[Any]:
    """What a recording of a module's passes depends on beside the values of its tensors, to compare with later."""
    plain = (bool, int, float, str, type(None))
    found: list[Any] = [(p.data_ptr(), p.requires_grad) for p in module.parameters()]
    for part in module.modules():
        found.append({name: value for name, value in vars(part).items() if isinstance(value, plain)})
    return found


def _let_go(error: BaseException) -> None:
    """Free what a failed step has computed: later steps would meet the gradients' places on its stream."""
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__context__


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


def _shape(leaf: Any) -> Any:
    """What a part of a batch must have in common with that of a recording."""
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype
    return leaf if isinstance(leaf, Hashable) else id(leaf)
