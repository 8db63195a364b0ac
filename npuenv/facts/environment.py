"""Facts about an environment that npuenv made. Start from `ask_environment`.

The environment's own inspector program (`npuenv.plan.inspector`, copied into it) does the looking. Facts:

    env.dists     of=(root, "name==version" or "name", ...)   "complete", or the first deviation
    env.intact    of=(root,)                                   "yes", or the first damaged distribution
    env.verified  of=(root,)                                   hash of the lock it was verified against; "" when damaged
    path.link     of=(path,)                                   what a symbolic link points to
"""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any

from npuenv.facts.ask import Condition, ask
from npuenv.facts.base import Evidence, Fact, absent, known, unknown

if TYPE_CHECKING:
    from npuenv.host.base import Host

INSPECTOR = ".npuenv/inspector.py"
_TIMEOUT_S = 600.0  # hashing a few gigabytes from a slow disk


def ask_environment(host: Host, want: Condition) -> Fact[str]:
    """The value of a fact about an environment; every other fact is passed on to `npuenv.facts.ask`."""
    if want.fact == "path.link":
        return _link(host, want.of[0])
    if not want.fact.startswith("env."):
        return ask(host, want)
    state = _state(host, want.of[0])
    if state.value is None:
        return Fact(state.state, None, state.evidence)
    found = state.value
    if want.fact == "env.verified":
        return known(str(found["verified"]), *state.evidence)
    if want.fact == "env.intact":
        first = next((f"{name}: {why}" for name, why in sorted(found["damaged"].items())), "yes")
        return known(first, *state.evidence)
    if want.fact == "env.dists":
        return known(_deviation(found, want.of[1:]) or "complete", *state.evidence)
    raise KeyError(want.fact)


def _state(host: Host, root: str) -> Fact[dict[str, Any]]:
    """The inspector's document. A real one: {"damaged": {}, "dists": {"numpy": "2.4.6"}, "files": 900, ...}"""
    argv = (posixpath.join(root, "bin/python"), "-I", "-B", posixpath.join(root, INSPECTOR), "state", root)
    ran = host.run(argv, timeout_s=_TIMEOUT_S)
    said = (ran.err or ran.out).strip().splitlines()
    evidence = Evidence(" ".join(argv), said[-1] if said else "")
    if ran.is_absent or (ran.code == 2 and "can't open file" in ran.err):
        return absent(evidence)
    if ran.code != 0:
        return unknown(evidence)
    try:
        return known(json.loads(ran.out), Evidence(" ".join(argv), ran.out[:200]))
    except ValueError:
        return unknown(evidence)


def _deviation(state: dict[str, Any], wanted: tuple[str, ...]) -> str:
    for word in wanted:
        name, _, version = word.partition("==")
        if name not in state["dists"]:
            return f"{name} is not installed"
        if version and state["dists"][name] != version:
            return f"{name} {state['dists'][name]}"
        if name in state["damaged"]:
            return f"{name}: {state['damaged'][name]}"
    return ""


def _link(host: Host, path: str) -> Fact[str]:
    ran = host.run(("readlink", path))
    evidence = Evidence(f"readlink {path}", ran.out.strip() or ran.err.strip())
    return known(ran.out.rstrip("\n"), evidence) if ran.code == 0 else absent(evidence)
