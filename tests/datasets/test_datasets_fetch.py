"""`data fetch` against a server on loopback that misbehaves: nothing wrong is kept, each reason is told."""

import contextlib
import gzip
import hashlib
import importlib.util
import io
import os
import re
import tarfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dpsweep import cli
from dpsweep.build import build
from dpsweep.config import Composer
from dpsweep.datasets import fetch as module
from dpsweep.datasets.fetch import fetch, is_right
from dpsweep.datasets.images import CIFAR10, MNIST
from dpsweep.datasets.origins import ORIGINS, Origin, Parcel, Source
from dpsweep.errors import UsageError

GOOD = bytes(range(256)) * 800
FILE = "folder/good.bin"


def sha(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    pages: dict = {}
    asked: list = []

    def do_GET(self):
        self.asked.append(self.path)
        kind, content = self.pages.get(self.path, (404, b"gone"))
        if kind == "slow":
            time.sleep(1)
            return
        if kind == "stall":
            self._start(200, {"Content-Length": len(content)})
            self.wfile.write(content[:1000])
            self.wfile.flush()
            time.sleep(1)
            return
        if kind == "redirect":
            self._start(302, {"Location": content, "Content-Length": 0})
            return
        if kind == "truncated":
            self._start(200, {"Content-Length": len(content)})
            self.wfile.write(content[:1000])
            self.close_connection = True
            return
        if kind == "unannounced":  # ends early without having said how much there is
            self._start(200, {})
            self.wfile.write(content[:1000])
            return
        if kind == "drip":
            self._start(200, {"Content-Length": len(content)})
            with contextlib.suppress(OSError):
                for start in range(0, len(content), 100):
                    self.wfile.write(content[start : start + 100])
                    time.sleep(0.02)
            return
        if kind == "endless":
            self._start(200, {})
            for _ in range(1000):
                self.wfile.write(content)
            return
        self._start(kind, {"Content-Length": len(content)})
        self.wfile.write(content)

    def _start(self, status, headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, str(value))
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    for key in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(key, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    monkeypatch.setattr(Handler, "pages", {"/good": (200, GOOD)})
    monkeypatch.setattr(Handler, "asked", [])
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def offer(monkeypatch, *sources, files=None, preferred=None):
    parcel = Parcel(files or {FILE: sha(GOOD)}, tuple(sources), preferred or {})
    monkeypatch.setitem(ORIGINS, "thing", Origin("free for all", (parcel,)))
    return parcel


def run(folder):
    said = []
    return fetch(["thing"], folder, said.append), "\n".join(said)


def left(folder):
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())


def test_a_file_lands_whole_and_is_not_fetched_again(tmp_path, monkeypatch, server):
    offer(monkeypatch, Source(f"{server}/good"))
    folder = tmp_path / "new" / "data"
    done, said = run(folder)
    assert done and "free for all" in said and f"{server}/good" in said and "dpsweep data verify thing" in said
    assert (folder / FILE).read_bytes() == GOOD and left(folder) == [FILE] and os.listdir(folder) == ["folder"]
    done, said = run(folder)
    assert done and "already" in said and Handler.asked == ["/good"]


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        (403, b"no", "answered 403 .*lets nobody in"),
        (404, b"no", "answered 404 .*no longer there"),
        (500, b"oops", "answered 500"),
        (503, b"oops", "answered 503"),
        (200, b"<html>log in</html>", "cut short, changed, or a page in its place: its sha256 isn't"),
        (200, b"", "its sha256 isn't"),
        (200, GOOD + b"x", "its sha256 isn't"),
        ("truncated", GOOD, "connection broke before the end"),
        ("unannounced", GOOD, "its sha256 isn't"),
        ("slow", b"", r"no answer within 0\.3 s|no connection"),
        ("stall", GOOD, r"no answer within 0\.3 s"),
        ("redirect", "/bad", "redirects in a circle"),
        ("redirect", "http://127.0.0.1:1/", "no connection"),
        ("endless", b"x" * 100_000, "sends more than 1 MB"),
    ],
)
def test_a_bad_source_is_passed_over_and_two_are_both_told(tmp_path, monkeypatch, server, kind, content, said):
    monkeypatch.setattr(module, "TIMEOUT", 0.3)
    monkeypatch.setattr(module, "LARGEST", 1_000_000)
    Handler.pages["/bad"] = (kind, content)
    bad = Source(f"{server}/bad")
    offer(monkeypatch, bad, Source(f"{server}/good"))
    done, _ = run(tmp_path / "second")
    assert done and (tmp_path / "second" / FILE).read_bytes() == GOOD
    offer(monkeypatch, bad, Source("http://127.0.0.1:1/nobody"))
    done, text = run(tmp_path / "none")
    assert not done and "All 2 known sources failed" in text and "on a machine" in text.lower()
    assert re.search(f"/bad: .*({said})", text), text
    assert "127.0.0.1:1/nobody: no connection" in text and left(tmp_path / "none") == []


def test_a_redirect_is_followed(tmp_path, monkeypatch, server):
    Handler.pages["/moved"] = ("redirect", "/good")
    offer(monkeypatch, Source(f"{server}/moved"))
    assert run(tmp_path)[0] and (tmp_path / FILE).read_bytes() == GOOD


def test_a_crawling_server_is_given_up(tmp_path, monkeypatch, server):
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    monkeypatch.setattr(module, "SLOWEST", 1e12)
    offer(monkeypatch, Source(f"{server}/good"))
    done, said = run(tmp_path)
    assert not done and "The only known source failed" in said and "bytes a second" in said


def test_a_drip_is_given_up_long_before_it_ends(tmp_path, monkeypatch, server):
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    monkeypatch.setattr(module, "SLOWEST", 1e6)
    Handler.pages["/drip"] = ("drip", GOOD)  # 200 kB in 40 seconds
    offer(monkeypatch, Source(f"{server}/drip"))
    started = time.monotonic()
    assert not run(tmp_path)[0] and time.monotonic() - started < 6


def zipped(members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return content.getvalue()


def tarred(members):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                archive.addfile(info)
            else:
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


@pytest.mark.parametrize(("packing", "pack"), [("zip", zipped), ("tar", tarred)])
def test_an_archive_gives_the_expected_files_and_nothing_else(tmp_path, monkeypatch, server, packing, pack):
    folder = tmp_path / "data"
    members = [("../../evil", b"x"), ("/abs/evil", b"x"), ("top/good.bin", GOOD), ("other.txt", b"x"), ("b", b"second")]
    Handler.pages["/archive"] = (200, pack(members))
    offer(
        monkeypatch,
        Source(f"{server}/archive", packing),
        files={FILE: sha(GOOD), "b": "md5:" + hashlib.md5(b"second").hexdigest()},
    )
    assert run(folder)[0] and left(tmp_path) == ["data/b", "data/" + FILE]


@pytest.mark.parametrize(
    ("packing", "content", "said"),
    [
        ("zip", b"<html>", "no whole zip archive"),
        ("tar", b"<html>", "no whole tar archive"),
        ("zip", zipped([("good.bin", GOOD)])[:-300], "no whole zip archive"),
        ("tar", tarred([("good.bin", os.urandom(50_000))])[:-3000], "no whole tar archive"),
        ("tar", tarred([("good.bin", None)]), "holds no good.bin"),
        ("zip", zipped([("other", b"x")]), "holds no good.bin"),
        ("zip", zipped([("good.bin", b"wrong")]), "its sha256 isn't"),
        ("tar", tarred([("../good.bin", b"wrong"), ("good.bin", GOOD)]), "its sha256 isn't"),
        ("zip", zipped([("good.bin", b"x" * 2_000_000)]), "far too large"),
    ],
)  # fmt: skip
def test_a_bad_archive_leaves_nothing(tmp_path, monkeypatch, server, packing, content, said):
    monkeypatch.setattr(module, "LARGEST", 1_000_000)
    Handler.pages["/archive"] = (200, content)
    offer(monkeypatch, Source(f"{server}/archive", packing))
    done, text = run(tmp_path / "data")
    assert not done and said in text and left(tmp_path) == []


def test_another_file_of_the_name_is_kept_aside_also_one_that_the_reader_prefers(tmp_path, monkeypatch, server):
    parcel = offer(monkeypatch, Source(f"{server}/good"), preferred={FILE: ("folder/plain.bin", sha(b"plain"))})
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "plain.bin").write_bytes(b"plain")
    assert is_right(parcel, tmp_path) and run(tmp_path)[0] and not Handler.asked
    (tmp_path / "folder" / "plain.bin").write_bytes(b"mine")
    (tmp_path / FILE).write_bytes(b"half")
    done, said = run(tmp_path)
    assert done and "kept as good.bin.old" in said and is_right(parcel, tmp_path)
    assert left(tmp_path) == [FILE, FILE + ".old", "folder/plain.bin.old"]
    assert (tmp_path / "folder" / "plain.bin.old").read_bytes() == b"mine"


def test_a_folder_that_cannot_be_made_and_a_full_disk_are_named(tmp_path, monkeypatch, server):
    offer(monkeypatch, Source(f"{server}/good"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file.*data\.dir=PATH"):
        fetch(["thing"], tmp_path / "file" / "data", print)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_download", full)
    with pytest.raises(UsageError, match=r"No space left on device\. Make room.*data\.dir=PATH"):
        fetch(["thing"], tmp_path / "data", print)
    assert left(tmp_path / "data") == []


def test_the_command_line(tmp_path, monkeypatch, server, capsys):
    offer(monkeypatch, Source(f"{server}/good"))
    assert cli.main(["data", "fetch", "thing", f"data.dir={tmp_path}"]) == 0
    assert (tmp_path / FILE).read_bytes() == GOOD and "thing: free for all" in capsys.readouterr().out
    offer(monkeypatch, Source(f"{server}/none"))
    assert cli.main(["data", "fetch", "thing", f"data.dir={tmp_path / 'other'}"]) == 1
    assert "answered 404" in capsys.readouterr().out
    assert cli.main(["data", "fetch"]) == 2 and "name one or more datasets: cardio" in capsys.readouterr().err
    assert cli.main(["data", "fetch", "digits"]) == 2 and "no address is known" in capsys.readouterr().err


def test_every_dataset_with_files_has_an_origin_whose_files_its_reader_looks_for(tmp_path):
    composer = Composer()
    for name in composer.options("dataset"):
        if name in ("digits", "breast_cancer"):
            continue
        reader = build("dataset", composer.compose([("dataset", name)]).values["dataset"])
        for parcel in ORIGINS[name].parcels:
            assert parcel.sources and all(source.url.startswith("http") for source in parcel.sources)
            for file in parcel.files:
                (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / file).touch()
        reader.check(tmp_path)
    assert set(ORIGINS) == set(composer.options("dataset")) - {"digits", "breast_cancer"}


def test_the_gzipped_mnist_lands_where_its_reader_reads_it(tmp_path, monkeypatch, server):
    parcels = []
    for file in MNIST.sha256:
        content = gzip.compress(b"idx of " + file.encode())
        Handler.pages["/" + file] = (200, content)
        parcels.append(Parcel({f"{MNIST.folder}/{file}.gz": sha(content)}, (Source(f"{server}/{file}"),), {}))
    monkeypatch.setitem(ORIGINS, "mnist", Origin("x", tuple(parcels)))
    assert fetch(["mnist"], tmp_path, print)
    MNIST().check(tmp_path)


@pytest.mark.data
def test_the_checksums_are_those_of_the_official_files():
    folder = os.environ.get("DPSWEEP_DATA")
    if not folder:
        pytest.skip("DPSWEEP_DATA names no folder")
    seen = 0
    for name in ("mnist", "fashionmnist", "heart", "cardio"):
        for parcel in ORIGINS[name].parcels:
            for file, digest in parcel.files.items():
                if (Path(folder) / file).is_file():
                    seen += 1
                    assert sha((Path(folder) / file).read_bytes()) == digest
    assert seen


def test_the_mnist_addresses_and_md5s_are_torchvisions():
    package = importlib.util.find_spec("torchvision")
    text = (Path(package.submodule_search_locations[0]) / "datasets/mnist.py").read_text()
    assert ORIGINS["mnist"].parcels[0].sources[0].url.rpartition("/")[0] + "/" in text
    assert ORIGINS["fashionmnist"].parcels[0].sources[0].url.rpartition("/")[0] + "/" in text
    text = (Path(package.submodule_search_locations[0]) / "datasets/cifar.py").read_text()
    assert ORIGINS["cifar10"].parcels[0].sources[0].url in text and len(CIFAR10.md5) == 6
