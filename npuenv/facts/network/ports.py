"""The TCP ports that something listens on, and those that the kernel gives out by itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, known, unknown
from npuenv.facts.collector import Group, fact
from npuenv.facts.network.interfaces import may_run
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.host.base import Host

BASE = "HCCL_IF_BASE_PORT"
RANGE = "HCCL_HOST_SOCKET_PORT_RANGE"
AUTO = "auto"  # as the range: the system gives out what is free
FIRST, COUNT = 60000, 32  # from which port on it listens when nothing is set, and on how many
BASES = range(1024, 65521)  # what it takes for a base
_MOST = 65535


def from_base(base: int) -> tuple[int, ...]:
    """The ports from a base on; the last bases leave room for fewer than usual."""
    return tuple(range(base, min(base + COUNT, _MOST + 1)))


def told(environment: Mapping[str, str]) -> tuple[int, ...] | None:
    """The ports that the variables name, of a long range as many as HCCL takes of its own; () where the system gives
    them out; None where no variable names any, or none that HCCL would take.

    Example: {"HCCL_HOST_SOCKET_PORT_RANGE": "50000,50010-50011"} -> (50000, 50010, 50011)
    """
    wanted = environment.get(RANGE, "").strip()
    if wanted == AUTO:
        return ()
    if wanted:
        return _listed(wanted)
    text = environment.get(BASE, "")
    is_base = bool(re.fullmatch(r"[0-9]{1,5}", text)) and int(text) in BASES
    return from_base(int(text)) if is_base else None


def _listed(text: str) -> tuple[int, ...] | None:
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part.strip())
        if match is None or not 0 < int(match[1]) <= int(match[2] or match[1]) <= _MOST:
            return None
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(dict.fromkeys(found))[:COUNT]


_LINES = "300"
_LISTENING = "0A"
_OWNER = re.compile(r':(\d{1,5})\s+\S+\s+users:\(\("([^"]*)",pid=(\d+)')
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Listener:
    """A port that is taken. `owner` is the program's name where it may be known, else ""."""

    address: str  # 0.0.0.0 and :: stand for all
    port: int
    owner: str


@dataclass(frozen=True, slots=True)
class PortRange:
    """The ports that outgoing connections get, and those that they never get."""

    first: int
    last: int
    reserved: tuple[tuple[int, int], ...]

    def gives_out(self, port: int) -> bool:
        """Whether an outgoing connection of any program may be given this port."""
        return self.first <= port <= self.last and not any(low <= port <= high for low, high in self.reserved)


def listeners(host: Host, *, may_run: bool = True) -> Fact[tuple[Listener, ...]]:
    """All of them, by port. Owners come from `ss`, which tells one's own processes, and all of them to root.

    The kernel lists listening sockets first, so the first lines do, and a capture keeps few of the others' addresses.
    """
    found: list[tuple[str, int]] = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        ran = host.run(("head", "-n", _LINES, path))
        if ran.code == 0 and ran.out.lstrip().startswith("sl"):
            found += listening(ran.out)
        elif path == "/proc/net/tcp":  # a kernel without IPv6 has no tcp6
            return unknown(Evidence(path, (ran.err or ran.out)[:80].strip() or f"exit {ran.code}"))
    owners = _owners(host) if may_run and found else {}
    listed = {Listener(address, port, owners.get(port, "")) for address, port in found}
    in_order = sorted(listed, key=lambda item: (item.port, item.address))
    return known(tuple(in_order), Evidence("/proc/net/tcp", f"{len(in_order)} listeners"))


def listening(text: str) -> list[tuple[str, int]]:
    """Address and port of the listening rows of /proc/net/tcp or tcp6; rows that cannot be read are left out."""
    found = []
    for line in text.splitlines()[1:]:
        row = line.split()
        if len(row) > 3 and row[3] == _LISTENING and re.fullmatch(r"(?:[0-9A-F]{8}|[0-9A-F]{32}):[0-9A-F]{4}", row[1]):
            address, _, port = row[1].partition(":")
            found.append((_address(address), int(port, 16)))
    return found


def owners_of(text: str) -> dict[int, str]:
    """Port -> program of the rows of `ss -H -ltnp` that name one."""
    return {int(match[1]): match[2] for match in _OWNER.finditer(text)}


def port_range(host: Host) -> Fact[PortRange]:
    """The kernel's own range and what is kept out of it."""
    place = "/proc/sys/net/ipv4/ip_local_port_range"
    looked, kept = host.look(place), host.look("/proc/sys/net/ipv4/ip_local_reserved_ports")
    numbers = looked.text.split()
    if (
        looked.state is not PathState.FILE
        or len(numbers) != 2
        or not all(re.fullmatch(r"\d{1,5}", item) for item in numbers)
    ):
        return unknown(Evidence(place, looked.error or looked.text[:80].strip() or looked.state.value))
    reserved = _ranges(kept.text) if kept.state is PathState.FILE else ()
    line = " ".join(numbers) + (f", reserved {kept.text.strip()}" if reserved else "")
    return known(PortRange(int(numbers[0]), int(numbers[1]), reserved), Evidence(place, line))


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    found = (_RANGE.fullmatch(part.strip()) for part in text.split(","))
    return tuple((int(match[1]), int(match[2] or match[1])) for match in found if match)


def _owners(host: Host) -> dict[int, str]:
    ran = host.run(("ss", "-H", "-ltnp"), timeout_s=4.0)
    return owners_of(ran.out) if ran.code == 0 else {}


def _address(text: str) -> str:
    """`0100007F` -> 127.0.0.1: the kernel prints each four bytes in its own order, little-endian on our machines."""
    import ipaddress

    words = (bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8))
    address = ipaddress.ip_address(b"".join(words))
    # Python prints those as ::ffff:7f00:1 before 3.13.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(address) if mapped is None else f"::ffff:{mapped}"


class PortFacts(Group):
    listeners: Fact[tuple[Listener, ...]] = fact(
        lambda host, spans: listeners(host, may_run=may_run(host, spans)), "network.spans"
    )
    port_range: Fact[PortRange] = fact(port_range)
