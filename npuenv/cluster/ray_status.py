"""The status that Ray reports, compared with the nodes that were started. Pure.

Ray's list of nodes is the newest information; the text of `ray status` is updated every few seconds, and only it has
pending demands. Both can show a node for a minute after its death.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.cluster.inventory import fold
from npuenv.core.documents import parse_json
from npuenv.core.messages import Message
from npuenv.facts import ray as ray_status
from npuenv.facts.ray import ClusterStatus, Lack, StatusRefusal, StatusTrouble, unsatisfiable_demand
from npuenv.host import Ran

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from npuenv.cluster.node_programs import ProbeResult
    from npuenv.cluster.ray import Cluster, StartedNode
    from npuenv.facts.ray import Demand

_MARK = "RAY-NODES "
_LEFT = "RAY-LEFT "
_CARD = "NPU"


@dataclass(frozen=True, slots=True)
class RayNode:
    """One row of Ray's list of nodes, which keeps dead nodes."""

    address: str
    is_alive: bool
    total: Mapping[str, float]
    used: Mapping[str, float]
    why: str = ""  # the cause of death


@dataclass(frozen=True, slots=True)
class RayStatus:
    """Ray's status. `nodes` None: the list is unreadable; `table` a text: why the head gave no answer."""

    nodes: tuple[RayNode, ...] | None
    table: ClusterStatus | StatusTrouble | str
    left: tuple[Mapping[str, Any], ...] = ()  # actors and placement groups that hold cards after their program's end

    @property
    def alive(self) -> tuple[RayNode, ...]:
        """The living nodes."""
        return tuple(row for row in self.nodes or () if row.is_alive)

    def at(self, address: str) -> RayNode | None:
        """The row of a node, the living one if it has joined again; None without a row."""
        rows = [row for row in self.nodes or () if row.address == address and address]
        return max(rows, key=lambda row: row.is_alive, default=None)

    def living(self, address: str) -> RayNode | None:
        """The row of a node that is alive; None without one."""
        row = self.at(address)
        return row if row is not None and row.is_alive else None

    def resources(self) -> dict[str, tuple[float, float]]:
        """Name -> (used, total) in the whole cluster. Memory is in bytes."""
        if self.nodes is None:
            rows = self.table.resources if isinstance(self.table, ClusterStatus) else ()
            return {item.name: (item.used, item.total) for item in rows}
        names = sorted({name for row in self.alive for name in row.total if ":" not in name})
        used, total = ([row.used for row in self.alive], [row.total for row in self.alive])
        return {name: (_sum(used, name), _sum(total, name)) for name in names}

    def total(self, name: str) -> float | None:
        """The total of a resource; 0 if Ray has none of it, None if the answer is unreadable."""
        if self.nodes is None:
            return self.table.total(name) if isinstance(self.table, ClusterStatus) else None
        return self.resources().get(name, (0.0, 0.0))[1]


def _sum(rows: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(row.get(name, 0.0) for row in rows)


def read(result: ProbeResult, limit_s: float) -> RayStatus:
    """The status in the answer of `npuenv.cluster.ray.query_ray`."""
    if result.answer is None:
        return RayStatus(None, result.why)
    answer = result.answer
    nodes = answer.get("nodes")
    return RayStatus(_parse_nodes(nodes), _parse_table(answer.get("table"), limit_s), _parse_leftovers(nodes))


def is_complete(status: RayStatus, cluster: Cluster) -> bool:
    """Whether Ray has all nodes and cards that were started."""
    if status.nodes is None:
        has_nodes = isinstance(status.table, ClusterStatus) and (status.table.nodes or 0) >= len(cluster.started)
    else:
        has_nodes = all(not each.address or status.living(each.address) for each in cluster.started)
    return has_nodes and (status.total(_CARD) or 0.0) >= cluster.cards


def runs(result: ProbeResult, *, is_head: bool = False) -> bool:
    """Whether the raylet lives, without which nothing is scheduled there; of a head also what all others need."""
    needed = {"raylet", "gcs_server"} if is_head else {"raylet"}
    return result.answer is not None and needed <= set(result.answer["running"])


def serves(head: ProbeResult | None) -> bool:
    """Whether the head can answer a question about Ray's state."""
    if head is None or head.answer is None or "gcs_server" not in head.answer["running"]:
        return False
    return "gcs_server" not in (name for _, name in stopped_servers(head))


def stopped_servers(result: ProbeResult) -> list[tuple[int, str]]:
    """The servers of Ray there that a signal has stopped, by number and name."""
    return [(int(pid), str(name)) for pid, name in result.fields.get("stopped", ())]


def is_lost(started: StartedNode | None, status: RayStatus | None) -> bool:
    """Whether Ray has given up a node, which it does not take back, or does not know it."""
    if status is None or status.nodes is None or started is None or not started.address:
        return False
    row = status.at(started.address)
    return row is None or not row.is_alive


def foreign_nodes(status: RayStatus, cluster: Cluster) -> tuple[str, ...]:
    """The addresses of living nodes that npuenv did not start."""
    ours = {each.address for each in cluster.started}
    return () if "" in ours else tuple(sorted({row.address for row in status.alive} - ours))


def explain(status: RayStatus, cluster: Cluster, gone: Collection[str] = ()) -> list[Message]:
    """What is wrong, by Ray's status. `gone`: nodes whose Ray processes have ended."""
    found = _lost_nodes(status, cluster, gone) if status.nodes is not None else []
    if isinstance(status.table, str):
        return [Message("cluster.ray-status-other", {"line": status.table}), *found]
    if isinstance(status.table, StatusTrouble):
        return [Message(f"cluster.ray-status-{status.table.kind.value}", {"line": status.table.line}), *found]
    if status.nodes is None and status.table.nodes is not None and status.table.nodes < len(cluster.started):
        found.append(Message("cluster.ray-nodes", {"found": status.table.nodes, "expected": len(cluster.started)}))
    lacks = status.nodes is None and (status.table.nodes is None or status.total(_CARD) is None)
    if lacks or not status.table.has_all_demands:
        found.append(Message("cluster.ray-status-damaged"))
    never = (_why_unsatisfiable(demand, status, cluster) for demand in status.table.demands)
    return [*found, *_missing_cards(status, cluster), *filter(None, never)]


def waiting_demands(status: RayStatus, cluster: Cluster) -> list[Message]:
    """Demands that wait for others to end: a busy cluster is healthy."""
    demands = status.table.demands if isinstance(status.table, ClusterStatus) else ()
    return [
        Message("cluster.ray-waits", {"line": each.line})
        for each in demands
        if _why_unsatisfiable(each, status, cluster) is None
    ]


def leftovers(status: RayStatus, cluster: Cluster) -> list[Message]:
    """What holds cards after the end of its program (lifetime "detached"), and the command that ends it."""
    found = []
    for each in status.left:
        kind, name = each["kind"], each.get("name") or ""
        args = {"name": name or "-", "count": f"{each['total'][_CARD]:g}", "type": each.get("type") or "-"}
        args |= {"address": each.get("address") or "-", "pid": each.get("pid") or "-"}
        code = f"import ray; ray.init({_quoted(cluster.address)}); "
        if kind == "actor":
            code += f"ray.kill(ray.get_actor({_quoted(name)}, {_quoted(each.get('namespace'))}))"
        else:  # a lookup by name needs the namespace, which Ray does not list
            code += "from ray.util.placement_group import PlacementGroup, remove_placement_group as remove; "
            code += f"remove(PlacementGroup(ray.PlacementGroupID(bytes.fromhex({_quoted(each.get('id'))}))))"
        args["command"] = shlex.join(["python3", "-c", code])
        is_nameless = kind == "actor" and not name
        found.append(Message(f"cluster.ray-left-{kind}{'-unnamed' if is_nameless else ''}", args))
    return found


def _quoted(text: object) -> str:
    return json.dumps(str(text or ""))


def _lost_nodes(status: RayStatus, cluster: Cluster, gone: Collection[str]) -> list[Message]:
    """The nodes that Ray has lost or does not list, and dead ones that it still counts."""
    found, unmissed, counted = [], [], 0.0
    for each in cluster.started:
        row, args = status.at(each.address), {"name": each.node.name, "address": each.address or each.node.address}
        if row is not None and row.is_alive and each.node.name in gone:
            unmissed.append(each.node.name)
            counted += row.total.get(_CARD, 0.0)
        elif row is not None and not row.is_alive:
            found.append(Message("cluster.ray-lost", {**args, "why": row.why or "-"}))
        elif row is None and each.address:
            found.append(Message("cluster.ray-unlisted", args))
    if unmissed:
        found.append(Message("cluster.ray-unmissed", {"names": fold(unmissed), "count": f"{counted:g}"}))
    return found


def _missing_cards(status: RayStatus, cluster: Cluster) -> list[Message]:
    """Cards that Ray does not count, by node if there is a list of nodes."""
    total = status.total(_CARD)
    if total is None or total >= cluster.cards:
        return []
    if status.total("GPU") and not total:
        return [Message("cluster.ray-gpus")]
    if status.nodes is None:
        return [Message("cluster.ray-cards", {"found": f"{total:g}", "expected": cluster.cards})]
    found = []
    for each in cluster.started:
        row = status.living(each.address)
        if row is not None and row.total.get(_CARD, 0.0) < each.cards:
            args = {"name": each.node.name, "found": f"{row.total.get(_CARD, 0.0):g}", "expected": each.cards}
            found.append(Message("cluster.ray-cards-on", args))
    return found


def _why_unsatisfiable(demand: Demand, status: RayStatus, cluster: Cluster) -> Message | None:
    """Why a demand can never be met; None if it only waits for others to end."""
    count = status.table.nodes if isinstance(status.table, ClusterStatus) else None
    if status.nodes is not None:
        count = len(status.alive)
    found = unsatisfiable_demand(demand, status.total, _nodes_of(status, cluster), count)
    if found is None:
        return None
    args = {"line": demand.line, "name": found.name, "total": f"{found.total:g}", "most": f"{found.most:g}"}
    word = "" if found.lack is Lack.TOTAL else f"-{found.lack.value}"
    return Message(f"cluster.ray-never{word}", {**args, "bundles": demand.count, "nodes": found.nodes})


def _nodes_of(status: RayStatus, cluster: Cluster) -> list[Mapping[str, float]]:
    """The resources of each node; without Ray's list the cards at the start, if Ray counts as many; [] if unknown."""
    if status.nodes is not None:
        return [row.total for row in status.alive]
    is_known = cluster.cards == status.total(_CARD) and all(each.cards for each in cluster.started)
    return [{_CARD: float(each.cards)} for each in cluster.started] if is_known else []


def _parse_table(answer: Mapping[str, Any] | None, limit_s: float) -> ClusterStatus | StatusTrouble | str:
    """The text of `ray status`, parsed."""
    if answer is None:
        return StatusTrouble(StatusRefusal.TIMEOUT, "")
    ran = Ran(("ray", "status"), answer["code"], str(answer["out"]), str(answer["err"]), bool(answer["timed_out"]))
    fact = ray_status.read_status(ran, limit_s)
    return fact.value if fact.value is not None else fact.evidence[0].line


def _parse_nodes(answer: Mapping[str, Any] | None) -> tuple[RayNode, ...] | None:
    """Ray's list of nodes; None if it is missing or has an unknown format."""
    try:
        return tuple(_node(row) for row in _marked(answer, _MARK))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _parse_leftovers(answer: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], ...]:
    """Actors and groups that outlive their program; () also if Ray has no list of them."""
    try:
        rows = [row for row in _marked(answer, _LEFT) if float(row["total"][_CARD]) > 0]
        return tuple(row for row in rows if row["kind"] in ("actor", "group"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def _marked(answer: Mapping[str, Any] | None, mark: str) -> Any:
    """The JSON after a mark. Raises ValueError without the mark."""
    line = next((line for line in str((answer or {}).get("out", "")).splitlines() if line.startswith(mark)), None)
    if line is None:
        raise ValueError(mark)
    return parse_json(line[len(mark) :])


def _node(row: Mapping[str, Any]) -> RayNode:
    total = {str(name): float(value) for name, value in row["total"].items()}
    # A resource without anything left is missing in `free`.
    free = {str(name): float(value) for name, value in row["free"].items()} if row["free"] is not None else total
    used = {name: max(0.0, value - free.get(name, 0.0)) for name, value in total.items()}
    return RayNode(str(row["address"]), bool(row["is_alive"]), total, used, str(row["why"]))
