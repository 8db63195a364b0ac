"""Reads the package indexes of pip's settings.

Pages are parsed by `pypi-simple`, which is an optional requirement. If pip has no index configured, the library's
default, which is pip's, is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from packaging.version import Version

from npuenv.core.errors import CannotTell
from npuenv.core.json_input import loads
from npuenv.core.messages import Message
from npuenv.facts.pip import local_folder, without_secrets
from npuenv.index.archive import sdist_texts, wheel_metadata
from npuenv.index.fetch import Bounds, Fetch, ResponseInfo, library, no_answer
from npuenv.index.metadata import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npuenv.facts.pip import PipSettings

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"


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


class Indexes:
    """All indexes of some pip settings as one, as in pip: equal rank, the first file of a name counts.

    Use as a context manager, which closes the connections.
    """

    def __init__(self, settings: PipSettings, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._fetch = Fetch(settings, self._bounds)
        self._locations = _locations(settings)
        self._known: dict[str, tuple[IndexFile, ...]] = {}

    def __enter__(self) -> Indexes:
        return self

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
    packages = library().ProjectPage.from_json_data(loads(content), answer.url).packages
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


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
