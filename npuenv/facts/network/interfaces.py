"""The host's interfaces with their addresses, the way that packets take, what names lead to, and ports in use.

Names, states and MTU come from /sys/class/net. Addresses come from `ip -o addr`, or without that program from
/proc/net/fib_trie and /proc/net/if_inet6, where the routing table tells the interface of an IPv4 address.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.collector import USE_LEVEL, Collector, FactGroup, fact, file_text, not_asked, not_here, of_file
from npuenv.host import Host, PathState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


BASE = "HCCL_IF_BASE_PORT"
RANGE = "HCCL_HOST_SOCKET_PORT_RANGE"
_AUTO = "auto"  # as the range: the system gives out what is free
FIRST, COUNT = 60000, 32  # from which port on it listens when nothing is set, and on how many
BASES = range(1024, 65521)  # what it takes for a base
_MOST = 65535
_LINES = "300"
_LISTENING = "0A"
_OWNER = r':(\d{1,5})\s+\S+\s+users:\(\("([^"]*)",pid=(\d+)'
_RANGE = r"(\d{1,5})(?:-(\d{1,5}))?"
NET = "/sys/class/net"
_ADDR = r"(?m)^\d+:\s+(\S+?)(?:@\S+)?\s+(inet6?)\s+([0-9a-fA-F.:]+)(?:/(\d+))?(?=\s|$)"
_ROUTE = re.compile(
    r"\s*(?P<interface>\S+)\s+(?P<network>[0-9A-F]{8})\s+(?P<gateway>[0-9A-F]{8})\s+(?P<flags>[0-9A-F]{4,8})\s+\S+\s+\S+\s+"
    r"(?P<metric>[0-9]{1,10})\s+(?P<mask>[0-9A-F]{8})(?:\s|$)"
)
_LEAF = r"\|--\s+([0-9.]+)\s*$"
_LOCAL = r"/32 host LOCAL\s*$"
HOSTS = "/etc/hosts"


def from_base(base: int) -> tuple[int, ...]:
    """The ports from a base on; the last bases leave room for fewer than usual."""
    return tuple(range(base, min(base + COUNT, _MOST + 1)))


def told(environment: Mapping[str, str]) -> tuple[int, ...] | None:
    """The ports that the variables name, of a long range as many as HCCL takes of its own; () where the system gives
    them out; None where no variable names any, or none that HCCL would take.

    Example: {"HCCL_HOST_SOCKET_PORT_RANGE": "50000,50010-50011"} -> (50000, 50010, 50011)
    """
    wanted = environment.get(RANGE, "").strip()
    if wanted == _AUTO:
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


class Listener(NamedTuple):
    """A port that is taken. `owner` is the program's name where it may be known, else ""."""

    address: str  # 0.0.0.0 and :: stand for all
    port: int
    owner: str


class PortRange(NamedTuple):
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
    sockets = host.run(("ss", "-H", "-ltnp"), timeout_s=4.0) if may_run and found else None
    owners = owners_of(sockets.out) if sockets is not None and sockets.code == 0 else {}
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
    return {int(match[1]): match[2] for match in re.finditer(_OWNER, text)}


def port_range(host: Host) -> Fact[PortRange]:
    """The kernel's own range and what is kept out of it."""
    place = "/proc/sys/net/ipv4/ip_local_port_range"
    looked, kept = host.look(place), host.look("/proc/sys/net/ipv4/ip_local_reserved_ports")
    numbers = looked.text.split() if looked.state is PathState.FILE else []
    if len(numbers) != 2 or not all(re.fullmatch(r"\d{1,5}", item) for item in numbers):
        return unknown(Evidence(place, looked.error or looked.text[:80].strip() or looked.state.value))
    parts = (re.fullmatch(_RANGE, part.strip()) for part in kept.text.split(",") if kept.state is PathState.FILE)
    reserved = tuple((int(match[1]), int(match[2] or match[1])) for match in parts if match)
    line = " ".join(numbers) + (f", reserved {kept.text.strip()}" if reserved else "")
    return known(PortRange(int(numbers[0]), int(numbers[1]), reserved), Evidence(place, line))


def _address(text: str) -> str:
    """`0100007F` -> 127.0.0.1: the kernel prints each four bytes in its own order, little-endian on our machines."""
    import ipaddress

    words = (bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8))
    address = ipaddress.ip_address(b"".join(words))
    # Python prints those as ::ffff:7f00:1 before 3.13.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(address) if mapped is None else f"::ffff:{mapped}"


class Route(NamedTuple):
    """One row of the IPv4 routing table."""

    interface: str
    network: int  # as a number, network byte order
    mask: int
    gateway: int  # 0: directly connected
    metric: int


class Interface(NamedTuple):
    """One interface. `state` is the kernel's word: up, down, unknown (for lo and some virtual ones), lowerlayerdown."""

    name: str
    state: str
    mtu: int | None
    addresses: tuple[str, ...]  # without the prefix length; IPv6 link-local ones left out

    @property
    def is_up(self) -> bool:
        return self.state in ("up", "unknown")


def interfaces(host: Host, *, may_run: bool = True) -> Fact[tuple[Interface, ...]]:
    """All of them by name. Unknown where /sys/class/net cannot be listed, or where no address can be read at all."""
    listed = host.look(NET)
    if listed.state is not PathState.FOLDER:
        return not_here(listed)
    ran = host.run(("ip", "-o", "addr"), timeout_s=4.0) if may_run else None
    addresses = (addresses_of_program(ran.out) if ran is not None and ran.code == 0 else None) or _by_files(host)
    if addresses is None:
        return unknown(Evidence("ip -o addr", "no such program"), Evidence("/proc/net/fib_trie", "cannot be read"))
    found = tuple(_interface(host, name, addresses) for name in listed.names if name != "bonding_masters")
    words = ((each.name, each.state, f"mtu {each.mtu}" if each.mtu else "", *each.addresses) for each in found)
    return known(found, *(Evidence(NET, " ".join(filter(None, line))) for line in words))


def addresses_of_program(text: str) -> list[tuple[str, str]]:
    """Interface and address of each row of `ip -o addr`; link-local IPv6 ones are left out."""
    return [(match[1], match[3]) for match in re.finditer(_ADDR, text) if not match[3].lower().startswith("fe80")]


def local_addresses(fib_trie: str) -> list[str]:
    """The IPv4 addresses that the kernel takes for its own, each once, in order."""
    found: dict[str, None] = {}
    leaf = ""
    for line in fib_trie.splitlines():
        match = re.search(_LEAF, line)
        if match:
            leaf = match[1]
        elif leaf and re.search(_LOCAL, line):
            found.setdefault(leaf)
    return [address for address in found if number_of(address) is not None]


def inet6_addresses(if_inet6: str) -> list[tuple[str, str]]:
    """Interface and address of each row of /proc/net/if_inet6; link-local ones are left out."""
    import ipaddress

    rows = (line.split() for line in if_inet6.splitlines())
    return [
        (row[5], str(ipaddress.IPv6Address(int(row[0], 16))))
        for row in rows
        if len(row) == 6 and re.fullmatch(r"[0-9a-f]{32}", row[0]) and not row[0].startswith("fe80")
    ]


def routes(text: str) -> list[Route]:
    """The rows of /proc/net/route whose interface is up; others, and rows that cannot be read, are left out."""
    found = []
    for row in map(_ROUTE.match, text.splitlines()[1:]):
        if row and int(row["flags"], 16) & 1:
            network, mask, gateway = (
                int.from_bytes(bytes.fromhex(row[name]), "little") for name in ("network", "mask", "gateway")
            )
            found.append(Route(row["interface"], network, mask, gateway, int(row["metric"])))
    return found


def way_to(table: Iterable[Route], address: str) -> str | None:
    """The interface that packets to an IPv4 address leave by; None where no route leads there."""
    number = number_of(address)
    if number is None:
        return None
    fitting = [route for route in table if number & route.mask == route.network]
    best = min(fitting, key=lambda route: (-route.mask, route.metric), default=None)
    return best.interface if best else None


def route_table(host: Host) -> Fact[tuple[Route, ...]]:
    """The IPv4 routes; absent where there is none."""
    looked = host.look("/proc/net/route")
    if looked.state is not PathState.FILE:
        return unknown(Evidence("/proc/net/route", looked.error or looked.state.value))
    if not looked.text.startswith("Iface"):
        return unknown(Evidence("/proc/net/route", looked.text[:80].strip()))
    found = tuple(routes(looked.text))
    evidence = Evidence("/proc/net/route", f"{len(found)} routes")
    return known(found, evidence) if found else absent(evidence)


def number_of(address: str) -> int | None:
    """An IPv4 address as a number; None for anything else."""
    parts = address.split(".")
    if len(parts) != 4 or not all(re.fullmatch(r"[0-9]{1,3}", part) and int(part) < 256 for part in parts):
        return None
    return int.from_bytes(bytes(map(int, parts)), "big")


def _by_files(host: Host) -> list[tuple[str, str]] | None:
    trie, six = host.look("/proc/net/fib_trie"), host.look("/proc/net/if_inet6")
    if trie.state is not PathState.FILE:
        return None
    table = host.look("/proc/net/route")
    rows = routes(table.text) if table.state is PathState.FILE else []
    connected = [route for route in rows if not route.gateway and route.mask]
    found = []
    for address in local_addresses(trie.text):
        name = "lo" if address.startswith("127.") else way_to(connected, address)
        found.append((name or "", address))
    return found + (inet6_addresses(six.text) if six.state is PathState.FILE else [])


def _interface(host: Host, name: str, addresses: list[tuple[str, str]]) -> Interface:
    def text(file: str) -> str:
        looked = host.look(f"{NET}/{name}/{file}")
        return looked.text.strip() if looked.state is PathState.FILE else ""

    mtu = text("mtu")
    own = tuple(address for interface, address in addresses if interface == name)
    return Interface(name, text("operstate"), int(mtu) if re.fullmatch(r"[0-9]{1,7}", mtu) else None, own)


class HostName(NamedTuple):
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
    found = resolve(host, own) if may_run else unknown(Evidence(f"getent ahosts {own}", "not asked"))
    resolved = () if found.state is State.ABSENT else found.value
    line = f"{own}: {', '.join(in_hosts or ()) or 'not named'}"
    return known(HostName(own, in_hosts, resolved), Evidence(HOSTS, line), *found.evidence)


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


@of_file("/etc/resolv.conf")
def resolvers(text: str) -> Fact[tuple[str, ...]]:
    """The name servers of /etc/resolv.conf; absent where none is named."""
    rows = [line.split() for line in text.splitlines()]
    found = tuple(row[1] for row in rows if len(row) > 1 and row[0] == "nameserver")
    evidence = Evidence("/etc/resolv.conf", f"nameserver {found[0]}" if found else "no nameserver")
    return known(found, evidence) if found else absent(evidence)


def resolve(host: Host, name: str) -> Fact[tuple[str, ...]]:
    """What the system's resolver gives for a name; absent where it does not know the name."""
    ran = host.run(("getent", "ahosts", name), timeout_s=3.0)
    command = f"getent ahosts {name}"
    if ran.code == 2:  # getent's own status for a name that is not found
        return absent(Evidence(command, "not found"))
    if ran.code != 0:
        return unknown(Evidence(command, "timed out" if ran.timed_out else ran.err.strip() or f"exit {ran.code}"))
    found = addresses_of(ran.out)
    evidence = Evidence(command, ", ".join(found) or ran.out[:80].strip())
    return known(found, evidence) if found else unknown(evidence)


def addresses_of(text: str) -> tuple[str, ...]:
    """The addresses of `getent ahosts`, each once: `10.20.0.12 STREAM node-a`."""
    rows = (line.split() for line in text.splitlines())
    return tuple(dict.fromkeys(row[0] for row in rows if len(row) > 1 and row[1] in ("STREAM", "DGRAM", "RAW")))


def _by_level(reader: Callable[..., Fact[Any]]) -> Any:
    """Declares the fact of a reader that runs programs at some levels only."""
    return fact(lambda host, spans: reader(host, may_run=host.level >= _first_level(spans)), "network.spans")


def by_programs(reader: Callable[[Host], Fact[Any]]) -> Any:
    """Declares the fact of a reader that is called from the level on at which programs run."""

    def read(host: Collector, spans: Fact[tuple[str, ...]]) -> Fact[Any]:
        first = _first_level(spans)
        return reader(host) if host.level >= first else not_asked(first)

    return fact(read, "network.spans")


def _first_level(spans: Fact[tuple[str, ...]]) -> int:
    """The level from which on programs run: earlier where there are several nodes (`network.spans`)."""
    return 1 if spans.is_known else USE_LEVEL


class InterfaceFacts(FactGroup):
    interfaces: Fact[tuple[Interface, ...]] = _by_level(interfaces)
    routes: Fact[tuple[Route, ...]] = fact(route_table)
    hostname: Fact[HostName] = _by_level(hostname)
    resolvers: Fact[tuple[str, ...]] = fact(resolvers)
    listeners: Fact[tuple[Listener, ...]] = _by_level(listeners)
    port_range: Fact[PortRange] = fact(port_range)
