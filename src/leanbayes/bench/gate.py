"""Speed is reported of right results only: what must hold before a contender is timed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from leanbayes._predict import predict
from leanbayes._sampling import sampling
from leanbayes.bench.contenders import Contender
from leanbayes.bench.peers.adapter import Adapter
from leanbayes.bench.setup import Setup

_ROWS, _SAMPLES = 2, 4
# Convolutions in reduced precision keep three digits, and heavy-tailed factors make large outputs.
_TOLERANCE = 2e-2


class GateFailed(AssertionError):
    """A contender does not compute what it should."""


def check_contender(setup: Setup, contender: Contender) -> None:
    """Samples that are run together are those that are run one by one, and the means give the plain network."""
    plain = setup.place(setup.net()).eval()
    model = setup.place(contender.convert(setup.net())).eval()
    x, _ = setup.examples(_ROWS)
    together = predict(model, x, _SAMPLES, seed=0, joint=True, chunk=_SAMPLES).outputs
    one_by_one = predict(model, x, _SAMPLES, seed=0, joint=True, chunk=1).outputs
    _check_close(together, one_by_one, "samples that are run together differ from those that are run one by one")
    _check_draws(together, (together.shape[0], _ROWS, setup.network.classes))
    if contender.mean_is_plain:
        with torch.no_grad(), sampling(mean=True):
            at_means = model(x)
        with torch.no_grad():
            _check_close(at_means, plain(x), "the output at the posterior means is not the plain network's")


def check_peer(setup: Setup, peer: Adapter) -> None:
    """Draws are finite, of the right shape and different, and the means give the plain network where they can."""
    x, _ = setup.examples(_ROWS)
    peer.model.eval()
    with torch.no_grad(), setup.autocast():
        _check_draws(peer.predict(x, _SAMPLES), (_SAMPLES, _ROWS, setup.network.classes))
    if peer.mean is not None:
        plain = setup.place(setup.net()).eval()
        with torch.no_grad():
            _check_close(peer.mean(x), plain(x), "the output at the posterior means is not the plain network's")


def check_step(run: Callable[[], Tensor], model: nn.Module) -> None:
    """A step has a finite loss and changes parameters."""
    before = copy.deepcopy([parameter.detach() for parameter in model.parameters()])
    loss = run()
    if not bool(torch.isfinite(loss.detach()).all()):
        raise GateFailed(f"the loss of a step is {float(loss.detach().sum())}")
    if all(torch.equal(old, new) for old, new in zip(before, model.parameters())):
        raise GateFailed("a step changes no parameter")


def check_captured(captured: Tensor, eager: Tensor) -> None:
    """Draws of a captured model, ``[S, B, C]``, are those of the same network as eager ones."""
    _check_draws(captured, tuple(eager.shape))
    captured, eager = captured.float(), eager.float()
    # Standard error of the mean of the samples, averaged over outputs; captured and eager runs draw other numbers.
    error = float(eager.std(0, correction=0).mean()) * (2 / eager.shape[0]) ** 0.5
    apart = float((captured.mean(0) - eager.mean(0)).abs().mean())
    if apart > 3 * error + _TOLERANCE * float(eager.abs().max()):
        raise GateFailed(f"captured predictions are {apart:.2g} from eager ones on average, beyond chance")


def _check_draws(outputs: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(outputs.shape) != shape:
        raise GateFailed(f"outputs have the shape {tuple(outputs.shape)} and not {shape}")
    if not bool(torch.isfinite(outputs).all()):
        raise GateFailed("outputs are not finite")
    if outputs.shape[0] > 1 and bool((outputs == outputs[0]).all()):
        raise GateFailed("all samples are the same, so nothing is random")


def _check_close(found: Tensor, expected: Tensor, text: str) -> None:
    apart = float((found.float() - expected.float()).abs().max())
    scale = float(expected.float().abs().max())
    if not apart <= _TOLERANCE * max(scale, 1e-6):
        raise GateFailed(f"{text}: they are {apart:.2g} apart where outputs reach {scale:.2g}")
