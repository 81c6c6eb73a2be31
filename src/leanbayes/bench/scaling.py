"""How time and memory grow with samples, components, rank, width and batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from leanbayes.bench.contenders import Contender, contender
from leanbayes.bench.measuring import peak_bytes
from leanbayes.bench.pairs import Plain, prediction_figures, step_figures
from leanbayes.bench.predictions import contender_model, plain_pass, prediction
from leanbayes.bench.setup import Setup
from leanbayes.bench.steps import contender_step, plain_step

_FAMILIES = ("rank1", "k-tied", "mean-field", "emp")
_SAMPLES = (1, 2, 5, 10, 20, 50, 100)
_COMPONENTS = (1, 2, 4, 8, 16)
_RANKS = (1, 2, 4, 8)
_BATCHES = (0.25, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Point:
    """One point of a curve.

    Attributes:
        axis: What grows: "samples", "components", "rank", "width" or "batch".
        value: How large it is.
        contender: Whose curve it is, with that value.
        setup: What it is measured on, with that value.
    """

    axis: str
    value: int
    contender: Contender
    setup: Setup

    def figures(self, mode: str) -> dict[str, Any]:
        """Time of a prediction or a step, and on a GPU its peak memory."""
        plain = Plain(self.setup)
        if self.axis == "samples":
            forward = plain.forward(mode, self.value)
            found = prediction_figures(self.setup, self.contender, mode, self.value, forward)
        else:
            step = contender_step(self.setup, self.contender, mode)
            found = step_figures(self.setup, self.contender, mode, step, plain.step(mode))
        if self.setup.device.type == "cuda":
            del plain
            found |= {"bytes": self._bytes(mode, self._contender), "plain_bytes": self._bytes(mode, self._plain)}
        # Bounds are stated for the settings of the table, not for every point of a curve.
        return {name: value for name, value in found.items() if not name.endswith(("at_most", "holds"))}

    def _bytes(self, mode: str, build: Callable[[str], Callable[[], object]]) -> int:
        return peak_bytes(lambda: build(mode), self.setup.device)

    def _contender(self, mode: str) -> Callable[[], object]:
        if self.axis == "samples":
            return prediction(self.setup, contender_model(self.setup, self.contender, mode), self.value)
        return contender_step(self.setup, self.contender, mode).run

    def _plain(self, mode: str) -> Callable[[], object]:
        return plain_pass(self.setup, mode, self.value) if self.axis == "samples" else plain_step(self.setup, mode).run


def points(setup: Setup, methods: tuple[str, ...] | None = None) -> Iterator[Point]:
    """The points of all curves of a network; those of some methods where they are named."""
    families = [contender(name) for name in _FAMILIES if not methods or name in methods]
    for each in families:
        for samples in _SAMPLES:
            yield Point("samples", samples, each, setup)
        # Norms over the batch need two rows.
        for batch in sorted({max(2, round(share * setup.batch)) for share in _BATCHES}):
            yield Point("batch", batch, each, dataclasses.replace(setup, batch=batch))
        for width in setup.network.widths.get(setup.device.type, ()):
            yield Point("width", width, each, _wider(setup, width))
        if each.name == "rank1":
            yield from _varied(setup, each, "components", _COMPONENTS)
        if each.name == "k-tied":
            yield from _varied(setup, each, "rank", _RANKS)


def _wider(setup: Setup, width: int) -> Setup:
    build = setup.network.wider
    assert build is not None
    return dataclasses.replace(setup, network=dataclasses.replace(setup.network, build=lambda: build(width)))


def _varied(setup: Setup, one: Contender, axis: str, values: tuple[int, ...]) -> Iterator[Point]:
    for value in values:
        method = dataclasses.replace(one.method, **{axis: value})  # pyright: ignore[reportArgumentType]
        yield Point(axis, value, dataclasses.replace(one, method=method), setup)
