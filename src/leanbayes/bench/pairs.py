"""One figure of a contender: timed in turn with the plain network, or its memory beside that of the plain network."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from leanbayes.bench.bounds import bound
from leanbayes.bench.capturing import nothing_on_disk
from leanbayes.bench.contenders import Contender
from leanbayes.bench.figures import timing, verdict
from leanbayes.bench.gate import check_captured, check_step
from leanbayes.bench.measuring import peak_bytes
from leanbayes.bench.predictions import contender_model, plain_pass, prediction
from leanbayes.bench.profiling import profile
from leanbayes.bench.setup import Setup
from leanbayes.bench.steps import CAPTURED, EAGER, Step, plain_step


class NoMeasure(RuntimeError):
    """Something that cannot be measured on this device."""


def step_figures(setup: Setup, contender: Contender, mode: str, step: Step, plain: Step) -> dict[str, Any]:
    """Time of a training step, and where it is captured, of its start."""
    check_step(step.run, step.model)
    functions = {"plain": plain.run, "contender": step.run}
    found = timing(setup.times(functions), "contender", "plain")
    return {"how": step.how(), **found, **verdict(found["ratio"], bound(setup, contender, mode, "step")), **step.start}


def prediction_figures(setup: Setup, contender: Contender, mode: str, samples: int, plain: Any) -> dict[str, Any]:
    """Time of a prediction of so many samples, beside one plain pass over as many rows."""
    model = contender_model(setup, contender, mode)
    run = prediction(setup, model, samples)
    outputs = run()
    if mode == CAPTURED:
        check_captured(outputs, prediction(setup, contender_model(setup, contender, EAGER), samples)())
    functions = {"plain": plain, "contender": run}
    found = timing(setup.times(functions), "contender", "plain")
    held = verdict(found["ratio"], bound(setup, contender, mode, "predict", samples))
    how = str(getattr(model, "how", mode))
    # Members that are points are evaluated once each, however many samples are asked for.
    return {"how": how, "drawn": outputs.shape[0], **found, **held}


def memory_figures(
    setup: Setup, contender: Contender, mode: str, build: Callable[[], Step], plain_bytes: int
) -> dict[str, Any]:
    """Peak memory of a training step, which is built for that, with its network and optimiser."""
    found = peak_bytes(lambda: build().run, setup.device)
    ratio = found / plain_bytes
    held = verdict(ratio, bound(setup, contender, mode, "memory"))
    return {"bytes": found, "plain_bytes": plain_bytes, "ratio": ratio, **held}


def start_figures(mode: str, build: Callable[[], Step]) -> dict[str, Any]:
    """How long a captured step takes until it runs, with nothing compiled before, on disk neither."""
    if mode == EAGER:
        raise NoMeasure("uncaptured steps need no start")
    with nothing_on_disk():
        step = build()
    return {"how": step.how(), **step.start}


def profile_figures(setup: Setup, step: Step, plain: dict[str, Any]) -> dict[str, Any]:
    """Where the time of a training step goes, beside that of the plain network."""
    return beside(_profiled(setup, step), plain)


def beside(found: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """A profile with that of the plain network; their ratio is that of the work."""
    ratio = found["busy"] / plain["busy"]
    return {**found, "ratio": ratio, **{f"plain_{name}": plain[name] for name in ("kinds", "busy", "seconds")}}


def _profiled(setup: Setup, step: Step) -> dict[str, Any]:
    times = setup.times({"step": step.run})["step"]
    return {"how": step.how(), "seconds": median(times), **profile(step.run, setup.device)}


class Kept:
    """What is built when it is first asked for, and kept: capturing takes a minute."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._made: dict[tuple[Any, ...], Any] = {}

    def keep(self, name: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What has that name, made where there is none yet."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]


class Plain(Kept):
    """The plain network in every mode, the same for all contenders."""

    def step(self, mode: str) -> Step:
        """A training step."""
        return self.keep(("step", mode), lambda: plain_step(self.setup, mode))

    def forward(self, mode: str, samples: int) -> Any:
        """A forward pass over samples times rows."""
        return self.keep(("pass", mode, samples), lambda: plain_pass(self.setup, mode, samples))

    def bytes(self, mode: str) -> int:
        """Peak memory of a training step."""
        if self.setup.device.type != "cuda":
            raise NoMeasure("peak memory is measured on a GPU only")
        return self.keep(
            ("bytes", mode), lambda: peak_bytes(lambda: plain_step(self.setup, mode).run, self.setup.device)
        )

    def profile(self, mode: str) -> dict[str, Any]:
        """Where the time of a training step goes."""
        return self.keep(("profile", mode), lambda: _profiled(self.setup, self.step(mode)))

    def figures(self, mode: str, part: str, samples: int | None) -> dict[str, Any]:
        """The plain network set against itself: what a ratio near 1 is to be read against."""
        if part == "profile":
            return beside(self.profile(mode), self.profile(mode))
        if part == "start":
            return start_figures(mode, lambda: plain_step(self.setup, mode))
        if part == "memory":
            found = self.bytes(mode)
            return {"bytes": found, "plain_bytes": found, "ratio": 1.0}
        run = self.step(mode).run if samples is None else self.forward(mode, samples)
        times = self.setup.times({"plain": run, "again": run})
        how = {} if samples is not None else {"how": self.step(mode).how(), **self.step(mode).start}
        return {**how, **timing(times, "again", "plain")}
