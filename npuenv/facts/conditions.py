"""Answers to single conditions of a plan: one `Condition`, one `Fact`.

An answer of `known` with another value, or `absent`, means the condition does not hold; `unknown`: nobody could tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.core.json_input import JsonError, loads
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.core.plan import Condition
    from npuenv.host.base import Host


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
    if want.fact in _ASKED:
        return _ASKED[want.fact](host, *want.of)
    from npuenv.facts.prerequisites import ASKED

    return ASKED[want.fact](host, *want.of)


def dist_versions(host: Host, python: str) -> Fact[dict[str, str]]:
    """Every distribution of an interpreter, name in lower case with dashes -> version, in one process."""
    fact = _first_line(host, (python, "-I", "-c", _ALL_VERSIONS), "distributions")
    if fact.value is None:
        return Fact(fact.state, None, fact.evidence)
    try:
        found = loads(fact.value)
    except JsonError:
        return unknown(*fact.evidence)
    return known(found, *fact.evidence) if isinstance(found, dict) else unknown(*fact.evidence)


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


def _dist_version(host: Host, python: str, name: str) -> Fact[str]:
    return _first_line(host, (python, "-I", "-c", _VERSION_OF, name), f"version of {name}")


def _venv_python(host: Host, target: str) -> Fact[str]:
    fact = _first_line(host, (f"{target}/bin/python", "-I", "-c", _VENV_PYTHON), "version of the environment's Python")
    return fact if fact.value != "" else absent(*fact.evidence)  # runs, but is no environment of its own


def _first_line(host: Host, argv: tuple[str, ...], asked: str) -> Fact[str]:
    """What a short program printed; absent where there is no such interpreter."""
    ran = host.run(argv, timeout_s=30.0)
    command = f"{argv[0]} ({asked})"
    if ran.is_absent:
        return absent(Evidence(command, ran.err))
    if ran.timed_out or ran.code != 0:
        return unknown(Evidence(command, "timed out" if ran.timed_out else _last_line(ran.err) or f"exit {ran.code}"))
    line = ran.out.strip()
    return known(line, Evidence(command, line.splitlines()[0] if line else ""))


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


_ASKED: dict[str, Callable[..., Fact[str]]] = {
    "path.state": _path_state,
    "file.text": _file_text,
    "dist.version": _dist_version,
    "venv.python": _venv_python,
}
