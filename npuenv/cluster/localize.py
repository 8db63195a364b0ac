"""The fewest faults that explain what failed: pings between devices, and connections to ports. Pure.

A hypothesis implies a set of failures. It is possible only if all of them that were tried did fail; untried pings say
nothing. Hypotheses are chosen greedily, the one that explains most of the remaining failures first, and redundant ones
are dropped. Intermittent faults ("flaps"), which do not imply that every ping fails, are searched in what remains.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from npuenv.cluster.inventory import fold, fold_numbers, grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

    from npuenv.cluster.mesh import MeshDevice, Pair

    _Scope = tuple[str | None, str | None, int | None]  # of source, target and port; None: every one

H = TypeVar("H")
K = TypeVar("K", bound="Hashable")


def choose(
    explains: Mapping[H, Sequence[int]], is_left: bytearray, order: Callable[[H], Any], *, least: int = 1
) -> list[H]:
    """Chooses hypotheses greedily: each time the one that explains most of what is left, at least `least` failures.

    Clears what they explain in `is_left`. `order` decides among equals, the smallest first.
    """
    # What a hypothesis explains only shrinks, so an entry with the right number at the top of the heap is the largest.
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
    """The hypotheses without redundant ones, of which the last chosen go first. `count`: all failures."""
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
    """Hypotheses that together explain all failures that any explains, without redundant ones."""
    return drop_redundant(choose(explains, bytearray(b"\1" * count), order), explains, count)


def _times(chosen: Iterable[H], explains: Mapping[H, Sequence[int]], count: int) -> list[int]:
    """The number of chosen hypotheses that explain each failure."""
    times = [0] * count
    for hypothesis in chosen:
        for index in explains[hypothesis]:
            times[index] += 1
    return times


def connected_groups(
    values: Iterable[Any], links: Iterable[tuple[Any, Any]], *, is_mutual: bool = False
) -> list[list[Any]]:
    """The connected components with at least two values; `is_mutual`: the strongly connected ones."""
    names = list(dict.fromkeys(values))
    index_of = {name: index for index, name in enumerate(names)}
    reached = [1 << index for index in range(len(names))]  # bit n: the value at index n
    for one, other in links:
        reached[index_of[one]] |= 1 << index_of[other]
        if not is_mutual:
            reached[index_of[other]] |= 1 << index_of[one]
    for middle in range(len(names)):
        reached = [bits | reached[middle] if bits >> middle & 1 else bits for bits in reached]
    groups: dict[int, list[Any]] = {}
    for index, name in enumerate(names):
        # A group is named by its first member.
        first = next(at for at in range(index + 1) if reached[index] >> at & 1 and reached[at] >> index & 1)
        groups.setdefault(first, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _indexes_of(keys: Iterable[K]) -> dict[K, list[int]]:
    """The indexes of each key."""
    return grouped((key, index) for index, key in enumerate(keys))


class Kind(enum.IntEnum):
    """What can be broken in a mesh, from the smallest to the largest; of equal explanations the first is named."""

    PAIR = 1  # two devices, in both directions as far as tried
    CARD = 2  # the port of one card
    SENDS = 3  # nothing that a card sends arrives, but it receives
    RECEIVES = 4  # nothing arrives at a card, but it sends
    ONE_WAY = 5  # from one device to another, in this direction only
    NODES = 6  # between the cards of one node and those of another
    NODES_ONE_WAY = 7  # from the cards of one node to those of another
    NODE = 8  # all cards of a node
    NODE_SENDS = 9  # from all cards of a node to all others
    NODE_RECEIVES = 10  # to all cards of a node from all others
    UPLINK = 11  # between the cards of a node and all other nodes
    UPLINK_SENDS = 12  # from all cards of a node to all other nodes
    UPLINK_RECEIVES = 13  # to all cards of a node from all other nodes
    ALL_NODES_APART = 14  # between cards of different nodes
    SIDE = 15  # the cards of one number on all nodes: one switch, rail or plane
    SIDE_INSIDE = 16  # the same, among themselves
    SIDES_APART = 17  # between the cards of one number and those of another
    SIDES_ONE_WAY = 18  # from the cards of one number to those of another
    SIDE_CUT_OFF = 19  # between the cards of one number and all others
    ALL_SIDES_APART = 20  # between cards of different numbers
    SUBNET = 21  # all devices of a subnet
    SUBNETS_APART = 22  # between one subnet and another
    SUBNETS_ONE_WAY = 23  # from one subnet to another
    ALL_SUBNETS_APART = 24  # between different subnets
    PARTITION = 25  # between groups of nodes
    PARTITION_ONE_WAY = 26  # from one group of nodes to another
    SIDE_PARTITION = 27  # between groups of card numbers
    SIDE_PARTITION_ONE_WAY = 28  # from one group of card numbers to another
    CARD_FLAPS = 29  # many pings of one card, but not all
    NODE_FLAPS = 30  # many pings of each card of a node, but not all
    SIDE_FLAPS = 31  # many pings of each card of one number, but not all
    EVERYTHING = 32

    @property
    def word(self) -> str:
        """Its name in documents: side-inside."""
        return self.name.lower().replace("_", "-")


_MOST_OF_A_PAIR = 2  # pings: there and back
_FEWEST_APART = 3  # values, for "all of them are apart" to differ from a single pair


class Hypothesis(NamedTuple):
    """A kind, and by its kind indexes of devices, names of nodes, numbers of cards, or subnets.

    A partition is about its groups, each folded into one text. A plain tuple, because a mesh makes millions.
    """

    kind: Kind
    about: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of an explanation."""

    hypothesis: Hypothesis
    explains: tuple[Pair, ...]  # the failed pings that it implies
    alternatives: tuple[Hypothesis, ...]  # hypotheses that the pings cannot distinguish from it


@dataclass(frozen=True, slots=True)
class _Kinds:
    """The kinds about what devices share: node, card number or subnet. None: there is no such kind."""

    of_one: Kind
    apart: Kind
    one_way: Kind
    all_apart: Kind
    inside: Kind | None = None
    cut_off: Kind | None = None
    sends: tuple[Kind, Kind] | None = None  # to all, to all others
    receives: tuple[Kind, Kind] | None = None
    groups: tuple[Kind, Kind] | None = None  # in both directions, in one
    fewest: int = 2  # values for `all_apart`


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
    """A shared property of devices (node, card number, subnet), and the hypotheses about its values."""

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
        """The hypotheses that imply the failure of a ping from a device with one value to one with the other."""
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


class MeshTopology:
    """The devices of a mesh by their shared properties, and the hypotheses about pings between them.

    `works`: the working pings, from which follow the groups of nodes and card numbers that reach each other.
    """

    def __init__(self, devices: Sequence[MeshDevice], works: Sequence[Pair] = ()) -> None:
        self._nodes = _Family(_NODES, [device.node for device in devices], works)
        self._sides = _Family(_SIDES, [device.card for device in devices], works)
        self._subnets = _Family(_SUBNETS, [device.network for device in devices], works)

    def grouped(self, pairs: Sequence[Pair]) -> Iterator[tuple[Iterable[Hypothesis], list[int]]]:
        """Groups of pings with the same hypotheses: these, and the indexes of the pings.

        Without hypotheses about a single pair of devices, and about flapping: see `_about_pairs` and `_flapping`.
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
        """The indexes of the failed pings of every hypothesis that no working ping contradicts."""
        contradicted = {hypothesis for hypotheses, _ in self.grouped(works) for hypothesis in hypotheses}
        found: defaultdict[Hypothesis, list[int]] = defaultdict(list)
        for hypotheses, indexes in self.grouped(failed):
            for hypothesis in hypotheses:
                if hypothesis not in contradicted:
                    found[hypothesis] += indexes
        return dict(found)

    def members(self) -> Iterator[tuple[Kind, dict[int | str, list[int]]]]:
        """What can flap: by kind the values, each with the indexes of its devices."""
        yield Kind.CARD_FLAPS, {index: [index] for index in range(len(self._nodes.values))}
        for kind, family in ((Kind.NODE_FLAPS, self._nodes), (Kind.SIDE_FLAPS, self._sides)):
            indexes = _indexes_of(family.values)
            yield kind, {value: indexes[value] for value in family.shared}


def localize_faults(
    devices: Sequence[MeshDevice], failing: Iterable[Pair], working: Iterable[Pair]
) -> tuple[Fault, ...]:
    """The fewest faults that explain all of `failing` and contradict none of `working`, the largest first.

    There always is an explanation: at worst the failed pairs themselves. None of its faults is redundant.
    """
    failed, works = list(dict.fromkeys(failing)), list(working)
    if not failed:
        return ()
    topology = MeshTopology(devices, works)
    explains = topology.explained(failed, works)
    is_left = bytearray(b"\1" * len(failed))
    # A pair explains at most two pings, so pairs come last.
    chosen = choose(explains, is_left, _order, least=_MOST_OF_A_PAIR + 1)
    left = [index for index, is_so in enumerate(is_left) if is_so]
    explains.update(_about_pairs(left, failed, set(works)))
    explains.update(_flapping(topology, failed, works, left))
    chosen = drop_redundant([*chosen, *choose(explains, is_left, _order)], explains, len(failed))
    return tuple(_with_alternatives(chosen, explains, failed, set(works)))


def _order(hypothesis: Hypothesis) -> tuple[int, str]:
    return hypothesis.kind, ",".join(f"{part:06}" if isinstance(part, int) else part for part in hypothesis.about)


def _about_pairs(at: Iterable[int], failed: Sequence[Pair], works: Collection[Pair]) -> dict[Hypothesis, list[int]]:
    """The hypotheses about single pairs of devices, for the failed pings at these indexes."""
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
    topology: MeshTopology, failed: Sequence[Pair], works: Sequence[Pair], left: Sequence[int]
) -> dict[Hypothesis, list[int]]:
    """What has failed and working pings, with its failed ones; searched in the pings that nothing else explains."""
    bad, good = _partners(failed[index] for index in left), _partners(works)
    tried = _partners((*failed, *works))
    found = {}
    for kind, members in topology.members():
        for value, indexes in members.items():
            inside = set(indexes)
            mixed = [at for at in indexes if at in good]  # the others never work, and have a hypothesis
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
    """Whether a device has failed pings with many others, each of which has few, so that they are not random."""
    partners, of_all = bad.get(at, set()) - inside, tried[at] - inside
    is_many = len(partners) >= _FEWEST_APART or len(partners) >= max(2, len(of_all) / 2)
    return is_many and len(partners) >= 2 * median(len(bad[other]) for other in partners)


def _with_alternatives(
    chosen: Sequence[Hypothesis], explains: dict[Hypothesis, list[int]], failed: Sequence[Pair], works: Collection[Pair]
) -> Iterator[Fault]:
    """The faults, each with the hypotheses that explain all that it alone explains."""
    times = _times(chosen, explains, len(failed))
    alone = {hypothesis: {index for index in explains[hypothesis] if times[index] == 1} for hypothesis in chosen}
    few = [index for indexes in alone.values() if len(indexes) <= _MOST_OF_A_PAIR for index in indexes]
    explains.update(_about_pairs(few, failed, works))
    firsts = {min(indexes) for indexes in alone.values()}
    by_index = grouped((index, each) for each, indexes in explains.items() for index in firsts.intersection(indexes))
    for hypothesis, mine in alone.items():
        others = [each for each in by_index[min(mine)] if each not in alone and mine.issubset(explains[each])]
        broken = tuple(sorted(failed[index] for index in explains[hypothesis]))
        yield Fault(hypothesis, broken, tuple(sorted(others, key=_order)))


class PortProbe(NamedTuple):
    """One attempt of one node to connect to a port of another one."""

    source: str
    target: str
    port: int


class PortFault(NamedTuple):
    """Where all attempts failed. None: every source, target or port."""

    source: str | None
    target: str | None
    ports: tuple[int, ...] | None
    failed: tuple[PortProbe, ...]  # that no earlier fault explains


def localize_port_faults(tried: Mapping[PortProbe, bool]) -> list[PortFault]:
    """The fewest faults that explain every failed attempt, the largest first. `tried`: whether each attempt arrived.

    Of equal explanations the narrower one is named: a link rather than one of its nodes. Faults that differ only in
    their ports are one.
    """
    failed = [probe for probe, arrived in tried.items() if not arrived]
    works = {scope for probe, arrived in tried.items() if arrived for scope in _scopes(probe)}
    scopes = ((scope, index) for index, probe in enumerate(failed) for scope in _scopes(probe))
    explains = grouped((scope, index) for scope, index in scopes if scope not in works)
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
    """Orders equal explanations: the narrower one first; of the two ends of a link, the listening one."""
    return sum(part is None for part in scope[:2]), scope[1] is None
