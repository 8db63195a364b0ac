"""Answers to single conditions of a plan: one `Condition`, one `Fact`.

An answer of `known` with another value, or `absent`, means the condition does not hold; `unknown`: nobody could tell.
Besides paths, files and distributions:

    system.packages  of=("dpkg" or "rpm", name, ...)  "installed", or the first name that is not
    cann.toolkit     of=(root, version)               `version` where that release lies there, else what lies there
    cann.ops         of=(root, version, arch)         the same of the kernels
    cann.nnal        of=(folder, version)             the same of NNAL, `folder` being the one beside CANN
    prefix.python    of=(root,)                       "3.11": the Python of the environment whose prefix is `root`
    path.link        of=(path,)                       what a symbolic link points to

Of an environment that npuenv made, by its own inspector program (`npuenv.install.env_verifier`,
copied into it):

    env.dists     of=(root, "name==version" or "name", ...)   "complete", or the first deviation; hashes nothing
    env.intact    of=(root,)                                   "yes", or the first damaged distribution
    env.verified  of=(root,)                                   hash of the lock it was verified against; "" when
                                                               damaged, or when a package of the lock went in later

Words of `of` after the root are passed on to the inspector: `--over`, `triton-ascend=triton`.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from npuenv.core import versions
from npuenv.core.documents import JsonError, parse_json
from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts import cann
from npuenv.facts.cann import toolkit
from npuenv.facts.collector import first_line, made_of, why_failed
from npuenv.facts.manifest import VERIFIED
from npuenv.host import Host, PathState, Ran

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npuenv.core.plan import Condition, Step

INSPECTOR = ".npuenv/inspector.py"
_PROBLEM = "problem: "
_TIMEOUT_S = 600.0  # hashing a few gigabytes from a slow disk
_PACKAGES_S = 60.0
PREFIX_PYTHON = (
    "import os, sys; print('%d.%d' % sys.version_info[:2] if os.path.realpath(sys.prefix) == "
    "os.path.realpath(sys.argv[1]) else '')"
)
_VERSION_OF = """
import sys
from importlib import metadata
try:
    print(metadata.version(sys.argv[1]))
except metadata.PackageNotFoundError:
    print()
"""
_ALL_VERSIONS = """
import json
from importlib import metadata
found = {}
for item in metadata.distributions():
    if item.metadata["Name"]:
        found.setdefault(item.metadata["Name"].lower().replace("_", "-").replace(".", "-"), item.version)
print(json.dumps(found, sort_keys=True))
"""
_VENV_PYTHON = "import sys; print('%d.%d' % sys.version_info[:2] if sys.prefix != sys.base_prefix else '')"


def ask(host: Host, want: Condition) -> Fact[str]:
    """The present value of the fact that `want` names. Raises KeyError for a fact nobody can ask."""
    return _READERS[want.fact](host, *want.of)


def unmet(step: Step, host: Host) -> tuple[tuple[Condition, Fact[str]], ...]:
    """The conditions of a step that do not hold now, each with what was found."""
    results = ((want, ask(host, want)) for want in step.done_when)
    return tuple((want, fact) for want, fact in results if fact.value != want.value)


def is_done(step: Step, host: Host) -> bool:
    """Whether a step has nothing to do now."""
    return bool(step.done_when) and not unmet(step, host)


def dist_versions(host: Host, python: str) -> Fact[dict[str, str]]:
    """Every distribution of an interpreter, name in lower case with dashes -> version, in one process."""
    fact = _printed(host, (python, "-I", "-c", _ALL_VERSIONS), "distributions")
    return made_of(fact, lambda text: _object(text, *fact.evidence))


def _object(text: str, *evidence: Evidence) -> Fact[dict[str, Any]] | None:
    """The object of a JSON text; None for another text."""
    try:
        found = parse_json(text)
    except JsonError:
        return None
    return known(found, *evidence) if isinstance(found, dict) else None


def _path_state(host: Host, path: str) -> Fact[str]:
    looked = host.look(path)
    evidence = Evidence(path, looked.error or looked.state.value)
    return unknown(evidence) if looked.state is PathState.UNREADABLE else known(looked.state.value, evidence)


def _file_text(host: Host, path: str) -> Fact[str]:
    looked = host.look(path)
    evidence = Evidence(path, looked.error or looked.state.value)
    if looked.state is PathState.FILE and host.run(("readlink", path)).code == 0:
        return absent(Evidence(path, "link"))  # what it leads to is somebody else's
    if looked.state is PathState.FILE:
        return known(looked.text, evidence)
    return unknown(evidence) if looked.state is PathState.UNREADABLE else absent(evidence)


def _venv_python(host: Host, target: str) -> Fact[str]:
    fact = _printed(host, (f"{target}/bin/python", "-I", "-c", _VENV_PYTHON), "version of the environment's Python")
    return fact if fact.value != "" else absent(*fact.evidence)  # runs, but is no environment of its own


def _dist_version(host: Host, python: str, name: str) -> Fact[str]:
    return _printed(host, (python, "-I", "-c", _VERSION_OF, name), f"version of {name}")


def _printed(host: Host, argv: tuple[str, ...], asked: str) -> Fact[str]:
    """What a short program printed; absent where there is no such interpreter."""
    ran = host.run(argv, timeout_s=30.0)
    command = f"{argv[0]} ({asked})"
    if ran.is_absent:
        return absent(Evidence(command, ran.err))
    if ran.timed_out or ran.code != 0:
        return unknown(Evidence(command, why_failed(ran)))
    line = ran.out.strip()
    return known(line, Evidence(command, line.splitlines()[0] if line else ""))


def missing_packages(host: Host, tool: str, names: Sequence[str]) -> Fact[tuple[str, ...]]:
    """Those of the packages that are not installed, in their order. `tool`: dpkg or rpm.

    Source: dpkg-query(1), `gcc install ok installed`; rpm(8), `package g++ is not installed`.
    """
    if tool == "dpkg":
        argv = ("dpkg-query", "-W", "-f", "${Package} ${Status}\\n", *names)
    else:
        argv = ("rpm", "-q", "--qf", "%{NAME} install ok installed\\n", *names)
    ran = host.run(argv, timeout_s=_PACKAGES_S)
    evidence = Evidence(" ".join(argv[:2]), (ran.err or ran.out).strip().partition("\n")[0])
    if ran.is_absent:
        return absent(evidence)
    # Both exit with an error when one of the names is not there, and still answer for the others.
    if ran.timed_out or ran.code not in range(len(names) + 2):
        return unknown(evidence)
    lines = [line.partition(" ") for line in ran.out.splitlines()]
    there = {name for name, _, status in lines if status == "install ok installed"}
    return known(tuple(name for name in names if name not in there), evidence)


def _packages(host: Host, tool: str, *names: str) -> Fact[str]:
    found = missing_packages(host, tool, names)
    return made_of(found, lambda missing: known(missing[0] if missing else "installed", *found.evidence))


def _release(found: Fact[Any], wanted: str) -> Fact[str]:
    """The wanted version where what is there is the same release; builds of one release do not differ."""

    def told(value: Any) -> Fact[str]:
        is_same = versions.is_cann(value.version) and versions.cann(value.version) == versions.cann(wanted)
        return known(wanted if is_same else value.version, *found.evidence)

    return made_of(found, told)


def _prefix_python(host: Host, root: str) -> Fact[str]:
    ran = host.run((f"{root}/bin/python", "-I", "-c", PREFIX_PYTHON, root), timeout_s=30.0)
    evidence = Evidence(f"{root}/bin/python", (ran.out or ran.err).strip())
    if ran.is_absent:
        return absent(evidence)
    if ran.code != 0:
        return unknown(evidence)
    return known(ran.out.strip(), evidence) if ran.out.strip() else absent(evidence)


def going_out(host: Host, want: Condition) -> Fact[tuple[str, ...]]:
    """The distributions that mending takes out where `env.intact` does not hold; unknown to an older inspector."""
    state = _state(host, want.of)

    def read(found: dict[str, Any]) -> Fact[tuple[str, ...]] | None:
        out = found.get("out")
        return known(tuple(map(str, out)), *state.evidence) if isinstance(out, list) else None

    return made_of(state, read)


def _intact(host: Host, *of: str) -> Fact[str]:
    state = _state(host, of)

    def first(found: dict[str, Any]) -> Fact[str]:
        damaged = [f"{name}: {why}" for name, why in sorted(found["damaged"].items())]
        return known([*damaged, *map(str, found.get("surroundings", ())), "yes"][0], *state.evidence)

    return made_of(state, first)


def _verified(host: Host, *of: str) -> Fact[str]:
    path = posixpath.join(of[0], VERIFIED)
    if host.look(path).state is PathState.ABSENT:  # it was never verified: nothing needs to be hashed to say so
        return known("", Evidence(path, ""))
    state = _state(host, of)
    return made_of(state, lambda found: known(str(found["verified"]), *state.evidence))


def _inspect(host: Host, verb: str, of: tuple[str, ...]) -> tuple[Ran, str]:
    argv = (posixpath.join(of[0], "bin/python"), "-I", "-B", posixpath.join(of[0], INSPECTOR), verb, *of)
    return host.run(argv, timeout_s=_TIMEOUT_S), " ".join(argv[:6])


def _is_absent(ran: Ran) -> bool:
    """True when there is no environment to ask, or no inspector in it."""
    return ran.is_absent or (ran.code == 2 and "can't open file" in ran.err)


def _dists(host: Host, *of: str) -> Fact[str]:
    """Real lines of the inspector: `problem: torch==2.13.0+cpu is not installed`."""
    ran, command = _inspect(host, "check", of)
    evidence = Evidence(command, first_line(ran.err or ran.out))
    if _is_absent(ran):
        return absent(evidence)
    if ran.code == 1 and ran.out.startswith(_PROBLEM):
        return known(ran.out.splitlines()[0][len(_PROBLEM) :], evidence)
    return known("complete", evidence) if ran.code == 0 else unknown(evidence)


def _state(host: Host, of: tuple[str, ...]) -> Fact[dict[str, Any]]:
    """The inspector's document. A real one: {"damaged": {}, "dists": {"numpy": "2.4.6"}, "out": [], ...}"""
    ran, command = _inspect(host, "state", of)
    evidence = Evidence(command, ((ran.err or ran.out).strip().splitlines() or [""])[-1])
    if _is_absent(ran):
        return absent(evidence)
    found = _object(ran.out, Evidence(command, ran.out[:200])) if ran.code == 0 else None
    return found or unknown(evidence)


def _link(host: Host, path: str) -> Fact[str]:
    ran = host.run(("readlink", path))
    evidence = Evidence(f"readlink {path}", ran.out.strip() or ran.err.strip())
    return known(ran.out.rstrip("\n"), evidence) if ran.code == 0 else absent(evidence)


_READERS: dict[str, Callable[..., Fact[str]]] = {
    "path.state": _path_state,
    "path.link": _link,
    "file.text": _file_text,
    "dist.version": _dist_version,
    "venv.python": _venv_python,
    "system.packages": _packages,
    "cann.toolkit": lambda host, root, version: _release(toolkit.read(host, root, root, None), version),
    "cann.ops": lambda host, root, version, arch: _release(cann.ops(host, root, arch), version),
    "cann.nnal": lambda host, folder, version: _release(
        toolkit.read_nnal(host, f"{folder}/nnal/atb/latest", f"{folder}/nnal/atb/latest"), version
    ),
    "prefix.python": _prefix_python,
    "env.dists": _dists,
    "env.intact": _intact,
    "env.verified": _verified,
}
