"""One network of the rank-1 recipes: what it is and how it is trained, as plain values that name its training."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._sampling import SeededRandom
from leanbayes.analysis import refresh_batchnorm
from leanbayes.data import Dataset, augment
from leanbayes.models import create
from leanbayes.reproduce.recipes import _emp_networks as emp
from leanbayes.reproduce.recipes._r1_extras import Averages, Diverse, OwnViews, grow_
from leanbayes.reproduce.run import Run
from leanbayes.training import EpochEnd, TrainConfig
from leanbayes.training.files import LAST
from leanbayes.training.seeds import derive

FACTORS = ("delta", "normal", "cauchy", "lognormal", "halfcauchy")
_POSITIVE = ("lognormal", "halfcauchy")
HEAVY = ("cauchy", "halfcauchy")
# Of the run: where the learning rate falls, and the factor.
_MILESTONES, _DECAY = {"steps": (0.4, 0.8, 0.9), "early-steps": (0.3, 0.6, 0.8)}, 0.2


@dataclass(frozen=True)
class Training:
    """A network and how to train it.

    Attributes:
        family: "plain", "dropout", "mfvi", or the distribution of rank-1 factors: "delta" (BatchEnsemble), "normal",
            "cauchy", "lognormal", "halfcauchy".
        network: "wide_resnet", or a ResNet such as "resnet50".
        depth: Of a wide ResNet.
        width: Likewise.
        epochs: Passes over the training images.
        batch_size: Images of a step, before they are tiled.
        lr: Learning rate per 128 images of a step.
        factor_lr: Learning rate of what the method adds, over that of the others.
        schedule: "steps" (by 0.2 at 40, 80 and 90 % of the run, as published), "early-steps" (at 30, 60 and 80 %),
            "cosine", "linear" or "constant".
        l2: Strength of ``l2 * |w|^2`` on weights, biases and norms.
        dropout: Rate of "dropout".
        components: Number K of components.
        on: As in `Rank1`.
        form: As in `Rank1`.
        random_sign: As in `Rank1`; 1 for positive factors.
        prior_std: Scale of the prior of the factors; of all weights for "mfvi".
        prior_at: Where the prior of normal factors is centred: "one", or "start", the signs that they start with.
        init_std: As in `Rank1`, 0 for the default.
        init_spread: As in `Rank1`.
        norms: As in `Rank1`.
        clip: As in `Rank1`, 0 for no limit; of heavy-tailed factors.
        tile: Whether every component runs on every batch.
        likelihood: "average" or "mixture".
        kl: "mean" or "sum" over the components.
        anneal: Share of the epochs over which the weight of the KL rises.
        diversity: Weight of the mutual information of label and component, see `Diverse`.
        own_views: Whether components see different crops.
        average: Share of the epochs, the last ones, whose weights are averaged.
        start: The training whose network this one starts from: a plain one, or one of fewer components.
    """

    family: str = "plain"
    network: str = "wide_resnet"
    depth: int = 28
    width: int = 10
    epochs: int = 60
    batch_size: int = 128
    lr: float = 0.1
    factor_lr: float = 1.0
    schedule: str = "steps"
    l2: float = 1e-4
    dropout: float = 0.0
    components: int = 1
    on: str = "both"
    form: str = "multiplicative"
    random_sign: float = 1.0
    prior_std: float = 0.1
    prior_at: str = "one"
    init_std: float = 0.0
    init_spread: float = 0.0
    norms: str = "shared"
    clip: float = 0.0
    tile: bool = True
    likelihood: str = "average"
    kl: str = "mean"
    anneal: float = 0.8
    diversity: float = 0.0
    own_views: bool = False
    average: float = 0.0
    start: Training | None = None

    def essential(self) -> Training:
        """The same with what makes no difference to its family at the default, so that it names one training."""
        off: set[str] = set()
        if self.family not in FACTORS:
            off |= {"components", "on", "form", "random_sign", "init_spread", "norms", "tile"}
            off |= {"likelihood", "kl", "diversity", "own_views", "init_std", "factor_lr"}
        if self.family in ("plain", "dropout", "delta"):
            off |= {"prior_std", "init_std", "anneal", "kl"}
        if self.family == "delta":
            off |= {"on", "form"}
        if self.family in _POSITIVE:
            off.add("random_sign")
        if self.family != "normal":
            off.add("prior_at")
        if self.family not in HEAVY:
            off.add("clip")
        if self.family != "dropout":
            off.add("dropout")
        if self.network != "wide_resnet":
            off |= {"depth", "width"}
        defaults = {field.name: field.default for field in dataclasses.fields(self) if field.name in off}
        start = None if self.start is None else self.start.essential()
        return replace(self, start=start, **defaults)

    def key(self) -> str:
        """A name that only equal trainings share."""
        text = json.dumps(dataclasses.asdict(self.essential()), sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=5).hexdigest()
        size = f"{self.depth}-{self.width}" if self.network == "wide_resnet" else self.network
        return f"{self.family}-{size}-{self.epochs}-epochs-{digest}"


FIELDS = tuple(field.name for field in dataclasses.fields(Training))


def method(t: Training) -> lb.Method:
    """The method of a network that has one."""
    init_std = t.init_std or None
    if t.family == "mfvi":
        return lb.MeanField(lb.Normal(0.0, t.prior_std), estimator="flipout", init_std=init_std or 1e-3)
    if t.family == "delta":
        return lb.BatchEnsemble(t.components, t.random_sign, t.init_spread, norms=t.norms)
    prior: Any = {
        "normal": lb.Pretrained(t.prior_std) if t.prior_at == "start" else lb.Normal(1.0, t.prior_std),
        "cauchy": lb.Cauchy(1.0, t.prior_std),
        "lognormal": lb.Normal(1.0, t.prior_std),
        "halfcauchy": lb.HalfCauchy(1.0),
    }[t.family]
    return lb.Rank1(
        t.components, t.family, prior, t.on, t.form, t.random_sign, init_std, t.init_spread, norms=t.norms,
        clip=t.clip or None,
    )  # fmt: skip


def build(t: Training, classes: int, before: nn.Module | None = None, stem: str = "imagenet") -> nn.Module:
    """The network, untrained or as another one left it.

    Args:
        t: What it is.
        classes: Units of the output.
        before: The trained network of ``t.start``.
        stem: Of a ResNet.
    """
    t = t.essential()
    if t.network == "wide_resnet":
        net = create("wide_resnet", depth=t.depth, width=t.width, classes=classes, dropout=t.dropout)
    else:
        net = create(t.network, classes=classes, stem=stem)
    plain_start = t.start is not None and t.start.family not in FACTORS
    if before is not None and plain_start:
        net.load_state_dict({k: v for k, v in before.state_dict().items() if not k.startswith("averages.")})
    if t.own_views:
        net = nn.Sequential(OwnViews(), net)
    if t.family == "dropout":
        net = lb.bayesianize(net, lb.MCDropout(p=None))
    elif t.family != "plain":
        net = lb.bayesianize(net, method(t))
    if before is not None and not plain_start:
        grow_(net, before, t.init_spread)
    if t.average:
        net.averages = Averages(net)
    return net


def train(
    run: Run,
    t: Training,
    seed: int,
    data: Dataset,
    *,
    watch: Sequence[Callable[[EpochEnd], Any]] = (),
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """The trained network, in eval mode, and the records of its epochs; goes on with a training that was cut short."""
    t = t.essential()
    # Records of a training that nobody watched lack what was to be seen.
    key = f"r1-{_place(run, data)}-{t.key()}{'-watched' if watch else ''}"
    before = None
    # A training that is under way, or was carried here, needs no start.
    if t.start is not None and not (run.folder / "trainings" / f"{key}-seed{seed}" / LAST).exists():
        before, _ = train(run, t.start, seed, data)
    _, layout = emp.speed(run)
    stem = "cifar" if data.shape[1] < 64 else "imagenet"
    classes = len(data.class_names)
    changes = None if t.own_views else augment.standard(data.shape)
    source, changes = _source(t, seed, data, changes, run.device)
    model, records = run.trained(
        key,
        seed,
        lambda: build(t, classes, before, stem).to(memory_format=layout),  # pyright: ignore[reportCallIssue]
        source,
        _config(run, t, len(data.train)),
        likelihood=Diverse(t.diversity) if t.diversity else None,
        augment=changes,
        callbacks=(*watch, *([_averaging(t)] if t.average else [])),
    )
    if t.average:
        _take_average(model, data, seed)
    return model.eval(), records


def _place(run: Run, data: Dataset) -> str:
    held_out = f"-without-{len(data.valid)}" if len(data.valid) else ""
    return f"{'generated-' if run.generated else ''}{data.name.replace(' ', '-')}{held_out}"


def _source(
    t: Training, seed: int, data: Dataset, changes: augment.Chain | None, device: str
) -> tuple[Any, augment.Chain | None]:
    """Training images as `fit` takes them; those that stay on the disk are changed where they are read."""
    if isinstance(data.train.x, Tensor):
        return data.ready("train"), changes
    options: dict[str, Any] = {"shuffle": True, "seed": seed, "augment": changes, "drop_last": True, "device": device}
    return data.batches("train", t.batch_size, **options), None


def _config(run: Run, t: Training, examples: int) -> TrainConfig:
    quick, _ = emp.speed(run)
    lr = t.lr * t.batch_size / 128
    milestones = tuple(share * t.epochs for share in _MILESTONES.get(t.schedule, ()))
    return TrainConfig(
        epochs=t.epochs,
        batch_size=t.batch_size,
        lr=lr,
        variational_lr=lr * t.factor_lr,
        optimizer="sgd",
        nesterov=True,
        schedule="steps" if milestones else t.schedule,
        warmup=min(1.0, t.epochs / 60),
        milestones=milestones,
        decay=_DECAY,
        weight_decay=2 * t.l2,  # l2 |w|^2 has the gradient 2 l2 w
        anneal=t.anneal * t.epochs if t.family not in ("plain", "dropout", "delta") else 0.0,
        components=t.likelihood,
        tile=t.tile,
        mixture=t.kl,
        drop_last=True,
        dataset_size=examples,
        checkpoint_every=max(1, t.epochs // 12),
        log_every=1000,
        **quick,
    )


def _averaging(t: Training) -> Callable[[EpochEnd], None]:
    first = t.epochs - max(1, round(t.average * t.epochs))

    def take_in(event: EpochEnd) -> None:
        if event.record["epoch"] > first:
            event.model.averages.add(event.model)  # pyright: ignore

    return take_in


def _take_average(model: nn.Module, data: Dataset, seed: int) -> None:
    """Put the averaged weights in the model, with batch norms that have seen them."""
    averages: Any = model.averages
    averages.put_in(model)
    x, _ = data.ready("train")
    generator = torch.Generator().manual_seed(derive(seed, "average"))
    chosen = torch.randperm(len(x), generator=generator)[: 40 * 250].split(250)
    with SeededRandom(derive(seed, "refresh")):
        refresh_batchnorm(model, [x[rows] for rows in chosen])


def of_settings(settings: Mapping[str, Any], **changes: Any) -> Training:
    """A training by the settings of a run that have its fields' names, with changes."""
    values = {name: settings[name] for name in FIELDS if name in settings}
    return Training(**(values | changes))
