"""Trees of image folders, one folder per class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from leanbayes.data._assemble import assemble
from leanbayes.data._dataset import Dataset, Part
from leanbayes.data._extras import need
from leanbayes.data._registry import register_folder

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_TRAIN, _VALID, _TEST = ("train", "training"), ("val", "valid", "validation"), ("test",)
# A set up to this size is read into memory at once, unless `lazy` says otherwise.
_MEMORY_BYTES = 1 << 30
# Files that a message names one by one.
_LISTED = 5


class ImageFiles(TorchDataset[Tensor]):
    """Images that are read on demand, as bytes ``[3, size, size]``.

    The shorter side is scaled to `size` and the middle cut out. One number gives one image; a list or tensor of numbers
    gives a batch, read by several threads.

    Args:
        paths: The files.
        size: Height and width after scaling.
        workers: Threads that read a batch.
    """

    def __init__(self, paths: Sequence[Path], size: int, workers: int = 4) -> None:
        if size < 1 or workers < 1:
            raise ValueError(f"size and workers must be at least 1, not {size} and {workers}")
        self.paths = tuple(paths)
        self.size = size
        self.workers = workers

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, int) or (isinstance(index, Tensor) and index.dim() == 0):
            return read_image(self.paths[int(index)], self.size)
        paths = [self.paths[number] for number in torch.arange(len(self))[index].tolist()]
        if not paths:
            return torch.empty(0, 3, self.size, self.size, dtype=torch.uint8)
        with ThreadPoolExecutor(self.workers) as pool:
            found = list(pool.map(lambda path: _image_or_error(path, self.size), paths))
        _check_readable([image for image in found if not isinstance(image, Tensor)])
        return torch.stack([image for image in found if isinstance(image, Tensor)])

    def subset(self, index: Tensor) -> ImageFiles:
        """The images of these numbers."""
        return ImageFiles([self.paths[number] for number in index.tolist()], self.size, self.workers)


def read_image(path: Path, size: int) -> Tensor:
    """An image in colour: the shorter side scaled to `size`, the middle cut out, bytes ``[3, size, size]``."""
    image_module = need("PIL.Image", "image files")
    try:
        with image_module.open(path) as file:
            image = _eight_bits(file, image_module).convert("RGB")
    except (OSError, SyntaxError, ValueError, image_module.DecompressionBombError) as error:
        raise ValueError(f"the image {path} cannot be read ({error}); remove or replace it") from None
    if image.size != (size, size):
        factor = size / min(image.size)
        width, height = (max(size, round(side * factor)) for side in image.size)
        left, top = (width - size) // 2, (height - size) // 2
        image = image.resize((width, height), image_module.Resampling.BILINEAR)
        image = image.crop((left, top, left + size, top + size))
    return torch.tensor(np.asarray(image)).permute(2, 0, 1).contiguous()


def _image_or_error(path: Path, size: int) -> Tensor | ValueError:
    try:
        return read_image(path, size)
    except ValueError as error:
        return error


def _check_readable(errors: Sequence[ValueError]) -> None:
    """Raise for all images of a batch that cannot be read at once, so that one run finds them."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        listed = "; ".join(str(error) for error in errors[:_LISTED])
        more = f"; and {len(errors) - _LISTED} more" if len(errors) > _LISTED else ""
        raise ValueError(f"{len(errors)} images cannot be read: {listed}{more}")


def _eight_bits(image: Any, image_module: Any) -> Any:
    """The image with a byte per channel; Pillow would turn all grey levels from 255 of a deeper one into white."""
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; save it with 8 or 16 bits per channel")
    if not image.mode.startswith("I"):
        return image
    levels = np.asarray(image)
    if levels.min() < 0 or levels.max() > 65535:
        raise ValueError("its pixels have more than 16 bits; save it with 8 or 16 bits per channel")
    return image_module.fromarray((levels // 256).astype(np.uint8))


def image_paths(path: Path) -> list[Path]:
    """The image file itself, or those anywhere below the folder in alphabetical order; none for other files."""
    if path.is_dir():
        return _images(path)
    return [path] if path.is_file() and path.name.lower().endswith(ENDINGS) else []


def _is_tree(path: Path) -> bool:
    top = _named(path, _TRAIN) or path
    return any(_images(folder, first=True) for folder in _folders(top))


@register_folder(_is_tree)
def read_folder(
    path: Path,
    *,
    size: int = 224,
    lazy: bool | None = None,
    workers: int = 4,
    valid: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
    normalise: str = "standard",
) -> Dataset:
    """Images in one folder per class, in alphabetical order.

    With folders ``train`` and ``val`` or ``test`` these are the parts: ``val`` is the test part if there is no
    ``test``, as in ImageNet. Otherwise the class folders lie directly in `path` and the test part is held out.

    Args:
        path: The top folder.
        size: Height and width of the images.
        lazy: Whether to read images on demand; None reads sets up to 1 GiB into memory.
        workers: Threads that read a batch.
        valid: Share or number of training images for validation, if there is no such folder.
        test: The same for the test part.
        seed: Of these choices, and of the 1,000 images that a lazy set's scaling is fitted on.
        normalise: "standard", "unit" (from 0 to 1) or "symmetric" (from -1 to 1).
    """
    folders = [_named(path, names) for names in (_TRAIN, _VALID, _TEST)]
    if folders[0] is None:
        folders = [path, None, None]
    elif folders[2] is None:
        folders = [folders[0], None, folders[1]]
    assert folders[0] is not None
    classes = [folder.name for folder in _folders(folders[0])]
    found = [None if folder is None else _labelled(folder, classes) for folder in folders]
    if lazy is None:
        lazy = sum(len(paths) for paths, _ in filter(None, found)) * 3 * size * size > _MEMORY_BYTES
    parts = [None if pair is None else _part(*pair, size, workers, lazy) for pair in found]
    assert parts[0] is not None
    return assemble(
        path.name,
        "classification",
        "image",
        parts[0],
        parts[2],
        parts[1],
        valid=valid,
        test_share=test,
        seed=seed,
        normalise=normalise,
        class_names=classes,
        shape=(3, size, size),
    )


def _named(path: Path, names: tuple[str, ...]) -> Path | None:
    return next((path / name for name in names if (path / name).is_dir()), None)


def _folders(path: Path) -> list[Path]:
    # Archives packed on a Mac bring a folder of their own.
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__MACOSX")))


def _images(folder: Path, first: bool = False) -> list[Path]:
    """Image files anywhere below a folder, in alphabetical order; `first` stops at one."""
    result = []
    for place, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            if file.lower().endswith(ENDINGS) and not file.startswith("."):
                result.append(Path(place, file))
                if first:
                    return result
    return result


def _labelled(folder: Path, classes: list[str]) -> tuple[list[Path], Tensor]:
    paths: list[Path] = []
    labels: list[int] = []
    for class_folder in _folders(folder):
        if class_folder.name not in classes:
            raise ValueError(f"the folder {class_folder} is not a class of the training images; remove or rename it")
        images = _images(class_folder)
        if not images:
            raise ValueError(
                f"the folder {class_folder} holds no images ({', '.join(ENDINGS)}); add some, or remove the folder"
            )
        paths += images
        labels += [classes.index(class_folder.name)] * len(images)
    if not paths:
        raise ValueError(f"{folder} holds no folders of images, one per class")
    return paths, torch.tensor(labels)


def _part(paths: list[Path], labels: Tensor, size: int, workers: int, lazy: bool) -> Part:
    files = ImageFiles(paths, size, workers)
    return Part(files if lazy else files[torch.arange(len(files))], labels)
