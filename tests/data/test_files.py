import gzip

import pytest

from leanbayes.data import data_root
from leanbayes.data._files import find, locate, read_bytes


def test_root_is_the_argument_the_variable_or_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path / "variable"))
    assert data_root(tmp_path) == tmp_path
    assert data_root() == tmp_path / "variable"
    monkeypatch.delenv("LEANBAYES_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "leanbayes"


def test_the_first_complete_folder_is_taken(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a" / "one").touch()
    (tmp_path / "b" / "one").touch()
    (tmp_path / "b" / "two.gz").touch()
    assert locate("SET", [tmp_path / "a", tmp_path / "b"], ["one", "two"], "get it") == tmp_path / "b"
    assert find(tmp_path / "b", "two") == tmp_path / "b" / "two.gz"


def test_messages_say_what_is_missing_where_and_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"^SET was not found: looked for one, two in {tmp_path}; get it$"):
        locate("SET", [tmp_path], ["one", "two"], "get it")
    (tmp_path / "one").touch()
    with pytest.raises(FileNotFoundError, match=f"^SET is not complete: {tmp_path} lacks two; get it$"):
        locate("SET", [tmp_path], ["one", "two"], "get it")


def test_compressed_files_are_read(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"content"))
    assert read_bytes(tmp_path / "a.gz") == b"content"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"nothing", lambda data: data[:20] + b"x" * 20]
)
def test_damaged_compressed_files(tmp_path, damage):
    (tmp_path / "a.gz").write_bytes(damage(gzip.compress(b"content" * 100)))
    with pytest.raises(ValueError, match="a.gz is not a complete gzip file"):
        read_bytes(tmp_path / "a.gz")


def test_a_folder_in_the_place_of_a_file(tmp_path):
    with pytest.raises(OSError, match="cannot be read: Is a directory"):
        read_bytes(tmp_path)
