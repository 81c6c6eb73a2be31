"""predict: samples folded in the batch, in chunks, with the deterministic beginning done once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes._inputs import check_no_nan, rows, tensors
from leanbayes._kl import random_parameters, shared_components
from leanbayes._prediction import Prediction, Statistics, join_statistics
from leanbayes._prefix import Boundary, PrefixRunner, find_boundary, forget
from leanbayes._sampling import Sampling, SeededRandom, current_sampling, one_pass
from leanbayes.nn._rows import map_rows
from leanbayes.nn.dropout import DropoutLayer
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
    if seed is not None:
        state = state.replace(generator=None)
    if state.joint:
        # Joint draws come from one generator per sample, which cannot enter a compiled graph.
        model = getattr(model, "_orig_mod", model)
    plan = _plan_samples(model, samples, state)
    many = _is_loader(x)
    gradients = torch.enable_grad() if grad else torch.no_grad()
    seeded: AbstractContextManager = nullcontext()
    base_seed: int | None = None
    if state.joint and state.held is None:
        # Every sample has a seed of its own, so that it is one function whatever the chunking.
        base_seed = _drawn_seed(state.generator) if seed is None else seed
    elif seed is not None:
        seeded = SeededRandom(seed)
    pieces: list[Tensor] = []
    summaries: list[Statistics] = []
    with _eval_mode(model), gradients, seeded:
        for block in _batches(model, x, many, chunk):
            check_no_nan(block)
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
    """How many samples there are, which components they use, and how many of those there are to go through."""

    def __init__(self, count: int, component: Any, components: int = 1) -> None:
        self.count = count
        self.component = component
        self.components = components


def _plan_samples(model: nn.Module, samples: int, state: Sampling) -> _SamplePlan:
    components = shared_components(model)
    random = _draws_noise(model)
    if state.mean is True:
        return _SamplePlan(1, state.component)
    if components > 1 and state.component in ("random", "all"):
        count = math.ceil(samples / components) * components if random else components
        return _SamplePlan(count, "stratified", components)
    return _SamplePlan(samples if random else 1, state.component)


def _draws_noise(model: nn.Module) -> bool:
    """Whether outputs differ between draws of one component."""
    if any(not parameter.posterior.deterministic() for parameter in random_parameters(model)):
        return True
    return any(isinstance(module, DropoutLayer) and module.p > 0 for module in model.modules())


def _passes(
    model: nn.Module, x: Any, plan: _SamplePlan, state: Sampling, chunk: int | None, base_seed: int | None
) -> Iterator[Tensor]:
    """Outputs ``[n, B, ...]`` of all samples of one batch, chunk by chunk."""
    count = rows(x, state.batch_dim)
    compiled = hasattr(model, "_orig_mod")
    boundary = None if compiled else find_boundary(model, x)
    size = _chunk_size(model, plan, x, chunk, state, boundary)
    if size == 1 and boundary is not None and not boundary.before:
        # Nothing to fold and nothing to keep: hooks would cost more than they save.
        boundary = None
    runner = PrefixRunner(model, x, boundary)
    device = next(tensors(x)).device
    kept = None if compiled or torch.is_grad_enabled() else {}
    state = state.replace(n=size, component=plan.component, offset=0, kept=kept)
    for start in range(0, plan.count, size):
        spec = state.replace(offset=start % plan.components) if plan.components > 1 else state
        if base_seed is not None:
            seeds = [_sample_seed(base_seed, start + s) for s in range(size)]
            spec = spec.replace(generators=tuple(torch.Generator(device).manual_seed(s) for s in seeds))
        with one_pass(spec):
            try:
                folded = runner.run(size)
            except Exception:
                if boundary is None:
                    raise
                # The place that was proven on a few rows does not hold for these: fold the input instead.
                forget(model)
                boundary, runner = None, PrefixRunner(model, x, None)
                folded = runner.run(size)
        if state.batch_dim and folded.dim() > state.batch_dim and folded.shape[state.batch_dim] == size * count:
            folded = folded.movedim(state.batch_dim, 0)
        if folded.dim() == 0 or folded.shape[0] != size * count:
            raise ValueError(
                f"the model returned {tuple(folded.shape)} for {size} folded samples of {count} examples; expected "
                f"{size * count} rows: the model must treat the rows of a batch alike"
            )
        yield folded.unflatten(0, (size, count))[: plan.count - start]


def _chunk_size(
    model: nn.Module, plan: _SamplePlan, x: Any, chunk: int | None, state: Sampling, boundary: Boundary | None
) -> int:
    """Samples per pass, the same for all passes, so that a compiled model compiles once."""
    if state.held is not None:
        return plan.count
    if chunk is None:
        chunk = _best_chunk(model, x, state, boundary)
    passes = math.ceil(plan.count / min(chunk, plan.count))
    size = math.ceil(plan.count / passes)
    if hasattr(model, "_orig_mod"):
        # Whole rounds of components, so that every pass begins with component 0 and nothing compiles again.
        size = math.ceil(size / plan.components) * plan.components
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
    drawing = (layer for layer in layers if state.joint or layer.estimator in ("weight", "flipout"))
    return max((layer.weight.numel() for layer in drawing), default=0)


def _drawn_seed(generator: torch.Generator | None) -> int:
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**31, (), generator=generator, device=device))


def _sample_seed(base: int, sample: int) -> int:
    # Odd multipliers spread neighbouring samples over the seeds; the modulus keeps them in torch's range.
    return (base * 0x9E3779B97F4A7C15 + (sample + 1) * 0xBF58476D1CE4E5B9) % (2**63)


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
    if chunk is not None or count <= limit or whole or current_sampling().held is not None:
        yield x
        return
    for start in range(0, count, limit):
        size = min(limit, count - start)
        yield map_rows(x, lambda t, start=start, size=size: t.narrow(batch_dim, start, size), batch_dim)


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode for all modules, each one's own restored afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _check_arguments(model: nn.Module, samples: int, chunk: int | None, keep: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"predict takes an nn.Module, not {type(model).__name__}")
    for name, value in (("samples", samples), ("chunk", chunk)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"predict({name}=...) takes a whole number from 1, not {value!r}")
    if keep not in ("outputs", "summary"):
        raise ValueError(f"keep is 'outputs' or 'summary', not {keep!r}")
