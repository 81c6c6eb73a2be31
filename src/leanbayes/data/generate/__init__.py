"""Small synthetic data in the forms and file layouts of the public sets, for tests, examples and offline work.

Classes can be learnt: images have a pattern per class, reviews words per sentiment, records sicker and healthier
patients. None of it resembles the real data otherwise, so its figures say nothing about them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leanbayes.data._dataset import Dataset
from leanbayes.data._files import PathLike
from leanbayes.data._registry import load
from leanbayes.data.generate._courses import risk_of_death
from leanbayes.data.generate._images import images, write_cifar10, write_cifar100, write_image_folder, write_mnist
from leanbayes.data.generate._records import write_mimic
from leanbayes.data.generate._tables import regression, write_npz, write_table, write_uci
from leanbayes.data.generate._texts import reviews, write_imdb


def _write_tiny_imagenet(root: PathLike, **options: Any) -> None:
    write_image_folder(Path(root) / "tiny-imagenet-100-32", **options)


def write(name: str, root: PathLike, **options: Any) -> None:
    """Writes a small synthetic set in the layout that ``load(name, root=root)`` reads.

    Args:
        name: "mnist", "fashion-mnist", "cifar10", "cifar100", "imdb", "mimic-iii" or "uci-<name>".
        root: The folder to write to; made where it does not exist.
        **options: Of the writer of that layout, such as ``rows`` and ``seed``.
    """
    if name.startswith("uci-"):
        write_uci(root, name.removeprefix("uci-"), **options)
    elif name in _WRITERS:
        _WRITERS[name](root, **options)
    else:
        raise ValueError(f"there is no generator for {name!r}; there are {', '.join(_WRITERS)} and uci-<name>")


def dataset(name: str, *, seed: int = 0, rows: Any = None, **options: Any) -> Dataset:
    """A small synthetic set of the form of ``load(name)``, in memory.

    Args:
        name: As in :func:`write`.
        seed: Of the data and of the choice of the validation part.
        rows: How many examples, as the writer takes it; its default when None.
        **options: Of the reader, such as ``valid`` or ``labels``.

    Returns:
        The data set; its name says that it is synthetic.

    Example:
        >>> dataset("cifar10")
        Dataset('synthetic cifar10': image (3, 32, 32), 10 classes, 180 train, 20 valid, 100 test)
    """
    size = {} if rows is None else {"rows": rows}
    with tempfile.TemporaryDirectory() as folder:
        write(name, folder, seed=seed, **size)
        read = load(name, root=folder, seed=seed, **options)
    return Dataset(f"synthetic {read.name}", read.schema, read.train, read.valid, read.test, read.notes)


def _write_fashion(root: PathLike, **options: Any) -> None:
    write_mnist(root, folder=Path("FashionMNIST", "raw"), **options)


_WRITERS: dict[str, Callable[..., Any]] = {
    "mnist": write_mnist,
    "fashion-mnist": _write_fashion,
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
    "tiny-imagenet-100": _write_tiny_imagenet,
    "imdb": write_imdb,
    "mimic-iii": write_mimic,
}

__all__ = [
    "dataset",
    "images",
    "regression",
    "reviews",
    "risk_of_death",
    "write",
    "write_cifar10",
    "write_cifar100",
    "write_image_folder",
    "write_imdb",
    "write_mimic",
    "write_mnist",
    "write_npz",
    "write_table",
    "write_uci",
]
