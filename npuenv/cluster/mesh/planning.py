"""Which devices there are, and which device pings which and when. Nothing is run here.

Each ping asks one pair in one direction. The full mesh takes both directions: a reply proves that packets pass both
ways, but who asks needs an address resolution and a route of its own, so that a pair can fail one way only.

What holds of every plan: in a round no device takes part twice, neither as source nor as target, and no node is the
source of two pings. For nodes with equally many cards (two or more, an even number of nodes) no plan is shorter: a node
of c cards in a mesh of n devices has c * (n - 1) pings to make, one after another, and there are as many rounds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

from npuenv.cluster.mesh import FULL, SAMPLED, Device, Pair, PingPlan
from npuenv.core.messages import Message
from npuenv.facts.hccn.answers import Refusal, lines_of, refused
from npuenv.facts.hccn.parsers import ip
from npuenv.facts.npu.smi import Layout, SmiTable, parse_info
from npuenv.host.base import Ran

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npuenv.cluster.inventory import Node


_CHIPS_OF_A_BOARD = 2  # A3
_FOR_ALL_CARDS = (Refusal.PERMISSION, Refusal.NOT_INSTALLED, Refusal.GRAMMAR, Refusal.UNSUPPORTED)

MOST_FOR_FULL = 64  # devices up to which the full mesh is what is done unless asked otherwise
_FULLY_PAIRED = 5  # devices of which each can be paired with all others without more than four pings


@dataclass(frozen=True, slots=True)
class MissingDevice:
    """A node, or one card of it, that cannot take part, and why."""

    node: str
    card: int | None  # None: the whole node
    why: Message
    is_fault: bool = False  # wrong for certain, and not only impossible to ask


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """What one node printed, line by line, and why that is all, if it did not come to its end."""

    lines: tuple[Mapping[str, Any], ...]
    failure: Message | None = None

    @property
    def refusal(self) -> str | None:
        """The word for why it would not go on; None if it did, or printed nothing."""
        return next((str(line["refused"]) for line in self.lines if "refused" in line), None)

    @property
    def why(self) -> Message | None:
        """Why it has not done its work; None if it came to its end."""
        return Message(f"mesh.why-{self.refusal}") if self.refusal else self.failure


@dataclass(frozen=True, slots=True)
class Survey:
    """The devices of the mesh, and what is missing of it."""

    devices: tuple[Device, ...]
    missing: tuple[MissingDevice, ...]


def find_devices(nodes: Sequence[Node], outputs: Mapping[str, NodeOutput]) -> Survey:
    """The devices in the order of the nodes. Devices that share an address are left out: either could answer."""
    found: list[Device] = []
    missing: list[MissingDevice] = []
    for node in nodes:
        survey = _of_node(node, outputs[node.name])
        found += survey.devices
        missing += survey.missing
    times = Counter(device.ip for device in found)
    for device in found:
        if times[device.ip] > 1:
            others = tuple(_name(other) for other in found if other.ip == device.ip and other is not device)
            args = {"ip": device.ip, "others": others}
            missing.append(
                MissingDevice(device.node, device.card, Message("mesh.why-same-address", args), is_fault=True)
            )
    return Survey(tuple(device for device in found if times[device.ip] == 1), tuple(missing))


def vanished_devices(devices: Iterable[Device], surveyed: Survey) -> tuple[MissingDevice, ...]:
    """Those devices of an earlier survey that are not there today, and of which it is not known yet why."""
    known: set[tuple[str, int | None]] = {(each.node, each.card) for each in surveyed.devices}
    known |= {(each.node, each.card) for each in surveyed.missing}
    lacking = [each for each in devices if not known & {(each.node, each.card), (each.node, None)}]
    return tuple(MissingDevice(each.node, each.card, Message("mesh.why-gone")) for each in lacking)


def as_ran(line: Mapping[str, Any], words: Iterable[str]) -> Ran:
    """A line of the remote program as what a command did."""
    is_late = bool(line.get("late"))
    return Ran(tuple(words), line["code"], str(line["out"]), str(line["err"]), timed_out=is_late)


def refusal_of(line: Mapping[str, Any]) -> Message | None:
    """Why no command of a node will do what it is asked, from one answer of it; None where others may."""
    failure = refused(as_ran(line, ()))
    if failure is None or failure.kind not in _FOR_ALL_CARDS:
        return None
    return Message(f"mesh.why-{failure.kind.value}", {"line": failure.line})


def _of_node(node: Node, output: NodeOutput) -> Survey:
    why = output.why
    answers = [line for line in output.lines if "card" in line]
    if not answers:
        return Survey((), (MissingDevice(node.name, None, why or Message("mesh.why-no-card")),))
    for_all = next(filter(None, map(refusal_of, answers)), None)
    if for_all is not None:
        return Survey((), (MissingDevice(node.name, None, for_all),))
    table = parse_info(next((str(line["smi"]) for line in output.lines if "smi" in line), ""))
    is_a3 = isinstance(table, SmiTable) and table.layout is Layout.A3
    devices, missing = [], []
    for line in answers:
        address, card = ip(str(line["out"])), int(line["card"])
        if address is None:
            missing.append(MissingDevice(node.name, card, _no_address(line)))
            continue
        board = card // _CHIPS_OF_A_BOARD if is_a3 else None
        devices.append(Device(node.name, card, address.ip, address.netmask, board))
    missing += _not_there(node, {int(line["card"]) for line in answers})
    if why is not None:
        missing.append(MissingDevice(node.name, None, why))
    return Survey(tuple(devices), tuple(missing))


def _not_there(node: Node, cards: set[int]) -> list[MissingDevice]:
    """The cards that the inventory speaks of and the node does not have."""
    lacking = (node.cards or 0) - len(cards)
    args = {"wanted": node.cards or 0, "found": len(cards)}
    why = Message("mesh.why-fewer-cards", args)
    return [MissingDevice(node.name, None, why, is_fault=True)] if lacking > 0 else []


def _no_address(line: Mapping[str, Any]) -> Message:
    failure = refused(as_ran(line, ()), "ip")
    if failure is not None and failure.kind is Refusal.NOT_SET:
        return Message("mesh.why-no-address")
    said = failure.line if failure else next(iter(lines_of(str(line["out"]))), "")
    return Message("mesh.why-unread", {"line": said})


def _name(device: Device) -> Message:
    return Message("mesh.card", {"node": device.node, "card": device.card})


def full(devices: Sequence[Device]) -> PingPlan:
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
    return PingPlan(tuple(devices), tuple(filter(None, rounds)), FULL)


def sampled(devices: Sequence[Device]) -> PingPlan:
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
    return PingPlan(tuple(devices), tuple(_first_fit(devices, directed)), SAMPLED)


def _by_node(devices: Sequence[Device]) -> list[list[int]]:
    """The places of the devices of each node."""
    nodes: defaultdict[str, list[int]] = defaultdict(list)
    for index, device in enumerate(devices):
        nodes[device.node].append(index)
    return list(nodes.values())


def _rounds(slots: Sequence[Sequence[int | None]], size: int) -> Iterator[list[Pair]]:
    """The rounds for nodes that all have `size` slots; what an empty slot takes part in falls out."""
    count = len(slots)
    for one, other in _round_robin(count):
        for card in range(size):
            # While one node of a pair asks along one card, the other asks along the next: no device meets itself.
            after = (card + 1) % size
            forward = ((slots[a][card], slots[b][card]) for a, b in zip(one, other))
            back = ((slots[b][after], slots[a][after]) for a, b in zip(one, other))
            yield from ([*_real(forward), *_real(back)],) if size > 1 else (_real(forward), _real(back))
    for step in range(count):
        for card, onto in permutations(range(size), 2):
            yield _real((slots[at][card], slots[(at + step) % count][onto]) for at in range(count))


def _round_robin(count: int) -> Iterator[tuple[list[int], list[int]]]:
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
    names = {device.node: index for index, device in enumerate(devices)}
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
    indexes = range(len(devices))
    if len(devices) <= _FULLY_PAIRED:
        pairs = [(one, other) for one in indexes for other in indexes[one + 1 :]]
        return [pair for pair in pairs if devices[pair[0]].can_reach(devices[pair[1]])]
    best: list[Pair] = []
    for circle in _circles(devices):
        for step in _steps(devices, len(circle)):
            pairs = [(circle[at], circle[(at + by) % len(circle)]) for by in (1, step) for at in indexes]
            kept = [pair for pair in pairs if devices[pair[0]].can_reach(devices[pair[1]])]
            if len(kept) == len(pairs):
                return kept
            best = max(best, kept, key=len)
    return best


def _circles(devices: Sequence[Device]) -> Iterator[list[int]]:
    """Orders of the devices: the first cards of all nodes, then their second ones; even cards before odd ones."""
    rank = {index: at for cards in _by_node(devices) for at, index in enumerate(cards)}
    yield sorted(rank, key=lambda index: (rank[index], index))
    yield sorted(rank, key=lambda index: (rank[index] % 2, rank[index], index))


def _steps(devices: Sequence[Device], count: int) -> list[int]:
    """How far on the second partner may be: another card of another node first, then whatever gives four partners."""
    preferred = len({device.node for device in devices}) + 1
    steps = (preferred, preferred + 1, 2, 3, 4)
    return [step for step in steps if step % count not in (0, 1, count - 1) and 2 * step % count]
