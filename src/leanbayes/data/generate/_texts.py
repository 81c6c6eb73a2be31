"""Synthetic film reviews in the two layouts of IMDB."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leanbayes.data._checks import check_choice
from leanbayes.data._files import PathLike
from leanbayes.data._text import vocabulary_of, words_of

_COMMON = "the a film it was and of story actor scene plot that music in this ending camera to with we".split()
_BAD = "dull awful boring weak wooden mess tired".split()
_GOOD = "bright superb moving sharp lovely warm clever".split()


def reviews(rows: int, *, seed: int = 0) -> tuple[list[str], NDArray[np.int64]]:
    """Texts of 8 to 40 words, a third of which tell the sentiment.

    Args:
        rows: How many, half of them positive.
        seed: Of the words and the order.

    Returns:
        The texts and labels ``[rows]``, 1 for positive.
    """
    random = np.random.RandomState(seed)
    labels = random.permutation(np.arange(rows) % 2)
    texts = []
    for label in labels:
        telling = random.uniform(size=random.randint(8, 41)) < 1 / 3
        words = [str(random.choice((_GOOD if label else _BAD) if tells else _COMMON)) for tells in telling]
        texts.append(" ".join(words).capitalize() + ("!" if random.uniform() < 0.3 else "."))
    return texts, labels.astype(np.int64)


def write_imdb(root: PathLike, *, rows: tuple[int, int] = (80, 40), seed: int = 0, layout: str = "aclImdb") -> Path:
    """Synthetic reviews as the folders ``aclImdb`` or as the files of Keras (``layout="keras"``)."""
    check_choice("layout", layout, ("aclImdb", "keras"))
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    texts, labels = reviews(sum(rows), seed=seed)
    parts = {"train": slice(0, rows[0]), "test": slice(rows[0], None)}
    if layout == "keras":
        _write_keras(root, texts, labels, parts)
        return root
    for part, chosen in parts.items():
        for sign, label in (("neg", 0), ("pos", 1)):
            folder = root / "aclImdb" / part / sign
            folder.mkdir(parents=True, exist_ok=True)
            own = [text for text, y in zip(texts[chosen], labels[chosen]) if y == label]
            for number, text in enumerate(own):
                (folder / f"{number}_{9 if label else 2}.txt").write_text(text, "utf-8")
    return root


def _write_keras(root: Path, texts: list[str], labels: NDArray[np.int64], parts: dict[str, slice]) -> None:
    words = [words_of(text) for text in texts]
    rank = {word: number for number, word in enumerate(vocabulary_of(words, 10**6), start=1)}
    arrays = {}
    for part, chosen in parts.items():
        lists = np.empty(len(labels[chosen]), object)
        lists[:] = [[rank[word] for word in text] for text in words[chosen]]
        arrays[f"x_{part}"], arrays[f"y_{part}"] = lists, labels[chosen]
    np.savez_compressed(root / "imdb.npz", **arrays)
    (root / "imdb_word_index.json").write_text(json.dumps(rank), "utf-8")
