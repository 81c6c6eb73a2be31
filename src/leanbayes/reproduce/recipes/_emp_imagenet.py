"""What the recipes on ImageNet have in common: any tree of image folders, six ResNet-18, clean and corrupted images."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes import corruptions
from leanbayes._sampling import SeededRandom
from leanbayes.data import Dataset, augment, generate, load
from leanbayes.models import create
from leanbayes.reproduce.datasets import OWN_FOLDER
from leanbayes.reproduce.recipes import _emp_networks as emp
from leanbayes.reproduce.run import Run
from leanbayes.training import TrainConfig
from leanbayes.training.seeds import derive

NAMES = {
    "emp": "EMP (norms and output)",
    "emp-norms": "EMP (norms)",
    "ecmp": "ECMP (norms and output)",
    "ecmp-norms": "ECMP (norms)",
    "dropout": "dropout",
    "vanilla": "vanilla",
}
NOT_IMAGENET = "the images are not those of ImageNet, so no figure is comparable"
_COMMON = {"lr": 1e-3, "strength": 1e-3, "dropout": 0.005, "init": "independent", "init_std": 0.1}
# Appendices D.3 and D.4: 100 epochs of batches of 256, 200 samples of clean images and 100 of corrupted ones.
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "epochs": 1, "batch_size": 20, "size": 32, "samples": 2, "corrupted_samples": 2, "severities": (3,),
        "corruptions": ("gaussian_noise", "contrast"), "fast": False, **_COMMON,
    },
    "short": {
        "epochs": 20, "batch_size": 256, "size": 64, "samples": 50, "corrupted_samples": 20,
        "severities": (1, 2, 3, 4, 5), "corruptions": (), "fast": True, **_COMMON,
    },
    "paper": {
        "epochs": 100, "batch_size": 256, "size": 224, "samples": 200, "corrupted_samples": 100,
        "severities": (1, 2, 3, 4, 5), "corruptions": (), "fast": True, **_COMMON,
    },
}  # fmt: skip
SEEDS = {"smoke": (0,), "short": (0,), "paper": (0,)}


def images(run: Run) -> Dataset:
    """The tree of image folders that the run was given; a generated one in a smoke run without data."""
    options: dict[str, Any] = {"size": run.settings["size"], "valid": 0}
    if run.data is not None and not run.generated:
        found = run.load(OWN_FOLDER, **options)
        if len(found.class_names) != 1000:
            run.note(NOT_IMAGENET)
        return found
    if run.preset != "smoke":
        raise FileNotFoundError("this result needs a tree of image folders: pass it with --data FOLDER")
    tree = run.folder / "generated-tree"
    if not tree.exists():
        generate.write_image_folder(tree, rows=(200, 60), classes=20)
    run.note(f"generated data; {NOT_IMAGENET}")
    return load(tree, **options)


def trained(run: Run, name: str, seed: int) -> nn.Module:
    """One of the six networks, trained by the run's settings."""
    s, data = run.settings, images(run)
    quick, layout = emp.speed(run)
    changes = augment.Chain(augment.PadCrop(max(1, s["size"] // 8)), augment.Flip())
    part, examples = data.train, len(data.train)
    in_memory = isinstance(part.x, Tensor)
    source = (
        data.ready("train")
        if in_memory
        else data.batches(
            "train", s["batch_size"], shuffle=True, seed=seed, augment=changes, drop_last=True, device=run.device
        )
    )
    classes = len(data.class_names)
    stem = "cifar" if s["size"] < 64 else "imagenet"

    def build() -> nn.Module:
        net = create("resnet18", classes=classes, stem=stem)
        return emp.convert(net, name, s, examples).to(memory_format=layout)  # pyright: ignore[reportCallIssue]

    config = TrainConfig(
        epochs=s["epochs"], batch_size=s["batch_size"], lr=s["lr"], schedule="cosine",
        weight_decay=2 * s["strength"] / s["batch_size"], drop_last=True, dataset_size=examples,
        checkpoint_every=max(1, s["epochs"] // 10), log_every=1000, **quick,
    )  # fmt: skip
    kind = "generated" if any(note.startswith("generated") for note in run.notes) else data.name
    model, _ = run.trained(
        f"emp-imagenet-{kind}-{name}-{s['epochs']}-epochs", seed, build, source, config,
        augment=changes if in_memory else None,
    )  # fmt: skip
    return model.eval()


def clean_scores(run: Run, name: str, seed: int) -> dict[str, Any]:
    """Accuracy and calibration of one network on the test images."""
    model, data = trained(run, name, seed), images(run)
    predict = emp.Predictor(run, model, run.settings["samples"], capture=False)
    with SeededRandom(derive(seed, "clean")):
        probs = torch.cat([probabilities(predict, data, x) for x, _ in batches(data)])
    y = data.test.y.to(probs.device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {**emp.quality(probs, y), "curve": emp.calibration_curve(probs, y), "parameters": parameters}


def errors(run: Run, name: str, seed: int) -> dict[str, Any]:
    """Errors of one network on clean images and on every corruption at every severity."""
    model, data = trained(run, name, seed), images(run)
    kinds, levels = run.settings["corruptions"] or corruptions.NAMES, run.settings["severities"]
    wrong: dict[tuple[str | None, int], int] = dict.fromkeys([(None, 0), *itertools.product(kinds, levels)], 0)
    # One network for all of them, so that capturing it pays.
    predict = emp.Predictor(run, model, run.settings["corrupted_samples"])
    for number, (x, y) in enumerate(batches(data)):
        for kind, severity in wrong:
            with SeededRandom(derive(seed, f"{kind}-{severity}-{number}")):
                shown = x if kind is None else corrupted(run, x, kind, severity, number)
                probs = probabilities(predict, data, shown)
            wrong[kind, severity] += int((probs.argmax(-1) != y.to(probs.device)).sum())
    share = {place: count / len(data.test) for place, count in wrong.items()}
    return {"clean": share[None, 0], "corrupted": {kind: [share[kind, level] for level in levels] for kind in kinds}}


def corrupted(run: Run, images: Tensor, kind: str, severity: int, seed: int) -> Tensor:
    """Images of bytes under a corruption, from 0 to 1, on the device, where that is quick."""
    return corruptions.corrupt(images.to(run.device).float() / 255, kind, severity, seed=seed)


def batches(data: Dataset, size: int = 250) -> Iterator[tuple[Tensor, Tensor]]:
    """Test images as bytes ``[B, 3, H, W]``, and their classes."""
    for start in range(0, len(data.test), size):
        yield data.test[torch.arange(start, min(start + size, len(data.test)))]


def probabilities(predict: emp.Predictor, data: Dataset, images: Tensor) -> Tensor:
    """Predicted probabilities ``[B, classes]`` of images of bytes, or from 0 to 1."""
    return predict(data.normalisation(images)).float().softmax(-1).mean(0)


def overhead(found: Mapping[str, list[dict[str, Any]]], name: str) -> list[float]:
    """Parameters that a network has over the plain one, in percent."""
    return [100 * (a["parameters"] / b["parameters"] - 1) for a, b in zip(found[name], found["vanilla"])]
