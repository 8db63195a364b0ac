"""Ray on the nodes of an inventory: started node by node, queried, stopped, and the record of what was started.

Only what was started and recorded (one file for each inventory) is ever stopped. A Ray that already runs is left alone.
The scripts that start a node are those of `npuenv.render.variables`.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from npuenv.cluster.inventory import NO_JUMP, Node, grouped
from npuenv.cluster.inventory import read as read_inventory
from npuenv.cluster.node_programs import ProbeResult, run_program
from npuenv.core.documents import load_json
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.host.writing import cannot_save, write_whole
from npuenv.install.environments import data_folder
from npuenv.preflight.memory.types import Cards
from npuenv.render.variables import RAY_FILES, render_ray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npuenv.cluster.inventory import Inventory
    from npuenv.cluster.parallel_ssh import Transport
    from npuenv.resolve.types import Stack


SCHEMA = "npuenv.ray-cluster/1"
_SSH_PORT = 22


@dataclass(frozen=True, slots=True)
class StartedNode:
    """Ray on one node as it was started, with what identifies its processes."""

    node: Node
    boot: str = ""  # the boot id; "": the result of the start is unknown
    session: int = 0  # 0: as above
    processes: tuple[tuple[int, int, str], ...] = ()  # number, time of start, name
    cards: int = 0
    mark: str = ""  # in the environment of its processes
    address: str = ""  # of the node in Ray; "": unknown


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster that npuenv started."""

    address: str  # host:port of the head
    ray: str  # the program, as requested
    started: tuple[StartedNode, ...] = ()
    head: str = ""  # the name of the node
    source: str = ""  # the inventory

    @property
    def cards(self) -> int:
        """The number of NPUs that Ray should count."""
        return sum(each.cards for each in self.started)

    @property
    def head_node(self) -> Node | None:
        """The head; None if it was stopped, and others could not be."""
        return next((each.node for each in self.started if each.node.name == self.head), None)

    def with_started(self, more: StartedNode) -> Cluster:
        """The cluster with one node added or replaced."""
        others = self.without(more.node.name)
        return replace(others, started=(*others.started, more))

    def without(self, *names: str) -> Cluster:
        """The cluster without some nodes."""
        return replace(self, started=tuple(each for each in self.started if each.node.name not in names))


def state_path(inventory: Inventory | str, environ: Mapping[str, str]) -> Path:
    """The path of the record for an inventory, which may come from stdin."""
    if isinstance(inventory, str):
        name = os.path.realpath(inventory)
    elif inventory.source != "-":
        name = os.path.realpath(inventory.source)
    else:
        name = "-" + "".join(f"\n{node}" for node in inventory.nodes)
    return state_folder(environ) / f"{hashlib.sha256(name.encode()).hexdigest()[:12]}.json"


def state_folder(environ: Mapping[str, str]) -> Path:
    """The folder of all records."""
    return Path(data_folder(environ), "clusters")


def known_cluster(hosts: str | None) -> tuple[Cluster | None, Path, Inventory | None]:
    """The cluster that was started (None: none was), its record, and the inventory, which may be gone.

    Without an inventory it is the only cluster that there is.
    """
    if hosts is None:
        return _only_one()
    try:
        inventory = read_inventory(hosts)
    except BadInput:
        path = state_path(hosts, os.environ)
        cluster = load(path)
        if cluster is None:
            raise
        return cluster, path, None
    path = state_path(inventory, os.environ)
    return load(path), path, inventory


def _only_one() -> tuple[Cluster, Path, None]:
    paths = sorted(state_folder(os.environ).glob("*.json"))
    found = [(cluster, path) for path in paths if (cluster := load(path)) is not None]
    if not found:
        raise BadInput(Message("cluster.ray-none-at-all"), Message("cluster.ray-none-hint"))
    if len(found) > 1:
        sources = tuple(cluster.source or cluster.address for cluster, _ in found)
        args = {"count": len(found), "sources": sources}
        raise BadInput(Message("cluster.ray-several", {"count": len(found)}), Message("cluster.ray-several-hint", args))
    return found[0][0], found[0][1], None


def clusters_sharing(
    nodes: Sequence[Node], environ: Mapping[str, str], own: Path
) -> Iterator[tuple[Cluster, tuple[str, ...]]]:
    """The clusters of other inventories on the same nodes, with the names of these nodes in this inventory."""
    for path in sorted(state_folder(environ).glob("*.json")):
        cluster = load(path) if path != own else None
        if cluster is not None:
            theirs = {_endpoint(each.node) for each in cluster.started}
            common = tuple(node.name for node in nodes if _endpoint(node) in theirs)
            if common:
                yield cluster, common


def _endpoint(node: Node) -> tuple[str, int, str]:
    """What identifies a machine in two inventories; a private address needs its jump host."""
    return node.address, node.port or _SSH_PORT, (node.jump or NO_JUMP)


def save(cluster: Cluster, path: Path) -> None:
    """Writes the record. Raises BadInput if it cannot be written."""
    document: dict[str, Any] = {"schema": SCHEMA, "address": cluster.address, "ray": cluster.ray}
    document |= {"head": cluster.head, "source": cluster.source, "started": [asdict(each) for each in cluster.started]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(str(path), json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise cannot_save(path, error) from error


def load(path: Path) -> Cluster | None:
    """The recorded cluster; None without a record. Raises BadInput for an invalid one."""
    try:
        document = load_json(path)
        if document["schema"] != SCHEMA:
            raise ValueError(document["schema"])
        started = tuple(_started(row) for row in document["started"])
        head = str(document.get("head") or (started[0].node.name if started else ""))
        source = str(document.get("source") or "")
        return Cluster(str(document["address"]), str(document["ray"]), started, head, source)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        args = {"path": str(path)}
        raise BadInput(Message("cluster.bad-state", args), Message("cluster.bad-state-hint", args)) from error


def _started(row: Mapping[str, Any]) -> StartedNode:
    rows = tuple((int(pid), int(began), str(name)) for pid, began, name in row["processes"])
    more = {key: str(row.get(key, "")) for key in ("mark", "address")}
    return StartedNode(Node(**row["node"]), str(row["boot"]), int(row["session"]), rows, int(row["cards"]), **more)


_PROGRAM = "ray_node"
_AROUND_S = 30.0  # beside what is asked for: connecting, and ending what hangs
_AUTH = "RAY_AUTH_MODE"


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of one node before a start."""

    node: Node
    why_not: str = ""  # why its state is unknown; "": it is known
    ray: str = ""  # the program; "": there is none
    version: str = ""
    python: str = ""
    cards: int = 0  # that Ray would detect
    running: tuple[str, ...] = ()  # servers of a running Ray
    joined: tuple[str, ...] = ()  # the addresses of its head
    login: str = ""  # its own address of the login; "": unknown
    is_own: bool = False  # the inventory's address is one of its own
    boot: str = ""  # the boot id; "": unknown
    network: str = ""  # the network namespace; "": unknown


@dataclass(frozen=True, slots=True)
class StartPlan:
    """What is started. `port` and `dashboard_port` are the head's."""

    nodes: tuple[Node, ...]  # the head first
    ray: str = ""  # the program or its environment's folder on the nodes; "": from PATH
    port: int = 6379
    dashboard_port: int = 8265
    framework: str = "verl"
    stack: Stack | None = None
    limit_s: float = 120.0  # for each node
    address: str = ""  # of the head for the nodes; "": the inventory's


@dataclass(frozen=True, slots=True)
class StartFailure:
    """A node that did not start, with the end of the output."""

    node: Node
    said: str
    is_clean: bool = True  # certainly nothing was left running


@dataclass(frozen=True, slots=True)
class StartConflict:
    """A reason not to start anything, with the nodes."""

    says: Message
    nodes: tuple[str, ...]
    lines: tuple[tuple[str, Message | str], ...] = ()  # details: name, sentence


def survey(nodes: Sequence[Node], ray: str, transport: Transport) -> list[NodeState]:
    """The state of each node, in their order."""

    def request(node: Node) -> dict[str, Any]:
        return {"do": "look", "ray": ray, "address": node.address}

    found = {result.node.name: _node_state(result) for result in _run(nodes, request, 60.0, transport)}
    return [found[node.name] for node in nodes]


def start_conflicts(
    found: Sequence[NodeState], others: Mapping[str, str] = MappingProxyType({})
) -> list[StartConflict]:
    """The reasons not to start Ray on these nodes. Versions are compared because a node with another Ray fails late,
    sometimes without a message.

    `others`: the nodes with a Ray of another inventory, and the command that stops it.
    """
    silent = [state for state in found if state.why_not]
    known = [state for state in found if not state.why_not]
    absent = [state for state in known if not state.ray]
    busy = [state for state in known if state.running]
    wrong = []
    if silent:
        lines = tuple((state.node.name, state.why_not) for state in silent)
        wrong.append(StartConflict(Message("cluster.ray-silent"), _names(silent), lines))
    if absent:
        wrong.append(StartConflict(Message("cluster.ray-absent"), _names(absent)))
    for command in sorted({others.get(state.node.name, "") for state in busy}):
        these = [state for state in busy if others.get(state.node.name, "") == command]
        says = Message("cluster.ray-runs-for", {"command": command}) if command else Message("cluster.ray-runs-already")
        lines = tuple((state.node.name, ", ".join((*state.running, *state.joined))) for state in these)
        wrong.append(StartConflict(says, _names(these), lines))
    with_ray = [state for state in known if state.ray]
    return [*wrong, *_duplicate_machines(known), *_other_cards(known), *_other_versions(with_ray)]


def _names(found: Sequence[NodeState]) -> tuple[str, ...]:
    return tuple(state.node.name for state in found)


def _duplicate_machines(found: Sequence[NodeState]) -> list[StartConflict]:
    """The nodes that are one machine, where two raylets would count the same cards."""
    known = (state for state in found if state.boot and state.network)
    same = grouped(((state.boot, state.network), state.node.name) for state in known)
    says = Message("cluster.ray-one-machine")
    return [StartConflict(says, tuple(names)) for names in same.values() if len(names) > 1]


def _other_cards(found: Sequence[NodeState]) -> list[StartConflict]:
    """The nodes with another number of cards than in the inventory."""
    kinds = grouped(((state.cards, state.node.cards), state.node.name) for state in found)
    return [
        StartConflict(Message("cluster.ray-cards-other", {"found": seen, "expected": wanted}), tuple(names))
        for (seen, wanted), names in kinds.items()
        if seen and wanted is not None and seen != wanted
    ]


def _other_versions(found: Sequence[NodeState]) -> list[StartConflict]:
    """The nodes with another Ray or Python than most, and those with unknown versions."""
    if len(found) < 2:
        return []
    has_python = any(state.python for state in found)  # none has if `ray` is a shell script
    unread = [state.node.name for state in found if not state.version or (has_python and not state.python)]
    wrong = [StartConflict(Message("cluster.ray-version-unknown"), tuple(unread))] if unread else []
    read = (state for state in found if state.node.name not in unread)
    kinds = grouped(((state.version, state.python), state.node.name) for state in read)
    common = max(kinds, key=lambda kind: len(kinds[kind]), default=None)
    for kind, names in kinds.items():
        if common is not None and kind != common:
            args = {"ray": kind[0], "python": kind[1] or "?", "common_ray": common[0]}
            args["common_python"] = common[1] or "?"
            wrong.append(StartConflict(Message("cluster.ray-versions", args), tuple(names)))
    return wrong


def start(
    plan: StartPlan, found: Sequence[NodeState], transport: Transport, note: Callable[[StartedNode], object]
) -> Iterator[StartedNode | StartFailure]:
    """Starts Ray on one node after another and yields each result; ends after a failed head.

    One at a time, because raylets that start together on a small machine abort each other. Cards that Ray does not
    detect are taken from the inventory. `note` is called before each start with what identifies its processes.
    """
    for state in found:
        started = StartedNode(state.node, cards=state.cards or state.node.cards or 0, mark=secrets.token_hex(8))
        note(started)
        result = _start(plan, started, transport)
        yield result
        if state.node == plan.nodes[0] and isinstance(result, StartFailure):
            return


def query_ray(cluster: Cluster, limit_s: float, transport: Transport) -> ProbeResult:
    """Ray's status from the head, for `npuenv.cluster.ray_status.read`."""
    head = cluster.head_node
    if head is None:  # it was stopped
        return ProbeResult(cluster.started[0].node, None, 0.0, 0.0, f"{cluster.head}: -")
    request = {"do": "status", "what": ("nodes", "table"), "ray": cluster.ray, "address": cluster.address}
    (result,) = _run([head], lambda _: {**request, "limit_s": limit_s, "environ": _environ()}, limit_s, transport)
    return result


def query_processes(cluster: Cluster, transport: Transport) -> dict[str, ProbeResult]:
    """Which of the started processes run, by node. `ray status` alone can be stale."""
    return _each(cluster, "alive", transport)


def stop(cluster: Cluster, transport: Transport) -> dict[str, ProbeResult]:
    """Stops what was started, the head last, so that no worker tries to join it again."""
    workers = cluster.without(cluster.head).started
    head = tuple(each for each in cluster.started if each not in workers)
    ended = {}
    for part in (workers, head):
        ended.update(_each(replace(cluster, started=part), "stop", transport) if part else {})
    return {each.node.name: ended[each.node.name] for each in (*head, *workers)}


def _start(plan: StartPlan, started: StartedNode, transport: Transport) -> StartedNode | StartFailure:
    shape = Cards("", started.cards, len(plan.nodes))
    files = render_ray(
        shape, head=None, port=plan.port, dashboard_port=plan.dashboard_port, framework=plan.framework, stack=plan.stack
    )
    script = "ray_head.sh" if started.node == plan.nodes[0] else "ray_worker.sh"
    request = {
        **{"do": "start", "ray": plan.ray, "script": script, "mark": started.mark},
        **{"address": plan.address or plan.nodes[0].address, "is_multi_node": len(plan.nodes) > 1},
        **{"files": {name: files[name] for name in RAY_FILES}, "limit_s": plan.limit_s, "environ": _environ()},
    }
    (result,) = _run([started.node], lambda _: request, plan.limit_s, transport)
    answer = result.answer
    if answer is None:
        return StartFailure(started.node, result.why, is_clean=False)
    if not answer["processes"]:
        return StartFailure(started.node, str(answer["said"]).strip(), is_clean=not answer["left"])
    rows = tuple((int(pid), int(began), str(name)) for pid, began, name in answer["processes"])
    boot, session, address = str(answer["boot"]), int(answer["session"]), str(answer["address"])
    return replace(started, boot=boot, session=session, processes=rows, address=address)


def _each(cluster: Cluster, what: str, transport: Transport) -> dict[str, ProbeResult]:
    by_name = {each.node.name: each for each in cluster.started}

    def request(node: Node) -> dict[str, Any]:
        each = by_name[node.name]
        known = {"boot": each.boot, "session": each.session, "processes": each.processes, "mark": each.mark}
        return {"do": what, **known}

    nodes = [each.node for each in cluster.started]
    found = {result.node.name: result for result in _run(nodes, request, 30.0, transport)}
    return {node.name: found[node.name] for node in nodes}


def _run(
    nodes: Sequence[Node], request: Callable[[Node], Mapping[str, Any]], limit_s: float, transport: Transport
) -> Iterator[ProbeResult]:
    return run_program(nodes, _PROGRAM, request, limit_s=limit_s + _AROUND_S, transport=transport)


def _node_state(result: ProbeResult) -> NodeState:
    answer = result.answer
    if answer is None:
        return NodeState(result.node, why_not=result.why)
    texts: dict[str, Any] = {key: str(answer[key]) for key in ("ray", "version", "python", "login", "boot", "network")}
    running, joined = (tuple(map(str, answer[key])) for key in ("running", "joined"))
    more: dict[str, Any] = {"running": running, "joined": joined, "is_own": bool(answer["is_own"])}
    return NodeState(result.node, **texts, cards=int(answer["cards"]), **more)


def _environ() -> dict[str, str]:
    """The environment of all Ray commands. Without tokens, unless set locally: `ray.init()` may leave one on a node."""
    return {_AUTH: os.environ.get(_AUTH, "disabled")}
