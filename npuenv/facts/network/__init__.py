"""The host's own network. Here: what guards and steers it: firewall, clock, proxies, variables that name other nodes.

Some programs run only where there are several nodes. None is run that would change anything, such as load a kernel
module.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.collector import USE_LEVEL, Collector, FactGroup, fact, file_text, first_line, not_asked
from npuenv.facts.network.interfaces import HOSTS, InterfaceFacts, by_programs, hosts_entries, number_of, resolve
from npuenv.facts.python import listens
from npuenv.host import Host, PathState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_PROXY = r"(?:(?P<scheme>[a-z0-9+]+)://)?(?:[^@/]*@)?(?P<name>\[[0-9a-fA-F:]+\]|[^:/\[\]]+)(?::(?P<port>[0-9]+))?/?"
_DEFAULT_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks5": 1080, "socks5h": 1080}
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
_COUNTS = ("NNODES", "PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_HCCL = ("HCCL_IF_IP", "HCCL_SOCKET_IFNAME")
_LOOPBACK = ("::1", "localhost", "localhost.localdomain", "ip6-localhost")
_CHAIN = r"type filter hook input priority [^;]+; policy (\w+);"
_TIMESYNC = "/run/systemd/timesync/synchronized"
_LEAP = r"(?m)^Leap status\s*:\s*(.+?)\s*$"
_NTP = r"(?m)^NTPSynchronized=(yes|no)\s*$"
_OFFSET = r"(?m)^System time\s*:\s*([0-9.]+) seconds (?:slow|fast) of NTP time"


class Proxy(NamedTuple):
    """One proxy variable that is set. `port` is None where the address cannot be read."""

    variable: str
    address: str
    name: str
    port: int | None


def proxies(host: Host) -> Fact[tuple[Proxy, ...]]:
    """The proxies that are set, in either spelling; absent when none is."""
    environ = host.environ()
    names = [spelling for name in _PROXY_VARIABLES for spelling in (name, name.upper()) if environ.get(spelling)]
    found = tuple(_proxy(name, environ[name]) for name in names)
    if not found:
        return absent(Evidence("environment", "no proxy variable is set"))
    return known(found, *(Evidence("environment", f"{proxy.variable}={proxy.address}") for proxy in found))


def listen(host: Collector, proxies: Fact[tuple[Proxy, ...]]) -> Fact[dict[str, bool]]:
    """By variable: whether something accepts connections at the proxy. Tried from inside the target's interpreter."""
    if proxies.value is None:
        return Fact(proxies.state, None, proxies.evidence)
    readable = [proxy for proxy in proxies.value if proxy.port is not None]
    if host.level < USE_LEVEL:
        return not_asked(USE_LEVEL) if readable else absent()
    answers: dict[str, bool] = {}
    evidence: list[Evidence] = []
    for proxy in readable:
        found = host.read(listens, host.python, proxy.name, proxy.port)
        evidence += found.evidence
        if found.value is not None:
            answers[proxy.variable] = found.value
    return known(answers, *evidence) if answers else unknown(*evidence)


def _proxy(variable: str, address: str) -> Proxy:
    match = re.fullmatch(_PROXY, address.strip())
    if match is None:
        return Proxy(variable, address, "", None)
    port = int(match["port"]) if match["port"] else _DEFAULT_PORTS.get(match["scheme"] or "http")
    return Proxy(variable, address, match["name"].strip("[]"), port if port is not None and port < 65536 else None)


class Master(NamedTuple):
    """Where the ranks of a launch meet."""

    name: str  # MASTER_ADDR as set
    addresses: tuple[str, ...]  # empty: the name leads nowhere
    port: int | None  # MASTER_PORT, None where it is unset or no port


def is_loopback(address: str) -> bool:
    """Whether an address or a name never leaves the host."""
    return address.startswith("127.") or address.strip("[]") in _LOOPBACK


def host_of(address: str) -> str:
    """The host of an address of Ray's, such as `10.0.0.1:6379` or `ray://NAME:WORD@[fd00::1]:10001`; "" for none.

    Without scheme and port it is one of Ray's own words, `auto` or `local`.
    """
    address = address.strip()
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        is_host = "://" in address or parts.port is not None
    except ValueError:  # a port that is no number, a bracket that does not end
        return ""
    return (parts.hostname or "") if is_host else ""


def spans(environ: Mapping[str, str]) -> Fact[tuple[str, ...]]:
    """The names of the variables that speak of several nodes; absent where none does.

    MASTER_ADDR alone does not: a single node has one too. A loopback one speaks against several nodes.
    """
    master = environ.get("MASTER_ADDR", "").strip()
    found = [name for name in _COUNTS if _number(environ.get(name, "")) > 1]
    if not (master and is_loopback(master)):
        found += [name for name in _HCCL if environ.get(name) and environ[name].strip("^=") != "lo"]
        is_node_rank = environ.get("RANK") and not environ.get("LOCAL_RANK")
        if master and is_node_rank and _number(environ.get("WORLD_SIZE", "")) > 1:  # ROLL counts nodes in WORLD_SIZE
            found.append("WORLD_SIZE")
        if master and environ.get("NODE_RANK", "0").strip() not in ("", "0"):
            found.append("NODE_RANK")
    ray = host_of(environ.get("RAY_ADDRESS", ""))
    if ray and not is_loopback(ray):
        found.append("RAY_ADDRESS")
    lines = (Evidence("environment", f"{name}={environ[name]}") for name in found)
    return known(tuple(found), *lines) if found else absent(Evidence("environment", "nothing speaks of several nodes"))


def master(host: Host) -> Fact[Master]:
    """MASTER_ADDR with its addresses, from /etc/hosts, then from the system's resolver; absent where it is not set."""
    environ = host.environ()
    name = environ.get("MASTER_ADDR", "").strip()
    if not name:
        return absent(Evidence("environment", "MASTER_ADDR is not set"))
    text = environ.get("MASTER_PORT", "").strip()
    port = int(text) if re.fullmatch(r"[0-9]{1,5}", text) and 0 < int(text) < 65536 else None
    line = Evidence("environment", f"MASTER_ADDR={name}")
    if number_of(name) is not None or ":" in name:
        return known(Master(name, (name,), port), line)
    listed = file_text(host, HOSTS)
    addresses = tuple(hosts_entries(listed.value or "").get(name, ()))
    if addresses:
        return known(Master(name, addresses, port), line, Evidence(HOSTS, f"{addresses[0]} {name}"))
    found = resolve(host, name)
    if found.state is State.UNKNOWN:
        return unknown(line, *found.evidence)
    return known(Master(name, found.value or (), port), line, *found.evidence)


def _number(text: str) -> int:
    """A count; 0 for anything else. `2:4`, torchrun's elastic form, counts as its least."""
    match = re.fullmatch(r"\s*([0-9]{1,6})(?::[0-9]{1,6})?\s*", text)
    return int(match[1]) if match else 0


class EnvironFacts(FactGroup):
    proxies: Fact[tuple[Proxy, ...]] = fact(proxies)
    proxies_listen: Fact[dict[str, bool]] = fact(listen, "network.proxies")
    spans: Fact[tuple[str, ...]] = fact(lambda host: spans(host.environ()))
    master: Fact[Master] = fact(master)


class Firewall(NamedTuple):
    """A firewall that is on. Which ports it lets through is not asked."""

    name: str  # ufw, firewalld, nftables, iptables


def firewall(host: Host) -> Fact[Firewall]:
    """The first that is on; absent where all that could be asked say no, unknown where none could be asked."""
    found = [_ufw(host), _firewalld(host), *(_ruleset(host, *row) for row in _RULESETS)]
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


def _ruleset(
    host: Host, name: str, module: str, argv: tuple[str, ...], find: Callable[[str], str | None], accepts: str
) -> Fact[Firewall] | None:
    """A firewall of the kernel, asked only where its module is loaded already."""
    loaded = host.look("/proc/modules")
    if loaded.state is not PathState.FILE or not re.search(rf"^{module} ", loaded.text, re.MULTILINE):
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


# Firewall, its module, how it is asked, what finds a policy that drops, and the line where there is none.
_RULESETS = (
    ("nftables", "nf_tables", ("nft", "list", "ruleset"), drops_input, "no chain for input that drops"),
    ("iptables", "iptable_filter", ("iptables", "-S", "INPUT"), input_policy, "accepts"),
)


class Clock(NamedTuple):
    """`offset_s` is how far the clock is off by its own account; None where nobody says."""

    is_synchronised: bool
    offset_s: float | None


def clock(host: Host) -> Fact[Clock]:
    """From the mark of systemd-timesyncd, chronyd or timedatectl, in this order; absent where nothing keeps time."""
    if host.look(_TIMESYNC).state is PathState.FILE:
        return known(Clock(True, None), Evidence(_TIMESYNC, "file"))
    said: list[Evidence] = []
    for words, read, line in _TIMEKEEPERS:
        ran = host.run(words, timeout_s=4.0)
        found = read(ran.out)
        if found is not None:
            decides = re.search(line, ran.out)
            return known(found, Evidence(" ".join(words), decides[0].strip() if decides else ""))
        if not ran.is_absent:
            said.append(Evidence(" ".join(words), first_line(ran.out) or first_line(ran.err) or f"exit {ran.code}"))
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


def of_timedatectl(text: str) -> Clock | None:
    """What `timedatectl show` says of NTPSynchronized."""
    found = re.search(_NTP, text)
    return Clock(found[1] == "yes", None) if found else None


_TIMEKEEPERS: tuple[tuple[tuple[str, ...], Callable[[str], Clock | None], str], ...] = (
    (("chronyc", "-n", "tracking"), of_chrony, _LEAP),
    (("timedatectl", "show", "-p", "NTPSynchronized"), of_timedatectl, _NTP),
)


class NetworkFacts(InterfaceFacts, EnvironFacts):
    """What is true of the network that the host itself uses."""

    firewall: Fact[Firewall] = by_programs(firewall)
    clock: Fact[Clock] = by_programs(clock)
