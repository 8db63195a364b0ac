"""What the session's variables say of the network: proxies, and whether it is one of several nodes.

On one node most of the host's network does not matter, so what is only of interest between nodes is asked, and judged,
where something says that there are several.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.collector import USE_LEVEL, Group, fact, not_asked
from npuenv.facts.network.interfaces import HOSTS, hosts_entries, number_of, resolve
from npuenv.facts.python.interpreter import listens
from npuenv.facts.read import file_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.facts.collector import Collector
    from npuenv.host.base import Host

_PROXY = re.compile(
    r"(?:(?P<scheme>[a-z0-9+]+)://)?(?:[^@/]*@)?(?P<name>\[[0-9a-fA-F:]+\]|[^:/\[\]]+)(?::(?P<port>[0-9]+))?/?"
)
_DEFAULT_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks5": 1080, "socks5h": 1080}
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True, slots=True)
class Proxy:
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
    match = _PROXY.fullmatch(address.strip())
    if match is None:
        return Proxy(variable, address, "", None)
    port = int(match["port"]) if match["port"] else _DEFAULT_PORTS.get(match["scheme"] or "http")
    return Proxy(variable, address, match["name"].strip("[]"), port if port is not None and port < 65536 else None)


_COUNTS = ("NNODES", "PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_HCCL = ("HCCL_IF_IP", "HCCL_SOCKET_IFNAME")


@dataclass(frozen=True, slots=True)
class Master:
    """Where the ranks of a launch meet."""

    name: str  # MASTER_ADDR as set
    addresses: tuple[str, ...]  # empty: the name leads nowhere
    port: int | None  # MASTER_PORT, None where it is unset or no port


def is_loopback(address: str) -> bool:
    """Whether an address or a name never leaves the host."""
    return address.startswith("127.") or address.strip("[]") in (
        "::1",
        "localhost",
        "localhost.localdomain",
        "ip6-localhost",
    )


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
        is_node_rank = (
            environ.get("RANK") and not environ.get("LOCAL_RANK") and _number(environ.get("WORLD_SIZE", "")) > 1
        )
        if master and is_node_rank:  # ROLL counts nodes in WORLD_SIZE
            found.append("WORLD_SIZE")
        if master and environ.get("NODE_RANK", "0").strip() not in ("", "0"):
            found.append("NODE_RANK")
    ray = host_of(environ.get("RAY_ADDRESS", ""))
    if ray and not is_loopback(ray):
        found.append("RAY_ADDRESS")
    lines = (Evidence("environment", f"{name}={environ[name]}") for name in found)
    return known(tuple(found), *lines) if found else absent(Evidence("environment", "nothing speaks of several nodes"))


def master(host: Host, *, may_run: bool = True) -> Fact[Master]:
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
    if not may_run:
        return not_asked(1)
    found = resolve(host, name)
    if found.state is State.UNKNOWN:
        return unknown(line, *found.evidence)
    return known(Master(name, found.value or (), port), line, *found.evidence)


def _number(text: str) -> int:
    """A count; 0 for anything else. `2:4`, torchrun's elastic form, counts as its least."""
    match = re.fullmatch(r"\s*([0-9]{1,6})(?::[0-9]{1,6})?\s*", text)
    return int(match[1]) if match else 0


class EnvironFacts(Group):
    proxies: Fact[tuple[Proxy, ...]] = fact(proxies)
    proxies_listen: Fact[dict[str, bool]] = fact(listen, "network.proxies")
    spans: Fact[tuple[str, ...]] = fact(lambda host: spans(host.environ()))
    master: Fact[Master] = fact(lambda host: master(host, may_run=host.level > 0))
