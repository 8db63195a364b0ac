"""Whether a firewall guards this host. Only what can be read without changing anything: no program that would load a
kernel module by being asked is run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.host.base import PathState

if TYPE_CHECKING:
    from npuenv.host.base import Host

_CHAIN = re.compile(r"type filter hook input priority [^;]+; policy (\w+);")


@dataclass(frozen=True, slots=True)
class Firewall:
    """A firewall that is on. Which ports it lets through is not asked."""

    name: str  # ufw, firewalld, nftables, iptables


def firewall(host: Host) -> Fact[Firewall]:
    """The first that is on; absent where all that could be asked say no, unknown where none could be asked."""
    found = [_ufw(host), _firewalld(host), _nftables(host), _iptables(host)]
    for fact in found:
        if fact is not None and fact.is_known:
            return fact
    asked = [fact for fact in found if fact is not None]
    lines = [item for fact in asked for item in fact.evidence]
    if asked and any(fact.state.value == "unknown" for fact in asked):
        return unknown(*lines)
    return absent(*(lines or [Evidence("firewall", "no ufw, firewalld, nft or iptables in use")]))


def drops_input(ruleset: str) -> str | None:
    """The policy of a base chain for input in `nft list ruleset` that is not accept; None where all accept."""
    return next((match[0] for match in _CHAIN.finditer(ruleset) if match[1] != "accept"), None)


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
    if not _is_loaded(host, "nf_tables"):
        return None
    ran = host.run(("nft", "list", "ruleset"), timeout_s=4.0)
    if ran.is_absent:
        return None
    if ran.code != 0:
        return unknown(Evidence("nft list ruleset", ran.err.strip()[:160] or f"exit {ran.code}"))
    policy = drops_input(ran.out)
    evidence = Evidence("nft list ruleset", policy or "no chain for input that drops")
    return known(Firewall("nftables"), evidence) if policy else absent(evidence)


def _iptables(host: Host) -> Fact[Firewall] | None:
    if not _is_loaded(host, "iptable_filter"):
        return None
    ran = host.run(("iptables", "-S", "INPUT"), timeout_s=4.0)
    if ran.is_absent:
        return None
    if ran.code != 0:
        return unknown(Evidence("iptables -S INPUT", ran.err.strip()[:160] or f"exit {ran.code}"))
    policy = input_policy(ran.out)
    evidence = Evidence("iptables -S INPUT", policy or "accepts")
    return known(Firewall("iptables"), evidence) if policy else absent(evidence)


def _is_loaded(host: Host, module: str) -> bool:
    looked = host.look("/proc/modules")
    return looked.state is PathState.FILE and re.search(rf"^{module} ", looked.text, re.MULTILINE) is not None
