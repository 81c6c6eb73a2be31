import torch

from leanbayes.data._text import encode, ids_of, pad, vocabulary_of, words_of


def test_words_are_divided_as_keras_does():
    assert words_of("A <br />film—isn't it (2/5)?\nYes_no") == ["a", "br", "film—isn't", "it", "2", "5", "yes", "no"]


def test_frequent_words_come_first_and_ties_are_alphabetical():
    texts = [["b", "a", "c"], ["c", "a"], ["c"]]
    assert vocabulary_of(texts, 10) == ["c", "a", "b"]
    assert vocabulary_of(texts, 2) == ["c", "a"]


def test_long_texts_keep_their_end_and_short_ones_are_filled_up():
    assert pad([[7, 8, 9], [7, 8], [7], []], 3).tolist() == [[7, 8, 9], [1, 7, 8], [1, 7, 0], [1, 0, 0]]


def test_ids_are_those_of_the_whole_text_cut_off():
    words = "a b c a d e a".split()
    whole = [1, *(4 + "ab".index(word) if word in "ab" else 2 for word in words)]
    for length in range(1, 12):
        expected = (whole[-length:] + [0] * length)[:length]
        assert ids_of([words], ["a", "b"], length).tolist() == [expected]


def test_encode_gives_numbers_below_the_size_of_the_vocabulary():
    ids = encode(["one two three", "two"], ["two", "one"], 5)
    assert ids.dtype == torch.int64 and ids.tolist() == [[1, 5, 4, 2, 0], [1, 4, 0, 0, 0]]
