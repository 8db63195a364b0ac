"""What the host calls itself and what that name leads to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.read import file_text

if TYPE_CHECKING:
    from npuenv.host.base import Host

HOSTS = "/etc/hosts"


@dataclass(frozen=True, slots=True)
class HostName:
    """The host's name. An address list is None where nobody could tell, empty where the name is not found."""

    name: str
    in_hosts: tuple[str, ...] | None  # the addresses that /etc/hosts gives it
    resolved: tuple[str, ...] | None  # what the system's resolver gives; None at level 0 too


def hostname(host: Host, *, may_run: bool = True) -> Fact[HostName]:
    """The kernel's name for the host, with what it resolves to. `getent` asks only from level 1 on."""
    name = file_text(host, "/proc/sys/kernel/hostname")
    if not (name.value or "").strip():
        return unknown(*name.evidence)
    own = (name.value or "").strip()
    listed = file_text(host, HOSTS)
    in_hosts = tuple(hosts_entries(listed.value).get(own, ())) if listed.value is not None else None
    resolved, said = _resolve(host, own) if may_run else (None, "not asked")
    line = f"{own}: {', '.join(in_hosts or ()) or 'not named'}"
    return known(HostName(own, in_hosts, resolved), Evidence(HOSTS, line), Evidence(f"getent ahosts {own}", said))


def hosts_entries(text: str) -> dict[str, list[str]]:
    """The names of /etc/hosts with their addresses, in order."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        for name in words[1:]:
            addresses = found.setdefault(name, [])
            if words[0] not in addresses:
                addresses.append(words[0])
    return found


def resolvers(host: Host) -> Fact[tuple[str, ...]]:
    """The name servers of /etc/resolv.conf; absent where none is named."""
    text = file_text(host, "/etc/resolv.conf")
    if text.value is None:
        return Fact(text.state, None, text.evidence)
    rows = [line.split() for line in text.value.splitlines()]
    found = tuple(row[1] for row in rows if len(row) > 1 and row[0] == "nameserver")
    evidence = Evidence("/etc/resolv.conf", f"nameserver {found[0]}" if found else "no nameserver")
    return known(found, evidence) if found else absent(evidence)


def resolve(host: Host, name: str) -> Fact[tuple[str, ...]]:
    """What the system's resolver gives for a name; absent where it does not know the name."""
    addresses, said = _resolve(host, name)
    evidence = Evidence(f"getent ahosts {name}", said)
    if addresses is None:
        return unknown(evidence)
    return known(addresses, evidence) if addresses else absent(evidence)


def addresses_of(text: str) -> tuple[str, ...]:
    """The addresses of `getent ahosts`, each once: `10.20.0.12 STREAM node-a`."""
    rows = (line.split() for line in text.splitlines())
    return tuple(dict.fromkeys(row[0] for row in rows if len(row) > 1 and row[1] in ("STREAM", "DGRAM", "RAW")))


def _resolve(host: Host, name: str) -> tuple[tuple[str, ...] | None, str]:
    ran = host.run(("getent", "ahosts", name), timeout_s=3.0)
    if ran.code == 2:  # getent's own status for a name that is not found
        return (), "not found"
    if ran.code != 0:
        return None, "timed out" if ran.timed_out else (ran.err.strip() or f"exit {ran.code}")
    found = addresses_of(ran.out)
    return (found, ", ".join(found)) if found else (None, ran.out[:80].strip())
