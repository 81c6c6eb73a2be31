"""TrainConfig: everything that `fit` can be told, as plain values."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanbayes._checks import check_choice, check_count, check_number, check_positive
from leanbayes.training.holdout import check_hold_out

# A run may be continued with other values of these: they do not change what a step does.
_FREE_TO_CHANGE = frozenset(
    {
        "patience",
        "monitor",
        "min_delta",
        "restore_best",
        "refit",
        "device",
        "compile",
        "cuda_graph",
        "checkpoint_every",
        "checkpoint_steps",
        "log_every",
        "tensorboard",
    }
)


@dataclass(frozen=True)
class TrainConfig:
    """How to train. Every value is plain, so a configuration can be written as JSON or YAML.

    Attributes:
        epochs: Passes over the training data.
        batch_size: Examples of one forward pass over all devices; a DataLoader brings its own.
        lr: Learning rate.
        weight_decay: Weight decay of parameters that appear in no KL term.
        variational_lr: Learning rate of what the method added; None takes `lr`.
        optimizer: "adam", "adamw" (decoupled weight decay) or "sgd".
        momentum: Momentum of "sgd".
        nesterov: Nesterov's form of the momentum.
        betas: Decay rates of "adam" and "adamw".
        schedule: Learning rate after the warm-up: "constant"; "linear" or "cosine" down to `final_lr`; "steps", which
            multiplies by `decay` at each of the `milestones`.
        warmup: Epochs over which the learning rate rises in a straight line; a fraction is allowed.
        milestones: Epochs at which "steps" acts.
        decay: Factor of "steps".
        final_lr: Where "linear" and "cosine" end, as a fraction of `lr`.
        kl_weight: Weight of the KL term.
        anneal: Epochs over which that weight rises from 0; a fraction is allowed. Counted in optimiser steps.
        anneal_every: Optimiser steps between two rises of the weight.
        samples: Draws per component and example in training.
        components: "average" or "mixture", see `ELBO`.
        tile: Run every component on the batch, see `ELBO`.
        mixture: How the KL treats mixtures, see `kl`.
        clip: Largest norm of the whole gradient, None for no limit.
        accumulate: Forward passes per optimiser step; their losses are averaged over examples.
        drop_last: Leave out the last batch of an epoch if it is smaller. A last batch of a single example is always
            left out. A DataLoader decides for itself.
        valid_every: Epochs between two evaluations of the validation data.
        valid_samples: Draws per component in an evaluation.
        hold_out: Training rows to hold out for validation if no validation data is given: a share from 0 to below 1, or
            a number of rows; 0 trains on all. "auto" is a tenth, or up to a fifth of small data to reach 100; it holds
            out none of fewer than 20 rows, or of data that is not in memory.
        patience: Evaluations without a better value of `monitor` after which training stops, None for never. "auto" is
            10 if there is validation data.
        monitor: The value that says which epoch is best; less is better, except for accuracies.
        min_delta: What counts as better.
        restore_best: End with the weights of the best epoch instead of the last. "auto" does so if there is validation
            data.
        refit: Afterwards train again from the start, on all rows including those for validation, for as many steps as
            the best epoch had taken; in one process, with data in memory.
        precision: "32", "tf32" (float32, products in TF32) or "bf16-mixed"; "auto" is "tf32" on a GPU and "32"
            otherwise.
        compile: Whether to compile the objective; a text names a backend of `torch.compile`. "auto" compiles on one GPU
            if training is long enough to repay the minute it takes.
        cuda_graph: Record the optimiser step once and play it back, which saves small networks the time between
            kernels; on one GPU and without `accumulate`, elsewhere it has no effect. "auto" does so, and continues
            without, with a warning, if a step cannot be recorded. A recording does not run the model's Python code; the
            step is recorded again after an epoch in which settings of modules have changed.
        device: "auto", "cpu" or "cuda".
        devices: Number of processes, one for each device.
        strategy: "auto", "ddp" or "fsdp".
        seed: Decides the noise, the order of the data and the augmentation.
        dataset_size: Number of training examples, if the data does not tell.
        checkpoint_every: Epochs between two checkpoints.
        checkpoint_steps: Optimiser steps between additional checkpoints within epochs, None for none.
        log_every: Optimiser steps between two lines of the log.
        tensorboard: Also write TensorBoard's files.

    Example:
        >>> config = TrainConfig(epochs=3, schedule="cosine", warmup=0.5)
        >>> TrainConfig.from_dict(config.to_dict()) == config
        True
    """

    epochs: int = 10
    batch_size: int = 128
    lr: float = 1e-3
    weight_decay: float = 0.0
    variational_lr: float | None = None
    optimizer: str = "adam"
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: str = "constant"
    warmup: float = 0.0
    milestones: tuple[float, ...] = ()
    decay: float = 0.1
    final_lr: float = 0.0
    kl_weight: float = 1.0
    anneal: float = 0.0
    anneal_every: int = 1
    samples: int = 1
    components: str = "average"
    tile: bool = True
    mixture: str = "mean"
    clip: float | None = None
    accumulate: int = 1
    drop_last: bool = False
    valid_every: int = 1
    valid_samples: int = 4
    hold_out: float | str = "auto"
    patience: int | str | None = "auto"
    monitor: str = "valid_nll"
    min_delta: float = 0.0
    restore_best: bool | str = "auto"
    refit: bool = False
    precision: str = "auto"
    compile: bool | str = "auto"
    cuda_graph: bool | str = "auto"
    device: str = "auto"
    devices: int = 1
    strategy: str = "auto"
    seed: int = 0
    dataset_size: int | None = None
    checkpoint_every: int = 1
    checkpoint_steps: int | None = None
    log_every: int = 50
    tensorboard: bool = False

    def __post_init__(self) -> None:
        # JSON and YAML know lists only.
        for name in ("betas", "milestones"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        self._check_counts()
        self._check_numbers()
        self._check_choices()
        self._check_combinations()

    def _check_counts(self) -> None:
        required = ("epochs", "batch_size", "anneal_every", "samples", "accumulate", "valid_every", "valid_samples")
        for name in (*required, "devices", "checkpoint_every", "log_every"):
            check_count(self, **{name: getattr(self, name)})
        for name in ("patience", "dataset_size", "checkpoint_steps"):
            if getattr(self, name) is not None and (name, getattr(self, name)) != ("patience", "auto"):
                check_count(self, **{name: getattr(self, name)})
        check_hold_out("TrainConfig(hold_out=...)", self.hold_out)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"TrainConfig(seed=...) takes a whole number from 0, not {self.seed!r}")

    def _check_numbers(self) -> None:
        check_positive(self, lr=self.lr, decay=self.decay)
        for name in ("weight_decay", "warmup", "kl_weight", "anneal", "min_delta"):
            check_number(self, 0, **{name: getattr(self, name)})
        check_number(self, 0, 1, momentum=self.momentum, final_lr=self.final_lr)
        for name in ("variational_lr", "clip"):
            if getattr(self, name) is not None:
                check_positive(self, **{name: getattr(self, name)})
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"TrainConfig(betas=...) takes two numbers from 0 to below 1, not {self.betas!r}")

    def _check_choices(self) -> None:
        check_choice(self, ("adam", "adamw", "sgd"), optimizer=self.optimizer)
        check_choice(self, ("constant", "linear", "cosine", "steps"), schedule=self.schedule)
        check_choice(self, ("average", "mixture"), components=self.components)
        check_choice(self, ("mean", "sum", "joint"), mixture=self.mixture)
        check_choice(self, ("auto", "32", "tf32", "bf16-mixed"), precision=self.precision)
        check_choice(self, ("auto", False, True), cuda_graph=self.cuda_graph)
        check_choice(self, ("auto", "cpu", "cuda"), device=self.device)
        check_choice(self, ("auto", "ddp", "fsdp"), strategy=self.strategy)
        check_choice(self, ("auto", False, True), restore_best=self.restore_best)
        for name in ("nesterov", "tile", "drop_last", "refit", "tensorboard"):
            check_choice(self, (False, True), **{name: getattr(self, name)})

    def _check_combinations(self) -> None:
        if self.schedule == "steps" and not self.milestones:
            raise ValueError("TrainConfig(schedule='steps') needs milestones, the epochs at which it acts")
        if self.nesterov and not self.momentum:
            raise ValueError("TrainConfig(nesterov=True) needs a momentum above 0")
        if self.refit and (self.devices > 1 or self.strategy != "auto"):
            raise ValueError("TrainConfig(refit=True) trains in one process; leave devices and strategy out")
        if self.strategy == "fsdp" and self.device == "cpu":
            raise ValueError("TrainConfig(strategy='fsdp') needs GPUs; use 'ddp' on the CPU")

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON values."""
        values = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """The inverse of `to_dict`; names that are left out take their defaults.

        Numbers may be texts: YAML reads ``1e-3``, which has no point, as one.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        # What earlier versions wrote, and what there is no other choice of now.
        values = {name: value for name, value in values.items() if (name, value) != ("bn", "pooled")}
        unknown = [name for name in values if name not in fields]
        if unknown:
            raise ValueError(f"TrainConfig has no {unknown[0]!r}; it has {', '.join(fields)}")
        return cls(**{name: _as_number(value, str(fields[name].type)) for name, value in values.items()})

    def differences(self, other: TrainConfig) -> list[str]:
        """Names of the settings that keep a run of `other` from being continued with this configuration."""
        free = _FREE_TO_CHANGE | ({"epochs"} if self.schedule in ("constant", "steps") else frozenset())
        mine, others = ({**each.to_dict(), "precision": _width(each)} for each in (self, other))
        return [name for name, value in mine.items() if name not in free and value != others[name]]

    @classmethod
    def load(cls, path: str | Path) -> TrainConfig:
        """Read a configuration from a ``.json`` or ``.yaml`` file."""
        text = Path(path).read_text(encoding="utf-8")
        if Path(path).suffix == ".json":
            values = json.loads(text)
        else:
            import yaml

            values = yaml.safe_load(text)
        if not isinstance(values, dict):
            raise ValueError(f"{path} must hold names and values, such as 'epochs: 10', not {type(values).__name__}")
        return cls.from_dict(values)


def _width(config: TrainConfig) -> str:
    return "bf16-mixed" if config.precision == "bf16-mixed" else "32"


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (tuple, list)):
        raise ValueError(f"TrainConfig({name}=...) takes several numbers, not {value!r}")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, (int, float)):
            raise ValueError(f"TrainConfig({name}=...) takes numbers, not {item!r}")
    return tuple(value)


def _as_number(value: Any, kind: str) -> Any:
    if isinstance(value, str) and "float" in kind:
        try:
            return float(value)
        except ValueError:
            return value
    return value
