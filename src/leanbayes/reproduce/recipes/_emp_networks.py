"""What the recipes on Ensemble Model Patching have in common: the images, the networks, how they train and predict."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._components import draws_noise, mixture_parts
from leanbayes._sampling import SeededRandom
from leanbayes.bench.contenders import Contender
from leanbayes.bench.setup import DATASET_SIZE
from leanbayes.data import Dataset, augment
from leanbayes.data._files import NotComplete
from leanbayes.metrics import functional as metrics
from leanbayes.models import create
from leanbayes.reproduce.recipes import _steptime as steptime
from leanbayes.reproduce.run import Run
from leanbayes.training import TrainConfig
from leanbayes.training.seeds import derive

Arrays = tuple[Tensor, Tensor]
_OUTPUT_SPREAD = 1e-3

COMPONENTS = 5
NAMES = {"vanilla": "vanilla", "dropout": "dropout", "emp": "EMP", "ecmp": "ECMP"}
STAND_IN = "tiny-imagenet-100"
STAND_IN_NOTE = (
    "100 classes of Tiny ImageNet at 32 x 32 (50,000 training and 5,000 test images) in the place of CIFAR-100, of "
    "which no copy was at hand; published figures are those of CIFAR-100"
)
_NO_COPY = "generated images in CIFAR-100's layout: no copy of CIFAR-100 was at hand, so no figure is comparable"
# Appendix D.5: Adam's defaults, batches of 256, dropout at a rate of 0.005 before every norm, all lambdas 0.001 over
# the batch size. The published 400 epochs keep the learning rate; shorter ones lower it to 0.
_SMALL = {"depth": 8, "alpha": 9, "samples": (1, 2, 3, 4), "fast": False}
_LARGE = {"depth": 110, "alpha": 270, "samples": (1, 20, 100, 200), "fast": True}
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"epochs": 1, "schedule": "constant", "batch_size": 30, **_SMALL},
    "short": {"epochs": 60, "schedule": "cosine", "batch_size": 256, **_LARGE},
    "paper": {"epochs": 400, "schedule": "constant", "batch_size": 256, **_LARGE},
}
for _values in PRESETS.values():
    _values |= {"lr": 1e-3, "strength": 1e-3, "dropout": 0.005, "init": "independent", "init_std": 0.1}
SEEDS = {"smoke": (0,), "short": (0,), "paper": (0,)}


def hundred_classes(run: Run) -> tuple[Arrays, Arrays]:
    """The training and test images of `hundred_images`, as networks take them."""
    data = hundred_images(run)
    return data.ready("train"), data.ready("test")


def hundred_images(run: Run, valid: int = 0) -> Dataset:
    """CIFAR-100 where there is a copy, else 100 classes of Tiny ImageNet, else generated images.

    Args:
        run: The run.
        valid: Number of training images to hold out.
    """
    rows = (200, 60) if run.preset == "smoke" else (10000, 2000)
    names = {"cifar100": "", STAND_IN: STAND_IN_NOTE}
    return first_copy(run, names, _NO_COPY, rows=rows, valid=valid, normalise="standard")


def first_copy(run: Run, names: Mapping[str, str], generated: str, *, rows: Any, **options: Any) -> Dataset:
    """The first of several data sets of which there is a copy, else generated images in the layout of the first.

    Args:
        run: The run.
        names: What its result must say where it takes this data set, by the name of the data set.
        generated: What it must say where there is no copy of any of them.
        rows: Size of the generated set.
        **options: As `Run.load` takes them.
    """
    first = next(iter(names))
    for name, note in names.items() if not run.generated else ():
        try:
            found = run.load(name, **options)
        except NotComplete:
            raise
        except FileNotFoundError:
            continue
        if note:
            run.note(note)
        return found
    run.generate_without(first, generated, rows=rows, **options)
    return run.load(first, rows=rows, **options)


def prior(strength: float, examples: int) -> lb.Normal:
    """The prior under which ``KL / examples`` is `strength` times the squares of all copies.

    Of equally probable copies the KL is ``sum_k |M_k|^2 / (2 K s^2)``.
    """
    return lb.Normal(0.0, 1 / math.sqrt(2 * COMPONENTS * strength * examples))


def with_dropout(net: nn.Module, p: float) -> nn.Module:
    """The network with dropout before every norm."""
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.Sequential(nn.Dropout(p), child))
    return net


def build(name: str, settings: Mapping[str, Any], examples: int, classes: int = 100) -> nn.Module:
    """A PyramidNet: vanilla, with dropout, or with patched norms and output."""
    net = create("pyramidnet", depth=settings["depth"], alpha=settings["alpha"], classes=classes)
    return convert(net, name, settings, examples)


def convert(net: nn.Module, name: str, settings: Mapping[str, Any], examples: int) -> nn.Module:
    """A network as it is, with dropout, or with patches.

    "emp" and "ecmp" patch norms and output, "emp-norms" the norms alone, and "emp-zero" has a component of zeros.
    """
    if name == "vanilla":
        return net
    if name == "dropout":
        return lb.bayesianize(with_dropout(net, settings["dropout"]), lb.MCDropout(p=None))
    method, where = patches(name, settings, examples)
    if where is not None:
        return lb.bayesianize(net, method, where=where)
    # Copies of the output differ without a spread, and that of the norms would be large beside its small weights.
    return lb.bayesianize(net, {lb.norms(): method, lb.output(net): replace(method, init_std=_OUTPUT_SPREAD)})


def patches(name: str, settings: Mapping[str, Any], examples: int) -> tuple[lb.EMP | lb.ECMP, Any]:
    """The method of a patched network, and where it goes."""
    family, _, part = name.partition("-")
    method = {"emp": lb.EMP, "ecmp": lb.ECMP}[family](
        COMPONENTS,
        prior(settings["strength"] / settings["batch_size"], examples),
        init=settings["init"],
        init_std=settings["init_std"],
        zero=part == "zero",
    )
    return method, lb.norms() if part == "norms" else None


def step_time(run: Run, name: str, classes: int = 100) -> dict[str, Any]:
    """The time of a training step of a patched PyramidNet beside that of the plain one."""
    s = run.settings
    method, where = patches(name, s, DATASET_SIZE)
    network = steptime.image_network("pyramidnet", lambda: build("vanilla", s, DATASET_SIZE, classes), classes)
    return steptime.step_time(run, network, Contender(name, method, options={"where": where}), s["batch_size"])


def speed(run: Run) -> tuple[dict[str, Any], torch.memory_format]:
    """How to train, and the layout of images: on a GPU, where the settings want it fast, by its fast kernels."""
    if not (run.settings["fast"] and run.device == "cuda"):
        return {}, torch.contiguous_format
    torch.backends.cudnn.benchmark = True
    return {"compile": run.settings.get("compile", True), "precision": "bf16-mixed"}, torch.channels_last


def train(run: Run, name: str, seed: int, data: Arrays, recipe: str = "emp") -> tuple[nn.Module, list[dict[str, Any]]]:
    """One network, trained by the run's settings; recipes with networks of another size keep them apart by name."""
    s = run.settings
    quick, layout = speed(run)
    config = TrainConfig(
        epochs=s["epochs"],
        batch_size=s["batch_size"],
        lr=s["lr"],
        schedule=s["schedule"],
        # Of weights that no prior speaks for: lambda |w|^2 has the gradient 2 lambda w.
        weight_decay=2 * s["strength"] / s["batch_size"],
        drop_last=True,
        checkpoint_every=max(1, s["epochs"] // 12),
        log_every=1000,
        **quick,
    )
    key = "cifar100-generated" if run.generated else "hundred-classes"
    return run.trained(
        f"{recipe}-{key}-{name}-{s['epochs']}-epochs",
        seed,
        lambda: build(name, s, len(data[1]), int(data[1].max()) + 1).to(memory_format=layout),  # pyright: ignore[reportCallIssue]
        data,
        config,
        augment=augment.Chain(augment.PadCrop(4), augment.Flip()),
    )


def deciding(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide a piece of work: how patches start makes no difference to networks without any."""
    plain = name.startswith(("vanilla-", "dropout-"))
    return {key: value for key, value in settings.items() if not (plain and key in ("init", "init_std"))}


def scores(run: Run, name: str, seed: int, recipe: str = "emp") -> dict[str, Any]:
    """Train one network, and measure its predictions of the test images for every number of samples."""
    data, (x, y) = hundred_classes(run)
    model, records = train(run, name, seed, data, recipe)
    began = time.monotonic()
    with SeededRandom(derive(seed, "predict")):
        outputs = predictions(run, model.eval(), x)
    y = y.to(outputs.device)
    found: dict[str, Any] = {
        "seconds_per_epoch": statistics.median(record["seconds"] for record in records),
        "epochs": len(records),
        "prediction_seconds": time.monotonic() - began,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "samples": {},
    }
    for samples in run.settings["samples"]:
        probs = outputs[:samples].float().softmax(-1).mean(0)
        found["samples"][str(samples)] = quality(probs, y)
    probs = outputs[: run.settings["samples"][-1]].float().softmax(-1).mean(0)
    return found | {"curve": calibration_curve(probs, y), "right": (probs.argmax(-1) == y).long().tolist()}


def quality(probs: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracies and calibration errors in percent, and the NLL."""
    return {
        "top1": 100 * float(metrics.accuracy(probs, y)),
        "top5": 100 * float(metrics.accuracy(probs, y, top_k=5)),
        "nll": float(metrics.nll(probs, y)),
        # As the paper counts: 20 bins, without those of at most five images.
        "ece": 100 * float(metrics.expected_calibration_error(probs, y, 20, min_count=6)),
        "mce": 100 * float(metrics.max_calibration_error(probs, y, 20, min_count=6)),
    }


def calibration_curve(probs: Tensor, y: Tensor) -> dict[str, list[float]]:
    """Accuracy against confidence, in the bins of the calibration errors."""
    table = metrics.reliability_table(probs, y, 20)
    kept = table.count >= 6
    return {"confidence": table.confidence[kept].tolist(), "accuracy": table.accuracy[kept].tolist()}


def draw_calibration(axes: Any, curves: Mapping[str, Mapping[str, list[float]]], colours: Sequence[str]) -> None:
    """Accuracy against confidence, a line for each title."""
    axes.plot([0, 1], [0, 1], color="#ced4da", linewidth=1, zorder=0)
    for (title, curve), colour in zip(curves.items(), colours):
        pairs = list(zip(curve["accuracy"], curve["confidence"]))
        gap = statistics.fmean(abs(a - b) for a, b in pairs) if pairs else 0.0
        label = f"{title} (mean gap {gap:.2f})"
        axes.plot(curve["confidence"], curve["accuracy"], marker="o", markersize=3, color=colour, label=label)
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")


def predictions(run: Run, model: nn.Module, x: Tensor) -> Tensor:
    """Outputs ``[S, N, classes]`` for all test images; one sample of what draws nothing."""
    return Predictor(run, model, max(run.settings["samples"]))(x)


class Predictor:
    """Predicts any number of images by batches of one size, so that a network is compiled once.

    Args:
        run: Says whether to be fast.
        model: The network.
        samples: Draws for each image; one of what draws nothing.
        capture: Whether to compile the network where the run is fast; not worth it for a single use, nor for what draws
            nothing, whose one sample of all images is there before it is compiled.
    """

    batch = 250

    def __init__(self, run: Run, model: nn.Module, samples: int, *, capture: bool = True) -> None:
        self.device = next(model.parameters()).device
        self.fast = self.is_fast(run)
        several = samples > 1 and (draws_noise(model) or bool(mixture_parts(model)))
        self.model = lb.capture(model) if self.fast and capture and several else model
        self.samples = samples

    def is_fast(self, run: Run) -> bool:
        """Whether predictions run by the fast kernels of a GPU."""
        return run.settings["fast"] and self.device.type == "cuda"

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Outputs ``[S, N, classes]`` of images ``[N, ...]``."""
        layout = torch.channels_last if self.fast else torch.contiguous_format
        pieces = []
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.fast):
            for part in x.split(self.batch):
                rows = len(part)
                if self.fast and rows < self.batch:
                    part = torch.cat([part, part[:1].expand(self.batch - rows, *part.shape[1:])])
                part = part.to(self.device).contiguous(memory_format=layout)
                pieces.append(lb.predict(self.model, part, self.samples).outputs[:, :rows])
        return torch.cat(pieces, 1)


def at(one: Mapping[str, Any], samples: int) -> dict[str, float]:
    """The scores of so many samples; of a network that draws nothing, its own."""
    return one["samples"][str(samples)]
