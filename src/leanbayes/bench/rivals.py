"""One figure of a peer library: timed in turn with the plain network and with ours of the same family."""

from __future__ import annotations

from typing import Any

import torch

from leanbayes.bench.bounds import peer_bound
from leanbayes.bench.contenders import contender
from leanbayes.bench.figures import against_ours, timing
from leanbayes.bench.gate import check_peer, check_step
from leanbayes.bench.measuring import peak_bytes
from leanbayes.bench.pairs import Kept, NoMeasure, Plain
from leanbayes.bench.peers import Adapter, Peer, Task
from leanbayes.bench.predictions import contender_model, prediction
from leanbayes.bench.setup import DATASET_SIZE, Setup
from leanbayes.bench.steps import EAGER, Step, contender_step, hand_written_step


def make_peer(setup: Setup, peer: Peer) -> Adapter:
    """The network of a peer library on the device."""
    x, y = setup.examples(min(setup.batch, 64))
    place = setup.place if peer.channels_last else lambda model: model.to(setup.device)
    return peer.make(Task(setup.net(), place, x, y, DATASET_SIZE))


class Ours(Kept):
    """Contenders of ours that peers are set against, the same for all peers."""

    def step(self, name: str, mode: str) -> Step:
        """A training step."""
        return self.keep(("step", name, mode), lambda: contender_step(self.setup, contender(name), mode))

    def prediction(self, name: str, mode: str, samples: int) -> Any:
        """A prediction of so many samples."""
        model = self.keep(("model", name, mode), lambda: contender_model(self.setup, contender(name), mode))
        return prediction(self.setup, model, samples)

    def bytes(self, name: str, mode: str) -> int:
        """Peak memory of a training step."""
        build = lambda: contender_step(self.setup, contender(name), mode).run  # noqa: E731
        return self.keep(("bytes", name, mode), lambda: peak_bytes(build, self.setup.device))


def peer_figures(
    setup: Setup, peer: Peer, mode: str, part: str, samples: int | None, *, plain: Plain, ours: Ours
) -> dict[str, Any]:
    """Time or memory of a peer, which runs as it documents itself, beside ours in a mode.

    Args:
        setup: What they are measured on.
        peer: The peer.
        mode: How ours runs.
        part: "step", "predict" or "memory".
        samples: Of a prediction.
        plain: The plain network.
        ours: Contenders of ours.
    """
    if part in ("profile", "start"):
        raise NoMeasure("other libraries are neither profiled nor captured")
    common = {"ours": peer.against, "same_family": peer.same_family}
    if part == "memory":
        base, own = plain.bytes(EAGER), ours.bytes(peer.against, mode)
        found = peak_bytes(lambda: _step(setup, make_peer(setup, peer)).run, setup.device)
        return common | {"bytes": found, "plain_bytes": base, "ratio": found / base, "over_ours": found / own}
    adapter = make_peer(setup, peer)
    functions: dict[str, Any] = {}
    if part == "step":
        step = _step(setup, adapter)
        check_step(step.run, step.model)
        functions |= {"plain": plain.step(EAGER).run, "peer": step.run, "ours": ours.step(peer.against, mode).run}
    else:
        assert samples is not None
        own = ours.prediction(peer.against, mode, samples)
        functions |= {"plain": plain.forward(EAGER, samples), "ours": own}
        functions["peer"] = _prediction(setup, adapter, samples)
    times = setup.times(functions)
    compared = against_ours(times, "peer", "ours")
    least = peer_bound(setup, peer, mode)
    held = {} if least is None else {"at_least": least, "holds": compared["over_ours"] >= least}
    return common | timing(times, "peer", "plain") | compared | held


def check(setup: Setup, peer: Peer) -> None:
    """The gate, on a network that is made for it."""
    check_peer(setup, make_peer(setup, peer))


def _step(setup: Setup, adapter: Adapter) -> Step:
    if adapter.loss is None:
        raise NoMeasure("it is fitted after training and has no training step")
    return hand_written_step(setup, adapter.model.train(), adapter.loss)


def _prediction(setup: Setup, adapter: Adapter, samples: int) -> Any:
    adapter.model.eval()
    x, _ = setup.examples(setup.rows)

    def run() -> torch.Tensor:
        with torch.no_grad(), setup.autocast():
            return adapter.predict(x, samples)

    return run
