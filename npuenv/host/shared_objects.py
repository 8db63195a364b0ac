"""What the extension modules of an environment need from the dynamic loader, as the command `npuenv-elf`.

Only reads files and loads nothing, so that a broken library cannot crash the process. It follows the loader's order
(RPATH, LD_LIBRARY_PATH, RUNPATH, its cache, the standard folders), and assumes the libraries that importing torch loads
first: those beside torch and torch_npu.

    npuenv-elf NEAR FILE...     NEAR: folders, joined with `:`, in which the interpreter itself finds libraries

Prints one JSON document. A missing library is searched for in the folders of CANN, NNAL and the driver. pyelftools does
the reading; without it the document only says so.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MISSING_AT_MOST = 40
_SYMBOLS_AT_MOST = 8
_LARGE = 64 << 20  # a larger string table is ignored
_SYMBOL = struct.Struct("<IBBHQQ")
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
_ROOTS = ("/usr/local/Ascend", "/opt/Ascend")
_FOLDERS = (
    "cann*/lib64",
    "ascend-toolkit/*/lib64",
    "latest/lib64",
    "nnal/atb/*/atb/cxx_abi_*/lib",
    "driver/lib64/driver",
    "driver/lib64/common",
)
_RUNTIMES = ("libc.so.6", "libstdc++.so.6", "libm.so.6", "libgcc_s.so.1")
# Namespaces of C++ names, with the libraries that define all of them.
_NAMESPACES = (
    (re.compile(rb"_ZN[KV]?(3c10|2at|5torch|6caffe2)"), {"libc10", "libtorch_cpu", "libtorch_python"}),
    (re.compile(rb"_ZN[KV]?(7c10_npu|6at_npu|9torch_npu)"), {"libtorch_npu"}),
)


def document(words: tuple[str, ...]) -> str | None:
    """The JSON answer to the arguments after `npuenv-elf`; None if they are invalid."""
    if len(words) < 2:
        return None
    try:
        from elftools.elf import elffile  # noqa: F401
    except ImportError:
        return json.dumps({"error": "pyelftools is not here"}) + "\n"
    near = tuple(filter(None, words[0].split(":")))
    return json.dumps(_Look(near, _places()).at(words[1:]), sort_keys=True) + "\n"


def _places() -> tuple[str, ...]:
    """The existing folders of CANN, NNAL and the driver, sourced or not."""
    roots = [root for root in (*_ROOTS, os.path.expanduser("~/Ascend")) if os.path.isdir(root)]
    return tuple(path for root in roots for each in _FOLDERS for path in sorted(glob.glob(f"{root}/{each}")))


class _Elf:
    """The parts of one file that the loader reads. Raises what pyelftools raises on a damaged file."""

    def __init__(self, path: str) -> None:
        from elftools.elf.elffile import ELFFile

        self.path = path
        with open(path, "rb") as stream:
            elf = ELFFile(stream)
            self.machine = _MACHINES.get(elf["e_machine"], str(elf["e_machine"]))
            self.needed: list[str] = []
            self.rpath: list[str] = []
            self.runpath: list[str] = []
            self._read_dynamic(elf)
            self.asks = {one.name: [each.name for each in all_] for one, all_ in _versions(elf, ".gnu.version_r")}

    def _read_dynamic(self, elf: Any) -> None:
        section = elf.get_section_by_name(".dynamic")
        origin = os.path.dirname(os.path.realpath(self.path))
        for tag in section.iter_tags() if section is not None else ():
            if tag.entry.d_tag == "DT_NEEDED":
                self.needed.append(tag.needed)
            elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                text = tag.rpath if tag.entry.d_tag == "DT_RPATH" else tag.runpath
                folders = [re.sub(r"\$\{?ORIGIN\}?", origin, each) for each in text.split(":") if each]
                (self.rpath if tag.entry.d_tag == "DT_RPATH" else self.runpath).extend(folders)


def _read(path: str) -> tuple[_Elf | None, str]:
    try:
        return _Elf(path), ""
    except Exception as error:  # a damaged file can raise any error; that is the result for it
        return None, f"{type(error).__name__}: {error}".strip()


def _versions(elf: Any, name: str) -> Iterator[tuple[Any, Any]]:
    section = elf.get_section_by_name(name)
    return section.iter_versions() if section is not None else iter(())


def _provided(path: str) -> set[str]:
    """The version names that a library defines, like GLIBC_2.36."""
    from elftools.elf.elffile import ELFFile

    with open(path, "rb") as stream:
        return {each.name for _, all_ in _versions(ELFFile(stream), ".gnu.version_d") for each in all_}


def _symbols(path: str) -> tuple[set[bytes], set[bytes]]:
    """The dynamic symbols that a file defines, and those it requires."""
    from elftools.elf.elffile import ELFFile

    with open(path, "rb") as stream:
        elf = ELFFile(stream)
        table, strings = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".dynstr")
        if table is None or strings is None:
            return set(), set()
        if strings["sh_size"] > _LARGE or elf.elfclass != 64:
            raise ValueError(path)
        entries, names = table.data(), strings.data()
    defined: set[bytes] = set()
    undefined: set[bytes] = set()
    for at, info, _, section, _, _ in _SYMBOL.iter_unpack(entries[: len(entries) // _SYMBOL.size * _SYMBOL.size]):
        if section == 0 and info >> 4 != 1:  # a symbol of binding 1 is not weak
            continue
        (defined if section else undefined).add(names[at : names.index(b"\0", at)])
    return defined, undefined


class _Look:
    """One answer: the loader's folders of this session, and a cache of read files."""

    def __init__(self, near: tuple[str, ...], search: tuple[str, ...]) -> None:
        machine = platform.machine()
        self.search = search
        self.near = near
        self.session = tuple(filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
        locations = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", f"/lib/{machine}-linux-gnu")
        self.standard = (*locations, f"/usr/lib/{machine}-linux-gnu", "/usr/local/lib")
        self.cache = _loader_cache()

    def at(self, paths: Iterable[str]) -> dict[str, Any]:
        """The document about these files."""
        elves: list[_Elf] = []
        unread: list[dict[str, str]] = []
        for path in paths:
            elf, why = _read(path)
            if elf is None:
                unread.append({"path": path, "why": why})
            else:
                elves.append(elf)
        beside = tuple(dict.fromkeys(os.path.dirname(elf.path) for elf in elves))
        missing = [row for elf in elves for row in self._missing(elf, beside)]
        names = [(os.path.basename(elf.path), elf.path) for elf in elves]
        return {
            "error": "",
            "looked": len(elves),
            "unread": unread,
            "machines": sorted({elf.machine for elf in elves}),
            "machine": [{"path": elf.path, "machine": elf.machine} for elf in elves if self._is_foreign(elf)],
            "missing": missing[:_MISSING_AT_MOST],
            "versions": self._versions(elves),
            "symbols": _undefined(elves),
            "cxx11": {
                name: _has_cxx11(path) for name, path in names if name.split(".")[0] in ("libc10", "libtorch_npu")
            },
        }

    def _is_foreign(self, elf: _Elf) -> bool:
        return elf.machine != platform.machine()

    def _missing(self, elf: _Elf, beside: tuple[str, ...]) -> Iterator[dict[str, str]]:
        """Each library that the loader would not find, with the folder of `search` that has it."""
        if self._is_foreign(elf):
            return
        folders = (*elf.rpath, *self.session, *elf.runpath, *self.near, *beside, *self.standard)
        for name in elf.needed:
            if name not in self.cache and self._first(name, folders) is None and not name.startswith("ld-linux"):
                yield {"path": elf.path, "library": name, "lies_in": self._first(name, self.search) or ""}

    def _first(self, name: str, folders: Iterable[str]) -> str | None:
        return next((folder for folder in folders if os.path.exists(os.path.join(folder, name))), None)

    def _versions(self, elves: list[_Elf]) -> list[dict[str, str]]:
        """Versions of the C and C++ libraries that a file needs and the installed ones lack."""
        rows = []
        for library in _RUNTIMES:
            folder = self._first(library, (*self.near, *self.session, *self.standard))
            try:
                has = _provided(os.path.join(folder, library)) if folder else set()
            except Exception:  # the system's own library is unreadable: its versions are unknown
                has = set()
            for elf in elves if has else ():
                lacking = [each for each in elf.asks.get(library, ()) if each not in has]
                if lacking and not self._is_foreign(elf):
                    newest = max(lacking, key=_numbers)
                    kind = newest.partition("_")[0]
                    own = (each for each in has if each.partition("_")[0] == kind and _numbers(each))
                    row = {"path": elf.path, "library": f"{folder}/{library}", "version": newest}
                    rows.append({**row, "has": max(own, key=_numbers, default="")})
        return rows


def _has_cxx11(path: str) -> bool:
    """Whether its strings have the C++11 ABI, which must be the same in everything that is built on torch."""
    has, needs = _symbols_or_none(path)
    return any(b"__cxx11" in name for name in (has or set()) | needs)


def _undefined(elves: list[_Elf]) -> list[dict[str, Any]]:
    """Symbols of torch's namespaces that a file needs and that neither torch nor torch_npu defines.

    Empty unless every library that defines some of them was read: else they would all look undefined.
    """
    names = {os.path.basename(elf.path).split(".")[0] for elf in elves}
    kinds = [pattern for pattern, libraries in _NAMESPACES if libraries <= names]
    defined: set[bytes] = set()
    wanted: list[tuple[str, set[bytes]]] = []
    for elf in elves if kinds else ():
        has, needs = _symbols_or_none(elf.path)
        if has is None:
            return []
        defined |= has
        wanted.append((elf.path, {name for name in needs if any(kind.match(name) for kind in kinds)}))
    rows = []
    for path, needs in wanted:
        lacking = sorted(name.decode("ascii", "replace") for name in needs - defined)
        if lacking:
            rows.append({"path": path, "count": len(lacking), "symbols": lacking[:_SYMBOLS_AT_MOST]})
    return rows


def _symbols_or_none(path: str) -> tuple[set[bytes] | None, set[bytes]]:
    try:
        return _symbols(path)
    except Exception:  # a damaged file can raise any error; an unreadable one is ignored
        return None, set()


def _loader_cache() -> frozenset[str]:
    """The names in the loader's cache; empty without one."""
    try:
        with open("/etc/ld.so.cache", "rb") as file:
            data = file.read()
    except OSError:
        return frozenset()
    return frozenset(
        each.decode("ascii")
        for each in re.findall(rb"\0(lib[\x21-\x2e\x30-\x7e]+\.so[\x21-\x2e\x30-\x7e]*)(?=\0)", data)
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d+", version))
