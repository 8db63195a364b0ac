"""Files of a bundle that the user must supply."""

from __future__ import annotations

import lzma
import re
import struct
import tarfile
import zlib
from typing import TYPE_CHECKING

from npuenv.bundle.manifest import Needed, is_inside
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.install.plan.cann_files import PARTS, expected_names, recognise, supplied_parts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from npuenv.host.base import Host
    from npuenv.matrix import Matrix
    from npuenv.resolve.types import Platform, Stack

MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}  # e_machine of ELF, by what `uname -m` says
_MOST_BYTES = 4 << 30  # of an unpacked Python; one with every test and symbol has 0.5 GiB
_PYTHON = re.compile(r"(?:.*/)?bin/python(3\.\d+)")


def find_needed(
    stack: Stack, matrix: Matrix, *, cann_files: Sequence[Path], has_python: bool, left_out: Sequence[str]
) -> tuple[Needed, ...]:
    """What the user must have on the target or supply, with sizes if a public source states them.

    `has_python`: the bundle contains an interpreter; `left_out`: sources that it does not contain.
    """
    sizes = {row.id: row.size for row in matrix.cann_files}
    given = {file.part for path in cann_files if (file := recognise(path.name))}
    names = zip(PARTS, expected_names(stack))
    found = [Needed("cann", name, sizes.get(name, 0)) for part, name in names if part not in given]
    system = matrix.system_row(stack.platform.os or "")
    if not has_python and (system is None or system.python != stack.platform.python):
        ships = system.python if system else ""
        found.append(Needed("python", f"Python {stack.platform.python} ({stack.platform.arch})", detail=ships))
    found += [Needed("system", name) for name in stack.system_packages]
    refs = {source.name: f"{source.repo} {source.ref}" for source in stack.git_sources}
    return (*found, *(Needed("source", name, detail=refs.get(name, "")) for name in left_out))


def check_cann_files(host: Host, paths: Sequence[Path], stack: Stack) -> None:
    """Raises BadInput for a supplied file that an installation of the stack on the target would refuse."""
    for path in paths:
        _require_file(path)
    supplied_parts(host, stack, tuple(map(str, paths)))


def check_python_archive(path: Path, platform: Platform) -> None:
    """Raises BadInput for an archive without the stack's Python in some `bin` folder, or with one for another machine.

    Such archives hold a complete, relocatable installation.
    """
    _require_file(path)
    args = {"path": str(path), "python": platform.python, "arch": platform.arch}
    found: dict[str, str] = {}  # version -> machine; "" for a link
    try:
        with tarfile.open(path) as archive:
            size = 0
            for member in archive:  # a few MB may unpack to terabytes
                size += member.size + tarfile.BLOCKSIZE
                if size > _MOST_BYTES:
                    raise tarfile.TarError(f"> {_MOST_BYTES >> 30} GiB")
                match = _PYTHON.fullmatch(member.name)
                if match:
                    found[match[1]] = found.get(match[1]) or _machine_of(archive, member)
    except tarfile.ReadError as error:  # its message lists every compression that was tried
        raise BadInput(Message("bundle.no-tar", args)) from error
    except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise BadInput(Message("bundle.bad-python-archive", {**args, "why": str(error)[:200]})) from error
    if platform.python not in found:
        raise BadInput(Message("bundle.no-python-inside", {**args, "found": tuple(sorted(found)) or "-"}))
    if found[platform.python] not in ("", platform.arch):
        raise BadInput(Message("bundle.python-of-other-arch", {**args, "found": found[platform.python]}))


def _machine_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    """The machine of an ELF program; "" for a link, "?" for another file or an unknown machine."""
    if not member.isreg():
        return ""
    content = archive.extractfile(member)
    head = content.read(20) if content else b""
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return "?"
    return MACHINES.get(struct.unpack("<H", head[18:20])[0], "?")


def _require_file(path: Path) -> None:
    if not path.is_file() or path.stat().st_size == 0:
        raise BadInput(Message("bundle.no-file", {"path": str(path)}))
    if not is_inside(path.name):
        raise BadInput(Message("bundle.odd-name", {"path": str(path)}))
