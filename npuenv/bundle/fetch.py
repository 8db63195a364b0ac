"""Files of exact versions from package indexes: `list_files` finds them with uv, `fetch_all` downloads them.

Downloads are resumable, and verified before use. Partial ones are in `NAME.part`; a file gets its name only if its
sha256 is one of the allowed ones. So an interrupted run continues with the same call, and every file with its final
name is complete.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from npuenv.bundle.layout import failed_by_disk
from npuenv.core.errors import NothingFits, StepFailed
from npuenv.core.messages import Message
from npuenv.facts.pip import for_uv, local_folder, without_secrets
from npuenv.host.writing import sha256_of
from npuenv.index.pages import Bounds, Fetch, innermost_error
from npuenv.lock.uv import deciding_line, list_exact, platform_tags, require_reached, wheel_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from npuenv.facts.pip import PipSettings
    from npuenv.lock.uv import Resolver
    from npuenv.resolve.types import Platform


@dataclass(frozen=True, slots=True)
class ReleaseFile:
    """One file of a release, and its location."""

    file: str  # file name
    url: str  # a URL, or an absolute path
    sha256: str  # "": not stated
    size: int  # bytes; 0: not stated

    @property
    def is_wheel(self) -> bool:
        return self.file.endswith(".whl")


@dataclass(frozen=True, slots=True)
class Listed:
    """One release with all its files."""

    name: str  # normalised
    version: str
    offers: tuple[ReleaseFile, ...]


def list_files(
    requirements: Sequence[str],
    platform: Platform,
    resolver: Resolver,
    *,
    options: Sequence[str] = ("--no-deps",),
    label: str | None = None,
    is_in_links: bool = False,
) -> tuple[Listed, ...]:
    """The releases that uv chooses for the requirements, with the files on the indexes.

    `label`: use only the index of that label; `is_in_links`: use no index, only the folders of find-links. Raises:
    CannotTell if an index is unreachable, NothingFits if it does not have them.
    """
    if not requirements:
        return ()
    with tempfile.TemporaryDirectory(prefix="npuenv-list-") as name:
        folder = Path(name)
        if is_in_links and "--no-index" not in for_uv(resolver.settings).options:
            options = (*options, "--no-index")
        index = "" if is_in_links else label or ""
        ran, rows = list_exact(requirements, platform, resolver, folder, label=index, options=options)
        if ran.code != 0:
            require_reached(ran)
            said = {"why": deciding_line(ran.err)}
            raise NothingFits(Message("bundle.not-offered", said), Message("bundle.not-offered-hint"))
        return tuple(
            Listed(canonicalize_name(row["name"]), row.get("version", ""), tuple(_offers(row, folder))) for row in rows
        )


def best_file(offers: Iterable[ReleaseFile], platform: Platform, sha256: Sequence[str] = ()) -> ReleaseFile | None:
    """The file that an installer on the platform would choose, among those with one of the hashes; None for none.

    A wheel before the source, the best tag first. A file without a stated hash counts: it is verified after the
    download.
    """
    tags = platform_tags(platform)
    allowed = [offer for offer in offers if not sha256 or not offer.sha256 or offer.sha256 in sha256]
    ranked = [(rank, offer.file, offer) for offer in allowed if (rank := wheel_rank(offer.file, tags)) is not None]
    if ranked:
        return min(ranked, key=lambda row: row[:2])[2]
    return next((offer for offer in allowed if not offer.is_wheel), None)


def _offers(row: Any, folder: Path) -> Iterator[ReleaseFile]:
    """A row of PEP 751: `wheels`, then `sdist` or `archive`, each with `url` or `path`, `hashes` and `size`."""
    for file in (*row.get("wheels", ()), *(row[kind] for kind in ("sdist", "archive") if kind in row)):
        location = file.get("url") or ""
        local = local_folder(location) if location else str(folder / file["path"])
        name = file.get("name") or unquote(urlsplit(location).path if location else local or "").rpartition("/")[2]
        size = int(file.get("size", 0))
        if local is not None:
            location = str(Path(local).resolve())
            size = size or (Path(location).stat().st_size if Path(location).is_file() else 0)
        yield ReleaseFile(name, location, file.get("hashes", {}).get("sha256", ""), size)


THREADS = 4
_CHUNK = 256 * 1024
_PLAIN = {"Accept-Encoding": "identity"}  # sizes and ranges count the bytes of the file itself
_ROUND_S = 0.5  # maximum delay until an interrupt is noticed
_ATTEMPTS = 5  # consecutive failures without a byte; a byte resets the count
_FOR_GOOD = frozenset({400, 401, 403, 404, 405, 410, 451})  # responses that a retry does not change


@dataclass(frozen=True, slots=True)
class Download:
    """One file to download. `sha256` are the allowed hashes; empty: any, because none was stated."""

    path: str  # below the folder
    url: str  # an address, or an absolute path
    sha256: tuple[str, ...]
    size: int  # bytes; 0: unknown


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """The progress of a run. `file` is set when one was finished."""

    done: int  # bytes, those of earlier runs included
    total: int
    file: str = ""


def with_sizes(downloads: Sequence[Download], settings: PipSettings) -> tuple[Download, ...]:
    """The same files with their sizes; if the index did not state one, the server is queried."""
    with ThreadPoolExecutor(THREADS) as pool:
        sizes = pool.map(lambda item: item.size or _remote_size(item.url, settings), downloads)
        return tuple(replace(item, size=size) for item, size in zip(downloads, sizes, strict=True))


def still_to_fetch(downloads: Sequence[Download], folder: Path) -> int:
    """The bytes left to fetch, without files from an earlier run. Compares nothing."""
    return sum(max(0, item.size - _size_of(folder, item.path)) for item in downloads)


def fetch_all(
    downloads: Sequence[Download],
    folder: Path,
    settings: PipSettings,
    *,
    tell: Callable[[DownloadProgress], None],
    pause_s: float = 0.5,
) -> None:
    """Downloads every file into the folder. `tell` is called from several threads, one at a time.

    `pause_s`: before the second attempt at a file; doubled each time. Raises: StepFailed for a file that cannot be
    fetched or has another hash, or for a full disk. Partial downloads stay for the next run.
    """
    run = _FetchRun(folder, settings, tell, sum(item.size for item in downloads), pause_s)
    # The largest first: one of them alone at the end would leave three threads idle.
    ordered = sorted(downloads, key=lambda item: (-item.size, item.path))
    ended: SimpleQueue[Future[None]] = SimpleQueue()
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for item in ordered:
                pool.submit(run.one, item).add_done_callback(ended.put)
            failed = _first_error(ended, len(ordered))
        finally:
            # Also after Ctrl-C: running downloads end with their next chunk, waiting ones do not start.
            run.stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
    if failed is not None:
        raise failed


def _first_error(ended: SimpleQueue[Future[None]], num: int) -> BaseException | None:
    """Waits for `num` downloads; raises the first error as soon as it occurs.

    In rounds, because an interrupt just before a wait is noticed only when the wait ends. Through a queue, because
    `concurrent.futures.wait` briefly holds all locks, and an interrupt then would leave them locked.
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


class _Cut(Exception):
    """A transfer ended early. The received part is kept."""


@dataclass(slots=True)
class _FetchRun:
    """The state that the threads of one `fetch_all` share."""

    folder: Path
    settings: PipSettings
    tell: Callable[[DownloadProgress], None]
    total: int
    pause_s: float
    done: int = 0
    lock: Any = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)

    def one(self, item: Download) -> None:
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

    def _is_there(self, path: Path, item: Download) -> bool:
        if not path.is_file() or not item.sha256:
            return False
        if sha256_of(path) in item.sha256:
            self.count(item.size, item.path)
            return True
        path.unlink()
        return False

    def _bring(self, path: Path, item: Download) -> None:
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
            if is_last:  # otherwise the beginning came from an earlier run: download the complete file again
                args = {"file": path.name, "expected": item.sha256, "found": found}
                raise StepFailed(Message("bundle.other-content", args), Message("bundle.other-content-hint"))

    def _copy(self, source: Path, part: Path) -> None:
        with source.open("rb") as content, part.open("wb") as target:
            while (piece := content.read(_CHUNK)) and not self.stopped.is_set():
                target.write(piece)
                self.count(len(piece))

    def _download(self, item: Download, part: Path) -> None:
        """Downloads the rest of a file, over as many connections as needed."""
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
    """A connection that appends to files. Use as a context manager."""

    def __init__(self, settings: PipSettings) -> None:
        super().__init__(settings, Bounds())

    def __enter__(self) -> _Loading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def size(self, url: str) -> int:
        """The size of the file at a URL; 0 if unknown."""
        import requests

        try:
            with self._session.head(url, headers=_PLAIN, allow_redirects=True, **self._options) as response:
                length = str(response.headers.get("Content-Length", ""))
                return int(length) if response.ok and length.isdigit() else 0
        # the same error occurs, with its message, when the file is fetched
        except requests.exceptions.RequestException:
            return 0

    def append(self, url: str, part: Path, run: _FetchRun) -> None:
        """Appends the rest of a file to `part`. Raises: _Cut, and StepFailed if there is no such file."""
        import requests
        import urllib3

        have = _size_of(part.parent, part.name)
        headers = {**_PLAIN, **({"Range": f"bytes={have}-"} if have else {})}
        try:
            with self._session.get(url, headers=headers, stream=True, **self._options) as response:
                start, total = _span(response, have, url)
                if start != have:  # the server ignores ranges
                    run.count(-have)
                with part.open("ab" if start else "wb") as target:
                    is_complete = response.status_code == 416
                    while not (is_complete or run.stopped.is_set()):
                        piece = response.raw.read1(_CHUNK, decode_content=False)
                        if not piece:
                            break
                        target.write(piece)
                        run.count(len(piece))
        except (
            requests.exceptions.RequestException,
            urllib3.exceptions.HTTPError,
            ConnectionError,
            TimeoutError,
        ) as error:
            raise _Cut(innermost_error(error)) from error
        has = _size_of(part.parent, part.name)
        if run.stopped.is_set() or (total and has < total):
            raise _Cut(f"{has} / {total}")


def _span(response: Any, have: int, url: str) -> tuple[int, int]:
    """The start of a response's content, and the size of the complete file (0: unknown)."""
    if response.status_code == 416:  # the local part has all bytes, or too many
        total = str(response.headers.get("Content-Range", "")).rpartition("/")[2]
        response.close()
        return have, int(total) if total.isdigit() else 0
    if response.status_code in _FOR_GOOD:
        args = {"file": without_secrets(url), "why": f"HTTP {response.status_code}"}
        raise StepFailed(Message("bundle.not-coming", args), Message("bundle.again"))
    response.raise_for_status()
    content_range = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", str(response.headers.get("Content-Range", "")))
    if response.status_code == 206 and content_range and int(content_range[1]) == have:
        return have, int(content_range[2]) if content_range[2].isdigit() else 0
    length = str(response.headers.get("Content-Length", ""))
    return 0, int(length) if length.isdigit() else 0


def _not_coming(item: Download, why: str) -> StepFailed:
    args = {"file": Path(item.path).name, "why": without_secrets(why)[:300]}
    return StepFailed(Message("bundle.not-coming", args), Message("bundle.again"))


def _remote_size(url: str, settings: PipSettings) -> int:
    """The size of a file from its server; 0 if not stated. Errors are reported when the file is fetched."""
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
