"""Validates what an installation is given: the environment's folder, the interpreter, sources instead of repositories.

`check_target` is for a new environment, `existing_target` for one that exists.
"""

from __future__ import annotations

import os
import pkgutil
import posixpath
import sys
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.core.documents import parse_json
from npuenv.core.errors import BadInput, NothingFits
from npuenv.core.messages import Message
from npuenv.facts.conditions import dist_versions
from npuenv.facts.manifest import DAMAGED, MARKER, describe
from npuenv.host import Host, PathState
from npuenv.install.environments import EnvironmentPlace, data_folder
from npuenv.lock.file import parse_lock

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npuenv.lock.file import Lock, LockedPackage
    from npuenv.resolve.types import Stack


_NAME_VERSION = """
import json, platform, sys
print(json.dumps([*sys.version_info[:3], platform.machine(), getattr(sys, "_base_executable", None) or sys.executable]))
"""
# The last word: whose the environment is. conda lives where its own package is noted; base is such a place.
_PREFIX = """
import glob, json, os, platform, sys, sysconfig
whose = ""
if sys.prefix == sys.base_prefix:
    meta = os.path.join(sys.prefix, "conda-meta")
    if glob.glob(os.path.join(glob.escape(meta), "conda-[0-9]*.json")):
        whose = "conda"
    elif os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")):
        whose = "system"
    elif not os.path.isdir(meta):
        whose = "shared"
print(json.dumps(["%d.%d" % sys.version_info[:2], platform.machine(), sys.prefix, whose]))
"""
# MiB on disk after installation, measured; other packages count as _OTHER_MIB.
_HEAVY_MIB = {
    "torch": 715, "ray": 205, "pyarrow": 165, "transformers": 60, "torch-npu": 120, "triton-ascend": 250,
    "sympy": 30, "scipy": 120, "pandas": 75, "numpy": 62, "opencv-python-headless": 190, "llvmlite": 170,
    "torchvision": 30, "wandb": 70, "vllm": 60, "modelscope": 60,
}  # fmt: skip
_OTHER_MIB = 4
ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")
_TIMEOUT_S = 600.0
_INSTALLED = (".dist-info", ".egg-info", ".egg-link")


def check_target(host: Host, target: EnvironmentPlace, lock: Lock) -> None:
    """Passes if the environment may be created there. Raises: BadInput (foreign content, read-only, no space)."""
    check_content(host, target)
    location = nearest(host, target.root)
    if not host.look(location).is_writable:
        raise BadInput(Message("plan.target-read-only", {"path": location}), Message("plan.choose-target"))
    if not host.look(target.root).names:
        _require_room(host, location, lock.packages, Message("plan.choose-target"))


def check_content(host: Host, target: EnvironmentPlace) -> None:
    """Passes if the folder holds nothing but an environment of npuenv's own. Raises: BadInput."""
    looked = host.look(target.root)
    if looked.state is PathState.UNREADABLE:
        raise BadInput(Message("plan.target-unreadable", {"path": target.root, "why": looked.error}))
    if looked.state not in (PathState.FOLDER, PathState.ABSENT):
        raise BadInput(Message("plan.target-no-folder", {"path": target.root}), Message("plan.choose-target"))
    if ":" in target.root:  # cannot be an entry of PATH
        raise BadInput(Message("plan.target-colon", {"path": target.root}), Message("plan.choose-target"))
    managed = posixpath.join(data_folder(host.environ()), "envs", "")
    if target.link is None and target.root.startswith(managed) and not looked.names:
        args = {"path": target.root, "managed": managed}
        raise BadInput(Message("plan.target-managed", args), Message("plan.choose-target"))
    present = describe(host, target.root)
    if present is not None and present.kind == "existing":
        raise BadInput(
            Message("plan.target-existing", {"path": target.root}),
            Message("plan.into-folder-hint", {"path": target.python}),
        )
    if MARKER in looked.names and not is_ours(host, target):
        args = {"path": target.root, "file": MARKER}
        raise BadInput(Message("plan.target-unproven", args), Message("plan.target-unproven-hint", args))
    if looked.names and not is_ours(host, target):
        raise BadInput(
            Message("plan.target-foreign", {"path": target.root, "names": looked.names[:3]}),
            Message("plan.choose-target"),
        )


def existing_target(host: Host, exe: str, lock: Lock, stack: Stack) -> EnvironmentPlace:
    """The environment of a Python, as a target. Raises: BadInput: no environment, another version.

    Refused are an interpreter that others depend on (the system's, a shared one, conda's base), npuenv's own
    environment, one that npuenv made, and a read-only one.
    """
    ran = host.run((exe, "-I", "-c", _PREFIX), timeout_s=20.0)
    try:
        version, machine, prefix, whose = parse_json(ran.out) if ran.code == 0 else ("",) * 4
    except (TypeError, ValueError):
        version, machine, prefix, whose = ("",) * 4
    args = {"exe": exe, "version": stack.platform.python, "arch": stack.platform.arch}
    if not version:
        raise BadInput(Message("plan.into-no-python", args), _into_hint(host, exe))
    if (version, machine) != (stack.platform.python, stack.platform.arch):
        raise BadInput(Message("plan.into-unfit", {**args, "is": f"{version} {machine}"}), Message("plan.into-hint"))
    target = EnvironmentPlace(prefix, kind="existing")
    if not whose and os.path.realpath(prefix) == os.path.realpath(sys.prefix):
        whose = "own"
    elif not whose and host.look(target.python).state is not PathState.FILE:
        whose = "system"
    if whose:
        raise BadInput(Message(f"plan.into-{whose}", {**args, "path": prefix}), Message("plan.into-venv-hint", args))
    if _is_made(host, prefix):
        known = {"exe": exe, "path": prefix, "stack": lock.stack}
        raise BadInput(Message("plan.into-made", known), Message("plan.into-made-hint", known))
    if not host.look(prefix).is_writable:
        raise BadInput(Message("plan.target-read-only", {"path": prefix}), Message("plan.into-hint"))
    present = dist_versions(host, target.python).value or {}
    lacking = [package for package in lock.packages if present.get(package.name) != package.version]
    _require_room(host, prefix, lacking, Message("plan.make-room"))
    return target


def present_in(host: Host, target: EnvironmentPlace, python: str) -> frozenset[str]:
    """Normalised names of the distributions in an environment of Python `python` ("3.11").

    Read from the folder names, because uv counts a distribution with truncated files as installed.
    """
    names = host.look(f"{target.root}/lib/python{python}/site-packages").names
    return frozenset(canonicalize_name(name.partition("-")[0]) for name in names if name.endswith(_INSTALLED))


def _is_made(host: Host, root: str) -> bool:
    """Whether npuenv made the environment, finished or not; False for one that it only installed packages into."""
    present = describe(host, root)
    if present is None or present.kind == "existing":
        return False
    return bool(present.kind) or present.status != DAMAGED  # a damaged marker alone does not say whose it is


def _into_hint(host: Host, exe: str) -> Message:
    """The hint for a path that is no Python: the interpreter inside, if it is a folder."""
    inside = posixpath.join(exe, "bin/python")
    is_folder = host.look(exe).state is PathState.FOLDER and host.look(inside).state is PathState.FILE
    return Message("plan.into-folder-hint", {"path": inside}) if is_folder else Message("plan.into-hint")


def find_conda(host: Host) -> str:
    """The program that creates conda environments. Raises: BadInput if there is none."""
    environ = host.environ()
    home = environ.get("HOME", "")
    folders = [folder for folder in environ.get("PATH", "").split(":") if folder.startswith("/")]
    installers = ("miniconda3", "miniforge3", "anaconda3", "mambaforge")
    folders += [f"{base}/{name}/bin" for base in (home, "/opt") if base for name in installers] + ["/opt/conda/bin"]
    paths = [environ.get("CONDA_EXE", ""), *(f"{folder}/{name}" for name in ("conda", "mamba") for folder in folders)]
    for path in filter(None, paths):
        if host.look(path).state is PathState.FILE:
            return path
    raise BadInput(Message("plan.no-conda"), Message("plan.no-conda-hint"))


def require_same(host: Host, target: EnvironmentPlace, lock: Lock, *, is_replacing: bool) -> None:
    """Raises BadInput if the folder holds a finished environment of another lock or kind, which would be lost.

    An environment with a damaged marker counts as finished, and is replaced only if it is known to be npuenv's own.
    """
    present = describe(host, target.root)
    if present is None or present.status not in ("complete", DAMAGED):
        return
    # Only the lock file itself names the lock of an unfinished environment.
    locked = _lock_in(host, target) if not present.lock else None
    is_same = (locked.hash if locked else present.lock) == lock.hash
    if is_same and present.kind in ("", target.kind):
        return
    is_known = present.status == "complete" or bool(present.kind) or target.link is not None
    if is_replacing and is_known:
        return
    if is_same:
        args = {"path": target.root, "stack": present.stack, "kind": present.kind, "wanted": target.kind}
        raise BadInput(Message("install.other-kind", args), Message("install.other-kind-hint", args))
    args = {"path": target.root, "stack": present.stack, "lock": present.lock or "?", "wanted": lock.stack}
    hint = "install.other-environment-hint" if is_known else "plan.choose-target"
    raise BadInput(Message("install.other-environment", args), Message(hint))


def kept_lock(host: Host, target: EnvironmentPlace, lock: Lock) -> Lock:
    """The environment's own lock if it names the same set; else `lock`.

    A lock that was rewritten, by another tool or with other inputs, is no reason to recreate an environment.
    """
    present = _lock_in(host, target)
    return present if present is not None and present.hash == lock.hash else lock


def _lock_in(host: Host, target: EnvironmentPlace) -> Lock | None:
    """The lock in the environment; None if it is missing or invalid."""
    looked = host.look(target.own("lock.toml"))
    try:
        return parse_lock(looked.text) if looked.state is PathState.FILE else None
    except BadInput:
        return None


def damage_of(host: Host, target: EnvironmentPlace) -> tuple[Message, ...]:
    """The damage of a marker in a folder that is npuenv's own otherwise: the plan rewrites the marker."""
    present = describe(host, target.root)
    is_damaged = present is not None and present.status == DAMAGED
    args = {"path": target.root, "file": f"{target.root}/{MARKER}"}
    return (Message("install.marker-damaged", args),) if is_damaged else ()


def is_ours(host: Host, target: EnvironmentPlace) -> bool:
    """Whether the folder was made by an installation, finished or not."""
    if host.look(target.root).names == (".npuenv",):
        return True  # interrupted before the first step had written anything
    return describe(host, target.root) is not None


def room_mib(packages: Iterable[LockedPackage]) -> int:
    """An estimate of the disk space of installed packages, in MiB, without the download cache."""
    return sum(_HEAVY_MIB.get(package.name, _OTHER_MIB) for package in packages)


def find_python(host: Host, version: str, arch: str, chosen: str | None = None) -> str:
    """The base interpreter for `version` ("3.11"). Raises: BadInput (unsuitable `chosen`) or NothingFits."""
    found: dict[str, str] = {}
    for candidate in (chosen,) if chosen else _candidates(host, version):
        ran = host.run((candidate, "-I", "-c", _NAME_VERSION), timeout_s=20.0)
        if ran.code != 0:
            continue
        try:
            major, minor, micro, machine, base = parse_json(ran.out)
        except (TypeError, ValueError):
            continue
        if (f"{major}.{minor}", machine) == (version, arch):
            return str(base)
        found[str(base)] = f"{major}.{minor}.{micro} {machine}"
    listing = tuple(f"{path} ({what})" for path, what in sorted(found.items())) or (Message("plan.none"),)
    wanted = {"version": version, "arch": arch, "found": listing}
    if chosen:
        key = "plan.python-unfit" if found else "plan.python-mute"
        raise BadInput(Message(key, {**wanted, "chosen": chosen}), Message("plan.python-unfit-hint", wanted))
    raise NothingFits(Message("plan.no-python", wanted), Message("plan.get-python", {"version": version}))


def _candidates(host: Host, version: str) -> list[str]:
    """Interpreters to try: on PATH, then those of pyenv and conda. Exact names come first."""
    environ = host.environ()
    folders = [folder for folder in environ.get("PATH", "").split(":") if folder.startswith("/")]
    home = environ.get("HOME", "")
    installers = [posixpath.join(home, ".pyenv/versions"), posixpath.join(home, "miniconda3/envs"), "/opt/conda/envs"]
    installers += [posixpath.join(environ["CONDA_PREFIX"], "envs")] if environ.get("CONDA_PREFIX") else []
    several = [posixpath.join(location, name, "bin") for location in installers for name in host.look(location).names]
    names = (f"python{version}", "python3", "python")
    paths = [
        posixpath.join(folder, name) for name in names for folder in [*folders, "/usr/bin", "/usr/local/bin", *several]
    ]
    return [path for path in dict.fromkeys(paths) if host.look(path).state is PathState.FILE]


def nearest(host: Host, path: str) -> str:
    """The path itself, or its nearest existing parent."""
    while host.look(path).state is PathState.ABSENT and posixpath.dirname(path) not in ("", path):
        path = posixpath.dirname(path)
    return path if host.look(path).state is not PathState.ABSENT else "."


def _require_room(host: Host, location: str, packages: Iterable[LockedPackage], hint: Message) -> None:
    """Source: `df -Pk`; a real last line: `/dev/vda 264231588 23950256 82834020 23% /`."""
    ran = host.run(("df", "-Pk", location))
    words = ran.out.strip().splitlines()[-1].split() if ran.code == 0 and ran.out.strip() else []
    if len(words) < 4 or not words[3].isdigit():
        return  # without an answer here, the step that fills the disk reports it
    free_mib, wanted_mib = int(words[3]) // 1024, room_mib(packages)
    if free_mib < wanted_mib:
        args = {"path": location, "free": free_mib, "wanted": wanted_mib}
        raise BadInput(Message("plan.disk-too-small", args), hint)


def digests_of(host: Host, given: Mapping[str, str], stack: Stack, python: str) -> dict[str, str]:
    """Normalised source name -> digest of the supplied archive (`sha256:HEX`) or folder (`tree:HEX`).

    Raises: BadInput for a name the stack does not build from source, and for a path that is no archive and no folder.
    """
    known = {str(canonicalize_name(source.name)) for source in stack.git_sources}
    found = {}
    for name, path in given.items():
        if canonicalize_name(name) not in known:
            args = {"name": name, "stack": stack.name, "known": tuple(sorted(known)) or (Message("plan.none"),)}
            hint = Message("plan.source-unknown-hint", args) if known else Message("plan.no-sources-hint", args)
            raise BadInput(Message("plan.source-unknown", args), hint)
        found[str(canonicalize_name(name))] = _source_digest(host, name, path, python)
    return found


def is_source_folder(path: str, digest: str) -> bool:
    """Whether a supplied source is a folder; without a digest, judged by its name."""
    return digest.startswith("tree:") if digest else not path.endswith(ARCHIVES)


def unpacker_text() -> str:
    """The text of the program that unpacks supplied sources."""
    text = pkgutil.get_data("npuenv.install", "unpacker.py")
    assert text is not None
    return text.decode()


def _source_digest(host: Host, name: str, path: str, python: str) -> str:
    looked = host.look(path)
    args = {"name": name, "path": path}
    if looked.state is PathState.UNREADABLE:
        raise BadInput(Message("plan.source-unreadable", {**args, "why": looked.error}))
    is_archive = looked.state is PathState.FILE and path.endswith(ARCHIVES)
    if not (is_archive or looked.state is PathState.FOLDER):
        raise BadInput(Message("plan.source-no-archive", {**args, "kinds": ARCHIVES}))
    ran = host.run((python, "-I", "-B", "-c", unpacker_text(), "digest", path), timeout_s=_TIMEOUT_S)
    if ran.code != 0:
        lines = (ran.out + ran.err).strip().splitlines() or [""]
        raise BadInput(Message("plan.source-unreadable", {**args, "why": lines[-1]}))
    return ran.out.strip()
