"""What Ray says of a cluster, and what that means for what was started. Pure; start from `read` and `explained`.

Its list of nodes is the newest that there is; the text of `ray status` is made every few seconds, and only it names
what waits. Both can show a node for a minute after its death.
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
from npuenv.facts.ray.placement import Lack, never
from npuenv.facts.ray.status import Refusal, Status, Trouble
from npuenv.host.base import Ran

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from npuenv.cluster.probing.transport import Heard
    from npuenv.cluster.ray_state import Cluster, Started
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
class Seen:
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


def read(heard: Heard, limit_s: float) -> Seen:
    """What the head passed on of what Ray said there."""
    if heard.told is None:
        return Seen(None, heard.why)
    told = heard.told
    return Seen(_nodes(told.get("nodes")), _table(told.get("table"), limit_s), _left(told.get("nodes")))


def is_whole(seen: Seen, cluster: Cluster) -> bool:
    """Whether Ray counts all that was started."""
    if seen.nodes is None:
        has_nodes = isinstance(seen.table, Status) and (seen.table.nodes or 0) >= len(cluster.started)
    else:
        has_nodes = all(not each.address or _lives(seen, each) for each in cluster.started)
    return has_nodes and (seen.total(_CARD) or 0.0) >= cluster.cards


def strangers(seen: Seen, cluster: Cluster) -> tuple[str, ...]:
    """The addresses of living nodes that were not started from here."""
    ours = {each.address for each in cluster.started}
    return () if "" in ours else tuple(sorted({row.address for row in seen.alive} - ours))


def explained(seen: Seen, cluster: Cluster, gone: Collection[str] = ()) -> list[Message]:
    """What is wrong with what Ray says, and what it means. `gone` are the nodes whose own processes are known to be."""
    found = _lost(seen, cluster, gone) if seen.nodes is not None else []
    if isinstance(seen.table, str):
        return [Message("cluster.ray-status-other", {"line": seen.table}), *found]
    if isinstance(seen.table, Trouble):
        return [Message(f"cluster.ray-status-{seen.table.kind.value}", {"line": seen.table.line}), *found]
    if seen.nodes is None and seen.table.nodes is not None and seen.table.nodes < len(cluster.started):
        found.append(Message("cluster.ray-nodes", {"found": seen.table.nodes, "expected": len(cluster.started)}))
    lacks = seen.nodes is None and (seen.table.nodes is None or seen.total(_CARD) is None)
    if lacks or not seen.table.has_all_demands:
        found.append(Message("cluster.ray-status-damaged"))
    return [*found, *_short(seen, cluster), *_never(seen.table, seen, cluster)]


def waiting(seen: Seen, cluster: Cluster) -> list[Message]:
    """What waits for others to end, and for nothing else: a busy cluster is well."""
    demands = seen.table.demands if isinstance(seen.table, Status) else ()
    return [Message("cluster.ray-waits", {"line": each.line}) for each in demands if _why(each, seen, cluster) is None]


def left_behind(seen: Seen, cluster: Cluster) -> list[Message]:
    """What still holds cards though its program has ended, and what ends it. A lifetime of "detached" does that."""
    found = []
    for each in seen.left:
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


def _lost(seen: Seen, cluster: Cluster, gone: Collection[str]) -> list[Message]:
    """The nodes that Ray has lost, or never had; and those that it has not missed yet."""
    found, unmissed, counted = [], [], 0.0
    for each in cluster.started:
        row, args = seen.at(each.address), {"name": each.node.name, "address": each.address or each.node.address}
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


def _lives(seen: Seen, each: Started) -> bool:
    row = seen.at(each.address)
    return row is not None and row.is_alive


def _short(seen: Seen, cluster: Cluster) -> list[Message]:
    """Cards that Ray ought to count and does not: on which nodes, where it says that."""
    total = seen.total(_CARD)
    if total is None or total >= cluster.cards:
        return []
    if seen.total("GPU") and not total:
        return [Message("cluster.ray-gpus")]
    if seen.nodes is None:
        return [Message("cluster.ray-cards", {"found": f"{total:g}", "expected": cluster.cards})]
    found = []
    for each in cluster.started:
        row = seen.at(each.address)
        if row is not None and row.is_alive and row.total.get(_CARD, 0.0) < each.cards:
            args = {"name": each.node.name, "found": f"{row.total.get(_CARD, 0.0):g}", "expected": each.cards}
            found.append(Message("cluster.ray-cards-on", args))
    return found


def _never(table: Status, seen: Seen, cluster: Cluster) -> list[Message]:
    """What waits and would wait for ever, however free all nodes were."""
    return [why for demand in table.demands if (why := _why(demand, seen, cluster)) is not None]


def _why(demand: Demand, seen: Seen, cluster: Cluster) -> Message | None:
    """Why a demand waits for ever; None where it only waits for others to end."""
    count = len(seen.alive) if seen.nodes is not None else seen.table.nodes if isinstance(seen.table, Status) else None
    found = never(demand, seen.total, _nodes_of(seen, cluster), count)
    if found is None:
        return None
    args = {"line": demand.line, "name": found.name, "total": f"{found.total:g}", "most": f"{found.most:g}"}
    word = "" if found.lack is Lack.TOTAL else f"-{found.lack.value}"
    return Message(f"cluster.ray-never{word}", {**args, "bundles": demand.count, "nodes": found.nodes})


def _nodes_of(seen: Seen, cluster: Cluster) -> list[Mapping[str, float]]:
    """What there is on each node; without Ray's list of nodes only the cards that each was started with, if it counts
    as many; [] where nobody knows.
    """
    if seen.nodes is not None:
        return [row.total for row in seen.alive]
    is_told = cluster.cards == seen.total(_CARD) and all(each.cards for each in cluster.started)
    return [{_CARD: float(each.cards)} for each in cluster.started] if is_told else []


def _table(told: Mapping[str, Any] | None, limit_s: float) -> Status | Trouble | str:
    """`ray status` as it is read everywhere else."""
    if told is None:
        return Trouble(Refusal.TIMEOUT, "")
    ran = Ran(("ray", "status"), told["code"], str(told["out"]), str(told["err"]), bool(told["timed_out"]))
    fact = ray_status.read(ran, limit_s)
    return fact.value if fact.value is not None else fact.evidence[0].line


def _nodes(told: Mapping[str, Any] | None) -> tuple[RayNode, ...] | None:
    """Ray's list of nodes; None where it was not given, or in another form than is known."""
    try:
        return tuple(_node(row) for row in _marked(told, _MARK))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _left(told: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], ...]:
    """What outlives its program; () also where Ray does not tell."""
    try:
        rows = [row for row in _marked(told, _LEFT) if float(row["total"][_CARD]) > 0]
        return tuple(row for row in rows if row["kind"] in ("actor", "group"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def _marked(told: Mapping[str, Any] | None, mark: str) -> Any:
    """What stands behind a mark. Raises ValueError where there is none."""
    line = next((line for line in str((told or {}).get("out", "")).splitlines() if line.startswith(mark)), None)
    if line is None:
        raise ValueError(mark)
    return loads(line[len(mark) :])


def _node(row: Mapping[str, Any]) -> RayNode:
    total = {str(name): float(value) for name, value in row["total"].items()}
    # A resource of which nothing is left is not among what is free.
    free = {str(name): float(value) for name, value in row["free"].items()} if row["free"] is not None else total
    used = {name: max(0.0, value - free.get(name, 0.0)) for name, value in total.items()}
    return RayNode(str(row["address"]), bool(row["is_alive"]), total, used, str(row["why"]))
