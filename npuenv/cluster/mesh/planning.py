"""Which device pings which, and when. Start from `full` and `sampled`. Nothing is run here.

Each ping asks one pair in one direction. The full mesh takes both directions: a reply proves that packets pass both
ways, but who asks needs an address resolution and a route of its own, so that a pair can fail one way only.

What holds of every plan: in a round no device takes part twice, neither as source nor as target, and no node is the
source of two pings. For nodes with equally many cards (two or more, an even number of nodes) no plan is shorter: a node
of c cards in a mesh of n devices has c * (n - 1) pings to make, one after another, and there are as many rounds.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import permutations
from typing import TYPE_CHECKING

from npuenv.cluster.mesh.types import FULL, SAMPLED, Pair, Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npuenv.cluster.mesh.types import Device

MOST_FOR_FULL = 64  # devices up to which the full mesh is what is done unless asked otherwise
_FULLY_PAIRED = 5  # devices of which each can be paired with all others without more than four pings


def full(devices: Sequence[Device]) -> Plan:
    """Every device to every other, once in each direction, but for pairs that are not built to reach each other."""
    nodes = _by_node(devices)
    size = max(map(len, nodes), default=0)
    slots = [[*cards, *[None] * (size - len(cards))] for cards in nodes]
    rounds = [
        tuple((source, target) for source, target in pings if devices[source].can_reach(devices[target]))
        for pings in _rounds(slots, size)
    ]
    is_even = len(nodes) % 2 == 0 and size * len(nodes) == len(devices)
    if not is_even:  # gaps, which the pings of later rounds can fill
        rounds = _first_fit(devices, (pair for pings in rounds for pair in pings))
    return Plan(tuple(devices), tuple(filter(None, rounds)), FULL)


def sampled(devices: Sequence[Device]) -> Plan:
    """So few pings that no device takes part in more than four, and yet any single dead one shows.

    Every device is paired with two others at least (where there are three), in one direction. If one device is dead
    and nothing else is wrong, its pings fail, and no other device takes part in all of them. A pair that is not asked
    may be broken.
    """
    pairs = _sample(devices)
    # Each device is the source of as many pings as it is the target of, as near as it can be.
    sent: defaultdict[int, int] = defaultdict(int)
    directed = []
    for one, other in pairs:
        source, target = (one, other) if sent[one] <= sent[other] else (other, one)
        sent[source] += 1
        directed.append((source, target))
    return Plan(tuple(devices), tuple(_first_fit(devices, directed)), SAMPLED)


def _by_node(devices: Sequence[Device]) -> list[list[int]]:
    """The places of the devices of each node."""
    nodes: defaultdict[str, list[int]] = defaultdict(list)
    for place, device in enumerate(devices):
        nodes[device.node].append(place)
    return list(nodes.values())


def _rounds(slots: Sequence[Sequence[int | None]], size: int) -> Iterator[list[Pair]]:
    """The rounds for nodes that all have `size` slots; what an empty slot takes part in falls out."""
    count = len(slots)
    for one, other in _meetings(count):
        for card in range(size):
            # While one node of a pair asks along one card, the other asks along the next: no device meets itself.
            after = (card + 1) % size
            there = ((slots[a][card], slots[b][card]) for a, b in zip(one, other))
            back = ((slots[b][after], slots[a][after]) for a, b in zip(one, other))
            yield from ([*_real(there), *_real(back)],) if size > 1 else (_real(there), _real(back))
    for step in range(count):
        for card, onto in permutations(range(size), 2):
            yield _real((slots[at][card], slots[(at + step) % count][onto]) for at in range(count))


def _meetings(count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Each two nodes meet once: the circle method, as for a tournament; one sits out where their number is odd."""
    players = [*range(count), *([-1] if count % 2 else [])]
    half = len(players) // 2
    for _ in range(len(players) - 1):
        pairs = [(a, b) for a, b in zip(players[:half], reversed(players[half:])) if a >= 0 and b >= 0]
        yield [a for a, _ in pairs], [b for _, b in pairs]
        players[1:] = [players[-1], *players[1:-1]]


def _real(pings: Iterable[tuple[int | None, int | None]]) -> list[Pair]:
    return [(source, target) for source, target in pings if source is not None and target is not None]


def _first_fit(devices: Sequence[Device], pings: Iterable[Pair]) -> list[tuple[Pair, ...]]:
    """Each ping in the first round in which its node and both its devices are free.

    Pings that come in the order of rounds never need more rounds than those.
    """
    names = {device.node: place for place, device in enumerate(devices)}
    node_of = [names[device.node] for device in devices]
    asking, busy = dict.fromkeys(names.values(), 0), [0] * len(devices)  # bit r: taken in round r
    rounds: list[list[Pair]] = []
    for source, target in pings:
        taken = asking[node_of[source]] | busy[source] | busy[target]
        bit = ~taken & (taken + 1)
        asking[node_of[source]] |= bit
        busy[source] |= bit
        busy[target] |= bit
        number = bit.bit_length() - 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append((source, target))
    return [tuple(each) for each in rounds]


def _sample(devices: Sequence[Device]) -> list[Pair]:
    """The pairs of a sample: on a circle of the devices, each with the next one and with one further on."""
    places = range(len(devices))
    if len(devices) <= _FULLY_PAIRED:
        pairs = [(one, other) for one in places for other in places[one + 1 :]]
        return [pair for pair in pairs if devices[pair[0]].can_reach(devices[pair[1]])]
    best: list[Pair] = []
    for circle in _circles(devices):
        for step in _steps(devices, len(circle)):
            pairs = [(circle[at], circle[(at + by) % len(circle)]) for by in (1, step) for at in places]
            kept = [pair for pair in pairs if devices[pair[0]].can_reach(devices[pair[1]])]
            if len(kept) == len(pairs):
                return kept
            best = max(best, kept, key=len)
    return best


def _circles(devices: Sequence[Device]) -> Iterator[list[int]]:
    """Orders of the devices: the first cards of all nodes, then their second ones; even cards before odd ones."""
    rank = {place: at for cards in _by_node(devices) for at, place in enumerate(cards)}
    yield sorted(rank, key=lambda place: (rank[place], place))
    yield sorted(rank, key=lambda place: (rank[place] % 2, rank[place], place))


def _steps(devices: Sequence[Device], count: int) -> list[int]:
    """How far on the second partner may be: another card of another node first, then whatever gives four partners."""
    wished = len({device.node for device in devices}) + 1
    steps = (wished, wished + 1, 2, 3, 4)
    return [step for step in steps if step % count not in (0, 1, count - 1) and 2 * step % count]
