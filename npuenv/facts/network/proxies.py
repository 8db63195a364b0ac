"""The proxies of the session, and whether something listens there."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.facts.collector import USE_LEVEL
from npuenv.facts.python.interpreter import listens

if TYPE_CHECKING:
    from npuenv.facts.collector import Asker
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


def listen(ask: Asker, proxies: Fact[tuple[Proxy, ...]]) -> Fact[dict[str, bool]]:
    """By variable: whether something accepts connections at the proxy. Tried from inside the target's interpreter."""
    if proxies.value is None:
        return Fact(proxies.state, None, proxies.evidence)
    answers: dict[str, bool] = {}
    evidence: list[Evidence] = []
    for proxy in proxies.value:
        if proxy.port is not None:
            fact = ask.at(USE_LEVEL, functools.partial(listens, python=ask.python, name=proxy.name, port=proxy.port))
            evidence += fact.evidence
            if fact.value is not None:
                answers[proxy.variable] = fact.value
    if ask.level < USE_LEVEL:
        return absent(*evidence[:1])
    return known(answers, *evidence) if answers else unknown(*evidence)


def _proxy(variable: str, address: str) -> Proxy:
    match = _PROXY.fullmatch(address.strip())
    if match is None:
        return Proxy(variable, address, "", None)
    port = int(match["port"]) if match["port"] else _DEFAULT_PORTS.get(match["scheme"] or "http")
    return Proxy(variable, address, match["name"].strip("[]"), port if port is not None and port < 65536 else None)
