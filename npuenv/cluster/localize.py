"""The fewest faults that explain what failed: pings between devices, and connections to ports. Pure.

A hypothesis says what it breaks. It counts only if everything it breaks that was tried did fail, so nothing that works
contradicts it; what was not tried speaks neither for it nor against it. Hypotheses are chosen greedily, the one that
explains most of what is left first, and those that turn out not to be needed are dropped. A part that flaps is looked
for in what is left then, and says itself that some of its pings work.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from npuenv.cluster.nodeset import fold, fold_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

    from npuenv.cluster.mesh import Device, Pair

    _Scope = tuple[str | None, str | None, int | None]  # of source, target and port; None: every one

H = TypeVar("H")
K = TypeVar("K", bound="Hashable")


def choose(
    explains: Mapping[H, Sequence[int]], is_left: bytearray, order: Callable[[H], Any], *, least: int = 1
) -> list[H]:
    """Hypotheses that together explain what is left: each time the one that explains most of it, at least `least`.

    What they explain is taken out of what is left. `order` decides among equals, the smallest first.
    """
    # What a hypothesis still explains only shrinks: an entry whose number is right when it comes up is the largest.
    queue = [
        (-len(indexes), order(hypothesis), at, hypothesis)
        for at, (hypothesis, indexes) in enumerate(explains.items())
        if len(indexes) >= least
    ]
    heapq.heapify(queue)
    chosen = []
    while queue:
        size, rank, at, hypothesis = heapq.heappop(queue)
        now = sum(is_left[index] for index in explains[hypothesis])
        if now == -size:
            chosen.append(hypothesis)
            for index in explains[hypothesis]:
                is_left[index] = 0
        elif now >= least:
            heapq.heappush(queue, (-now, rank, at, hypothesis))
    return chosen


def drop_redundant(chosen: Sequence[H], explains: Mapping[H, Sequence[int]], count: int) -> list[H]:
    """Those of which none can be left out; the last chosen explain least and go first. `count`: all failures."""
    times = _times(chosen, explains, count)
    needed = []
    for hypothesis in reversed(chosen):
        if all(times[index] > 1 for index in explains[hypothesis]):
            for index in explains[hypothesis]:
                times[index] -= 1
        else:
            needed.append(hypothesis)
    return needed[::-1]


def fewest(explains: Mapping[H, Sequence[int]], count: int, order: Callable[[H], Any]) -> list[H]:
    """Hypotheses that together explain all failures that any explains, and none of which can be left out."""
    return drop_redundant(choose(explains, bytearray(b"\1" * count), order), explains, count)


def _times(chosen: Iterable[H], explains: Mapping[H, Sequence[int]], count: int) -> list[int]:
    """How many of the chosen explain each failure."""
    times = [0] * count
    for hypothesis in chosen:
        for index in explains[hypothesis]:
            times[index] += 1
    return times


def connected_groups(
    values: Iterable[Any], links: Iterable[tuple[Any, Any]], *, is_mutual: bool = False
) -> list[list[Any]]:
    """The values that reach each other, if only by way of others, in groups; `is_mutual`: those that do there and back.

    A value that reaches no other one is no group: it is what is broken, and not what lies between it and the others.
    """
    names = list(dict.fromkeys(values))
    index_of = {name: index for index, name in enumerate(names)}
    reached = [1 << index for index in range(len(names))]  # bit n: the value at place n
    for one, other in links:
        reached[index_of[one]] |= 1 << index_of[other]
        if not is_mutual:
            reached[index_of[other]] |= 1 << index_of[one]
    for middle in range(len(names)):
        reached = [bits | reached[middle] if bits >> middle & 1 else bits for bits in reached]
    groups: dict[int, list[Any]] = {}
    for index, name in enumerate(names):
        # The first one that it reaches and that reaches it stands for the group; it is itself one of them.
        first = next(at for at in range(index + 1) if reached[index] >> at & 1 and reached[at] >> index & 1)
        groups.setdefault(first, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _indexes_of(keys: Iterable[K]) -> dict[K, list[int]]:
    """The places at which each key stands."""
    found: defaultdict[K, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        found[key].append(index)
    return found


class Kind(enum.IntEnum):
    """What can be broken in a mesh, from the smallest claim to the largest: among equals the earlier one is named."""

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


class Hypothesis(NamedTuple):
    """A kind with what it is about: places of devices, names of nodes, numbers of cards or subnets, by its kind.

    A partition is about its groups, each in one text, as `fold` writes names. A plain tuple: a mesh makes millions.
    """

    kind: Kind
    about: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """A part of an explanation."""

    hypothesis: Hypothesis
    explains: tuple[Pair, ...]  # the failing pings that it breaks
    alternatives: tuple[Hypothesis, ...]  # what could stand in its place: the pings cannot tell them apart


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


class _Family:
    """What devices share, and the hypotheses that follow from it: not from what a single device has, or all have."""

    def __init__(self, kinds: _Kinds, values: Sequence[Any], works: Iterable[Pair]) -> None:
        self.kinds, self.values = kinds, values
        counts = Counter(values)
        self.shared = {value for value, count in counts.items() if count > 1} if len(counts) > 1 else set()
        self._has_many = len(counts) >= _FEWEST_APART
        self._groups: list[tuple[Kind, dict[Any, str], tuple[str, ...]]] = []
        links = {(values[source], values[target]) for source, target in works} if kinds.groups else set()
        for kind, is_mutual in zip(kinds.groups or (), (False, True)):
            groups = connected_groups(values, links, is_mutual=is_mutual)
            if len(groups) > 1:
                names = tuple(map(fold_numbers if kinds is _SIDES else fold, groups))
                group_of = {value: name for group, name in zip(groups, names) for value in group}
                self._groups.append((kind, group_of, () if is_mutual else names))

    def hypotheses(self, one: Any, other: Any) -> Iterator[Hypothesis]:
        """Those about a ping from a device with one value to a device with the other."""
        kinds = self.kinds
        for value in {one, other} & self.shared:
            yield Hypothesis(kinds.of_one, (value,))
            if one == other and kinds.inside:
                yield Hypothesis(kinds.inside, (value,))
            if one != other and kinds.cut_off and (self._has_many or kinds is _NODES):
                yield Hypothesis(kinds.cut_off, (value,))
        for value, directed in ((one, kinds.sends), (other, kinds.receives)):
            if directed and value in self.shared:
                yield Hypothesis(directed[0], (value,))
                if one != other and self._has_many:
                    yield Hypothesis(directed[1], (value,))
        for kind, group_of, names in self._groups:
            ends = group_of.get(one, ""), group_of.get(other, "")
            if all(ends) and ends[0] != ends[1]:
                yield Hypothesis(kind, names or ends)
        if one == other or not self.shared:
            return
        yield Hypothesis(kinds.apart, (min(one, other), max(one, other)))
        yield Hypothesis(kinds.one_way, (one, other))
        if len(self.shared) >= kinds.fewest:
            yield Hypothesis(kinds.all_apart)


class Topology:
    """The devices of a mesh by what they share, and the hypotheses about pings between them.

    `works` are the pings that work: they tell which nodes and numbers of cards reach each other, at least indirectly.
    """

    def __init__(self, devices: Sequence[Device], works: Sequence[Pair] = ()) -> None:
        self._nodes = _Family(_NODES, [device.node for device in devices], works)
        self._sides = _Family(_SIDES, [device.card for device in devices], works)
        self._subnets = _Family(_SUBNETS, [device.network for device in devices], works)

    def grouped(self, pairs: Sequence[Pair]) -> Iterator[tuple[Iterable[Hypothesis], list[int]]]:
        """The pings by what they have in common: the hypotheses about each group, with the places of its pings.

        Many pings come down to few groups. Hypotheses about a single pair of devices, and about what flaps, are left
        out: see `_about_pairs` and `_flapping`.
        """
        if pairs:
            yield (Hypothesis(Kind.EVERYTHING),), list(range(len(pairs)))
        for end, directed in ((0, Kind.SENDS), (1, Kind.RECEIVES)):
            for device, indexes in _indexes_of(pair[end] for pair in pairs).items():
                yield (Hypothesis(Kind.CARD, (device,)), Hypothesis(directed, (device,))), indexes
        for family in (self._nodes, self._sides, self._subnets):
            values = family.values
            for ends, indexes in _indexes_of((values[source], values[target]) for source, target in pairs).items():
                yield family.hypotheses(*ends), indexes

    def explained(self, failed: Sequence[Pair], works: Sequence[Pair]) -> dict[Hypothesis, list[int]]:
        """The places of the failing pings of every hypothesis that no working ping contradicts."""
        contradicted = {hypothesis for hypotheses, _ in self.grouped(works) for hypothesis in hypotheses}
        found: defaultdict[Hypothesis, list[int]] = defaultdict(list)
        for hypotheses, indexes in self.grouped(failed):
            for hypothesis in hypotheses:
                if hypothesis not in contradicted:
                    found[hypothesis] += indexes
        return dict(found)

    def members(self) -> Iterator[tuple[Kind, dict[int | str, list[int]]]]:
        """What can flap: by its kind the values, each with the places of its devices."""
        yield Kind.CARD_FLAPS, {index: [index] for index in range(len(self._nodes.values))}
        for kind, family in ((Kind.NODE_FLAPS, self._nodes), (Kind.SIDE_FLAPS, self._sides)):
            indexes = _indexes_of(family.values)
            yield kind, {value: indexes[value] for value in family.shared}


def localize_faults(devices: Sequence[Device], failing: Iterable[Pair], working: Iterable[Pair]) -> tuple[Fault, ...]:
    """The faults that explain all of `failing` and contradict none of `working`, the weightiest first.

    If nothing larger does, the pairs themselves do, so there always is an explanation. None of its parts is redundant.
    """
    failed, works = list(dict.fromkeys(failing)), list(working)
    topology = Topology(devices, works)
    explains = topology.explained(failed, works)
    is_left = bytearray(b"\1" * len(failed))
    # A pair breaks two pings at most, so that pairs are only looked at when nothing else breaks more.
    chosen = choose(explains, is_left, _order, least=_MOST_OF_A_PAIR + 1)
    left = [index for index, is_so in enumerate(is_left) if is_so]
    explains.update(_about_pairs(left, failed, set(works)))
    explains.update(_flapping(topology, failed, works, left))
    chosen = drop_redundant([*chosen, *choose(explains, is_left, _order)], explains, len(failed))
    return tuple(_with_alternatives(chosen, explains, failed, set(works)))


def _order(hypothesis: Hypothesis) -> tuple[int, str]:
    return hypothesis.kind, ",".join(f"{part:06}" if isinstance(part, int) else part for part in hypothesis.about)


def _about_pairs(at: Iterable[int], failed: Sequence[Pair], works: Collection[Pair]) -> dict[Hypothesis, list[int]]:
    """The hypotheses about the two devices of some failing pings alone, with all failing pings that they break."""
    index_of = {pair: index for index, pair in enumerate(failed)}
    found: dict[Hypothesis, list[int]] = {}
    for index in at:
        pair = failed[index]
        back = (pair[1], pair[0])
        found[Hypothesis(Kind.ONE_WAY, pair)] = [index]
        if back not in works:
            both = [index, *([index_of[back]] if back in index_of else [])]
            found[Hypothesis(Kind.PAIR, (min(pair), max(pair)))] = both
    return found


def _flapping(
    topology: Topology, failed: Sequence[Pair], works: Sequence[Pair], left: Sequence[int]
) -> dict[Hypothesis, list[int]]:
    """What some pings of fail and others work, with all failing pings that it breaks.

    It is only looked for in what no hypothesis explains that is always broken.
    """
    bad, good = _partners(failed[index] for index in left), _partners(works)
    tried = _partners((*failed, *works))
    found = {}
    for kind, members in topology.members():
        for value, indexes in members.items():
            inside = set(indexes)
            mixed = [at for at in indexes if at in good]  # the others are broken for good, and named so
            if mixed and all(_stands_out(at, bad, tried, inside) for at in mixed):
                broken = [index for index, pair in enumerate(failed) if not inside.isdisjoint(pair)]
                found[Hypothesis(kind, (value,))] = broken
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
    partners, of_all = bad.get(at, set()) - inside, tried[at] - inside
    is_many = len(partners) >= _FEWEST_APART or len(partners) >= max(2, len(of_all) / 2)
    return is_many and len(partners) >= 2 * median(len(bad[other]) for other in partners)


def _with_alternatives(
    chosen: Sequence[Hypothesis],
    explains: dict[Hypothesis, list[int]],
    failed: Sequence[Pair],
    works: Collection[Pair],
) -> Iterator[Fault]:
    """Each with the hypotheses that break all of what it alone explains: they could stand in its place."""
    times = _times(chosen, explains, len(failed))
    alone = {hypothesis: {index for index in explains[hypothesis] if times[index] == 1} for hypothesis in chosen}
    few = [index for indexes in alone.values() if len(indexes) <= _MOST_OF_A_PAIR for index in indexes]
    explains.update(_about_pairs(few, failed, works))
    by_index: defaultdict[int, list[Hypothesis]] = defaultdict(list)
    firsts = {min(indexes) for indexes in alone.values()}
    for hypothesis, indexes in explains.items():
        for index in firsts.intersection(indexes):
            by_index[index].append(hypothesis)
    for hypothesis, mine in alone.items():
        others = [each for each in by_index[min(mine)] if each not in alone and mine.issubset(explains[each])]
        broken = tuple(sorted(failed[index] for index in explains[hypothesis]))
        yield Fault(hypothesis, broken, tuple(sorted(others, key=_order)))


class PortProbe(NamedTuple):
    """One attempt of one node at a port of another one."""

    source: str
    target: str
    port: int


class PortFault(NamedTuple):
    """Where all attempts failed. None stands for every source, target or port."""

    source: str | None
    target: str | None
    ports: tuple[int, ...] | None
    failed: tuple[PortProbe, ...]  # those that it explains, and none before it


def localize_port_faults(tried: Mapping[PortProbe, bool]) -> list[PortFault]:
    """What explains every failed attempt, the one that explains most first. `tried` says of each whether it arrived.

    Of two scopes that explain as much the narrower one is named: of two nodes that do not reach each other neither is
    blamed alone. Faults that differ in their ports alone are one.
    """
    failed = [probe for probe, arrived in tried.items() if not arrived]
    works = {scope for probe, arrived in tried.items() if arrived for scope in _scopes(probe)}
    explains: dict[_Scope, list[int]] = {}
    for index, probe in enumerate(failed):
        for scope in _scopes(probe):
            if scope not in works:
                explains.setdefault(scope, []).append(index)
    left = dict(enumerate(failed))
    found: dict[tuple[str | None, str | None, bool], tuple[list[int], list[PortProbe]]] = {}
    for source, target, port in fewest(explains, len(failed), _width):
        ports, broken = found.setdefault((source, target, port is None), ([], []))
        ports += [] if port is None else [port]
        broken += sorted(left.pop(index) for index in explains[source, target, port] if index in left)
    return [
        PortFault(source, target, None if is_all else tuple(sorted(ports)), tuple(broken))
        for (source, target, is_all), (ports, broken) in found.items()
    ]


def _scopes(probe: PortProbe) -> Iterator[_Scope]:
    source, target, port = probe
    for each in (port, None):
        yield from ((source, target, each), (source, None, each), (None, target, each), (None, None, each))


def _width(scope: _Scope) -> tuple[int, bool]:
    """Of scopes that explain as much: the narrower one; of the two ends of a link, the one that listens."""
    return sum(part is None for part in scope[:2]), scope[1] is None
