"""Which devices there are: every node is asked for its cards and their addresses. Start from `devices_of`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.cluster.mesh.types import Device
from npuenv.core.messages import Message
from npuenv.facts.hccn.a2 import ip
from npuenv.facts.hccn.answers import Refusal, refused
from npuenv.facts.hccn.lines import lines_of
from npuenv.facts.npu.smi import Layout, SmiTable, parse_info
from npuenv.host.base import Ran

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from npuenv.cluster.types import Node

_CHIPS_OF_A_BOARD = 2  # A3
_FOR_ALL_CARDS = (Refusal.PERMISSION, Refusal.NOT_INSTALLED, Refusal.GRAMMAR, Refusal.UNSUPPORTED)


@dataclass(frozen=True, slots=True)
class Missing:
    """A node, or one card of it, that cannot take part, and why."""

    node: str
    card: int | None  # None: the whole node
    why: Message
    is_fault: bool = False  # wrong for certain, and not only impossible to ask


@dataclass(frozen=True, slots=True)
class Heard:
    """What one node said, line by line, and why that is all, where it did not come to its end."""

    lines: tuple[Mapping[str, Any], ...]
    trouble: Message | None = None

    @property
    def refusal(self) -> str | None:
        """The word for why it would not go on; None where it did, or said nothing."""
        return next((str(line["refused"]) for line in self.lines if "refused" in line), None)

    @property
    def why(self) -> Message | None:
        """Why it has not done what it was asked; None where it came to its end."""
        return Message(f"mesh.why-{self.refusal}") if self.refusal else self.trouble


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The devices of the mesh, and what is missing of it."""

    devices: tuple[Device, ...]
    missing: tuple[Missing, ...]


def devices_of(nodes: Sequence[Node], heard: Mapping[str, Heard]) -> Surveyed:
    """The devices in the order of the nodes. What shares its address with another is left out: who would answer?"""
    found: list[Device] = []
    missing: list[Missing] = []
    for node in nodes:
        here = _of_node(node, heard[node.name])
        found += here.devices
        missing += here.missing
    times = Counter(device.ip for device in found)
    for device in found:
        if times[device.ip] > 1:
            others = tuple(_name(other) for other in found if other.ip == device.ip and other is not device)
            args = {"ip": device.ip, "others": others}
            missing.append(Missing(device.node, device.card, Message("mesh.why-same-address", args), is_fault=True))
    return Surveyed(tuple(device for device in found if times[device.ip] == 1), tuple(missing))


def gone(devices: Iterable[Device], surveyed: Surveyed) -> tuple[Missing, ...]:
    """Those devices of an earlier survey that are not there today, and of which it is not known yet why."""
    known: set[tuple[str, int | None]] = {(each.node, each.card) for each in surveyed.devices}
    known |= {(each.node, each.card) for each in surveyed.missing}
    lacking = [each for each in devices if not known & {(each.node, each.card), (each.node, None)}]
    return tuple(Missing(each.node, each.card, Message("mesh.why-gone")) for each in lacking)


def ran(line: Mapping[str, Any], words: Iterable[str]) -> Ran:
    """A line of the remote program as what a command did."""
    is_late = bool(line.get("late"))
    return Ran(tuple(words), line["code"], str(line["out"]), str(line["err"]), timed_out=is_late)


def cannot(line: Mapping[str, Any]) -> Message | None:
    """Why no command of a node will do what it is asked, from one answer of it; None where others may."""
    failure = refused(ran(line, ()))
    if failure is None or failure.kind not in _FOR_ALL_CARDS:
        return None
    return Message(f"mesh.why-{failure.kind.value}", {"line": failure.line})


def _of_node(node: Node, heard: Heard) -> Surveyed:
    why = heard.why
    answers = [line for line in heard.lines if "card" in line]
    if not answers:
        return Surveyed((), (Missing(node.name, None, why or Message("mesh.why-no-card")),))
    for_all = next(filter(None, map(cannot, answers)), None)
    if for_all is not None:
        return Surveyed((), (Missing(node.name, None, for_all),))
    table = parse_info(next((str(line["smi"]) for line in heard.lines if "smi" in line), ""))
    is_a3 = isinstance(table, SmiTable) and table.layout is Layout.A3
    devices, missing = [], []
    for line in answers:
        address, card = ip(str(line["out"])), int(line["card"])
        if address is None:
            missing.append(Missing(node.name, card, _no_address(line)))
            continue
        board = card // _CHIPS_OF_A_BOARD if is_a3 else None
        devices.append(Device(node.name, card, address.ip, address.netmask, board))
    missing += _not_there(node, {int(line["card"]) for line in answers})
    if why is not None:
        missing.append(Missing(node.name, None, why))
    return Surveyed(tuple(devices), tuple(missing))


def _not_there(node: Node, cards: set[int]) -> list[Missing]:
    """The cards that the inventory speaks of and the node does not have."""
    lacking = (node.cards or 0) - len(cards)
    args = {"wanted": node.cards or 0, "found": len(cards)}
    why = Message("mesh.why-fewer-cards", args)
    return [Missing(node.name, None, why, is_fault=True)] if lacking > 0 else []


def _no_address(line: Mapping[str, Any]) -> Message:
    failure = refused(ran(line, ()), "ip")
    if failure is not None and failure.kind is Refusal.NOT_SET:
        return Message("mesh.why-no-address")
    said = failure.line if failure else next(iter(lines_of(str(line["out"]))), "")
    return Message("mesh.why-unread", {"line": said})


def _name(device: Device) -> Message:
    return Message("mesh.card", {"node": device.node, "card": device.card})
