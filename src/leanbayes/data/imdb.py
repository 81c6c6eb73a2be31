"""The IMDB film reviews, from the original folders or from the Keras file of word ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from leanbayes.data._assemble import assemble
from leanbayes.data._checks import check_choice
from leanbayes.data._dataset import Dataset, Part
from leanbayes.data._files import read_bytes
from leanbayes.data._npz import read_npz
from leanbayes.data._registry import register
from leanbayes.data._text import FIRST_WORD, UNKNOWN, ids_of, pad, vocabulary_of, words_of
from leanbayes.data.download import obtain

CLASSES = ("negative", "positive")
INDEX = "imdb_word_index.json"
_FOLDERS = [f"{split}/{sign}" for split in ("train", "test") for sign in ("neg", "pos")]


@register("imdb")
def read_imdb(
    root: Path,
    *,
    words: int = 20_000,
    length: int = 80,
    source: str = "auto",
    valid: float = 0.1,
    seed: int = 0,
    download: bool = False,
) -> Dataset:
    """25,000 and 25,000 reviews as word ids: 0 pads the end, 1 is the start, 2 is a rare word, word r is r + 4.

    Read from ``imdb.npz`` and ``imdb_word_index.json`` (Keras) or from the folders ``aclImdb``. Words of ``aclImdb``
    are numbered by ``imdb_word_index.json`` if it lies next to them, otherwise by their frequency in the training
    reviews.

    Args:
        root: Where these lie, or a folder ``imdb`` with them.
        words: Ids in all, so that every id is below it.
        length: Words of an example; longer reviews keep the last ones.
        source: "keras" or "aclImdb"; "auto" takes what is there.
        valid: Share or number of training reviews for validation.
        seed: Of that choice.
        download: Whether to download the Keras files if nothing is there.
    """
    check_choice("source", source, ("auto", "keras", "aclImdb"))
    if words <= FIRST_WORD or length < 1:
        raise ValueError(f"words must be over {FIRST_WORD} and length over 0, not {words} and {length}")
    if download and _source(root, source) is None:
        obtain("imdb", root)
    found = _source(root, source)
    if found is None:
        raise FileNotFoundError(
            f"IMDB was not found: looked for imdb.npz and the folder aclImdb in {root} and {root / 'imdb'}; "
            "pass download=True, or unpack aclImdb_v1.tar.gz there"
        )
    folder, kind = found
    read = _read_keras if kind == "keras" else _read_reviews
    train, test, vocabulary = read(folder, words, length)
    return assemble(
        "imdb",
        "binary",
        "text",
        train,
        test,
        valid=valid,
        seed=seed,
        class_names=CLASSES,
        vocabulary=vocabulary,
    )


def _source(root: Path, source: str) -> tuple[Path, str] | None:
    for folder in (root, root / "imdb"):
        if source != "aclImdb" and (folder / "imdb.npz").is_file():
            return folder, "keras"
        if source != "keras" and (folder / "aclImdb").is_dir():
            return folder, "aclImdb"
    return None


def _word_index(folder: Path, words: int) -> list[str] | None:
    """The words of the lowest ranks in order, where the index lies there."""
    path = folder / INDEX
    if not path.exists():
        return None
    try:
        index: Any = json.loads(read_bytes(path))
        ranked = sorted(index, key=index.__getitem__)
        whole = [index[word] for word in ranked] == list(range(1, len(ranked) + 1))
    except (ValueError, TypeError, LookupError, AttributeError):
        whole, ranked = False, []
    if not whole:
        raise ValueError(f"{path} must map each word to its rank from 1 on; get it again")
    return ranked[: words - FIRST_WORD]


def _read_keras(folder: Path, words: int, length: int) -> tuple[Part, Part, list[str]]:
    path = folder / "imdb.npz"
    arrays = read_npz(path, objects=True)
    if missing := [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]:
        raise ValueError(f"{path} lacks the arrays {', '.join(missing)}; get it again")
    train, test = (_ranked(path, arrays[f"x_{part}"], arrays[f"y_{part}"], words, length) for part in ("train", "test"))
    return train, test, _word_index(folder, words) or []


def _ranked(path: Path, reviews: NDArray[Any], labels: NDArray[Any], words: int, length: int) -> Part:
    if reviews.shape != labels.shape or labels.dtype.kind not in "iu":
        raise ValueError(f"{path} must hold one label per review, not {labels.shape} for {reviews.shape}")
    ids = []
    for review in reviews:
        # Ranks from 1 on follow the free ids; only what is kept is looked at.
        ranks = np.asarray(review[-length:], dtype=np.int64) if isinstance(review, list) else np.zeros((0, 0))
        if ranks.ndim != 1 or (len(ranks) and ranks.min() < 1):
            raise ValueError(f"review {len(ids)} of {path} must be a list of word ranks from 1 on")
        ids.append((ranks + FIRST_WORD - 1).tolist())
    x = pad(ids, length)
    return Part(x.masked_fill_(x >= words, UNKNOWN), torch.from_numpy(labels.astype(np.int64)))


def _read_reviews(folder: Path, words: int, length: int) -> tuple[Part, Part, list[str]]:
    top = folder / "aclImdb"
    if missing := [name for name in _FOLDERS if not (top / name).is_dir()]:
        raise FileNotFoundError(
            f"IMDB is not complete: {top} lacks {', '.join(missing)}; unpack aclImdb_v1.tar.gz again"
        )
    texts, labels = {}, {}
    for split in ("train", "test"):
        signs = [_reviews(top / split / sign) for sign in ("neg", "pos")]
        texts[split] = [words_of(text) for reviews in signs for text in reviews]
        labels[split] = np.repeat(np.arange(2), [len(reviews) for reviews in signs])
    vocabulary = _word_index(folder, words) or vocabulary_of(texts["train"], words - FIRST_WORD)
    train, test = (
        Part(ids_of(texts[split], vocabulary, length), torch.from_numpy(labels[split])) for split in ("train", "test")
    )
    return train, test, vocabulary


def _reviews(folder: Path) -> list[str]:
    """The reviews of a folder by their numbers; files are named ``<number>_<stars>.txt``."""
    paths = sorted(folder.glob("*.txt"), key=lambda path: (int(path.stem.split("_")[0]), path.name))
    try:
        return [path.read_text("utf-8") for path in paths]
    except UnicodeDecodeError as error:
        raise ValueError(f"a review in {folder} is not UTF-8 text ({error})") from None
