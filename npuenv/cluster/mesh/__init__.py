"""Pings between the device addresses of all cards of a cluster: devices, pings, and what each ping came to.

`planning` finds the devices and decides which pings which and when, `running` has the nodes do it, `document` reports
the result. Results are kept in a file so that a run can go on later. The file belongs to a set of devices and a mode:
others are refused. What could not be tried, or gave no answer that can be read, is not kept as done.
"""

from __future__ import annotations

import enum
import functools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npuenv.core.errors import BadInput
from npuenv.core.json_input import load_file
from npuenv.core.messages import Message
from npuenv.host.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence
    from pathlib import Path


Pair = tuple[int, int]  # source and target, as places in the devices of the mesh
FULL, SAMPLED = "full", "sampled"

SCHEMA = "npuenv.mesh-state/1"
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Device:
    """The network port of a card, with the address that others reach it at."""

    node: str
    card: int  # the physical number, which hccn_tool takes
    ip: str
    netmask: str = ""
    board: int | None = None  # A3: the card of which it is one of two chips, which do not reach each other

    @property
    def network(self) -> str:
        """Its subnet, as 10.0.3.0/24; its address where the netmask does not say."""
        return _network(self.ip, self.netmask)

    def can_reach(self, other: Device) -> bool:
        """Whether it is built to reach the other one over its network port; never itself."""
        is_one_board = self.board is not None and self.board == other.board
        return self.node != other.node or not (self.card == other.card or is_one_board)


@functools.lru_cache(maxsize=1 << 14)  # asked of every device of a mesh again and again
def _network(ip: str, netmask: str) -> str:
    import ipaddress

    try:
        return str(ipaddress.ip_network(f"{ip}/{netmask}", strict=False))
    except ValueError:
        return ip


class Outcome(enum.Enum):
    """What a ping came to. The value is the letter of the matrix."""

    OK = "o"  # every packet came back
    LOSSY = "l"  # more than half of them did
    WEAK = "w"  # half of them or fewer did, which is as bad as none
    FAILED = "f"  # none did
    SILENT = "s"  # the tool ran and said nothing that can be read
    UNTRIED = "u"  # it could not be run
    PENDING = "."  # its turn has not come, or it is not of the plan
    BARRED = "-"  # a device and itself, or the two chips of one card

    @property
    def is_settled(self) -> bool:
        """Whether it says something of the network, so that the ping need not be made again."""
        return self in (Outcome.OK, Outcome.LOSSY, Outcome.WEAK, Outcome.FAILED)


@dataclass(frozen=True, slots=True)
class PingPlan:
    """Which pings are made, in rounds: within a round no device takes part twice, and no node pings twice."""

    devices: tuple[Device, ...]
    rounds: tuple[tuple[Pair, ...], ...]
    mode: str  # full, sampled

    @property
    def num_pings(self) -> int:
        return sum(map(len, self.rounds))

    @property
    def most_of_a_node(self) -> int:
        """The pings of the node that has the most: they run one after another, so they set the time."""
        from collections import Counter

        counts = Counter(self.devices[source].node for pings in self.rounds for source, _ in pings)
        return max(counts.values(), default=0)

    def seconds(self, seconds_a_ping: float) -> float:
        """How long it takes, at that many seconds a ping."""
        return self.most_of_a_node * seconds_a_ping


@dataclass(slots=True)
class Results:
    """What came out so far. Mutable: pings are noted as they end."""

    devices: tuple[Device, ...]
    rows: list[bytearray]  # a letter of `Outcome` for each target, one row a source
    notes: dict[Pair, str] = field(default_factory=dict)  # the line that decided, for all that are not well
    num_timed: int = 0
    timed_s: float = 0.0  # of these pings together

    @classmethod
    def empty(cls, devices: tuple[Device, ...]) -> Results:
        pending, barred = (ord(each.value) for each in (Outcome.PENDING, Outcome.BARRED))
        rows = [bytearray(pending if source.can_reach(target) else barred for target in devices) for source in devices]
        return cls(devices, rows)

    @property
    def seconds_a_ping(self) -> float | None:
        """The mean over what was measured; None before the first."""
        return self.timed_s / self.num_timed if self.num_timed else None

    def of(self, pair: Pair) -> Outcome:
        return Outcome(chr(self.rows[pair[0]][pair[1]]))

    def note(self, pair: Pair, outcome: Outcome, line: str = "", *, seconds: float | None = None) -> None:
        """Keeps what a ping came to."""
        self.rows[pair[0]][pair[1]] = ord(outcome.value)
        if line:
            self.notes[pair] = line
        else:
            self.notes.pop(pair, None)
        if seconds is not None:
            self.clock(seconds)

    def clock(self, seconds: float) -> None:
        """Counts the time of a ping, also of one that is to be made again."""
        self.num_timed += 1
        self.timed_s += seconds

    def pairs(self, *outcomes: Outcome) -> Iterator[Pair]:
        """All pairs with one of these outcomes, in order."""
        wanted = {ord(outcome.value) for outcome in outcomes}
        for source, row in enumerate(self.rows):
            yield from ((source, target) for target, letter in enumerate(row) if letter in wanted)

    def is_pending(self, pair: Pair) -> bool:
        return self.rows[pair[0]][pair[1]] == ord(Outcome.PENDING.value)

    def counts(self, pairs: Iterable[Pair]) -> dict[Outcome, int]:
        """How many of the pairs came to each outcome."""
        counts = dict.fromkeys(Outcome, 0)
        for pair in pairs:
            counts[self.of(pair)] += 1
        return counts


_PENDING = str.maketrans(dict.fromkeys((Outcome.UNTRIED.value, Outcome.SILENT.value), Outcome.PENDING.value))


def save_results(path: Path, results: Results, mode: str) -> None:
    """Writes the file whole: whoever reads it sees this state or the last one. Raises OSError."""
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
    """What was done, and the mode. Raises BadInput for a file that is not there or not such a file."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError
        document = load_file(path)
        return _results(document), document["mode"]
    except OSError as error:
        args = {"path": str(path), "reason": error.strerror or str(error)}
        raise BadInput(Message("mesh.no-state", args), Message("mesh.no-state-hint")) from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        # Of whatever a foreign file holds, none of these is worth a sentence of its own.
        raise BadInput(Message("mesh.bad-state", {"path": str(path)}), Message("mesh.no-state-hint")) from error


def require_same_devices(saved: Sequence[Device], current: Sequence[Device], nodes: Container[str], path: Path) -> None:
    """Refuses the devices of today where they are not those of the file: another address, another card, no such node.

    A device that gives no address today stays: it may have died since, and others can still ping it. What npu-smi says
    of it is not compared either. `nodes` are those of the inventory. Raises BadInput with the first difference.
    """
    today = {(device.node, device.card): device for device in current}
    for device in saved:
        other = today.pop((device.node, device.card), None)
        if device.node not in nodes or (other is not None and other.ip != device.ip):
            raise _differs(path, device, other)
    if today:
        raise _differs(path, None, next(iter(today.values())))


def _differs(path: Path, saved: Device | None, current: Device | None) -> BadInput:
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
        Device(str(node), int(card), str(ip), str(mask), None if board is None else int(board))
        for node, card, ip, mask, board in document["devices"]
    )
    fresh = Results.empty(devices)
    rows = [bytearray(row.translate(_PENDING), "ascii") for row in document["rows"]]
    letters = {ord(outcome.value) for outcome in Outcome if outcome.is_settled or outcome is Outcome.PENDING}
    barred = ord(Outcome.BARRED.value)
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
