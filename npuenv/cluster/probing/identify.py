"""Asks all nodes who they are, what time they have, and where each other's names lead. Start from `introduce`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.cluster.consistency.identity import Met, Offset, looked_up
from npuenv.cluster.probing.transport import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.cluster.probing.transport import Heard, Way
    from npuenv.cluster.types import Node

LIMIT_S = 30.0
_LOOK_UP_S = 6.0  # for all names of a node together: a name server that is silent is not waited for
_CLOSE_S = 0.5  # a clock that is known no better is asked again, when the network has nothing else to do
_FEW = 4
_SLACK_S = 0.1  # between the end of an answer and the reading of our clock


def introduce(nodes: Sequence[Node], way: Way) -> tuple[dict[str, Met], dict[str, str]]:
    """What the nodes said, by their names in the inventory, and why the others said nothing.

    Two rounds: who they are, then where the names of all lead on each; clocks that the first two could not tell well
    are asked a third time, a few nodes at once.
    """
    first = {heard.node.name: heard for heard in _round(nodes, (), way)}
    silent = {name: heard.why for name, heard in first.items() if heard.told is None}
    here = [node for node in nodes if node.name not in silent]
    names = looked_up(str(_told(first[node.name]).get("hostname", "")) for node in here)
    second = {heard.node.name: heard for heard in _round(here, names, way)} if len(here) > 1 else {}
    found = {}
    for node in here:
        rounds = [first[node.name], *([second[node.name]] if node.name in second else [])]
        found[node.name] = _met(rounds)
    far = [node for node in here if _is_far(found[node.name])]
    for heard in _round(far, (), way, parallel=_FEW):
        better = _offset(heard)
        known = found[heard.node.name]
        if better is not None and (known.offset is None or better.within_s < known.offset.within_s):
            found[heard.node.name] = Met(known.hostname, known.boot, better, known.sees, known.addresses, known.login)
    return found, silent


def _round(nodes: Sequence[Node], names: Sequence[str], way: Way, parallel: int | None = None) -> list[Heard]:
    asked = {"names": list(names), "limit_s": _LOOK_UP_S}
    return list(run(nodes, "introduce", lambda _: asked, limit_s=LIMIT_S, way=way, parallel=parallel)) if nodes else []


def _told(heard: Heard) -> Mapping[str, Any]:
    return heard.told or {}


def _met(rounds: Sequence[Heard]) -> Met:
    """What several rounds with one node come to: the last that says something counts, of the clock the closest."""
    told = _told(rounds[0])
    sees: Mapping[str, Any] = next((_told(heard)["sees"] for heard in reversed(rounds) if _told(heard).get("sees")), {})
    offsets = [offset for heard in rounds if (offset := _offset(heard)) is not None]
    return Met(
        hostname=str(told.get("hostname", "")),
        boot=str(told.get("boot", "")),
        offset=min(offsets, key=lambda offset: offset.within_s, default=None),
        sees={str(name): tuple(map(str, found)) for name, found in sees.items()},
        addresses=tuple(map(str, told.get("addresses", ()))),
        login=str(told.get("login", "")),
    )


def _offset(heard: Heard) -> Offset | None:
    """How far its clock is ahead: it read it after we began, and again before we had its answer."""
    told = _told(heard)
    began, ended = told.get("began"), told.get("ended")
    if not isinstance(began, float) or not isinstance(ended, float):
        return None
    low, high = ended - heard.ended, began - heard.began + _SLACK_S
    line = f"its clock {began:.2f} to {ended:.2f}, asked {heard.began:.2f} to {heard.ended:.2f}"
    if high < low:  # its clock was set between the two readings
        return None
    return Offset((low + high) / 2, (high - low) / 2, line)


def _is_far(met: Met) -> bool:
    return met.offset is None or met.offset.within_s > _CLOSE_S
