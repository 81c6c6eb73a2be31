"""Work before the first random layer is done once: where samples can be folded in as late as possible."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from leanbayes._apart import ERRORS, copied, few_rows, folds_apart, generator_state
from leanbayes._inputs import call, output_tensor, rows, tensors
from leanbayes._owners import fingerprint
from leanbayes._rows import example_axes
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
        before: Names of the modules that finish before it begins, outermost ones only, and that compute something.
        width: Elements of its input per example.
        once: Whether a pass enters it once.
        at_input: Whether it is entered with the model's input as it is.
        copies: Whether every pass needs copies of what those modules returned, as it writes into them.
    """

    def __init__(
        self,
        name: str,
        folded: tuple[bool, ...],
        before: tuple[str, ...],
        width: int,
        once: bool,
        *,
        at_input: bool = False,
        copies: bool = False,
    ) -> None:
        self.name = name
        self.folded = folded
        self.before = before
        self.width = width
        self.once = once
        self.at_input = at_input
        self.copies = copies

    @property
    def saves_work(self) -> bool:
        """Whether folding there does less than folding at the input."""
        return bool(self.before) or not self.at_input


class Findings(NamedTuple):
    """What a look at a model has shown.

    Attributes:
        modules: What it consisted of when it was looked at.
        boundary: Where samples can be folded in, None for its input.
        own_noise: Whether it draws from torch's generators by itself, whatever its converted layers do.
        writes_input: Whether it writes into its input, so that every pass needs a copy.
        batch_dim: Axis of the examples when it was looked at.
        axis: That in its output, where they are not on the first axis of the input.
        folds: Whether folded samples get what each of them gets alone, as far as could be seen.
    """

    modules: list[Any]
    boundary: Boundary | None
    own_noise: bool
    writes_input: bool
    batch_dim: int
    axis: int | None
    folds: bool


_LOCK = threading.Lock()
_FOUND: weakref.WeakKeyDictionary[nn.Module, Findings] = weakref.WeakKeyDictionary()


def look_at(model: nn.Module, x: Any) -> Findings:
    """What predictions need to know of a model, found on a few rows of x and kept as long as it keeps its modules."""
    modules = fingerprint(model)
    with _LOCK:
        found = _FOUND.get(model)
    if found is None or (found.modules, found.batch_dim) != (modules, current_sampling().batch_dim):
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
    device, batch_dim = next(tensors(x)).device, current_sampling().batch_dim
    before = generator_state(device)
    boundary = axis = some = None
    untouched: list[int] = []
    try:
        # Another number of rows would compile again.
        some = copied(x if is_compiled(model) else few_rows(x, rows(x, batch_dim), 3, batch_dim))
        untouched = _versions(some)
        if batch_dim and not is_compiled(model):
            fewer = copied(few_rows(x, rows(x, batch_dim), 2, batch_dim))
            shapes = [_output_shape(model, each) for each in (some, fewer)]
            (axis,) = example_axes(shapes, [3, 2], batch_dim)
        elif batch_dim or isinstance(model, Converted) or is_compiled(model):
            _output_shape(model, some)
        else:
            boundary = _search(model, x, some)
    except ERRORS:
        boundary = None  # a model that does not run on three rows is simply folded at its input
    after = generator_state(device)
    own_noise = any(not torch.equal(one, other) for one, other in zip(before, after))
    writes_input = _versions(some) != untouched
    folds = own_noise or is_compiled(model) or folds_apart(model, x, batch_dim)
    return Findings(modules, boundary, own_noise, writes_input, batch_dim, axis, folds)


def _output_shape(model: nn.Module, x: Any) -> torch.Size:
    with using(Sampling(mean=True, batch_dim=current_sampling().batch_dim)), torch.no_grad():
        return output_tensor(call(replica(model), x)).shape


def forget_boundary(model: nn.Module) -> None:
    """Fold this model at its input from now on."""
    _note(model, boundary=None)


def forget_folding(model: nn.Module) -> None:
    """Run the samples of this model one by one from now on."""
    _note(model, boundary=None, folds=False)


def _note(model: nn.Module, **changes: Any) -> None:
    with _LOCK:
        found = _FOUND.get(model)
        if found is not None:
            _FOUND[model] = found._replace(**changes)


class PrefixRunner:
    """Runs one batch several times with folded samples, its deterministic beginning only once.

    Where there is such a beginning it runs a replica of the model, so that nothing changes on the model itself.

    Args:
        model: The model, in eval mode.
        x: One batch.
        boundary: Where to fold, None for the input.
        sharing: What runs in the place of the layer there, see `sharing_at`.
        writes_input: Whether the model writes into its input, so that every pass needs a copy.
        axis: Axis of the examples in its output, None where that is not known.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Any,
        boundary: Boundary | None,
        sharing: Sharing | None = None,
        *,
        writes_input: bool = False,
        axis: int | None = None,
    ) -> None:
        self.model = model
        self.x = x
        self.axis = axis
        self.boundary = boundary
        self.sharing = sharing
        self.writes_input = writes_input
        self.shared: list[Any] = []  # what it keeps
        self.kept: dict[str, list[Any]] = {}
        # What runs after the first pass, by the number of samples: making a replica takes longer than a small layer.
        self.prepared: dict[int, tuple[nn.Module, list[_Replay]]] = {}
        self.once = _Once()

    def __del__(self) -> None:
        # A module and what runs in the place of its forward refer to each other: what they keep of a batch would stay
        # until Python looks for such circles.
        for outputs in (self.shared, *self.kept.values()):
            outputs.clear()

    def run(self, n: int) -> Tensor:
        """Outputs ``[n * B, ...]`` of n folded samples, in the sampling state in force."""
        x = copied(self.x) if self.writes_input else self.x
        self.once.entered = False
        if self.boundary is None:
            return output_tensor(call(self.model, fold(x, n, current_sampling().batch_dim)))
        if self.boundary.before and not self.kept:
            return output_tensor(call(self._recording(n), x))
        if n not in self.prepared:
            self.prepared[n] = self._replaying(n)
        running, replays = self.prepared[n]
        for replay in replays:
            replay.rewind()
        return output_tensor(call(running, x))

    def _recording(self, n: int) -> nn.Module:
        """What runs first, and keeps what is done before samples are folded in."""
        assert self.boundary is not None
        running = self._foldable(n)
        progress = _Progress()
        for name in self.boundary.before:
            module: Any = running.get_submodule(name)
            module.forward = _Record(module.forward, self.kept.setdefault(name, []), progress, self.boundary.copies)
        running.get_submodule(self.boundary.name).register_forward_pre_hook(progress.enter, prepend=True)
        return running

    def _replaying(self, n: int) -> tuple[nn.Module, list[_Replay]]:
        """What runs afterwards."""
        assert self.boundary is not None
        running = self._foldable(n)
        replays: list[_Replay] = []
        for name in self.boundary.before:
            module: Any = running.get_submodule(name)
            module.forward = _Replay(module.forward, self.kept[name], self.boundary.copies)
            replays.append(module.forward)
        return running, replays

    def _foldable(self, n: int) -> nn.Module:
        assert self.boundary is not None
        running = replica(self.model, own_hooks=True)
        if self.boundary.once:
            running.get_submodule(self.boundary.name).register_forward_pre_hook(self.once, prepend=True)
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


class _Once:
    """Forward pre-hook of a module that was entered once when it was looked at: what it gets later is folded already.

    A model may call its modules more often for other arguments, or for longer sequences.
    """

    def __init__(self) -> None:
        self.entered = False

    def __call__(self, module: nn.Module, args: Any) -> None:
        """Raise where it is entered again in one pass."""
        if self.entered:
            raise RuntimeError("a module where samples are folded in is called more often than it was")
        self.entered = True


class _Progress:
    """How far the pass has come that is recorded."""

    def __init__(self) -> None:
        self.depth = 0  # of recorded modules within recorded modules
        self.entered = False

    def enter(self, module: nn.Module, args: Any) -> None:
        """Note that samples have been folded in."""
        self.entered = True


class _Record:
    """A module's forward that keeps its outputs, up to where samples are folded in.

    Later calls depend on the samples, and those within another such module are not made again.
    """

    def __init__(self, forward: Callable[..., Any], outputs: list[Any], progress: _Progress, copies: bool) -> None:
        self.forward = forward
        self.outputs = outputs
        self.progress = progress
        self.copies = copies

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.progress.depth += 1
        try:
            output = self.forward(*args, **kwargs)
        finally:
            self.progress.depth -= 1
        if not self.progress.depth and not self.progress.entered:
            self.outputs.append(copied(output) if self.copies else output)
        return output


class _Replay:
    """A module's forward that gives the kept outputs in turn; further calls come after them, and are made."""

    def __init__(self, forward: Callable[..., Any], outputs: list[Any], copies: bool) -> None:
        self.forward = forward
        self.outputs = outputs
        self.copies = copies
        self.rest = iter(outputs)

    def rewind(self) -> None:
        """Begin with the first output again."""
        self.rest = iter(self.outputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for output in self.rest:
            return copied(output) if self.copies else output
        return self.forward(*args, **kwargs)


def _versions(x: Any) -> list[int]:
    """How often each tensor was written into, as far as torch counts it."""
    return [t._version for t in tree_flatten(x)[0] if isinstance(t, Tensor) and not t.is_inference()]


def _fold_at(running: nn.Module, boundary: Boundary, n: int) -> None:
    """Have a replica fold the boundary's arguments when it is entered."""

    def enter(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        leaves, spec = tree_flatten((args, kwargs))
        if len(leaves) != len(boundary.folded):
            raise TypeError(f"{boundary.name} is now called with other arguments than when it was looked at")
        leaves = [fold(leaf, n) if folds else leaf for leaf, folds in zip(leaves, boundary.folded)]
        return tree_unflatten(leaves, spec)

    running.get_submodule(boundary.name).register_forward_pre_hook(enter, with_kwargs=True, prepend=True)


def _search(model: nn.Module, x: Any, three: Any) -> Boundary | None:
    two = copied(few_rows(x, rows(x), 2))
    untouched = copied(three)  # a pass may write into what it is given
    state = Sampling(mean=True)
    with using(state), torch.no_grad():
        trace, other = _trace(model, three), _trace(model, two)
        for name in trace.candidates:
            folded = tuple(
                isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() > 0 and (len(a), len(b)) == (3, 2)
                for a, b in zip(trace.arguments[name], other.arguments[name])
            )
            width = sum(a.numel() for a, folds in zip(trace.arguments[name], folded) if folds) // 3
            at_input = all(_is_view(each, three) for each in trace.arguments[name])
            once = trace.entries.count(name) == 1
            boundary = Boundary(name, folded, trace.before(name), width, once, at_input=at_input)
            if any(folded) and _proves(model, untouched, boundary, trace, state):
                return boundary
    return None


class _Trace:
    """Which modules a pass enters and leaves, until the first random layer is entered."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.finished: list[tuple[tuple[str, ...], str]] = []
        self.views: set[str] = set()  # modules that return their model's input as it is
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
        outermost = (inner for callers, inner in done if (callers[-1] if callers else "") in open_modules)
        return tuple(dict.fromkeys(name for name in outermost if name not in self.views))


def _trace(model: nn.Module, x: Any, boundary: Boundary | None = None, n: int = 1) -> _Trace:
    """Run a replica whose modules tell when they are entered and left, with samples folded at a boundary."""
    trace = _Trace()
    running = replica(model, own_hooks=True)
    untouched = _versions(x)

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
                if _is_view(output, x) and _versions(x) == untouched:
                    trace.views.add(name)

        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave)

    for name, module in running.named_modules():
        if name:
            watch(name, module)
    if boundary is not None:
        _fold_at(running, boundary, n)
    trace.output = output_tensor(call(running, x))
    return trace


def _is_view(value: Any, x: Any) -> bool:
    """Whether a value is the one tensor that a model was given, in whatever shape."""
    if not isinstance(value, Tensor) or not isinstance(x, Tensor):
        return False
    same_memory = value.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    return same_memory and (value.numel(), value.dtype) == (x.numel(), x.dtype)


def _proves(model: nn.Module, x: Any, boundary: Boundary, trace: _Trace, state: Sampling) -> bool:
    n = 2
    try:
        with using(state.replace(n=n)):
            late = _trace(model, copied(x), boundary, n)
            assert trace.output is not None and late.output is not None
            expected = fold(trace.output, n)
            if late.random_inputs != [n * size for size in trace.random_inputs] or not _alike(late.output, expected):
                return False
            if _repeats(model, x, boundary, expected, n):
                return True
            boundary.copies = True
            return _repeats(model, x, boundary, expected, n)
    except (RuntimeError, ValueError, IndexError):
        return False  # a skip around this place meets rows of another number: try further out


def _repeats(model: nn.Module, x: Any, boundary: Boundary, expected: Tensor, n: int) -> bool:
    """Whether passes that find the beginning done give the same, and leave what is kept as it is."""
    runner = PrefixRunner(model, x, boundary, writes_input=True)
    outputs = [runner.run(n)]
    untouched = _versions(runner.kept)
    outputs += [runner.run(n), runner.run(n)]
    return _versions(runner.kept) == untouched and all(_alike(output, expected) for output in outputs)


def _alike(output: Tensor, expected: Tensor) -> bool:
    if output.shape != expected.shape:
        return False
    largest = float(torch.where(expected.isfinite(), expected, 0).abs().max()) if expected.numel() else 0.0
    close = torch.isclose(output, expected, rtol=1e-3, atol=1e-4 * largest + 1e-12)
    return bool((close | (output.isnan() & expected.isnan())).all())
