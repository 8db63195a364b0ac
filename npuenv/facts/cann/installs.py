"""Every CANN on the machine, where its links lead, and which one each path of the session belongs to.

`home_of` and `real_home` say to which install a path belongs.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.cann import toolkit
from npuenv.facts.read import file_text, pairs
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.host.base import Host

INSTALL_RECORD = "/etc/Ascend/ascend_cann_install.info"  # `Install_Path=/usr/local/Ascend`
# Greedy: in /data/cann/cann-9.0.0/lib64 it is the inner folder.
_HOME = re.compile(r"(?P<home>.*/(?:(?:ascend-toolkit|nnae|nnrt)/[^/]+|cann(?:-[0-9][^/]*)?))(?:/|$)")
_OTHERS = re.compile(r"/(?:nnal|driver|firmware)(?:/|$)")  # beside CANN, not of it
# The folder `latest` of the older layout is a folder of links, one a part: latest/compiler -> ../8.3.RC1/compiler.
_LINKED_PARTS = ("compiler", "runtime", "opp", "toolkit")
_PATH_LISTS = ("LD_LIBRARY_PATH", "PYTHONPATH", "PATH")
_SINGLE_PATHS = (
    "ASCEND_HOME_PATH",
    "ASCEND_TOOLKIT_HOME",
    "ASCEND_OPP_PATH",
    "ASCEND_AICPU_PATH",
    "TOOLCHAIN_HOME",
)


@dataclass(frozen=True, slots=True)
class Install:
    """One CANN folder. Links that lead to it are not installs of their own."""

    root: str
    version: str
    layout: str  # "cann" (from 8.5 on) or "ascend-toolkit"
    links: tuple[str, ...]  # links that lead here


@dataclass(frozen=True, slots=True)
class Installs:
    """What is installed side by side."""

    found: tuple[Install, ...]  # by root
    dangling: tuple[str, ...]  # links `cann` and `latest` that lead nowhere
    mixed: dict[str, tuple[str, ...]]  # a folder `latest` whose parts are links into several installs -> those


@dataclass(frozen=True, slots=True)
class Entry:
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
    match = _HOME.match(path)
    if match is None or _OTHERS.match(path[match.end("home") :]) or _OTHERS.search(match["home"]):
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
    for base in _bases(host):
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
    read = [(root, toolkit.read(host, root, root, arch).value) for root in roots]
    found_all = tuple(
        Install(root, value.version, value.layout, tuple(link for link in links.get(root, ()) if link != root))
        for root, value in sorted(read)
        if value is not None
    )
    lines = [Evidence(item.root, item.version) for item in found_all]
    lines += [Evidence(link, "leads nowhere") for link in dangling]
    if not lines:
        return absent(*(Evidence(base, "no CANN") for base in _bases(host)))
    return known(Installs(found_all, tuple(dangling), mixed), *lines)


def entries(host: Host) -> Fact[tuple[Entry, ...]]:
    """The paths of the session's variables that belong to a CANN, in their order; absent where there is none."""
    homes: dict[str, tuple[str, bool | None]] = {}
    found: list[Entry] = []
    for variable, position, path in _session_paths(host):
        home = home_of(path)
        if not home:
            continue
        if home not in homes:
            homes[home] = _seen(host, home)
        found.append(Entry(variable, position, path, home, *homes[home]))
    if not found:
        return absent(Evidence("environment", "no path of a CANN"))
    lines = {item.variable: Evidence("environment", f"{item.variable}={item.path}") for item in reversed(found)}
    return known(tuple(found), *reversed(list(lines.values())))


def install_record(host: Host) -> Fact[str]:
    """The folder that /etc/Ascend/ascend_cann_install.info names; build scripts source what lies there."""
    text = file_text(host, INSTALL_RECORD)
    if text.value is None:
        return Fact(text.state, None, text.evidence)
    path = pairs(text.value).get("Install_Path", "").rstrip("/")
    return known(path, *text.evidence) if path.startswith("/") else unknown(*text.evidence)


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


def _bases(host: Host) -> tuple[str, ...]:
    """The folders that can hold installs, no folder twice."""
    record = install_record(host).value
    home = home_of(posixpath.normpath(host.environ().get("ASCEND_HOME_PATH", "") or "/"))
    above = posixpath.dirname(home.replace("/ascend-toolkit/", "/")) if home else ""
    named = (*toolkit.bases(host), *(base for base in (record, above) if base and base != "/"))
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
