"""What hccn_tool prints on 950, where ports replace the one link of a card. Link, counters, TLS and the virtual
interface look as on A2 and A3 and are read by the parsers for those.

    | UDie ID | Port ID | Speed Ability(Gbps) | Port Type | Link Status | Media Type |
    | 0       | 4       | 400                 | UB        | UP          | Electrical |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.facts.hccn.lines import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Port:
    """One port of a card. A port that nobody wired is down by design."""

    die: int
    number: int
    ability_gbps: int | None
    kind: str  # UB, ETH
    is_up: bool
    media: str


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface of a card's own operating system."""

    name: str
    addresses: tuple[tuple[str, str], ...]  # address and netmask, as printed


@dataclass(frozen=True, slots=True)
class DevInfo:
    """A card's ports, interfaces and entity ids."""

    ports: tuple[Port, ...]
    interfaces: tuple[Interface, ...]
    entity_ids: tuple[str, ...]


def dev_info(text: str) -> DevInfo | None:
    """The three tables; None where there is no table of ports or one of its rows cannot be read."""
    ports: list[Port] = []
    interfaces: dict[str, list[tuple[str, str]]] = {}
    entity_ids: list[str] = []
    has_ports = False
    for header, row in _rows(text):
        if "Link Status" in header:
            has_ports = True
            if row:
                port = _port(dict(zip(header, row)))
                if port is None:
                    return None
                ports.append(port)
        elif "Interface Name" in header and len(row) > 2:
            interfaces.setdefault(row[0] or next(reversed(interfaces), ""), []).append((row[1], row[2]))
        elif "EID" in header and row:
            entity_ids.append(row[-1])
    if not has_ports or not _is_closed(lines_of(text)):
        return None
    found = tuple(Interface(name, tuple(values)) for name, values in interfaces.items() if name)
    return DevInfo(tuple(ports), found, tuple(entity_ids))


def port_info(text: str) -> dict[str, str] | None:
    """The `key: value` lines of a port; the first of two equal keys counts. None without the line that opens them."""
    lines = lines_of(text)
    if not any(re.fullmatch(r"port_id: 0x[0-9a-fA-F]+", line) for line in lines):
        return None
    pairs = [line.partition(":") for line in lines]
    found: dict[str, str] = {}
    for key, mark, value in pairs:
        if mark and re.fullmatch(r"\w+", key):
            found.setdefault(key, value.strip())
    return found


def _is_closed(lines: list[str]) -> bool:
    """Whether a rule ends the table of ports: without one, rows may be missing."""
    start = next(number for number, line in enumerate(lines) if "Link Status" in line)
    after = next((line for line in lines[start + 2 :] if not line.startswith("|")), "")
    return after.startswith("+--")


def _rows(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Each row with the header of its table; a header comes once with an empty row."""
    header: list[str] = []
    for line in lines_of(text):
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and any(word in cells for word in ("Link Status", "Interface Name", "EID")):
            header = cells
            yield header, []
        elif cells and header and len(cells) == len(header):
            yield header, cells
        elif cells and header:
            yield header, [""] * len(header)  # a row that is cut: nothing of it can be read


def _port(row: dict[str, str]) -> Port | None:
    die, number, status = row.get("UDie ID", ""), row.get("Port ID", ""), row["Link Status"].upper()
    if not (re.fullmatch(r"[0-9]{1,4}", die) and re.fullmatch(r"[0-9]{1,4}", number) and status in ("UP", "DOWN")):
        return None
    ability = row.get("Speed Ability(Gbps)", "")
    gbps = int(ability) if re.fullmatch(r"[0-9]{1,6}", ability) else None
    return Port(int(die), int(number), gbps, row.get("Port Type", ""), status == "UP", row.get("Media Type", ""))
