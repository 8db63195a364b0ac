"""CANN and NNAL on this machine, and the session's paths to them. Here: the release of each part, the kernels (ops)
package, for which chips there are operators, and what surrounds the toolkit.

A half-finished upgrade leaves parts of two releases in one folder. Chips are named as in the folders: ascend910b (A2),
ascend910_93 (A3), ascend310p.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.cann.toolkit import ToolkitFacts, in_toolkit, release_of
from npuenv.facts.collector import fact, file_text, line_with, made_of, pairs
from npuenv.host import Host, PathState

if TYPE_CHECKING:
    from collections.abc import Iterator


_PARTS = ("compiler", "runtime", "opp", "toolkit", "hccl", "opp_kernel")
# `runtime_running_version=[7.6.0.1.220:8.0.0]`, older `=[1.83.T8.0.B128:CANN-1.83]`, later also `=[8.5.2]`.
_RUNNING = r"^\s*(?P<part>[A-Za-z0-9_-]+)_(?P<kind>running|upgrade|installed)_version\s*=\s*\[(?P<value>[^\]\s]+)\]\s*$"
_OPS_PACKAGE = r"(?i)Ascend-cann-(?:kernels-)?(?P<chip>[0-9A-Za-z_]+?)(?:-ops)?$"
TBE = "op_impl/ai_core/tbe"
_CHIP = r"ascend[0-9][0-9a-z_]*"
# The one operator group that a toolkit without its kernels package brings.
_TOOLKIT_ONLY = frozenset({"ops_oam"})
_ABI = r"/cxx_abi_([01])(?:/|$)"
_WRITTEN = ("ASCEND_PROCESS_LOG_PATH",)  # the other folders of caches are asked with those of the machine
_NAMED = ("RANK_TABLE_FILE", "HCCL_WHITELIST_FILE", "HCCL_RDMA_QP_PORT_CONFIG_PATH", "TORCH_ACL_INIT_CONFIG_PATH")
_TORCH_CONFIG = "torch/share/cmake/Torch/TorchConfig.cmake"
_COMPILER_VERSION = r"(?<![\w.])([0-9]+\.[0-9]+(?:\.[0-9]+)?)(?![\w.-])"


class Part(NamedTuple):
    """One part's version file."""

    name: str
    number: str  # the part's own count, like 7.6.0.1.220; "" where the file has none
    release: str  # the CANN release it is of; "" where the file names none
    place: str


class Ops(NamedTuple):
    """The kernels package, called ops from 8.5 on."""

    version: str
    chip: str  # as in the package's name: 910b, 310p, A3; "" where only a version is known
    place: str


class RunningParts(NamedTuple):
    """What version.cfg says: the release of each part that runs, was upgraded to, and was installed."""

    running: dict[str, str]
    upgrade: dict[str, str]
    installed: dict[str, str]


def parts(host: Host, root: str) -> Fact[tuple[Part, ...]]:
    """The version files of a CANN's parts; absent where there is none."""
    found: list[Part] = []
    lines: list[Evidence] = []
    for name in _PARTS:
        for path in (f"{root}/{name}/version.info", f"{root}/share/info/{name}/version.info"):
            text = file_text(host, path).value
            if text is None:
                continue
            fields = pairs(text)
            part = Part(name, fields.get("Version", "").strip('"'), release_of(fields), path)
            found.append(part)
            lines.append(Evidence(path, line_with(text, "version_dir") or line_with(text, "Version")))
            break
    return known(tuple(found), *lines) if found else absent(Evidence(root, "no version file of a part"))


def running(host: Host, root: str) -> Fact[RunningParts]:
    """version.cfg of a CANN. Unknown where the file is there and holds no version."""
    path = f"{root}/version.cfg"

    def parse(text: str) -> Fact[RunningParts] | None:
        read = read_config(text)
        line = next((line.strip() for line in text.splitlines() if re.match(_RUNNING, line)), "")
        return known(read, Evidence(path, line)) if read.running or read.upgrade or read.installed else None

    return made_of(file_text(host, path), parse)


def read_config(text: str) -> RunningParts:
    """The versions of version.cfg by kind and part.

    Example: `opp_running_version=[7.6.0.1.220:8.0.0]` -> running {"opp": "8.0.0"}
    """
    kinds: dict[str, dict[str, str]] = {"running": {}, "upgrade": {}, "installed": {}}
    for line in text.splitlines():
        match = re.match(_RUNNING, line)
        if match:
            number, mark, release = match["value"].partition(":")
            value = re.sub(r"^CANN-", "", release if mark else number)
            kinds[match["kind"]].setdefault(match["part"], value)
    return RunningParts(kinds["running"], kinds["upgrade"], kinds["installed"])


def ops(host: Host, root: str, arch: str | None) -> Fact[Ops]:
    """The kernels package: its own install file, or before 8.5 the version file of its folder."""
    arches = (arch,) if arch else ("aarch64", "x86_64")
    folders = [root] if root.endswith("-linux") else [f"{root}/{name}-linux" for name in arches]
    for folder in folders:
        path = f"{folder}/ascend_ops_install.info"
        text = file_text(host, path)
        if text.value is not None:
            fields = pairs(text.value)
            name = re.match(_OPS_PACKAGE, fields.get("package_name", ""))
            if not fields.get("version"):
                return unknown(*text.evidence)
            line = line_with(text.value, "package_name") or line_with(text.value, "version")
            return known(Ops(fields["version"], name["chip"] if name else "", path), Evidence(path, line))
    path = f"{root}/opp_kernel/version.info"

    def older(text: str) -> Fact[Ops] | None:
        release = release_of(pairs(text))
        return known(Ops(release, "", path), Evidence(path, line_with(text, "version_dir"))) if release else None

    return made_of(file_text(host, path), older)


class Kernels(NamedTuple):
    """The operators that came with CANN."""

    folder: str
    chips: tuple[str, ...]  # those with operators
    hollow: tuple[str, ...]  # those with a folder and next to nothing in it


class Custom(NamedTuple):
    """One package of custom operators."""

    path: str
    named_by: str  # ASCEND_CUSTOM_OPP_PATH, or the config.ini that lists it
    is_there: bool
    chips: tuple[str, ...] | None  # with kernels; None: it has no folder of kernels, or it cannot be listed


class CustomOps(NamedTuple):
    """Every package of custom operators that CANN would load."""

    packages: tuple[Custom, ...]
    unreadable: tuple[str, ...]  # config.ini files that this user may not read; CANN stops on one


def kernels(host: Host, opp: str) -> Fact[Kernels]:
    """The chips with kernels below an opp folder. Known and empty where the folder above lists none of them; unknown
    where that one cannot be seen either."""
    above = f"{opp}/built-in/{TBE}"
    folder = f"{above}/kernel"
    looked = host.look(folder)
    if looked.state is PathState.FOLDER:
        chips = [name for name in looked.names if re.fullmatch(_CHIP, name)]
        hollow = [name for name in chips if set(host.look(f"{folder}/{name}").names) <= _TOOLKIT_ONLY]
        full = tuple(name for name in chips if name not in hollow)
        return known(Kernels(folder, full, tuple(hollow)), Evidence(folder, " ".join(chips) or "empty"))
    parent = host.look(above)
    if looked.state is PathState.ABSENT and parent.state is PathState.FOLDER and parent.names:
        return known(Kernels(folder, (), ()), Evidence(above, " ".join(parent.names[:8])))
    return unknown(Evidence(folder, looked.error or looked.state.value))


def custom(host: Host, opp: str) -> Fact[CustomOps]:
    """The packages that ASCEND_CUSTOM_OPP_PATH and vendors/config.ini name; absent where neither names any."""
    named = [path for path in host.environ().get("ASCEND_CUSTOM_OPP_PATH", "").split(":") if path.startswith("/")]
    packages = [_package(host, posixpath.normpath(path), "ASCEND_CUSTOM_OPP_PATH") for path in dict.fromkeys(named)]
    config = f"{opp}/vendors/config.ini"
    unreadable: list[str] = []
    if opp:
        text = file_text(host, config)
        names = pairs(text.value or "").get("load_priority", "").split(",")
        packages += [_package(host, f"{opp}/vendors/{name.strip()}", config) for name in names if name.strip()]
        unreadable += [config] if host.look(config).state is PathState.UNREADABLE else []
    lines = [Evidence(item.named_by, f"{item.path}{'' if item.is_there else ': absent'}") for item in packages]
    lines += [Evidence(path, "unreadable") for path in unreadable]
    if not lines:
        return absent(Evidence(config, "no custom operators"))
    return known(CustomOps(tuple(packages), tuple(unreadable)), *lines)


def _package(host: Host, path: str, named_by: str) -> Custom:
    if host.look(path).state is not PathState.FOLDER:
        return Custom(path, named_by, False, None)
    looked = host.look(f"{path}/{TBE}/kernel")
    chips = tuple(name for name in looked.names if re.fullmatch(_CHIP, name))
    return Custom(path, named_by, True, chips if looked.state is PathState.FOLDER and chips else None)


def _opp(host: Host, root: str) -> str:
    return host.environ().get("ASCEND_OPP_PATH", "").rstrip("/") or f"{root}/opp"


class Atb(NamedTuple):
    """What ATB_HOME_PATH names."""

    home: str
    abi: str  # "0" or "1", the C++ ABI of the libraries; "" where the path does not say
    is_there: bool
    has_library: bool  # lib/libatb.so is in it


class WrittenFolder(NamedTuple):
    """A folder that CANN, torch or a compiler writes to."""

    named_by: str  # the variable, or "HOME" for the usual places below it
    path: str
    state: str  # "writable", "read-only", "no folder", or why it cannot be looked at


class Named(NamedTuple):
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
    looked, abi = host.look(home), re.search(_ABI, home)
    if looked.state is PathState.UNREADABLE:
        return unknown(Evidence(home, looked.error))
    is_there = looked.state is PathState.FOLDER
    library = "libatb.so" in host.look(f"{home}/lib").names if is_there else False
    line = ("lib/libatb.so" if library else "no lib/libatb.so") if is_there else looked.state.value
    return known(Atb(home, abi[1] if abi else "", is_there, library), Evidence(home, line))


def writes(host: Host) -> Fact[tuple[WrittenFolder, ...]]:
    """The folders for CANN's caches and logs, as variables name them or as they lie below HOME.

    One that is not there yet is left out: it will be made, and whether it can be is a question of the folder above.
    """
    found = [WrittenFolder(name, path, state) for name, path in _places(host) if (state := _state(host, path))]
    lines = (Evidence(f"{item.named_by} ({item.path})", item.state) for item in found)
    return known(tuple(found), *lines) if found else absent(Evidence("environment", "no folder of CANN's to write to"))


def named_files(host: Host) -> Fact[tuple[Named, ...]]:
    """The files that variables name, and the libraries that LD_PRELOAD names by their path."""
    environ = host.environ()
    paths = [(name, environ[name]) for name in _NAMED if environ.get(name, "").startswith("/")]
    preloaded = re.split(r"[\s:]+", environ.get("LD_PRELOAD", ""))
    paths += [("LD_PRELOAD", path) for path in preloaded if path.startswith("/") and "$" not in path]
    found = tuple(
        Named(
            variable=name,
            path=path,
            is_there=host.look(path).state is not PathState.ABSENT,
            is_link=name == "RANK_TABLE_FILE" and host.run(("readlink", path)).code == 0,
        )
        for name, path in paths
    )
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
        numbers = re.findall(_COMPILER_VERSION, re.sub(r"\([^)]*\)", " ", first))
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


class CannFacts(ToolkitFacts):
    """What is true of CANN and of the packages beside it."""

    parts: Fact[tuple[Part, ...]] = in_toolkit(parts)
    running: Fact[RunningParts] = in_toolkit(running)
    ops: Fact[Ops] = in_toolkit(lambda host, root, arch: ops(host, root, arch.value), "machine.arch")
    kernels: Fact[Kernels] = in_toolkit(lambda host, root: kernels(host, _opp(host, root)))
    custom: Fact[CustomOps] = in_toolkit(lambda host, root: custom(host, _opp(host, root)))
    atb: Fact[Atb] = fact(atb)
    torch_abi: Fact[str] = fact(lambda host: torch_abi(host, host.python))  # "0" or "1"
    writes: Fact[tuple[WrittenFolder, ...]] = fact(writes)
    named_files: Fact[tuple[Named, ...]] = fact(named_files)
    compilers: Fact[dict[str, str]] = in_toolkit(lambda host, _: compilers(host, host.timeout(2, 10)))
