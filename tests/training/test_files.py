"""Files are whole or not there: full disks, folders that cannot be written, interruptions."""

import errno
import os
import subprocess
import sys

import pytest
import torch

from leanbayes.training import OutputError, fit
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
    assert names(folder) == [] and tested.prepare_folder(folder) == folder


def test_a_claim_removes_what_a_killed_process_left(tmp_path):
    (tmp_path / ".last.pt.0.tmp").write_bytes(b"half of a checkpoint")
    tested.claim(tmp_path).release()
    assert names(tmp_path) == [".lock"]


def test_processes_do_not_share_temporary_files(tmp_path):
    first, second = (tested._temporary(tmp_path / "last.pt") for _ in range(2))
    assert first != second and first.parent == tmp_path


HOLDER = """
import sys
from pathlib import Path
from leanbayes.training.files import claim
lock = claim(Path(sys.argv[1]))
print("claimed", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "claimed\n"
    yield process
    process.kill()
    process.communicate()


def test_one_process_at_a_time_writes_to_a_folder(tmp_path, holder):
    (tmp_path / ".last.pt.0.tmp").write_bytes(b"half of a checkpoint")
    with pytest.raises(OutputError, match=r"another process writes to .*; wait until it ends, or choose another"):
        tested.claim(tmp_path)
    assert (tmp_path / ".last.pt.0.tmp").exists()
    with pytest.raises(OutputError, match="another process writes to"):
        fit(torch.nn.Linear(2, 2), (torch.randn(8, 2), torch.zeros(8, dtype=torch.long)), out=tmp_path)
    holder.kill()
    tested.claim(tmp_path, wait_s=20).release()


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (NotImplementedError("use another class"), "its file system has no locks"),
        (OSError(errno.ENOLCK, "No locks available"), "No locks available"),
    ],
)
def test_a_folder_that_cannot_be_locked(tmp_path, monkeypatch, error, why):
    def acquire(self, timeout):
        raise error

    monkeypatch.setattr(tested.FileLock, "acquire", acquire)
    with pytest.raises(OutputError, match=f"cannot lock the output folder .*: {why}; choose one on another disk"):
        tested.claim(tmp_path)


def test_a_process_may_claim_twice(tmp_path):
    locks = [tested.claim(tmp_path), tested.claim(tmp_path)]
    assert all(lock.is_locked for lock in locks)
    locks[0].release()
    assert locks[1].is_locked
    locks[1].release()
    assert not locks[0].is_locked


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
