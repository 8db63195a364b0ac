"""Facts about an environment that npuenv made.

The environment's own inspector program (`npuenv.install.env_verifier`, copied into it) does the looking. Facts:

    env.dists     of=(root, "name==version" or "name", ...)   "complete", or the first deviation; hashes nothing
    env.intact    of=(root,)                                   "yes", or the first damaged distribution
    env.verified  of=(root,)                                   hash of the lock it was verified against; "" when
                                                               damaged, or when a package of the lock went in later
    path.link     of=(path,)                                   what a symbolic link points to

Words of `of` after the root are passed on to the inspector: `--over`, `triton-ascend=triton`.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.core.json_input import JsonError, loads
from npuenv.facts.conditions import ask
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from npuenv.core.plan import Condition
    from npuenv.host.base import Host, Ran

INSPECTOR = ".npuenv/inspector.py"
VERIFIED = ".npuenv/verified.json"
_PROBLEM = "problem: "
_TIMEOUT_S = 600.0  # hashing a few gigabytes from a slow disk


def ask_environment(host: Host, want: Condition) -> Fact[str]:
    """The value of a fact about an environment; every other fact is passed on to `npuenv.facts.conditions`."""
    if want.fact == "path.link":
        return _link(host, want.of[0])
    if not want.fact.startswith("env."):
        return ask(host, want)
    if want.fact == "env.dists":
        return _dists(host, want.of)
    if want.fact == "env.verified" and not _has_word_of(host, want):
        return known("", Evidence(posixpath.join(want.of[0], VERIFIED), ""))
    state = _state(host, want.of)
    if state.value is None:
        return Fact(state.state, None, state.evidence)
    found = state.value
    if want.fact == "env.verified":
        return known(str(found["verified"]), *state.evidence)
    if want.fact == "env.intact":
        around = [*map(str, found.get("surroundings", ()))]
        first = next((f"{name}: {why}" for name, why in sorted(found["damaged"].items())), (around or ["yes"])[0])
        return known(first, *state.evidence)
    raise KeyError(want.fact)


def going_out(host: Host, want: Condition) -> Fact[tuple[str, ...]]:
    """The distributions that mending takes out where `env.intact` does not hold; unknown to an older inspector."""
    state = _state(host, want.of)
    if state.value is None:
        return Fact(state.state, None, state.evidence)
    found = state.value.get("out")
    return known(tuple(map(str, found)), *state.evidence) if isinstance(found, list) else unknown(*state.evidence)


def _has_word_of(host: Host, want: Condition) -> bool:
    """False when the environment was never verified: then nothing needs to be hashed to say so."""
    return host.look(posixpath.join(want.of[0], VERIFIED)).state is not PathState.ABSENT


def _inspect(host: Host, verb: str, of: tuple[str, ...]) -> tuple[Ran, str]:
    root = of[0]
    argv = (posixpath.join(root, "bin/python"), "-I", "-B", posixpath.join(root, INSPECTOR), verb, *of)
    return host.run(argv, timeout_s=_TIMEOUT_S), " ".join(argv[:6])


def _is_absent(ran: Ran) -> bool:
    """True when there is no environment to ask, or no inspector in it."""
    return ran.is_absent or (ran.code == 2 and "can't open file" in ran.err)


def _dists(host: Host, of: tuple[str, ...]) -> Fact[str]:
    """Real lines of the inspector: `problem: torch==2.13.0+cpu is not installed`."""
    ran, command = _inspect(host, "check", of)
    said = (ran.err or ran.out).strip().splitlines()
    evidence = Evidence(command, said[0] if said else "")
    if _is_absent(ran):
        return absent(evidence)
    if ran.code == 1 and ran.out.startswith(_PROBLEM):
        return known(ran.out.splitlines()[0][len(_PROBLEM) :], evidence)
    return known("complete", evidence) if ran.code == 0 else unknown(evidence)


def _state(host: Host, of: tuple[str, ...]) -> Fact[dict[str, Any]]:
    """The inspector's document. A real one: {"damaged": {}, "dists": {"numpy": "2.4.6"}, "out": [], ...}"""
    ran, command = _inspect(host, "state", of)
    said = (ran.err or ran.out).strip().splitlines()
    evidence = Evidence(command, said[-1] if said else "")
    if _is_absent(ran):
        return absent(evidence)
    if ran.code != 0:
        return unknown(evidence)
    try:
        found = loads(ran.out)
    except JsonError:
        return unknown(evidence)
    return known(found, Evidence(command, ran.out[:200])) if isinstance(found, dict) else unknown(evidence)


def _link(host: Host, path: str) -> Fact[str]:
    ran = host.run(("readlink", path))
    evidence = Evidence(f"readlink {path}", ran.out.strip() or ran.err.strip())
    return known(ran.out.rstrip("\n"), evidence) if ran.code == 0 else absent(evidence)
