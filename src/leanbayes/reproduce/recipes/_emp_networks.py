"""What the recipes on Ensemble Model Patching have in common: the images, the networks, how they train and predict."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._sampling import SeededRandom
from leanbayes.data import augment
from leanbayes.metrics import functional as metrics
from leanbayes.models import create
from leanbayes.reproduce.run import Run
from leanbayes.training import TrainConfig
from leanbayes.training.seeds import derive

Arrays = tuple[Tensor, Tensor]

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
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "epochs": 1,
        "schedule": "constant",
        "batch_size": 30,
        "depth": 8,
        "alpha": 9,
        "samples": (1, 2, 3, 4),
        "fast": False,
    },
    "short": {
        "epochs": 60,
        "schedule": "cosine",
        "batch_size": 256,
        "depth": 110,
        "alpha": 270,
        "samples": (1, 20, 100, 200),
        "fast": True,
    },
    "paper": {
        "epochs": 400,
        "schedule": "constant",
        "batch_size": 256,
        "depth": 110,
        "alpha": 270,
        "samples": (1, 20, 100, 200),
        "fast": True,
    },
}
for _values in PRESETS.values():
    _values |= {"lr": 1e-3, "strength": 1e-3, "dropout": 0.005, "init": "independent", "init_std": 0.1}
SEEDS = {"smoke": (0,), "short": (0,), "paper": (0,)}


def hundred_classes(run: Run) -> tuple[Arrays, Arrays]:
    """CIFAR-100 where there is a copy, else 100 classes of Tiny ImageNet, else generated images."""
    rows = (200, 60) if run.preset == "smoke" else (10000, 2000)
    options: dict[str, Any] = {"valid": 0, "normalise": "standard"}
    if not run.generated:
        try:
            return _parts(run.load("cifar100", **options))
        except FileNotFoundError:
            pass
        try:
            found = _parts(run.load(STAND_IN, **options))
        except FileNotFoundError:
            pass
        else:
            run.note(STAND_IN_NOTE)
            return found
    run.generate_without("cifar100", _NO_COPY, rows=rows, **options)
    return _parts(run.load("cifar100", rows=rows, **options))


def _parts(data: Any) -> tuple[Arrays, Arrays]:
    return data.ready("train"), data.ready("test")


def prior(strength: float, examples: int, components: int = COMPONENTS) -> lb.Normal:
    """The prior under which ``KL / examples`` is `strength` times the squares of all copies.

    Of equally probable copies the KL is ``sum_k |M_k|^2 / (2 K s^2)``.
    """
    return lb.Normal(0.0, 1 / math.sqrt(2 * components * strength * examples))


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
    """A network as it is, with dropout, or with patches of norms and output ("emp"), or of norms ("emp-norms")."""
    if name == "vanilla":
        return net
    if name == "dropout":
        return lb.bayesianize(with_dropout(net, settings["dropout"]), lb.MCDropout(p=None))
    family, _, part = name.partition("-")
    strength = settings["strength"] / settings["batch_size"]
    method = {"emp": lb.EMP, "ecmp": lb.ECMP}[family]
    return lb.bayesianize(
        net,
        method(COMPONENTS, prior(strength, examples), init=settings["init"], init_std=settings["init_std"]),
        where=lb.norms() if part == "norms" else None,
    )


def train(run: Run, name: str, seed: int, data: Arrays) -> tuple[nn.Module, list[dict[str, Any]]]:
    """One network, trained by the run's settings."""
    s = run.settings
    fast = s["fast"] and run.device == "cuda"
    if fast:
        torch.backends.cudnn.benchmark = True
    layout = torch.channels_last if fast else torch.contiguous_format
    quick: dict[str, Any] = {"compile": True, "precision": "bf16-mixed"} if fast else {}
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
        f"emp-{key}-{name}-{s['epochs']}-epochs",
        seed,
        lambda: build(name, s, len(data[1]), int(data[1].max()) + 1).to(memory_format=layout),  # pyright: ignore[reportCallIssue]
        data,
        config,
        augment=augment.Chain(augment.PadCrop(4), augment.Flip()),
    )


def scores(run: Run, name: str, seed: int) -> dict[str, Any]:
    """Train one network, and measure its predictions of the test images for every number of samples."""
    data, (x, y) = hundred_classes(run)
    model, records = train(run, name, seed, data)
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


@torch.no_grad()
def predictions(run: Run, model: nn.Module, x: Tensor) -> Tensor:
    """Outputs ``[S, N, classes]`` for all test images; one sample of what draws nothing."""
    device = next(model.parameters()).device
    fast = run.settings["fast"] and device.type == "cuda"
    ready = lb.capture(model) if fast else model
    layout = torch.channels_last if fast else torch.contiguous_format
    batch = 250
    pieces = []
    with torch.autocast(device.type, torch.bfloat16, enabled=fast):
        for part in x.split(batch):
            rows = len(part)
            if rows < batch:  # compiled for one size
                part = torch.cat([part, part[:1].expand(batch - rows, *part.shape[1:])])
            part = part.to(device).contiguous(memory_format=layout)
            pieces.append(lb.predict(ready, part, max(run.settings["samples"])).outputs[:, :rows])
    return torch.cat(pieces, 1)


def at(one: Mapping[str, Any], samples: int) -> dict[str, float]:
    """The scores of so many samples; of a network that draws nothing, its own."""
    return one["samples"][str(samples)]
