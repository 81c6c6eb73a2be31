import io
import os
import pickle
import struct

import numpy as np
import pytest

from leanbayes.data._pickle import Refused, load_pickle, load_pickle_bytes


def dumps(value, protocol=2):
    return pickle.dumps(value, protocol=protocol)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.uint8).reshape(3, 4),
        np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
        np.array([1.5, -2.0], dtype=np.float32),
        np.zeros((0, 3), dtype=np.int64),
        np.array([True, False]),
    ],
)
def test_arrays_come_back(protocol, array):
    read = load_pickle_bytes(dumps({b"data": array, "labels": [1, 2], b"n": b"text"}, protocol), "file")
    key = next(key for key in read if key in ("data", b"data"))
    assert np.array_equal(read[key], array) and read[key].dtype == array.dtype
    assert read["labels"] == [1, 2]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_lists_in_arrays_come_back(protocol):
    array = np.empty(2, object)
    array[:] = [[1, 2, 3], []]
    read = load_pickle_bytes(dumps(array, protocol), "file")
    assert read.tolist() == [[1, 2, 3], []]


def test_python_2_wrote_strings_as_bytes():
    # As the published CIFAR batches begin: protocol 2, short strings, an array of bytes.
    content = bytes(range(6))
    data = (
        b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x06K\x09eU\x04dataq\x04"
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85U\x01b\x87Rq\x07(K\x01K\x02K\x03\x86"
        b"cnumpy\ndtype\nq\x08U\x02u1K\x00K\x01\x87Rq\x09(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"T" + struct.pack("<I", len(content)) + content + b"tbu."
    )
    read = load_pickle_bytes(data, "data_batch_1")
    assert read[b"labels"] == [6, 9]
    assert read[b"data"].tolist() == [[0, 1, 2], [3, 4, 5]]


class Attack:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_a_pickle_that_calls_something_is_refused_and_nothing_is_called(tmp_path):
    witness = tmp_path / "witness"
    for attack in (
        Attack(os.system, f"touch {witness}"),
        Attack(eval, f"open({str(witness)!r}, 'w')"),
        Attack(os.mkdir, str(witness)),
        Attack(getattr, "text", "upper"),
        Attack(np.load, str(witness)),
        Attack(bytearray, 5),
        Attack(pickle.loads, b"N."),
        Attack(complex, 1, 2),
    ):
        for value in (attack, {b"data": attack}, [attack]):
            with pytest.raises(Refused, match="file is refused: it names"):
                load_pickle_bytes(dumps(value), "file")
    assert not witness.exists()


@pytest.mark.parametrize("value", [1.5, (1, 2), None, {1, 2}, True, {(1, 2): 3}, [None], {"a": 1.5}])
def test_other_types_are_refused(value):
    with pytest.raises(Refused, match="file is refused"):
        load_pickle_bytes(dumps(value), "file")


def test_compound_arrays_are_refused():
    # A compound type whose flags lie about objects inside would let bytes be taken for addresses.
    for array in (np.zeros(2, dtype=[("a", "i4")]), np.zeros(2, dtype="V8"), np.array(["text"]), np.zeros(2, "M8[s]")):
        with pytest.raises(Refused, match="it holds an array of"):
            load_pickle_bytes(dumps(array), "file")


def array_program(shape, spec, content, fields=b"NN"):
    """A pickle of an array whose pieces are chosen freely."""
    return (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + shape
        + b"cnumpy\ndtype\n" + spec + b"K\x00K\x01\x87R(K\x03U\x01|N"
        + fields
        + b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + content
        + b"tb."
    )  # fmt: skip


def test_arrays_that_lie_about_themselves_are_refused():
    honest = array_program(b"K\x02\x85", b"U\x02u1", b"U\x02ab")
    assert load_pickle_bytes(honest, "file").tolist() == [97, 98]
    for lie in (
        array_program(b"K\x05\x85", b"U\x02u1", b"U\x02ab"),
        array_program(b"K\x02\x85", b"U\x02O8", b"U\x02ab"),
        array_program(b"K\x02\x85", b"U\x02O8", b"]"),
        array_program(b"J\xff\xff\xff\xff\x85", b"U\x02u1", b"U\x00"),
        array_program(b"K\x02\x85", b"U\x02u1", b"U\x02ab", fields=b"U\x01a\x85}"),
        array_program(b"K\x02", b"U\x02u1", b"U\x02ab"),
    ):
        with pytest.raises(Refused, match="it holds an array"):
            load_pickle_bytes(lie, "file")


def test_an_array_class_cannot_be_called():
    with pytest.raises(ValueError, match="not a complete pickled file"):
        load_pickle_bytes(b"\x80\x02cnumpy\nndarray\nK\x05\x85R.", "file")


def test_stand_ins_cannot_be_changed_for_the_next_file():
    change = b"\x80\x02c_codecs\nencode\nN}U\x08__call__K\x01s\x86b."
    with pytest.raises(ValueError):
        load_pickle_bytes(change, "file")
    assert load_pickle_bytes(dumps(b"\xff\x00"), "file") == b"\xff\x00"


@pytest.mark.parametrize("data", [b"", b"\x80", b"no pickle", dumps([1, 2, 3])[:-3], b"\x80\x02}U\x01"])
def test_damaged_files(data):
    with pytest.raises(ValueError, match="file is not a complete pickled file"):
        load_pickle(io.BytesIO(data), "file")


def test_references_to_the_outside_are_refused():
    with pytest.raises(Refused, match="refers to objects outside"):
        load_pickle_bytes(b"Pname\n.", "file")
