"""Work before the first random layer is done once: where samples can be folded in as late as possible."""

from __future__ import annotations

import threading
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from leanbayes._inputs import call, output_tensor, rows, tensors
from leanbayes._owners import fingerprint
from leanbayes._rows import map_rows
from leanbayes._sampling import Sampling, current_sampling, fold, using
from leanbayes.nn._base import Converted
from leanbayes.nn._every_copy import EveryCopy, pays
from leanbayes.nn._replica import is_compiled, replica
from leanbayes.nn._shared_moments import SharedMoments, shares_moments

Sharing = type[EveryCopy] | type[SharedMoments]


class Boundary:
    """The module at whose entry samples are folded in, and what runs before it.

    Attributes:
        name: The module's name.
        folded: Which tensors of its flattened arguments carry the batch.
        before: Names of the modules that finish before it begins, outermost ones only.
        width: Elements of its input per example.
        once: Whether a pass enters it once.
    """

    def __init__(self, name: str, folded: tuple[bool, ...], before: tuple[str, ...], width: int, once: bool) -> None:
        self.name = name
        self.folded = folded
        self.before = before
        self.width = width
        self.once = once


class Findings(NamedTuple):
    """What a look at a model has shown.

    Attributes:
        modules: What it consisted of when it was looked at.
        boundary: Where samples can be folded in, None for its input.
        own_noise: Whether it draws from torch's generators by itself, whatever its converted layers do.
    """

    modules: list[Any]
    boundary: Boundary | None
    own_noise: bool


_LOCK = threading.Lock()
_FOUND: weakref.WeakKeyDictionary[nn.Module, Findings] = weakref.WeakKeyDictionary()


def look_at(model: nn.Module, x: Any) -> Findings:
    """What predictions need to know of a model, found on a few rows of x and kept as long as it keeps its modules."""
    modules = fingerprint(model)
    with _LOCK:
        found = _FOUND.get(model)
    if found is None or found.modules != modules:
        found = _look_at(model, x, modules)
        with _LOCK:
            _FOUND[model] = found
    return found


def find_boundary(model: nn.Module, x: Any) -> Boundary | None:
    """The latest place to fold samples in, proven on a few rows of x; None where that is the input itself.

    The proof runs the model on means: folding late must give every sample the output of the plain run, and every
    random layer n times its input. Compiled models run as they are.
    """
    return look_at(model, x).boundary


def _look_at(model: nn.Module, x: Any, modules: list[Any]) -> Findings:
    device = next(tensors(x)).device
    before = _generator_state(device)
    boundary = None
    try:
        if current_sampling().batch_dim or isinstance(model, Converted) or is_compiled(model):
            with using(Sampling(mean=True, batch_dim=current_sampling().batch_dim)), torch.no_grad():
                call(replica(model), x)
        else:
            boundary = _search(model, x)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError):
        boundary = None  # a model that does not run on three rows is simply folded at its input
    after = _generator_state(device)
    own_noise = any(not torch.equal(one, other) for one, other in zip(before, after))
    return Findings(modules, boundary, own_noise)


def _generator_state(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def forget_boundary(model: nn.Module) -> None:
    """Fold this model at its input from now on."""
    with _LOCK:
        found = _FOUND.get(model)
        if found is not None:
            _FOUND[model] = found._replace(boundary=None)


class PrefixRunner:
    """Runs one batch several times with folded samples, its deterministic beginning only once.

    Where there is such a beginning it runs a replica of the model, so that nothing changes on the model itself.

    Args:
        model: The model, in eval mode.
        x: One batch.
        boundary: Where to fold, None for the input.
        sharing: What runs in the place of the layer there, see `sharing_at`.
    """

    def __init__(self, model: nn.Module, x: Any, boundary: Boundary | None, sharing: Sharing | None = None) -> None:
        self.model = model
        self.x = x
        self.boundary = boundary
        self.sharing = sharing
        self.shared: list[Any] = []  # what it keeps
        self.kept: dict[str, list[Any]] = {}
        # What runs after the first pass, by the number of samples: making a replica takes longer than a small layer.
        self.prepared: dict[int, tuple[nn.Module, list[_Replay]]] = {}

    def run(self, n: int) -> Tensor:
        """Outputs ``[n * B, ...]`` of n folded samples, in the sampling state in force."""
        if self.boundary is None:
            return output_tensor(call(self.model, fold(self.x, n, current_sampling().batch_dim)))
        if self.boundary.before and not self.kept:
            running = self._foldable(n)
            for name in self.boundary.before:
                running.get_submodule(name).register_forward_hook(_Record(self.kept.setdefault(name, [])))
            return output_tensor(call(running, self.x))
        if n not in self.prepared:
            running = self._foldable(n)
            replays = [_Replay(self.kept[name]) for name in self.boundary.before]
            for name, replay in zip(self.boundary.before, replays):
                running.get_submodule(name).forward = replay  # pyright: ignore[reportAttributeAccessIssue]
            self.prepared[n] = running, replays
        running, replays = self.prepared[n]
        for replay in replays:
            replay.rewind()
        return output_tensor(call(running, self.x))

    def _foldable(self, n: int) -> nn.Module:
        assert self.boundary is not None
        running = replica(self.model, own_hooks=True)
        if self.sharing is not None:
            layer: Any = running.get_submodule(self.boundary.name)
            layer.forward = self.sharing(layer, n, self.shared)
        elif n > 1:
            _fold_at(running, self.boundary, n)
        return running


def sharing_at(model: nn.Module, boundary: Boundary | None, state: Sampling, samples: int) -> Sharing | None:
    """What spares the layer where samples are folded in some of its work, None where each sample is computed whole."""
    if boundary is None or not boundary.once or boundary.folded != (True,):
        return None
    layer = model.get_submodule(boundary.name)
    if pays(layer, state, samples):
        return EveryCopy
    return SharedMoments if samples > 1 and shares_moments(layer, state) else None


class _Record:
    def __init__(self, outputs: list[Any]) -> None:
        self.outputs = outputs

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.outputs.append(output)


class _Replay:
    def __init__(self, outputs: list[Any]) -> None:
        self.outputs = outputs
        self.rest = iter(outputs)

    def rewind(self) -> None:
        """Begin with the first output again."""
        self.rest = iter(self.outputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return next(self.rest)


def _fold_at(running: nn.Module, boundary: Boundary, n: int) -> None:
    """Have a replica fold the boundary's arguments when it is entered."""

    def enter(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        leaves, spec = tree_flatten((args, kwargs))
        leaves = [fold(leaf, n) if folds else leaf for leaf, folds in zip(leaves, boundary.folded)]
        return tree_unflatten(leaves, spec)

    running.get_submodule(boundary.name).register_forward_pre_hook(enter, with_kwargs=True, prepend=True)


def _search(model: nn.Module, x: Any) -> Boundary | None:
    count = rows(x)
    three, two = _few_rows(x, count, 3), _few_rows(x, count, 2)
    state = Sampling(mean=True)
    with using(state), torch.no_grad():
        trace, other = _trace(model, three), _trace(model, two)
        for name in trace.candidates:
            folded = tuple(
                isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() > 0 and (len(a), len(b)) == (3, 2)
                for a, b in zip(trace.arguments[name], other.arguments[name])
            )
            width = sum(a.numel() for a, folds in zip(trace.arguments[name], folded) if folds) // 3
            boundary = Boundary(name, folded, trace.before(name), width, trace.entries.count(name) == 1)
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
        self.entries: list[str] = []
        self.random_inputs: list[int] = []
        self.output: Tensor | None = None

    def before(self, name: str) -> tuple[str, ...]:
        """Modules that are done when `name` is entered and whose caller is not: what need not run again."""
        done = self.finished[: self.entered_at[name]]
        open_modules = {"", *self.candidates[self.candidates.index(name) + 1 :]}
        return tuple(
            dict.fromkeys(inner for callers, inner in done if (callers[-1] if callers else "") in open_modules)
        )


def _trace(model: nn.Module, x: Any, boundary: Boundary | None = None, n: int = 1) -> _Trace:
    """Run a replica whose modules tell when they are entered and left, with samples folded at a boundary."""
    trace = _Trace()
    running = replica(model, own_hooks=True)

    def watch(name: str, module: nn.Module) -> None:
        def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
            is_random = isinstance(module, Converted)
            trace.entries.append(name)
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

        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave)

    for name, module in running.named_modules():
        if name:
            watch(name, module)
    if boundary is not None:
        _fold_at(running, boundary, n)
    trace.output = output_tensor(call(running, x))
    return trace


def _proves(model: nn.Module, x: Any, boundary: Boundary, trace: _Trace, state: Sampling) -> bool:
    n = 2
    try:
        with using(state.replace(n=n)):
            late = _trace(model, x, boundary, n)
    except (RuntimeError, ValueError, IndexError):
        return False  # a skip around this place meets rows of another number: try further out
    assert trace.output is not None and late.output is not None
    expected = fold(trace.output, n)
    if late.output.shape != expected.shape or late.random_inputs != [n * size for size in trace.random_inputs]:
        return False
    close = torch.isclose(late.output, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()) + 1e-12)
    return bool((close | (late.output.isnan() & expected.isnan())).all())
