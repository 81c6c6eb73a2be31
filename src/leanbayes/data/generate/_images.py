"""Synthetic images and the layouts of MNIST, CIFAR and image folders."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._checks import check_choice
from leanbayes.data._extras import need
from leanbayes.data._files import PathLike
from leanbayes.data._idx import idx_bytes
from leanbayes.data.cifar import CIFAR10_CLASSES, PIXELS, SHAPE, TRAIN_BATCHES
from leanbayes.data.mnist import FILES

# Coarse and fine classes of the synthetic CIFAR-100: five fine ones in each coarse one.
_FINE, _COARSE = 100, 20


def images(
    rows: int, classes: int = 10, shape: Sequence[int] = (1, 28, 28), *, seed: int = 0, noise: float = 40.0
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images of a smooth pattern per class under noise.

    Args:
        rows: How many; the classes take turns before they are shuffled.
        classes: Number of classes.
        shape: Channels, height and width.
        seed: Of noise and order; the patterns are always the same.
        noise: Standard deviation of the noise in grey levels.

    Returns:
        Bytes ``[rows, C, H, W]`` and labels ``[rows]``.
    """
    random = np.random.RandomState(seed)
    labels = random.permutation(np.arange(rows) % classes)
    patterns = _patterns(classes, shape)
    pixels = patterns[labels] + noise * random.standard_normal((rows, *shape))
    return pixels.clip(0, 255).astype(np.uint8), labels.astype(np.int64)


def _patterns(classes: int, shape: Sequence[int]) -> NDArray[np.float64]:
    """One sum of plane waves per class and channel, from 0 to 255."""
    random = np.random.RandomState(classes)
    channels, height, width = shape
    down, right = np.meshgrid(np.linspace(0, 1, height), np.linspace(0, 1, width), indexing="ij")
    waves = random.uniform(-3, 3, (classes, channels, 2, 1, 1))
    phase = random.uniform(0, 2 * np.pi, (classes, channels, 1, 1))
    return 127.5 * (1 + np.sin(2 * np.pi * (waves[:, :, 0] * down + waves[:, :, 1] * right) + phase))


def write_mnist(
    root: PathLike,
    *,
    rows: tuple[int, int] = (200, 100),
    seed: int = 0,
    compressed: bool = False,
    folder: Path = Path("MNIST", "raw"),
) -> Path:
    """The four idx files with synthetic images: `rows` for training and test, plain or as ``.gz``."""
    place = Path(root) / folder
    place.mkdir(parents=True, exist_ok=True)
    x, y = images(sum(rows), seed=seed)
    parts = np.split(x[:, 0], [rows[0]]), np.split(y.astype(np.uint8), [rows[0]])
    for name, array in zip(FILES, (parts[0][0], parts[1][0], parts[0][1], parts[1][1])):
        data = idx_bytes(array)
        if compressed:
            (place / f"{name}.gz").write_bytes(gzip.compress(data, mtime=0))
        else:
            (place / name).write_bytes(data)
    return place


def write_cifar10(root: PathLike, *, rows: tuple[int, int] = (200, 100), seed: int = 0, layout: str = "binary") -> Path:
    """CIFAR-10's files with synthetic images, in the layout "binary" or "python"; five batches for training."""
    check_choice("layout", layout, ("binary", "python"))
    place = _folder(root, "cifar-10-batches-bin" if layout == "binary" else "cifar-10-batches-py")
    x, y = images(sum(rows), 10, SHAPE, seed=seed)
    batches = [*np.array_split(np.arange(rows[0]), 5), np.arange(rows[0], sum(rows))]
    for name, index in zip((*TRAIN_BATCHES, "test_batch"), batches):
        pixels, labels = x[index].reshape(-1, PIXELS), y[index]
        if layout == "binary":
            record = np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1)
            (place / f"{name}.bin").write_bytes(record.tobytes())
        else:
            _dump(place / name, {b"batch_label": name.encode(), b"labels": labels.tolist(), b"data": pixels})
    if layout == "binary":
        (place / "batches.meta.txt").write_text("\n".join(CIFAR10_CLASSES) + "\n", "utf-8")
    else:
        _dump(place / "batches.meta", {b"label_names": [name.encode() for name in CIFAR10_CLASSES]})
    return place


def write_cifar100(
    root: PathLike, *, rows: tuple[int, int] = (300, 100), seed: int = 0, layout: str = "binary"
) -> Path:
    """CIFAR-100's files with synthetic images, in the layout "binary" or "python"; fine class f is in coarse f // 5."""
    check_choice("layout", layout, ("binary", "python"))
    place = _folder(root, "cifar-100-binary" if layout == "binary" else "cifar-100-python")
    x, fine = images(sum(rows), _FINE, SHAPE, seed=seed)
    coarse = fine // (_FINE // _COARSE)
    for name, index in zip(("train", "test"), np.split(np.arange(sum(rows)), [rows[0]])):
        pixels = x[index].reshape(-1, PIXELS)
        if layout == "binary":
            labels = np.stack([coarse[index], fine[index]], axis=1).astype(np.uint8)
            (place / f"{name}.bin").write_bytes(np.concatenate([labels, pixels], axis=1).tobytes())
        else:
            labels = {b"fine_labels": fine[index].tolist(), b"coarse_labels": coarse[index].tolist()}
            _dump(place / name, {b"data": pixels, **labels})
    names = {
        kind: [f"{kind}_{number}" for number in range(count)] for kind, count in (("fine", _FINE), ("coarse", _COARSE))
    }
    if layout == "binary":
        for kind, listed in names.items():
            (place / f"{kind}_label_names.txt").write_text("\n".join(listed) + "\n", "utf-8")
    else:
        _dump(place / "meta", {f"{kind}_label_names".encode(): listed for kind, listed in names.items()})
    return place


def write_image_folder(
    root: PathLike,
    *,
    rows: tuple[int, int] = (30, 12),
    classes: int = 3,
    size: tuple[int, int] = (40, 32),
    seed: int = 0,
    parts: tuple[str, str] | None = ("train", "val"),
) -> Path:
    """PNG files in one folder per class, below one folder per part; ``parts=None`` puts all of them in one tree."""
    image = need("PIL.Image", "image files")
    x, y = images(sum(rows), classes, (3, *size), seed=seed)
    for number, (pixels, label) in enumerate(zip(x, y)):
        part = "" if parts is None else parts[0 if number < rows[0] else 1]
        place = _folder(root, f"{part}/class_{label}")
        image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).save(place / f"{number:05d}.png")
    return Path(root)


def _folder(root: PathLike, name: str) -> Path:
    place = Path(root) / name.lstrip("/")
    place.mkdir(parents=True, exist_ok=True)
    return place


def _dump(path: Path, value: Any) -> None:
    with open(path, "wb") as file:
        pickle.dump(value, file, protocol=2)
