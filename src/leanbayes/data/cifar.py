"""CIFAR-10 and CIFAR-100, from their binary or their pickled files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from leanbayes.data._assemble import assemble
from leanbayes.data._checks import check_choice, check_counts
from leanbayes.data._dataset import Dataset, Part
from leanbayes.data._files import find, locate, read_bytes
from leanbayes.data._pickle import load_pickle_bytes
from leanbayes.data._registry import register
from leanbayes.data.download import obtain

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"
)  # fmt: skip
TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_GET = "pass download=True, or unpack {0}-binary.tar.gz or {0}-python.tar.gz there"


@register("cifar10")
def read_cifar10(
    root: Path, *, valid: float = 0.1, seed: int = 0, normalise: str = "standard", download: bool = False
) -> Dataset:
    """CIFAR-10: 50,000 and 10,000 colour images of 32 x 32.

    Read from ``cifar-10-batches-bin`` or ``cifar-10-batches-py`` below the root, or from the root itself.
    """
    binary = [root / "cifar-10-batches-bin", root]
    pickled = [root / "cifar-10-batches-py", root]
    folder = _folder(
        "cifar10",
        root,
        (binary, [f"{name}.bin" for name in (*TRAIN_BATCHES, "test_batch")]),
        (pickled, [*TRAIN_BATCHES, "test_batch"]),
        _GET.format("cifar-10"),
        download,
    )
    if (folder / "test_batch.bin").exists():
        read, ending = (lambda path: _binary(path, label_bytes=1, column=0)), ".bin"
    else:
        read, ending = (lambda path: _pickled(path, "labels")), ""
    parts = [read(folder / f"{name}{ending}") for name in TRAIN_BATCHES]
    train = _part(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))
    test = _part(*read(folder / f"test_batch{ending}"))
    return _dataset("cifar10", train, test, CIFAR10_CLASSES, valid, seed, normalise)


@register("cifar100")
def read_cifar100(
    root: Path,
    *,
    labels: str = "fine",
    valid: float = 0.1,
    seed: int = 0,
    normalise: str = "standard",
    download: bool = False,
) -> Dataset:
    """CIFAR-100: the form of CIFAR-10, with 100 fine or 20 coarse labels.

    Read from ``cifar-100-binary`` or ``cifar-100-python`` below the root, or from the root itself.
    """
    check_choice("labels", labels, ("fine", "coarse"))
    folder = _folder(
        "cifar100",
        root,
        ([root / "cifar-100-binary", root], ["train.bin", "test.bin"]),
        ([root / "cifar-100-python", root], ["train", "test", "meta"]),
        _GET.format("cifar-100"),
        download,
    )
    if (folder / "train.bin").exists():
        column = 1 if labels == "fine" else 0
        train, test = (
            _part(*_binary(folder / f"{name}.bin", label_bytes=2, column=column)) for name in ("train", "test")
        )
        names = _listed(folder / f"{labels}_label_names.txt")
    else:
        train, test = (_part(*_pickled(folder / name, f"{labels}_labels")) for name in ("train", "test"))
        meta = _entries(folder / "meta")
        names = [_text(name) for name in meta.get(f"{labels}_label_names", [])]
    classes = 100 if labels == "fine" else 20
    if len(names) != classes:
        names = [str(number) for number in range(classes)]
    return _dataset("cifar100", train, test, names, valid, seed, normalise)


def _folder(
    name: str,
    root: Path,
    binary: tuple[list[Path], list[str]],
    pickled: tuple[list[Path], list[str]],
    get: str,
    download: bool,
) -> Path:
    for folders, files in (binary, pickled):
        for folder in folders:
            if all(find(folder, file) for file in files):
                return folder
    if download:
        obtain(name, root)
    # The pickled files are asked for where a part of them is there, so that the message names what is missing.
    folders, files = pickled if pickled[0][0].is_dir() and not binary[0][0].is_dir() else binary
    return locate(name.upper().replace("CIFAR", "CIFAR-"), folders, files, get)


def _dataset(name: str, train: Part, test: Part, class_names: Any, valid: float, seed: int, normalise: str) -> Dataset:
    return assemble(
        name, "classification", "image", train, test,
        valid=valid, seed=seed, normalise=normalise, class_names=class_names,
    )  # fmt: skip


def _part(images: NDArray[Any], labels: NDArray[Any]) -> Part:
    return Part(torch.tensor(images).view(-1, *SHAPE), torch.tensor(labels).to(torch.int64))


def _binary(path: Path, label_bytes: int, column: int) -> tuple[NDArray[Any], NDArray[Any]]:
    data = np.frombuffer(read_bytes(path), np.uint8)
    record = label_bytes + PIXELS
    if not len(data) or len(data) % record:
        raise ValueError(f"{path} is truncated: {len(data)} bytes are not a whole number of records of {record} bytes")
    records = data.reshape(-1, record)
    return records[:, label_bytes:], records[:, column]


def _pickled(path: Path, key: str) -> tuple[NDArray[Any], NDArray[Any]]:
    entries = _entries(path)
    if "data" not in entries or key not in entries:
        raise ValueError(f"{path} must hold 'data' and {key!r}, but it holds {', '.join(sorted(entries)) or 'nothing'}")
    images, labels = np.asarray(entries["data"]), np.asarray(entries[key])
    if images.ndim != 2 or images.shape[1] != PIXELS or images.dtype != np.uint8:
        raise ValueError(f"'data' of {path} must be rows of {PIXELS} bytes, not {images.dtype} of shape {images.shape}")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"{key!r} of {path} must be a list of whole numbers")
    check_counts(len(images), len(labels), str(path))
    return images, labels


def _entries(path: Path) -> dict[str, Any]:
    value = load_pickle_bytes(read_bytes(path), str(path))
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a dictionary, not a {type(value).__name__}")
    return {_text(key): entry for key, entry in value.items()}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _listed(path: Path) -> list[str]:
    return path.read_text("utf-8").split() if path.exists() else []
