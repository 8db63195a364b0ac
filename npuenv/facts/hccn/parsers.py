"""What hccn_tool prints for one card: one pure parser per item, for 910A, A2 and A3, and for 950.

A parser gives None for a text that it cannot read as a whole answer of one card; it never guesses. Two answers of which
one contradicts the other are such a text too. Failures are read by `npuenv.facts.hccn.tool`. Lines as the tools
print them (driver 23.0 to 25.2):

    link status: UP
    ipaddr:10.12.165.80
    default gateway:10.12.165.1, Iface:eth0
    3 packets transmitted, 3 received, 0.00% packet loss
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from npuenv.facts.collector import pairs
from npuenv.facts.hccn.tool import is_address, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


T = TypeVar("T")
_HEALTHS = (
    *("success", "socket fail", "receive timeout", "unreachable", "time exceeded", "fault", "init", "thread error"),
    *("detect ip set", "unknown"),
)
# A reading's name without its lane -> the name that its limits have.
_LIMITS = {"Tx Power": "TxPower", "Rx Power": "RxPower", "Vcc": "Vcc", "temperature": "Temp"}
_LINK_TIME = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{3} +\d+ \d+:\d+:\d+ \d{4}"
# Pings over RoCE, over HCCS (A3) and over UB (950). The exit status of the HCCS ping does not tell of lost packets.
#     device 0 PING 10.12.165.80
#     recv seq=0,time=0.114000ms
_TARGET = re.compile(r"device \d+ (?:PING (\S+)|dev\s+EID \S+ to (\S+))", re.IGNORECASE)
_SUMMARY = re.compile(
    r"(\d{1,9}) packets transmitted, (\d{1,9}) received, (\d{1,3}(?:\.\d{1,6})?)% packets? loss", re.IGNORECASE
)
_PLANE = r"(?i)plane check result = 0x([0-9a-f]{1,16})"
# The tool's words -> ours, the gravest first.
_TROUBLES = (
    ("message too long", "message too long"),
    ("destination host unreachable", "unreachable"),
    ("recv time out", "time out"),
)
# A line that cannot be read is never taken for `off`.
_SWITCH = re.compile(
    r"dev_id:(\d{1,4}), tls switch\[([01])\]\(0:disable, 1:enable\)"
    r"(?:, tls preconfigured\[([01])\]\([^)]*\))?(?:, tls alarm time threshold\[(\d{1,6})\]days)?"
)
_BLOCK = r"dev_id:\d+, \[([^\]]+)\] info:"
_FIELD = r"(subject|issuer|start_time|end_time)\[(.*)\]"
_STATUS = r"tls expiration status\[([012])\]\(.*\)"
_EXPIRY = ("normal", "near expiration", "has expired")


def _matches(lines: Iterable[str], pattern: str) -> list[re.Match[str]]:
    """The lines that are wholly of the pattern, letters of either case."""
    return [match for line in lines if (match := re.fullmatch(pattern, line, re.IGNORECASE))]


def _only(values: Iterable[T]) -> T | None:
    """The one value that all of them are; None for none, and for several that differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _one(pattern: str, make: Callable[..., T | None]) -> Callable[[str], T | None]:
    """A parser of the one line of a pattern, whose groups make the value."""
    return lambda text: _only(make(*match.groups()) for match in _matches(lines_of(text), pattern))


def is_mask(text: str) -> bool:
    """Whether it is a netmask, such as 255.255.240.0."""
    import ipaddress

    try:
        return ipaddress.ip_network(f"0.0.0.0/{text}").prefixlen >= 0 and "." in text
    except ValueError:
        return False


class Address(NamedTuple):
    """A card's own address."""

    ip: str
    netmask: str


class Gateway(NamedTuple):
    """A card's default gateway. `interface` is the card's own name for its port: eth<number>."""

    ip: str
    interface: str


class Speed(NamedTuple):
    """What a link runs at; None where the tool says Unknown, as it does for a link that is down."""

    mbps: int | None


class Vnic(NamedTuple):
    """A card's virtual interface for the traffic inside a super pod."""

    is_up: bool
    ip: str
    netmask: str


class LinkChanges(NamedTuple):
    """How often a link came up since the driver was loaded, and the changes the tool remembers, newest first."""

    up_count: int
    changes: tuple[tuple[str, str], ...]  # time as printed, UP or DOWN
    now: str = ""  # the card's own time of the answer, as printed; "" where it does not say


class Optical(NamedTuple):
    """An optical module: whether it is there, and all that it says of itself, as printed."""

    is_present: bool
    values: dict[str, str]

    @property
    def readings(self) -> tuple[str, ...]:
        """What the module measures, as printed; one that is not there has nothing that it could measure."""
        keys = [key for key in self.values if key.rstrip("0123456789").rstrip() in _LIMITS]
        return tuple(f"{key} {self.values[key]}" for key in keys if _reading(self.values[key]))

    @property
    def outside_limits(self) -> tuple[str, ...]:
        """The readings that are outside of the limits that the module itself gives for them, as printed."""
        found = []
        for key, value in self.values.items():
            limit, number = _LIMITS.get(key.rstrip("0123456789").rstrip()), _reading(value)
            if limit is None or number is None:
                continue
            high, low = (_reading(self.values.get(f"{limit} {end} Thres", "")) for end in ("High", "Low"))
            if (high is not None and number > high) or (low is not None and number < low):
                found.append(f"{key} {value}")
        return tuple(found)


def ip(text: str) -> Address | None:
    """Address and netmask; both have to be there."""
    lines = lines_of(text)
    address, netmask = (
        _only(match[1] for match in _matches(lines, rf"{name}:\s*(\S+)")) for name in ("ipaddr", "netmask")
    )
    if address is None or netmask is None or not is_address(address) or not (is_mask(netmask) or ":" in address):
        return None
    return Address(address, netmask)


def _health(state: str) -> str | None:
    """One of the tool's ten states, in lower case; `init` and `detect ip set` mean not configured, not broken."""
    found = state.lower()
    found = "socket fail" if found == "socket failed" else found  # as older tools have it
    return found if found in _HEALTHS else None


def vnic(text: str) -> Vnic | None:
    """Three lines, of which none may be missing; here a blank stands after the colon."""
    lines = lines_of(text)
    status, address, netmask = (
        _only(match[1].upper() for match in _matches(lines, rf"vnic {name}:\s*({value})"))
        for name, value in (("link status", "UP|DOWN"), ("ipaddr", r"\S+"), ("netmask", r"\S+"))
    )
    if status is None or not address or not netmask or not is_address(address) or not is_mask(netmask):
        return None
    return Vnic(status == "UP", address, netmask)


def optical(text: str) -> Optical | None:
    """The module's data. Some samples list values of a module that they call not present: both are kept."""
    rows = [line.partition(":") for line in lines_of(text)]
    values = {key.strip(): value.strip() for key, mark, value in rows if mark and key.strip() and value.strip()}
    present = values.get("present")
    return Optical(present == "present", values) if present in ("present", "not present") else None


def stat(text: str) -> dict[str, int] | None:
    """The packet counters by name; also of 950, where a port's number comes first."""
    lines = lines_of(text)
    if not any(line.lower() == "packet statistics:" for line in lines):
        return None
    found = _matches(lines, r"(?:\[dev(?:ice|id) \d+\]\s*)?([A-Za-z][A-Za-z0-9_]*)\s*:\s*([0-9]{1,20})")
    return {match[1]: int(match[2]) for match in found} or None


def link_stat(text: str) -> LinkChanges | None:
    """How often the link came up, and when it changed."""
    lines = [re.sub(r"^\[dev(?:ice|id) \d+\]\s*", "", line) for line in lines_of(text)]
    count = _only(int(match[1]) for match in _matches(lines, r"link up count\s*:\s*([0-9]{1,9})"))
    if count is None:
        return None
    changes = _matches(lines, rf"({_LINK_TIME})\s+LINK (UP|DOWN)")
    now = _only(match[1] for match in _matches(lines, rf"current time\s*:\s*({_LINK_TIME})"))
    return LinkChanges(count, tuple((match[1], match[2].upper()) for match in changes), now or "")


def _reading(text: str) -> float | None:
    """The number of `4.4035 mW`; None where there is none."""
    match = re.fullmatch(r"(-?[0-9]{1,9}(?:\.[0-9]{1,9})?) \w+", text)
    return float(match[1]) if match else None


class Port(NamedTuple):
    """One port of a card. A port that nobody wired is down by design."""

    die: int
    number: int
    ability_gbps: int | None
    kind: str  # UB, ETH
    is_up: bool
    media: str


class CardInterface(NamedTuple):
    """One interface of a card's own operating system."""

    name: str
    addresses: tuple[tuple[str, str], ...]  # address and netmask, as printed


class DevInfo(NamedTuple):
    """A card's ports, interfaces and entity ids."""

    ports: tuple[Port, ...]
    interfaces: tuple[CardInterface, ...]
    entity_ids: tuple[str, ...]


def dev_info(text: str) -> DevInfo | None:
    """The three tables; None where there is no table of ports or one of its rows cannot be read.

    | UDie ID | Port ID | Speed Ability(Gbps) | Port Type | Link Status | Media Type |
    | 0       | 4       | 400                 | UB        | UP          | Electrical |
    """
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
    found = tuple(CardInterface(name, tuple(values)) for name, values in interfaces.items() if name)
    return DevInfo(tuple(ports), found, tuple(entity_ids))


def port_info(text: str) -> dict[str, str] | None:
    """The `key: value` lines of a port; the first of two equal keys counts. None without the line that opens them."""
    lines = lines_of(text)
    if not any(re.fullmatch(r"port_id: 0x[0-9a-fA-F]+", line) for line in lines):
        return None
    return pairs("\n".join(lines), ":")


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


class Ping(NamedTuple):
    """How one ping went. Without a last line the numbers are None and `trouble` says what was seen instead."""

    target: str  # "" where the first line is missing
    sent: int | None
    received: int | None
    trouble: str  # "", or `time out`, `unreachable`, `message too long`
    plane_errors: int = 0  # answers of the HCCS ping whose check of the plane is not 0x0

    @property
    def lost(self) -> int | None:
        return None if self.sent is None or self.received is None else self.sent - self.received


def ping(text: str) -> Ping | None:
    """One ping. None where the text is none, holds several, or where its numbers contradict each other."""
    lines = lines_of(text)
    summaries = [match for match in map(_SUMMARY.fullmatch, lines) if match]
    lower = "\n".join(lines).lower()
    trouble = next((ours for theirs, ours in _TROUBLES if theirs in lower), "")
    targets = [match[1] or match[2] for match in map(_TARGET.fullmatch, lines) if match]
    if len(summaries) > 1 or len(targets) > 1 or not (summaries or trouble):
        return None
    planes = sum(int(found, 16) != 0 for found in re.findall(_PLANE, lower))
    target = targets[0] if targets else ""
    if not summaries:
        return Ping(target, None, None, trouble, planes)
    sent, received, loss = int(summaries[0][1]), int(summaries[0][2]), float(summaries[0][3])
    if sent < 1 or received > sent or abs(loss - 100 * (sent - received) / sent) > 1:
        return None
    return Ping(target, sent, received, trouble, planes)


class Certificate(NamedTuple):
    """One block: a certificate or the list of revoked ones. Older tools leave out subject, issuer and state."""

    name: str  # pub cert, ca1 cert, ca2 cert, crl
    start: str
    end: str
    expiry: str | None  # one of _EXPIRY; None where the tool does not say


class Tls(NamedTuple):
    """One card's switch and what it was given."""

    card: int
    is_on: bool
    is_preset: bool | None  # None: an older tool, which does not say
    alarm_days: int | None
    certificates: tuple[Certificate, ...]


def tls(text: str) -> Tls | None:
    """The state of one card. None where no line says it wholly, or where lines contradict each other."""
    lines = lines_of(text)
    switch = _only(match.groups() for match in map(_SWITCH.fullmatch, lines) if match)
    if switch is None:
        return None
    card, state, preset, days = switch
    is_preset = None if preset is None else preset == "1"
    return Tls(int(card), state == "1", is_preset, int(days) if days else None, _certificates(lines))


def _certificates(lines: list[str]) -> tuple[Certificate, ...]:
    found: list[dict[str, str]] = []
    for line in lines:
        block, value, status = re.fullmatch(_BLOCK, line), re.fullmatch(_FIELD, line), re.fullmatch(_STATUS, line)
        if block:
            found.append({"name": block[1]})
        elif value and found:
            found[-1].setdefault(value[1], value[2])
        elif status and found:
            found[-1].setdefault("status", _EXPIRY[int(status[1])])
    return tuple(
        Certificate(each["name"], each.get("start_time", ""), each.get("end_time", ""), each.get("status"))
        for each in found
    )


ITEMS: dict[str, Callable[[str], Any]] = {
    # `UP` or `DOWN`.
    "link": _one(r"link status:\s*(UP|DOWN)", str.upper),
    "ip": ip,
    # The gateway and the port behind which it is.
    "gateway": _one(
        r"default gateway:\s*(\S+?)\s*,\s*Iface:\s*(eth[0-9]{1,3})",
        lambda address, port: Gateway(address, port) if is_address(address) else None,
    ),
    # The address that the card probes; spelled `address` by older tools and `addr` by current ones.
    "netdetect": _one(r"netdetect addr(?:ess)?:\s*(\S+)", lambda address: address if is_address(address) else None),
    "net_health": _one(r"net health status:\s*(.+)", _health),
    # The name of the switch port at the other end; two cards can share one (`400GE1/1/5:1` and `:2`).
    "lldp": _one(r"Ifname:\s*(\S+)", str),
    "speed": _one(
        r"Speed:\s*(?:([0-9]{1,9})(?= ?Mb/s)|Unknown(?=!)).*", lambda mbps: Speed(int(mbps) if mbps else None)
    ),
    # The largest packet: `mtu:1500`.
    "mtu": _one(r"mtu:\s*([0-9]{2,6})", int),
    "tls": tls,
    "vnic": vnic,
    "ping": ping,
    "hccs_ping": ping,
    "ub_ping": ping,
    "optical": optical,
    "stat": stat,
    "link_stat": link_stat,
    "dev_info": dev_info,
    "port_info": port_info,
}
