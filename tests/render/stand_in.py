"""What a real build needs and this machine can make: a base image with CANN's names, tiny wheels, repositories.

The base holds this machine's own Python, shells and git, and stand-ins for CANN's scripts and for the package tool of
the distribution, which write down what they are asked for. Nothing is fetched from anywhere.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.install.cann import cann_scripts, compiler_scripts
from npuenv.lock.file import Lock, LockedPackage

if TYPE_CHECKING:
    from npuenv.resolve.types import GitSource, Stack

PROGRAMS = (
    *("bash", "dash", "basename", "cat", "cp", "cut", "env", "find", "getent", "git", "id", "install", "ls", "mkdir"),
    *("git-upload-pack", "mv", "rm", "sed", "test", "tr", "true", "uname", "useradd", "usermod"),
)
_SCRIPTS = ("git-submodule", "git-sh-setup", "git-sh-i18n", "git-remote-http", "git-remote-https")
_TOOL = '#!/bin/sh\nexport -p >> /var/log/tool.env\necho "${0##*/} $*" >> /var/log/tool\n'
# What a build notes of its environment.
_SEEN = ("ASCEND_HOME_PATH", "VLLM_TARGET_DEVICE", "SOC_VERSION", "TORCH_DEVICE_BACKEND_AUTOLOAD")
# A build backend inside the tree it builds, so that no package is needed for it.
_BACKEND = """\
import os, zipfile
SEEN = {seen!r}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name, version = {name!r}, {version!r}
    file = f"{{name}}-{{version}}-py3-none-any.whl"
    info = f"{{name}}-{{version}}.dist-info"
    with zipfile.ZipFile(os.path.join(folder, file), "w") as wheel:
        wheel.writestr(f"{{info}}/METADATA", f"Metadata-Version: 2.1\\nName: {{name}}\\nVersion: {{version}}\\n")
        wheel.writestr(f"{{info}}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{{name}}_built.txt", "\\n".join(f"{{k}}={{v}}" for k, v in os.environ.items() if k in SEEN))
        wheel.writestr(f"{{info}}/RECORD", "")
    return file
build_editable = build_wheel
"""


def has_driver_group(stack: Stack) -> bool:
    """Whether `make_base` puts the group HwHiAiUser into the base of this stack: into one kind of several."""
    return (stack.platform.os or "").startswith("openeuler")


def make_base(root: Path, stack: Stack) -> None:
    """The base image's files below `root`, for the stack's CANN and its distribution's package tool."""
    done: set[Path] = set()
    for name in PROGRAMS:
        _put(Path(shutil.which(name) or f"/usr/bin/{name}"), root, done)
    # What compiled packages of others are linked with, and nothing above is.
    libraries = {path.parent for path in done if path.name.startswith("libc.so")}
    for name in ("libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libutil.so.1"):
        _put(min(libraries) / name, root, done)
    core = Path(subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True).stdout.strip())
    for name in _SCRIPTS:
        _put(core / name, root, done)
    _put_python(root, done)
    for link in ("bin", "sbin"):
        (root / "usr" / link).mkdir(parents=True, exist_ok=True)
        (root / link).symlink_to(f"usr/{link}")
    # Debian and Ubuntu: sh is dash. A RUN that needs bash has to ask for it.
    (root / "usr/bin/sh").symlink_to("dash")
    for folder in ("etc/default", "root", "tmp", "var/log", "var/lib/apt/lists", "dev", "home"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    system = (stack.platform.os or "").partition("2")[0]
    # The published bases have no group of the driver's; another, given as a build argument, may.
    (root / "etc/group").write_text("root:x:0:\n" + ("HwHiAiUser:x:1000:\n" if has_driver_group(stack) else ""))
    (root / "etc/shadow").write_text("root:*:19000:0:99999:7:::\n")
    (root / "etc/login.defs").write_text("UID_MIN 1000\nGID_MIN 1000\nCREATE_HOME yes\nUSERGROUPS_ENAB yes\n")
    (root / "etc/gitconfig").write_text('[safe]\n\tdirectory = *\n[protocol "file"]\n\tallow = always\n')
    (root / "etc/os-release").write_text(f'ID={system}\nVERSION_ID="{(stack.platform.os or "")[len(system) :]}"\n')
    tool = root / "usr/bin" / ("dnf" if system == "openeuler" else "apt-get")
    tool.write_text(_TOOL)
    tool.chmod(0o755)
    for script in (*cann_scripts(stack), *compiler_scripts(stack)):
        place = root / script.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"export ASCEND_HOME_PATH={stack.cann_root}\n")


def _put(program: Path, root: Path, done: set[Path]) -> None:
    """A file with the libraries it is linked with, under the same path."""
    if program in done or not program.exists():
        return
    done.add(program)
    place = root / str(program).lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(os.path.realpath(program), place)
    linked = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    for found in re.findall(r"(/\S+) \(0x", linked):
        _put(Path(found), root, done)


def _put_python(root: Path, done: set[Path]) -> None:
    """This Python with its standard library and pip, as `python3` at its own place."""
    prefix = Path(sys.base_prefix)
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library, program = prefix / "lib" / name, prefix / "bin" / name
    _put(program, root, done)
    left_out = shutil.ignore_patterns("__pycache__", "test", "tests", "idlelib", "tkinter", "site-packages", "config-*")
    shutil.copytree(library, root / str(library).lstrip("/"), ignore=left_out, dirs_exist_ok=True)
    for module in (library / "lib-dynload").glob("*.so"):
        _put(module, root, done)
    site = root / str(library).lstrip("/") / "site-packages"
    bundled = next((library / "ensurepip" / "_bundled").glob("pip-*.whl"), None)
    if bundled is None:  # a distribution's own Python may keep it elsewhere, and its site-packages too
        pytest.skip(f"the Python at {prefix} brings no pip along")
    with zipfile.ZipFile(bundled) as wheel:
        wheel.extractall(site)
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    (root / "usr/bin/python3").symlink_to(program)


def wheel_name(package: str) -> str:
    return re.sub(r"[-.]+", "_", package)


def make_wheel(folder: Path, package: str, number: str) -> str:
    """A wheel that holds one module; its sha256."""
    name = wheel_name(package)
    path, info = folder / f"{name}-{number}-py3-none-any.whl", f"{name}-{number}.dist-info"
    parts = {
        f"{name}.py": f"version = {number!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {number}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    parts[f"{info}/RECORD"] = "".join(f"{part},,\n" for part in (*parts, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as wheel:
        for part, text in parts.items():
            wheel.writestr(part, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_index(folder: Path, stack: Stack) -> Lock:
    """An index of tiny wheels of everything the stack pins, and of one package beside; the lock that names them."""
    built = {source.name.lower() for source in stack.git_sources}
    wanted = [(pin.name, pin.version, pin.index) for pin in stack.pins if pin.is_python and pin.name not in built]
    packages = []
    for name, number, label in (*wanted, ("stand-in", "1.0", None)):
        place = folder / "simple" / name
        place.mkdir(parents=True)
        digest = make_wheel(place, name, number)
        file = next(place.glob("*.whl")).name
        (place / "index.html").write_text(f'<a href="{file.replace("+", "%2B")}#sha256={digest}">{file}</a>\n')
        packages.append(LockedPackage(name, number, (digest,), label, ("stack",)))
    packages.sort(key=lambda package: package.name)
    return Lock(stack.name, stack.platform.tag, f"npuenv {version('npuenv')}", tuple(packages), ())


def make_repository(folder: Path, source: GitSource) -> Path:
    """A repository whose tag or branch is the source's ref, with a tree that builds itself."""
    place = folder / source.name
    place.mkdir(parents=True)
    name = wheel_name(source.name.lower())
    (place / "backend.py").write_text(_BACKEND.format(name=name, version="1.0", seen=_SEEN))
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (place / "pyproject.toml").write_text(system)
    identity = {f"GIT_{who}_{what}": "x@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", **identity}
    ref = ("branch", "-M", source.ref) if source.is_moving else ("tag", source.ref)
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "x"), ref):
        subprocess.run(["git", "-C", str(place), *words], env=env, check=True, capture_output=True)
    return place
