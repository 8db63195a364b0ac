"""Pings between the device addresses of all cards of a cluster: the devices, and which pings which in which order.

`running` makes the pings and saves their outcomes, `document` reports the result.

Each ping tests one pair in one direction. The full mesh takes both: a reply proves that packets pass both ways, but the
source needs an address resolution and a route of its own, so a pair can fail one way only.

In a round no device takes part twice, neither as source nor as target, and no node is the source of two pings.
"""

from __future__ import annotations

import enum
import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npuenv.cluster.inventory import grouped
from npuenv.core.messages import Message
from npuenv.facts.hccn.parsers import ip
from npuenv.facts.hccn.tool import HccnRefusal, lines_of, refused
from npuenv.facts.npu.smi import Layout, SmiTable, parse_info
from npuenv.host import Ran

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npuenv.cluster.inventory import Node


Pair = tuple[int, int]  # indexes of source and target in the devices of the mesh
FULL, SAMPLED = "full", "sampled"
_CHIPS_OF_A_BOARD = 2  # A3
_FOR_ALL_CARDS = (HccnRefusal.PERMISSION, HccnRefusal.NOT_INSTALLED, HccnRefusal.GRAMMAR, HccnRefusal.UNSUPPORTED)
MOST_FOR_FULL = 64  # devices up to which the full mesh is what is done unless asked otherwise
_FULLY_PAIRED = 5  # devices of which each can be paired with all others without more than four pings


@dataclass(frozen=True, slots=True)
class MeshDevice:
    """The network port of a card, with its address."""

    node: str
    card: int  # the physical number, as for hccn_tool
    ip: str
    netmask: str = ""
    board: int | None = None  # A3: the board, whose two chips do not reach each other

    @property
    def name(self) -> Message:
        """Its node and card, in words."""
        return Message("mesh.card", {"node": self.node, "card": self.card})

    @property
    def network(self) -> str:
        """Its subnet, as 10.0.3.0/24; its address without a valid netmask."""
        return _network(self.ip, self.netmask)

    def can_reach(self, other: MeshDevice) -> bool:
        """Whether it is built to reach the other one over its network port; never so for itself."""
        is_one_board = self.board is not None and self.board == other.board
        return self.node != other.node or not (self.card == other.card or is_one_board)


@functools.lru_cache(maxsize=1 << 14)
def _network(ip: str, netmask: str) -> str:
    import ipaddress

    try:
        return str(ipaddress.ip_network(f"{ip}/{netmask}", strict=False))
    except ValueError:
        return ip


class PingOutcome(enum.Enum):
    """The outcome of a ping. The value is the letter of the matrix."""

    OK = "o"  # every packet came back
    LOSSY = "l"  # more than half of them came back
    WEAK = "w"  # half of them or fewer, which is as bad as none
    FAILED = "f"  # none
    SILENT = "s"  # the tool's output is unreadable
    UNTRIED = "u"  # the tool could not ping
    PENDING = "."  # not made yet, or not planned
    BARRED = "-"  # a device and itself, or the two chips of one board

    @property
    def is_settled(self) -> bool:
        """Whether it is a result about the network, so that the ping is not repeated."""
        return self in (PingOutcome.OK, PingOutcome.LOSSY, PingOutcome.WEAK, PingOutcome.FAILED)


@dataclass(frozen=True, slots=True)
class PingPlan:
    """The pings in rounds: within a round no device takes part twice, and no node pings twice."""

    devices: tuple[MeshDevice, ...]
    rounds: tuple[tuple[Pair, ...], ...]
    mode: str  # full, sampled

    @property
    def num_pings(self) -> int:
        return sum(map(len, self.rounds))

    @property
    def most_of_a_node(self) -> int:
        """The pings of the node that has the most: they run one after another, so they determine the time."""
        counts = Counter(self.devices[source].node for pings in self.rounds for source, _ in pings)
        return max(counts.values(), default=0)

    def seconds(self, seconds_a_ping: float) -> float:
        """The time of all pings."""
        return self.most_of_a_node * seconds_a_ping


@dataclass(slots=True)
class Results:
    """The outcomes so far. Mutable: pings are noted as they end."""

    devices: tuple[MeshDevice, ...]
    rows: list[bytearray]  # a letter of `PingOutcome` for each target, one row a source
    notes: dict[Pair, str] = field(default_factory=dict)  # the deciding line of each ping that is not OK
    num_timed: int = 0
    timed_s: float = 0.0  # of these pings together

    @classmethod
    def empty(cls, devices: tuple[MeshDevice, ...]) -> Results:
        pending, barred = (ord(each.value) for each in (PingOutcome.PENDING, PingOutcome.BARRED))
        rows = [bytearray(pending if source.can_reach(target) else barred for target in devices) for source in devices]
        return cls(devices, rows)

    @property
    def seconds_a_ping(self) -> float | None:
        """The mean; None before the first ping."""
        return self.timed_s / self.num_timed if self.num_timed else None

    def of(self, pair: Pair) -> PingOutcome:
        return PingOutcome(chr(self.rows[pair[0]][pair[1]]))

    def note(self, pair: Pair, outcome: PingOutcome, line: str = "", *, seconds: float | None = None) -> None:
        """Sets the outcome of a ping."""
        self.rows[pair[0]][pair[1]] = ord(outcome.value)
        if line:
            self.notes[pair] = line
        else:
            self.notes.pop(pair, None)
        if seconds is not None:
            self.clock(seconds)

    def clock(self, seconds: float) -> None:
        """Counts the time of a ping, also of one that is repeated."""
        self.num_timed += 1
        self.timed_s += seconds

    def pairs(self, *outcomes: PingOutcome) -> Iterator[Pair]:
        """The pairs with one of these outcomes, in order."""
        letters = {ord(outcome.value) for outcome in outcomes}
        for source, row in enumerate(self.rows):
            yield from ((source, target) for target, letter in enumerate(row) if letter in letters)

    def is_pending(self, pair: Pair) -> bool:
        return self.rows[pair[0]][pair[1]] == ord(PingOutcome.PENDING.value)

    def counts(self, pairs: Iterable[Pair]) -> dict[PingOutcome, int]:
        """The number of the pairs with each outcome."""
        counts = dict.fromkeys(PingOutcome, 0)
        for pair in pairs:
            counts[self.of(pair)] += 1
        return counts


@dataclass(frozen=True, slots=True)
class MissingDevice:
    """A node or one of its cards that cannot take part, and why."""

    node: str
    card: int | None  # None: the whole node
    why: Message
    is_fault: bool = False  # certainly wrong; else only unknown


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """The lines that one node printed, and why it did not come to its end, if so."""

    lines: tuple[Mapping[str, Any], ...]
    failure: Message | None = None

    @property
    def refusal(self) -> str | None:
        """The reason that the program gave for stopping; None if it gave none."""
        return next((str(line["refused"]) for line in self.lines if "refused" in line), None)

    @property
    def why(self) -> Message | None:
        """Why it did not come to its end; None if it did."""
        return Message(f"mesh.why-{self.refusal}") if self.refusal else self.failure


@dataclass(frozen=True, slots=True)
class MeshDevices:
    """The devices of the mesh, and those that are missing."""

    devices: tuple[MeshDevice, ...]
    missing: tuple[MissingDevice, ...]


def find_devices(nodes: Sequence[Node], outputs: Mapping[str, NodeOutput]) -> MeshDevices:
    """The devices in the order of the nodes. Devices that share an address are left out: either could answer."""
    found: list[MeshDevice] = []
    missing: list[MissingDevice] = []
    for node in nodes:
        survey = _of_node(node, outputs[node.name])
        found += survey.devices
        missing += survey.missing
    times = Counter(device.ip for device in found)
    for device in found:
        if times[device.ip] > 1:
            others = tuple(other.name for other in found if other.ip == device.ip and other is not device)
            args = {"ip": device.ip, "others": others}
            why = Message("mesh.why-same-address", args)
            missing.append(MissingDevice(device.node, device.card, why, is_fault=True))
    return MeshDevices(tuple(device for device in found if times[device.ip] == 1), tuple(missing))


def vanished_devices(devices: Iterable[MeshDevice], surveyed: MeshDevices) -> tuple[MissingDevice, ...]:
    """The devices of an earlier survey that are neither in this one nor known to be missing."""
    known: set[tuple[str, int | None]] = {(each.node, each.card) for each in surveyed.devices}
    known |= {(each.node, each.card) for each in surveyed.missing}
    lacking = [each for each in devices if not known & {(each.node, each.card), (each.node, None)}]
    return tuple(MissingDevice(each.node, each.card, Message("mesh.why-gone")) for each in lacking)


def as_ran(line: Mapping[str, Any], words: Iterable[str]) -> Ran:
    """A line of the remote program as the result of a command."""
    is_late = bool(line.get("late"))
    return Ran(tuple(words), line["code"], str(line["out"]), str(line["err"]), timed_out=is_late)


def refusal_of(line: Mapping[str, Any]) -> Message | None:
    """Why every command on a node will fail, from the result of one; None if others may work."""
    failure = refused(as_ran(line, ()))
    if failure is None or failure.kind not in _FOR_ALL_CARDS:
        return None
    return Message(f"mesh.why-{failure.kind.value}", {"line": failure.line})


def _of_node(node: Node, output: NodeOutput) -> MeshDevices:
    why = output.why
    answers = [line for line in output.lines if "card" in line]
    if not answers:
        return MeshDevices((), (MissingDevice(node.name, None, why or Message("mesh.why-no-card")),))
    for_all = next(filter(None, map(refusal_of, answers)), None)
    if for_all is not None:
        return MeshDevices((), (MissingDevice(node.name, None, for_all),))
    table = parse_info(next((str(line["smi"]) for line in output.lines if "smi" in line), ""))
    is_a3 = isinstance(table, SmiTable) and table.layout is Layout.A3
    devices, missing = [], []
    for line in answers:
        address, card = ip(str(line["out"])), int(line["card"])
        if address is None:
            missing.append(MissingDevice(node.name, card, _no_address(line)))
            continue
        board = card // _CHIPS_OF_A_BOARD if is_a3 else None
        devices.append(MeshDevice(node.name, card, address.ip, address.netmask, board))
    missing += _not_there(node, {int(line["card"]) for line in answers})
    if why is not None:
        missing.append(MissingDevice(node.name, None, why))
    return MeshDevices(tuple(devices), tuple(missing))


def _not_there(node: Node, cards: set[int]) -> list[MissingDevice]:
    """The cards that a node lacks, by the inventory."""
    lacking = (node.cards or 0) - len(cards)
    args = {"wanted": node.cards or 0, "found": len(cards)}
    why = Message("mesh.why-fewer-cards", args)
    return [MissingDevice(node.name, None, why, is_fault=True)] if lacking > 0 else []


def _no_address(line: Mapping[str, Any]) -> Message:
    failure = refused(as_ran(line, ()), "ip")
    if failure is not None and failure.kind is HccnRefusal.NOT_SET:
        return Message("mesh.why-no-address")
    text = failure.line if failure else next(iter(lines_of(str(line["out"]))), "")
    return Message("mesh.why-unread", {"line": text})


def full(devices: Sequence[MeshDevice]) -> PingPlan:
    """Every device to every other, once in each direction, except pairs that are not built to reach each other."""
    count = len(devices)
    pairs = ((at, (at + step) % count) for step in range(1, count) for at in range(count))
    built = (pair for pair in pairs if devices[pair[0]].can_reach(devices[pair[1]]))
    return PingPlan(tuple(devices), tuple(_first_fit(devices, built)), FULL)


def sampled(devices: Sequence[MeshDevice]) -> PingPlan:
    """At most four pings for each device, which still show any single dead one.

    Every device is paired with at least two others (if there are three), in one direction. If one device is dead and
    nothing else is wrong, its pings fail, and no other device takes part in all of them. Pairs that are left out may be
    broken.
    """
    pairs = _sample(devices)
    # Each device is the source of about as many pings as it is the target of.
    sent: Counter[int] = Counter()
    directed = []
    for one, other in pairs:
        source, target = (one, other) if sent[one] <= sent[other] else (other, one)
        sent[source] += 1
        directed.append((source, target))
    return PingPlan(tuple(devices), tuple(_first_fit(devices, directed)), SAMPLED)


def _first_fit(devices: Sequence[MeshDevice], pings: Iterable[Pair]) -> list[tuple[Pair, ...]]:
    """The rounds: each ping is in the first one in which its source's node and both its devices are free."""
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


def _sample(devices: Sequence[MeshDevice]) -> list[Pair]:
    """The pairs of a sample: on a circle of the devices, each with the next one and with a later one."""
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


def _circles(devices: Sequence[MeshDevice]) -> Iterator[list[int]]:
    """Orders of the devices: by card and node; by even and odd cards first."""
    by_node = grouped((device.node, index) for index, device in enumerate(devices))
    rank = {index: at for cards in by_node.values() for at, index in enumerate(cards)}
    yield sorted(rank, key=lambda index: (rank[index], index))
    yield sorted(rank, key=lambda index: (rank[index] % 2, rank[index], index))


def _steps(devices: Sequence[MeshDevice], count: int) -> list[int]:
    """Distances of the second partner: preferably another card of another node."""
    preferred = len({device.node for device in devices}) + 1
    steps = (preferred, preferred + 1, 2, 3, 4)
    return [step for step in steps if step % count not in (0, 1, count - 1) and 2 * step % count]
