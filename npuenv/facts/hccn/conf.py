"""/etc/hccn.conf: what the cards' network was given. Start from `hccn_conf`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, known, unknown
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
