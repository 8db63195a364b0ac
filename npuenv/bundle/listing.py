"""Finds the files of exact versions: uv queries the indexes of pip's settings."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from npuenv.core.errors import NothingFits
from npuenv.core.messages import Message
from npuenv.facts.pip import for_uv, local_folder
from npuenv.lock.uv import deciding_line, list_exact, require_reached
from npuenv.lock.wheels import platform_tags, rank_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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


def best(offers: Iterable[ReleaseFile], platform: Platform, sha256: Sequence[str] = ()) -> ReleaseFile | None:
    """The file that an installer on the platform would choose, among those with one of the hashes; None for none.

    A wheel before the source, the best tag first. A file without a stated hash counts: it is verified after the
    download.
    """
    tags = platform_tags(platform)
    allowed = [offer for offer in offers if not sha256 or not offer.sha256 or offer.sha256 in sha256]
    ranked = [(rank, offer.file, offer) for offer in allowed if (rank := rank_of(offer.file, tags)) is not None]
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
