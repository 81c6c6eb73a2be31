"""The networks of the Variance Networks paper and how they are trained; recipes share the trainings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.analysis import phases
from leanbayes.data import Dataset, augment
from leanbayes.models import create
from leanbayes.reproduce.run import Run
from leanbayes.training import EpochEnd, TrainConfig

Arrays = tuple[Tensor, Tensor]

# Adam at 1e-3, falling to 0 in a straight line; MNIST: 200 epochs of batches of 200. A shared log alpha moves by no
# more than its learning rate per step, so a shorter training gives it a larger one. A layer without means learns from
# noise alone from the first step on, and gets the published number of epochs in any case.
MNIST_PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"epochs": 2, "zero_mean_epochs": 2, "batch_size": 20, "alpha_lr": 5e-3, "samples": 2, "fast": False},
    "short": {"epochs": 100, "zero_mean_epochs": 200, "batch_size": 200, "alpha_lr": 5e-3, "samples": 20, "fast": True},
    "paper": {"epochs": 200, "zero_mean_epochs": 200, "batch_size": 200, "alpha_lr": 1e-3, "samples": 20, "fast": True},
}
# 550 epochs of batches of 100, beta1 = 0.95, crops and flips.
CIFAR_PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"epochs": 1, "batch_size": 30, "alpha_lr": 5e-3, "samples": 2, "fast": False},
    "short": {"epochs": 350, "batch_size": 128, "alpha_lr": 3e-3, "samples": 20, "fast": True},
    "paper": {"epochs": 550, "batch_size": 100, "alpha_lr": 1e-3, "samples": 20, "fast": True},
}
for _values in (*MNIST_PRESETS.values(), *CIFAR_PRESETS.values()):
    _values["lr"] = 1e-3
SEEDS = {"smoke": (0,), "short": (0, 1, 2), "paper": (0, 1, 2)}
_VGG_LAYERS = ("features.block5.conv*", "classifier.dense1")
VGG_DROPOUT = "*.drop?"
METRICS = {
    "one": "accuracy of one sample, %",
    "mean": "accuracy of mean propagation, %",
    "averaged": "accuracy of 20 samples, %",
}
# Recipes share trainings: whichever comes first notes what the figures of the others need.
_WATCHED_LENETS = {"mnist-all-layers": "dense1"}
_WATCHED_ROWS = 2000


@dataclass(frozen=True)
class Variant:
    """A network and what is random in it.

    Attributes:
        network: Name of the model.
        options: Its options.
        method: The method of the chosen layers, or methods by layer; None for a plain network.
        where: Names of the layers; all where empty.
        shares_alpha: Whether log alphas are few, so that they take the learning rate of their own.
    """

    network: str
    method: lb.Method | Mapping[str, lb.Method] | None
    where: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    shares_alpha: bool = False

    def build(self, **more: Any) -> nn.Module:
        """The network with fresh weights."""
        net = create(self.network, **{**self.options, **more})
        if self.method is None:
            return net
        return lb.bayesianize(net, self.method, where=lb.named(*self.where) if self.where else None)


# Published with local reparameterisation, on convolutions too: another weight at each position of an image.
_dropout = partial(lb.VariationalDropout, estimator="local")
_variance = partial(lb.VarianceLayer, estimator="local")


def _lenet(
    method: lb.Method | Mapping[str, lb.Method], *where: str, shares_alpha: bool = False, **options: Any
) -> Variant:
    return Variant("lenet5", method, where, {"batch_norm": "dense"} | options, shares_alpha)


def _vgg(prior: lb.Prior, share: str = "layer") -> Variant:
    # Dropout stays where weights are not noisy, and is drawn in samples as in the dropout network.
    methods: dict[str, lb.Method] = {VGG_DROPOUT: lb.MCDropout(p=None)}
    methods |= dict.fromkeys(_VGG_LAYERS, _dropout(share=share, prior=prior, init_log_alpha=-10))
    return Variant("vgg_like", methods, options={"last_dropout": False}, shares_alpha=share != "weight")


def _tanh(*where: str, batch_norm: str = "dense") -> Variant:
    options = {"batch_norm": batch_norm, "bias": False, "activation": "tanh"}
    return Variant("lenet5", _variance() if where else None, where, options)


VARIANTS: dict[str, Variant] = {
    "mnist-dropout": _lenet(lb.MCDropout(p=None), dropout=0.5),
    "mnist-all-layers": _lenet(_dropout(), shares_alpha=True),
    "mnist-zero-mean": _lenet(_variance(), "dense1"),
    # A ReLU after weights without means drops half of the units at random; the preprint spares the network that noise.
    "mnist-zero-mean-abs": _lenet(_variance(), "dense1", dense_activation="abs"),
    # The published network may have noise in its other layers, too; on training images held out, dropout did better.
    "mnist-zero-mean-dropout": _lenet(
        {"dense1": _variance(), "drop": lb.MCDropout(p=None)}, dense_activation="abs", dropout=0.5
    ),
    "mnist-layer": _lenet(_dropout(), "dense1", shares_alpha=True),
    "mnist-neuron": _lenet(_dropout(share="neuron"), "dense1", shares_alpha=True),
    "mnist-weight": _lenet(_dropout(share="weight"), "dense1"),
    "mnist-additive": _lenet(lb.MeanField(prior=lb.LogUniform(), estimator="local"), "dense1"),
    # One draw for a whole batch would let batch normalisation learn statistics that no other draw has.
    "mnist-bernoulli": _lenet(lb.VarianceLayer(noise="bernoulli", estimator="flipout"), "dense1"),
    "mnist-uniform": _lenet(lb.VarianceLayer(noise="uniform", estimator="flipout"), "dense1"),
    "mnist-softplus": _lenet(_dropout(), "dense1", shares_alpha=True, dense_activation="softplus"),
    "mnist-tanh": _tanh(),
    "mnist-tanh-conv2": _tanh("conv2"),
    "mnist-tanh-dense1": _tanh("dense1"),
    "mnist-tanh-conv2-dense1": _tanh("conv2", "dense1"),
    "mnist-tanh-odd": _tanh("dense1", batch_norm="none"),
    "vgg-dropout": Variant("vgg_like", lb.MCDropout(p=None)),
    "vgg-zero-mean": Variant(
        "vgg_like",
        {VGG_DROPOUT: lb.MCDropout(p=None), "classifier.dense1": _variance()},
        options={"dense_activation": "abs"},
    ),
    "vgg-log-uniform": _vgg(lb.LogUniform()),
    "vgg-neuron": _vgg(lb.LogUniform(), "neuron"),
    "vgg-weight": _vgg(lb.LogUniform(), "weight"),
    "vgg-student": _vgg(lb.StudentT(1e-16)),
    "vgg-ard": _vgg(lb.ARD()),
}


def mnist(run: Run) -> tuple[Arrays, Arrays]:
    """Training and test images from 0 to 1, and their classes."""
    data = run.load("mnist", rows=(200, 100), valid=0, normalise="unit")
    return data.ready("train"), data.ready("test")


def pixels(data: Dataset) -> tuple[Arrays, Arrays]:
    """Training and test images from 0 to 255, as the published networks see them, and their classes."""
    (x, y), (x_test, y_test) = data.ready("train"), data.ready("test")
    return (x.float(), y), (x_test.float(), y_test)


def cifar10(run: Run) -> tuple[Arrays, Arrays]:
    """CIFAR-10, see `pixels`."""
    return pixels(run.load("cifar10", rows=(60, 20), valid=0, normalise="none"))


def train_lenet(
    run: Run,
    name: str,
    seed: int,
    data: Arrays,
    *,
    epochs: int | None = None,
    watch: Callable[[EpochEnd], Any] | None = None,
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """A LeNet-5 of `VARIANTS`, trained by the run's settings."""
    variant = VARIANTS[name]
    count: int = epochs or run.settings["zero_mean_epochs" if "zero-mean" in name else "epochs"]
    if name in _WATCHED_LENETS:
        watch = watch_phases(mnist(run)[1], _WATCHED_LENETS[name], count)
    callbacks = () if watch is None else (watch,)
    config = _config(run, variant, count)
    return run.trained(f"{name}-{count}-epochs", seed, variant.build, data, config, callbacks=callbacks)


def mnist_layer(run: Run, seed: int) -> nn.Module:
    """A LeNet-5 with layer-wise variational dropout in its first dense layer, trained on MNIST."""
    return train_lenet(run, "mnist-layer", seed, mnist(run)[0])[0]


def train_vgg(
    run: Run,
    name: str,
    seed: int,
    data: Arrays,
    *,
    key: str = "",
    watch: Callable[[EpochEnd], Any] | None = None,
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """A VGG-like network of `VARIANTS`, trained by the run's settings; `key` tells data sets apart."""
    variant = VARIANTS[name]
    classes = int(data[1].max()) + 1
    fast = run.settings["fast"] and run.device == "cuda"
    layout = torch.channels_last if fast else torch.contiguous_format
    # Small networks train too quickly to earn back the time of compiling.
    quick = {"compile": True, "precision": "bf16-mixed"} if fast else {}

    def build() -> nn.Module:
        return variant.build(classes=classes).to(memory_format=layout)  # pyright: ignore[reportCallIssue]

    return run.trained(
        f"{key}{name}-{run.settings['epochs']}-epochs",
        seed,
        build,
        data,
        _config(run, variant, run.settings["epochs"], betas=(0.95, 0.999), **quick),
        augment=augment.Chain(augment.PadCrop(4), augment.Flip()),
        callbacks=() if watch is None else (watch,),
    )


def _config(run: Run, variant: Variant, epochs: int, **more: Any) -> TrainConfig:
    fast = run.settings["fast"] and run.device == "cuda"
    if fast:
        torch.backends.cudnn.benchmark = True
    return TrainConfig(
        epochs=epochs,
        batch_size=run.settings["batch_size"],
        lr=run.settings["lr"],
        variational_lr=run.settings["alpha_lr"] if variant.shares_alpha else None,
        schedule="linear",
        drop_last=True,
        cuda_graph=fast,
        checkpoint_every=max(1, epochs // 20),
        log_every=1000,
        **more,
    )


def watch_phases(data: Arrays, layer: str, epochs: int) -> Callable[[EpochEnd], None]:
    """A callback that notes some forty times in a training how mean, sampled and zero-mean weights predict."""
    x, y = data[0][:_WATCHED_ROWS], data[1][:_WATCHED_ROWS]

    def watch(event: EpochEnd) -> None:
        epoch = event.record["epoch"]
        # The transition takes place early.
        every = max(1, epochs // (100 if epoch <= epochs // 5 else 20))
        if epoch % every == 0:
            report = phases(event.model, x, y, samples=5, layers=[layer]).to_dict()
            event.record["phases"] = report

    return watch


def curves(records: list[dict[str, Any]], *, together: bool) -> dict[str, list[float]]:
    """What `watch_phases` noted, as one list per curve.

    Args:
        records: Of the training.
        together: Whether means are dropped and deviations permuted in all noisy layers, or in the watched one alone.
    """
    noted = [(record["epoch"], record["phases"]) for record in records if "phases" in record]
    scores = [report["together"] if together else report["layers"][0]["scores"] for _, report in noted]
    return {
        "epoch": [epoch for epoch, _ in noted],
        "log alpha": [report["layers"][0]["log_alpha"] for _, report in noted],
        "mean propagation": [100 * report["together"]["mean"]["accuracy"] for _, report in noted],
        "one sample": [100 * report["drawn"]["sample_accuracy"] for _, report in noted],
        "averaged": [100 * report["drawn"]["accuracy"] for _, report in noted],
        "zero-mean sample": [100 * score["zero_mean"]["sample_accuracy"] for score in scores],
        "permuted deviations": [100 * score["permuted"]["accuracy"] for score in scores],
    }


def draw_curves(axes: Any, curve: Mapping[str, list[float]], title: str) -> Any:
    """Accuracies over the epochs, and log alpha on an axis of its own, which is returned."""
    names = ("mean propagation", "one sample", "averaged", "zero-mean sample", "permuted deviations")
    for name, style in zip(names, ("-", "-", "-", "--", ":")):
        axes.plot(curve["epoch"], curve[name], style, label=name)
    axes.set(title=title, xlabel="epoch", ylabel="test accuracy, %", ylim=(0, 101))
    other = axes.twinx()
    other.plot(curve["epoch"], curve["log alpha"], color="0.6", linewidth=1)
    other.set_ylabel("log alpha", color="0.4")
    return other


def accuracies(model: nn.Module, test: Arrays, samples: int) -> dict[str, float]:
    """Accuracies of one sample, of several averaged, and of the means, in percent."""
    x, y = test
    device = next(model.parameters()).device
    right = {"one": 0.0, "mean": 0.0, "averaged": 0.0}
    for xs, ys in zip(x.split(1000), y.split(1000)):
        ys = ys.to(device)
        outputs = lb.predict(model, xs.to(device), samples, seed=0).outputs.softmax(-1)  # [S, B, C]
        with lb.sampling(mean=True):
            mean = lb.predict(model, xs.to(device), 1).label
        right["one"] += float((outputs.argmax(-1) == ys).float().mean(0).sum())
        right["averaged"] += float((outputs.mean(0).argmax(-1) == ys).sum())
        right["mean"] += float((mean == ys).sum())
    return {name: 100 * value / len(y) for name, value in right.items()}
