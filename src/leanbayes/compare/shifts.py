"""Test data that are not as the training data were: corrupted ever more, or of another kind altogether."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.corruptions import NAMES, corrupt
from leanbayes.data import Dataset, load
from leanbayes.data._dataset import Part

SEVERITIES = (1, 2, 3, 4, 5)
# Types that mean something on images of 8 x 8 pixels too: their constants are not counted in pixels.
SMALL_TYPES = ("gaussian_noise", "impulse_noise", "brightness", "contrast", "fog")
_SMALLEST = 16
# Standard deviations of the noise on tables and series, in those of the training data, and shares of replaced words.
_NOISE = (0.1, 0.2, 0.4, 0.7, 1.0)
_WORDS = (0.05, 0.1, 0.2, 0.3, 0.5)
_FIRST_WORD = 4


@dataclass(frozen=True)
class Evaluation:
    """What all models are measured on, scaled as the network takes it, on the CPU.

    Attributes:
        x: Test inputs.
        y: Their targets; real ones in the units that the network is fitted to.
        corrupted: Inputs and targets by severity.
        shift: What the severities are, in words.
        ood: Inputs from elsewhere, None where there are none.
        ood_name: What those are.
        images: Test images from 0 to 1, None where the inputs are none.
        notes: What a reader of the figures should know.
        groups: A number for the group of each test example; None where they are independent.
    """

    x: Tensor
    y: Tensor
    corrupted: dict[int, tuple[Tensor, Tensor]]
    shift: str
    ood: Tensor | None
    ood_name: str
    images: Tensor | None
    notes: tuple[str, ...] = ()
    groups: Tensor | None = None


def make_evaluation(
    dataset: Dataset, *, ood: str | Dataset | None = None, limit: int = 10_000, shifted: int = 300
) -> Evaluation:
    """The test data of a comparison.

    Args:
        dataset: The data.
        ood: Other data of the same shape, or their name or file; generated where None.
        limit: Test examples used at most, evenly spaced.
        shifted: Corrupted examples of each severity, each by one type, and examples from elsewhere, at most.

    Returns:
        The tensors, the same for every model.
    """
    if not len(dataset.test):
        count = len(dataset.train) + len(dataset.valid)
        raise ValueError(
            f"{dataset.name} has no test examples to measure on; it needs more than its {count:,}, "
            "or a separate test part"
        )
    part = dataset.test.spaced(limit)
    notes = () if len(part) == len(dataset.test) else (f"measured on {len(part)} of {len(dataset.test)} test examples",)
    raw, scale = part.tensor(), dataset.normalisation
    pixels = _pixels(raw, dataset) if dataset.inputs == "image" else None
    corrupted, shift = _corrupted(dataset, part, shifted)
    other, name = _outside(dataset, part.spaced(shifted).tensor(), ood, shifted)
    return Evaluation(
        x=scale(raw),
        y=scale.scale_targets(part.y),
        corrupted=corrupted,
        shift=shift,
        ood=other,
        ood_name=name,
        images=pixels,
        notes=notes,
        groups=part.groups,
    )


def _pixels(raw: Tensor, dataset: Dataset) -> Tensor:
    """Images from 0 to 1."""
    low, span = _range(dataset)
    return ((raw.float() - low) / span).clamp(0, 1)


def _range(dataset: Dataset) -> tuple[float, float]:
    """Least value and span of the training images; those of bytes and of floats from 0 to 1 are known."""
    x = dataset.train.x
    if not isinstance(x, Tensor) or x.dtype == torch.uint8:
        return 0.0, 255.0
    low, high = float(x.min()), float(x.max())
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, (high - low) or 1.0)


def _scaled_images(dataset: Dataset) -> Callable[[Tensor], Tensor]:
    """From images from 0 to 1 to what the network takes."""
    low, span = _range(dataset)
    # Bytes are taken as parts of 255 by the normalisation itself.
    return lambda images: dataset.normalisation(images if span == 255.0 else images * span + low)


def _corrupted(dataset: Dataset, part: Part, count: int) -> tuple[dict[int, tuple[Tensor, Tensor]], str]:
    """Inputs and targets by severity, and what was done to them."""
    if dataset.inputs == "image":
        return _corrupted_images(dataset, part, count)
    few = part.spaced(count)
    raw, y = few.tensor(), dataset.normalisation.scale_targets(few.y)
    generator = torch.Generator().manual_seed(0)
    if dataset.inputs == "text":
        texts = {s: (_replaced(raw, share, dataset, generator), y) for s, share in zip(SEVERITIES, _WORDS)}
        return texts, f"shares of {', '.join(map(str, _WORDS))} of the words replaced"
    x = dataset.normalisation(raw)
    noise = torch.randn(x.shape, generator=generator)
    noisy = {s: (x + std * noise, y) for s, std in zip(SEVERITIES, _NOISE)}
    return noisy, f"Gaussian noise of {', '.join(map(str, _NOISE))} standard deviations"


def _corrupted_images(dataset: Dataset, part: Part, count: int) -> tuple[dict[int, tuple[Tensor, Tensor]], str]:
    if dataset.shape[0] not in (1, 3):
        return {}, "none: only images of 1 or 3 channels are corrupted"
    names = SMALL_TYPES if min(dataset.shape[1:]) < _SMALLEST else NAMES
    few = part.spaced(count)
    images = _pixels(few.tensor(), dataset)
    types = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)) % len(names)
    scale = _scaled_images(dataset)
    found = {s: (scale(_each_by_its_type(images, types, names, s)), few.y) for s in SEVERITIES}
    return found, f"each image by one of {', '.join(names).replace('_', ' ')}"


def _each_by_its_type(images: Tensor, types: Tensor, names: Sequence[str], severity: int) -> Tensor:
    """Images corrupted by the types of these numbers."""
    corrupted = torch.empty_like(images)
    for number, name in enumerate(names):
        corrupted[types == number] = corrupt(images[types == number], name, severity)
    return corrupted


def _replaced(ids: Tensor, share: float, dataset: Dataset, generator: torch.Generator) -> Tensor:
    """A share of the words replaced by others, drawn evenly."""
    chosen = (torch.rand(ids.shape, generator=generator) < share) & (ids >= _FIRST_WORD)
    highest = _FIRST_WORD + (len(dataset.schema.vocabulary) or int(ids.max()) - _FIRST_WORD + 1)
    return torch.where(chosen, torch.randint(_FIRST_WORD, highest, ids.shape, generator=generator), ids)


def _outside(dataset: Dataset, raw: Tensor, ood: str | Dataset | None, limit: int) -> tuple[Tensor | None, str]:
    if ood is not None:
        return _named(dataset, ood, limit)
    generator = torch.Generator().manual_seed(1)
    if dataset.inputs == "image":
        images = _pixels(raw, dataset)
        thirds = images.chunk(3)
        mixed = thirds[-1].flatten(2)
        order = torch.randperm(mixed.shape[2], generator=generator)
        parts = [1 - thirds[0], torch.rand(thirds[min(1, len(thirds) - 1)].shape, generator=generator)]
        parts.append(mixed[:, :, order].view_as(thirds[-1]))
        return _scaled_images(dataset)(torch.cat(parts)), "inverted, shuffled and noise images"
    if dataset.inputs == "text":
        return _replaced(raw, 1.0, dataset, generator), "random words"
    x = dataset.normalisation(raw)
    return 3 * torch.randn(x.shape, generator=generator), "Gaussian inputs of 3 standard deviations"


def _named(dataset: Dataset, ood: str | Dataset, limit: int) -> tuple[Tensor, str]:
    other = ood if isinstance(ood, Dataset) else load(ood)
    if other.shape != dataset.shape:
        raise ValueError(
            f"the examples of {other.name} have shape {other.shape}, but those of {dataset.name} {dataset.shape}"
        )
    return dataset.normalisation(other.test.spaced(limit).tensor()), other.name
