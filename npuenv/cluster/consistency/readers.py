"""Readers of what must agree, one for each `from` of `rules.toml`: software, session, machine and network of one node.

A reader knows of no other node. Texts in which a capture has put stand-ins are left out: the same stand-in means
another name on each node. Readers about cards are in `cards`.
"""

from __future__ import annotations

import functools
import re
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from npuenv.checks.network.interfaces import INNER, hccl_choice, matching
from npuenv.cluster.consistency.findings import NONE, NodeValues, Value, ValueKey
from npuenv.core.documents import folder_of, load_toml
from npuenv.core.fact import Evidence, State
from npuenv.facts.collector import was_asked
from npuenv.facts.machine.hardware import NETWORK_KINDS
from npuenv.facts.network.interfaces import number_of
from npuenv.facts.npu.driver import VARIABLE, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npuenv.core.fact import Fact
    from npuenv.facts.collect import Facts
    from npuenv.facts.network.interfaces import Interface

    Reader = Callable[[Facts], NodeValues]


_STAND_IN = re.compile(
    r"\b(?:host|user|serial)\d+\b|\*\*\*|\b(?:203\.0\.113|198\.51\.100)\.\d+\b|\b2001:db8::[0-9a-f]+\b"
)
UNLIMITED = -1
_GIB = 1 << 20  # KiB
_WORK = frozenset({"torch", "torch-npu", "vllm", "vllm-ascend", "sglang", "transformers", "verl", "roll"})
# The limits that matter to training; others differ with the memory of a machine.
_LIMITS = ("Max open files", "Max locked memory", "Max processes", "Max stack size", "Max address space")
# The kernel settings that do not follow from the size of the machine.
_SETTINGS = ("transparent_hugepage", "overcommit_memory", "max_map_count", "selinux_enforcing", "numa_nodes")
_OF_PODS = re.compile(r"/kubelet/|/docker/|/containers/|/containerd/")  # volumes of what runs there, one's own


@dataclass(frozen=True, slots=True)
class SessionVariables:
    """The patterns of session variables that are compared."""

    compared: re.Pattern[str]
    own: re.Pattern[str]  # differ between nodes by their meaning
    breaking: re.Pattern[str]  # a difference ends the run


@functools.cache
def session_variables() -> SessionVariables:
    """The patterns of variables.toml."""
    rows = load_toml(folder_of(__file__) / "variables.toml", is_ours=True)
    return SessionVariables(*(re.compile("|".join(rows[name])) for name in ("compared", "own", "breaking")))


def has_stand_in(text: str) -> bool:
    """Whether redaction has replaced something in the text."""
    return _STAND_IN.search(text) is not None


def one(fact: Fact[Any], show: Callable[[Any], str | None], *, absent: str | None = NONE) -> NodeValues:
    """The text of a fact with one value. A value for which `show` has no text is unknown.

    `absent`: the value of an absent fact; None: none.
    """
    if not was_asked(fact):
        return NodeValues(level=fact.needs_level)
    line = fact.evidence[0] if fact.evidence else Evidence("", "")
    if fact.state is State.UNKNOWN:
        return NodeValues(unknown={None: line})
    text = absent if fact.state is State.ABSENT else show(fact.value)
    if text is None:
        return NodeValues() if fact.state is State.ABSENT else NodeValues(unknown={None: line})
    if has_stand_in(text):
        return NodeValues(hidden=frozenset({ValueKey().topic}))
    return NodeValues({ValueKey(): Value(text, line)})


def plain(facts: Facts, path: str, text: str, absent: str | None) -> NodeValues:
    """A fact, or an attribute of its value, as text: `machine.system.name`."""
    group, name, *attributes = path.split(".")

    def show(value: Any) -> str | None:
        for attribute in attributes:
            value = getattr(value, attribute)
        return text.format(value) if value not in (None, "") else None

    return one(fact_at(facts, f"{group}.{name}"), show, absent=absent)


def fact_at(facts: Facts, path: str) -> Fact[Any]:
    """The fact of a group: `machine.kernel`."""
    group, _, name = path.partition(".")
    fact: Fact[Any] = getattr(getattr(facts, group), name)
    return fact


def one_of(path: str, show: Callable[[Any], str | None], *, absent: str | None = NONE) -> Reader:
    """A reader of the fact at a path, as `one`."""
    return lambda facts: one(fact_at(facts, path), show, absent=absent)


def many_of(path: str, show: Callable[[Any], Mapping[str, str]]) -> Reader:
    """A reader of the fact at a path, as `many`."""
    return lambda facts: many(fact_at(facts, path), show)


def many(fact: Fact[Any], show: Callable[[Any], Mapping[str, str]]) -> NodeValues:
    """A fact with a value for each of several topics."""
    if fact.value is None:
        return one(fact, lambda _: None, absent=None)
    command = fact.evidence[0].command if fact.evidence else ""
    return listed(show(fact.value), command, "{} {}")


def listed(found: Mapping[str, str], command: str, line: str) -> NodeValues:
    """All topics of a node with their values; `line` is the format of the evidence."""

    def number(text: str) -> float | None:
        return float(text) if text.isdecimal() else None

    hidden = frozenset(topic for topic, text in found.items() if has_stand_in(f"{topic} {text}"))
    shown = ((topic, text, Evidence(command, line.format(topic, text))) for topic, text in found.items())
    values = {ValueKey(topic): Value(text, each, number(text)) for topic, text, each in shown if topic not in hidden}
    return NodeValues(values, is_list=True, command=command, hidden=hidden)


def visible_cards(facts: Facts) -> NodeValues:
    """The number of cards visible to the session: those that a variable names, else all device nodes."""
    nodes, environment = facts.npu.nodes, facts.environment.value or {}
    if nodes.value is None or VARIABLE not in environment:
        return one(nodes, lambda nodes: str(len(nodes.cards)), absent="0")
    line = Evidence("environment", f"{VARIABLE}={environment[VARIABLE]}")
    seen = visible(environment, len(nodes.value.cards))
    return NodeValues(unknown={None: line}) if seen is None else NodeValues({ValueKey(): Value(str(seen), line)})


def driver(facts: Facts) -> NodeValues:
    """The driver's version from its file, else from npu-smi."""
    if facts.npu.driver.is_known:
        return one(facts.npu.driver, lambda info: str(info.version).lower())
    if facts.npu.smi.value is not None:
        return driver_in_use(facts)
    return one(facts.npu.driver, lambda info: str(info.version))


# The loaded driver's version, from npu-smi: after an upgrade without a restart it is not the file's.
driver_in_use = one_of("npu.smi", lambda table: table.driver.lower() if table.driver else None, absent=None)
cann = one_of("cann.toolkit", lambda found: str(found.version).upper())
cann_ops = one_of("cann.ops", lambda found: f"{found.version} {found.chip}".strip(), absent=None)
kernel_chips = one_of("cann.kernels", lambda found: ", ".join(sorted(found.chips)) or NONE, absent=None)
resolvers = one_of("network.resolvers", lambda found: ", ".join(sorted(found)))
# A container without a program that synchronises the clock has its host's clock.
clock_kept = one_of("network.clock", lambda found: ":kept" if found.is_synchronised else ":not-kept", absent=None)
compilers = many_of("cann.compilers", dict)


def ray(facts: Facts) -> NodeValues:
    fact = facts.python.interpreter
    if fact.value is None:
        return one(fact, lambda _: None)
    version = fact.value.distributions.get("ray", NONE)
    line = Evidence(fact.evidence[0].command, f"ray {version}".replace(NONE, "-"))
    return NodeValues({ValueKey(): Value(version, line)})


frameworks = many_of("python.interpreter", lambda found: {k: v for k, v in found.distributions.items() if k in _WORK})
# All other distributions.
packages = many_of(
    "python.interpreter", lambda found: {k: v for k, v in found.distributions.items() if k not in {"ray", *_WORK}}
)


def image(facts: Facts) -> NodeValues:
    """The stack that the image of a container names, if npuenv rendered it."""
    if not facts.machine.container.is_known:
        return NodeValues()
    stack = (facts.environment.value or {}).get("NPUENV_STACK")
    return listed({"NPUENV_STACK": stack} if stack else {}, "environment", "{}={}")


def _limits(found: Mapping[str, int]) -> dict[str, str]:
    return {name: ":unlimited" if found[name] == UNLIMITED else str(found[name]) for name in _LIMITS if name in found}


limits = many_of("machine.limits", _limits)
kernel_settings = many_of("machine.settings", lambda found: {name: found[name] for name in _SETTINGS if name in found})


def shared_memory(facts: Facts) -> NodeValues:
    return _sized(facts.machine.shared_memory, lambda space: space.size_kib)


def memory(facts: Facts) -> NodeValues:
    return _sized(facts.machine.memory_kib, lambda kib: kib)


def _sized(fact: Fact[Any], kib_of: Callable[[Any], int]) -> NodeValues:
    found = one(fact, lambda value: f"{kib_of(value) / _GIB:.1f} GiB")
    if fact.value is None:
        return found
    number = kib_of(fact.value)
    return replace(found, values={key: replace(value, number=number) for key, value in found.values.items()})


def _network_mounts(rows: Any) -> dict[str, str]:
    """Network file systems by mount point."""
    kept = (row for row in rows if row.kind in NETWORK_KINDS and not _OF_PODS.search(row.place))
    return {row.place: f"{row.kind} {'ro' if 'ro' in row.options else 'rw'}" for row in kept}


network_mounts = many_of("machine.mounts", _network_mounts)


def variables(facts: Facts) -> NodeValues:
    """The compared variables of the session."""
    names = session_variables()
    found = facts.environment.value or {}
    compared = (name for name in found if names.compared.fullmatch(name) and not names.own.fullmatch(name))
    return listed({name: found[name] for name in compared}, "environment", "{}={}")


def ray_token(facts: Facts) -> NodeValues:
    """Whether there is a token file, if the installed Ray reads one."""
    version = (facts.python.interpreter.value.distributions if facts.python.interpreter.value else {}).get("ray", "")
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    environ = facts.environment.value or {}
    if numbers < [2, 59] or environ.get("RAY_AUTH_MODE", "").lower() == "disabled":
        return NodeValues()
    return one(facts.ray.token, lambda _: ":present", absent=":absent")


def _port_range(found: Any) -> str:
    kept = ",".join(f"{first}-{last}" for first, last in found.reserved)
    return f"{found.first}-{found.last}" + (f" - {kept}" if kept else "")


def _rank_table(table: Any) -> str:
    devices = [(each.id, item.card, item.ip, item.rank) for each in table.servers for item in each.devices]
    return f"{table.path} #{zlib.crc32(repr(devices).encode()):08x}"


port_range = one_of("network.port_range", _port_range)
rank_table = one_of("hccn.rank_table", _rank_table, absent=None)


# What the system calls a port that a cable is plugged into, and what is put together from such ones.
CABLED = re.compile(r"(en|eth|em\d|p\d+p\d|ib|bond|team|br|vlan|hns|roce).*")


def outer(facts: Facts) -> tuple[Interface, ...]:
    """The interfaces to other hosts: up, with an address, and no internal bridge or tunnel."""
    found = facts.network.interfaces.value or ()
    named = (item for item in found if item.name != "lo" and not INNER.fullmatch(item.name))
    return tuple(item for item in named if item.is_up and _addresses(item))


def addresses(facts: Facts) -> dict[str, Interface]:
    """The addresses for other hosts, each with its interface."""
    return {address: item for item in outer(facts) for address in _addresses(item)}


def line_of(facts: Facts, interface: Interface) -> Evidence:
    """The line that shows an interface."""
    rows = facts.network.interfaces.evidence
    return next((row for row in rows if row.line.split(" ")[0] == interface.name), Evidence("", interface.name))


def for_hccl(facts: Facts) -> Interface | None:
    """The interface that HCCL uses in this session: the configured one, else its own choice."""
    environ = facts.environment.value or {}
    every = {item.name: item for item in facts.network.interfaces.value or ()}
    address, pattern = environ.get("HCCL_IF_IP", "").strip(), environ.get("HCCL_SOCKET_IFNAME", "").strip()
    if address:
        return next((item for item in every.values() if address in item.addresses), None)
    if pattern:
        usable = [item for item in every.values() if item.is_up and item.addresses]
        return next((every[name] for name in matching(pattern, [item.name for item in usable])), None)
    return hccl_choice(outer(facts))


def hccl_interface(facts: Facts) -> NodeValues:
    return _chosen(facts, lambda item: item.name)


def hccl_subnet(facts: Facts) -> NodeValues:
    """The directly connected network that the interface for HCCL lies in."""

    def subnet(item: Interface) -> str:
        four = [number for text in _addresses(item) if (number := number_of(text)) is not None]
        for route in facts.network.routes.value or ():
            is_its = route.interface == item.name and not route.gateway and route.mask
            if is_its and any(number & route.mask == route.network for number in four):
                return f"{_dotted(route.network)}/{bin(route.mask).count('1')}"
        return ""

    return _chosen(facts, subnet)


def is_routed(nodes: Mapping[str, Facts]) -> bool:
    """Whether networks without a majority are intended: three or more, or those of pods, which are local to a host."""
    return len(_networks(nodes)) > 2 or all(_is_pod(facts) for facts in nodes.values())


def has_own_gateways(nodes: Mapping[str, Facts]) -> bool:
    """Whether gateways without a majority belong to networks that differ by design."""
    return len(_networks(nodes)) != 1 and is_routed(nodes)


def _networks(nodes: Mapping[str, Facts]) -> set[str]:
    return {value.text for facts in nodes.values() for value in hccl_subnet(facts).values.values()}


def _is_pod(facts: Facts) -> bool:
    """Whether it is a container with a network of its own, whose interface is eth0."""
    chosen = for_hccl(facts)
    return facts.machine.container.is_known and chosen is not None and chosen.name == "eth0"


def host_mtu(facts: Facts) -> NodeValues:
    """The MTU of the interface for HCCL, and of the others by name."""
    values = _chosen(facts, lambda item: str(item.mtu) if item.mtu else "")
    chosen = for_hccl(facts)
    rest = (item for item in outer(facts) if item.mtu and (chosen is None or item.name != chosen.name))
    others = {ValueKey(item.name): Value(str(item.mtu), line_of(facts, item)) for item in rest}
    return NodeValues({**values.values, **others}, values.unknown)


def _chosen(facts: Facts, show: Callable[[Interface], str]) -> NodeValues:
    if facts.network.interfaces.value is None:
        return one(facts.network.interfaces, lambda _: None, absent=None)
    item = for_hccl(facts)
    if item is None:
        return NodeValues(unknown={None: Evidence("/sys/class/net", "no interface that HCCL could take")})
    text = show(item)
    return NodeValues({ValueKey(): Value(text, line_of(facts, item))} if text else {})


def _addresses(item: Interface) -> tuple[str, ...]:
    """Without link-local ones and stand-ins."""
    inner = ("169.254.", "127.")
    return tuple(text for text in item.addresses if not text.startswith(inner) and not has_stand_in(text))


def _dotted(number: int) -> str:
    return ".".join(str(part) for part in number.to_bytes(4, "big"))


def default_gateway(facts: Facts) -> NodeValues:
    """The preferred default gateway."""
    defaults = [route for route in facts.network.routes.value or () if not route.mask and route.gateway]
    if not defaults:
        return one(facts.network.routes, lambda _: NONE, absent=None)
    best = min(defaults, key=lambda route: route.metric)
    text = _dotted(best.gateway)
    line = Evidence("/proc/net/route", f"default {text} {best.interface}")
    if has_stand_in(text):
        return NodeValues(hidden=frozenset({ValueKey().topic}))
    return NodeValues({ValueKey(): Value(text, line)})


def proxies(facts: Facts) -> NodeValues:
    """The proxies of the session by variable."""
    rows = facts.network.proxies.value or ()
    if facts.network.proxies.state is State.UNKNOWN:
        return one(facts.network.proxies, lambda _: None)
    return listed({row.variable.lower(): row.address for row in rows}, "environment", "{}={}")
