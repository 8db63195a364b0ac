"""Checks of the host's own network as a launch uses it: names, ports, proxies, firewall, clock.

What matters only between nodes is checked if the session's variables name several; it is skipped for a single node.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import Check, card_check, fail, fix_for, nodes_check, ok, skip, unknown, warn
from npuenv.checks.network import interfaces
from npuenv.checks.network.interfaces import variable
from npuenv.core.fact import Evidence, State
from npuenv.facts.network import host_of, is_loopback
from npuenv.facts.network import interfaces as listening_ports
from npuenv.facts.network.interfaces import number_of, way_to

if TYPE_CHECKING:
    from npuenv.checks.base import CheckResult, Context
    from npuenv.facts.collect import Facts
    from npuenv.facts.network.interfaces import Listener

_NODES = "alibaba/ROLL Ascend guide, several nodes"
_RAY_PORTS = {6379: "GCS", 8265: "dashboard", 10001: "client"}
_RAY_OWNERS = ("ray", "gcs_server", "raylet", "python", "dashboard")
_GCS_PORT, _GCS_OWNERS = 6379, ("gcs_server",)  # gcs_server is a program of its own; the others are Python


def _hostname(context: Context) -> CheckResult:
    """Gloo and Ray resolve the host's own name to an address that other nodes must be able to reach."""
    found = context.facts.network.hostname
    if found.value is None:
        return unknown("network.hostname-unread", *found.evidence)
    name = found.value
    addresses = name.resolved if name.resolved is not None else name.in_hosts
    fix = fix_for("network.hostname", needs_root=True)
    if addresses and all(is_loopback(address) for address in addresses):
        return warn("network.hostname-loopback", *found.evidence, fix=fix, name=name.name, address=addresses[0])
    if name.resolved == ():
        return warn("network.hostname-unknown", *found.evidence, fix=fix, name=name.name)
    own = context.own_addresses
    if addresses and own and not own & set(addresses):
        return warn("network.hostname-foreign", *found.evidence, fix=fix, name=name.name, address=addresses[0])
    if not addresses:
        return unknown("network.hostname-unread", *found.evidence)
    return ok("network.hostname-ok", name=name.name, address=addresses[0])


def _master(context: Context) -> CheckResult:
    """MASTER_ADDR: it resolves, the head names itself, and other nodes do not name themselves."""
    network = context.facts.network
    master = network.master.value
    if master is None:
        return skip("network.master-unset")
    line = variable(context, "MASTER_ADDR")
    fix = "network.master"
    if not master.addresses:
        return fail("network.master-nowhere", *network.master.evidence, fix=fix, name=master.name)
    if not context.spans_nodes:
        return ok("network.master-ok", line, name=master.name)
    if all(map(is_loopback, master.addresses)):
        if network.hostname.value is not None and network.hostname.value.name == master.name:
            return skip("network.because-hostname")
        return fail("network.master-loopback", *network.master.evidence, fix=fix, name=master.name)
    own = context.own_addresses
    rank = _node_rank(context)
    is_own = bool(own & set(master.addresses))
    if own and rank == 0 and not is_own:
        return fail("network.master-not-here", line, *network.interfaces.evidence, fix=fix, name=master.name)
    if own and rank and is_own:
        return fail("network.master-is-here", line, *network.interfaces.evidence, fix=fix, name=master.name, rank=rank)
    table, four = network.routes, [address for address in master.addresses if number_of(address)]
    if four and not is_own and table.value and not any(way_to(table.value, address) for address in four):
        return fail("network.master-no-way", line, *table.evidence, fix="network.route", name=master.name)
    return ok("network.master-ok", line, name=master.name)


def _node_rank(context: Context) -> int | None:
    """The number of this node; RANK counts if LOCAL_RANK does not mark it as that of a process."""
    text = context.setting("NODE_RANK") or ("" if context.setting("LOCAL_RANK") else context.setting("RANK"))
    return int(text) if re.fullmatch(r"[0-9]{1,5}", text) else None


def _master_port(context: Context) -> CheckResult:
    network = context.facts.network
    text = context.setting("MASTER_PORT")
    if not text:
        return skip("network.port-unset")
    line = variable(context, "MASTER_PORT")
    fix = fix_for("network.master-port", ("export", "MASTER_PORT=29500"))
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        return fail("network.port-unreadable", line, fix=fix, value=text)
    port = int(text)
    if _is_here(context):
        taken = [item for item in network.listeners.value or () if item.port == port]
        is_rays = port in _RAY_PORTS and not taken[0].owner if taken else False
        if taken and not is_rays and not _belongs_to_ray(taken[0].owner):
            owner = taken[0].owner or "?"
            return warn("network.port-taken", line, *network.listeners.evidence, fix=fix, port=port, owner=owner)
        kernel = network.port_range
        if kernel.value is not None and kernel.value.gives_out(port):
            return warn("network.port-given-out", line, *kernel.evidence, fix=fix, port=port)
    return ok("network.port-ok", line, port=port)


def _is_here(context: Context) -> bool:
    """Whether MASTER_ADDR is, or may be, this host: only there the port is in use."""
    master = context.facts.network.master.value
    own = context.own_addresses
    return master is None or not own or any(address in own or is_loopback(address) for address in master.addresses)


def _hccl_ports(context: Context) -> CheckResult:
    """The host ports of HCCL. A running job uses them too, which is not an error."""
    network = context.facts.network
    if context.setting(listening_ports.RANGE):
        return skip("network.hccl-ports-other")
    text = context.setting(listening_ports.BASE)
    is_base = re.fullmatch(r"[0-9]{1,5}", text) and int(text) in listening_ports.BASES
    if text and not is_base:
        return skip("network.hccl-ports-range")  # session.hccl reports it
    if network.listeners.value is None:
        if text:
            return unknown("network.ports-unlisted", *network.listeners.evidence)
        return skip("network.ports-unlisted")
    base = int(text) if text else listening_ports.FIRST
    last = listening_ports.from_base(base)[-1]
    taken = [item for item in network.listeners.value if base <= item.port <= last]
    table = context.facts.npu.smi.value
    if taken and not (table and table.processes):
        lines = tuple(Evidence("/proc/net/tcp", f"{item.address}:{item.port} {item.owner}".strip()) for item in taken)
        fix = fix_for("network.hccl-ports", ("export", f"{listening_ports.BASE}={_free_base(context)}"))
        ports, owner = tuple(item.port for item in taken), taken[0].owner or "?"
        return warn("network.hccl-ports-taken", *lines, fix=fix, ports=ports, owner=owner, first=base, last=last)
    kernel = network.port_range
    if text and kernel.value is not None and any(kernel.value.gives_out(port) for port in range(base, last + 1)):
        reserve = f"net.ipv4.ip_local_reserved_ports={base}-{last}"
        fix = fix_for("network.hccl-ports-reserve", ("sysctl", "-w", reserve), needs_root=True)
        lines = (variable(context, listening_ports.BASE), *kernel.evidence)
        return warn("network.hccl-ports-given-out", *lines, fix=fix, first=base, last=last)
    return ok("network.hccl-ports-ok", first=base, last=last)


def _free_base(context: Context) -> int:
    """A base port below the kernel's ephemeral range, with free ports from there on."""
    ports = {item.port for item in context.facts.network.listeners.value or ()}
    bases = range(23456, 32000, listening_ports.COUNT)
    return next((base for base in bases if ports.isdisjoint(range(base, base + listening_ports.COUNT))), bases[0])


def _ray_ports(context: Context) -> CheckResult:
    """The fixed ports of a Ray head, used by another program."""
    found, foreign = context.facts.network.listeners, foreign_on_ray_ports(context.facts)
    if found.value is None:
        return unknown("network.ports-unlisted", *found.evidence)
    if foreign and _is_here(context):
        item, lines = foreign[0], (Evidence("ss -H -ltnp", f"{i.address}:{i.port} {i.owner}") for i in foreign)
        says = {"port": item.port, "owner": item.owner, "role": _RAY_PORTS[item.port]}
        return warn("network.ray-port-taken", *lines, fix=fix_for("network.ray-ports", port=item.port), **says)
    return ok("network.ray-ports-ok")


def foreign_on_ray_ports(facts: Facts) -> list[Listener]:
    """Processes that use the fixed ports of a Ray head and are known not to be Ray."""
    found = (item for item in facts.network.listeners.value or () if item.port in _RAY_PORTS and item.owner)
    return [item for item in found if not _belongs_to_ray(item.owner, item.port)]


def _belongs_to_ray(owner: str, port: int = 0) -> bool:
    return owner.startswith(_GCS_OWNERS if port == _GCS_PORT else _RAY_OWNERS)


def _no_proxy(context: Context) -> CheckResult:
    """The nodes' addresses must be excluded from the proxy."""
    environment = context.environment
    proxies = context.facts.network.proxies.value
    if not proxies:
        return skip("network.no-proxy-none")
    if not context.spans_nodes:
        return skip("network.one-node")
    excepted = f"{environment.get('no_proxy', '')},{environment.get('NO_PROXY', '')}"
    names = [environment.get(name, "").strip() for name in ("MASTER_ADDR", "HCCL_IF_IP")]
    names.append(host_of(environment.get("RAY_ADDRESS", "")))
    open_ones = tuple(dict.fromkeys(name for name in names if name and not is_excepted(name, excepted)))
    if open_ones:
        lines = [Evidence("environment", f"{proxy.variable}={proxy.address}") for proxy in proxies]
        excluded = environment.get("no_proxy", environment.get("NO_PROXY", ""))
        lines.append(Evidence("environment", f"no_proxy={excluded}"))
        wanted = [*(part for part in excepted.split(",") if part.strip()), *open_ones, "localhost,127.0.0.1"]
        fix = fix_for("network.no-proxy", ("export", f"no_proxy={','.join(wanted)}"))
        return warn("network.no-proxy-hole", *lines, fix=fix, names=open_ones)
    return ok("network.no-proxy-ok")


def is_excepted(name: str, excepted: str) -> bool:
    """Whether a no_proxy list covers a host: `*`, names, domains, addresses and subnets, as in curl."""
    import ipaddress

    for part in (item.strip().lower() for item in excepted.split(",")):
        if not part:
            continue
        if part == "*" or part == name.lower() or name.lower().endswith(f".{part.lstrip('.')}"):
            return True
        if part.endswith(".*") and name.startswith(part[:-1]):
            return True
        try:
            if "/" in part and ipaddress.ip_address(name) in ipaddress.ip_network(part, strict=False):
                return True
        except ValueError:
            continue  # a name, or a part that is not a subnet
    return False


def _firewall(context: Context) -> CheckResult:
    if context.in_container:
        return skip("network.firewall-host")
    found = context.facts.network.firewall
    if found.value is not None:
        fix = fix_for("network.firewall", is_dangerous=True, needs_root=True)
        return warn("network.firewall-on", *found.evidence, fix=fix, name=found.value.name)
    if found.state is State.UNKNOWN:
        return unknown("network.firewall-unread", *found.evidence)
    return ok("network.firewall-off", *found.evidence)


def _clock(context: Context) -> CheckResult:
    if context.in_container:
        return skip("network.clock-host")
    found = context.facts.network.clock
    if found.value is None:
        nothing = found.state is State.ABSENT
        return skip("network.clock-nothing") if nothing else unknown("network.clock-unread", *found.evidence)
    if not found.value.is_synchronised:
        return warn("network.clock-alone", *found.evidence, fix=fix_for("network.clock", needs_root=True))
    return ok("network.clock-ok", *found.evidence)


CHECKS = (
    *interfaces.CHECKS,
    nodes_check("network.hostname", (), "Ray and gloo: address of the own name; " + _NODES, _hostname),
    Check("network.master", ("network.master",), _NODES, _master),
    Check("network.master-port", (), _NODES, _master_port),
    card_check("network.hccl-ports", (), "hicann/hccl user guide, HCCL_IF_BASE_PORT; EI0019, EJ0003", _hccl_ports),
    nodes_check("network.ray-ports", (), _NODES + "; Ray ports", _ray_ports),
    Check("network.no-proxy", (), _NODES, _no_proxy),
    nodes_check("network.firewall", (), _NODES + ", trouble list", _firewall),
    nodes_check("network.clock", (), "hicann/hccl fault diagnosis: the first error in time", _clock),
)
