"""Files from indexes into a folder: resumed after a cut, compared before they count.

What has come so far lies in `NAME.part`; it gets its name only when its sha256 is one of the wanted ones. So an
interrupted run goes on with the same call, and whatever has its name is whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from npuenv.core.errors import StepFailed
from npuenv.core.messages import Message
from npuenv.facts.pip import local_folder, without_secrets
from npuenv.host.hashing import sha256_of
from npuenv.index.fetch import Bounds, Fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from npuenv.facts.pip import PipSettings

THREADS = 4
_CHUNK = 256 * 1024
_SAMPLE = 2 * 1024**2  # bytes that tell the speed of a connection before the user is asked
_PLAIN = {"Accept-Encoding": "identity"}  # sizes and ranges count the bytes of the file itself
_ROUND_S = 0.5  # until an interrupt is noticed at the latest
_ATTEMPTS = 5  # in a row that brought nothing; one that brought a byte starts the count anew
_FOR_GOOD = frozenset({400, 401, 403, 404, 405, 410, 451})  # answers that asking again does not change


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file to be had. `sha256` are the allowed ones; empty: any, because nobody stated it."""

    path: str  # below the folder
    url: str  # an address, or an absolute path
    sha256: tuple[str, ...]
    size: int  # bytes; 0: not known yet


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """How far a run has come. `file` is set when one was finished."""

    done: int  # bytes, those of earlier runs included
    total: int
    file: str = ""


def with_sizes(wanted: Sequence[Wanted], settings: PipSettings) -> tuple[Wanted, ...]:
    """The same files with their sizes: where the index did not state one, the server is asked."""
    with ThreadPoolExecutor(THREADS) as pool:
        sizes = pool.map(lambda item: item.size or _asked_size(item.url, settings), wanted)
        return tuple(replace(item, size=size) for item, size in zip(wanted, sizes, strict=True))


def bytes_per_second(wanted: Sequence[Wanted], settings: PipSettings) -> float:
    """The speed of the connection, from the beginning of the largest remote file; 0.0 where nothing is remote."""
    remote = [item for item in wanted if local_folder(item.url) is None]
    if not remote:
        return 0.0
    largest = max(remote, key=lambda item: item.size)
    last = max(1, min(_SAMPLE, largest.size)) - 1
    with _Loading(settings) as loading:
        begun = time.monotonic()
        taken = loading.sample(largest.url, last)
    return taken / max(time.monotonic() - begun, 1e-3)


def still_to_fetch(wanted: Sequence[Wanted], folder: Path) -> int:
    """Bytes that a run would fetch, those left out that lie in the folder from an earlier one. Nothing is compared."""
    return sum(max(0, item.size - _size_of(folder, item.path)) for item in wanted)


def fetch_all(
    wanted: Sequence[Wanted],
    folder: Path,
    settings: PipSettings,
    *,
    tell: Callable[[DownloadProgress], None],
    pause_s: float = 0.5,
) -> None:
    """Brings every file into the folder. `tell` is called from several threads, one at a time.

    `pause_s`: before the second attempt at a file; doubled each time. Raises StepFailed: a file that does not come, or
    comes with another content, or a full disk. What has come stays for the next run.
    """
    run = _Run(folder, settings, tell, sum(item.size for item in wanted), pause_s)
    # The large ones first: one of them alone at the end would leave three threads idle.
    ordered = sorted(wanted, key=lambda item: (-item.size, item.path))
    ended: SimpleQueue[Future[None]] = SimpleQueue()
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for item in ordered:
                pool.submit(run.one, item).add_done_callback(ended.put)
            failed = _first_error(ended, len(ordered))
        finally:
            # After Ctrl-C too: what runs ends with its next piece, and what waits does not begin.
            run.stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
    if failed is not None:
        raise failed


def _first_error(ended: SimpleQueue[Future[None]], num: int) -> BaseException | None:
    """Waits for `num` of them; what the first that failed raised, as soon as it has.

    In rounds: an interrupt that comes just before a wait is noticed only when that ends. And through a queue:
    `concurrent.futures.wait` holds the locks of all of them for a moment, and an interrupt there would keep them.
    """
    while num:
        try:
            error = ended.get(timeout=_ROUND_S).exception()
        except Empty:
            continue
        if error is not None:
            return error
        num -= 1
    return None


def failed_by_disk(error: OSError, path: Path) -> StepFailed:
    """The error for a file that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StepFailed(Message("bundle.disk-full", {"path": str(path)}), Message("bundle.disk-full-hint"))
    said = {"path": str(path), "why": error.strerror or str(error)}
    return StepFailed(Message("bundle.cannot-write", said), Message("bundle.cannot-write-hint"))


class _Cut(Exception):
    """A transfer ended early. What came before is kept."""


@dataclass(slots=True)
class _Run:
    """One call of `fetch_all`: what its threads share."""

    folder: Path
    settings: PipSettings
    tell: Callable[[DownloadProgress], None]
    total: int
    pause_s: float
    done: int = 0
    lock: Any = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)

    def one(self, item: Wanted) -> None:
        path = self.folder / item.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not self._is_there(path, item):
                self._bring(path, item)
        except OSError as error:
            raise failed_by_disk(error, path) from error

    def count(self, num: int, file: str = "") -> None:
        with self.lock:
            self.done += num
            self.tell(DownloadProgress(self.done, self.total, file))

    def _is_there(self, path: Path, item: Wanted) -> bool:
        if not path.is_file() or not item.sha256:
            return False
        if sha256_of(path) in item.sha256:
            self.count(item.size, item.path)
            return True
        path.unlink()
        return False

    def _bring(self, path: Path, item: Wanted) -> None:
        part = path.with_name(f"{path.name}.part")
        is_resumed = part.is_file() and part.stat().st_size > 0
        local = local_folder(item.url)
        for is_last in (not is_resumed, True):
            if local is not None:
                self._copy(Path(local), part)
            else:
                self._download(item, part)
            found = sha256_of(part)
            if not item.sha256 or found in item.sha256:
                part.replace(path)
                self.count(0, item.path)
                return
            self.count(-part.stat().st_size)
            part.unlink()
            if is_last:  # else the beginning came from another time: once more from the first byte on
                said = {"file": path.name, "expected": item.sha256, "found": found}
                raise StepFailed(Message("bundle.other-content", said), Message("bundle.other-content-hint"))

    def _copy(self, source: Path, part: Path) -> None:
        with source.open("rb") as content, part.open("wb") as target:
            while (piece := content.read(_CHUNK)) and not self.stopped.is_set():
                target.write(piece)
                self.count(len(piece))

    def _download(self, item: Wanted, part: Path) -> None:
        """The rest of a file, over as many connections as it takes."""
        self.count(_size_of(part.parent, part.name))
        with _Loading(self.settings) as loading:
            vain, pause_s = 0, self.pause_s
            while True:
                before = _size_of(part.parent, part.name)
                try:
                    loading.append(item.url, part, self)
                    return
                except _Cut as cut:
                    has_come = _size_of(part.parent, part.name) > before
                    vain, pause_s = (0, self.pause_s) if has_come else (vain + 1, pause_s * 2)
                    if vain >= _ATTEMPTS:
                        raise _not_coming(item, str(cut)) from cut
                if self.stopped.wait(pause_s):
                    raise _not_coming(item, "stopped")


class _Loading(Fetch):
    """A connection that appends to files. Used with `with`."""

    def __init__(self, settings: PipSettings) -> None:
        super().__init__(settings, Bounds())

    def __enter__(self) -> _Loading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def size(self, url: str) -> int:
        """The size of the file behind an address; 0 where nothing tells it."""
        import requests

        try:
            with self._session.head(url, headers=_PLAIN, allow_redirects=True, **self._options) as response:
                length = str(response.headers.get("Content-Length", ""))
                return int(length) if response.ok and length.isdigit() else 0
        except requests.exceptions.RequestException:  # it comes up again, with its words, when the file is fetched
            return 0

    def sample(self, url: str, last: int) -> int:
        """How many bytes came of the first `last` + 1 ones; 0 for none."""
        import requests
        import urllib3

        taken = 0
        try:
            headers = {**_PLAIN, "Range": f"bytes=0-{last}"}
            with self._session.get(url, headers=headers, stream=True, **self._options) as response:
                while response.ok and taken <= last and (piece := response.raw.read1(_CHUNK, decode_content=False)):
                    taken += len(piece)
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError):  # as in `size`
            return 0
        return taken

    def append(self, url: str, part: Path, run: _Run) -> None:
        """The rest of an address behind what `part` holds. Raises _Cut, and StepFailed where there is no such file."""
        import requests
        import urllib3

        have = _size_of(part.parent, part.name)
        headers = {**_PLAIN, **({"Range": f"bytes={have}-"} if have else {})}
        try:
            with self._session.get(url, headers=headers, stream=True, **self._options) as response:
                start, whole = _span(response, have, url)
                if start != have:  # the server gives whole files only
                    run.count(-have)
                with part.open("ab" if start else "wb") as target:
                    for piece in _pieces(response, run):
                        target.write(piece)
                        run.count(len(piece))
        except (
            requests.exceptions.RequestException,
            urllib3.exceptions.HTTPError,
            ConnectionError,
            TimeoutError,
        ) as error:
            raise _Cut(_short(error)) from error
        has = _size_of(part.parent, part.name)
        if run.stopped.is_set() or (whole and has < whole):
            raise _Cut(f"{has} / {whole}")


def _span(response: Any, have: int, url: str) -> tuple[int, int]:
    """Where the content of an answer begins, and the size of the whole file (0: not told)."""
    if response.status_code == 416:  # what is here is all there is, or more
        whole = str(response.headers.get("Content-Range", "")).rpartition("/")[2]
        response.close()
        return have, int(whole) if whole.isdigit() else 0
    if response.status_code in _FOR_GOOD:
        said = {"file": without_secrets(url), "why": f"HTTP {response.status_code}"}
        raise StepFailed(Message("bundle.not-coming", said), Message("bundle.again"))
    response.raise_for_status()
    told = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", str(response.headers.get("Content-Range", "")))
    if response.status_code == 206 and told and int(told[1]) == have:
        return have, int(told[2]) if told[2].isdigit() else 0
    length = str(response.headers.get("Content-Length", ""))
    return 0, int(length) if length.isdigit() else 0


def _pieces(response: Any, run: _Run) -> Iterator[bytes]:
    if response.status_code == 416:
        return
    while not run.stopped.is_set() and (piece := response.raw.read1(_CHUNK, decode_content=False)):
        yield piece


def _not_coming(item: Wanted, why: str) -> StepFailed:
    said = {"file": Path(item.path).name, "why": without_secrets(why)[:300]}
    return StepFailed(Message("bundle.not-coming", said), Message("bundle.again"))


def _short(error: Exception) -> str:
    """The innermost words of a chain of errors, like "[Errno 111] Connection refused"."""
    found = re.findall(r"\[Errno -?\d+\] [^'\")\]]+|[Tt]imed out", str(error))
    return found[-1] if found else f"{type(error).__name__}: {error}"


def _asked_size(url: str, settings: PipSettings) -> int:
    """The size of a file by its server; 0 where it does not tell. Errors come up when the file is fetched."""
    local = local_folder(url)
    if local is not None:
        return Path(local).stat().st_size
    with _Loading(settings) as loading:
        return loading.size(url)


def _size_of(folder: Path, name: str) -> int:
    for path in (folder / name, folder / f"{name}.part"):
        with contextlib.suppress(OSError):
            return os.stat(path).st_size
    return 0
