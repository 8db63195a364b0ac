"""Reads the package indexes of pip's settings, and URLs the way pip does, with size and time limits.

Uses pip's certificates, trusted hosts, proxies and credentials. URLs may be `file://` URLs or paths. Nothing is
retried: a refresh can be run again. Pages are parsed by `pypi-simple`, which is an optional requirement. If pip has no
index configured, the library's default, which is pip's, is used.
"""

from __future__ import annotations

import hashlib
import io
import re
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from packaging.version import Version

from npuenv.core.documents import parse_json
from npuenv.core.errors import BadInput, CannotTell
from npuenv.core.messages import Message
from npuenv.facts.pip import local_folder, without_secrets
from npuenv.index.metadata import Unreadable, sdist_texts, wheel_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from npuenv.facts.pip import PipSettings


_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"
_CHUNK = 256 * 1024


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A wheel or sdist on an index."""

    file: str
    url: str
    version: str  # normalised
    kind: Literal["wheel", "sdist"]
    uploaded: str  # YYYY-MM-DD; "": not stated
    sha256: str  # "": not stated
    has_metadata: bool  # its METADATA can be fetched alone


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of one request."""

    size: int  # bytes
    time_s: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a run."""

    page: RequestLimits = RequestLimits(64 * 1024**2, 60.0)  # the largest page requested has 0.5 MB
    archive: RequestLimits = RequestLimits(512 * 1024**2, 600.0)  # vllm 0.30.0's sdist has 42 MB
    wait_s: float = 15.0  # without any response; pip's own `timeout` replaces it


class Indexes(AbstractContextManager["Indexes"]):
    """All indexes of some pip settings as one, as in pip: equal rank, the first file of a name counts.

    Use as a context manager, which closes the connections.
    """

    def __init__(self, settings: PipSettings, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._fetch = Fetch(settings, self._bounds)
        self._locations = _locations(settings)
        self._known: dict[str, tuple[IndexFile, ...]] = {}

    def __exit__(self, *_: object) -> None:
        self._fetch.close()

    def files(self, name: str) -> tuple[IndexFile, ...]:
        """Every wheel and sdist of a package by version, without yanked ones.

        Raises: CannotTell for an index without a response, or if no index has the package.
        """
        if name not in self._known:
            pages = [page for location in self._locations if (page := self._page(location, name)) is not None]
            if not pages:
                locations = tuple(without_secrets(location) for location in self._locations)
                raise CannotTell(
                    Message("refresh.not-on-index", {"package": name, "index": locations}),
                    Message("refresh.hint-index"),
                )
            merged = {item.file: item for page in reversed(pages) for item in page}
            self._known[name] = tuple(sorted(merged.values(), key=lambda item: (Version(item.version), item.file)))
        return self._known[name]

    def metadata(self, item: IndexFile) -> str:
        """The METADATA of a wheel: its own file if the index has it, else a part of the wheel itself.

        Raises: CannotTell, or Unreadable for an invalid wheel.
        """
        page, archive = self._bounds.page, self._bounds.archive
        if item.has_metadata:
            found = self._fetch.read(f"{item.url}.metadata", page)
            if found is not None:
                return found[0].decode("utf-8", errors="replace")
        with self._fetch.seekable(item.url, archive, page, item.sha256) as stream:
            return wheel_metadata(stream)

    def texts(self, item: IndexFile, wanted: Iterable[str]) -> dict[str, str]:
        """The files of an sdist that match one of the patterns. Raises: CannotTell, Unreadable."""
        if not item.file.endswith(".tar.gz"):
            raise Unreadable(item.file)
        with self._fetch.whole(item.url, self._bounds.archive, item.sha256) as stream:
            return sdist_texts(stream, wanted)

    def _page(self, location: str, name: str) -> tuple[IndexFile, ...] | None:
        """The files on one index; None if it does not have the package."""
        url = f"{_without_credentials(location).rstrip('/')}/{name}/"
        is_local = local_folder(url) is not None
        try:
            found = self._fetch.read(f"{url}index.html" if is_local else url, self._bounds.page, {"Accept": _ACCEPT})
        except Unreadable as error:
            raise no_answer(url, str(error)) from error
        return tuple(_parsed(name, *found)) if found else None


def _locations(settings: PipSettings) -> tuple[str, ...]:
    """The indexes in the order of pip: the main one, then the extra ones."""
    if settings.is_no_index:
        raise CannotTell(Message("refresh.no-index-configured"), Message("refresh.hint-index"))
    main = settings.index_url.value if settings.index_url else str(library().PYPI_SIMPLE_ENDPOINT)
    return tuple(dict.fromkeys([main, *(item.value for item in settings.extra_index_urls)]))


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _parsed(name: str, content: bytes, answer: ResponseInfo) -> Iterator[IndexFile]:
    """The files on a page. Raises: CannotTell for an invalid page."""
    try:
        found = _from_json(content, answer) if "json" in answer.content_type else _from_html(name, content, answer)
    except (ValueError, KeyError, TypeError, AttributeError, library().UnsupportedRepoVersionError) as error:
        raise no_answer(answer.url, f"{type(error).__name__}: {error}") from error
    for package, uploaded in found:
        version = _version(package.version)
        if version and package.package_type in ("wheel", "sdist") and not package.is_yanked:
            yield IndexFile(
                file=package.filename,
                url=package.url,
                version=version,
                kind=package.package_type,
                uploaded=uploaded,
                sha256=package.digests.get("sha256", ""),
                has_metadata=bool(package.has_metadata),
            )


def _from_json(content: bytes, answer: ResponseInfo) -> list[tuple[Any, str]]:
    packages = library().ProjectPage.from_json_data(parse_json(content), answer.url).packages
    return [(item, item.upload_time.date().isoformat() if item.upload_time else "") for item in packages]


def _from_html(name: str, content: bytes, answer: ResponseInfo) -> list[tuple[Any, str]]:
    """The upload time from an HTML attribute. HTML has no standard for it, but some mirrors write one."""
    parser = library()
    base = answer.url if "://" in answer.url else f"file://{answer.url}"
    links = parser.RepositoryPage.from_html(content.decode("utf-8", "replace"), base).links
    return [
        (parser.DistributionPackage.from_link(link, name), str(link.attrs.get("data-upload-time", ""))[:10])
        for link in links
    ]


def _version(text: str | None) -> str:
    """A normalised version; "" for an invalid one, which old files on an index may have."""
    try:
        return str(Version(text or ""))
    except ValueError:  # InvalidVersion, or a number of thousands of digits
        return ""


def library() -> Any:
    """The module `pypi_simple`. Raises: BadInput if it is not installed."""
    try:
        import pypi_simple
    except ImportError as error:
        raise BadInput(
            Message("refresh.no-library", {"library": "pypi-simple"}),
            Message("refresh.hint-library", {"command": "python -m pip install 'pypi-simple>=1.6'"}),
        ) from error
    return pypi_simple


@dataclass(frozen=True, slots=True)
class ResponseInfo:
    """The metadata of a response."""

    url: str  # after redirections
    content_type: str = "text/html"
    whole_size: int = 0  # bytes of the complete file if the content is a part of it; 0: the content is complete


class Fetch:
    """A session with pip's settings. Every method raises: CannotTell, or Unreadable for more than the limit."""

    def __init__(self, settings: PipSettings, bounds: Bounds) -> None:
        import requests

        self._session: Any = requests.Session()
        self._options: dict[str, Any] = {
            "timeout": _wait_s(settings, bounds),
            "verify": settings.cert.value if settings.cert else None,
            "cert": settings.client_cert.value if settings.client_cert else None,
            "auth": _auth_for(settings),
        }
        trusted = _trusted(settings)
        if trusted:
            self._session.mount("https://", _adapter(trusted))
        if settings.proxy:  # as in pip, its own proxy overrides the environment's
            address = settings.proxy.value if "://" in settings.proxy.value else f"http://{settings.proxy.value}"
            self._session.trust_env = False
            self._session.proxies = {"http": address, "https": address}

    def close(self) -> None:
        self._session.close()

    def read(
        self, url: str, limit: RequestLimits, headers: dict[str, str] | None = None
    ) -> tuple[bytes, ResponseInfo] | None:
        """The content of a URL; None if it does not exist."""
        kept = io.BytesIO()
        answer = self._copy(url, kept, limit, headers)
        return (kept.getvalue(), answer) if answer else None

    def whole(self, url: str, limit: RequestLimits, sha256: str) -> IO[bytes]:
        """A file, as a temporary one. Raises also: Unreadable if its hash is not `sha256`."""
        return self._download(url, limit, sha256, None)[0]

    def seekable(self, url: str, limit: RequestLimits, part_limit: RequestLimits, sha256: str) -> IO[bytes]:
        """A file of which only the parts that are read are fetched, if the server supports ranges; else the complete
        file.
        """
        whole, answer = self._download(url, limit, sha256, {"Range": "bytes=0-0"})
        if not answer.whole_size:
            return whole
        whole.close()
        return io.BufferedReader(_Parts(self, url, answer.whole_size, part_limit), _CHUNK)

    def _download(
        self, url: str, limit: RequestLimits, sha256: str, headers: dict[str, str] | None
    ) -> tuple[IO[bytes], ResponseInfo]:
        kept = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        try:
            answer = self._copy(url, kept, limit, headers)
            if answer is None:
                raise no_answer(url, "404")
            kept.seek(0)
            if sha256 and not answer.whole_size and _sha256(kept) != sha256:
                raise Unreadable(f"sha256 of {without_secrets(url)}")
            kept.seek(0)
        except BaseException:
            kept.close()
            raise
        return kept, answer

    def _copy(
        self, url: str, target: IO[bytes], limit: RequestLimits, headers: dict[str, str] | None
    ) -> ResponseInfo | None:
        folder = local_folder(url)
        if folder is not None:
            try:
                return _copy_file(Path(folder), url, target, limit)
            except OSError as error:
                raise no_answer(url, innermost_error(error)) from error
        import requests
        import urllib3

        try:
            with self._session.get(url, headers=headers or {}, stream=True, **self._options) as response:
                if response.status_code in (404, 410):
                    return None
                response.raise_for_status()
                _pour(_pieces(response, url, limit.time_s), url, target, limit)
                kind = str(response.headers.get("Content-Type", "text/html"))
                return ResponseInfo(str(response.url), kind, _whole_size(response))
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise no_answer(url, innermost_error(error)) from error


def _wait_s(settings: PipSettings, bounds: Bounds) -> float:
    try:
        stated = float(settings.timeout_s.value) if settings.timeout_s else bounds.wait_s
        return max(1.0, min(stated, bounds.archive.time_s))
    except ValueError:
        return bounds.wait_s


def _auth_for(settings: PipSettings) -> Callable[[Any], Any] | None:
    """Adds the credentials of an index to requests for that host only; None if no index has any."""
    import requests

    known = {}
    for location in (settings.index_url, *settings.extra_index_urls):
        parts = urlsplit(location.value) if location else None
        if parts is not None and parts.username is not None:
            known[(parts.hostname, parts.port)] = unquote(parts.username), unquote(parts.password or "")

    def add(request: Any) -> Any:
        parts = urlsplit(request.url)
        pair = known.get((parts.hostname, parts.port))
        return requests.auth.HTTPBasicAuth(*pair)(request) if pair else request

    return add if known else None


def _trusted(settings: PipSettings) -> frozenset[tuple[str, int | None]]:
    """Host and port of each of pip's trusted hosts; the port is None if any counts. Invalid hosts are left out."""
    found = set()
    for item in settings.trusted_hosts:
        is_bare_ipv6 = item.value.count(":") >= 2 and not set("[@") & set(item.value)
        try:
            parts = urlsplit(f"//[{item.value}]" if is_bare_ipv6 else f"//{item.value}")
            pair = parts.hostname, parts.port
        except ValueError:
            continue
        if pair[0] is not None:
            found.add((pair[0], pair[1]))
    return frozenset(found)


def _adapter(trusted: frozenset[tuple[str, int | None]]) -> Any:
    """Skips certificate checks for those hosts and keeps them for all others, redirections included."""
    import requests
    import urllib3

    class Adapter(requests.adapters.HTTPAdapter):
        def send(self, request: Any, *args: Any, **options: Any) -> Any:
            parts = urlsplit(request.url)
            if {(parts.hostname, parts.port), (parts.hostname, None)} & trusted:
                options["verify"] = False
            return super().send(request, *args, **options)

    # The user configured this; a warning for each request would repeat it.
    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return Adapter()


def _copy_file(path: Path, url: str, target: IO[bytes], limit: RequestLimits) -> ResponseInfo | None:
    if not path.is_file():
        return None
    with path.open("rb") as source:
        _pour(iter(lambda: source.read(_CHUNK), b""), url, target, limit)
    return ResponseInfo(url)


def _pieces(response: Any, url: str, limit_s: float) -> Iterator[bytes]:
    """The content as it arrives. `read1` does not wait for a full chunk, so that a slow server cannot exceed the time
    limit.
    """
    until = time.monotonic() + limit_s
    while piece := response.raw.read1(_CHUNK, decode_content=True):
        if time.monotonic() > until:
            raise no_answer(url, f"> {limit_s:g} s")
        yield piece


def _pour(pieces: Iterator[bytes], url: str, target: IO[bytes], limit: RequestLimits) -> None:
    taken = 0
    for piece in pieces:
        taken += len(piece)
        if taken > limit.size:
            raise Unreadable(f"{without_secrets(url)}: > {limit.size} bytes")
        target.write(piece)


def _whole_size(response: Any) -> int:
    whole = str(response.headers.get("Content-Range", "")).rpartition("/")[2]
    return int(whole) if response.status_code == 206 and whole.isdigit() else 0


def _sha256(stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while piece := stream.read(_CHUNK):
        digest.update(piece)
    return digest.hexdigest()


def no_answer(url: str, why: str) -> CannotTell:
    """The error for an index without a usable response; neither part of it shows credentials."""
    return CannotTell(
        Message("refresh.no-answer", {"index": without_secrets(url), "why": without_secrets(why)[:300]}),
        Message("refresh.hint-index"),
    )


def innermost_error(error: Exception) -> str:
    """The innermost message of a chain of errors: "[Errno 111] Connection refused"."""
    found = re.findall(r"\[Errno -?\d+\] [^'\")\]]+|[Tt]imed out", str(error))
    return found[-1] if found else f"{type(error).__name__}: {error}"


class _Parts(io.RawIOBase):
    """A file object over a server that supports ranges."""

    def __init__(self, fetch: Fetch, url: str, size: int, limit: RequestLimits) -> None:
        self._fetch, self._url, self._size, self._limit = fetch, url, size, limit
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        span = {"Range": f"bytes={self._at}-{self._at + wanted - 1}"}
        found = self._fetch.read(self._url, RequestLimits(wanted, self._limit.time_s), span)
        data = found[0] if found else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
