"""`dpsweep data fetch`: get the files of public datasets, from one source or the next, and keep only the right ones."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from dpsweep.datasets.origins import ORIGINS, Parcel, Source
from dpsweep.errors import UsageError

TIMEOUT = 30.0  # seconds without a byte after which a server is given up
SLOWEST, PATIENCE = 2_000.0, 60.0  # bytes a second below which a download is given up, seconds before that is judged
_CHUNK = 1 << 12  # bytes after which that is looked at: a full chunk is waited for, so it must be small for a crawling server
LARGEST = 200_000_000  # bytes; no wanted file comes near, so what is larger is not one of them


class _Refused(Exception):
    """A source failed; the message says why."""


def fetch(names: Sequence[str], data_dir: Path, say: Callable[[str], None]) -> bool:
    """Fetch the files of datasets into the folder where their readers look; what is there and right is left alone.

    Every file is written beside its place, checked against its known checksum and only then moved there, so that none is ever
    half there. A file of the same name with another content is kept, as `NAME.old`. From an archive only the expected files
    are taken, under their own names.

    Args:
        names: datasets of `ORIGINS`.
        data_dir: made if it is not there.
        say: takes each line about what is done; also why a source failed.

    Returns:
        Whether all files are there now. If not, the reasons have been said.

    Raises:
        UsageError: a dataset is unknown, or the folder can't be written.
    """
    for name in names:
        if name not in ORIGINS:
            raise UsageError(f"data fetch {name}: no address is known for it. There are: {', '.join(sorted(ORIGINS))}")
    if not names:
        raise UsageError(f"data fetch: name one or more datasets: {', '.join(sorted(ORIGINS))}")
    complete = True
    for name in names:
        wanted = [parcel for parcel in ORIGINS[name].parcels if not is_right(parcel, data_dir)]
        if not wanted:
            say(f"{name}: its files are in {data_dir} already, and right")
            continue
        say(f"{name}: {ORIGINS[name].terms}")
        if all(_fetch_parcel(parcel, data_dir, say) for parcel in wanted):
            say(f"{name}: its files are in {data_dir} now, and right; `dpsweep data verify {name}` tells more")
        else:
            complete = False
    return complete


def is_right(parcel: Parcel, data_dir: Path) -> bool:
    """Whether what the reader would read of a parcel is there and has the right checksums."""
    with _writable(data_dir):
        for file, digest in parcel.files.items():
            preferred, of_preferred = parcel.preferred.get(file, (file, digest))
            path, digest = (
                (data_dir / file, digest) if not (data_dir / preferred).exists() else (data_dir / preferred, of_preferred)
            )
            if not path.is_file() or not _matches(path, digest):
                return False
        return True


def _fetch_parcel(parcel: Parcel, data_dir: Path, say: Callable[[str], None]) -> bool:
    files = ", ".join(parcel.files) if len(parcel.files) < 3 else f"{len(parcel.files)} files"
    failures = []
    for source in parcel.sources:
        say(f"  {files} from {source.url}")
        try:
            with _writable(data_dir):
                data_dir.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(prefix=".fetch-", dir=data_dir) as folder:
                    _take(source, parcel, Path(folder), data_dir, say)
            return True
        except _Refused as reason:
            failures.append(f"    {source.url}: {reason}")
    only = "The only known source" if len(failures) == 1 else f"All {len(failures)} known sources"
    say(f"  {files}: {only} failed:")
    for failure in failures:
        say(failure)
    say(f"    On a machine that reaches one of them, run the same command and copy {data_dir} here, or try again later.")
    return False


def _take(source: Source, parcel: Parcel, folder: Path, data_dir: Path, say: Callable[[str], None]) -> None:
    """Download, unpack, check, and move into place."""
    download = folder / "download"
    _download(source.url, download)
    found = {PurePosixPath(file).name: folder / f"file-{at}" for at, file in enumerate(parcel.files)}
    if source.packing == "plain":
        (path,) = found.values()
        os.replace(download, path)
    else:
        _unpack(download, source.packing, found)
    for file, digest in parcel.files.items():
        name = PurePosixPath(file).name
        algorithm, _, expected = digest.partition(":")
        if not found[name].exists():
            raise _Refused(f"the archive holds no {name}")
        if not _matches(found[name], digest):
            raise _Refused(f"{name} is cut short, changed, or a page in its place: its {algorithm} isn't {expected}")
    for file in parcel.files:
        place = data_dir / file
        place.parent.mkdir(parents=True, exist_ok=True)
        for taken in {place, data_dir / parcel.preferred.get(file, (file,))[0]}:
            if taken.exists():
                os.replace(taken, taken.with_name(taken.name + ".old"))
                say(f"  {taken} had another content; it is kept as {taken.name}.old")
        os.replace(found[PurePosixPath(file).name], place)


def _download(url: str, path: Path) -> None:
    """Write what an address answers to a file; raises `_Refused` with the reason if it can't be had."""
    import pooch
    import requests

    headers = {"User-Agent": "dpsweep", "Accept-Encoding": "identity"}  # a .gz must not be unpacked on the way
    with closing(_Meter(path)) as meter:
        try:
            pooch.HTTPDownloader(progressbar=meter, chunk_size=_CHUNK, timeout=TIMEOUT, headers=headers)(url, str(path), None)
        except requests.RequestException as error:
            raise _Refused(_reason(error)) from None


def _reason(error: Exception) -> str:
    """Why a download failed, in words."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        status = error.response.status_code
        return f"the server answered {status} {error.response.reason}{_MEANING.get(status, '')}"
    if isinstance(error, requests.Timeout) or "Read timed out" in str(error):
        return f"no answer within {TIMEOUT:g} s"
    if isinstance(error, requests.TooManyRedirects):
        return "it redirects in a circle"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not accepted (is there a proxy in between, or are this machine's certificates old?)"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection broke before the end"
    if isinstance(error, requests.ConnectionError):
        return "no connection (is this machine on the internet, or does it need a proxy?)"
    return f"{type(error).__name__}: {error}"


_MEANING = {
    401: ": it wants a login",
    403: ": it lets nobody in from here, or no longer",
    404: ": the file is no longer there",
    429: ": too many requests; wait a while",
}


def _unpack(archive: Path, packing: str, wanted: dict[str, Path]) -> None:
    """Write the regular members of the wanted names to their places; an archive decides neither names nor places."""
    try:
        with _members(archive, packing) as members:
            for name, size, read in members:
                place = wanted.get(PurePosixPath(name).name)
                if place is None or place.exists():
                    continue
                if size > LARGEST:
                    raise _Refused(f"the archive's {PurePosixPath(name).name} is far too large")
                with read() as content, place.open("wb") as file:
                    shutil.copyfileobj(content, file)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise _Refused(f"what came is no whole {packing} archive ({type(error).__name__})") from None
    except OSError as error:
        if error.errno is not None:  # the disk's, not the archive's (gzip raises OSError for a bad checksum)
            raise
        raise _Refused(f"what came is no whole {packing} archive ({type(error).__name__})") from None


@contextmanager
def _members(archive: Path, packing: str) -> Iterator[Iterable[tuple[str, int, Callable[[], IO[bytes]]]]]:
    """The regular files of an archive: name, size, and what opens it."""
    if packing == "zip":
        with zipfile.ZipFile(archive) as zipped:
            yield ((m.filename, m.file_size, partial(zipped.open, m)) for m in zipped.infolist() if not m.is_dir())
    else:
        with gzip.open(archive) as packed, tarfile.open(fileobj=cast(Any, _Bounded(packed)), mode="r|") as tarred:
            yield ((m.name, m.size, partial(_extracted, tarred, m)) for m in tarred if m.isreg())


class _Bounded:
    """A packed archive that is given up when it unpacks to far more than any wanted one does."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file, self._left = file, 2 * LARGEST

    def read(self, size: int) -> bytes:
        """The next bytes. Raises `_Refused` where it has been too many."""
        content = self._file.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise _Refused(f"its archive unpacks to more than {2 * LARGEST / 1e6:g} MB")
        return content


def _extracted(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(member)
    assert content is not None  # it is a regular file
    return content


def _matches(path: Path, digest: str) -> bool:
    import pooch

    algorithm, _, expected = digest.partition(":")
    return bool(pooch.file_hash(str(path), alg=algorithm) == expected)


@contextmanager
def _writable(data_dir: Path) -> Iterator[None]:
    """Turn what a folder or disk refuses into a message."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "Make room" if full else "Check its permissions"
        raise UsageError(
            f"{error.filename or data_dir}: {error.strerror or error}. {remedy}, or name another folder with data.dir=PATH or "
            "DPSWEEP_DATA."
        ) from None


class _Meter:
    """What pooch reports progress to: shows it on a terminal, and gives a download up that crawls or never ends."""

    def __init__(self, path: Path) -> None:
        self.total = 0  # set by pooch; 0 where the server doesn't say
        self._path, self._started = path, time.monotonic()
        self._shown = sys.stderr.isatty()

    def update(self, size: int) -> None:
        """Look at what has come (pooch's `size` is that of its buffer, however little was in it).

        Raises:
            _Refused: it comes too slowly, or is too much.
        """
        received, seconds = self._path.stat().st_size, time.monotonic() - self._started
        if seconds > PATIENCE and received < SLOWEST * seconds:
            raise _Refused(f"it sends fewer than {SLOWEST:,.0f} bytes a second")
        if received > LARGEST:
            raise _Refused(f"it sends more than {LARGEST / 1e6:g} MB")
        if self._shown and self.total:
            print(f"\r    {received / self.total:4.0%} of {self.total / 1e6:.1f} MB", end="", file=sys.stderr)

    def reset(self) -> None:
        """Nothing: the file itself is the measure."""

    def close(self) -> None:
        """Leave the line that shows progress."""
        if self._shown and self.total:
            print(file=sys.stderr)
        self._shown = False
