"""What lies in the target's folders: metadata, origins, shadows, foreign builds, the state of the files, and what the
loader would make of the extension modules.

Read from the same answer as the interpreter (`npuenv.facts.target.inventory`). An answer that an older npuenv recorded
holds neither: they count as not asked.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - `from_json` reads these annotations at run time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from npuenv.core.documents import parse_json
from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.collector import from_json, made_of, not_asked, why_failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npuenv.host import Host

T = TypeVar("T")
WORD = "npuenv-elf"  # answered by the machine itself: `npuenv.host.shared_objects`


class MetadataTrouble(NamedTuple):
    """A dist-info or egg-info that does not say what it should."""

    entry: str  # torch-2.8.0.dist-info
    name: str
    what: str  # "no METADATA", "RECORD: Permission denied"


class Twice(NamedTuple):
    """One distribution at several places; the first one counts."""

    name: str
    versions: tuple[str, ...]
    folders: tuple[str, ...]


class Shadow(NamedTuple):
    """A module that is found elsewhere than where its distribution lies."""

    module: str
    place: str  # the folder that holds it
    kind: str  # package, module; with "cwd-" before it where only programs started in the session's folder see it
    over: str  # where the distribution lies; "" where no distribution owns the module


class Origin(NamedTuple):
    """A distribution that came from no index."""

    url: str
    commit: str  # "" where it is no repository
    is_editable: bool


class Link(NamedTuple):
    """A .pth file that adds folders to the path."""

    file: str
    adds: tuple[str, ...]
    gone: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True)
class Packages:
    """What the folders of the target's path hold besides names and versions."""

    path: tuple[str, ...]
    unreadable: Mapping[str, str]  # folder -> why
    user_site: str  # the user's own folder where it is on the path; "" else
    in_user_site: tuple[str, ...]
    twice: tuple[Twice, ...]
    leftovers: tuple[str, ...]  # "~orch": what a removal or an update that broke off leaves
    trouble: tuple[MetadataTrouble, ...]
    requires: Mapping[str, tuple[str, ...]]  # without those of extras
    requires_python: Mapping[str, str]
    origins: Mapping[str, Origin]
    gone_sources: Mapping[str, str]  # editable distribution -> its folder, which is not there
    links: tuple[Link, ...]
    shadows: tuple[Shadow, ...]
    foreign_wheels: Mapping[str, str]  # distribution -> the tag of its wheel, made for another Python or machine
    foreign_extensions: Mapping[str, str]  # distribution -> one of its extensions, all for another Python
    built: Mapping[str, Mapping[str, str]]  # module -> what it says of its build: {"torch": {"cuda": "12.8"}}
    extensions: Mapping[str, tuple[str, ...]]  # module -> its shared libraries
    # The pyvenv.cfg that a virtual environment has lost, and the Python that it was made from; (): it has lost none.
    no_settings: tuple[str, ...] = ()
    of_conda: Mapping[str, str] = field(default_factory=dict)  # distribution -> another version, which conda says it is


@dataclass(frozen=True, slots=True)
class Owned:
    """Files of one distribution that are not as it recorded them."""

    owner: str
    count: int
    native: int  # how many of them are shared libraries
    examples: tuple[str, ...]


class Files(NamedTuple):
    """The installed files against the records of their distributions."""

    looked: int
    missing: tuple[Owned, ...]
    altered: tuple[Owned, ...]  # of another size
    emptied: tuple[Owned, ...]  # of no bytes, where the record says there are some
    unreadable: tuple[str, ...]  # folders
    spared: tuple[Owned, ...] = ()  # missing, and of the kind that nothing imports: headers, tests, documents
    linked: tuple[Owned, ...] = ()  # as recorded, but behind a link; uv makes such where it was told to link


class Hashes(NamedTuple):
    """The contents of the installed files against the recorded SHA-256."""

    looked: int
    is_complete: bool  # False: the time ran out
    altered: tuple[Owned, ...]
    unreadable: tuple[str, ...]


def packages(answer: Fact[dict[str, Any]]) -> Fact[Packages]:
    """What the inventory says of metadata and folders."""
    return _part(answer, "packages", _packages, lambda value: f"{len(value.requires)} with requirements")


def files(answer: Fact[dict[str, Any]]) -> Fact[Files]:
    """What the inventory says of the files."""
    return _part(answer, "files", lambda found: from_json(Files, found), lambda value: f"{value.looked} files")


def hashes(answer: Fact[dict[str, Any]]) -> Fact[Hashes]:
    """What the program `hashes` says."""
    whole = made_of(answer, lambda found: known({"hashes": found}, *answer.evidence))
    return _part(whole, "hashes", lambda found: from_json(Hashes, found), lambda value: f"{value.looked} files")


def _part(
    answer: Fact[dict[str, Any]], key: str, read: Callable[[Mapping[str, Any]], T], line: Callable[[T], str]
) -> Fact[T]:
    def part(found: dict[str, Any]) -> Fact[T]:
        if key not in found:
            return not_asked(1)
        where = answer.evidence[0].command if answer.evidence else key
        try:
            value = read(found[key])
        except (KeyError, TypeError, AttributeError, ValueError) as error:  # foreign interpreter or capture
            return unknown(Evidence(where, f"{key}: {type(error).__name__}: {error}"))
        return known(value, Evidence(where, line(value)))

    return made_of(answer, part)


def _packages(found: Mapping[str, Any]) -> Packages:
    unreadable = {item["place"]: item["why"] for item in found["unreadable"]}
    gone_sources = {item["name"]: item["folder"] for item in found["gone_sources"]}
    return from_json(Packages, {**found, "unreadable": unreadable, "gone_sources": gone_sources})


class MissingLibrary(NamedTuple):
    """A library that a file needs and the loader does not find."""

    path: str
    library: str
    lies_in: str  # a folder that has it, but that is not looked into; "" where none was found


class MissingVersion(NamedTuple):
    """A version of the C or C++ library that a file needs and the one here does not have."""

    path: str
    library: str  # the one here: /lib/x86_64-linux-gnu/libc.so.6
    version: str  # GLIBC_2.38
    has: str  # the newest one that it has: GLIBC_2.36


@dataclass(frozen=True, slots=True)
class MissingSymbols:
    """Symbols of torch's namespaces that neither torch nor torch_npu defines: built for another version of them."""

    path: str
    count: int
    symbols: tuple[str, ...]


class Elf(NamedTuple):
    """What stands in the files."""

    looked: int
    machines: tuple[str, ...]  # x86_64, aarch64
    foreign: Mapping[str, str]  # file -> the machine that it is for, where that is another one
    unread: Mapping[str, str]  # file -> why
    missing: tuple[MissingLibrary, ...]
    versions: tuple[MissingVersion, ...]
    symbols: tuple[MissingSymbols, ...]
    cxx11: Mapping[str, bool]  # libc10.so, libtorch_npu.so -> built for the C++11 ABI


def elf(host: Host, files: Sequence[str], *, near: Sequence[str], timeout_s: float) -> Fact[Elf]:
    """The answer about these files; absent where there are none, or where pyelftools is missing.

    `near`: folders in which the interpreter itself finds libraries.
    """
    if not files:
        return absent(Evidence(WORD, "no extension modules"))
    ran = host.run((WORD, ":".join(near), *files), timeout_s=timeout_s)
    command = f"{WORD} ({len(files)} files)"
    if ran.code != 0:
        return absent(Evidence(command, "not here")) if ran.is_absent else unknown(Evidence(command, why_failed(ran)))
    try:
        document = parse_json(ran.out)
        if document["error"]:
            return absent(Evidence(command, str(document["error"])))
        value = _elf(document)
    except (ValueError, KeyError, TypeError, AttributeError):
        return unknown(Evidence(command, ran.out[:200]))
    return known(value, Evidence(command, f"{value.looked} read, {len(value.missing)} libraries not found"))


def _elf(found: Mapping[str, Any]) -> Elf:
    foreign = {item["path"]: item["machine"] for item in found["machine"]}
    unread = {item["path"]: item["why"] for item in found["unread"]}
    return from_json(Elf, {"cxx11": {}, **found, "foreign": foreign, "unread": unread})
