"""What the loader would make of the extension modules, read from the files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.core.json_input import loads
from npuenv.facts.read import why_failed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.host.base import Host

WORD = "npuenv-elf"  # answered by the machine itself: `npuenv.host.shared_objects`


@dataclass(frozen=True, slots=True)
class MissingLibrary:
    """A library that a file needs and the loader does not find."""

    path: str
    library: str
    lies_in: str  # a folder that has it, but that is not looked into; "" where none was found


@dataclass(frozen=True, slots=True)
class MissingVersion:
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


@dataclass(frozen=True, slots=True)
class Elf:
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
        document = loads(ran.out)
        if document["error"]:
            return absent(Evidence(command, str(document["error"])))
        value = _elf(document)
    except (ValueError, KeyError, TypeError, AttributeError):
        return unknown(Evidence(command, ran.out[:200]))
    return known(value, Evidence(command, f"{value.looked} read, {len(value.missing)} libraries not found"))


def _elf(found: Mapping[str, Any]) -> Elf:
    return Elf(
        looked=int(found["looked"]),
        machines=tuple(map(str, found["machines"])),
        foreign={str(item["path"]): str(item["machine"]) for item in found["machine"]},
        unread={str(item["path"]): str(item["why"]) for item in found["unread"]},
        missing=tuple(
            MissingLibrary(str(item["path"]), str(item["library"]), str(item["lies_in"])) for item in found["missing"]
        ),
        versions=tuple(
            MissingVersion(str(item["path"]), str(item["library"]), str(item["version"]), str(item["has"]))
            for item in found["versions"]
        ),
        symbols=tuple(
            MissingSymbols(str(item["path"]), int(item["count"]), tuple(map(str, item["symbols"])))
            for item in found["symbols"]
        ),
        cxx11={str(name): bool(value) for name, value in found.get("cxx11", {}).items()},
    )
