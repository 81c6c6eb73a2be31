"""predict: samples folded in the batch, in chunks, with the deterministic beginning done once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes._components import balanced, draws_noise, in_turn, mixture_parts
from leanbayes._inputs import check_no_nan, rows, tensors
from leanbayes._modes import eval_mode
from leanbayes._prediction import Prediction, Statistics, join_statistics
from leanbayes._prefix import Boundary, PrefixRunner, forget_boundary, look_at
from leanbayes._rows import map_rows
from leanbayes._sampling import (
    Assigned,
    Sampling,
    SeededRandom,
    Stream,
    current_frame,
    current_sampling,
    one_pass,
    sample_seed,
)
from leanbayes.estimators import estimator
from leanbayes.nn._replica import is_compiled
from leanbayes.nn.layer import BayesianLayer
from leanbayes.nn.norm import NormLayer
from leanbayes.objectives.likelihoods import Likelihood


class _Limits(NamedTuple):
    """What one pass takes where `chunk` is not given: enough to fill the machine, little enough for its caches."""

    rows: int
    wide_rows: int  # rows of images and the like
    drawn_elements: int  # elements of the drawn weights of one layer
    block: int  # rows of one block of a large input


_CPU = _Limits(rows=512, wide_rows=32, drawn_elements=1 << 18, block=1024)
_CUDA = _Limits(rows=8192, wide_rows=1024, drawn_elements=1 << 28, block=4096)
_WIDE_ROW = 1024


def predict(
    model: nn.Module,
    x: Any,
    samples: int = 20,
    *,
    likelihood: Likelihood | None = None,
    seed: int | None = None,
    chunk: int | None = None,
    joint: bool = False,
    keep: Literal["outputs", "summary"] = "outputs",
    grad: bool = False,
) -> Prediction:
    """Predict with several samples of a converted model.

    Runs in eval mode and restores every module's own; obeys an enclosing `sampling`.

    Args:
        model: A converted model; a plain one gives a single sample.
        x: A tensor ``[B, ...]``, a mapping of tensors (passed by keyword), a tuple (by position), or a DataLoader
            (with a progress bar on a terminal; of tuples the first entry is the input).
        samples: Total number of samples. Families with a shared component index are stratified over their
            components (rounded up to a multiple of K); points are evaluated once each.
        likelihood: How outputs are read; None reads class scores where classes are asked for, and raw outputs else.
        seed: Makes the draws repeatable, whatever ran before.
        chunk: Samples per pass, which bounds the memory; None chooses.
        joint: Every sample is one function: the same weights for all rows and, with a seed, for any chunking and on
            all ranks. Else each layer's own estimator draws, which is cheapest and right for each example.
        keep: "outputs" keeps every sample's outputs, "summary" streams them.
        grad: Whether the result can be differentiated.

    Returns:
        A `Prediction`.

    Example:
        >>> import torch, leanbayes as lb
        >>> model = lb.bayesianize(torch.nn.Linear(3, 2), lb.MeanField())
        >>> prediction = lb.predict(model, torch.randn(5, 3), samples=8, seed=0)
        >>> prediction.outputs.shape, prediction.probs.shape
        (torch.Size([8, 5, 2]), torch.Size([5, 2]))
    """
    _check_arguments(model, samples, chunk, keep)
    state = current_sampling()
    if joint:
        state = state.replace(joint=True)
    if state.joint:
        # Of one function the numbers should not depend on how it runs, and compiled code draws others.
        model = getattr(model, "_orig_mod", model)
    if seed is not None:
        state = state.replace(generator=None, stream=Stream(seed))
    base_seed: int | None = None
    if state.joint and not _is_held():
        # Every sample has a seed of its own, so that it is one function whatever the chunking.
        base_seed = _drawn_seed(state) if seed is None else seed
    plan = _plan_samples(model, samples, state)
    many = _is_loader(x)
    pieces: list[Tensor] = []
    summaries: list[Statistics] = []
    with eval_mode(model), torch.enable_grad() if grad else torch.no_grad(), ExitStack() as seeded:
        for number, block in enumerate(_batches(model, x, many, chunk)):
            check_no_nan(block)
            if seed is not None and number == 0 and look_at(model, block).own_noise:
                # What the model draws by itself comes from torch's own generators.
                seeded.enter_context(SeededRandom(seed))
            statistics = Statistics(likelihood) if keep == "summary" else None
            outputs: list[Tensor] = []
            for part in _passes(model, block, plan, state, chunk, base_seed):
                if statistics is not None:
                    statistics.add(part)
                else:
                    outputs.append(part)
            if statistics is not None:
                summaries.append(statistics)
            else:
                whole = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
                pieces.append(whole.cpu() if many and not grad else whole)
    if keep == "summary":
        return Prediction(None, likelihood, join_statistics(summaries))
    return Prediction(pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1), likelihood)


class _SamplePlan:
    """How many samples there are, and which components they use.

    Args:
        count: Number of samples.
        points: Number of combinations of components that take turns, 1 where there is nothing to go through.
        components: ``components(start, n)`` gives those of n samples from the start-th on.
    """

    def __init__(
        self, count: int, points: int = 1, components: Callable[[int, int], dict[int, Assigned]] | None = None
    ) -> None:
        self.count = count
        self.points = points
        self.components = components


def _plan_samples(model: nn.Module, samples: int, state: Sampling) -> _SamplePlan:
    """Which samples a prediction is made of.

    The points of nested mixtures are always all gone through. Of parts that were converted one by one, all
    combinations are where they are no more than the samples; else every part's points come equally often.
    """
    if state.mean is True:
        return _SamplePlan(1)
    random = draws_noise(model)
    parts = mixture_parts(model)
    spread = isinstance(state.component, str) and state.component in ("random", "all") and not state.assigned
    if not parts or not spread:
        return _SamplePlan(samples if random else 1)
    points = math.prod(part.points for part in parts)
    if len(parts) == 1 or points <= samples:
        count = math.ceil(samples / points) * points if random else points
        return _SamplePlan(count, points, lambda start, n: in_turn(parts, n, start % points))
    count = max(samples, *(part.points for part in parts))
    # Drawn once for all samples, so that they are spread evenly however they are chunked.
    drawn = balanced(parts, count, torch.zeros(()), state.replace(streams=None))
    index = {group: [int(k) for k in given.index] for group, given in drawn.items()}

    def some(start: int, n: int) -> dict[int, Assigned]:
        return {group: Assigned(tuple(each[(start + s) % count] for s in range(n))) for group, each in index.items()}

    return _SamplePlan(count, 1, some)


def _passes(
    model: nn.Module, x: Any, plan: _SamplePlan, state: Sampling, chunk: int | None, base_seed: int | None
) -> Iterator[Tensor]:
    """Outputs ``[n, B, ...]`` of all samples of one batch, chunk by chunk."""
    boundary = look_at(model, x).boundary
    size = _chunk_size(model, plan, x, chunk, state, boundary)
    runner = PrefixRunner(model, x, _worthwhile(boundary, size))
    kept = None if torch.is_grad_enabled() or is_compiled(model) else {}
    state = state.replace(kept=kept)
    start = 0
    while start < plan.count:
        try:
            part = _one_chunk(runner, x, plan, state, start, size, base_seed)
        except RuntimeError as error:
            if _out_of_memory(error):
                if size == 1:
                    raise
                size = _smaller(size, model, plan)
            elif runner.boundary is None:
                raise
            else:
                # The place that was proven on a few rows does not hold for these: fold the input instead.
                forget_boundary(model)
                runner = PrefixRunner(model, x, None)
            continue
        yield part[: plan.count - start]
        start += size


def _one_chunk(
    runner: PrefixRunner, x: Any, plan: _SamplePlan, state: Sampling, start: int, size: int, base_seed: int | None
) -> Tensor:
    """Outputs ``[size, B, ...]`` of the samples from the start-th on."""
    count, batch_dim = rows(x, state.batch_dim), state.batch_dim
    spec = state.replace(n=size)
    if plan.components is not None:
        spec = spec.replace(component="random", assigned=plan.components(start, size))
    if base_seed is not None:
        spec = spec.replace(streams=tuple(Stream(sample_seed(base_seed, start + s)) for s in range(size)))
    with one_pass(spec, size * count):
        folded = runner.run(size)
    if batch_dim and folded.dim() > batch_dim and folded.shape[batch_dim] == size * count:
        folded = folded.movedim(batch_dim, 0)
    if folded.dim() == 0 or folded.shape[0] != size * count:
        raise ValueError(
            f"the model returned {tuple(folded.shape)} for {size} folded samples of {count} examples; expected "
            f"{size * count} rows: the model must treat the rows of a batch alike"
        )
    return folded.unflatten(0, (size, count))


def _worthwhile(boundary: Boundary | None, size: int) -> Boundary | None:
    """The boundary, unless there is nothing to fold and nothing to keep: it would cost more than it saves."""
    return None if boundary is not None and size == 1 and not boundary.before else boundary


def _out_of_memory(error: RuntimeError) -> bool:
    # On the CPU torch has no class of its own for it.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _smaller(size: int, model: nn.Module, plan: _SamplePlan) -> int:
    """About half as many samples per pass, after one has not fit."""
    half = max(1, size // 2)
    if is_compiled(model) and half >= plan.points:
        half -= half % plan.points
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return half


def _is_held() -> bool:
    frame = current_frame()
    return frame is not None and frame.held


def _chunk_size(
    model: nn.Module, plan: _SamplePlan, x: Any, chunk: int | None, state: Sampling, boundary: Boundary | None
) -> int:
    """Samples per pass, the same for all passes, so that a compiled model compiles once."""
    if _is_held():
        return plan.count
    if chunk is None:
        chunk = _best_chunk(model, x, state, boundary)
    passes = math.ceil(plan.count / min(chunk, plan.count))
    size = math.ceil(plan.count / passes)
    if is_compiled(model):
        # Whole rounds of components, so that every pass begins with component 0 and nothing compiles again.
        size = math.ceil(size / plan.points) * plan.points
    return size


def _best_chunk(model: nn.Module, x: Any, state: Sampling, boundary: Boundary | None) -> int:
    """Samples that are worth folding: small passes cost overhead, large ones leave the caches."""
    first = next(tensors(x))
    limits = _CUDA if first.device.type == "cuda" else _CPU
    count = rows(x, state.batch_dim)
    width = first.numel() // max(count, 1) if boundary is None else boundary.width
    rows_wanted = limits.wide_rows if width > _WIDE_ROW else limits.rows
    drawn = _drawn_elements(model, state)
    if width > _WIDE_ROW and (drawn or any(isinstance(layer, NormLayer) for layer in model.modules())):
        # Convolutions apply drawn weights one after the other, and a norm with a scale per row reads more than one
        # with a scale for all: folding saves only the calls between.
        rows_wanted //= 4
    chunk = rows_wanted // max(count, 1)
    if drawn:
        chunk = min(chunk, limits.drawn_elements // drawn)
    return max(1, chunk)


def _drawn_elements(model: nn.Module, state: Sampling) -> int:
    """Elements of the largest weight that a pass draws."""
    layers = [layer for layer in model.modules() if isinstance(layer, BayesianLayer)]
    drawing = (layer for layer in layers if state.joint or estimator(layer.estimator_otherwise).draws_weight)
    return max((layer.weight.numel() for layer in drawing), default=0)


def _drawn_seed(state: Sampling) -> int:
    """A seed for all samples, from the source of the context where it has one."""
    source = state.generator
    if source is None and state.stream is not None:
        source = state.stream.generator(torch.device("cpu"))
    device = "cpu" if source is None else source.device
    return int(torch.randint(2**31, (), generator=source, device=device))


def _is_loader(x: Any) -> bool:
    return isinstance(x, Iterable) and not isinstance(x, (Tensor, Mapping, tuple, list))


def _batches(model: nn.Module, x: Any, many: bool, chunk: int | None) -> Iterator[Any]:
    """The batches of a loader on the model's device, or the blocks of one large input."""
    if not many:
        yield from _blocks(x, chunk)
        return
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    reference = next(model.parameters(), None)
    total = len(x) if hasattr(x, "__len__") else None
    found = False
    for batch in track(x, "predict", total=total, transient=True, console=console, disable=not console.is_terminal):
        found = True
        yield _to_device(_loader_input(batch), reference)
    if not found:
        raise ValueError("the loader gave no batch; predict needs at least one example")


def _loader_input(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return {key: value for key, value in batch.items() if key not in ("labels", "label")}
    return batch[0] if isinstance(batch, (tuple, list)) else batch


def _to_device(x: Any, reference: Tensor | None) -> Any:
    if reference is None:
        return x
    return map_rows(x, lambda t: t.to(reference.device, non_blocking=True))


def _blocks(x: Any, chunk: int | None) -> Iterator[Any]:
    batch_dim = current_sampling().batch_dim
    count = rows(x, batch_dim)
    if count == 0:
        raise ValueError("predict needs at least one example, got an empty batch")
    limit = (_CUDA if next(tensors(x)).device.type == "cuda" else _CPU).block
    whole = any(t.dim() <= batch_dim or t.shape[batch_dim] != count for t in tensors(x))
    if chunk is not None or count <= limit or whole or _is_held():
        yield x
        return
    for start in range(0, count, limit):
        size = min(limit, count - start)
        yield map_rows(x, lambda t, start=start, size=size: t.narrow(batch_dim, start, size), batch_dim)


def _check_arguments(model: nn.Module, samples: int, chunk: int | None, keep: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"predict takes an nn.Module, not {type(model).__name__}")
    for name, value in (("samples", samples), ("chunk", chunk)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"predict({name}=...) takes a whole number from 1, not {value!r}")
    if keep not in ("outputs", "summary"):
        raise ValueError(f"keep is 'outputs' or 'summary', not {keep!r}")
