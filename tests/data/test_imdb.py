import json

import numpy as np
import pytest
import torch

from leanbayes.data import generate, load
from leanbayes.data._text import encode


@pytest.mark.parametrize("layout", ["aclImdb", "keras"])
def test_reviews_are_what_was_written(tmp_path, layout):
    generate.write("imdb", tmp_path, rows=(40, 20), layout=layout)
    texts, labels = generate.reviews(60)
    read = load("imdb", root=tmp_path, valid=0, length=12)
    assert read.task == "binary" and read.inputs == "text" and read.shape == (12,) and read.classes == 2
    for part, chosen in ((read.train, slice(0, 40)), (read.test, slice(40, 60))):
        expected = encode(texts[chosen], read.schema.vocabulary, 12).tolist()
        found = sorted(zip(part.x.tolist(), part.y.tolist()))
        assert found == sorted(zip(expected, labels[chosen].tolist()))


def test_both_layouts_agree_when_they_share_the_word_index(tmp_path):
    for layout in ("aclImdb", "keras"):
        generate.write("imdb", tmp_path, layout=layout)
    first, second = (load("imdb", root=tmp_path, source=source, valid=0) for source in ("aclImdb", "keras"))
    assert first.schema.vocabulary == second.schema.vocabulary
    assert sorted(first.train.x.tolist()) == sorted(second.train.x.tolist())


@pytest.mark.parametrize("layout", ["aclImdb", "keras"])
def test_rare_words_are_unknown(tmp_path, layout):
    generate.write("imdb", tmp_path, layout=layout)
    read = load("imdb", root=tmp_path, words=10)
    assert len(read.schema.vocabulary) == 6
    ids = torch.cat([read.train.x, read.test.x])
    assert ids.max() == 9 and (ids == 2).any() and not (ids == 3).any()


def test_word_index_may_be_missing(tmp_path):
    generate.write("imdb", tmp_path, layout="keras")
    (tmp_path / "imdb_word_index.json").unlink()
    assert load("imdb", root=tmp_path).schema.vocabulary == ()


def test_nothing_is_scaled(tmp_path):
    generate.write("imdb", tmp_path)
    read = load("imdb", root=tmp_path)
    assert torch.equal(read.ready("train")[0], read.train.x)


def test_missing_data_say_how_to_get_them(tmp_path):
    with pytest.raises(FileNotFoundError, match="IMDB was not found: looked for imdb.npz and the folder aclImdb in"):
        load("imdb", root=tmp_path)
    (tmp_path / "aclImdb" / "train" / "neg").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="IMDB is not complete: .* lacks train/pos, test/neg, test/pos"):
        load("imdb", root=tmp_path)


def lists(*values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": np.zeros(3, np.int64)}, "must hold one label per review"),
        ({"x_test": lists([1], [0]), "y_test": np.zeros(2, np.int64)}, "review 1 of .* a list of word ranks from 1 on"),
        ({"x_test": lists(1, 2), "y_test": np.zeros(2, np.int64)}, "review 0 of .* a list of word ranks from 1 on"),
        ({"y_test": np.full(40, 2)}, "from 0 to 1, but the one at position 0 is 2"),
        ({"x_train": None}, "lacks the arrays x_train"),
    ],
)
def test_keras_files_that_do_not_fit(tmp_path, change, message):
    generate.write("imdb", tmp_path, layout="keras")
    with np.load(tmp_path / "imdb.npz", allow_pickle=True) as file:
        arrays = dict(file) | change
    np.savez(tmp_path / "imdb.npz", **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(ValueError, match=message):
        load("imdb", root=tmp_path)


@pytest.mark.parametrize("index", ["[1, 2]", "{", json.dumps({"a": 2}), json.dumps({"a": "b"})])
def test_damaged_word_index(tmp_path, index):
    generate.write("imdb", tmp_path)
    (tmp_path / "imdb_word_index.json").write_text(index)
    with pytest.raises(ValueError, match="must map each word to its rank from 1 on"):
        load("imdb", root=tmp_path)


def test_options_are_checked(tmp_path):
    with pytest.raises(ValueError, match="words must be over 4 and length over 0, not 4 and 80"):
        load("imdb", root=tmp_path, words=4)
    with pytest.raises(ValueError, match="source is one of"):
        load("imdb", root=tmp_path, source="web")


def test_text_that_is_not_utf_8(tmp_path):
    generate.write("imdb", tmp_path)
    (tmp_path / "aclImdb" / "train" / "neg" / "0_2.txt").write_bytes(b"\xff\xfe bad")
    with pytest.raises(ValueError, match="a review in .*neg is not UTF-8"):
        load("imdb", root=tmp_path)
