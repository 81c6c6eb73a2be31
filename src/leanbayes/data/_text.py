"""Words and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

# Ids below the first word: 0 fills up, 1 begins a text, 2 stands for a word outside the vocabulary, 3 is free.
PADDING, START, UNKNOWN, FIRST_WORD = 0, 1, 2, 4
_SEPARATORS = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; punctuation but the apostrophe divides words.

    Example:
        >>> words_of("It's good, isn't it?")
        ["it's", 'good', "isn't", 'it']
    """
    return [word for word in text.lower().translate(_SEPARATORS).split(" ") if word]


def vocabulary_of(texts: Iterable[Sequence[str]], size: int) -> list[str]:
    """The most frequent words, at most `size`; words of equal frequency in alphabetical order."""
    counts = Counter(word for words in texts for word in words)
    return sorted(counts, key=lambda word: (-counts[word], word))[:size]


def ids_of(texts: Sequence[Sequence[str]], vocabulary: Sequence[str], length: int) -> Tensor:
    """Ids ``[N, length]``: the start and one per word, of these the last `length`, filled up at the end."""
    number = {word: FIRST_WORD + rank for rank, word in enumerate(vocabulary)}
    return pad([[number.get(word, UNKNOWN) for word in words[-length:]] for words in texts], length)


def pad(texts: Sequence[Sequence[int]], length: int) -> Tensor:
    """Ids ``[N, length]`` of texts without their start: its id and theirs, the last `length`, filled up at the end."""
    result = np.full((len(texts), length), PADDING, dtype=np.int64)
    for row, ids in enumerate(texts):
        last = ids[-length:] if len(ids) >= length else [START, *ids]
        result[row, : len(last)] = last
    return torch.from_numpy(result)


def encode(texts: Iterable[str], vocabulary: Sequence[str], length: int) -> Tensor:
    """Ids ``[N, length]`` of texts, as a network over this vocabulary takes them.

    Example:
        >>> encode(["The film is good", "a film"], ["the", "film", "good"], 4)
        tensor([[4, 5, 2, 6],
                [1, 2, 5, 0]])
    """
    return ids_of([words_of(text) for text in texts], vocabulary, length)
