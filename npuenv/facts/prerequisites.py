"""What an environment stands on: packages of the operating system, CANN's parts, an interpreter in its own prefix.

Facts, as conditions of steps ask for them:

    system.packages  of=("dpkg" or "rpm", name, ...)  "installed", or the first name that is not
    cann.toolkit     of=(root, version)               `version` where that release lies there, else what lies there
    cann.ops         of=(root, version, arch)         the same of the kernels
    cann.nnal        of=(folder, version)             the same of NNAL, `folder` being the one beside CANN
    prefix.python    of=(root,)                       "3.11": the Python of the environment whose prefix is `root`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.core import versions
from npuenv.core.fact import Evidence, Fact, absent, known, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npuenv.host.base import Host

_TIMEOUT_S = 60.0
PREFIX_PYTHON = (
    "import os, sys; print('%d.%d' % sys.version_info[:2] if os.path.realpath(sys.prefix) == "
    "os.path.realpath(sys.argv[1]) else '')"
)


def missing_packages(host: Host, tool: str, names: Sequence[str]) -> Fact[tuple[str, ...]]:
    """Those of the packages that are not installed, in their order. `tool`: dpkg or rpm.

    Source: dpkg-query(1), `gcc install ok installed`; rpm(8), `package g++ is not installed`.
    """
    if tool == "dpkg":
        argv = ("dpkg-query", "-W", "-f", "${Package} ${Status}\\n", *names)
    else:
        argv = ("rpm", "-q", "--qf", "%{NAME} install ok installed\\n", *names)
    ran = host.run(argv, timeout_s=_TIMEOUT_S)
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
    if found.value is None:
        return Fact(found.state, None, found.evidence)
    return known(found.value[0] if found.value else "installed", *found.evidence)


def _toolkit(host: Host, root: str, version: str) -> Fact[str]:
    from npuenv.facts.cann import toolkit

    found = toolkit.read(host, root, root, None)
    return _release(found, found.value.version if found.value else "", version)


def _ops(host: Host, root: str, version: str, arch: str) -> Fact[str]:
    from npuenv.facts.cann import parts

    found = parts.ops(host, root, arch)
    return _release(found, found.value.version if found.value else "", version)


def _nnal(host: Host, folder: str, version: str) -> Fact[str]:
    from npuenv.facts.cann import toolkit

    root = f"{folder}/nnal/atb/latest"
    found = toolkit.read_nnal(host, root, root)
    return _release(found, found.value.version if found.value else "", version)


def _release(found: Fact[Any], there: str, wanted: str) -> Fact[str]:
    """The wanted version where what is there is the same release; builds of one release do not differ."""
    if not there:
        return Fact(found.state, None, found.evidence)
    is_same = versions.is_cann(there) and versions.cann(there) == versions.cann(wanted)
    return known(wanted if is_same else there, *found.evidence)


def _prefix_python(host: Host, root: str) -> Fact[str]:
    ran = host.run((f"{root}/bin/python", "-I", "-c", PREFIX_PYTHON, root), timeout_s=30.0)
    evidence = Evidence(f"{root}/bin/python", (ran.out or ran.err).strip())
    if ran.is_absent:
        return absent(evidence)
    if ran.code != 0:
        return unknown(evidence)
    return known(ran.out.strip(), evidence) if ran.out.strip() else absent(evidence)


ASKED: dict[str, Callable[..., Fact[str]]] = {
    "system.packages": _packages,
    "cann.toolkit": _toolkit,
    "cann.ops": _ops,
    "cann.nnal": _nnal,
    "prefix.python": _prefix_python,
}
