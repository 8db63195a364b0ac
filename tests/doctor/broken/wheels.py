"""Small distributions with the metadata of real ones: built as wheels, installed by uv like any other."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import platform
import sys
import sysconfig
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SHORT = f"{sys.version_info[0]}{sys.version_info[1]}"
TAG = f"cp{SHORT}-cp{SHORT}-manylinux_2_17_{platform.machine()}"
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))


@dataclass(frozen=True, slots=True)
class Distribution:
    """What goes into one wheel. A file's content is text or bytes."""

    name: str
    version: str
    files: Mapping[str, str | bytes]
    requires: tuple[str, ...] = ()
    tag: str = TAG
    info: Mapping[str, str] = field(default_factory=dict)  # further files of the dist-info


def build(wanted: Distribution, folder: Path) -> Path:
    """The wheel, in the folder."""
    stem = f"{wanted.name.replace('-', '_')}-{wanted.version}"
    content = {path: each.encode() if isinstance(each, str) else each for path, each in wanted.files.items()}
    lines = [f"Metadata-Version: 2.1\nName: {wanted.name}\nVersion: {wanted.version}"]
    lines += [f"Requires-Dist: {each}" for each in wanted.requires]
    info = f"{stem}.dist-info"
    content[f"{info}/METADATA"] = ("\n".join(lines) + "\n").encode()
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {wanted.tag}\n".encode()
    content.update({f"{info}/{name}": text.encode() for name, text in wanted.info.items()})
    content[f"{info}/RECORD"] = _record(content, f"{info}/RECORD")
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{stem}-{wanted.tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return wheel


def _record(content: Mapping[str, bytes], own: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow([path, f"sha256={digest}", len(data)])
    rows.writerow([own, "", ""])
    return text.getvalue().encode()


def module(name: str, version: str, *parts: str, first: str = "") -> dict[str, str | bytes]:
    """The files of a package that imports, with `parts` as modules that its `__init__` imports."""
    imports = "".join(f"import {name}.{part}\n" for part in parts)
    files: dict[str, str | bytes] = {f"{name}/__init__.py": f'{first}__version__ = "{version}"\n{imports}'}
    files.update({f"{name}/{part}.py": f'"""{part} of {name}"""\nvalue = {at}\n' for at, part in enumerate(parts)})
    return files


def library() -> bytes:
    """A shared library of this machine that can be loaded: an extension module of the standard library."""
    folders = [sysconfig.get_config_var("DESTSHARED"), Path(os.__file__).parent / "lib-dynload"]
    found = [path for folder in folders if folder for path in Path(folder).glob(f"*{SUFFIX}")]
    chosen = min((path for path in found if b"libc.so.6\0" in path.read_bytes()), key=lambda path: path.stat().st_size)
    return chosen.read_bytes()


_LOADS = """\
import ctypes
import os.path
_folder = os.path.join(os.path.dirname(__file__), "lib")
for _name in ("libtorch_cpu.so", "libtorch_python.so"):
    ctypes.CDLL(os.path.join(_folder, _name))
"""


def torch(version: str = "2.8.0+cpu", *, name: str = "torch", cuda: str | None = None) -> Distribution:
    """A torch that loads its libraries and does nothing with them."""
    files = module("torch", version, "nn", "optim", first=_LOADS)
    files["torch/version.py"] = f'__version__ = "{version}"\ncuda = {cuda!r}\nhip = None\n'
    files.update({f"torch/lib/{each}.so": library() for each in ("libtorch_cpu", "libtorch_python", "libc10")})
    return Distribution(name, version, files)


def torch_npu(version: str = "2.8.0.post2", *requires: str) -> Distribution:
    files = module("torch_npu", version, "npu", first="import torch\n")
    return Distribution("torch-npu", version, files, requires)


def numpy(version: str = "1.26.4", *, tag: str = TAG) -> Distribution:
    parts = [f"part{number}" for number in range(20)]
    return Distribution("numpy", version, module("numpy", version, *parts), tag=tag)


def triton(version: str = "3.4.0") -> Distribution:
    files = module("triton", version, "language", "runtime")
    files |= {f"triton/backends/{name}/driver.py": f"# {name}, as triton ships it\n" for name in ("nvidia", "amd")}
    return Distribution("triton", version, files)


def triton_ascend(version: str = "3.2.0") -> Distribution:
    files = module("triton", version, "language", "runtime", "ascend_only")
    files |= {"triton/backends/ascend/driver.py": "# ascend\n", "triton/backends/nvidia/driver.py": "# of triton 3.2\n"}
    return Distribution("triton-ascend", version, files)


def plain(name: str, version: str, *requires: str) -> Distribution:
    """A package of one module and one part."""
    return Distribution(name, version, module(name.replace("-", "_"), version, "core"), requires)
