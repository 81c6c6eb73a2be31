"""capture: one's own training loop, or predictions, compiled and recorded by one call."""

from __future__ import annotations

import logging
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leanbayes._checks import check_choice
from leanbayes._inputs import rows
from leanbayes._kl import kl
from leanbayes._sampling import current_sampling
from leanbayes.compiling import compiled, falls_back, first_line, is_compile_error
from leanbayes.objectives.elbo import ELBO, Terms
from leanbayes.training.data import Batch
from leanbayes.training.graphs import GraphedStep

_LOG = logging.getLogger("leanbayes")


@overload
def capture(model: ELBO, optimizer: Optimizer, *, precision: str = "32", compile: bool = True) -> CapturedStep: ...


@overload
def capture(model: nn.Module, *, compile: bool = True) -> nn.Module: ...


def capture(model: Any, optimizer: Optimizer | None = None, *, precision: str = "32", compile: bool = True) -> Any:
    """Make a training step, or predictions, run as fast as the machine allows.

    With an `ELBO` and an optimiser it gives a function that takes a whole step: forward, backward and update. It is
    compiled and, on a GPU, recorded as one CUDA graph, with fresh noise at every step. With a model alone it gives the
    model for `predict`. If something cannot be captured, either falls back by itself, with a one-line notice.

    Args:
        model: An `ELBO`, or a converted or plain model.
        optimizer: The optimiser of the step; learning rates may change from step to step.
        precision: Precision of the step: "32" or "bf16-mixed".
        compile: Whether to compile. Without it, a step on a GPU is only recorded, which starts sooner.

    Example:
        >>> import torch, leanbayes as lb
        >>> model = lb.bayesianize(torch.nn.Linear(3, 2), lb.MeanField())
        >>> elbo = lb.ELBO(model, dataset_size=1000)
        >>> step = lb.capture(elbo, torch.optim.Adam(elbo.parameters()), compile=False)
        >>> terms = step(torch.randn(8, 3), torch.randint(2, (8,)))
        >>> step.how
        'eager'
    """
    if optimizer is not None:
        if not isinstance(model, ELBO):
            raise TypeError(f"capture takes an ELBO with an optimizer, not {type(model).__name__}")
        return CapturedStep(model, optimizer, precision=precision, compile=compile)
    if isinstance(model, ELBO):
        raise TypeError("capture takes an optimizer with an ELBO: capture(elbo, optimizer)")
    if not isinstance(model, nn.Module):
        raise TypeError(f"capture takes an nn.Module, not {type(model).__name__}")
    parameter = next(model.parameters(), None)
    on_gpu = parameter is not None and parameter.is_cuda
    if not compile:
        return model
    result = compiled(model, recorded=on_gpu)
    result.forward = falls_back(model, result.forward)
    return result


class CapturedStep:
    """Trains by one step per call.

    Args:
        elbo: The objective, on its device.
        optimizer: Of its parameters.
        precision: "32" or "bf16-mixed".
        compile: Whether to compile.

    Attributes:
        how: How steps run: "compiled and recorded", "recorded", "compiled" or "eager".
        why: Why they do not run as was asked, None where they do.
    """

    precision: str

    def __init__(self, elbo: ELBO, optimizer: Optimizer, *, precision: str = "32", compile: bool = True) -> None:
        check_choice(self, ("32", "bf16-mixed"), precision=precision)
        self.elbo = elbo
        self.optimizer = optimizer
        self.autocast = precision == "bf16-mixed"
        self.device = next(elbo.parameters()).device
        self.why: str | None = None
        with torch.no_grad():
            kl(elbo.model)  # what it keeps on the device must be there before anything is compiled or recorded
        self._module = compiled(elbo) if compile else elbo
        self._compiled = compile
        self._size: int | None = None
        self._rates: list[Tensor] = []
        self._graphed: GraphedStep | None = None
        if self.device.type == "cuda":
            _make_capturable(optimizer, self.device)
            self._graphed = GraphedStep(self._step, optimizer, self.device)

    @property
    def how(self) -> str:
        """See the class."""
        words = (["compiled"] if self._compiled else []) + (["recorded"] if self._graphed is not None else [])
        return " and ".join(words) or "eager"

    def __call__(self, x: Any, y: Tensor, *, weights: Tensor | None = None) -> Terms:
        """One step on a batch; what it returns is overwritten by the next call.

        Args:
            x: A tensor ``[B, ...]``, a mapping of tensors or a tuple, on the device.
            y: Targets ``[B, ...]``.
            weights: How often each example counts, ``[B]``.
        """
        count = rows(x, current_sampling().batch_dim)
        self._size = count if self._size is None else self._size
        batch = Batch(x, y, weights, count)
        if self._graphed is None:
            return self._fall_back(batch)
        self._set_rates()
        done = self._try(self._graphed, batch)
        if done is None:
            return self(x, y, weights=weights)
        terms, played = done
        if played:
            self.elbo.advance()
            if not self._rates:  # the recording reads them from now on
                self._rates = [group["lr"] for group in self.optimizer.param_groups]
        return terms

    def _try(self, graphed: GraphedStep, batch: Batch) -> tuple[Terms, bool] | None:
        """A step; None where it cannot be captured as it should, and what it has begun is gone."""
        try:
            return graphed(batch)
        except Exception as error:
            known = isinstance(error, RuntimeError) or is_compile_error(error)
            if not known or graphed.graph is not None or isinstance(error, torch.OutOfMemoryError):
                raise
            self._give_up("recorded" if not self._compiled or graphed.warm > 1 else "compiled", error)
            return None

    def _fall_back(self, batch: Batch) -> Terms:
        try:
            self.optimizer.zero_grad()
            return self._step(batch)
        except Exception as error:
            if not self._compiled or not is_compile_error(error):
                raise
            self._give_up("compiled", error)
            return self._fall_back(batch)

    def _give_up(self, what: str, error: Exception) -> None:
        self.why = f"this step cannot be {what}, and runs without: {first_line(error)}"
        _LOG.warning(self.why)
        if what == "compiled":
            self._module, self._compiled = self.elbo, False
            if self._graphed is not None:
                self._graphed = GraphedStep(self._step, self.optimizer, self.device)
        else:
            self._graphed = None
            for group in self.optimizer.param_groups:
                group["lr"] = float(group["lr"])  # the recording would have read a tensor

    def _step(self, batch: Batch) -> Terms:
        # The last batch of an epoch may be smaller: compiling for it would take longer than all such steps.
        module = self._module if batch.rows == self._size else self.elbo
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            terms = module(batch.x, batch.y, weights=batch.weights)
        terms.loss.backward()
        self.optimizer.step()
        return terms

    def _set_rates(self) -> None:
        """A recorded step reads the learning rates from memory; schedulers put numbers in their place."""
        for group, recorded in zip(self.optimizer.param_groups, self._rates):
            if group["lr"] is not recorded:
                recorded.fill_(float(group["lr"]))
                group["lr"] = recorded


def _make_capturable(optimizer: Optimizer, device: torch.device) -> None:
    """Adam and the like count steps on the host unless they are told otherwise; SGD reads its learning rate there."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        elif isinstance(optimizer, torch.optim.SGD) and not group["foreach"] and not group["differentiable"]:
            group["fused"] = True
    for state in optimizer.state.values():
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].to(device)
