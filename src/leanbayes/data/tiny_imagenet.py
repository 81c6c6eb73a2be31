"""A hundred classes of Tiny ImageNet in the size of CIFAR images."""

from __future__ import annotations

from pathlib import Path

from leanbayes.data._dataset import Dataset
from leanbayes.data._registry import register
from leanbayes.data.folder import read_folder

FOLDER = "tiny-imagenet-100-32"
_SIZE = 32


@register("tiny-imagenet-100")
def read_tiny_imagenet_100(
    root: Path, *, valid: float = 0.1, seed: int = 0, normalise: str = "standard", workers: int = 4
) -> Dataset:
    """Tiny ImageNet: the first 100 of its 200 classes, 50,000 and 5,000 colour images of 32 x 32.

    Read from ``tiny-imagenet-100-32`` below the root, with one folder of images per class in ``train`` and ``val``;
    images of another size are scaled.
    """
    path = root / FOLDER
    if not (path / "train").is_dir() or not (path / "val").is_dir():
        raise FileNotFoundError(
            f"Tiny ImageNet is not in {root}: expected {FOLDER} with folders train and val, of one folder per class"
        )
    found = read_folder(path, size=_SIZE, workers=workers, valid=valid, seed=seed, normalise=normalise)
    return Dataset("tiny-imagenet-100", found.schema, found.train, found.valid, found.test, found.notes)
