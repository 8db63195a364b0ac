"""What hccn_tool prints on 910A, A2 and A3 for one card: one pure parser per item.

A parser gives None for a text that it cannot read as a whole answer of one card; it never guesses. Two answers of which
one contradicts the other are such a text too. Failures are read by `npuenv.facts.hccn.answers`. Lines as the tools
print them (driver 23.0 to 25.2):

    link status: UP
    ipaddr:10.12.165.80
    default gateway:10.12.165.1, Iface:eth0
    3 packets transmitted, 3 received, 0.00% packet loss
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from npuenv.facts.hccn.lines import is_address, is_mask, lines_of, matches, only

# What the tool says -> the one spelling that is kept. Older tools say `failed`.
_HEALTHS = {
    "success": "success",
    "socket fail": "socket fail",
    "socket failed": "socket fail",
    "receive timeout": "receive timeout",
    "unreachable": "unreachable",
    "time exceeded": "time exceeded",
    "fault": "fault",
    "init": "init",
    "thread error": "thread error",
    "detect ip set": "detect ip set",
    "unknown": "unknown",
}
# A reading's name without its lane -> the name that its limits have.
_LIMITS = {"Tx Power": "TxPower", "Rx Power": "RxPower", "Vcc": "Vcc", "temperature": "Temp"}
_LINK_TIME = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{3} +\d+ \d+:\d+:\d+ \d{4}"


@dataclass(frozen=True, slots=True)
class Address:
    """A card's own address."""

    ip: str
    netmask: str


@dataclass(frozen=True, slots=True)
class Gateway:
    """A card's default gateway. `interface` is the card's own name for its port: eth<number>."""

    ip: str
    interface: str


@dataclass(frozen=True, slots=True)
class Speed:
    """What a link runs at; None where the tool says Unknown, as it does for a link that is down."""

    mbps: int | None


@dataclass(frozen=True, slots=True)
class Vnic:
    """A card's virtual interface for the traffic inside a super pod."""

    is_up: bool
    ip: str
    netmask: str


@dataclass(frozen=True, slots=True)
class LinkChanges:
    """How often a link came up since the driver was loaded, and the changes the tool remembers, newest first."""

    up_count: int
    changes: tuple[tuple[str, str], ...]  # time as printed, UP or DOWN
    now: str = ""  # the card's own time of the answer, as printed; "" where it does not say


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """What goes through a card's port right now."""

    sent_mb_per_s: float
    received_mb_per_s: float


@dataclass(frozen=True, slots=True)
class Optical:
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


def link(text: str) -> str | None:
    """`UP` or `DOWN`."""
    return only(match[1].upper() for match in matches(lines_of(text), r"link status:\s*(UP|DOWN)"))


def ip(text: str) -> Address | None:
    """Address and netmask; both have to be there."""
    lines = lines_of(text)
    address = only(match[1] for match in matches(lines, r"ipaddr:\s*(\S+)"))
    netmask = only(match[1] for match in matches(lines, r"netmask:\s*(\S+)"))
    if address is None or netmask is None or not is_address(address) or not (is_mask(netmask) or ":" in address):
        return None
    return Address(address, netmask)


def gateway(text: str) -> Gateway | None:
    """The gateway and the port behind which it is."""
    found = matches(lines_of(text), r"default gateway:\s*(\S+?)\s*,\s*Iface:\s*(eth[0-9]{1,3})")
    pair = only((match[1], match[2]) for match in found)
    return Gateway(*pair) if pair and is_address(pair[0]) else None


def netdetect(text: str) -> str | None:
    """The address that the card probes; spelled `address` by older tools and `addr` by current ones."""
    found = only(match[1] for match in matches(lines_of(text), r"netdetect addr(?:ess)?:\s*(\S+)"))
    return found if found and is_address(found) else None


def net_health(text: str) -> str | None:
    """One of the tool's ten states, in lower case; `init` and `detect ip set` mean not configured, not broken."""
    found = only(match[1].lower() for match in matches(lines_of(text), r"net health status:\s*(.+)"))
    return _HEALTHS.get(found) if found else None


def lldp(text: str) -> str | None:
    """The name of the switch port at the other end; two cards can share one (`400GE1/1/5:1` and `:2`)."""
    return only(match[1] for match in matches(lines_of(text), r"Ifname:\s*(\S+)"))


def speed(text: str) -> Speed | None:
    """The speed of the link."""
    found = only(
        match[1].lower() for match in matches(lines_of(text), r"Speed:\s*([0-9]{1,9}(?= ?Mb/s)|Unknown(?=!)).*")
    )
    if found is None:
        return None
    return Speed(None if found == "unknown" else int(found))


def mtu(text: str) -> int | None:
    """The largest packet: `mtu:1500`."""
    found = only(match[1] for match in matches(lines_of(text), r"mtu:\s*([0-9]{2,6})"))
    return int(found) if found else None


def vnic(text: str) -> Vnic | None:
    """Three lines, of which none may be missing; here a blank stands after the colon."""
    lines = lines_of(text)
    status = only(match[1].upper() for match in matches(lines, r"vnic link status:\s*(UP|DOWN)"))
    address = only(match[1] for match in matches(lines, r"vnic ipaddr:\s*(\S+)"))
    netmask = only(match[1] for match in matches(lines, r"vnic netmask:\s*(\S+)"))
    if status is None or not address or not netmask or not is_address(address) or not is_mask(netmask):
        return None
    return Vnic(status == "UP", address, netmask)


def optical(text: str) -> Optical | None:
    """The module's data. Some samples list values of a module that they call not present: both are kept."""
    pairs = [line.partition(":") for line in lines_of(text)]
    values = {key.strip(): value.strip() for key, mark, value in pairs if mark and key.strip() and value.strip()}
    present = values.get("present")
    return Optical(present == "present", values) if present in ("present", "not present") else None


def stat(text: str) -> dict[str, int] | None:
    """The packet counters by name; also of 950, where a port's number comes first."""
    lines = lines_of(text)
    if not any(line.lower() == "packet statistics:" for line in lines):
        return None
    found = matches(lines, r"(?:\[dev(?:ice|id) \d+\]\s*)?([A-Za-z][A-Za-z0-9_]*)\s*:\s*([0-9]{1,20})")
    return {match[1]: int(match[2]) for match in found} or None


def link_stat(text: str) -> LinkChanges | None:
    """How often the link came up, and when it changed."""
    lines = [re.sub(r"^\[dev(?:ice|id) \d+\]\s*", "", line) for line in lines_of(text)]
    count = only(int(match[1]) for match in matches(lines, r"link up count\s*:\s*([0-9]{1,9})"))
    if count is None:
        return None
    changes = matches(lines, rf"({_LINK_TIME})\s+LINK (UP|DOWN)")
    now = only(match[1] for match in matches(lines, rf"current time\s*:\s*({_LINK_TIME})"))
    return LinkChanges(count, tuple((match[1], match[2].upper()) for match in changes), now or "")


def bandwidth(text: str) -> Bandwidth | None:
    """What is sent and received at the moment."""
    found = matches(lines_of(text), r"Bandwidth (TX|RX):\s*([0-9]{1,12}(?:\.[0-9]{1,6})?) MB/sec")
    sent, received = (only(float(match[2]) for match in found if match[1].upper() == way) for way in ("TX", "RX"))
    return None if sent is None or received is None else Bandwidth(sent, received)


def fec(text: str) -> str | None:
    """The mode of forward error correction, as printed: `rs FEC mode`."""
    return only(match[1] for match in matches(lines_of(text), r"fec mode:\s*(\S.*)"))


def _reading(text: str) -> float | None:
    """The number of `4.4035 mW`; None where there is none."""
    match = re.fullmatch(r"(-?[0-9]{1,9}(?:\.[0-9]{1,9})?) \w+", text)
    return float(match[1]) if match else None
