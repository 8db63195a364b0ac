"""The fewest culprits that explain the pings that failed. Start from `reduce`.

A culprit says which pings it breaks. It is only taken where every ping of these that was tried did fail, so that no
ping that works contradicts it; a pair that was not tried neither speaks for a culprit nor against it. What flaps is
looked for in what is left then, and says itself that some of its pings work. Culprits are chosen greedily, the one that
explains most of what is left first, and what turns out not to be needed is dropped.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from npuenv.cluster.nodeset import fold, fold_numbers

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
    NODES_ONE_WAY = 7  # from the cards of one node to those of another, though not back
    NODE = 8  # all cards of a node
    NODE_SENDS = 9  # from all cards of a node to all others, though not back
    NODE_RECEIVES = 10  # to all cards of a node from all others, though not back
    UPLINK = 11  # all cards of a node to all other nodes; among themselves they work
    UPLINK_SENDS = 12  # from all cards of a node to all other nodes, though not back
    UPLINK_RECEIVES = 13  # to all cards of a node from all other nodes, though not back
    ALL_NODES_APART = 14  # between cards of different nodes
    SIDE = 15  # the cards of one number on all nodes: one switch, rail or plane
    SIDE_INSIDE = 16  # the same, among themselves
    SIDES_APART = 17  # between the cards of one number and those of another
    SIDES_ONE_WAY = 18  # from the cards of one number to those of another, though not back
    SIDE_CUT_OFF = 19  # between the cards of one number and all others
    ALL_SIDES_APART = 20  # between cards of different numbers
    SUBNET = 21  # all devices of a subnet
    SUBNETS_APART = 22  # between one subnet and another
    SUBNETS_ONE_WAY = 23  # from one subnet to another, though not back
    ALL_SUBNETS_APART = 24  # between different subnets
    PARTITION = 25  # between groups of nodes, none of which reaches a node of another one
    PARTITION_ONE_WAY = 26  # from one group of nodes to another, though not back
    SIDE_PARTITION = 27  # between groups of numbers of cards, none of which reaches a card of another one
    SIDE_PARTITION_ONE_WAY = 28  # from one group of numbers of cards to another, though not back
    CARD_FLAPS = 29  # many pings of one card, though others come back
    NODE_FLAPS = 30  # many pings of each card of a node, though others come back
    SIDE_FLAPS = 31  # many pings of each card of one number, though others come back
    EVERYTHING = 32

    @property
    def word(self) -> str:
        """As documents spell it: side-inside."""
        return self.name.lower().replace("_", "-")


_MOST_OF_A_PAIR = 2  # pings: there and back
_FEWEST_APART = 3  # values that can be apart without being two, or one and the rest


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


@dataclass(frozen=True, slots=True)
class _Kinds:
    """The kinds that are about what devices share: their node, the number of the card, the subnet. None: no such."""

    of_one: Kind
    apart: Kind
    one_way: Kind
    all_apart: Kind
    inside: Kind | None = None
    cut_off: Kind | None = None
    sends: tuple[Kind, Kind] | None = None  # to all, to all others
    receives: tuple[Kind, Kind] | None = None
    groups: tuple[Kind, Kind] | None = None  # in both directions, in one
    fewest: int = 2  # values from which on all of them can be apart


_NODES = _Kinds(
    *(Kind.NODE, Kind.NODES, Kind.NODES_ONE_WAY, Kind.ALL_NODES_APART),
    cut_off=Kind.UPLINK,
    sends=(Kind.NODE_SENDS, Kind.UPLINK_SENDS),
    receives=(Kind.NODE_RECEIVES, Kind.UPLINK_RECEIVES),
    groups=(Kind.PARTITION, Kind.PARTITION_ONE_WAY),
    fewest=_FEWEST_APART,
)
_SIDES = _Kinds(
    *(Kind.SIDE, Kind.SIDES_APART, Kind.SIDES_ONE_WAY, Kind.ALL_SIDES_APART),
    inside=Kind.SIDE_INSIDE,
    cut_off=Kind.SIDE_CUT_OFF,
    groups=(Kind.SIDE_PARTITION, Kind.SIDE_PARTITION_ONE_WAY),
)
_SUBNETS = _Kinds(Kind.SUBNET, Kind.SUBNETS_APART, Kind.SUBNETS_ONE_WAY, Kind.ALL_SUBNETS_APART)


class _Shared:
    """What devices share, and which suspects a ping has by it.

    What a single device has, and what all of them have, is no suspect of its own.
    """

    def __init__(self, kinds: _Kinds, values: Sequence[Any], works: Iterable[Pair]) -> None:
        self.kinds, self.values = kinds, values
        counts = Counter(values)
        self.shared = {value for value, count in counts.items() if count > 1} if len(counts) > 1 else set()
        self._has_many = len(counts) >= _FEWEST_APART
        self._groups: list[tuple[Kind, dict[Any, str], tuple[str, ...]]] = []
        for kind, is_one_way in zip(kinds.groups or (), (False, True)):
            groups = _groups(values, works, is_one_way=is_one_way)
            if len(groups) > 1:
                names = tuple(map(_folded, groups))
                group_of = {value: name for group, name in zip(groups, names) for value in group}
                self._groups.append((kind, group_of, () if is_one_way else names))

    def suspects(self, one: Any, other: Any) -> Iterator[Suspect]:
        """Those of a ping from a device with one value to a device with the other."""
        kinds = self.kinds
        for value in {one, other} & self.shared:
            yield Suspect(kinds.of_one, (value,))
            if one == other and kinds.inside:
                yield Suspect(kinds.inside, (value,))
            if one != other and kinds.cut_off and (self._has_many or kinds is _NODES):
                yield Suspect(kinds.cut_off, (value,))
        for value, directed in ((one, kinds.sends), (other, kinds.receives)):
            if directed and value in self.shared:
                yield Suspect(directed[0], (value,))
                if one != other and self._has_many:
                    yield Suspect(directed[1], (value,))
        for kind, group_of, names in self._groups:
            ends = group_of.get(one, ""), group_of.get(other, "")
            if all(ends) and ends[0] != ends[1]:
                yield Suspect(kind, names or ends)
        if one == other or not self.shared:
            return
        yield Suspect(kinds.apart, (min(one, other), max(one, other)))
        yield Suspect(kinds.one_way, (one, other))
        if len(self.shared) >= kinds.fewest:
            yield Suspect(kinds.all_apart)


class Crowd:
    """The devices by what they share, and which suspects a ping between two of them has.

    `works` are the pings that work: they tell which nodes and numbers of cards reach each other, if only by way of
    others. Suspects that flap are not among these: see `_flapping`.
    """

    def __init__(self, devices: Sequence[Device], works: Iterable[Pair] = ()) -> None:
        works = list(works)
        self._shared = (
            _Shared(_NODES, [device.node for device in devices], works),
            _Shared(_SIDES, [device.card for device in devices], works),
            _Shared(_SUBNETS, [device.network for device in devices], works),
        )
        self._all = [None] * len(devices)

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

    def members(self) -> Iterator[tuple[Kind, dict[int | str, list[int]]]]:
        """What can flap: by its kind the values, each with the places of its devices."""
        nodes, sides, _ = self._shared
        yield Kind.CARD_FLAPS, {place: [place] for place in range(len(self._all))}
        for kind, family in ((Kind.NODE_FLAPS, nodes), (Kind.SIDE_FLAPS, sides)):
            places: defaultdict[int | str, list[int]] = defaultdict(list)
            for place, value in enumerate(family.values):
                places[value].append(place)
            yield kind, {value: places[value] for value in family.shared}

    def _families(self) -> Iterator[tuple[Sequence[Any], Callable[[Any, Any], Iterator[Suspect]]]]:
        yield self._all, lambda _one, _other: iter((Suspect(Kind.EVERYTHING),))
        for family in self._shared:
            yield family.values, family.suspects


def _of_devices(source: int, target: int) -> tuple[Suspect, ...]:
    return (
        Suspect(Kind.CARD, (source,)),
        Suspect(Kind.CARD, (target,)),
        Suspect(Kind.SENDS, (source,)),
        Suspect(Kind.RECEIVES, (target,)),
    )


def _groups(values: Sequence[Any], works: Iterable[Pair], *, is_one_way: bool) -> list[list[Any]]:
    """The values that reach each other, if only by way of others, in groups; else those that do so there and back.

    A value that reaches no other one is no group: it is what is broken, and not what lies between it and the others.
    """
    names = list(dict.fromkeys(values))
    place_of = {name: place for place, name in enumerate(names)}
    reached = [1 << place for place in range(len(names))]  # bit n: the value at place n
    for one, other in {(place_of[values[source]], place_of[values[target]]) for source, target in works}:
        reached[one] |= 1 << other
        if not is_one_way:
            reached[other] |= 1 << one
    for middle in range(len(names)):
        reached = [bits | reached[middle] if bits >> middle & 1 else bits for bits in reached]
    groups: dict[int, list[Any]] = {}
    for place, name in enumerate(names):
        # The first one that it reaches and that reaches it stands for the group; it is itself one of them.
        first = next(at for at in range(place + 1) if reached[place] >> at & 1 and reached[at] >> place & 1)
        groups.setdefault(first, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _folded(group: Sequence[Any]) -> str:
    return fold_numbers(group) if all(isinstance(value, int) for value in group) else fold(group)


def reduce(devices: Sequence[Device], failing: Iterable[Pair], working: Iterable[Pair]) -> tuple[Culprit, ...]:
    """What explains all of `failing` and contradicts none of `working`, the weightiest first.

    Where nothing larger does, the pairs themselves do, so there always is an explanation; none of its parts can be left
    out.
    """
    failed, works = list(dict.fromkeys(failing)), list(working)
    crowd = Crowd(devices, works)
    broken_by = crowd.broken_by(failed, works)
    is_left = bytearray(b"\1" * len(failed))
    # A pair breaks two pings at most, so that pairs are only looked at when nothing else breaks more.
    chosen = _greedy(broken_by, is_left, least=_MOST_OF_A_PAIR + 1)
    pairs = _Pairs(failed, works)
    left = [place for place, is_so in enumerate(is_left) if is_so]
    broken_by.update(pairs.suspects(left))
    broken_by.update(_flapping(crowd, failed, works, left))
    chosen = _needed([*chosen, *_greedy(broken_by, is_left, least=1)], broken_by, len(failed))
    return tuple(_culprits(chosen, broken_by, failed, pairs))


def _flapping(
    crowd: Crowd, failed: Sequence[Pair], works: Sequence[Pair], left: Sequence[int]
) -> dict[Suspect, list[int]]:
    """Suspects of which some pings fail and others work, with all failing pings that they break.

    They are only looked for in what no suspect explains that is always broken.
    """
    bad, good = _partners(failed[place] for place in left), _partners(works)
    tried = _partners((*failed, *works))
    found = {}
    for kind, members in crowd.members():
        for value, places in members.items():
            inside = set(places)
            mixed = [at for at in places if at in good]  # the others are broken for good, and named so
            if mixed and all(_stands_out(at, bad, tried, inside) for at in mixed):
                broken = [place for place, pair in enumerate(failed) if not inside.isdisjoint(pair)]
                found[Suspect(kind, (value,))] = broken
    return found


def _partners(pairs: Iterable[Pair]) -> dict[int, set[int]]:
    found: defaultdict[int, set[int]] = defaultdict(set)
    for source, target in pairs:
        found[source].add(target)
        found[target].add(source)
    return dict(found)


def _stands_out(at: int, bad: Mapping[int, set[int]], tried: Mapping[int, set[int]], inside: set[int]) -> bool:
    """Whether a device has pings that fail with so many others, and these with so few, that it is the device.

    Where each ping fails by itself, some device has two or three of them by chance.
    """
    from statistics import median

    partners, of_all = bad.get(at, set()) - inside, tried[at] - inside
    is_many = len(partners) >= _FEWEST_APART or len(partners) >= max(2, len(of_all) / 2)
    return is_many and len(partners) >= 2 * median(len(bad[other]) for other in partners)


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
