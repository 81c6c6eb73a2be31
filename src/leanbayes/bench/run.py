"""Measure one network: every contender, mode and part, each figure written as soon as it is there."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from leanbayes._machine import device_name, versions
from leanbayes.bench.contenders import Contender, contenders
from leanbayes.bench.gate import GateFailed, check_contender
from leanbayes.bench.measuring import HEAP, free, settled
from leanbayes.bench.networks import Network, network
from leanbayes.bench.pairs import (
    Kept,
    NoMeasure,
    Plain,
    memory_figures,
    prediction_figures,
    profile_figures,
    start_figures,
    step_figures,
)
from leanbayes.bench.peers import PEERS, NotInstalled, Peer, version
from leanbayes.bench.predictions import SAMPLES
from leanbayes.bench.result import DONE, FAILED, PLAIN, SKIPPED, ResultFile
from leanbayes.bench.rivals import Ours, check, make_peer, peer_figures
from leanbayes.bench.scaling import points
from leanbayes.bench.setup import Precision, Setup
from leanbayes.bench.steps import EAGER, contender_step

_ROUND_S = {"cuda": 0.1, "cpu": 0.01}
_NOT_POSSIBLE = (NotInstalled, NoMeasure)
Watch = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Plan:
    """What to measure, and how.

    Attributes:
        device: "cpu" or "cuda".
        precision: "32", or "bf16" for autocast.
        batch: Examples of a training step; None takes the network's own number.
        rows: Examples of a prediction, likewise.
        repeats: Rounds of which medians are taken.
        modes: Of "eager" and "captured".
        parts: Of "step", "predict", "memory", "profile", "start" and "scaling".
        methods: Names of contenders; None takes all.
        peers: Whether other libraries are measured, too.
        samples: Numbers of samples of predictions.
    """

    device: str = "cpu"
    precision: Precision = "32"
    batch: int | None = None
    rows: int | None = None
    repeats: int = 7
    modes: tuple[str, ...] = (EAGER,)
    parts: tuple[str, ...] = ("step", "predict")
    methods: tuple[str, ...] | None = None
    peers: bool = True
    samples: tuple[int, ...] = SAMPLES

    def setup(self, of: Network) -> Setup:
        """The network on the device, with the requested sizes."""
        device = torch.device(self.device)
        return Setup(
            of,
            device,
            self.precision,
            self.batch or of.batch[device.type],
            self.rows or of.rows[device.type],
            self.repeats,
            _ROUND_S[device.type],
        )


def file_name(name: str, device: str, precision: str) -> str:
    """The file of a network's figures.

    Example:
        >>> file_name("resnet18", "cuda", "bf16")
        'speed-resnet18-cuda-bf16.json'
    """
    return f"speed-{name}-{device}-{precision}.json"


def bench(
    name: str,
    plan: Plan,
    out: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    command: str = "",
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Measure a network.

    Args:
        name: Of the network, see `networks.NETWORKS`.
        plan: What to measure, and how.
        out: Folder of the result file, to which every row is added as soon as it is measured; None writes none.
        resume: Add the rows that the file lacks.
        command: The command to note in the file.
        watch: Called with every new row.

    Returns:
        The content of the result file.

    Example:
        >>> plan = Plan(repeats=1, batch=4, rows=2, methods=("emp",), parts=("step",), peers=False)
        >>> [row["contender"] for row in bench("mlp", plan)["rows"]]
        ['plain', 'emp']
    """
    chosen = network(name)
    setup = plan.setup(chosen)
    path = None if out is None else Path(out) / file_name(name, plan.device, plan.precision)
    file = ResultFile(path, _header(setup, command), resume)
    run = _Run(setup, plan, file, watch or (lambda row: None))
    with settled(setup.device):
        run.all()
    return file.to_json()


class _Run:
    def __init__(self, setup: Setup, plan: Plan, file: ResultFile, watch: Watch) -> None:
        self.setup = setup
        self.plan = plan
        self.file = file
        self.watch = watch
        self.plain = Plain(setup)
        self.parts = [part for part in plan.parts if part in setup.network.parts]

    def all(self) -> None:
        """Plain network, contenders, peers, curves."""
        for wanted in self._missing(PLAIN):
            self._measure(wanted, partial(self.plain.figures, **_without_name(wanted)))
        allowed = self.setup.network.only
        chosen = [one for one in contenders(self.plan.methods) if not allowed or one.name in allowed]
        for one in chosen:
            self._contender(one)
        if self.plan.peers and not allowed:
            ours = Ours(self.setup)
            for peer in PEERS:
                self._peer(peer, ours)
        if "scaling" in self.parts:
            self._curves()

    def _contender(self, one: Contender) -> None:
        missing = self._missing(one.name)
        if not missing:
            return
        refusal = self._gate(lambda: one.convert(self.setup.net()), lambda: check_contender(self.setup, one))
        size = {} if refusal else {"parameters": _count(one.convert(self.setup.net())), "call": one.call}
        built = Kept(self.setup)
        for wanted in missing:
            if refusal:
                self._add(wanted | refusal)
            else:
                self._measure(wanted | size, partial(self._figures, one, built, **_without_name(wanted)))

    def _figures(self, one: Contender, built: Kept, mode: str, part: str, samples: int | None) -> dict[str, Any]:
        new = partial(contender_step, self.setup, one, mode)
        if part == "memory":
            # Of a step of its own, whose memory is what it adds.
            return memory_figures(self.setup, one, mode, new, self.plain.bytes(mode))
        if part == "start":
            return start_figures(mode, new)
        step = partial(built.keep, (mode,), new)
        if part == "step":
            return step_figures(self.setup, one, mode, step(), self.plain.step(mode))
        if part == "profile":
            return profile_figures(self.setup, step(), self.plain.profile(mode))
        assert samples is not None
        return prediction_figures(self.setup, one, mode, samples, self.plain.forward(mode, samples))

    def _peer(self, peer: Peer, ours: Ours) -> None:
        missing = self._missing(peer.name)
        if not missing:
            return
        refusal = self._gate(lambda: make_peer(self.setup, peer), lambda: check(self.setup, peer), broken=SKIPPED)
        about = {"package": peer.package, "version": version(peer.package)}
        for wanted in missing:
            if refusal:
                self._add(wanted | about | refusal)
            else:
                work = partial(peer_figures, self.setup, peer, plain=self.plain, ours=ours, **_without_name(wanted))
                self._measure(wanted | about, work, broken=SKIPPED)

    def _curves(self) -> None:
        mode = self.plan.modes[0]
        for point in points(self.setup, self.plan.methods):
            place = {"contender": point.contender.name, "mode": mode, "part": "scaling"}
            wanted = place | {"axis": point.axis, "value": point.value}
            if self.file.has(**wanted):
                continue
            # Some values are beyond a network: a rank above the sides of its layers.
            refusal = self._gate(lambda point=point: point.contender.convert(point.setup.net()), lambda: None)
            if refusal:
                self._add(wanted | refusal)
            else:
                self._measure(wanted, partial(point.figures, mode))

    def _missing(self, name: str) -> list[dict[str, Any]]:
        """The figures of a contender that the file lacks."""
        found = []
        for mode in self.plan.modes:
            for part in self.parts:
                for samples in self.plan.samples if part == "predict" else (None,):
                    wanted = {"contender": name, "mode": mode, "part": part, "samples": samples}
                    if part != "scaling" and not self.file.has(**wanted):
                        found.append(wanted)
        return found

    def _gate(self, build: Callable[[], Any], right: Callable[[], None], broken: str = FAILED) -> dict[str, Any]:
        """Why something is not timed; empty where it is built and right.

        Args:
            build: Makes it; a method that cannot serve the network says so by an error.
            right: Checks what it computes.
            broken: What it means that something else goes wrong: a peer cannot run here, ours should.
        """
        try:
            build()
        except (ValueError, TypeError, ImportError) as error:
            return _refusal(SKIPPED, error)
        except Exception as error:
            return _refusal(broken, error)
        try:
            right()
        except Exception as error:
            return _refusal(FAILED if isinstance(error, GateFailed) else broken, error)
        finally:
            free(self.setup.device)
        return {}

    def _measure(self, wanted: dict[str, Any], figures: Callable[[], dict[str, Any]], broken: str = FAILED) -> None:
        torch.manual_seed(0)
        try:
            found = {"status": DONE, **figures()}
        except _NOT_POSSIBLE as error:
            found = _refusal(SKIPPED, error)
        except Exception as error:
            # One contender that breaks does not cost the figures of the others; its row says what happened.
            found = _refusal(FAILED if isinstance(error, GateFailed) else broken, error)
        self._add(wanted | found)
        free(self.setup.device)

    def _add(self, row: dict[str, Any]) -> None:
        self.file.add(row)
        self.watch(row)


def _refusal(status: str, error: Exception) -> dict[str, Any]:
    text = " ".join(str(error).split())[:300] or type(error).__name__
    known = isinstance(error, (GateFailed, ValueError, *_NOT_POSSIBLE))
    return {"status": status, "reason": text if known else f"{type(error).__name__}: {text}"}


def _without_name(wanted: dict[str, Any]) -> dict[str, Any]:
    return {name: wanted[name] for name in ("mode", "part", "samples")}


def _count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _header(setup: Setup, command: str) -> dict[str, Any]:
    found = versions()
    if setup.device.type == "cuda":
        found |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    peers = {peer.package: number for peer in PEERS if (number := version(peer.package)) is not None}
    settings = {name: getattr(setup, name) for name in ("precision", "batch", "rows", "repeats")}
    return {
        "id": f"speed-{setup.network.name}",
        "title": setup.network.title,
        "command": command,
        "device": device_name(setup.device.type),
        "versions": found | peers,
        "date": datetime.date.today().isoformat(),
        "settings": settings | {"device": setup.device.type, "network": setup.network.name},
        "heap": {name: os.environ[name] for name in HEAP if name in os.environ},
        "plain_parameters": _count(setup.net()),
    }
