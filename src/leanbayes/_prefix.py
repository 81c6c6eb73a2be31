"""Work before the first random layer is done once: where samples can be folded in as late as possible."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from leanbayes._inputs import call, output_tensor, rows, tensors
from leanbayes._sampling import Sampling, SeededRandom, current_sampling, fold, using
from leanbayes.nn._base import ConvertedLayer
from leanbayes.nn._rows import map_rows
from leanbayes.nn.ensemble import Ensemble


class Boundary:
    """The module at whose entry samples are folded in, and what runs before it.

    Attributes:
        name: The module's name.
        folded: Which tensors of its flattened arguments carry the batch.
        before: Names of the modules that finish before it begins, outermost ones only.
        width: Elements of its input per example.
    """

    def __init__(self, name: str, folded: tuple[bool, ...], before: tuple[str, ...], width: int) -> None:
        self.name = name
        self.folded = folded
        self.before = before
        self.width = width


_FOUND: weakref.WeakKeyDictionary[nn.Module, tuple[Any, Boundary | None]] = weakref.WeakKeyDictionary()


def find_boundary(model: nn.Module, x: Any) -> Boundary | None:
    """The latest place to fold samples in, proven on a few rows of x; None where that is the input itself.

    The proof runs the model on means: folding late must give every sample the output of the plain run, and every
    random layer n times its input. The answer is kept as long as the model lives and keeps its layers.
    """
    key = tuple((name, id(m)) for name, m in model.named_modules() if isinstance(m, (ConvertedLayer, Ensemble)))
    found = _FOUND.get(model)
    if found is not None and found[0] == key:
        return found[1]
    boundary = None
    if current_sampling().batch_dim == 0 and not isinstance(model, (ConvertedLayer, Ensemble)):
        try:
            with SeededRandom(0):  # a model with randomness of its own goes on as if there had been no search
                boundary = _search(model, x)
        except Exception:  # noqa: BLE001 - a model that does not run on three rows is simply folded at its input
            boundary = None
    _FOUND[model] = (key, boundary)
    return boundary


def forget(model: nn.Module) -> None:
    """Fold this model at its input from now on."""
    found = _FOUND.get(model)
    if found is not None:
        _FOUND[model] = (found[0], None)


class PrefixRunner:
    """Runs one batch several times with folded samples, its deterministic beginning only once.

    Args:
        model: The model, in eval mode.
        x: One batch.
        boundary: Where to fold, None for the input.
    """

    def __init__(self, model: nn.Module, x: Any, boundary: Boundary | None) -> None:
        self.model = model
        self.x = x
        self.boundary = boundary
        self.kept: dict[str, list[Any]] = {}

    def run(self, n: int) -> Tensor:
        """Outputs ``[n * B, ...]`` of n folded samples, in the sampling state in force."""
        if self.boundary is None:
            return output_tensor(call(self.model, fold(self.x, n, current_sampling().batch_dim)))
        folding = _folding_at(self.model, self.boundary, n) if n > 1 else nullcontext()
        with folding, self._beginning(replay=bool(self.kept)):
            return output_tensor(call(self.model, self.x))

    @contextmanager
    def _beginning(self, replay: bool) -> Iterator[None]:
        assert self.boundary is not None
        undo: list[Callable[[], None]] = []
        try:
            for name in self.boundary.before:
                module = self.model.get_submodule(name)
                if replay:
                    module.forward = _Replay(self.kept[name])  # pyright: ignore[reportAttributeAccessIssue]
                    undo.append(lambda module=module: delattr(module, "forward"))
                else:
                    handle = module.register_forward_hook(_Record(self.kept.setdefault(name, [])))
                    undo.append(handle.remove)
            yield
        finally:
            for step in undo:
                step()


class _Record:
    def __init__(self, outputs: list[Any]) -> None:
        self.outputs = outputs

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.outputs.append(output)


class _Replay:
    def __init__(self, outputs: list[Any]) -> None:
        self.rest = iter(outputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return next(self.rest)


@contextmanager
def _folding_at(model: nn.Module, boundary: Boundary, n: int) -> Iterator[None]:
    """While it lasts, the boundary's arguments are folded when it is entered."""

    def enter(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        leaves, spec = tree_flatten((args, kwargs))
        leaves = [fold(leaf, n) if folds else leaf for leaf, folds in zip(leaves, boundary.folded)]
        return tree_unflatten(leaves, spec)

    handle = model.get_submodule(boundary.name).register_forward_pre_hook(enter, with_kwargs=True, prepend=True)
    try:
        yield
    finally:
        handle.remove()


def _search(model: nn.Module, x: Any) -> Boundary | None:
    count = rows(x)
    three, two = _few_rows(x, count, 3), _few_rows(x, count, 2)
    state = current_sampling().replace(n=1, mean=True, component="random", generators=None, held=None)
    with using(state), torch.no_grad():
        trace, other = _trace(model, three), _trace(model, two)
        for name in trace.candidates:
            folded = tuple(
                isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() > 0 and (len(a), len(b)) == (3, 2)
                for a, b in zip(trace.arguments[name], other.arguments[name])
            )
            width = sum(a.numel() for a, folds in zip(trace.arguments[name], folded) if folds) // 3
            boundary = Boundary(name, folded, trace.before(name), width)
            if any(folded) and _proves(model, three, boundary, trace, state):
                return boundary
    return None


def _few_rows(x: Any, count: int, wanted: int) -> Any:
    """A few rows of a batch, the last one repeated (and scaled, so that rows differ) where there are too few."""

    def take(t: Tensor) -> Tensor:
        if t.shape[0] != count:
            return t
        some = t[:wanted]
        for i in range(wanted - some.shape[0]):
            extra = t[-1:] * (1.1 + 0.1 * i) if t.is_floating_point() else t[-1:]
            some = torch.cat([some, extra])
        return some

    return map_rows(x, take)


class _Trace:
    """Which modules a pass enters and leaves, until the first random layer is entered."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.finished: list[tuple[tuple[str, ...], str]] = []
        self.candidates: list[str] = []
        self.arguments: dict[str, list[Any]] = {}
        self.entered_at: dict[str, int] = {}
        self.random_inputs: list[int] = []
        self.output: Tensor | None = None

    def before(self, name: str) -> tuple[str, ...]:
        """Modules that are done when `name` is entered and whose caller is not: what need not run again."""
        done = self.finished[: self.entered_at[name]]
        open_modules = {"", *self.candidates[self.candidates.index(name) + 1 :]}
        return tuple(
            dict.fromkeys(inner for callers, inner in done if (callers[-1] if callers else "") in open_modules)
        )


def _trace(model: nn.Module, x: Any) -> _Trace:
    trace = _Trace()
    handles = []

    def watch(name: str, module: nn.Module) -> None:
        def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
            is_random = isinstance(module, (ConvertedLayer, Ensemble))
            if is_random:
                trace.random_inputs.append(sum(t.numel() for t in tensors((args, kwargs))))
            if trace.candidates:
                return
            trace.stack.append(name)
            trace.arguments[name] = tree_flatten((args, kwargs))[0]
            trace.entered_at[name] = len(trace.finished)
            if is_random:
                trace.candidates = trace.stack[::-1]

        def leave(_: nn.Module, args: Any, output: Any) -> None:
            if not trace.candidates:
                trace.stack.pop()
                trace.finished.append((tuple(trace.stack), name))

        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave))

    for name, module in model.named_modules():
        if name:
            watch(name, module)
    try:
        trace.output = output_tensor(call(model, x))
    finally:
        for handle in handles:
            handle.remove()
    return trace


def _proves(model: nn.Module, x: Any, boundary: Boundary, trace: _Trace, state: Sampling) -> bool:
    n = 2
    try:
        with using(state.replace(n=n)), _folding_at(model, boundary, n):
            late = _trace(model, x)
    except Exception:  # noqa: BLE001 - a skip around this place meets rows of another number: try further out
        return False
    assert trace.output is not None and late.output is not None
    expected = fold(trace.output, n)
    if late.output.shape != expected.shape or late.random_inputs != [n * size for size in trace.random_inputs]:
        return False
    close = torch.isclose(late.output, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()) + 1e-12)
    return bool((close | (late.output.isnan() & expected.isnan())).all())
