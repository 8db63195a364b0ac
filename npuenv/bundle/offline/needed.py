"""What a bundle cannot get by itself, and the files the user supplies for it. Start from `find_needed`."""

from __future__ import annotations

import lzma
import re
import struct
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from npuenv.bundle.offline.manifest import Needed, is_inside
from npuenv.errors import BadInput
from npuenv.host.hashing import sha256_of
from npuenv.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.matrix import Matrix
    from npuenv.resolve.types import Platform, Stack

MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}  # e_machine of ELF, by what `uname -m` says
_PYTHON = re.compile(r"(?:.*/)?bin/python(3\.\d+)")


def cann_names(stack: Stack, matrix: Matrix) -> tuple[str, ...]:
    """The CANN files of a stack by the makers' names: toolkit, operators of the chip, NNAL. Empty for CPU stacks."""
    pin = stack.pin("cann")
    row = matrix.cann_row(pin.version) if pin else None
    chip = matrix.hardware_row(stack.platform.hardware or "")
    if row is None or chip is None:
        return ()
    word = chip.image_chip.upper() if chip.image_chip.startswith("a") else chip.image_chip  # A3, but 910b
    parts = ("toolkit", row.ops_package.replace("<chip>", word) or f"kernels-{word}", "nnal")
    return tuple(f"Ascend-cann-{part}_{row.version}_linux-{stack.platform.arch}.run" for part in parts)


def find_needed(
    stack: Stack, matrix: Matrix, *, cann_files: Sequence[Path], has_python: bool, left_out: Sequence[str]
) -> tuple[Needed, ...]:
    """What the user has to have on the target or bring along, with sizes where a public source gives them.

    `has_python`: an interpreter comes with the bundle; `left_out`: sources that do not.
    """
    sizes = {row.id: row.size for row in matrix.cann_files}
    given = {_part_of(path.name) for path in cann_files}
    found = [
        Needed("cann", name, sizes.get(name, 0)) for name in cann_names(stack, matrix) if _part_of(name) not in given
    ]
    system = matrix.system_row(stack.platform.os or "")
    if not has_python and (system is None or system.python != stack.platform.python):
        ships = system.python if system else ""
        found.append(Needed("python", f"Python {stack.platform.python} ({stack.platform.arch})", detail=ships))
    found += [Needed("system", name) for name in stack.system_packages]
    refs = {source.name: f"{source.repo} {source.ref}" for source in stack.git_sources}
    return (*found, *(Needed("source", name, detail=refs.get(name, "")) for name in left_out))


def check_cann_file(path: Path, stack: Stack, matrix: Matrix) -> None:
    """Raises BadInput for a supplied file of another architecture or version, and for one with another known hash."""
    _require_file(path)
    said = {"path": str(path), "stack": stack.name}
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[stack.platform.arch]
    if other in path.name or (other == "aarch64" and "arm64" in path.name):
        raise BadInput(Message("bundle.other-arch", {**said, "found": other, "wanted": stack.platform.arch}))
    wanted, version = stack.pin("cann"), re.search(r"_(\d+\.\d+[^_]*)_linux", path.name)
    if wanted is None:
        raise BadInput(Message("bundle.no-cann-wanted", said))
    if version and version[1] != wanted.version:
        raise BadInput(Message("bundle.other-version", {**said, "found": version[1], "wanted": wanted.version}))
    known = next((row.sha256 for row in matrix.cann_files if row.id == path.name), "")
    if known and sha256_of(path) != known:
        raise BadInput(Message("bundle.other-cann", {**said, "expected": known}))


def check_python_archive(path: Path, platform: Platform) -> None:
    """Raises BadInput for an archive without the stack's Python in some `bin` folder, or with one of another machine.

    Such archives hold a whole installation that works wherever it is unpacked.
    """
    _require_file(path)
    said = {"path": str(path), "python": platform.python, "arch": platform.arch}
    found: dict[str, str] = {}  # version -> machine; "" where only a link was seen
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                match = _PYTHON.fullmatch(member.name)
                if match:
                    found[match[1]] = found.get(match[1]) or _machine_of(archive, member)
    except tarfile.ReadError as error:  # its own words are a list of every compression that was tried
        raise BadInput(Message("bundle.no-tar", said)) from error
    except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise BadInput(Message("bundle.bad-python-archive", {**said, "why": str(error)[:200]})) from error
    if platform.python not in found:
        raise BadInput(Message("bundle.no-python-inside", {**said, "found": tuple(sorted(found)) or "-"}))
    if found[platform.python] not in ("", platform.arch):
        raise BadInput(Message("bundle.python-of-other-arch", {**said, "found": found[platform.python]}))


def _machine_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    """What an ELF program runs on; "" for a link, "?" for what is no program of a known machine."""
    if not member.isreg():
        return ""
    content = archive.extractfile(member)
    head = content.read(20) if content else b""
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return "?"
    return MACHINES.get(struct.unpack("<H", head[18:20])[0], "?")


def _part_of(name: str) -> str:
    """Which of the three a CANN file is, whatever its chip: toolkit, ops or nnal; else the name without its end."""
    found = re.search(r"toolkit|ops|kernels|nnal", name)
    return {"kernels": "ops"}.get(found[0], found[0]) if found else PurePosixPath(name).stem


def _require_file(path: Path) -> None:
    if not path.is_file() or path.stat().st_size == 0:
        raise BadInput(Message("bundle.no-file", {"path": str(path)}))
    if not is_inside(path.name):
        raise BadInput(Message("bundle.odd-name", {"path": str(path)}))
