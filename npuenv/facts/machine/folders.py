"""The folders that training writes to: home, temporary files, caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.machine.mounts import Folder, folder

if TYPE_CHECKING:
    from npuenv.facts.machine.mounts import Mount
    from npuenv.host.base import Host

# Variables that say where a library keeps what it downloads or compiles.
CACHE_VARIABLES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "MODELSCOPE_CACHE",
    "XDG_CACHE_HOME",
    "VLLM_CACHE_ROOT",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "ACL_OP_COMPILER_CACHE_DIR",
    "ASCEND_CACHE_PATH",
    "ASCEND_WORK_PATH",
)
_UP_AT_MOST = 12


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder that a variable names. `nearest` is the folder itself, or the closest one above it that exists."""

    variable: str
    path: str
    nearest: Folder


def home(host: Host) -> str:
    """The home folder as programs find it."""
    return host.environ().get("HOME") or "/"


def tmp(host: Host) -> str:
    """The folder of temporary files."""
    return host.environ().get("TMPDIR") or "/tmp"


def caches(host: Host, rows: tuple[Mount, ...]) -> Fact[tuple[Cache, ...]]:
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


def _nearest(host: Host, path: str, rows: tuple[Mount, ...]) -> Fact[Folder]:
    """A folder that is not there yet will be made: what counts is the one above it."""
    parts = [part for part in path.split("/") if part]
    fact: Fact[Folder] = absent(Evidence(path, "absent"))
    for length in range(len(parts), max(len(parts) - _UP_AT_MOST, -1), -1):
        fact = folder(host, "/" + "/".join(parts[:length]), rows)
        if fact.state is not State.ABSENT:
            return fact
    return fact
