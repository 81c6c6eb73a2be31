"""Public sources of data sets, with the checksums their publishers or the usual libraries state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """One file to download.

    Attributes:
        url: Where it is.
        checksum: ``"sha256:..."`` or ``"md5:..."``; MD5 only where no other sum is published.
        unpacks_to: The folder that a tar archive holds; None for a file that is used as it is.
    """

    url: str
    checksum: str
    unpacks_to: str | None = None

    @property
    def filename(self) -> str:
        """The file's own name."""
        return self.url.rsplit("/", 1)[-1]


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_KERAS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"

SOURCES: dict[str, tuple[Source, ...]] = {
    "mnist": (
        Source(
            _MNIST + "train-images-idx3-ubyte.gz",
            "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        Source(
            _MNIST + "train-labels-idx1-ubyte.gz",
            "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        Source(
            _MNIST + "t10k-images-idx3-ubyte.gz",
            "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        Source(
            _MNIST + "t10k-labels-idx1-ubyte.gz",
            "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "fashion-mnist": (
        Source(_FASHION + "train-images-idx3-ubyte.gz", "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Source(_FASHION + "train-labels-idx1-ubyte.gz", "md5:25c81989df183df01b3e8a0aad5dffbe"),
        Source(_FASHION + "t10k-images-idx3-ubyte.gz", "md5:bef4ecab320f06d8554ea6380940ec79"),
        Source(_FASHION + "t10k-labels-idx1-ubyte.gz", "md5:bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "cifar10": (
        Source(_CIFAR + "cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin"),
    ),
    "cifar100": (
        Source(_CIFAR + "cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary"),
    ),
    "imdb": (
        Source(_KERAS + "imdb.npz", "sha256:69664113be75683a8fe16e3ed0ab59fda8886cb3cd7ada244f7d9544e4676b9f"),
        Source(_KERAS + "imdb_word_index.json", "md5:bfafd718b763782e994055a2d397834f"),
    ),
}
