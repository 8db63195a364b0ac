"""Network settings that can be read without asking a card: /etc/hccn.conf and the proxies of the session."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.facts.base import Evidence, Fact, absent, known, unknown
from npuenv.facts.read import file_text

if TYPE_CHECKING:
    from npuenv.host.base import Host

HCCN_CONF = "/etc/hccn.conf"
_ENTRY = re.compile(r"([a-z_]+?)_([0-9]+)\s*=\s*(.*)")
_PROXY = re.compile(
    r"(?:(?P<scheme>[a-z0-9+]+)://)?(?:[^@/]*@)?(?P<name>\[[0-9a-fA-F:]+\]|[^:/\[\]]+)(?::(?P<port>[0-9]+))?/?"
)
_DEFAULT_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks5": 1080, "socks5h": 1080}
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True, slots=True)
class HccnConf:
    """/etc/hccn.conf: `key_<physical id>=value`. A line that is missing means the device's default."""

    by_device: dict[int, dict[str, str]]
    unreadable_lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Proxy:
    """One proxy variable that is set. `port` is None where the address cannot be read."""

    variable: str
    address: str
    name: str
    port: int | None


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


def proxies(host: Host) -> Fact[tuple[Proxy, ...]]:
    """The proxies that are set, in either spelling; absent when none is."""
    environ = host.environ()
    names = [spelling for name in _PROXY_VARIABLES for spelling in (name, name.upper()) if environ.get(spelling)]
    found = tuple(_proxy(name, environ[name]) for name in names)
    if not found:
        return absent(Evidence("environment", "no proxy variable is set"))
    return known(found, *(Evidence("environment", f"{proxy.variable}={proxy.address}") for proxy in found))


def _proxy(variable: str, address: str) -> Proxy:
    match = _PROXY.fullmatch(address.strip())
    if match is None:
        return Proxy(variable, address, "", None)
    port = int(match["port"]) if match["port"] else _DEFAULT_PORTS.get(match["scheme"] or "http")
    return Proxy(variable, address, match["name"].strip("[]"), port if port is not None and port < 65536 else None)
