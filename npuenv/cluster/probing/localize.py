"""The fewest places that explain what could not be reached. Pure; start from `culprits`.

Where the nodes fall into groups, `groups_apart` finds those first; `blocks` folds single ways.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


class Knock(NamedTuple):
    """One attempt of one node at a port of another one."""

    source: str
    target: str
    port: int


@dataclass(frozen=True, slots=True)
class Culprit:
    """A place at which all attempts failed. None stands for every one."""

    source: str | None
    target: str | None
    ports: tuple[int, ...] | None
    failed: tuple[Knock, ...]  # those that it explains


def culprits(tried: Mapping[Knock, bool]) -> list[Culprit]:
    """What explains every failed attempt, the one that explains most first. `tried` says of each whether it arrived.

    A place counts only where nothing that was tried there arrived, and the wider one of two counts only where it
    explains more: of two nodes that do not reach each other neither is blamed alone.
    """
    left = {knock for knock, arrived in tried.items() if not arrived}
    places: defaultdict[tuple[str | None, str | None, int | None], list[Knock]] = defaultdict(list)
    for knock in tried:
        for place in _places(knock):
            places[place].append(knock)
    dead = {place: knocks for place, knocks in places.items() if not any(tried[knock] for knock in knocks)}
    found = []
    while left:
        place = max(dead, key=lambda place: (sum(knock in left for knock in dead[place]), _narrowness(place)))
        explained = tuple(sorted(knock for knock in dead[place] if knock in left))
        left -= set(explained)
        source, target, port = place
        found.append(Culprit(source, target, None if port is None else (port,), explained))
    return _joined(found)


def groups_apart(tried: Mapping[Knock, bool]) -> list[set[str]]:
    """The groups of nodes that are whole each and between which nothing arrived, whatever was tried; [] where there are
    no two. A node all by itself is none: its own faults say more.
    """
    group_of = {name: {name} for knock in tried for name in knock[:2]}
    for source, target in open_ways(tried, None):
        if group_of[source] is not group_of[target]:
            group_of[source] |= group_of[target]
            group_of.update(dict.fromkeys(group_of[target], group_of[source]))
    found = {min(group): group for group in group_of.values() if len(group) > 1}
    return [found[name] for name in sorted(found)] if len(found) > 1 else []


def open_ways(tried: Mapping[Knock, bool], ports: Collection[int] | None) -> set[tuple[str, str]]:
    """From which node to which one something arrived, at one of these ports; None: at any."""
    return {knock[:2] for knock, arrived in tried.items() if arrived and (ports is None or knock.port in ports)}


def blocks(broken: Iterable[tuple[str, str]], working: Collection[tuple[str, str]]) -> list[tuple[set[str], set[str]]]:
    """Broken ways (source, target) as few blocks of sources and targets: no source of one reaches any of its targets.

    Only those with an end in common come together: where not every way was tried, nothing is known between others.
    Example: a-c, a-d, b-c, b-d -> [({a, b}, {c, d})]
    """
    rows: defaultdict[str, set[str]] = defaultdict(set)
    for source, target in broken:
        rows[source].add(target)
    reached: defaultdict[str, set[str]] = defaultdict(set)
    for source, target in working:
        reached[source].add(target)
    found = [({source}, targets) for source, targets in rows.items()]
    count = 0
    while len(found) != count:
        count, rest = len(found), found
        found = []
        for block in rest:
            one = next((one for one in found if _is_one(one, block, reached)), None)
            if one is None:
                found.append(block)
            else:
                one[0].update(block[0])
                one[1].update(block[1])
    return found


def _is_one(one: tuple[set[str], set[str]], other: tuple[set[str], set[str]], reached: Mapping[str, set[str]]) -> bool:
    sources, targets = one[0] | other[0], one[1] | other[1]
    has_common = not one[0].isdisjoint(other[0]) or not one[1].isdisjoint(other[1])
    is_apart = sources.isdisjoint(targets)
    return has_common and is_apart and all(targets.isdisjoint(reached.get(source, ())) for source in sources)


def _places(knock: Knock) -> Iterable[tuple[str | None, str | None, int | None]]:
    source, target, port = knock
    for at in (port, None):
        yield from ((source, target, at), (source, None, at), (None, target, at), (None, None, at))


def _narrowness(place: tuple[str | None, str | None, int | None]) -> tuple[int, int]:
    """Of places that explain as much: the narrower one; of the two ends of a way, the one that listens."""
    return sum(part is not None for part in place[:2]), place[1] is not None


def _joined(found: Iterable[Culprit]) -> list[Culprit]:
    """Culprits that differ in their ports alone, as one."""
    groups: defaultdict[tuple[str | None, str | None, bool], list[Culprit]] = defaultdict(list)
    for item in found:
        groups[item.source, item.target, item.ports is None].append(item)
    joined = []
    for (source, target, is_all), items in groups.items():
        ports = None if is_all else tuple(sorted(port for item in items for port in item.ports or ()))
        joined.append(Culprit(source, target, ports, tuple(knock for item in items for knock in item.failed)))
    return joined
