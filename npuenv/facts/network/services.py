"""Whether a firewall guards this host, and whether its clock follows others.

No program is run that would change anything, such as load a kernel module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.collector import Group, fact, not_asked
from npuenv.facts.network.interfaces import first_level, may_run
from npuenv.facts.read import first_line
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.facts.collector import Collector
    from npuenv.host.base import Host

T = TypeVar("T")
_CHAIN = r"type filter hook input priority [^;]+; policy (\w+);"


@dataclass(frozen=True, slots=True)
class Firewall:
    """A firewall that is on. Which ports it lets through is not asked."""

    name: str  # ufw, firewalld, nftables, iptables


def firewall(host: Host) -> Fact[Firewall]:
    """The first that is on; absent where all that could be asked say no, unknown where none could be asked."""
    found = [_ufw(host), _firewalld(host), _nftables(host), _iptables(host)]
    asked = [each for each in found if each is not None]
    on = next((each for each in asked if each.is_known), None)
    if on is not None:
        return on
    lines = [item for each in asked for item in each.evidence]
    if any(each.state is State.UNKNOWN for each in asked):
        return unknown(*lines)
    return absent(*(lines or [Evidence("firewall", "no ufw, firewalld, nft or iptables in use")]))


def drops_input(ruleset: str) -> str | None:
    """The policy of a base chain for input in `nft list ruleset` that is not accept; None where all accept."""
    return next((match[0] for match in re.finditer(_CHAIN, ruleset) if match[1] != "accept"), None)


def input_policy(rules: str) -> str | None:
    """The policy line of `iptables -S INPUT`, or a rule that drops or rejects all the rest; None where neither does."""
    lines = [line.strip() for line in rules.splitlines()]
    for line in lines:
        if line in ("-P INPUT DROP", "-P INPUT REJECT") or re.fullmatch(r"-A INPUT -j (DROP|REJECT)( .*)?", line):
            return line
    return None


def _ufw(host: Host) -> Fact[Firewall] | None:
    looked = host.look("/etc/ufw/ufw.conf")
    if looked.state is PathState.ABSENT:
        return None
    if looked.state is not PathState.FILE:
        return unknown(Evidence(looked.path, looked.error or looked.state.value))
    state = re.search(r"^\s*ENABLED\s*=\s*(\w+)", looked.text, re.MULTILINE)
    if state is None:
        return unknown(Evidence(looked.path, "no ENABLED line"))
    evidence = Evidence(looked.path, state[0].strip())
    return known(Firewall("ufw"), evidence) if state[1].lower() == "yes" else absent(evidence)


def _firewalld(host: Host) -> Fact[Firewall] | None:
    if host.look("/etc/firewalld").state is PathState.ABSENT:
        return None
    ran = host.run(("systemctl", "is-active", "firewalld"), timeout_s=4.0)
    word = ran.out.strip()
    evidence = Evidence("systemctl is-active firewalld", word or ran.err.strip() or f"exit {ran.code}")
    if word == "active":
        return known(Firewall("firewalld"), evidence)
    return absent(evidence) if word in ("inactive", "failed") else unknown(evidence)


def _nftables(host: Host) -> Fact[Firewall] | None:
    accepts = "no chain for input that drops"
    return _ruleset(host, "nftables", "nf_tables", ("nft", "list", "ruleset"), drops_input, accepts)


def _iptables(host: Host) -> Fact[Firewall] | None:
    return _ruleset(host, "iptables", "iptable_filter", ("iptables", "-S", "INPUT"), input_policy, "accepts")


def _ruleset(
    host: Host, name: str, module: str, argv: tuple[str, ...], find: Callable[[str], str | None], accepts: str
) -> Fact[Firewall] | None:
    """A firewall of the kernel, asked only where its module is loaded already."""
    if not _is_loaded(host, module):
        return None
    ran = host.run(argv, timeout_s=4.0)
    if ran.is_absent:
        return None
    command = " ".join(argv)
    if ran.code != 0:
        return unknown(Evidence(command, ran.err.strip()[:160] or f"exit {ran.code}"))
    policy = find(ran.out)
    evidence = Evidence(command, policy or accepts)
    return known(Firewall(name), evidence) if policy else absent(evidence)


def _is_loaded(host: Host, module: str) -> bool:
    looked = host.look("/proc/modules")
    return looked.state is PathState.FILE and re.search(rf"^{module} ", looked.text, re.MULTILINE) is not None


_TIMESYNC = "/run/systemd/timesync/synchronized"
_LEAP = r"(?m)^Leap status\s*:\s*(.+?)\s*$"
_OFFSET = r"(?m)^System time\s*:\s*([0-9.]+) seconds (?:slow|fast) of NTP time"


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
        line = first_line(chrony.out) or first_line(chrony.err) or f"exit {chrony.code}"
        said.append(Evidence("chronyc -n tracking", line))
        if found is not None:
            line = next((match[0] for match in re.finditer(_LEAP, chrony.out)), "")
            return known(found, Evidence("chronyc -n tracking", line))
    control = host.run(("timedatectl", "show", "-p", "NTPSynchronized"), timeout_s=4.0)
    if not control.is_absent:
        is_synchronised = of_timedatectl(control.out)
        line = first_line(control.out) or first_line(control.err) or f"exit {control.code}"
        said.append(Evidence("timedatectl show -p NTPSynchronized", line))
        if is_synchronised is not None:
            return known(Clock(is_synchronised, None), said[-1])
    return unknown(*said) if said else absent(Evidence("chronyc, timedatectl", "no such program"))


def of_chrony(text: str) -> Clock | None:
    """What `chronyc tracking` says; None without its line about leap seconds, which also tells `Not synchronised`."""
    leap, offset = re.search(_LEAP, text), re.search(_OFFSET, text)
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


def _by_programs(reader: Callable[[Host], Fact[T]]) -> Callable[[Collector, Fact[tuple[str, ...]]], Fact[T]]:
    """The same reader from the level on at which programs run."""
    return lambda host, spans: reader(host) if may_run(host, spans) else not_asked(first_level(spans))


class ServiceFacts(Group):
    firewall: Fact[Firewall] = fact(_by_programs(firewall), "network.spans")
    clock: Fact[Clock] = fact(_by_programs(clock), "network.spans")
