"""Files are whole or not there: full disks, folders that cannot be written, interruptions."""

import errno
import os

import pytest
import torch

from leanbayes.training import OutputError
from leanbayes.training import files as tested


def full_disk(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_state_comes_back(tmp_path):
    state = {"step": 3, "values": [1.5, None, "a"], "model": {"w": torch.arange(3)}}
    tested.write_state(tmp_path / "last.pt", state)
    found = tested.read_state(tmp_path / "last.pt")
    assert torch.equal(found.pop("model")["w"], state.pop("model")["w"])
    assert found == state
    assert names(tmp_path) == ["last.pt"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "last.pt"
    tested.write_state(path, {"step": 1})
    monkeypatch.setattr(os, call, full_disk)
    with pytest.raises(OutputError, match=r"cannot write .*last\.pt: No space left on device; the file .* is intact"):
        tested.write_state(path, {"step": 2})
    monkeypatch.undo()
    assert tested.read_state(path) == {"step": 1}
    assert names(tmp_path) == ["last.pt"]


def test_an_interruption_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "last.pt"
    tested.write_state(path, {"step": 1})

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tested.write_state(path, {"step": 2})
    assert tested.read_state(path) == {"step": 1}
    assert names(tmp_path) == ["last.pt"]


def test_damaged_and_foreign_files(tmp_path):
    path = tmp_path / "last.pt"
    tested.write_state(path, {"w": torch.zeros(1000)})
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(OutputError, match="damaged"):
        tested.read_state(path)
    torch.save({"code": print}, path)
    with pytest.raises(OutputError, match="not written by leanbayes"):
        tested.read_state(path)
    with pytest.raises(OutputError, match="cannot read the checkpoint"):
        tested.read_state(tmp_path / "none.pt")


def test_prepares_the_folder(tmp_path):
    folder = tested.prepare_folder(tmp_path / "a" / "b")
    (folder / ".last.pt.tmp").write_bytes(b"half of a checkpoint")
    tested.prepare_folder(folder)
    assert names(folder) == []


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "out").write_text("")
    for out in (tmp_path / "out", tmp_path / "out" / "deeper"):
        with pytest.raises(OutputError, match=r"cannot write in the output folder .*out.*; choose another"):
            tested.prepare_folder(out)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    (tmp_path / "out").mkdir(mode=0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        tested.prepare_folder(tmp_path / "out")


@pytest.mark.parametrize("written", [0, 3])
def test_a_line_is_whole_or_not_there(tmp_path, monkeypatch, written):
    path = tmp_path / "metrics.jsonl"
    tested.append_line(path, "first")
    write = os.write

    def some(handle, content):
        if written == 0:
            full_disk()
        return write(handle, content[:written])

    monkeypatch.setattr(os, "write", some)
    with pytest.raises(OutputError, match="No space left on device"):
        tested.append_line(path, "second")
    monkeypatch.undo()
    assert path.read_text() == "first\n"
    tested.append_line(path, "third")
    assert path.read_text() == "first\nthird\n"


def test_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tested.cut(path, 5)
    path.write_text("first\nsecond\n")
    tested.cut(path, 99)
    tested.cut(path, 6)
    assert path.read_text() == "first\n"
