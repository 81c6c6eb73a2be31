import pytest

from leanbayes.report import write_report
from leanbayes.training import OutputError
from tests.report import fake


def test_it_writes_one_file_beside_the_comparison(tmp_path):
    target = write_report(fake.write(tmp_path, fake.comparison(methods=2)))
    assert target == tmp_path / "report.html"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compare.json", "report.html"]
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_it_writes_where_it_is_told(tmp_path):
    fake.write(tmp_path, fake.comparison(methods=1))
    (tmp_path / "folder").mkdir()
    assert write_report(tmp_path, tmp_path / "other.html") == tmp_path / "other.html"
    assert write_report(tmp_path, tmp_path / "folder") == tmp_path / "folder" / "report.html"


def test_the_same_comparison_gives_the_same_file(tmp_path):
    fake.write(tmp_path, fake.comparison(methods=2))
    assert write_report(tmp_path).read_bytes() == write_report(tmp_path, tmp_path / "again.html").read_bytes()


def test_no_comparison(tmp_path):
    with pytest.raises(FileNotFoundError, match="compare.json does not exist; pass the folder"):
        write_report(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "\x00", "[" * 100_000])
def test_a_damaged_comparison(tmp_path, text):
    (tmp_path / "compare.json").write_text(text)
    with pytest.raises(ValueError, match="is damaged .*run `leanbayes compare` again"):
        write_report(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"methods": []}', '{"methods": 3}'])
def test_a_comparison_without_methods(tmp_path, text):
    (tmp_path / "compare.json").write_text(text)
    with pytest.raises(ValueError, match="holds no methods"):
        write_report(tmp_path)


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    fake.write(tmp_path, fake.comparison(methods=1))
    before = write_report(tmp_path).read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_report(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_broken_unicode_is_written(tmp_path):
    (tmp_path / "compare.json").write_text('{"data": "\\ud800", "methods": [{"name": "plain"}]}')
    assert write_report(tmp_path).exists()
