"""Makes a bundle from a stack and its lock: `gather` determines the content, `make_bundle` fetches and writes it."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

import npuenv
from npuenv.bundle import zipapp
from npuenv.bundle.fetch import Download, DownloadProgress, best_file, fetch_all, list_files, still_to_fetch, with_sizes
from npuenv.bundle.layout import (
    MANIFEST,
    FileRow,
    Manifest,
    failed_by_disk,
    manifest_text,
    request_values,
    settle,
    write_tar,
)
from npuenv.bundle.self_package import find_tools, install_script, own_wheel, pythons_of, requirements_text
from npuenv.bundle.sources import find_needed, find_sources, pack_source
from npuenv.core.documents import TomlError, parse_toml
from npuenv.core.errors import BadInput, NothingFits
from npuenv.core.messages import Message
from npuenv.host.writing import sha256_of
from npuenv.index.metadata import Unreadable, sdist_texts
from npuenv.lock.file import write_lock
from npuenv.lock.store import LockedRequest
from npuenv.lock.uv import wheels_in_links

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npuenv.bundle.fetch import ReleaseFile
    from npuenv.bundle.layout import Needed
    from npuenv.bundle.self_package import ToolPackage
    from npuenv.bundle.sources import SourceOrigin
    from npuenv.lock.file import Lock, LockedPackage
    from npuenv.lock.uv import Resolver
    from npuenv.matrix import Matrix
    from npuenv.resolve.types import Platform


@dataclass(frozen=True, slots=True)
class IndexItem:
    """One file from an index, and its purpose."""

    kind: str  # as in FileRow
    name: str
    version: str
    download: Download


# Suffixes that mean neither a folder nor a plain tar archive.
_OTHER_FORMS = (
    ".7z", ".br", ".bz2", ".deb", ".egg", ".exe", ".gz", ".iso", ".jar", ".lz", ".lz4", ".lzma", ".pyz", ".rar", ".rpm",
    ".run", ".sh", ".tbz", ".tbz2", ".tgz", ".txz", ".tzst", ".whl", ".xz", ".z", ".zip", ".zst",
)  # fmt: skip
# Space for files that are created, not fetched: the doctor, npuenv's wheel, archives of repositories.
_SPARE = 256 * 1024**2


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """What the user adds to a bundle. Paths are absolute."""

    given: Mapping[str, str] = field(default_factory=dict)  # normalised source name -> archive or folder
    left_out: frozenset[str] = frozenset()  # normalised source names
    python_archive: Path | None = None
    cann_files: tuple[Path, ...] = ()
    fill: bool = False  # first complete a partial lock
    out: Path | None = None  # a folder or a .tar; None: a folder named after stack and platform
    home: Path = field(default_factory=Path)  # where that one goes


@dataclass(frozen=True, slots=True)
class BundleRequest(LockedRequest):
    """What is to be bundled, from where."""

    options: BundleOptions = field(default_factory=BundleOptions)

    @property
    def name(self) -> str:
        """The usual name, like npuenv-verl-0.7.1-cann8.5.0.aarch64-cp311-glibc2.28."""
        return f"npuenv-{self.stack.name}.{self.stack.platform.tag}"

    @property
    def out(self) -> Path:
        """The folder or archive of the bundle."""
        return self.options.out or self.options.home / self.name


@dataclass(frozen=True, slots=True)
class Contents:
    """The complete content of a bundle, known before anything is fetched."""

    request: BundleRequest
    items: tuple[IndexItem, ...]
    tools: tuple[ToolPackage, ...]
    sources: tuple[SourceOrigin, ...]
    needed: tuple[Needed, ...]

    @property
    def downloads(self) -> tuple[Download, ...]:
        return tuple(item.download for item in self.items)

    @property
    def fetched(self) -> int:
        """Bytes from indexes."""
        return sum(download.size for download in self.downloads)

    @property
    def copied(self) -> int:
        """Bytes of the user's own files."""
        return sum(path.stat().st_size for path in _added(self.request.options))


@dataclass(frozen=True, slots=True)
class BundlePlan:
    """What goes into a bundle, and how long it takes."""

    contents: Contents
    out: Path
    num_left: int  # bytes to fetch; what lies there from an earlier run is left out


def gather(request: BundleRequest, matrix: Matrix) -> Contents:
    """The content of the bundle, with sizes. Only sdists are fetched, for their build requirements.

    Raises: CannotTell if an index or a repository is unreachable, NothingFits for a file that no longer exists.
    """
    stack, lock, resolver, options = request.stack, request.lock, request.resolver, request.options
    platform = stack.platform
    sources = find_sources(stack, resolver, given=options.given, left_out=options.left_out)
    items = list(lock_items(lock, platform, resolver))
    for found in sources:
        if found.offer:  # the sdist that replaces a repository
            version = found.source.ref.removeprefix("v")
            items.append(_item("source", found.row.name, version, found.path, found.offer))
    items += find_backends(items, lock, platform, resolver)
    tools = find_tools(platform, resolver)
    items += (_item("tool", tool.name, tool.version, f"tools/{tool.offer.file}", tool.offer) for tool in tools)
    sized = with_sizes([item.download for item in items], resolver.settings)
    needed = find_needed(
        stack,
        matrix,
        cann_files=options.cann_files,
        has_python=options.python_archive is not None,
        left_out=[row.source.name for row in sources if row.origin == "left-out"],
    )
    items = [replace(item, download=download) for item, download in zip(items, sized, strict=True)]
    return Contents(request, tuple(items), tools, sources, needed)


def lock_items(lock: Lock, platform: Platform, resolver: Resolver) -> tuple[IndexItem, ...]:
    """One file for each package of a lock: the wheel that fits its platform best, else the source.

    The lock knows the hash of each. Raises: CannotTell if an index is unreachable, NothingFits for a package without
    such a file on any index.
    """
    in_links = wheels_in_links(resolver, (package for package in lock.packages if package.index), platform)
    groups: dict[tuple[str | None, bool], list[LockedPackage]] = {}
    for package in lock.packages:
        groups.setdefault((package.index, package.index is not None and package.name in in_links), []).append(package)
    items: list[IndexItem] = []
    for (label, is_in_links), packages in groups.items():
        pins = [f"{package.name}=={package.version}" for package in packages]
        listed = list_files(pins, platform, resolver, label=label, is_in_links=is_in_links)
        offers = {row.name: row.offers for row in listed}
        for package in packages:
            chosen = best_file(offers.get(package.name, ()), platform, package.sha256)
            if chosen is None:
                args = {"name": package.name, "version": package.version, "hashes": package.sha256}
                raise NothingFits(Message("bundle.no-such-hash", args), Message("bundle.not-offered-hint"))
            download = Download(f"wheels/{chosen.file}", chosen.url, package.sha256, chosen.size)
            items.append(IndexItem("wheel" if chosen.is_wheel else "sdist", package.name, package.version, download))
    return tuple(items)


def _item(kind: str, name: str, version: str, path: str, offer: ReleaseFile) -> IndexItem:
    hashes = (offer.sha256,) if offer.sha256 else ()
    return IndexItem(kind, name, version, Download(path, offer.url, hashes, offer.size))


# Build requirements of an sdist without a build table. Source: PEP 518. wheel: setuptools below 70.1 requires it.
_DEFAULT_BACKENDS = ("setuptools>=40.8.0", "wheel")


def find_backends(items: Sequence[IndexItem], lock: Lock, platform: Platform, resolver: Resolver) -> list[IndexItem]:
    """The wheels for building the sdists among `items`, to be placed beside the lock's files.

    Where possible they are as old as the lock and have its versions, so that the same lock gives the same wheels.
    Raises: CannotTell and NothingFits as `list_files` does, StepFailed for an sdist that cannot be fetched.
    """
    requirements = _build_requirements([item.download for item in items if item.kind == "sdist"], resolver)
    if not requirements:
        return []
    locked = {package.name: package.version for package in lock.packages}
    names = [canonicalize_name(Requirement(line).name) for line in requirements]
    pins = sorted({f"{name}=={locked[name]}" for name in names if name in locked})
    age = ("--exclude-newer", f"{lock.newest}T23:59:59Z") if lock.newest else ()
    tries = (([*requirements, *pins], age), (requirements, age), (requirements, ()))
    for number, (lines, bound) in enumerate(tries, 1):
        try:
            listed = list_files(lines, platform, resolver, options=("--only-binary", ":all:", *bound))
            break
        except NothingFits:  # builds are isolated, so the lock's versions are only preferred
            if number == len(tries):
                raise
    known = {item.download.path for item in items}
    found = [(row, offer) for row in listed if (offer := best_file(row.offers, platform)) is not None]
    made = [_item("build", row.name, row.version, f"wheels/{offer.file}", offer) for row, offer in found]
    return [item for item in made if item.download.path not in known]


def _build_requirements(sdists: Sequence[Download], resolver: Resolver) -> list[str]:
    """The build requirements of all sdists together. The sdists are fetched, because only they state them."""
    with tempfile.TemporaryDirectory(prefix="npuenv-sdists-") as name:
        fetch_all(sdists, Path(name), resolver.settings, tell=lambda report: None)
        return sorted({line for item in sdists for line in build_requirements(Path(name) / item.path)})


def build_requirements(path: Path) -> tuple[str, ...]:
    """The requirements in an sdist's build table; the default if it has no readable one."""
    try:
        with path.open("rb") as stream:
            text = sdist_texts(stream, ["pyproject.toml"]).get("pyproject.toml", "")
        lines = tuple(parse_toml(text).get("build-system", {}).get("requires", ())) or _DEFAULT_BACKENDS
        return tuple(line for line in lines if Requirement(line))
    except (Unreadable, TomlError, InvalidRequirement, AttributeError, TypeError):
        return _DEFAULT_BACKENDS


def check_place(out: Path) -> None:
    """Raises BadInput for a suffix of another file type, and for an existing path that is no bundle.

    The content of an existing archive is not checked.
    """
    if out.suffix.lower() in _OTHER_FORMS:
        stem = out.name[: -len(out.suffix)]
        bare = stem[: -len(".tar")] if stem.lower().endswith(".tar") else stem
        hint = Message("bundle.other-form-hint", {"name": bare})
        raise BadInput(Message("bundle.other-form", {"name": out.name}), hint)
    is_foreign = not (out / MANIFEST).is_file() if out.is_dir() else out.is_file() and not is_archive(out)
    if is_foreign:
        raise BadInput(Message("bundle.not-ours", {"path": str(out)}), Message("bundle.not-ours-hint"))


def check_room(contents: Contents, out: Path) -> None:
    """Raises BadInput if the disk of `out` is too small. Files from an earlier run count as done."""
    location = next(each for each in (out, *out.parents) if each.exists())
    free = shutil.disk_usage(location).free
    total = contents.fetched + contents.copied + _SPARE
    needed = (
        still_to_fetch(contents.downloads, staging(out)) + contents.copied + _SPARE + (total if is_archive(out) else 0)
    )
    if free < needed:
        args = {"path": str(location), "free": free >> 20, "wanted": needed >> 20}
        raise BadInput(Message("bundle.no-room", args), Message("bundle.disk-full-hint"))


def make_bundle(contents: Contents, out: Path, *, tell: Callable[[DownloadProgress], None]) -> Manifest:
    """Fetches and writes everything; `out` appears when it is complete. The same call continues an interrupted run.

    Raises: StepFailed if something cannot be fetched or written.
    """
    folder, resolver = staging(out), contents.request.resolver
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fetch_all(contents.downloads, folder, resolver.settings, tell=tell)
        rows = [_row(folder, item.download.path, item.kind, item.name, item.version) for item in contents.items]
        rows += _packed(contents, folder, resolver)
        rows += _copied(contents.request.options, folder)
        rows += _own_files(contents, folder, {row.path: row.sha256 for row in rows})
        manifest = _manifest(contents, rows)
        _remove_others(folder, {row.path for row in rows})
        (folder / MANIFEST).write_text(manifest_text(manifest), encoding="utf-8")
        settle(folder, [row.path for row in rows if row.kind == "program"])
        if is_archive(out):
            write_tar(folder, out, top=contents.request.name, first=(MANIFEST,))
            shutil.rmtree(folder)
        else:
            folder.rename(out)
    except OSError as error:
        raise failed_by_disk(error, out) from error
    return manifest


def is_archive(out: Path) -> bool:
    """Whether a bundle of that name is one file."""
    return out.suffix.lower() == ".tar"


def staging(out: Path) -> Path:
    """The folder of a bundle under construction: beside its final path, so that the last step is a rename."""
    return out.with_name(f"{out.name}.part.d")


def _packed(contents: Contents, folder: Path, resolver: Resolver) -> list[FileRow]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="npuenv-source-", dir=folder.parent) as scratch:
        for found in contents.sources:
            if found.path and found.offer is None:
                pack_source(found, folder / found.path, Path(scratch), resolver)
                rows.append(_row(folder, found.path, "source", found.row.name, found.commit))
    return rows


def _added(options: BundleOptions) -> Iterator[Path]:
    yield from options.cann_files
    if options.python_archive:
        yield options.python_archive


def _copied(options: BundleOptions, folder: Path) -> list[FileRow]:
    rows = []
    for path in _added(options):
        kind = "python" if path == options.python_archive else "cann"
        target = folder / kind / path.name
        target.parent.mkdir(exist_ok=True)
        if not (target.is_file() and sha256_of(target) == sha256_of(path)):
            shutil.copyfile(path, target)
        rows.append(_row(folder, f"{kind}/{path.name}", kind))
    return rows


def _own_files(contents: Contents, folder: Path, digests: Mapping[str, str]) -> list[FileRow]:
    """npuenv itself, its requirements files, the lock, the doctor and the start script."""
    request = contents.request
    wheel, data = own_wheel()
    rows = [_put(folder, f"tools/{wheel}", data, "tool")]
    by_file = {path.partition("/")[2]: digest for path, digest in digests.items() if path.startswith("tools/")}
    text = requirements_text((npuenv.__version__, rows[0].sha256), contents.tools, by_file)
    rows.append(_put(folder, "tools/requirements.txt", text.encode(), "tool"))
    sums = {**by_file, wheel: rows[0].sha256, "requirements.txt": rows[1].sha256}
    listing = "".join(f"{digest}  tools/{file}\n" for file, digest in sorted(sums.items()))
    rows.append(_put(folder, "tools/SHA256SUMS", listing.encode(), "tool"))
    rows.append(_put(folder, _lock_path(request.lock), write_lock(request.lock).encode(), "lock"))
    rows.append(_put(folder, "npuenv-doctor.pyz", zipapp.content(), "program"))
    archive = f"python/{request.options.python_archive.name}" if request.options.python_archive else ""
    script = install_script(contents.tools, python=request.stack.platform.python, archive=archive)
    rows.append(_put(folder, "install.sh", script.encode(), "program"))
    return rows


def _manifest(contents: Contents, rows: list[FileRow]) -> Manifest:
    request = contents.request
    return Manifest(
        npuenv=npuenv.__version__,
        stack=request.stack.name,
        platform=request.stack.platform.tag,
        lock=request.lock.hash,
        lock_file=_lock_path(request.lock),
        request=request_values(request.request),
        pythons=pythons_of(contents.tools),
        files=tuple(sorted(rows, key=lambda row: row.path)),
        sources=tuple(found.row for found in contents.sources),
        needed=contents.needed,
    )


def _lock_path(lock: Lock) -> str:
    return f"locks/{lock.file_name}"


def _put(folder: Path, path: str, data: bytes, kind: str) -> FileRow:
    target = folder / path
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(data)
    return FileRow(path, kind, len(data), hashlib.sha256(data).hexdigest())


def _row(folder: Path, path: str, kind: str, name: str = "", version: str = "") -> FileRow:
    location = folder / path
    return FileRow(path, kind, location.stat().st_size, sha256_of(location), name, version)


def _remove_others(folder: Path, paths: set[str]) -> None:
    """Removes files of an earlier run for another stack or version."""
    for location in sorted(folder.rglob("*"), reverse=True):
        if location.is_dir() and not location.is_symlink():
            if not any(location.iterdir()):
                location.rmdir()
        elif location.relative_to(folder).as_posix() not in paths:
            location.unlink()
