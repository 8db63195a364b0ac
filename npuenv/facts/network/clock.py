"""Whether the host's clock follows others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from npuenv.host.base import Host

_TIMESYNC = "/run/systemd/timesync/synchronized"
_LEAP = re.compile(r"^Leap status\s*:\s*(.+?)\s*$", re.MULTILINE)
_OFFSET = re.compile(r"^System time\s*:\s*([0-9.]+) seconds (?:slow|fast) of NTP time", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Clock:
    """`offset_s` is how far the clock is off by its own account; None where nobody says."""

    is_synchronised: bool
    offset_s: float | None


def clock(host: Host) -> Fact[Clock]:
    """From the mark of systemd-timesyncd, chronyd or timedatectl, in this order; absent where nothing keeps time."""
    if host.look(_TIMESYNC).state is PathState.FILE:
        return known(Clock(True, None), Evidence(_TIMESYNC, "file"))
    said: list[Evidence] = []
    chrony = host.run(("chronyc", "-n", "tracking"), timeout_s=4.0)
    if not chrony.is_absent:
        found = of_chrony(chrony.out)
        said.append(Evidence("chronyc -n tracking", _first(chrony.out) or _first(chrony.err) or f"exit {chrony.code}"))
        if found is not None:
            line = next((match[0] for match in _LEAP.finditer(chrony.out)), "")
            return known(found, Evidence("chronyc -n tracking", line))
    control = host.run(("timedatectl", "show", "-p", "NTPSynchronized"), timeout_s=4.0)
    if not control.is_absent:
        is_synchronised = of_timedatectl(control.out)
        line = _first(control.out) or _first(control.err) or f"exit {control.code}"
        said.append(Evidence("timedatectl show -p NTPSynchronized", line))
        if is_synchronised is not None:
            return known(Clock(is_synchronised, None), said[-1])
    return unknown(*said) if said else absent(Evidence("chronyc, timedatectl", "no such program"))


def of_chrony(text: str) -> Clock | None:
    """What `chronyc tracking` says; None without its line about leap seconds, which also tells `Not synchronised`."""
    leap, offset = _LEAP.search(text), _OFFSET.search(text)
    if leap is None:
        return None
    words = leap[1].lower()
    if words not in ("normal", "insert second", "delete second", "not synchronised"):
        return None
    return Clock(words != "not synchronised", float(offset[1]) if offset and offset[1].count(".") < 2 else None)


def of_timedatectl(text: str) -> bool | None:
    """What `timedatectl show` says of NTPSynchronized."""
    found = re.search(r"^NTPSynchronized=(yes|no)\s*$", text, re.MULTILINE)
    return found[1] == "yes" if found else None


def _first(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
