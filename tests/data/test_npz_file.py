import zipfile

import numpy as np
import pytest

from leanbayes.data._npz import read_npz


class Attack:
    def __reduce__(self):
        return eval, ("1 / 0",)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back(tmp_path, save):
    save(tmp_path / "a.npz", x=np.eye(3), y=np.arange(3, dtype=">i2"), s=np.asfortranarray(np.arange(6).reshape(2, 3)))
    read = read_npz(tmp_path / "a.npz")
    assert set(read) == {"x", "y", "s"}
    assert np.array_equal(read["x"], np.eye(3)) and read["y"].tolist() == [0, 1, 2]
    assert read["s"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_objects_are_read_only_where_they_are_allowed(tmp_path):
    lists = np.empty(2, object)
    lists[:] = [[1], [2, 3]]
    np.savez(tmp_path / "a.npz", x=lists)
    with pytest.raises(ValueError, match="the array 'x' of .*a.npz holds Python objects, which are not read"):
        read_npz(tmp_path / "a.npz")
    assert read_npz(tmp_path / "a.npz", objects=True)["x"].tolist() == [[1], [2, 3]]


def test_objects_that_call_something_are_refused(tmp_path):
    objects = np.empty(1, object)
    objects[0] = Attack()
    np.savez(tmp_path / "a.npz", x=objects)
    with pytest.raises(ValueError, match="'x' of .* is refused: it names builtins.eval|it names __builtin__.eval"):
        read_npz(tmp_path / "a.npz", objects=True)


def test_damaged_files(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(1000))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="is not a complete NPZ file"):
        read_npz(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"nothing")
    with pytest.raises(ValueError, match="the array 'x' of .* cannot be read"):
        read_npz(path)
