import struct

import numpy as np
import pytest

from leanbayes.data._idx import idx_bytes, read_idx


@pytest.fixture
def path(tmp_path):
    return tmp_path / "images-idx3-ubyte"


def test_bytes_go_and_come_back(path):
    array = np.random.RandomState(0).randint(0, 256, (5, 4, 3)).astype(np.uint8)
    path.write_bytes(idx_bytes(array))
    assert np.array_equal(read_idx(path), array)


def test_header_written_by_hand(path):
    path.write_bytes(b"\0\0\x0c\x02" + struct.pack(">2I", 1, 2) + struct.pack(">2i", -1, 70000))
    assert read_idx(path).tolist() == [[-1, 70000]]


def test_truncated_and_too_long(path):
    whole = idx_bytes(np.zeros((3, 2, 2), np.uint8))
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="is truncated: its header announces 12 bytes, but 11 follow"):
        read_idx(path)
    path.write_bytes(whole + b"!")
    with pytest.raises(ValueError, match="is too long: its header announces 12 bytes, but 13 follow"):
        read_idx(path)


@pytest.mark.parametrize("data", [b"", b"\0\0\x08", b"\0\0\x08\x03\0\0", b"<html>", b"\0\0\x07\x01\0\0\0\0"])
def test_no_idx_file(path, data):
    path.write_bytes(data)
    with pytest.raises(ValueError, match="is not an idx file: its first bytes are"):
        read_idx(path)


def test_only_bytes_are_written():
    with pytest.raises(TypeError, match="only arrays of bytes"):
        idx_bytes(np.zeros(3))
