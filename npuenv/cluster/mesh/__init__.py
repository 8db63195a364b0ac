"""Pings between the device addresses of all cards of a cluster: devices, plan and outcomes.

`planning` finds the devices and plans the pings, `running` makes them, `document` reports the result. Outcomes are
saved to a file, with which a run of the same devices and mode can be resumed.
"""

from __future__ import annotations

import enum
import functools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npuenv.core.documents import load_json
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.host.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence
    from pathlib import Path


Pair = tuple[int, int]  # indexes of source and target in the devices of the mesh
FULL, SAMPLED = "full", "sampled"

SCHEMA = "npuenv.mesh-state/1"
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class MeshDevice:
    """The network port of a card, with its address."""

    node: str
    card: int  # the physical number, as for hccn_tool
    ip: str
    netmask: str = ""
    board: int | None = None  # A3: the board, whose two chips do not reach each other

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
        from collections import Counter

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


_PENDING = str.maketrans(
    dict.fromkeys((PingOutcome.UNTRIED.value, PingOutcome.SILENT.value), PingOutcome.PENDING.value)
)


def save_results(path: Path, results: Results, mode: str) -> None:
    """Writes the file atomically. Raises OSError."""
    document = {
        "schema": SCHEMA,
        "mode": mode,
        "devices": [[each.node, each.card, each.ip, each.netmask, each.board] for each in results.devices],
        "rows": [row.decode("ascii").translate(_PENDING) for row in results.rows],
        "notes": [[*pair, line] for pair, line in results.notes.items() if results.of(pair).is_settled],
        "timed": [results.num_timed, round(results.timed_s, 4)],
    }
    write_whole(str(path), json.dumps(document, separators=(",", ":")))


def load_results(path: Path) -> tuple[Results, str]:
    """The outcomes and the mode. Raises BadInput for a missing or invalid file."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError
        document = load_json(path)
        return _results(document), document["mode"]
    except OSError as error:
        args = {"path": str(path), "reason": error.strerror or str(error)}
        raise BadInput(Message("mesh.no-state", args), Message("mesh.no-state-hint")) from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise BadInput(Message("mesh.bad-state", {"path": str(path)}), Message("mesh.no-state-hint")) from error


def require_same_devices(
    saved: Sequence[MeshDevice], current: Sequence[MeshDevice], nodes: Container[str], path: Path
) -> None:
    """Raises BadInput if the devices differ from those of the file: another address, another card, no such node.

    A device without an address now is accepted: it may have died since, and others can still ping it. `nodes` are those
    of the inventory.
    """
    found = {(device.node, device.card): device for device in current}
    for device in saved:
        other = found.pop((device.node, device.card), None)
        if device.node not in nodes or (other is not None and other.ip != device.ip):
            raise _differs(path, device, other)
    if found:
        raise _differs(path, None, next(iter(found.values())))


def _differs(path: Path, saved: MeshDevice | None, current: MeshDevice | None) -> BadInput:
    device = saved or current
    assert device is not None
    none = Message("mesh.none")
    args = {
        "path": str(path),
        "name": Message("mesh.card", {"node": device.node, "card": device.card}),
        "kept": saved.ip if saved else none,
        "now": current.ip if current else none,
    }
    return BadInput(Message("mesh.other-devices", args), Message("mesh.other-devices-hint"))


def _results(document: dict[str, Any]) -> Results:
    if document["schema"] != SCHEMA or document["mode"] not in (FULL, SAMPLED):
        raise ValueError
    devices = tuple(
        MeshDevice(str(node), int(card), str(ip), str(mask), None if board is None else int(board))
        for node, card, ip, mask, board in document["devices"]
    )
    fresh = Results.empty(devices)
    rows = [bytearray(row.translate(_PENDING), "ascii") for row in document["rows"]]
    letters = {ord(outcome.value) for outcome in PingOutcome if outcome.is_settled or outcome is PingOutcome.PENDING}
    barred = ord(PingOutcome.BARRED.value)
    is_sound = len(rows) == len(devices) and all(
        len(row) == len(devices)
        and all(letter == barred if free == barred else letter in letters for letter, free in zip(row, template))
        for row, template in zip(rows, fresh.rows)
    )
    if not is_sound:
        raise ValueError
    notes = {(int(source), int(target)): str(line) for source, target, line in document["notes"]}
    num_timed, timed_s = document["timed"][:2]
    return Results(devices, rows, notes, int(num_timed), float(timed_s))
