"""fit: the training loop, the same on one device and on several."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import BaseFileLock
from torch import nn

from leanbayes.objectives.likelihoods import Likelihood
from leanbayes.training.callbacks import Callback, EpochEnd
from leanbayes.training.checkpoints import FORMAT, check_fits
from leanbayes.training.config import TrainConfig
from leanbayes.training.data import (
    Augment,
    Batch,
)
from leanbayes.training.errors import OutputError, TrainingInterrupted
from leanbayes.training.evaluate import evaluate
from leanbayes.training.execution import Tf32Products, choose_execution
from leanbayes.training.fabric import make_runtime
from leanbayes.training.files import LAST, REFIT, claim, prepare_folder, read_state, write_state
from leanbayes.training.history import History
from leanbayes.training.kept_weights import KeptWeights
from leanbayes.training.logs import Logs
from leanbayes.training.parts import (
    Parts,
    check_held_out,
    check_targets,
    make_elbo,
    make_sources,
    steps_per_epoch,
    watches,
)
from leanbayes.training.progress import ProgressBar
from leanbayes.training.runtime import Runtime
from leanbayes.training.schedules import kl_weight, learning_rate
from leanbayes.training.seeds import GlobalGenerators, derive, random_state, restore_random_state, seed_all
from leanbayes.training.steps import Stepper, grouped

_BY_CALLBACK = "a callback ended it"
# Evaluations without a better value that "auto" waits for.
_PATIENCE = 10


def fit(
    model: nn.Module,
    data: Any,
    config: TrainConfig | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
    likelihood: Likelihood | None = None,
    augment: Augment | None = None,
    progress: bool | None = None,
    fabric: Any = None,
    identity: Mapping[str, Any] | None = None,
) -> History:
    """Train a model in place on its ELBO; a plain model is trained on its likelihood.

    If there is no validation data, some rows are held out for it. Training stops when their NLL stops improving, and
    ends with the best weights; see `hold_out`, `patience` and `restore_best` of `TrainConfig`, also for how to turn
    this off.

    The same seed gives the same weights on the CPU, even if the run was killed and resumed; afterwards the random
    generators continue as if nothing had been drawn. One device needs only torch; several are driven by Lightning
    Fabric, which starts the script once for each. FSDP leaves the weights spread over the processes; `load_weights`
    reads them from the last checkpoint.

    Args:
        model: A converted model or a plain one.
        data: ``(x, y)`` or ``(x, y, weights)``, an object with ``x`` and ``y``, a DataLoader or another iterable of
            batches; or an object or mapping with such a ``train`` and ``valid``.
        config: How to train.
        out: Folder for checkpoints (``last.pt``, and ``best.pt`` if there is validation data; a refit has a folder
            ``refit`` inside) and logs (``metrics.jsonl``); None writes nothing.
        resume: Continue from the folder's last checkpoint; start if there is none.
        callbacks: Called after each epoch with an `EpochEnd`; one that returns True ends the training. One with
            ``begin(model, epochs)`` and ``end()`` is told when training begins, after how many epochs, and when it
            ends.
        likelihood: How outputs explain targets; None means classes.
        augment: ``augment(x, generator)`` changes the inputs of a training batch on the device. The generator is
            seeded for each batch.
        progress: Whether to show a progress bar; None shows it on a terminal.
        fabric: A launched Fabric to use instead of the configuration's devices and strategy.
        identity: Plain values by name that identify the data, such as a fingerprint under "rows"; a checkpoint of a run
            with other values is not resumed.

    Returns:
        What happened, epoch by epoch.

    Raises:
        OutputError: If the folder cannot be written or another process trains in it, if the disk is full, or if a
            checkpoint does not fit.
        TrainingInterrupted: After Ctrl-C.
        FloatingPointError: If the loss is no longer finite.

    Example:
        >>> import torch, leanbayes as lb
        >>> from leanbayes.training import TrainConfig, fit
        >>> x = torch.randn(64, 2)
        >>> y = (x[:, 0] > 0).long()
        >>> model = lb.bayesianize(torch.nn.Linear(2, 2), lb.MeanField())
        >>> history = fit(model, (x, y), TrainConfig(epochs=5, batch_size=16, lr=0.05))
        >>> history["loss"][-1] < history["loss"][0]
        True
    """
    config = TrainConfig() if config is None else config
    if not isinstance(config, TrainConfig):
        raise TypeError(f"config takes a TrainConfig, not {type(config).__name__}")
    runtime = make_runtime(config, fabric)
    parts = Parts.of(data, config)
    training = _Training(runtime, model, parts, config, out, likelihood, augment, tuple(callbacks), identity)
    if config.refit:
        parts.check_refit(runtime.world)
    history = _train(training, resume, progress)
    if config.refit:
        again = _refitting(training, model, parts, augment)
        history.refit = _train(again, resume, progress)
    return history


def _train(training: _Training, resume: bool, progress: bool | None) -> History:
    try:
        training.start(resume, progress)
        return training.run()
    except KeyboardInterrupt:
        raise TrainingInterrupted(training.where_interrupted()) from None
    finally:
        training.close()


@dataclass(frozen=True)
class _Pace:
    """Steps of a training, and the factors of its learning rate and the KL weights, as an earlier one had them."""

    steps: int
    rate: Callable[[int], float]
    kl_at: Callable[[int], float]


def _refitting(first: _Training, model: nn.Module, parts: Parts, augment: Augment | None) -> _Training:
    """The same training from the start, on all rows, for the steps of the best epoch."""
    steps, noise = first.history.best["step"], first.fitted_to_held_out()
    first.kept.load_start()
    first.elbo.load_state_dict(noise, strict=False)
    data = parts.joined()
    config = replace(first.config, refit=False, hold_out=0, patience=None, restore_best=False)
    pace = _Pace(steps, first.steps.rate, first.steps.kl_at)
    return _Training(
        make_runtime(config),
        model,
        Parts(data, None),
        config,
        None if first.folder is None else first.folder / REFIT,
        first.elbo.likelihood,
        augment,
        first.callbacks,
        first.identity,
        pace,
    )


class _Training:
    """One run: what it consists of, where it is, and how it goes on."""

    def __init__(
        self,
        runtime: Runtime,
        model: nn.Module,
        parts: Parts,
        config: TrainConfig,
        out: str | os.PathLike[str] | None,
        likelihood: Likelihood | None,
        augment: Augment | None,
        callbacks: tuple[Callback, ...],
        identity: Mapping[str, Any] | None,
        pace: _Pace | None = None,
    ) -> None:
        self.runtime = runtime
        self.config = config
        self.callbacks = callbacks
        self.identity = None if identity is None else dict(identity)
        self.folder: Path | None = None
        self.logs: Logs | None = None
        self.bar: ProgressBar | None = None
        self.lock: BaseFileLock | None = None
        self.train, self.valid = make_sources(parts, config, runtime, augment)
        held_out = self.valid is not None
        self.patience = (_PATIENCE if held_out else None) if config.patience == "auto" else config.patience
        self.restore_best = held_out if config.restore_best == "auto" else bool(config.restore_best)
        self.steps_per_epoch = steps_per_epoch(self.train, config)
        rate, kl_at = (schedule(config, self.steps_per_epoch or 0) for schedule in (learning_rate, kl_weight))
        self.limit = math.inf if pace is None else pace.steps
        if pace is not None:
            rate, kl_at = pace.rate, pace.kl_at
        self.elbo = make_elbo(model, self.train, config, likelihood, kl_at(0))
        if pace is None:
            check_held_out(self.elbo.likelihood, self.valid, config)
        if out is not None:
            self.runtime.on_first(lambda: prepare_folder(out))
            self.folder = Path(out)
        execution = choose_execution(config, runtime.device, runtime.world, self.elbo, self.train.examples)
        self._precision = Tf32Products() if execution.precision == "tf32" else nullcontext()
        runtime.setup(self.elbo, execution)
        check = partial(check_targets, self.elbo.likelihood, (self.train, self.valid))
        self.steps = Stepper(runtime, self.elbo, config, rate=rate, kl_at=kl_at, check=check, execution=execution)
        wanted = self.restore_best or config.refit
        self.kept = KeptWeights(runtime, self.steps.optimizer, self.folder, wanted)
        self.history = History(monitor=config.monitor, min_delta=config.min_delta)
        self.epoch = self.batch = 0
        self.elapsed = 0.0
        self.saved_step: int | None = None
        self._random: dict[str, Any] | None = None
        self._generators = GlobalGenerators(runtime.device)
        self._started = False

    # Starting and ending

    def start(self, resume: bool, progress: bool | None) -> None:
        """Claim the folder, seed everything or load the last checkpoint, and open the logs."""
        self._generators.__enter__()
        self._precision.__enter__()
        self._started = True
        if self.folder is not None:
            self.runtime.on_first(self._claim)
        last = None if self.folder is None else self.folder / LAST
        exists = self.runtime.from_first(last is not None and last.exists())
        if exists and not resume:
            raise OutputError(
                f"{self.folder} already holds a run; pass resume=True to continue, or choose another folder"
            )
        size = 0
        if exists:
            assert last is not None
            size = self._load(read_state(last), last)
        else:
            # Compiled code draws from torch's own generators, which have to differ between processes, then.
            seed, rank = self.config.seed, self.runtime.rank
            seed_all(seed if self.runtime.world == 1 else derive(seed, "rank", rank), self.runtime.device)
            if self.config.refit:
                self.kept.keep_start()
        first = self.runtime.rank == 0
        folder = self.folder if first else None
        self.logs = Logs(folder, tensorboard=self.config.tensorboard, size=size, step=self.steps.count)
        self.bar = ProgressBar(
            self.config.epochs, self.steps_per_epoch, self.steps.count, show=progress if first else False
        )

    def run(self) -> History:
        """Train until the end."""
        for callback in self.callbacks:
            if hasattr(callback, "begin"):
                callback.begin(self.elbo.model, self.epoch)  # pyright: ignore[reportFunctionMemberAccess]
        while not self._over():
            self._train_epoch()
            self._close_epoch()
        self.steps.optimizer.zero_grad()
        self.history.how = self.steps.how
        if self.folder is not None and self.saved_step != self.steps.count:
            self._save()
        if self.restore_best or self.config.refit:
            self.kept.restore_best(self.history)
        return self.history

    def close(self) -> None:
        """Give back the terminal and the random generators and close the logs, however training ended."""
        for callback in self.callbacks:
            if hasattr(callback, "end"):
                callback.end()  # pyright: ignore[reportFunctionMemberAccess]
        for part in (self.bar, self.logs):
            if part is not None:
                part.close()
        if self.lock is not None:
            self.lock.release()
        if self._started:
            # Else networks that are made one after the other, each after a training, would start alike.
            self._generators.__exit__()
            self._precision.__exit__(None, None, None)

    def _claim(self) -> None:
        assert self.folder is not None
        self.lock = claim(self.folder)

    def where_interrupted(self) -> str:
        """One sentence about where Ctrl-C came and how to go on."""
        where = f"training was interrupted in epoch {self.epoch + 1} after {self.steps.count} optimiser steps"
        if self.folder is None:
            return f"{where}; without an output folder there is no checkpoint to resume from"
        if self.saved_step is None:
            return f"{where}, before the first checkpoint in {self.folder}"
        return f"{where}; resume=True goes on from the checkpoint of step {self.saved_step} in {self.folder}"

    def _over(self) -> bool:
        if self.history.stopped is None and self._impatient():
            self.history.stopped = f"no better {self.config.monitor} in {self.patience} evaluations"
        if self.limit < math.inf:
            return self.history.stopped is not None or self.steps.count >= self.limit
        return self.history.stopped is not None or self.epoch >= self.config.epochs

    def _impatient(self) -> bool:
        return isinstance(self.patience, int) and self.history.waited >= self.patience

    # One epoch

    def _train_epoch(self) -> None:
        began = time.monotonic() - self.elapsed
        self.elbo.train()
        self.steps.begin_epoch()
        for group in grouped(self._begin(), self.config.accumulate):
            count = len(group)
            self.steps(group)
            self.batch += count
            self.elapsed = time.monotonic() - began
            self._between_steps()
            if self.steps.count >= self.limit:
                break
        if self.batch == 0:
            again = f" in epoch {self.epoch + 1}; pass something that can be iterated again, such as a DataLoader"
            raise ValueError(f"the training data gave no batch{again if self.steps.count else ''}")

    def _begin(self) -> Iterator[Batch]:
        """The epoch's batches from the current one on; after a resume, the generators go on where they were."""
        state, self._random = self._random, None
        if state is None:
            return self.train.begin(self.epoch, self.batch)
        # Beginning may draw. Within an epoch that was done before the checkpoint, else it still has to be done.
        if self.batch == 0:
            restore_random_state(state, self.runtime.device)
        batches = self.train.begin(self.epoch, self.batch)
        if self.batch:
            restore_random_state(state, self.runtime.device)
        return batches

    def _between_steps(self) -> None:
        assert self.bar is not None and self.logs is not None
        self.bar.step(self.steps.count)
        if self.steps.count % self.config.log_every == 0:
            values = self.steps.meter.close_window(self.runtime.total)
            self._check_finite(values)
            record = {"epoch": self.epoch + 1, "step": self.steps.count, **values, **self.steps.settings()}
            self.logs.write("step", record)
            self.bar.show(self.epoch + 1, values)
        every = self.config.checkpoint_steps
        if every is not None and self.steps.count % every == 0 and self.folder is not None:
            self._save()

    def _close_epoch(self) -> None:
        """Evaluate, note the epoch, and write what has to be written."""
        assert self.bar is not None and self.logs is not None
        values = self.steps.meter.close_epoch(self.runtime.total)
        self._check_finite(values)
        record = {"epoch": self.epoch + 1, "step": self.steps.count, **values, **self.steps.settings()}
        evaluated = self.valid is not None and self._due(self.config.valid_every)
        if self.valid is not None and evaluated:
            seed = derive(self.config.seed, "valid")
            record |= evaluate(self.runtime, self.valid, self.config.valid_samples, seed)
        record["seconds"] = self.elapsed
        self.history.records.append(record)
        self.epoch, self.batch, self.elapsed = self.epoch + 1, 0, 0.0
        self.logs.write("epoch", record)
        self.bar.step(self.steps.count)
        self.bar.show(self.epoch + 1, record)
        self._call_back(record)
        if evaluated or (self.valid is None and watches(self.config)):
            self._check_monitored(record)
        if self.history.best is record:
            self.kept.keep_best(record)
        if self.folder is not None and (self._over() or self.epoch % self.config.checkpoint_every == 0):
            self._save()

    def _due(self, every: int) -> bool:
        number = self.epoch + 1
        return number % every == 0 or number == self.config.epochs

    def _check_monitored(self, record: dict[str, Any]) -> None:
        if self.config.monitor not in record:
            raise ValueError(
                f"monitor={self.config.monitor!r} is not recorded in epoch {record['epoch']}, which has "
                f"{', '.join(record)}; choose one of those"
            )

    def _check_finite(self, values: dict[str, float]) -> None:
        if not math.isfinite(values["loss"]):
            kept = "" if self.saved_step is None else f"; the checkpoint of step {self.saved_step} is intact"
            raise FloatingPointError(
                f"the loss is {values['loss']} by optimiser step {self.steps.count}; lower lr or set clip{kept}"
            )

    def _call_back(self, record: dict[str, Any]) -> None:
        event = EpochEnd(self.elbo.model, record, self.history, self.elbo)
        # All are called, also after one that stops.
        answers = [callback(event) is True for callback in self.callbacks]
        if self.callbacks and self.runtime.from_first(any(answers)):
            self.history.stopped = _BY_CALLBACK

    # Checkpoints

    def _save(self) -> None:
        assert self.folder is not None and self.logs is not None
        path = self.folder / LAST
        self._check_finite({"loss": self.steps.meter.state_dict()["epoch"][0]})
        model, optimizer = self.runtime.states(self.steps.optimizer)
        state = {
            "format": FORMAT,
            "config": self.config.to_dict(),
            "examples": self.train.examples,
            "identity": self.identity,
            "epoch": self.epoch,
            "batch": self.batch,
            "step": self.steps.count,
            "elapsed": self.elapsed,
            "records": self.history.records,
            "stopped": self.history.stopped,
            "meters": self.runtime.gather(self.steps.meter.state_dict()),
            "random": self.runtime.gather(random_state(self.runtime.device)),
            "noise": self.runtime.gather(None if self.steps.noise is None else self.steps.noise.get_state()),
            "data": self.runtime.gather(self.train.state()),
            "log_size": self.logs.size,
            "model": model,
            "optimizer": optimizer,
        }
        self.logs.flush()
        self.runtime.on_first(lambda: write_state(path, state))
        self.saved_step = self.steps.count

    def _load(self, state: dict[str, Any], path: Path) -> int:
        """Go to where a checkpoint was made; returns the size that the log had."""
        examples, world = self.train.examples, self.runtime.world
        check_fits(state, path, self.config, examples=examples, world=world, identity=self.identity)
        rank = self.runtime.rank
        self.epoch, self.batch = state["epoch"], state["batch"]
        self.steps.go_to(state["step"])
        self.elapsed = state["elapsed"]
        self.history.records = state["records"]
        # Whether patience has run out follows from the records; it may have been raised since.
        self.history.stopped = _BY_CALLBACK if state["stopped"] == _BY_CALLBACK else None
        try:
            self.runtime.load_states(self.steps.optimizer, state["model"], state["optimizer"])
        except (RuntimeError, ValueError) as error:
            first = str(error).strip().splitlines()
            raise OutputError(f"the checkpoint {path} belongs to another model: {' '.join(first[:2])}") from error
        self.steps.meter.load_state_dict(state["meters"][rank])
        self.train.load_state(state["data"][rank])
        self._random = state["random"][rank]
        noise = state.get("noise", {rank: None})[rank]  # earlier versions drew from torch's own generators
        if noise is not None and self.steps.noise is not None:
            self.steps.noise.set_state(noise)
        self.saved_step = self.steps.count
        return state["log_size"]

    def fitted_to_held_out(self) -> dict[str, Any]:
        """What the likelihood has fitted to the validation data, by its names in the objective's state."""
        if not self.elbo.likelihood.fits_held_out:
            return {}
        names = {f"likelihood.{name}" for name, _ in self.elbo.likelihood.named_buffers()}
        return {name: value.clone() for name, value in self.elbo.state_dict().items() if name in names}
