"""Whether Ray's head can have its ports on the node that is to run it. Start from `ray_head`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks.network.host import foreign_on_ray_ports
from npuenv.cluster.consistency.findings import finding, message
from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.cluster.consistency.identity import Met
    from npuenv.facts.collect import Facts

_GCS = 6379
_SERVER = "gcs_server"
_SOURCE = "Ray, ports configuration: all nodes join the head at its GCS port"


def ray_head(nodes: Mapping[str, Facts], _: Mapping[str, Met]) -> Finding:
    """Who holds the ports of Ray's head there. A holder without a name is a stranger where no head runs."""
    ((node, facts),) = nodes.items()
    listeners = facts.network.listeners
    if listeners.value is None:
        line = next(iter(listeners.evidence), Evidence("/proc/net/tcp", ""))
        return finding("ray-head", Status.UNKNOWN, message("blind", who=node), [(node, line)], source=_SOURCE)
    held = {item.port: item.owner for item in foreign_on_ray_ports(facts)}
    is_nameless = any(item.port == _GCS and not item.owner for item in listeners.value)
    if is_nameless and not _may_run_head(facts):
        held[_GCS] = ""
    if not held:
        return finding("ray-head", Status.OK, message("ray-head-free", node=node), source=_SOURCE)
    lines = [(node, Evidence("ss -H -ltnp", f"{port} {owner or '?'}")) for port, owner in sorted(held.items())]
    port, owner = min(held.items())
    says = message("ray-head-held" if owner else "ray-head-held-unnamed", node=node, port=port, owner=owner)
    # The dashboard and Ray's client look for other ports.
    status = Status.FAIL if port == _GCS else Status.WARN
    return finding("ray-head", status, says, lines, source=_SOURCE, fix="ray-head", node=node)


def _may_run_head(facts: Facts) -> bool:
    """Whether Ray's own server runs there, or could without being seen."""
    found = facts.machine.processes.value
    is_shut_in = facts.machine.container.is_known  # the processes of other containers are not shown
    return found is None or is_shut_in or not found.init or any(item.name == _SERVER for item in found.ours)
