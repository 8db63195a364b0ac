"""The table of mounts, and the folders that training writes to: space, room for files, what may be done there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.collector import FactGroup, fact
from npuenv.facts.read import file_text, why_failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.host.base import Host

_TABLE = "/proc/self/mountinfo"
_ESCAPE = re.compile(r"\\([0-7]{3})")
_ROW = re.compile(r"^\S.*?\s+([0-9]+|-)\s+([0-9]+|-)\s+(-?[0-9]+|-)\s+([0-9]+%|-)\s+(/.*?)\s*$")
NETWORK_KINDS = ("nfs", "nfs4", "lustre", "ceph", "cifs", "smb3", "gpfs", "beegfs", "9p", "afs", "fuse.juicefs")


class MountRow(NamedTuple):
    """One row of the table."""

    place: str
    kind: str  # ext4, overlay, nfs4, lustre, ...
    options: tuple[str, ...]  # of the place and of the file system behind it

    @property
    def is_noexec(self) -> bool:
        return "noexec" in self.options


class FolderUsage(NamedTuple):
    """A folder with the file system that holds it. Sizes in KiB; None where the system does not say."""

    path: str
    is_writable: bool | None  # by this session; None: could not be tried
    free_kib: int
    size_kib: int
    files: int | None  # how many files the file system can hold; None: it has no such limit
    files_free: int | None
    place: str  # where that file system is mounted, as df says
    mount: MountRow | None  # None: the table of mounts could not be read


def mounts(host: Host) -> Fact[tuple[MountRow, ...]]:
    """Every mount that this session sees, in the order of mounting."""
    text = file_text(host, _TABLE)
    if text.value is None:
        return Fact(text.state, None, text.evidence)
    rows = tuple(mount for mount in map(_mount, text.value.splitlines()) if mount is not None)
    return known(rows, Evidence(_TABLE, f"{len(rows)} mounts")) if rows else unknown(Evidence(_TABLE, "no row"))


def _mount(line: str) -> MountRow | None:
    """A row like `36 35 98:0 / /data rw,noatime shared:1 - nfs4 server:/data rw,vers=4.2`."""
    own, mark, behind = line.strip().partition(" - ")
    left, right = own.split(), behind.split()
    if not mark or len(left) < 6 or not left[4].startswith("/") or not right:
        return None
    options = [*left[5].split(","), *(right[2].split(",") if len(right) > 2 else ())]
    return MountRow(_plain(left[4]), right[0], tuple(dict.fromkeys(options)))


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found.group(1), 8)), text)


def mount_of(rows: tuple[MountRow, ...], path: str) -> MountRow | None:
    """The mount that holds a path; of two at one place the later one, which covers the other."""
    holding = [row for row in rows if path == row.place or path.startswith(row.place.rstrip("/") + "/")]
    return max(enumerate(holding), key=lambda item: (len(item[1].place), item[0]), default=(0, None))[1]


def folder(host: Host, path: str, rows: tuple[MountRow, ...]) -> Fact[FolderUsage]:
    """A folder; absent where there is none at this path. `rows` are those of `mounts`."""
    space = _row(host, "-kP", path)
    if space.value is None:
        return Fact(space.state, None, space.evidence)
    size, free, place = space.value
    if size is None or free is None:
        return unknown(*space.evidence)
    files = _row(host, "-iP", path)
    tried = host.run(("test", "-w", path))
    total, left = (files.value[0] or None, files.value[1]) if files.value else (None, None)
    may_write = {0: True, 1: False}.get(-1 if tried.code is None else tried.code)
    if tried.is_absent:
        may_write = host.look(path).is_writable
    value = FolderUsage(path, may_write, free, size, total, left if total else None, place, mount_of(rows, place))
    evidence = (*space.evidence, *(files.evidence if total else ()))
    return known(value, *evidence, *((Evidence(f"test -w {path}", "not writable"),) if may_write is False else ()))


def _row(host: Host, option: str, path: str) -> Fact[tuple[int | None, int | None, str]]:
    """(size, free, mount point) of a path as `df` has them; None for a figure that is a dash."""
    ran = host.run(("df", option, path))
    command = f"df {option} {path}"
    if ran.is_absent or "No such file" in ran.err:
        return absent(Evidence(command, why_failed(ran)))
    for line in reversed(ran.out.splitlines()[1:]):
        found = _ROW.match(line)
        if found:
            size, _, free, _, place = found.groups()
            return known((_number(size), _number(free), place), Evidence(command, " ".join(line.split())))
    return unknown(Evidence(command, why_failed(ran)))


def _number(text: str) -> int | None:
    return max(int(text), 0) if text != "-" else None


# Variables that say where a library keeps what it downloads or compiles.
CACHE_VARIABLES = (
    "HF_HOME", "HF_HUB_CACHE", "MODELSCOPE_CACHE", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR", "ACL_OP_COMPILER_CACHE_DIR", "ASCEND_CACHE_PATH", "ASCEND_WORK_PATH",
)  # fmt: skip
_UP_AT_MOST = 12


class Cache(NamedTuple):
    """A folder that a variable names. `nearest` is the folder itself, or the closest one above it that exists."""

    variable: str
    path: str
    nearest: FolderUsage


def home(host: Host) -> str:
    """The home folder as programs find it."""
    return host.environ().get("HOME") or "/"


def tmp(host: Host) -> str:
    """The folder of temporary files."""
    return host.environ().get("TMPDIR") or "/tmp"


def caches(host: Host, rows: tuple[MountRow, ...]) -> Fact[tuple[Cache, ...]]:
    """The caches that variables name; absent where none is set. `rows` are the mounts."""
    named = {name: host.environ()[name] for name in CACHE_VARIABLES if host.environ().get(name, "").startswith("/")}
    if not named:
        return absent(Evidence("environment", "no cache variable is set"))
    found: list[Cache] = []
    evidence: list[Evidence] = []
    for name, path in named.items():
        nearest = _nearest(host, path, rows)
        evidence += nearest.evidence
        if nearest.state is State.UNKNOWN:
            return unknown(*nearest.evidence)
        if nearest.value is not None:
            found.append(Cache(name, path, nearest.value))
    return known(tuple(found), *evidence) if found else absent(*evidence)


def _nearest(host: Host, path: str, rows: tuple[MountRow, ...]) -> Fact[FolderUsage]:
    """A folder that is not there yet will be made: what counts is the one above it."""
    parts = [part for part in path.split("/") if part]
    fact: Fact[FolderUsage] = absent(Evidence(path, "absent"))
    for length in range(len(parts), max(len(parts) - _UP_AT_MOST, -1), -1):
        fact = folder(host, "/" + "/".join(parts[:length]), rows)
        if fact.state is not State.ABSENT:
            return fact
    return fact


def _folder_at(place: Callable[[Host], str]) -> Callable[[Host, Fact[tuple[MountRow, ...]]], Fact[FolderUsage]]:
    return lambda host, mounts: folder(host, place(host), mounts.value or ())


class StorageFacts(FactGroup):
    mounts: Fact[tuple[MountRow, ...]] = fact(mounts)
    home: Fact[FolderUsage] = fact(_folder_at(home), "machine.mounts")
    tmp: Fact[FolderUsage] = fact(_folder_at(tmp), "machine.mounts")
    caches: Fact[tuple[Cache, ...]] = fact(lambda host, mounts: caches(host, mounts.value or ()), "machine.mounts")
