"""The fewest culprits that explain the pings that failed. Start from `reduce`.

A culprit says which pings it breaks. It is only taken where every ping of these that was tried did fail, so that no
ping that works contradicts it; a pair that was not tried neither speaks for a culprit nor against it. Culprits are
chosen greedily, the one that explains most of what is left first, and what turns out not to be needed is dropped.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from npuenv.cluster.names import fold

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

    from npuenv.cluster.mesh.types import Device, Pair


class Kind(enum.IntEnum):
    """What can be broken, from the smallest claim to the largest: among equals the earlier one is named."""

    PAIR = 1  # two devices, in both directions as far as tried
    CARD = 2  # the port of one card
    SENDS = 3  # a card reaches nobody, though others reach it
    RECEIVES = 4  # nobody reaches a card, though it reaches others
    ONE_WAY = 5  # from one device to another, though not back
    NODES = 6  # between the cards of one node and those of another
    NODE = 7  # all cards of a node
    UPLINK = 8  # all cards of a node to all other nodes; among themselves they work
    ALL_NODES_APART = 9  # between cards of different nodes
    SIDE = 10  # the cards of one number on all nodes: one switch, rail or plane
    SIDE_INSIDE = 11  # the same, among themselves
    SIDES_APART = 12  # between the cards of one number and those of another
    ALL_SIDES_APART = 13  # between cards of different numbers
    SUBNET = 14  # all devices of a subnet
    SUBNETS_APART = 15  # between one subnet and another
    ALL_SUBNETS_APART = 16  # between different subnets
    PARTITION = 17  # between groups of nodes, none of which reaches a node of another one
    EVERYTHING = 18

    @property
    def word(self) -> str:
        """As documents spell it: side-inside."""
        return self.name.lower().replace("_", "-")


_MOST_OF_A_PAIR = 2  # pings: there and back
_FEWEST_NODES = 3  # that can be apart without being two nodes, or one and the rest


class Suspect(NamedTuple):
    """A kind with what it is about: places of devices, names of nodes, numbers of cards or subnets, by its kind.

    A partition is about its groups, each of them in one text, as `fold` writes names.
    A plain tuple, because a large mesh makes millions of them.
    """

    kind: Kind
    about: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Culprit:
    """A part of an explanation."""

    suspect: Suspect
    explains: tuple[Pair, ...]  # the failing pings that it breaks
    alternatives: tuple[Suspect, ...]  # what could stand in its place: the pings cannot tell them apart


class Crowd:
    """The devices by what they share, and which suspects a ping between two of them has.

    `works` are the pings that work: they tell which nodes reach each other, if only by way of others.
    """

    def __init__(self, devices: Sequence[Device], works: Iterable[Pair] = ()) -> None:
        self.nodes = [device.node for device in devices]
        self.cards = [device.card for device in devices]
        self.networks = [device.network for device in devices]
        # What a single device has, and what all of them have, is no suspect of its own.
        self._shared_nodes = _shared(self.nodes)
        self._shared_cards = _shared(self.cards)
        self._shared_networks = _shared(self.networks)
        groups = _groups(self.nodes, works)
        self._is_apart = len(groups) > 1
        group_of = {node: place for place, group in enumerate(groups) for node in group}
        self._groups = [group_of.get(node) for node in self.nodes]
        self._partition = Suspect(Kind.PARTITION, tuple(map(fold, groups)))

    def suspects(self, pair: Pair) -> Iterator[Suspect]:
        """All that could break this ping."""
        source, target = pair
        yield Suspect(Kind.PAIR, (min(pair), max(pair)))
        yield Suspect(Kind.ONE_WAY, pair)
        yield from _of_devices(source, target)
        for values, of in self._families():
            yield from of(values[source], values[target])

    def wide(self, pairs: Sequence[Pair]) -> set[Suspect]:
        """All suspects of many pings, but those that are about a single pair of devices."""
        sources, targets = {source for source, _ in pairs}, {target for _, target in pairs}
        found = {Suspect(Kind.CARD, (place,)) for place in sources | targets}
        found |= {Suspect(Kind.SENDS, (place,)) for place in sources}
        found |= {Suspect(Kind.RECEIVES, (place,)) for place in targets}
        # Many pings come down to few combinations of nodes, cards and subnets.
        for values, of in self._families():
            for one, other in {(values[source], values[target]) for source, target in pairs}:
                found.update(of(one, other))
        return found

    def broken_by(self, failed: Sequence[Pair], works: Sequence[Pair]) -> dict[Suspect, list[int]]:
        """The places of the failing pings of every suspect that no working ping contradicts.

        Those that are about a single pair of devices are left out: see `_Pairs`.
        """
        cleared = self.wide(works)
        found: defaultdict[Suspect, list[int]] = defaultdict(list)

        def lists_of(suspects: Iterable[Suspect]) -> list[list[int]]:
            return [found[suspect] for suspect in suspects if suspect not in cleared]

        sources, targets = ({pair[end] for pair in failed} for end in (0, 1))
        of_source = {at: lists_of((Suspect(Kind.CARD, (at,)), Suspect(Kind.SENDS, (at,)))) for at in sources}
        of_target = {at: lists_of((Suspect(Kind.CARD, (at,)), Suspect(Kind.RECEIVES, (at,)))) for at in targets}
        for place, (source, target) in enumerate(failed):
            for each in (*of_source[source], *of_target[target]):
                each.append(place)
        for values, of in self._families():
            # Many pings come down to few combinations of nodes, cards and subnets.
            known: dict[tuple[Hashable, Hashable], list[list[int]]] = {}
            for place, (source, target) in enumerate(failed):
                key = values[source], values[target]
                lists = known.get(key)
                if lists is None:
                    lists = known[key] = lists_of(of(*key))
                for each in lists:
                    each.append(place)
        return {suspect: broken for suspect, broken in found.items() if broken}

    def _families(self) -> Iterator[tuple[Sequence[Any], Callable[[Any, Any], Iterator[Suspect]]]]:
        yield self.nodes, self._of_nodes
        yield self.cards, self._of_sides
        yield self.networks, self._of_networks
        if self._is_apart:
            yield self._groups, self._of_groups

    def _of_nodes(self, one: str, other: str) -> Iterator[Suspect]:
        yield Suspect(Kind.EVERYTHING)
        for node in {one, other} & self._shared_nodes:
            yield Suspect(Kind.NODE, (node,))
            if one != other:
                yield Suspect(Kind.UPLINK, (node,))
        if one != other and self._shared_nodes:
            yield Suspect(Kind.NODES, (min(one, other), max(one, other)))
            if len(self._shared_nodes) >= _FEWEST_NODES:
                yield Suspect(Kind.ALL_NODES_APART)

    def _of_sides(self, one: int, other: int) -> Iterator[Suspect]:
        for card in {one, other} & self._shared_cards:
            yield Suspect(Kind.SIDE, (card,))
            if one == other:
                yield Suspect(Kind.SIDE_INSIDE, (card,))
        if one != other and self._shared_cards:
            yield Suspect(Kind.SIDES_APART, (min(one, other), max(one, other)))
            yield Suspect(Kind.ALL_SIDES_APART)

    def _of_networks(self, one: str, other: str) -> Iterator[Suspect]:
        for network in {one, other} & self._shared_networks:
            yield Suspect(Kind.SUBNET, (network,))
        if one != other and self._shared_networks:
            yield Suspect(Kind.SUBNETS_APART, (min(one, other), max(one, other)))
            yield Suspect(Kind.ALL_SUBNETS_APART)

    def _of_groups(self, one: int | None, other: int | None) -> Iterator[Suspect]:
        if one is not None and other is not None and one != other:
            yield self._partition


def _of_devices(source: int, target: int) -> tuple[Suspect, ...]:
    return (
        Suspect(Kind.CARD, (source,)),
        Suspect(Kind.CARD, (target,)),
        Suspect(Kind.SENDS, (source,)),
        Suspect(Kind.RECEIVES, (target,)),
    )


def _shared(values: Sequence[Any]) -> set[Any]:
    """What several devices have, where not all of them have the same."""
    counts = Counter(values)
    return {value for value, count in counts.items() if count > 1} if len(counts) > 1 else set()


def _groups(nodes: Sequence[str], works: Iterable[Pair]) -> list[list[str]]:
    """The nodes that reach each other, if only by way of others, in groups.

    A node that reaches no other one is no group: it is what is broken, and not what lies between it and the others.
    """
    group_of = {node: [node] for node in nodes}
    for one, other in {(nodes[source], nodes[target]) for source, target in works}:
        small, large = sorted((group_of[one], group_of[other]), key=len)
        if small is not large:
            large += small
            group_of.update(dict.fromkeys(small, large))
    groups = {id(group): group for group in group_of.values() if len(group) > 1}
    return list(groups.values())


def reduce(devices: Sequence[Device], failing: Iterable[Pair], working: Iterable[Pair]) -> tuple[Culprit, ...]:
    """What explains all of `failing` and contradicts none of `working`, the weightiest first.

    Where nothing larger does, the pairs themselves do, so there always is an explanation; none of its parts can be left
    out.
    """
    failed, works = list(dict.fromkeys(failing)), list(working)
    broken_by = Crowd(devices, works).broken_by(failed, works)
    is_left = bytearray(b"\1" * len(failed))
    # A pair breaks two pings at most, so that pairs are only looked at when nothing else breaks more.
    chosen = _greedy(broken_by, is_left, least=_MOST_OF_A_PAIR + 1)
    pairs = _Pairs(failed, works)
    broken_by.update(pairs.suspects(place for place, left in enumerate(is_left) if left))
    chosen = _needed([*chosen, *_greedy(broken_by, is_left, least=1)], broken_by, len(failed))
    return tuple(_culprits(chosen, broken_by, failed, pairs))


class _Pairs:
    """The suspects that are about a single pair of devices."""

    def __init__(self, failed: Sequence[Pair], works: Sequence[Pair]) -> None:
        self._failed, self._places = failed, {pair: place for place, pair in enumerate(failed)}
        self._works = set(works)

    def suspects(self, places: Iterable[int]) -> dict[Suspect, list[int]]:
        """Those of some failing pings, with all failing pings that they break."""
        found: dict[Suspect, list[int]] = {}
        for place in places:
            pair = self._failed[place]
            back = (pair[1], pair[0])
            found[Suspect(Kind.ONE_WAY, pair)] = [place]
            if back not in self._works:
                both = [place, *([self._places[back]] if back in self._places else [])]
                found[Suspect(Kind.PAIR, (min(pair), max(pair)))] = both
        return found


def _greedy(broken_by: Mapping[Suspect, Sequence[int]], is_left: bytearray, *, least: int) -> list[Suspect]:
    """Suspects that together break what is left: each time the one that breaks most of it, and no fewer than `least`.

    What they break is taken out of what is left.
    """
    import heapq

    # What a suspect still explains only shrinks: an entry whose number is right when it comes up is the largest.
    queue = [(-len(places), _order(suspect), suspect) for suspect, places in broken_by.items() if len(places) >= least]
    heapq.heapify(queue)
    chosen = []
    while queue:
        size, order, suspect = heapq.heappop(queue)
        now = sum(is_left[place] for place in broken_by[suspect])
        if now == -size:
            chosen.append(suspect)
            for place in broken_by[suspect]:
                is_left[place] = 0
        elif now >= least:
            heapq.heappush(queue, (-now, order, suspect))
    return chosen


def _order(suspect: Suspect) -> tuple[int, str]:
    return suspect.kind, ",".join(f"{part:06}" if isinstance(part, int) else part for part in suspect.about)


def _needed(chosen: Sequence[Suspect], broken_by: Mapping[Suspect, Sequence[int]], count: int) -> list[Suspect]:
    """Those of which none can be left out; the last chosen explain least and go first."""
    times = _times(chosen, broken_by, count)
    kept = []
    for suspect in reversed(chosen):
        if all(times[place] > 1 for place in broken_by[suspect]):
            for place in broken_by[suspect]:
                times[place] -= 1
        else:
            kept.append(suspect)
    return kept[::-1]


def _times(chosen: Sequence[Suspect], broken_by: Mapping[Suspect, Sequence[int]], count: int) -> list[int]:
    """How many of the chosen break each failing ping."""
    times = [0] * count
    for suspect in chosen:
        for place in broken_by[suspect]:
            times[place] += 1
    return times


def _culprits(
    chosen: Sequence[Suspect], broken_by: dict[Suspect, list[int]], failed: Sequence[Pair], pairs: _Pairs
) -> Iterator[Culprit]:
    """With each the suspects that break all of what it alone explains: they could stand in its place."""
    times = _times(chosen, broken_by, len(failed))
    alone = {suspect: {place for place in broken_by[suspect] if times[place] == 1} for suspect in chosen}
    few = (place for places in alone.values() if len(places) <= _MOST_OF_A_PAIR for place in places)
    broken_by.update(pairs.suspects(few))
    by_place: defaultdict[int, list[Suspect]] = defaultdict(list)
    firsts = {min(places) for places in alone.values()}
    for suspect, places in broken_by.items():
        for place in firsts.intersection(places):
            by_place[place].append(suspect)
    for suspect, mine in alone.items():
        others = [each for each in by_place[min(mine)] if each not in alone and mine.issubset(broken_by[each])]
        explained = tuple(sorted(failed[place] for place in broken_by[suspect]))
        yield Culprit(suspect, explained, tuple(sorted(others, key=_order)))
