"""What CANN leans on around it: ATB's libraries, folders that it writes to, files that variables name, compilers."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.cann.toolkit import in_toolkit
from npuenv.facts.collector import Group, fact
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.host.base import Host

_ABI = re.compile(r"/cxx_abi_([01])(?:/|$)")
_WRITTEN = ("ASCEND_PROCESS_LOG_PATH",)  # the other folders of caches are asked with those of the machine
_NAMED = ("RANK_TABLE_FILE", "HCCL_WHITELIST_FILE", "HCCL_RDMA_QP_PORT_CONFIG_PATH", "TORCH_ACL_INIT_CONFIG_PATH")
_TORCH_CONFIG = "torch/share/cmake/Torch/TorchConfig.cmake"
_COMPILER_VERSION = re.compile(r"(?<![\w.])([0-9]+\.[0-9]+(?:\.[0-9]+)?)(?![\w.-])")


@dataclass(frozen=True, slots=True)
class Atb:
    """What ATB_HOME_PATH names."""

    home: str
    abi: str  # "0" or "1", the C++ ABI of the libraries; "" where the path does not say
    is_there: bool
    has_library: bool  # lib/libatb.so is in it


@dataclass(frozen=True, slots=True)
class Written:
    """A folder that CANN, torch or a compiler writes to."""

    named_by: str  # the variable, or "HOME" for the usual places below it
    path: str
    state: str  # "writable", "read-only", "no folder", or why it cannot be looked at


@dataclass(frozen=True, slots=True)
class Named:
    """A file that a variable names."""

    variable: str
    path: str
    is_there: bool
    is_link: bool


def atb(host: Host) -> Fact[Atb]:
    """The ATB of the session; absent where ATB_HOME_PATH is not set."""
    home = host.environ().get("ATB_HOME_PATH", "").rstrip("/")
    if not home:
        return absent(Evidence("environment", "ATB_HOME_PATH is not set"))
    looked, abi = host.look(home), _ABI.search(home)
    if looked.state is PathState.UNREADABLE:
        return unknown(Evidence(home, looked.error))
    is_there = looked.state is PathState.FOLDER
    library = "libatb.so" in host.look(f"{home}/lib").names if is_there else False
    line = ("lib/libatb.so" if library else "no lib/libatb.so") if is_there else looked.state.value
    return known(Atb(home, abi[1] if abi else "", is_there, library), Evidence(home, line))


def writes(host: Host) -> Fact[tuple[Written, ...]]:
    """The folders for CANN's caches and logs, as variables name them or as they lie below HOME.

    One that is not there yet is left out: it will be made, and whether it can be is a question of the folder above.
    """
    found = [Written(name, path, state) for name, path in _places(host) if (state := _state(host, path))]
    lines = (Evidence(f"{item.named_by} ({item.path})", item.state) for item in found)
    return known(tuple(found), *lines) if found else absent(Evidence("environment", "no folder of CANN's to write to"))


def named_files(host: Host) -> Fact[tuple[Named, ...]]:
    """The files that variables name, and the libraries that LD_PRELOAD names by their path."""
    environ = host.environ()
    paths = [(name, environ[name]) for name in _NAMED if environ.get(name, "").startswith("/")]
    preloaded = re.split(r"[\s:]+", environ.get("LD_PRELOAD", ""))
    paths += [("LD_PRELOAD", path) for path in preloaded if path.startswith("/") and "$" not in path]
    found = tuple(_named(host, name, path) for name, path in paths)
    lines = (Evidence(item.variable, f"{item.path}: {'there' if item.is_there else 'absent'}") for item in found)
    return known(found, *lines) if found else absent(Evidence("environment", "no variable names a file"))


def compilers(host: Host, timeout_s: float) -> Fact[dict[str, str]]:
    """gcc, g++ and cmake on the path -> version; absent where there is none.

    Real first lines: `gcc (Ubuntu 11.4.0-1ubuntu1~22.04.3) 11.4.0`, `gcc (GCC) 12.3.1`, `cmake version 4.3.2`.
    """
    found: dict[str, str] = {}
    lines: list[Evidence] = []
    for program in ("gcc", "g++", "cmake"):
        ran = host.run((program, "--version"), timeout_s=timeout_s)
        first = ran.out.strip().splitlines()[0] if ran.code == 0 and ran.out.strip() else ""
        numbers = _COMPILER_VERSION.findall(re.sub(r"\([^)]*\)", " ", first))
        if numbers:
            found[program] = numbers[0]
            lines.append(Evidence(f"{program} --version", first))
        elif not ran.is_absent:
            why = "timed out" if ran.timed_out else first or f"exit {ran.code}"
            lines.append(Evidence(f"{program} --version", why))
    if found:
        return known(found, *lines)
    return unknown(*lines) if lines else absent(Evidence("gcc --version", "no such program"))


def torch_abi(host: Host, python: str) -> Fact[str]:
    """The C++ ABI that torch of this interpreter was built with: "0" or "1", from its CMake file, nothing imported.

    A file without the flag is of a torch that has only the new one (2.13.0+cpu: no flag, and the new ABI).
    """
    prefix = posixpath.dirname(posixpath.dirname(python))
    if not python.startswith("/") or not prefix:
        return absent(Evidence(python, "no environment of its own"))
    for lib in ("lib", "lib64"):
        names = host.look(f"{prefix}/{lib}").names
        for name in (name for name in names if re.fullmatch(r"python3\.[0-9]+", name)):
            path = f"{prefix}/{lib}/{name}/site-packages/{_TORCH_CONFIG}"
            looked = host.look(path)
            if looked.state is PathState.FILE and "find_package" in looked.text:
                match = re.search(r"^.*_GLIBCXX_USE_CXX11_ABI=([01]).*$", looked.text, re.MULTILINE)
                return known(match[1] if match else "1", Evidence(path, match[0].strip() if match else "no ABI flag"))
    return absent(Evidence(prefix, f"no {_TORCH_CONFIG}"))


def _places(host: Host) -> Iterator[tuple[str, str]]:
    """(who names it, path)."""
    environ = host.environ()
    for name in _WRITTEN:
        if environ.get(name, "").startswith("/"):
            yield name, posixpath.normpath(environ[name])
    home = environ.get("HOME", "").rstrip("/")
    for name, below in (("ASCEND_PROCESS_LOG_PATH", "ascend"), ("ASCEND_CACHE_PATH", "atc_data")):
        if home and not environ.get(name):
            yield "HOME", f"{home}/{below}"


def _state(host: Host, path: str) -> str:
    """What writing there would meet; "" where nothing is there yet."""
    looked = host.look(path)
    if looked.state is PathState.ABSENT:
        return ""
    if looked.state is PathState.UNREADABLE:
        return looked.error or "unreadable"
    if looked.state is not PathState.FOLDER:
        return "no folder"
    return "writable" if looked.is_writable else "read-only"


def _named(host: Host, variable: str, path: str) -> Named:
    state = host.look(path).state
    is_link = variable == "RANK_TABLE_FILE" and host.run(("readlink", path)).code == 0
    return Named(variable, path, state is not PathState.ABSENT, is_link)


class SurroundingFacts(Group):
    atb: Fact[Atb] = fact(atb)
    torch_abi: Fact[str] = fact(lambda host: torch_abi(host, host.python))  # "0" or "1"
    writes: Fact[tuple[Written, ...]] = fact(writes)
    named_files: Fact[tuple[Named, ...]] = fact(named_files)
    compilers: Fact[dict[str, str]] = in_toolkit(lambda host, _: compilers(host, host.timeout(2, 10)))
