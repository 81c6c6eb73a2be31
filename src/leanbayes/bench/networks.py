"""The networks that are measured, with the sizes of their batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn

from leanbayes.models import create

PARTS = ("step", "predict", "memory", "profile", "start", "scaling")


@dataclass(frozen=True)
class Network:
    """A plain network and what is measured of it.

    Attributes:
        name: What the command line calls it.
        title: Its name in tables.
        build: Makes it, with random weights.
        shape: Of one example.
        classes: Of the targets.
        images: Whether reduced precision takes the layout with channels last.
        batch: Examples of a training step, by kind of device.
        rows: Examples of a prediction, likewise.
        only: The methods that are measured; all where empty.
        parts: What is measured.
        wider: Makes the network with hidden layers of a given width, where there is such a thing.
        widths: The widths that are measured.
    """

    name: str
    title: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    images: bool
    batch: dict[str, int]
    rows: dict[str, int]
    only: tuple[str, ...] = ()
    parts: tuple[str, ...] = PARTS
    wider: Callable[[int], nn.Module] | None = None
    widths: dict[str, tuple[int, ...]] = field(default_factory=dict)


class TransformerBlock(nn.Module):
    """One block of a ViT-S, the mean over its tokens and a dense layer.

    Args:
        features: Of a token.
        heads: Of the attention.
        classes: Units of the output.

    Shape:
        ``[B, tokens, features]`` to ``[B, classes]``.
    """

    def __init__(self, features: int = 384, heads: int = 6, classes: int = 10):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(
            features, heads, 4 * features, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.norm = nn.LayerNorm(features)
        self.output = nn.Linear(features, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps tokens ``[B, tokens, features]`` to logits ``[B, classes]``."""
        return self.output(self.norm(self.block(tokens)).mean(dim=1))


_IMAGE = (3, 32, 32)
_ALL = (
    Network(
        "mlp", "MLP 784-400-400-10", lambda: create("mlp"), (784,), 10, False,
        {"cuda": 1024, "cpu": 128}, {"cuda": 256, "cpu": 32},
        wider=lambda width: create("mlp", hidden=(width, width)),
        widths={"cuda": (256, 512, 1024, 2048, 4096), "cpu": (100, 200, 400, 800)},
    ),
    Network(
        "lenet5", "LeNet-5", lambda: create("lenet5"), (1, 28, 28), 10, True,
        {"cuda": 1024, "cpu": 16}, {"cuda": 256, "cpu": 8},
    ),
    Network(
        "resnet18", "ResNet-18 for CIFAR", lambda: create("resnet18", classes=10, stem="cifar"), _IMAGE, 10, True,
        {"cuda": 512, "cpu": 4}, {"cuda": 256, "cpu": 1},
    ),
    Network(
        "lstm", "LSTM, 48 steps of 76 features", lambda: create("record_lstm", outputs=10), (48, 76), 10, False,
        {"cuda": 512, "cpu": 16}, {"cuda": 256, "cpu": 4},
        wider=lambda width: create("record_lstm", hidden=width, outputs=10),
        widths={"cuda": (128, 256, 512, 1024), "cpu": (32, 64, 128)},
    ),
    Network(
        "transformer", "a block of ViT-S, 197 tokens", TransformerBlock, (197, 384), 10, False,
        {"cuda": 256, "cpu": 2}, {"cuda": 128, "cpu": 1},
        wider=lambda width: TransformerBlock(width, heads=width // 64),
        widths={"cuda": (192, 384, 768, 1024), "cpu": (64, 128, 192)},
    ),
    Network(
        "wrn28-10", "WRN-28-10", lambda: create("wide_resnet"), _IMAGE, 10, True,
        {"cuda": 512, "cpu": 1}, {"cuda": 64, "cpu": 1},
        only=("rank1", "batch-ensemble"), parts=("step", "profile"),
    ),
    Network(
        "pyramidnet", "PyramidNet-110-270", lambda: create("pyramidnet"), _IMAGE, 100, True,
        {"cuda": 256, "cpu": 1}, {"cuda": 64, "cpu": 1},
        only=("emp", "ecmp"), parts=("step", "profile"),
    ),
)  # fmt: skip
NETWORKS: dict[str, Network] = {one.name: one for one in _ALL}
# What is measured where no network is named: a minute or two on a CPU, the stated bounds on a GPU.
DEFAULTS = {"cpu": ("mlp", "lenet5"), "cuda": ("resnet18",)}


def network(name: str) -> Network:
    """The network of that name.

    Example:
        >>> network("resnet18").shape
        (3, 32, 32)
    """
    if name not in NETWORKS:
        raise ValueError(f"there is no network {name!r} to measure; there are {', '.join(NETWORKS)}")
    return NETWORKS[name]
