"""The rank table that RANK_TABLE_FILE names: which card of which server has which address.

{"status": "completed", "version": "1.0", "server_count": "1", "server_list": [{"server_id": "node_0",
 "device": [{"device_id": "0", "device_ip": "192.168.1.8", "rank_id": "0"}]}]}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.core.fact import Evidence, Fact, absent, known
from npuenv.core.json_input import JsonError, loads
from npuenv.facts.read import file_text

if TYPE_CHECKING:
    from npuenv.host.base import Host

VARIABLE = "RANK_TABLE_FILE"


@dataclass(frozen=True, slots=True)
class Device:
    """One card of the table; None stands where its line has no number."""

    card: int | None
    ip: str  # "": left out, which one server alone may do
    rank: int | None
    super_id: str  # "" where it is left out; version 1.2 needs it


@dataclass(frozen=True, slots=True)
class Server:
    """One server: a name of the table's own, or its address."""

    id: str
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class RankTable:
    """The table. `trouble` says why it is none: it is no JSON, or has no list of servers; then the rest is empty."""

    path: str
    status: str
    version: str
    server_count: str
    servers: tuple[Server, ...]
    trouble: str = ""


def ranks(host: Host) -> Fact[RankTable]:
    """The table of the session; absent where none is named, or where the named file is not there."""
    path = host.environ().get(VARIABLE, "").strip()
    if not path:
        return absent(Evidence("environment", f"{VARIABLE} is not set"))
    text = file_text(host, path)
    if text.value is None:
        return Fact(text.state, None, text.evidence)
    found = parse(path, text.value)
    return known(found, Evidence(path, found.trouble or f"version {found.version}, {len(found.servers)} servers"))


def parse(path: str, text: str) -> RankTable:
    """The table in a text, or what keeps it from being one."""
    try:
        document = loads(text)
    except JsonError as error:
        return RankTable(path, "", "", "", (), str(error)[:120])
    servers = document.get("server_list") if isinstance(document, dict) else None
    if not isinstance(servers, list):
        return RankTable(path, "", "", "", (), "no server_list")
    status, version, count = (_text(document.get(key)) for key in ("status", "version", "server_count"))
    return RankTable(path, status, version, count, tuple(_server(item) for item in servers if isinstance(item, dict)))


def _server(document: dict[str, Any]) -> Server:
    devices = document.get("device")
    found = [item for item in devices if isinstance(item, dict)] if isinstance(devices, list) else []
    return Server(_text(document.get("server_id")), tuple(_device(item) for item in found))


def _device(document: dict[str, Any]) -> Device:
    card, rank = (_number(document.get(key)) for key in ("device_id", "rank_id"))
    return Device(card, _text(document.get("device_ip")), rank, _text(document.get("super_device_id")))


def _text(value: object) -> str:
    return str(value).strip() if isinstance(value, (str, int)) else ""


def _number(value: object) -> int | None:
    text = _text(value)
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None
