"""Ray on the nodes of an inventory, as it was started from here: its state, and its end. `ray_start` starts it."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.cluster import parallel_ssh, ray, ray_status
from npuenv.cluster.inventory import fold, natural, read
from npuenv.cluster.parallel_ssh import Ask, Transport
from npuenv.cluster.ray import clusters_sharing
from npuenv.cluster.ssh import Options, require_config
from npuenv.core.errors import BadInput, ExitCode, StepFailed
from npuenv.core.messages import Message
from npuenv.host.writing import claimed
from npuenv.report.ray_cluster import NodeRow, Picture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from npuenv.cluster.inventory import Inventory, Node
    from npuenv.cluster.parallel_ssh import ProbeResult
    from npuenv.cluster.ray import Cluster, StartConflict, StartedNode
    from npuenv.cluster.ray_status import RayStatus

_STATUS_S = 45.0  # how long Ray has to report its state
_JOIN_S = 60.0  # until Ray counts the nodes that have joined


@dataclass(frozen=True, slots=True)
class RayOptions:
    """On which nodes."""

    hosts: str | None = None  # the inventory; None: the only cluster that was started from here
    ssh_config: str | None = None


@dataclass(frozen=True, slots=True)
class RayResult:
    """The state of the nodes after a command, or why nothing was started."""

    exit_code: ExitCode
    picture: Picture | None = None
    conflicts: tuple[StartConflict, ...] = ()  # where `picture` is None


@dataclass(frozen=True, slots=True)
class RayContext:
    """What every step of a command needs."""

    transport: Transport
    path: Path  # the record of what was started
    source: str  # the inventory
    ssh_config: str | None
    ray: str = ""  # the program on the nodes, where one was named
    notify: Callable[[Message], object] = lambda message: None  # called with what a user should know meanwhile

    def command(self, verb: str, source: str = "") -> str:
        """The command line of another command on the same nodes."""
        words = ["npuenv", "cluster", verb, "--hosts", source or self.source]
        words += ["--ray", self.ray] if self.ray and verb == "up" else []
        return shlex.join([*words, *(["--ssh-config", self.ssh_config] if self.ssh_config else [])])

    @property
    def commands(self) -> dict[str, object]:
        """For the sentences that name them."""
        return {"up": self.command("up"), "down": self.command("down"), "place": str(self.path)}

    def save(self, cluster: Cluster) -> None:
        """Records what is started now; removes the record if nothing is."""
        if cluster.started:
            ray.save(cluster, self.path)
        else:
            self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other commands from the same nodes. Raises StepFailed while another one works on them."""
        with claimed(str(self.path.with_suffix(".lock"))) as is_mine:
            if not is_mine:
                raise StepFailed(Message("cluster.ray-busy"), Message("cluster.ray-busy-hint"))
            yield


def ray_nodes_status(options: RayOptions, ask: Ask = parallel_ssh.ask) -> RayResult:
    """The state of the cluster that was started; if none was, whether another Ray runs there. Raises BadInput."""
    context, cluster, nodes = _open_known(options, ask)
    if cluster is None:
        return _foreign(context, nodes)
    started = {each.node.name for each in cluster.started}
    line = Message("cluster.ray-not-started")
    return cluster_status(
        context, cluster, {node.name: NodeRow("not-up", line) for node in nodes if node.name not in started}
    )


def stop_ray(options: RayOptions, ask: Ask = parallel_ssh.ask) -> RayResult:
    """Stops what was started, and nothing else. Raises BadInput where nothing was."""
    context, cluster, nodes = _open_known(options, ask)
    if cluster is None:
        raise BadInput(Message("cluster.ray-none"), _hint_none(context, nodes))
    with context.locked():
        rows = stop_nodes(context, cluster)
        context.save(cluster.without(*(name for name, row in rows.items() if row.is_well)))
    is_stopped = all(row.is_well for row in rows.values())
    then = None if is_stopped else Message("cluster.ray-next-down", context.commands)
    title = Message("cluster.ray-title", {"address": cluster.address})
    code = ExitCode.FINE if is_stopped else ExitCode.PROBLEMS
    return RayResult(code, Picture(title, cluster.address, rows, then=then))


def _open_known(options: RayOptions, ask: Ask) -> tuple[RayContext, Cluster | None, Sequence[Node]]:
    """The context, the cluster that was started (None: none was), and the inventory's nodes as far as known."""
    require_config(options.ssh_config)
    cluster, path, inventory = _known(options.hosts)
    source, program = (cluster.source, cluster.ray) if cluster else ("", "")
    transport = Transport(options=Options(config=options.ssh_config), ask=ask)
    context = RayContext(transport, path, options.hosts or source, options.ssh_config, program)
    return context, cluster, inventory.nodes if inventory else ()


def _known(hosts: str | None) -> tuple[Cluster | None, Path, Inventory | None]:
    """The cluster that was started (None: none was), its record, and the inventory, which may be gone.

    Without an inventory it is the only cluster that there is.
    """
    if hosts is None:
        return _only_one()
    try:
        inventory = read(hosts)
    except BadInput:
        path = ray.state_path(hosts, os.environ)
        cluster = ray.load(path)
        if cluster is None:
            raise
        return cluster, path, None
    path = ray.state_path(inventory, os.environ)
    return ray.load(path), path, inventory


def _only_one() -> tuple[Cluster, Path, None]:
    paths = sorted(ray.state_folder(os.environ).glob("*.json"))
    found = [(cluster, path) for path in paths if (cluster := ray.load(path)) is not None]
    if not found:
        raise BadInput(Message("cluster.ray-none-at-all"), Message("cluster.ray-none-hint"))
    if len(found) > 1:
        sources = tuple(cluster.source or cluster.address for cluster, _ in found)
        args = {"count": len(found), "sources": sources}
        raise BadInput(Message("cluster.ray-several", {"count": len(found)}), Message("cluster.ray-several-hint", args))
    return found[0][0], found[0][1], None


def _hint_none(context: RayContext, nodes: Sequence[Node]) -> Message:
    """What to do where nothing was started for this inventory: another one may have its nodes."""
    for cluster, names in clusters_sharing(nodes, os.environ, context.path):
        if cluster.source:
            args = {"names": fold(names), "command": context.command("down", cluster.source)}
            return Message("cluster.ray-none-other", args)
    return Message("cluster.ray-none-hint")


def stop_nodes(context: RayContext, cluster: Cluster) -> dict[str, NodeRow]:
    """Stops what was started on each node; a row for each."""
    return {name: _stop_row(result) for name, result in ray.stop(cluster, context.transport).items()}


def _stop_row(result: ProbeResult) -> NodeRow:
    if result.answer is None:
        return NodeRow("not-down", result.why)
    left = int(result.answer["left"])
    line = Message("cluster.ray-processes-left", {"count": left}) if left else ""
    return NodeRow("not-down" if left else "down", line, ended=int(result.answer["ended"]))


def joined_status(context: RayContext, cluster: Cluster, started: Mapping[str, NodeRow]) -> RayResult:
    """The state as soon as Ray counts all that was started, or after a while. `started`: the outcome of each start."""
    deadline = time.monotonic() + _JOIN_S
    while True:
        status = _query(context, cluster)
        if ray_status.is_complete(status, cluster) or time.monotonic() > deadline:
            return cluster_status(context, cluster, started, status)
        time.sleep(0.5)


def _query(context: RayContext, cluster: Cluster) -> RayStatus:
    return ray_status.read(ray.query_ray(cluster, _STATUS_S, context.transport), _STATUS_S)


def cluster_status(
    context: RayContext,
    cluster: Cluster,
    rows: Mapping[str, NodeRow] | None = None,
    status: RayStatus | None = None,
) -> RayResult:
    """What every node and Ray itself report. What Ray reports can be stale, so the nodes are asked too.

    `rows`: what is known of nodes already; `status`: what Ray has reported already.
    """
    found = dict(rows or {})
    by_name = {each.node.name: each for each in cluster.started}
    results = ray.query_processes(cluster, context.transport)
    for name, result in results.items():
        row = replace(found.get(name, NodeRow("up")), address=by_name[name].address)
        found[name] = _node_row(row, result, by_name[name], is_head=name == cluster.head)
    gone = [name for name, row in found.items() if row.what == "not-up"]
    if status is None and _serves(results.get(cluster.head)):
        status = _query(context, cluster)
    lost = [name for name in found if found[name].what == "up" and _is_lost(by_name.get(name), status)]
    found.update({name: replace(found[name], what="not-up", line=Message("cluster.ray-lost-here")) for name in lost})
    explained = ray_status.explain(status, cluster, gone) if status else []
    waiting = ray_status.waiting_demands(status, cluster) if status else []
    code = ExitCode.PROBLEMS if gone or explained else ExitCode.FINE
    word = "stopped" if any(map(_stopped, results.values())) else "lost" if lost else _next_word(cluster, found)
    then = Message(f"cluster.ray-next-{word}", context.commands) if gone or lost else None
    title = Message("cluster.ray-title", {"address": cluster.address})
    ordered = {name: found[name] for name in sorted(found, key=lambda name: (name != cluster.head, natural(name)))}
    others = ray_status.foreign_nodes(status, cluster) if status else ()
    warned = [*_without_cann(context, results), *(ray_status.leftovers(status, cluster) if status else [])]
    picture = Picture(title, cluster.address, ordered, status, explained, warned, waiting, others, then)
    return RayResult(code, picture)


def _node_row(row: NodeRow, result: ProbeResult, started: StartedNode, *, is_head: bool) -> NodeRow:
    """The state of one node. `row`: what is known of it already."""
    stopped = _stopped(result)
    if stopped:
        pids = " ".join(str(pid) for pid, _ in stopped)
        line = Message("cluster.ray-stopped", {"names": tuple(name for _, name in stopped), "pids": pids})
        return replace(row, what="not-up", line=line)
    if runs(result, is_head=is_head):
        return replace(row, what="up")
    if row.what == "not-up":  # it holds why the start failed
        return row
    word = "no-gcs" if runs(result) else "gone" if started.processes else "not-started"
    return replace(row, what="not-up", line=result.why or Message(f"cluster.ray-{word}"))


def _without_cann(context: RayContext, results: Mapping[str, ProbeResult]) -> list[Message]:
    """The nodes with cards on which all that Ray starts lacks CANN's environment; [] where there are none."""
    names = [name for name, result in results.items() if result.fields.get("without_cann")]
    return [Message("cluster.ray-without-cann", {**context.commands, "names": fold(names)})] if names else []


def _next_word(cluster: Cluster, rows: Mapping[str, NodeRow]) -> str:
    """Which sentence says what to do where nodes are not up."""
    up = [name for name, row in rows.items() if row.what == "up"]
    return "again" if not up else "missing" if cluster.head in up else "headless"


def _foreign(context: RayContext, nodes: Sequence[Node]) -> RayResult:
    """Whether a Ray runs on nodes on which none was started from here. It is not touched."""
    owners = {
        name: other.source
        for other, names in clusters_sharing(nodes, os.environ, context.path)
        for name in names
        if other.source
    }
    rows = {}
    for state in ray.survey(nodes, "", context.transport):
        name = state.node.name
        if state.why_not:
            rows[name] = NodeRow("not-up", state.why_not)
        elif state.running and name in owners:
            line = Message("cluster.ray-of-other", {"command": context.command("status", owners[name])})
            rows[name] = NodeRow("shared", line, joined=state.joined)
        else:
            rows[name] = NodeRow("other" if state.running else "free", joined=state.joined)
    kinds = {row.what for row in rows.values()}
    word = "other" if "other" in kinds else "" if "shared" in kinds else "none"
    then = Message(f"cluster.ray-next-{word}", context.commands) if word else None
    title = Message("cluster.ray-none-for", {"source": context.source})
    return RayResult(ExitCode.PROBLEMS, Picture(title, "", rows, then=then))


def runs(result: ProbeResult, *, is_head: bool = False) -> bool:
    """Whether the raylet lives, without which nothing is scheduled there; of a head also what all others need."""
    needed = {"raylet", "gcs_server"} if is_head else {"raylet"}
    return result.answer is not None and needed <= set(result.answer["running"])


def _serves(head: ProbeResult | None) -> bool:
    """Whether the head can answer a question about Ray's state."""
    if head is None or head.answer is None or "gcs_server" not in head.answer["running"]:
        return False
    return "gcs_server" not in (name for _, name in _stopped(head))


def _stopped(result: ProbeResult) -> list[tuple[int, str]]:
    """The servers of Ray there that a signal has stopped, by number and name."""
    return [(int(pid), str(name)) for pid, name in result.fields.get("stopped", ())]


def _is_lost(started: StartedNode | None, status: RayStatus | None) -> bool:
    """Whether Ray has given up a node, which it does not take back, or does not know it."""
    if status is None or status.nodes is None or started is None or not started.address:
        return False
    row = status.at(started.address)
    return row is None or not row.is_alive
