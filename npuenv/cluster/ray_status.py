"""What Ray reports about a cluster, and what that means for the nodes that were started. Pure.

Ray's list of nodes is the newest information; the text of `ray status` is made every few seconds, and only it names
pending demands. Both can show a node for a minute after its death.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.cluster.nodeset import fold
from npuenv.core.json_input import loads
from npuenv.core.messages import Message
from npuenv.facts.ray import status as ray_status
from npuenv.facts.ray.placement import Lack, unsatisfiable_demand
from npuenv.facts.ray.status import Refusal, Status, Trouble
from npuenv.host.base import Ran

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from npuenv.cluster.parallel_ssh import ProbeResult
    from npuenv.cluster.ray import Cluster, StartedNode
    from npuenv.facts.ray.status import Demand

_MARK = "RAY-NODES "
_LEFT = "RAY-LEFT "
_CARD = "NPU"


@dataclass(frozen=True, slots=True)
class RayNode:
    """One row of Ray's list of nodes. A node that has died stays in it."""

    address: str
    is_alive: bool
    total: Mapping[str, float]
    used: Mapping[str, float]
    why: str = ""  # it died


@dataclass(frozen=True, slots=True)
class RayStatus:
    """What Ray said. `nodes` None: its list could not be read; `table` a text: the head itself said nothing. `left` are
    the actors and placement groups that hold cards and whose program has ended.
    """

    nodes: tuple[RayNode, ...] | None
    table: Status | Trouble | str
    left: tuple[Mapping[str, Any], ...] = ()

    @property
    def alive(self) -> tuple[RayNode, ...]:
        """The nodes that Ray counts on."""
        return tuple(row for row in self.nodes or () if row.is_alive)

    def at(self, address: str) -> RayNode | None:
        """The row of a node: the living one where it has joined again; None where there is none."""
        rows = [row for row in self.nodes or () if row.address == address and address]
        return max(rows, key=lambda row: row.is_alive, default=None)

    def resources(self) -> dict[str, tuple[float, float]]:
        """Name -> how much of it is in use, and how much there is, in the whole cluster. Memory is in bytes."""
        if self.nodes is None:
            rows = self.table.resources if isinstance(self.table, Status) else ()
            return {item.name: (item.used, item.total) for item in rows}
        names = sorted({name for row in self.alive for name in row.total if ":" not in name})
        return {
            name: (
                sum(row.used.get(name, 0.0) for row in self.alive),
                sum(row.total.get(name, 0.0) for row in self.alive),
            )
            for name in names
        }

    def total(self, name: str) -> float | None:
        """How much there is of a resource; 0 where Ray has none of it, None where its answer cannot be read."""
        if self.nodes is None:
            return self.table.total(name) if isinstance(self.table, Status) else None
        return self.resources().get(name, (0.0, 0.0))[1]


def read(result: ProbeResult, limit_s: float) -> RayStatus:
    """What the head passed on of what Ray said there."""
    if result.answer is None:
        return RayStatus(None, result.why)
    answer = result.answer
    return RayStatus(
        _parse_nodes(answer.get("nodes")),
        _parse_table(answer.get("table"), limit_s),
        _parse_leftovers(answer.get("nodes")),
    )


def is_complete(status: RayStatus, cluster: Cluster) -> bool:
    """Whether Ray counts all that was started."""
    if status.nodes is None:
        has_nodes = isinstance(status.table, Status) and (status.table.nodes or 0) >= len(cluster.started)
    else:
        has_nodes = all(not each.address or _is_alive(status, each) for each in cluster.started)
    return has_nodes and (status.total(_CARD) or 0.0) >= cluster.cards


def foreign_nodes(status: RayStatus, cluster: Cluster) -> tuple[str, ...]:
    """The addresses of living nodes that were not started from here."""
    ours = {each.address for each in cluster.started}
    return () if "" in ours else tuple(sorted({row.address for row in status.alive} - ours))


def explain(status: RayStatus, cluster: Cluster, gone: Collection[str] = ()) -> list[Message]:
    """What is wrong with what Ray says, and what it means. `gone` are the nodes whose own processes are known to be."""
    found = _lost_nodes(status, cluster, gone) if status.nodes is not None else []
    if isinstance(status.table, str):
        return [Message("cluster.ray-status-other", {"line": status.table}), *found]
    if isinstance(status.table, Trouble):
        return [Message(f"cluster.ray-status-{status.table.kind.value}", {"line": status.table.line}), *found]
    if status.nodes is None and status.table.nodes is not None and status.table.nodes < len(cluster.started):
        found.append(Message("cluster.ray-nodes", {"found": status.table.nodes, "expected": len(cluster.started)}))
    lacks = status.nodes is None and (status.table.nodes is None or status.total(_CARD) is None)
    if lacks or not status.table.has_all_demands:
        found.append(Message("cluster.ray-status-damaged"))
    return [*found, *_missing_cards(status, cluster), *_unsatisfiable(status.table, status, cluster)]


def waiting_demands(status: RayStatus, cluster: Cluster) -> list[Message]:
    """What waits for others to end, and for nothing else: a busy cluster is well."""
    demands = status.table.demands if isinstance(status.table, Status) else ()
    return [
        Message("cluster.ray-waits", {"line": each.line})
        for each in demands
        if _why_unsatisfiable(each, status, cluster) is None
    ]


def leftovers(status: RayStatus, cluster: Cluster) -> list[Message]:
    """What still holds cards though its program has ended, and what ends it. A lifetime of "detached" does that."""
    found = []
    for each in status.left:
        kind, name = each["kind"], each.get("name") or ""
        args = {"name": name or "-", "count": f"{each['total'][_CARD]:g}", "type": each.get("type") or "-"}
        args |= {"address": each.get("address") or "-", "pid": each.get("pid") or "-"}
        code = f"import ray; ray.init({_quoted(cluster.address)}); "
        if kind == "actor":
            code += f"ray.kill(ray.get_actor({_quoted(name)}, {_quoted(each.get('namespace'))}))"
        else:  # by its name it is found in its own namespace only, which Ray does not tell
            code += "from ray.util.placement_group import PlacementGroup, remove_placement_group as remove; "
            code += f"remove(PlacementGroup(ray.PlacementGroupID(bytes.fromhex({_quoted(each.get('id'))}))))"
        args["command"] = shlex.join(["python3", "-c", code])
        is_nameless = kind == "actor" and not name
        found.append(Message(f"cluster.ray-left-{kind}{'-unnamed' if is_nameless else ''}", args))
    return found


def _quoted(text: object) -> str:
    return json.dumps(str(text or ""))


def _lost_nodes(status: RayStatus, cluster: Cluster, gone: Collection[str]) -> list[Message]:
    """The nodes that Ray has lost, or never had; and those that it has not missed yet."""
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


def _is_alive(status: RayStatus, each: StartedNode) -> bool:
    row = status.at(each.address)
    return row is not None and row.is_alive


def _missing_cards(status: RayStatus, cluster: Cluster) -> list[Message]:
    """Cards that Ray ought to count and does not: on which nodes, where it says that."""
    total = status.total(_CARD)
    if total is None or total >= cluster.cards:
        return []
    if status.total("GPU") and not total:
        return [Message("cluster.ray-gpus")]
    if status.nodes is None:
        return [Message("cluster.ray-cards", {"found": f"{total:g}", "expected": cluster.cards})]
    found = []
    for each in cluster.started:
        row = status.at(each.address)
        if row is not None and row.is_alive and row.total.get(_CARD, 0.0) < each.cards:
            args = {"name": each.node.name, "found": f"{row.total.get(_CARD, 0.0):g}", "expected": each.cards}
            found.append(Message("cluster.ray-cards-on", args))
    return found


def _unsatisfiable(table: Status, status: RayStatus, cluster: Cluster) -> list[Message]:
    """What waits and would wait for ever, however free all nodes were."""
    return [why for demand in table.demands if (why := _why_unsatisfiable(demand, status, cluster)) is not None]


def _why_unsatisfiable(demand: Demand, status: RayStatus, cluster: Cluster) -> Message | None:
    """Why a demand waits for ever; None where it only waits for others to end."""
    count = (
        len(status.alive)
        if status.nodes is not None
        else status.table.nodes
        if isinstance(status.table, Status)
        else None
    )
    found = unsatisfiable_demand(demand, status.total, _nodes_of(status, cluster), count)
    if found is None:
        return None
    args = {"line": demand.line, "name": found.name, "total": f"{found.total:g}", "most": f"{found.most:g}"}
    word = "" if found.lack is Lack.TOTAL else f"-{found.lack.value}"
    return Message(f"cluster.ray-never{word}", {**args, "bundles": demand.count, "nodes": found.nodes})


def _nodes_of(status: RayStatus, cluster: Cluster) -> list[Mapping[str, float]]:
    """What there is on each node; without Ray's list of nodes only the cards that each was started with, if it counts
    as many; [] where nobody knows.
    """
    if status.nodes is not None:
        return [row.total for row in status.alive]
    is_told = cluster.cards == status.total(_CARD) and all(each.cards for each in cluster.started)
    return [{_CARD: float(each.cards)} for each in cluster.started] if is_told else []


def _parse_table(answer: Mapping[str, Any] | None, limit_s: float) -> Status | Trouble | str:
    """`ray status` as it is read everywhere else."""
    if answer is None:
        return Trouble(Refusal.TIMEOUT, "")
    ran = Ran(("ray", "status"), answer["code"], str(answer["out"]), str(answer["err"]), bool(answer["timed_out"]))
    fact = ray_status.read(ran, limit_s)
    return fact.value if fact.value is not None else fact.evidence[0].line


def _parse_nodes(answer: Mapping[str, Any] | None) -> tuple[RayNode, ...] | None:
    """Ray's list of nodes; None where it was not given, or in another form than is known."""
    try:
        return tuple(_node(row) for row in _marked(answer, _MARK))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _parse_leftovers(answer: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], ...]:
    """What outlives its program; () also where Ray does not tell."""
    try:
        rows = [row for row in _marked(answer, _LEFT) if float(row["total"][_CARD]) > 0]
        return tuple(row for row in rows if row["kind"] in ("actor", "group"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def _marked(answer: Mapping[str, Any] | None, mark: str) -> Any:
    """What stands behind a mark. Raises ValueError where there is none."""
    line = next((line for line in str((answer or {}).get("out", "")).splitlines() if line.startswith(mark)), None)
    if line is None:
        raise ValueError(mark)
    return loads(line[len(mark) :])


def _node(row: Mapping[str, Any]) -> RayNode:
    total = {str(name): float(value) for name, value in row["total"].items()}
    # A resource of which nothing is left is not among what is free.
    free = {str(name): float(value) for name, value in row["free"].items()} if row["free"] is not None else total
    used = {name: max(0.0, value - free.get(name, 0.0)) for name, value in total.items()}
    return RayNode(str(row["address"]), bool(row["is_alive"]), total, used, str(row["why"]))
