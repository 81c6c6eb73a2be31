"""predict: samples folded in the batch, in chunks, with the deterministic beginning done once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes._apart import ERRORS
from leanbayes._auto_samples import Settling, deciding_blocks
from leanbayes._chunks import best_chunk, block_rows
from leanbayes._inputs import NanCheck, loader_input, rows, tensors
from leanbayes._modes import eval_mode
from leanbayes._owners import settled
from leanbayes._prediction import Prediction, Statistics, join_statistics
from leanbayes._prefix import Boundary, PrefixRunner, forget_boundary, forget_folding, look_at, sharing_at
from leanbayes._rows import examples_first, map_rows
from leanbayes._sample_plan import SamplePlan, plan_samples
from leanbayes._sampling import (
    Sampling,
    SeededRandom,
    Stream,
    check_seed,
    current_frame,
    current_sampling,
    one_pass,
    sample_seed,
)
from leanbayes.compiling import is_recorded
from leanbayes.nn._every_copy import EveryCopy
from leanbayes.nn._replica import is_compiled
from leanbayes.objectives.likelihoods import Likelihood
from leanbayes.ops import UnevenRowsError


def predict(
    model: nn.Module,
    x: Any,
    samples: int | Literal["auto"] = 20,
    *,
    likelihood: Likelihood | None = None,
    seed: int | None = None,
    chunk: int | None = None,
    joint: bool = False,
    keep: Literal["outputs", "summary"] = "outputs",
    grad: bool = False,
) -> Prediction:
    """Predict with several samples of a converted model.

    Runs in eval mode, restores every module's own mode, and respects an enclosing `sampling`.

    Args:
        model: A converted model; a plain one gives a single sample.
        x: A tensor ``[B, ...]``, a mapping of tensors (passed by keyword), a tuple (by position), or a DataLoader
            (with a progress bar on a terminal; of tuples the first entry is the input).
        samples: Total number of samples. Families with a shared component index are stratified over their components
            (rounded up to a multiple of K); points are evaluated once each. "auto" adds samples, to 8, 16 and so on up
            to 512 in total, until the rows' entropies change by less than 0.01 nats on average (for values: until their
            standard deviations change by less than 1 %); for a loader, the first 1024 rows decide.
        likelihood: How outputs are read; None reads class scores where classes are asked for, and raw outputs
            otherwise.
        seed: Makes the draws repeatable, whatever ran before.
        chunk: Samples per pass, which bounds the memory; None chooses. It is one if a trial on a few rows shows that
            the model mixes folded samples, for instance because it moves the examples to another axis.
        joint: Every sample is one function: the same weights for all rows and, with a seed, for any chunking and on all
            ranks. Otherwise each layer's own estimator draws, or, where that is faster, the rows of a sample share one
            draw: drawn weights instead of flipout, and single factors and masks. Each example's distribution is the
            same.
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
    _check_arguments(model, samples, likelihood, seed, chunk, keep, joint, grad)
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
    if samples == "auto" and _is_held():
        raise ValueError("samples='auto' adds new draws, which sampling(hold=True) does not make; pass a number")
    many = _is_loader(x)

    def empty() -> _Result:
        return _Result(likelihood, keep == "outputs", sums=keep == "summary" or grows, on_cpu=many and not grad)

    with settled(model), eval_mode(model), torch.enable_grad() if grad else torch.no_grad(), ExitStack() as stack:
        run = _Run(model, plan_samples(model, samples, state), state, chunk, base_seed)
        grows = len(run.plan.stages) > 1
        checks = stack.enter_context(_Checks())
        blocks = _batches(model, x, many, chunk, checks)
        first = list(deciding_blocks(blocks, many) if grows else islice(blocks, 1))
        if seed is not None and look_at(model, first[0]).own_noise:
            # What the model draws by itself comes from torch's own generators.
            stack.enter_context(SeededRandom(seed))
        results = [empty() for _ in first]
        count = _draw_stages(run, first, results)
        for block in blocks:
            results.append(empty())
            results[-1].take(_Passes(run, block).outputs(0, count))
    if keep == "summary":
        return Prediction(None, likelihood, join_statistics([result.statistics for result in results]))
    pieces = [result.whole() for result in results]
    return Prediction(pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1), likelihood)


class _Checks:
    """Looks for NaN in the blocks of a prediction while it runs; a GPU is not waited for."""

    def __init__(self) -> None:
        self.last: NanCheck | None = None

    def __enter__(self) -> _Checks:
        return self

    def add(self, block: Any) -> None:
        """Look at one more block."""
        if self.last is not None:
            self.last.finish()
        self.last = NanCheck(block)

    def __exit__(self, *error: object) -> None:
        # Also after an error, which NaN may have led to.
        if self.last is not None:
            self.last.finish()


class _Result:
    """What is kept of the samples of one block of rows.

    Args:
        likelihood: How outputs are read.
        keeps: Whether the outputs are.
        sums: Whether their sums are.
        on_cpu: Whether outputs move to the CPU.
    """

    def __init__(self, likelihood: Likelihood | None, keeps: bool, *, sums: bool, on_cpu: bool) -> None:
        self.keeps, self.sums, self.on_cpu = keeps, sums, on_cpu
        self.pieces: list[Tensor] = []
        self.statistics = Statistics(likelihood)

    def take(self, parts: Iterable[Tensor]) -> None:
        """Add samples ``[n, B, ...]``."""
        outputs: list[Tensor] = []
        for part in parts:
            if self.sums:
                # Sums that stand beside outputs only decide on the number of samples.
                self.statistics.add(part.detach() if self.keeps else part)
            if self.keeps:
                outputs.append(part)
        if self.keeps:
            whole = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
            self.pieces.append(whole.cpu() if self.on_cpu else whole)

    def whole(self) -> Tensor:
        """All outputs ``[S, B, ...]``."""
        return self.pieces[0] if len(self.pieces) == 1 else torch.cat(self.pieces)


class _Run(NamedTuple):
    """How all blocks of rows are run."""

    model: nn.Module
    plan: SamplePlan
    state: Sampling
    chunk: int | None
    base_seed: int | None


def _draw_stages(run: _Run, blocks: list[Any], results: list[_Result]) -> int:
    """Draw samples of some blocks, stage by stage, until they are enough for their rows; how many that were."""
    passes = [_Passes(run, block) for block in blocks]
    settling = Settling()
    start = 0
    for stop in run.plan.stages:
        for one, result in zip(passes, results):
            result.take(one.outputs(start, stop))
            if len(passes) > 1:
                one.forget()  # what is kept of many blocks may not fit
        start = stop
        if stop < run.plan.stages[-1] and settling.is_reached([result.statistics for result in results]):
            break
    return start


class _Passes:
    """Runs samples of one block of rows, and keeps from one call to the next what they have in common."""

    def __init__(self, run: _Run, x: Any) -> None:
        self.run = run
        self.x = x
        self.compiled = is_compiled(run.model)
        self.runner: PrefixRunner | None = None

    def forget(self) -> None:
        """Keep nothing."""
        self.runner = None

    def outputs(self, start: int, stop: int) -> Iterator[Tensor]:
        """Outputs ``[n, B, ...]`` of the samples from the start-th up to the stop-th, chunk by chunk."""
        model, plan, state, chunk, base_seed = self.run
        found = look_at(model, self.x)
        boundary = found.boundary
        sharing = sharing_at(model, boundary, state, stop - start) if found.folds else None
        alone = not (found.folds or _is_held())
        every_copy = sharing is EveryCopy
        size = 1 if alone else _chunk_size(self.run, stop - start, self.x, boundary, every_copy, self.compiled)
        if self.runner is None:
            boundary = _worthwhile(boundary, size) if sharing is None else boundary
            self.runner = PrefixRunner(
                model, self.x, boundary, sharing, writes_input=found.writes_input, axis=found.axis
            )
        kept = None if torch.is_grad_enabled() or self.compiled else {}
        state = state.replace(kept=kept, marginal=True)
        while start < stop:
            if not self.compiled:
                size = min(size, stop - start)
            sources = _Sources(state)
            try:
                part = _one_chunk(self.runner, self.x, plan, state, start, size, base_seed)
            except UnevenRowsError:
                if size == 1 or _is_held():
                    raise
                # The trial on a few rows has not met layers that see some of the rows alone.
                forget_folding(model)
                sources.restore()
                size = 1
                self.runner = PrefixRunner(model, self.x, None, writes_input=found.writes_input, axis=found.axis)
                continue
            except ERRORS as error:
                sources.restore()
                if _out_of_memory(error):
                    if size == 1:
                        raise
                    size = _smaller(size, model, plan)
                elif self.runner.boundary is None:
                    raise
                else:
                    # The place that was proven does not hold for these rows or arguments: fold the input instead.
                    forget_boundary(model)
                    self.runner = PrefixRunner(model, self.x, None, writes_input=found.writes_input, axis=found.axis)
                continue
            yield part[: stop - start]
            start += size


class _Sources:
    """The sources of noise as they are now, to go back to after a pass that did not work out."""

    def __init__(self, state: Sampling) -> None:
        self.generator, self.stream = state.generator, state.stream
        self.generator_state = None if self.generator is None else self.generator.get_state()
        self.earlier = None if self.stream is None else self.stream.copy()

    def restore(self) -> None:
        """Have the next pass draw what this one was to draw."""
        if self.generator is not None and self.generator_state is not None:
            self.generator.set_state(self.generator_state)
        if self.stream is not None and self.earlier is not None:
            self.stream.go_back_to(self.earlier)


def _one_chunk(
    runner: PrefixRunner, x: Any, plan: SamplePlan, state: Sampling, start: int, size: int, base_seed: int | None
) -> Tensor:
    """Outputs ``[size, B, ...]`` of the samples from the start-th on."""
    count, batch_dim = rows(x, state.batch_dim), state.batch_dim
    spec = state.replace(n=size)
    if isinstance(spec.component, Tensor):  # of each row, whatever the sample
        spec = spec.replace(component=spec.component.repeat(size))
    if plan.components is not None:
        spec = spec.replace(component="random", assigned=plan.components(start, size))
    if base_seed is not None:
        spec = spec.replace(streams=tuple(Stream(sample_seed(base_seed, start + s)) for s in range(size)))
    recorded = is_recorded(runner.model)
    if recorded:
        torch.compiler.cudagraph_mark_step_begin()
    with one_pass(spec, size * count, runner.model):
        folded = runner.run(size)
    if recorded:
        folded = folded.clone()  # the next pass overwrites it
    folded = examples_first(folded, size * count, batch_dim, known=runner.axis)
    if folded.dim() == 0 or folded.shape[0] != size * count:
        raise ValueError(
            f"the model returned {tuple(folded.shape)} for {size} folded samples of {count} examples; expected "
            f"{size * count} rows: the model must treat the rows of a batch alike"
        )
    return folded.unflatten(0, (size, count))


def _worthwhile(boundary: Boundary | None, size: int) -> Boundary | None:
    """The boundary, unless there is nothing to fold or nothing to keep: its replica would cost more than it saves."""
    if boundary is None or not boundary.saves_work:
        return None
    return None if size == 1 and not boundary.before else boundary


def _out_of_memory(error: Exception) -> bool:
    # On the CPU torch has no class of its own for it.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _smaller(size: int, model: nn.Module, plan: SamplePlan) -> int:
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


def _chunk_size(run: _Run, count: int, x: Any, boundary: Boundary | None, every_copy: bool, compiled: bool) -> int:
    """Samples per pass, the same for all passes of so many, so that a compiled model compiles once."""
    if _is_held():
        return count
    chunk = best_chunk(run.model, x, run.state, boundary, every_copy) if run.chunk is None else run.chunk
    if compiled:
        # The later stages of a number that grows are longer, and run in passes of the first one's size.
        chunk = min(chunk, run.plan.stages[0])
    passes = math.ceil(count / min(chunk, count))
    size = math.ceil(count / passes)
    if compiled:
        # Whole rounds of components, so that every pass begins with component 0 and nothing compiles again.
        size = math.ceil(size / run.plan.points) * run.plan.points
    return size


def _drawn_seed(state: Sampling) -> int:
    """A seed for all samples, from the source of the context where it has one."""
    source = state.generator
    if source is None and state.stream is not None:
        source = state.stream.generator(torch.device("cpu"))
    device = "cpu" if source is None else source.device
    return int(torch.randint(2**31, (), generator=source, device=device))


def _is_loader(x: Any) -> bool:
    return isinstance(x, Iterable) and not isinstance(x, (Tensor, Mapping, tuple, list))


def _batches(model: nn.Module, x: Any, many: bool, chunk: int | None, checks: _Checks) -> Iterator[Any]:
    """The batches of a loader on the model's device, or the blocks of one large input."""
    if not many:
        yield from _blocks(x, chunk, checks)
        return
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    reference = next(model.parameters(), None)
    total = len(x) if hasattr(x, "__len__") else None
    found = False
    for batch in track(x, "predict", total=total, transient=True, console=console, disable=not console.is_terminal):
        found = True
        block = _to_device(loader_input(batch), reference)
        if next(tensors(block), None) is None:
            raise TypeError(
                f"predict takes tensors, a mapping or a tuple of them, or a loader of these, but {type(x).__name__} "
                f"gave {type(block).__name__}; convert arrays with torch.as_tensor"
            )
        checks.add(block)
        yield block
    if not found:
        raise ValueError("the loader gave no batch; predict needs at least one example")


def _to_device(x: Any, reference: Tensor | None) -> Any:
    if reference is None:
        return x
    return map_rows(x, lambda t: t.to(reference.device, non_blocking=True))


def _blocks(x: Any, chunk: int | None, checks: _Checks) -> Iterator[Any]:
    batch_dim = current_sampling().batch_dim
    count = rows(x, batch_dim)
    if count == 0:
        raise ValueError("predict needs at least one example, got an empty batch")
    limit = block_rows(next(tensors(x)))
    whole = any(t.dim() <= batch_dim or t.shape[batch_dim] != count for t in tensors(x))
    checks.add(x)
    if chunk is not None or count <= limit or whole or _is_held():
        yield x
        return
    for start in range(0, count, limit):
        size = min(limit, count - start)
        yield map_rows(x, lambda t, start=start, size=size: t.narrow(batch_dim, start, size), batch_dim)


def _check_arguments(
    model: nn.Module,
    samples: int | Literal["auto"],
    likelihood: Likelihood | None,
    seed: int | None,
    chunk: int | None,
    keep: str,
    joint: bool,
    grad: bool,
) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"predict takes an nn.Module, not {type(model).__name__}")
    if likelihood is not None and not isinstance(likelihood, Likelihood):
        raise TypeError(f"likelihood takes one such as lb.Categorical(), not {likelihood!r}")
    if seed is not None:
        check_seed(seed)
    if samples != "auto" and not _is_count(samples):
        raise ValueError(f"predict(samples=...) takes a whole number from 1 or 'auto', not {samples!r}")
    if chunk is not None and not _is_count(chunk):
        raise ValueError(f"predict(chunk=...) takes a whole number from 1, not {chunk!r}")
    for name, value in (("joint", joint), ("grad", grad)):
        if not isinstance(value, bool):
            raise ValueError(f"predict({name}=...) takes True or False, not {value!r}")
    if keep not in ("outputs", "summary"):
        raise ValueError(f"keep is 'outputs' or 'summary', not {keep!r}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
