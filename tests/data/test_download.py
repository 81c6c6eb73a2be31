"""Downloads from a server on this machine that can break off, refuse ranges and lie."""

import hashlib
import http.server
import io
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from leanbayes.data import download, fetch, generate, load, obtain
from leanbayes.data.sources import SOURCES, Source

CONTENT = bytes(range(256)) * 4000
SUM = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves files from memory and notes what was asked for.

    Attributes:
        files: Content by path.
        ranges: Whether ranges are understood.
        break_after: Bytes after which each of the next transfers breaks off.
        statuses: Answers to give first, before any content.
        asked: Path and range of each request.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.ranges, self.break_after, self.statuses, self.asked = {}, True, [], [], []

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        if self.server.statuses:
            return self.send_error(self.server.statuses.pop(0))
        data = self.server.files.get(self.path.lstrip("/"))
        if data is None:
            return self.send_error(404)
        start = 0
        if wanted and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        stop = self.server.break_after.pop(0) if self.server.break_after else len(data)
        self.wfile.write(data[start : start + stop])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    server = Server()
    server.files["file"] = CONTENT
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def get(server, target, checksum=SUM, path="file", **options):
    return fetch(server.url(path), target, checksum, **({"pause": 0.0} | options))


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_comes_whole(server, tmp_path):
    seen = []
    target = get(server, tmp_path / "new" / "file", progress=lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == CONTENT and left(tmp_path / "new") == ["file"]
    assert seen[-1] == (len(CONTENT), len(CONTENT)) and [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_md5_is_a_checksum_too(server, tmp_path):
    get(server, tmp_path / "file", "md5:" + hashlib.md5(CONTENT).hexdigest().upper())


def test_a_file_that_is_there_is_left_alone(server, tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    assert get(server, tmp_path / "file").read_bytes() == b"mine" and server.asked == []


def test_an_interrupted_transfer_goes_on_where_it_broke(server, tmp_path):
    server.break_after = [300_000, 0, 300_000]
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [None, "bytes=300000-", "bytes=300000-", "bytes=600000-"]


def test_a_later_call_goes_on_where_an_earlier_one_gave_up(server, tmp_path):
    server.break_after = [500_000, 0, 0]
    with pytest.raises(OSError, match="cannot be downloaded .* what has arrived so far is kept"):
        get(server, tmp_path / "file", attempts=2)
    assert left(tmp_path) == ["file.part"] and (tmp_path / "file.part").stat().st_size == 500_000
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT and server.asked[-1][1] == "bytes=500000-"


def test_a_server_without_ranges_starts_anew(server, tmp_path):
    server.ranges = False
    server.break_after = [300_000]
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT and len(server.asked) == 2


def test_a_part_that_is_whole_is_only_checked(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT and len(server.asked) == 1


@pytest.mark.parametrize("part", [b"the beginning of another file", CONTENT + b"and more"])
def test_a_part_of_another_file_is_replaced(server, tmp_path, part):
    (tmp_path / "file.part").write_bytes(part)
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT and left(tmp_path) == ["file"]


@pytest.mark.parametrize("resumed", [False, True])
def test_a_wrong_checksum_leaves_nothing(server, tmp_path, resumed):
    if resumed:
        (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    wrong = "sha256:" + "0" * 64
    with pytest.raises(ValueError, match=f"does not have the published checksum {wrong} and was removed; try again"):
        get(server, tmp_path / "file", wrong)
    assert left(tmp_path) == []


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.statuses = [503, 500, 429]
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    server.statuses = [503] * 9
    with pytest.raises(OSError, match="cannot be downloaded .the server answered 503"):
        get(server, tmp_path / "other", attempts=3)
    assert len(server.statuses) == 6


def test_a_file_that_does_not_exist_is_not_asked_for_again(server, tmp_path):
    with pytest.raises(OSError, match="nothing cannot be downloaded .the server answered 404"):
        get(server, tmp_path / "file", path="nothing")
    assert len(server.asked) == 1


def test_no_server(tmp_path):
    with pytest.raises(OSError, match="cannot be downloaded"):
        fetch("http://127.0.0.1:9/file", tmp_path / "file", SUM, attempts=1)


def test_a_full_disk_is_one_sentence(server, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download.os, "fsync", full)
    with pytest.raises(OSError, match="file cannot be written: No space left on device$"):
        get(server, tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(OSError, match="file cannot be written: "):
        get(server, tmp_path / "taken" / "file")


@pytest.mark.parametrize(("url", "checksum"), [("file:///etc/passwd", SUM), ("ftp://a/b", SUM)])
def test_only_the_web_is_read(tmp_path, url, checksum):
    with pytest.raises(ValueError, match="only http and https"):
        fetch(url, tmp_path / "file", checksum)


def test_a_checksum_has_a_kind(server, tmp_path):
    with pytest.raises(ValueError, match="a checksum is written as sha256:... or md5:..., not 'abc'"):
        get(server, tmp_path / "file", "abc")


def test_only_one_of_several_downloads(server, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: get(server, tmp_path / "file"), range(4)))
    assert (tmp_path / "file").read_bytes() == CONTENT and len(server.asked) == 1


def serve_mnist(server, tmp_path, monkeypatch):
    folder = generate.write_mnist(tmp_path / "public", compressed=True)
    sources = []
    for file in sorted(folder.iterdir()):
        server.files[f"m/{file.name}"] = data = file.read_bytes()
        sources.append(Source(server.url(f"m/{file.name}"), "sha256:" + hashlib.sha256(data).hexdigest()))
    monkeypatch.setitem(SOURCES, "mnist", tuple(sources))


def test_load_downloads_only_when_told(server, tmp_path, monkeypatch):
    serve_mnist(server, tmp_path, monkeypatch)
    root = tmp_path / "root"
    with pytest.raises(FileNotFoundError, match="pass download=True"):
        load("mnist", root=root)
    assert server.asked == []
    first = load("mnist", root=root, download=True)
    assert len(server.asked) == 4 and left(root / "MNIST" / "raw")[0] == "t10k-images-idx3-ubyte.gz"
    second = load("mnist", root=root, download=True)
    assert len(server.asked) == 4 and torch.equal(first.train.x, second.train.x)


def archive(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def serve_cifar(server, monkeypatch, data):
    server.files["cifar.tar.gz"] = data
    checksum = "md5:" + hashlib.md5(data).hexdigest()
    source = Source(server.url("cifar.tar.gz"), checksum, "cifar-10-batches-bin")
    monkeypatch.setitem(SOURCES, "cifar10", (source,))


def test_archives_are_unpacked(server, tmp_path, monkeypatch):
    folder = generate.write_cifar10(tmp_path / "public")
    members = [(f"{folder.name}/{file.name}", file.read_bytes()) for file in folder.iterdir()]
    serve_cifar(server, monkeypatch, archive(*members))
    read = load("cifar10", root=tmp_path / "root", download=True)
    assert torch.equal(read.train.x, load("cifar10", root=tmp_path / "public").train.x)
    assert left(tmp_path / "root") == ["cifar-10-batches-bin", "cifar.tar.gz"]
    obtain("cifar10", tmp_path / "root")
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (archive(("other/file", b"")), "does not hold a folder cifar-10-batches-bin"),
        (archive(("cifar-10-batches-bin/a", b"x" * 5000))[:-60], "is not a complete archive"),
        (b"nothing", "is not a complete archive"),
        (archive(("../outside", b"bad")), "is not a complete archive"),
    ],
    # Archives carry the time of their making: as names of tests they would differ between processes.
    ids=["other-folder", "cut-short", "no-archive", "outside"],
)
def test_archives_that_do_not_fit_leave_nothing_half_done(server, tmp_path, monkeypatch, data, message):
    serve_cifar(server, monkeypatch, data)
    root = tmp_path / "root"
    with pytest.raises(ValueError, match=message):
        obtain("cifar10", root)
    assert left(root) == ["cifar.tar.gz"] and left(tmp_path) == ["root"]


def test_sets_without_a_source(tmp_path):
    with pytest.raises(ValueError, match="no public source for 'uci-yacht'; available for download: mnist"):
        obtain("uci-yacht", tmp_path)
