"""Words and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

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


def ids_of(texts: Iterable[Sequence[str]], vocabulary: Sequence[str]) -> list[list[int]]:
    """Ids of each text: the start, then one per word."""
    number = {word: FIRST_WORD + rank for rank, word in enumerate(vocabulary)}
    return [[START, *(number.get(word, UNKNOWN) for word in words)] for words in texts]


def pad(texts: Sequence[Sequence[int]], length: int) -> Tensor:
    """Ids ``[N, length]``: the last `length` of each text, filled up at the end."""
    result = torch.full((len(texts), length), PADDING, dtype=torch.int64)
    for row, ids in enumerate(texts):
        last = ids[-length:]
        result[row, : len(last)] = torch.tensor(last, dtype=torch.int64)
    return result


def encode(texts: Iterable[str], vocabulary: Sequence[str], length: int) -> Tensor:
    """Ids ``[N, length]`` of texts, as a network over this vocabulary takes them.

    Example:
        >>> encode(["The film is good", "a film"], ["the", "film", "good"], 4)
        tensor([[4, 5, 2, 6],
                [1, 2, 5, 0]])
    """
    return pad(ids_of(map(words_of, texts), vocabulary), length)
