"""The TLS state of one card as hccn_tool prints it, in both grammars.

The switch has to be equal on all cards of all nodes. A line that cannot be read is never taken for `off`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, known, unknown
from npuenv.facts.hccn.lines import lines_of, only
from npuenv.facts.read import file_text

if TYPE_CHECKING:
    from npuenv.host.base import Host

HCCN_CONF = "/etc/hccn.conf"
_ENTRY = re.compile(r"([a-z_]+?)_([0-9]+)\s*=\s*(.*)")


@dataclass(frozen=True, slots=True)
class HccnConf:
    """/etc/hccn.conf: `key_<physical id>=value`. A line that is missing means the device's default."""

    by_device: dict[int, dict[str, str]]
    unreadable_lines: tuple[str, ...]


def hccn_conf(host: Host) -> Fact[HccnConf]:
    """The file's entries by device; absent where there is no file (a container sees it only when it is mounted)."""
    text = file_text(host, HCCN_CONF)
    if text.value is None:
        return Fact(text.state, None, text.evidence)
    by_device: dict[int, dict[str, str]] = {}
    bad = []
    for line in (line.strip() for line in text.value.splitlines()):
        match = _ENTRY.fullmatch(line)
        if match:
            by_device.setdefault(int(match[2]), {})[match[1]] = match[3].strip()
        elif line and not line.startswith("#"):
            bad.append(line)
    if bad and not by_device:
        return unknown(Evidence(HCCN_CONF, bad[0]))
    return known(HccnConf(by_device, tuple(bad)), Evidence(HCCN_CONF, f"{len(by_device)} devices"))


_SWITCH = re.compile(
    r"dev_id:(\d{1,4}), tls switch\[([01])\]\(0:disable, 1:enable\)"
    r"(?:, tls preconfigured\[([01])\]\([^)]*\))?(?:, tls alarm time threshold\[(\d{1,6})\]days)?"
)
_BLOCK = re.compile(r"dev_id:\d+, \[([^\]]+)\] info:")
_FIELD = re.compile(r"(subject|issuer|start_time|end_time)\[(.*)\]")
_STATUS = re.compile(r"tls expiration status\[([012])\]\(.*\)")
EXPIRY = ("normal", "near expiration", "has expired")


@dataclass(frozen=True, slots=True)
class Certificate:
    """One block: a certificate or the list of revoked ones. Older tools leave out subject, issuer and state."""

    name: str  # pub cert, ca1 cert, ca2 cert, crl
    start: str
    end: str
    expiry: str | None  # one of EXPIRY; None where the tool does not say


@dataclass(frozen=True, slots=True)
class Tls:
    """One card's switch and what it was given."""

    card: int
    is_on: bool
    is_preset: bool | None  # None: an older tool, which does not say
    alarm_days: int | None
    certificates: tuple[Certificate, ...]


def tls(text: str) -> Tls | None:
    """The state of one card. None where no line says it wholly, or where lines contradict each other."""
    lines = lines_of(text)
    switch = only(match.groups() for match in map(_SWITCH.fullmatch, lines) if match)
    if switch is None:
        return None
    card, state, preset, days = switch
    certificates = tuple(_certificates(lines))
    return Tls(
        int(card), state == "1", None if preset is None else preset == "1", int(days) if days else None, certificates
    )


def _certificates(lines: list[str]) -> list[Certificate]:
    found: list[Certificate] = []
    name, fields = "", dict[str, str]()
    for line in [*lines, "dev_id:0, [end] info:"]:
        block, value, status = _BLOCK.fullmatch(line), _FIELD.fullmatch(line), _STATUS.fullmatch(line)
        if block:
            if name:
                found.append(_certificate(name, fields))
            name, fields = block[1], {}
        elif value and name:
            fields.setdefault(value[1], value[2])
        elif status and name:
            fields.setdefault("status", EXPIRY[int(status[1])])
    return found


def _certificate(name: str, fields: dict[str, str]) -> Certificate:
    return Certificate(name, fields.get("start_time", ""), fields.get("end_time", ""), fields.get("status"))
