"""MNIST and Fashion-MNIST, from their idx files."""

from __future__ import annotations

from pathlib import Path

import torch

from leanbayes.data._assemble import assemble
from leanbayes.data._checks import check_counts
from leanbayes.data._dataset import Dataset, Part
from leanbayes.data._files import find, locate
from leanbayes.data._idx import read_idx
from leanbayes.data._registry import register
from leanbayes.data.download import obtain

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"
)  # fmt: skip


@register("mnist")
def read_mnist(
    root: Path, *, valid: float = 0.1, seed: int = 0, normalise: str = "standard", download: bool = False
) -> Dataset:
    """MNIST: 60,000 and 10,000 grey images of 28 x 28, from ``MNIST/raw`` below the root or from the root itself."""
    folders = [root / "MNIST" / "raw", root / "mnist", root]
    classes = tuple(str(digit) for digit in range(10))
    return _read("mnist", "MNIST", folders, classes, valid, seed, normalise, download)


@register("fashion-mnist")
def read_fashion_mnist(
    root: Path, *, valid: float = 0.1, seed: int = 0, normalise: str = "standard", download: bool = False
) -> Dataset:
    """Fashion-MNIST: the same form as MNIST, from ``FashionMNIST/raw`` below the root or from the root itself."""
    folders = [root / "FashionMNIST" / "raw", root / "fashion-mnist", root]
    return _read("fashion-mnist", "Fashion-MNIST", folders, FASHION_CLASSES, valid, seed, normalise, download)


def _read(
    name: str,
    title: str,
    folders: list[Path],
    classes: tuple[str, ...],
    valid: float,
    seed: int,
    normalise: str,
    download: bool,
) -> Dataset:
    if download and not any(all(find(folder, file) for file in FILES) for folder in folders):
        obtain(name, folders[0])
    folder = locate(title, folders, FILES, "pass download=True, or put the four idx files there")
    train, test = (_part(folder, *files, title) for files in (FILES[:2], FILES[2:]))
    return assemble(
        name, "classification", "image", train, test, valid=valid, seed=seed, normalise=normalise, class_names=classes
    )


def _part(folder: Path, image_file: str, label_file: str, title: str) -> Part:
    image_path, label_path = find(folder, image_file), find(folder, label_file)
    assert image_path is not None and label_path is not None
    images, labels = read_idx(image_path), read_idx(label_path)
    if images.ndim != 3 or images.dtype.itemsize != 1:
        raise ValueError(f"{image_path} must hold grey images of bytes, not an array of shape {images.shape}")
    if labels.ndim != 1:
        raise ValueError(f"{label_path} must hold one label per image, not an array of shape {labels.shape}")
    check_counts(len(images), len(labels), title)
    return Part(torch.tensor(images).unsqueeze(1), torch.tensor(labels).to(torch.int64))
