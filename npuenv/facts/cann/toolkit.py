"""CANN and its NNAL package: where they are, which version, which place said so, and every other CANN beside them."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from npuenv.core import versions
from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.collector import FactGroup, fact, file_text, first_line, line_with, made_of, of_file, pairs
from npuenv.host import Host, PathState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


T = TypeVar("T")
_VERSION = r"[0-9]+\.[0-9A-Za-z.]+(?:[-_][0-9A-Za-z.]+)?"
# 8.5.0, 9.1.0-beta.1, 8.3.RC1; not 7.6.0.1.220 or 8.3.T5.0.B028, which count a part.
_RELEASE = r"[0-9]+\.[0-9]+\.(?:[0-9]+|RC[0-9]+)(?:[-.](?:alpha|beta)\.?[0-9]+)?(?:_[0-9]{8,})?"
# What torch_npu looks for under ASCEND_HOME_PATH, in its order (torch_npu 2.13.0, _init/registry/registry_manager.py).
_NEEDED_PARTS = ("runtime", "compiler")
_INSTALL_RECORD = "/etc/Ascend/ascend_cann_install.info"  # `Install_Path=/usr/local/Ascend`
# Greedy: in /data/cann/cann-9.0.0/lib64 it is the inner folder.
_HOME = r"(?P<home>.*/(?:(?:ascend-toolkit|nnae|nnrt)/[^/]+|cann(?:-[0-9][^/]*)?))(?:/|$)"
_OTHERS = r"/(?:nnal|driver|firmware)(?:/|$)"  # beside CANN, not of it
# The folder `latest` of the older layout is a folder of links, one a part: latest/compiler -> ../8.3.RC1/compiler.
_LINKED_PARTS = ("compiler", "runtime", "opp", "toolkit")
_PATH_LISTS = ("LD_LIBRARY_PATH", "PYTHONPATH", "PATH")
_SINGLE_PATHS = (
    "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "ASCEND_AICPU_PATH", "TOOLCHAIN_HOME",
)  # fmt: skip


class Cann(NamedTuple):
    """One CANN toolkit."""

    root: str
    version: str  # as printed: 8.3.RC1, 8.5.0
    inner_version: str  # V100R001C25SPC001B232; "" where only the short version is known
    arch: str  # "" where the file does not say
    layout: str  # "cann" (from 8.5 on) or "ascend-toolkit"
    answered_by: str  # the variable or the folder that led here
    set_env: str  # the script to source; "" where it is not there
    missing_parts: tuple[str, ...]
    has_opp: bool
    torn: str = ""  # an install file that is there and names no version; another file then answered
    has_install_file: bool = True  # an ascend_*_install.info lies where installers leave it


class Closed(NamedTuple):
    """A folder on the way to a toolkit that this user may not look into."""

    path: str  # the outermost one that is shut
    said: str  # the variable or folder that leads here


class Nnal(NamedTuple):
    """The acceleration library (ATB) beside CANN."""

    root: str
    version: str
    answered_by: str


def cann(host: Host, arch: str | None) -> Fact[Cann]:
    """The toolkit that the session would use: variables first, then the usual folders; the first readable one answers.

    `arch` is the machine's: its folder `<arch>-linux` is asked first.
    Unknown when there is a toolkit folder whose version cannot be read, or a place that cannot be looked at.
    """
    return _first(_places(host), lambda root, said: read(host, root, said, arch))


def in_toolkit(reader: Callable[..., Fact[Any]], *needs: str) -> Any:
    """Declares a fact whose reader gets the folder of `cann.toolkit` after the host; absent where there is none."""

    def read(host: Host, toolkit: Fact[Cann], *given: Any) -> Fact[Any]:
        if toolkit.value is None:
            return absent(Evidence("CANN", "no toolkit"))
        return reader(host, toolkit.value.root, *given)

    return fact(read, "cann.toolkit", *needs)


def closed(host: Host) -> Fact[Closed]:
    """The first place of a toolkit that the permissions shut; the variables' places come first."""
    for said, root in _places(host):
        looked = host.look(root)
        if looked.state is PathState.FOLDER:
            break
        if looked.state is PathState.UNREADABLE and "permission" in looked.error.casefold():
            path, above = root, root.rpartition("/")[0]
            while above and host.look(above).state is PathState.UNREADABLE:
                path, above = above, above.rpartition("/")[0]
            return known(Closed(path, said), Evidence(root, looked.error))
    return absent(Evidence("CANN", "no folder is shut"))


def opp(host: Host) -> Fact[str]:
    """What ASCEND_OPP_PATH names: "folder" where all is well; absent where it is not set or names nothing."""
    path = host.environ().get("ASCEND_OPP_PATH", "")
    if not path:
        return absent(Evidence("environment", "ASCEND_OPP_PATH is not set"))
    looked = host.look(path)
    evidence = Evidence(path, looked.error or looked.state.value)
    if looked.state is PathState.UNREADABLE:
        return unknown(evidence)
    return absent(evidence) if looked.state is PathState.ABSENT else known(looked.state.value, evidence)


def nnal(host: Host) -> Fact[Nnal]:
    """ATB, by ATB_HOME_PATH or in the usual folders."""
    return _first(_nnal_places(host), lambda root, said: read_nnal(host, root, said))


def _first(places: Iterator[tuple[str, str]], read: Callable[[str, str], Fact[T]]) -> Fact[T]:
    """The first known answer; else unknown if any place was there but unreadable; else absent with all places."""
    tried: list[Evidence] = []
    is_unclear = False
    for said, root in places:
        fact = read(root, said)
        if fact.is_known:
            return fact
        is_unclear = is_unclear or fact.state is State.UNKNOWN
        tried += fact.evidence
    return unknown(*tried) if is_unclear else absent(*tried)


def _places(host: Host) -> Iterator[tuple[str, str]]:
    """(who says so, folder), in the order of search, no folder twice."""
    environ = host.environ()
    seen: set[str] = set()
    named = [(name, environ.get(name, "").rstrip("/")) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")]
    for said, root in named:
        if root and root not in seen:
            seen.add(root)
            yield said, root
    for base in bases(host):
        # Folders `cann-X` without the link `cann`, as conda packages leave them; the last name first.
        names = (name for name in host.look(base).names if re.fullmatch(r"cann-[0-9]\S*", name))
        versioned = [f"{base}/{name}" for name in sorted(names, reverse=True)]
        for root in (f"{base}/cann", f"{base}/ascend-toolkit/latest", *versioned):
            if root not in seen:
                seen.add(root)
                yield root, root


def bases(host: Host) -> tuple[str, ...]:
    """The folders that installers use: of root, of other users, of conda."""
    environ = host.environ()
    own = (f"{environ[name].rstrip('/')}/Ascend" for name in ("HOME", "CONDA_PREFIX") if environ.get(name))
    return tuple(dict.fromkeys(("/usr/local/Ascend", *own)))


def read(host: Host, root: str, said: str, arch: str | None) -> Fact[Cann]:
    """The toolkit in one folder; `said` is who named it. Unknown where the folder is there and its version is not."""
    folder = host.look(root)
    if folder.state is PathState.ABSENT:
        return absent(Evidence(said if said == root else f"{said}={root}", "absent"))
    if folder.state is not PathState.FOLDER:
        return unknown(Evidence(root, folder.error or folder.state.value))
    arches = sorted(("aarch64", "x86_64"), key=lambda name: name != arch)
    fields, evidence, torn = _install_info(host, root, arches)
    version = fields.get("version", "")
    if not re.fullmatch(_VERSION, version):
        return unknown(evidence)
    is_new = "/cann" in fields.get("path", root) or re.search(r"/cann(-[^/]+)?$", root) is not None
    value = Cann(
        root=root,
        version=version,
        inner_version=fields.get("innerversion", ""),
        arch=fields.get("arch", ""),
        layout="cann" if is_new else "ascend-toolkit",
        answered_by=said,
        set_env=_set_env(host, root),
        missing_parts=tuple(part for part in _NEEDED_PARTS if part not in folder.names),
        has_opp="opp" in folder.names,
        torn=torn,
        has_install_file=bool(torn) or evidence.command.endswith("_install.info"),
    )
    return known(value, evidence)


def _install_info(host: Host, root: str, arches: Sequence[str]) -> tuple[dict[str, str], Evidence, str]:
    """The fields of the install file, or of the compiler's version file where that one is missing; the line that says
    so; and the path of an install file without a version."""
    torn = ""
    last = Evidence(root, "no ascend_toolkit_install.info")
    # ASCEND_HOME_PATH can name the folder of one architecture: .../latest/aarch64-linux.
    folders = [root] if root.endswith("-linux") else [f"{root}/{arch}-linux" for arch in arches]
    for folder in folders:
        names = [name for name in host.look(folder).names if re.fullmatch(r"ascend_\w+_install\.info", name)]
        for name in sorted(names, key=lambda name: (name != "ascend_toolkit_install.info", name)):
            text = file_text(host, f"{folder}/{name}")
            last = Evidence(f"{folder}/{name}", line_with(text.value or "", "version") or text.evidence[0].line)
            fields = pairs(text.value or "")
            if fields.get("version"):
                return fields, last, ""
            torn = torn or (f"{folder}/{name}" if text.is_known else "")
    path = f"{root}/compiler/version.info"
    text = file_text(host, path)
    fields = pairs(text.value or "")
    release = release_of(fields)
    key = "version_dir" if fields.get("version_dir", "").endswith(release) else "Version"
    if not release:
        return {}, last, torn
    return {"version": release}, Evidence(path, line_with(text.value or "", key)), torn


def release_of(fields: Mapping[str, str]) -> str:
    """The CANN release that a part's version file names; "" where it names none.

    Up to 8.5 `Version` counts the part itself (7.6.0.1.220) and `version_dir` names the release (8.0.0, CANN-7.0);
    later files have the release as `Version` and a bare `version_dir=cann`.
    """
    folder = re.sub(r"^cann-", "", fields.get("version_dir", "").strip('"'), flags=re.IGNORECASE)
    if re.fullmatch(_VERSION, folder) and versions.is_cann(folder):
        return folder
    version = fields.get("Version", "").strip('"')
    return version if re.fullmatch(_RELEASE, version) else ""


def _set_env(host: Host, root: str) -> str:
    """`set_env.sh` of the root, or of the folder above (`ascend-toolkit/set_env.sh` of the older layout)."""
    above = root.rpartition("/")[0]
    for path in (f"{root}/set_env.sh", f"{above}/set_env.sh"):
        if host.look(path).state is PathState.FILE:
            return path
    return ""


def _nnal_places(host: Host) -> Iterator[tuple[str, str]]:
    environ = host.environ()
    home = environ.get("ATB_HOME_PATH", "").rstrip("/")
    if home:
        # .../nnal/atb/latest/atb/cxx_abi_1 -> .../nnal/atb/latest, where version.info lies
        yield "ATB_HOME_PATH", re.sub(r"/atb/cxx_abi_[01]$", "", home)
    for base in bases(host):
        root = f"{base}/nnal/atb/latest"
        yield root, root


def read_nnal(host: Host, root: str, said: str) -> Fact[Nnal]:
    """The ATB in one folder, from its version file; `said` is who named it."""
    path = f"{root}/version.info"

    def parse(text: str) -> Fact[Nnal] | None:
        # `Ascend-cann-atb : 9.1.0`, then `Ascend-cann-atb Version : 9.1.0.B150`
        version = pairs(text, ":").get("Ascend-cann-atb", "")
        is_read = re.fullmatch(_VERSION, version)
        return known(Nnal(root, version, said), Evidence(path, line_with(text, "Ascend-cann-atb"))) if is_read else None

    return made_of(file_text(host, path), parse)


class CannFolder(NamedTuple):
    """One CANN folder. Links that lead to it are not installs of their own."""

    root: str
    version: str
    layout: str  # "cann" (from 8.5 on) or "ascend-toolkit"
    links: tuple[str, ...]  # links that lead here


class Installs(NamedTuple):
    """What is installed side by side."""

    found: tuple[CannFolder, ...]  # by root
    dangling: tuple[str, ...]  # links `cann` and `latest` that lead nowhere
    mixed: dict[str, tuple[str, ...]]  # a folder `latest` whose parts are links into several installs -> those


class CannPath(NamedTuple):
    """One path of the session that belongs to a CANN."""

    variable: str
    position: int  # within the variable, from 0
    path: str
    home: str  # the CANN folder it lies in, as written
    real: str  # the install that this is once links are followed; "" where that cannot be told
    is_there: bool | None  # whether `home` is there; None: it cannot be looked at


def home_of(path: str) -> str:
    """The CANN folder that a path lies in; "" for a path that belongs to none.

    Example: /usr/local/Ascend/cann-8.5.0/lib64 -> /usr/local/Ascend/cann-8.5.0
    """
    match = re.match(_HOME, path)
    if match is None or re.match(_OTHERS, path[match.end("home") :]) or re.search(_OTHERS, match["home"]):
        return ""
    return match["home"]


def is_versioned(home: str) -> bool:
    """Whether a CANN folder's own name says which version it is, so that it needs no link followed."""
    return re.search(r"/(?:cann-|(?:ascend-toolkit|nnae|nnrt)/)[0-9][^/]*$", home) is not None


def real_home(host: Host, home: str) -> tuple[str, ...]:
    """The installs that a CANN folder stands for: one, or several for a `latest` whose parts differ; () if untold."""
    real = _followed(host, home)
    if not real or is_versioned(real):
        return (real,) if real else ()
    parts = {home_of(_followed(host, f"{home}/{part}")) for part in _LINKED_PARTS} - {""}
    return tuple(sorted(parts)) if parts and all(map(is_versioned, parts)) else (real,)


def installs(host: Host, arch: str | None) -> Fact[Installs]:
    """Every readable toolkit below the usual folders, the recorded one and the session's own."""
    links: dict[str, list[str]] = {}
    candidates: list[str] = []
    dangling: list[str] = []
    mixed: dict[str, tuple[str, ...]] = {}
    for base in _install_folders(host):
        found, linked = _below(host, base)
        candidates += found
        for link in linked:
            if host.look(link).state is PathState.ABSENT:
                dangling.append(link)
                continue
            homes = real_home(host, link)
            if len(homes) > 1:
                mixed[link] = homes
            for home in homes or (link,):
                links.setdefault(home, []).append(link)
    roots = dict.fromkeys((*candidates, *links))
    values = [(root, read(host, root, root, arch).value) for root in roots]
    found_all = tuple(
        CannFolder(root, value.version, value.layout, tuple(link for link in links.get(root, ()) if link != root))
        for root, value in sorted(values)
        if value is not None
    )
    lines = [Evidence(item.root, item.version) for item in found_all]
    lines += [Evidence(link, "leads nowhere") for link in dangling]
    if not lines:
        return absent(*(Evidence(base, "no CANN") for base in _install_folders(host)))
    return known(Installs(found_all, tuple(dangling), mixed), *lines)


def entries(host: Host) -> Fact[tuple[CannPath, ...]]:
    """The paths of the session's variables that belong to a CANN, in their order; absent where there is none."""
    homes: dict[str, tuple[str, bool | None]] = {}
    found: list[CannPath] = []
    for variable, position, path in _session_paths(host):
        home = home_of(path)
        if not home:
            continue
        if home not in homes:
            homes[home] = _seen(host, home)
        found.append(CannPath(variable, position, path, home, *homes[home]))
    if not found:
        return absent(Evidence("environment", "no path of a CANN"))
    lines = {item.variable: Evidence("environment", f"{item.variable}={item.path}") for item in reversed(found)}
    return known(tuple(found), *reversed(list(lines.values())))


@of_file(_INSTALL_RECORD)
def install_record(text: str) -> Fact[str] | None:
    """The folder that /etc/Ascend/ascend_cann_install.info names; build scripts source what lies there."""
    path = pairs(text).get("Install_Path", "").rstrip("/")
    return known(path, Evidence(_INSTALL_RECORD, first_line(text))) if path.startswith("/") else None


def _seen(host: Host, home: str) -> tuple[str, bool | None]:
    """(the one install it stands for or "", whether it is there)."""
    looked = host.look(home)
    if looked.state is PathState.UNREADABLE:
        return "", None
    if looked.state is PathState.ABSENT:
        return (home if is_versioned(home) else ""), False
    homes = real_home(host, home)
    return (homes[0] if len(homes) == 1 else ""), True


def _session_paths(host: Host) -> Iterator[tuple[str, int, str]]:
    environ = host.environ()
    for variable in _SINGLE_PATHS:
        if environ.get(variable):
            yield variable, 0, posixpath.normpath(environ[variable])
    for variable in _PATH_LISTS:
        for position, path in enumerate(environ.get(variable, "").split(":")):
            if path.startswith("/"):
                yield variable, position, posixpath.normpath(path)


def _install_folders(host: Host) -> tuple[str, ...]:
    """The folders that can hold installs, no folder twice."""
    record = install_record(host).value
    home = home_of(posixpath.normpath(host.environ().get("ASCEND_HOME_PATH", "") or "/"))
    above = posixpath.dirname(home.replace("/ascend-toolkit/", "/")) if home else ""
    named = (*bases(host), *(base for base in (record, above) if base and base != "/"))
    return tuple(dict.fromkeys(named))


def _below(host: Host, base: str) -> tuple[list[str], list[str]]:
    """(version folders, links) of both layouts below a folder."""
    names, older = host.look(base).names, host.look(f"{base}/ascend-toolkit").names
    found = [f"{base}/{name}" for name in names if re.fullmatch(r"cann-[0-9]\S*", name)]
    found += [f"{base}/ascend-toolkit/{name}" for name in older if re.fullmatch(r"[0-9]+\.[0-9]\S*", name)]
    linked = [f"{base}/cann"] if "cann" in names else []
    return found, linked + ([f"{base}/ascend-toolkit/latest"] if "latest" in older else [])


def _followed(host: Host, path: str) -> str:
    """The path with all links followed; "" where nobody can tell."""
    ran = host.run(("readlink", "-f", path))
    line = ran.out.strip()
    return line if ran.code == 0 and line.startswith("/") and "\n" not in line else ""


class ToolkitFacts(FactGroup):
    toolkit: Fact[Cann] = fact(lambda host, arch: cann(host, arch.value), "machine.arch")
    closed: Fact[Closed] = fact(
        lambda host, toolkit: absent(*toolkit.evidence) if toolkit.is_known else closed(host), "cann.toolkit"
    )
    opp: Fact[str] = fact(opp)
    nnal: Fact[Nnal] = fact(nnal)
    installs: Fact[Installs] = fact(lambda host, arch: installs(host, arch.value), "machine.arch")
    entries: Fact[tuple[CannPath, ...]] = fact(entries)
    install_record: Fact[str] = fact(install_record)
