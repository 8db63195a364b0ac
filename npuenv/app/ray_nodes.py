"""Ray on the nodes of an inventory: `start_ray`, what is missing or all of it; its state, and its end."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.app import resolution
from npuenv.cluster import parallel_ssh, ray, ray_status
from npuenv.cluster.inventory import fold, natural, read
from npuenv.cluster.parallel_ssh import Ask, Transport
from npuenv.cluster.ray import StartConflict, StartFailure, StartPlan, clusters_sharing
from npuenv.cluster.ssh import Options, require_config
from npuenv.core.errors import BadInput, ExitCode, StepFailed
from npuenv.core.messages import Message, clean
from npuenv.host.writing import claimed
from npuenv.report.ray_cluster import NodeRow, Picture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from npuenv.cluster.inventory import Inventory, Node
    from npuenv.cluster.node_programs import ProbeResult
    from npuenv.cluster.ray import Cluster, NodeState, StartedNode
    from npuenv.cluster.ray_status import RayStatus


_STATUS_S = 45.0  # how long Ray has to report its state
_JOIN_S = 60.0  # until Ray counts the nodes that have joined


@dataclass(frozen=True, slots=True)
class RayOptions:
    """On which nodes."""

    hosts: str | None = None  # the inventory; None: the only cluster that was started from here
    ssh_config: str | None = None


@dataclass(frozen=True, slots=True)
class RayStartOptions(RayOptions):
    """What is started."""

    head: str | None = None  # the node of the head; None: the first of the inventory
    ray: str = ""  # the program on the nodes, or its environment's folder; "": from PATH
    port: int = 6379
    dashboard_port: int = 8265
    framework: str = "verl"  # that will run on it
    stack: str | None = None  # whose settings are used
    limit_s: float = 120.0  # for each node


@dataclass(frozen=True, slots=True)
class RayResult:
    """The state of the nodes after a command, or why nothing was started."""

    exit_code: ExitCode
    picture: Picture | None = None
    conflicts: tuple[StartConflict, ...] = ()  # where `picture` is None


@dataclass(frozen=True, slots=True)
class _Context:
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


def start_ray(
    options: RayStartOptions, ask: Ask = parallel_ssh.ask, notify: Callable[[Message], object] = lambda message: None
) -> RayResult:
    """Starts what does not run yet: first the head, then the others one by one. Raises BadInput."""
    if options.hosts is None:
        raise BadInput(Message("cluster.ray-hosts"), Message("cluster.ray-hosts-hint"))
    inventory = read(options.hosts)
    require_config(options.ssh_config)
    transport = Transport(options=Options(config=options.ssh_config), ask=ask)
    path = ray.state_path(inventory, os.environ)
    context = _Context(transport, path, options.hosts, options.ssh_config, options.ray, notify)
    plan = _plan(inventory, options)
    with context.locked():
        return _start(context, plan)


def _plan(inventory: Inventory, options: RayStartOptions) -> StartPlan:
    names = [node.name for node in inventory.nodes]
    if options.head is not None and options.head not in names:
        args = {"name": options.head, "source": inventory.source}
        raise BadInput(
            Message("cluster.ray-no-head", args), Message("cluster.ray-no-head-hint", {"names": tuple(names)})
        )
    nodes = sorted(inventory.nodes, key=lambda node: node.name != (options.head or names[0]))
    if ":" in nodes[0].address:
        args = {"name": nodes[0].name, "address": nodes[0].address}
        raise BadInput(Message("cluster.ray-head-six", args), Message("cluster.ray-head-six-hint"))
    return StartPlan(
        tuple(nodes),
        options.ray,
        options.port,
        options.dashboard_port,
        options.framework,
        stack=resolution.published(options.stack) if options.stack else None,
        limit_s=options.limit_s,
    )


def _start(context: _Context, plan: StartPlan) -> RayResult:
    before = ray.load(context.path)
    if before is not None:
        results = ray.query_processes(before, context.transport)
        running = [name for name, result in results.items() if ray_status.runs(result, is_head=name == before.head)]
        if running:
            return _start_missing(context, plan, before, running)
        silent = [(name, result.why) for name, result in results.items() if result.answer is None]
        if silent:
            says = Message("cluster.ray-left", context.commands)
            return _refuse([StartConflict(says, tuple(name for name, _ in silent), tuple(silent))])
        stuck = _stop_rest(context, before)  # where the raylets are gone
        if stuck:
            return _refuse(stuck)
        context.save(before.without(*results))
    source = os.path.realpath(context.source) if context.source != "-" else "-"
    address = f"{plan.nodes[0].address}:{plan.port}"
    cluster = ray.Cluster(address, plan.ray, head=plan.nodes[0].name, source=source)
    return _start_nodes(context, plan, cluster, plan.nodes)


def _start_missing(context: _Context, plan: StartPlan, before: Cluster, running: Sequence[str]) -> RayResult:
    """Starts the nodes that are missing from a cluster that runs."""
    head = before.head_node
    if head is None or head.name not in running:
        args = {**context.commands, "head": before.head, "names": fold(running)}
        return _refuse([StartConflict(Message("cluster.ray-headless", args), (before.head,))])
    context.notify(Message("cluster.ray-is-up", {"address": before.address}))
    missing = [node for node in plan.nodes if node.name not in running]
    if not missing:
        return _cluster_status(context, before)
    names = {node.name for node in missing}
    left = tuple(each for each in before.started if each.node.name in names)
    stuck = _stop_rest(context, replace(before, started=left)) if left else []
    if stuck:
        return _refuse(stuck)
    address, _, port = before.address.rpartition(":")
    plan = replace(plan, nodes=(head, *missing), address=address, port=int(port), ray=plan.ray or before.ray)
    return _start_nodes(context, plan, before, missing)


def _stop_rest(context: _Context, cluster: Cluster) -> list[StartConflict]:
    """Stops what is left of an earlier start; what does not stop stays recorded, and nothing is started."""
    stuck = {name: row for name, row in _stop_nodes(context, cluster).items() if not row.is_well}
    lines = tuple((name, row.line) for name, row in stuck.items())
    return [StartConflict(Message("cluster.ray-stuck", context.commands), tuple(stuck), lines)] if stuck else []


def _refuse(conflicts: Sequence[StartConflict]) -> RayResult:
    return RayResult(ExitCode.PROBLEMS, conflicts=tuple(conflicts))


def _start_nodes(context: _Context, plan: StartPlan, cluster: Cluster, nodes: Sequence[Node]) -> RayResult:
    """Surveys all nodes of the plan, and starts `nodes`."""
    context.notify(Message("cluster.ray-asking", {"count": len(plan.nodes)}))
    states = ray.survey(plan.nodes, plan.ray, context.transport)
    names = {node.name for node in nodes}
    # The head of a cluster that gets more nodes runs, as it should.
    states = [state if state.node.name in names else replace(state, running=()) for state in states]
    others = {
        name: context.command("down", other.source)
        for other, theirs in clusters_sharing(plan.nodes, os.environ, context.path)
        for name in theirs
    }
    conflicts = ray.start_conflicts(states, others)
    if conflicts:
        return _refuse(conflicts)
    if not cluster.started:
        plan = replace(plan, address=_address(context, next(s for s in states if s.node.name == cluster.head)))
        cluster = replace(cluster, address=f"{plan.address or plan.nodes[0].address}:{plan.port}")
    return _start_each(context, plan, cluster, [state for state in states if state.node.name in names])


def _address(context: _Context, head: NodeState) -> str:
    """The address at which the nodes reach the head; "": the inventory's, which is one of the head's own.

    Else that of the login: a name may lead to it from this machine alone, as one of the ssh configuration does.
    """
    if head.is_own or not head.login:
        return ""
    if head.node.address != head.node.name:
        args = {"name": head.node.name, "address": head.node.address, "login": head.login}
        context.notify(Message("cluster.ray-other-address", args))
    return head.login


def _start_each(context: _Context, plan: StartPlan, cluster: Cluster, states: Sequence[NodeState]) -> RayResult:
    """Starts nodes; each is recorded before and after, so that an interrupt leaves nothing unknown."""
    rows: dict[str, NodeRow] = {}

    def record(started: StartedNode) -> None:
        nonlocal cluster
        cluster = cluster.with_started(started)
        context.save(cluster)

    try:
        for number, result in enumerate(ray.start(plan, states, context.transport, record), start=1):
            head: dict[str, object] = {"number": number, "total": len(states), "name": result.node.name}
            if isinstance(result, StartFailure):
                line = result.said.splitlines()[-1] if result.said else ""
                rows[result.node.name] = NodeRow("not-up", line, result.said)
                context.notify(Message("cluster.ray-failed", {**head, "line": clean(line)}))
                if result.is_clean:
                    cluster = cluster.without(result.node.name)
                    context.save(cluster)
                continue
            record(result)
            rows[result.node.name] = NodeRow("up", cards=result.cards)
            context.notify(Message("cluster.ray-started", {**head, "cards": result.cards}))
        return _started(context, cluster, rows)
    except KeyboardInterrupt:
        _note_running(context, cluster)
        raise


def _started(context: _Context, cluster: Cluster, rows: Mapping[str, NodeRow]) -> RayResult:
    """The result of the starts."""
    head = next((each for each in cluster.started if each.node.name == cluster.head), None)
    if head is not None and head.processes:
        return _joined_status(context, cluster, rows)
    title = Message("cluster.ray-title", {"address": cluster.address})
    then = Message("cluster.ray-next-failed" if not cluster.started else "cluster.ray-next-down", context.commands)
    return RayResult(ExitCode.PROBLEMS, Picture(title, cluster.address, rows, then=then))


def _note_running(context: _Context, cluster: Cluster) -> None:
    """What an interrupt leaves on the nodes, and the command that stops it."""
    running = [each.node.name for each in cluster.started if each.processes]
    begun = [each.node.name for each in cluster.started if not each.processes]
    if running or begun:
        word = "begun" if not running else "running" if not begun else "both"
        args = {**context.commands, "names": fold(running), "begun": fold(begun)}
        context.notify(Message(f"cluster.ray-broken-{word}", args))


def ray_nodes_status(options: RayOptions, ask: Ask = parallel_ssh.ask) -> RayResult:
    """The state of the cluster that was started; if none was, whether another Ray runs there. Raises BadInput."""
    context, cluster, nodes = _open_known(options, ask)
    if cluster is None:
        return _foreign(context, nodes)
    started = {each.node.name for each in cluster.started}
    line = Message("cluster.ray-not-started")
    return _cluster_status(
        context, cluster, {node.name: NodeRow("not-up", line) for node in nodes if node.name not in started}
    )


def stop_ray(options: RayOptions, ask: Ask = parallel_ssh.ask) -> RayResult:
    """Stops what was started, and nothing else. Raises BadInput where nothing was."""
    context, cluster, nodes = _open_known(options, ask)
    if cluster is None:
        raise BadInput(Message("cluster.ray-none"), _hint_none(context, nodes))
    with context.locked():
        rows = _stop_nodes(context, cluster)
        context.save(cluster.without(*(name for name, row in rows.items() if row.is_well)))
    is_stopped = all(row.is_well for row in rows.values())
    then = None if is_stopped else Message("cluster.ray-next-down", context.commands)
    title = Message("cluster.ray-title", {"address": cluster.address})
    code = ExitCode.FINE if is_stopped else ExitCode.PROBLEMS
    return RayResult(code, Picture(title, cluster.address, rows, then=then))


def _open_known(options: RayOptions, ask: Ask) -> tuple[_Context, Cluster | None, Sequence[Node]]:
    """The context, the cluster that was started (None: none was), and the inventory's nodes as far as known."""
    require_config(options.ssh_config)
    cluster, path, inventory = ray.known_cluster(options.hosts)
    source, program = (cluster.source, cluster.ray) if cluster else ("", "")
    transport = Transport(options=Options(config=options.ssh_config), ask=ask)
    context = _Context(transport, path, options.hosts or source, options.ssh_config, program)
    return context, cluster, inventory.nodes if inventory else ()


def _hint_none(context: _Context, nodes: Sequence[Node]) -> Message:
    """What to do where nothing was started for this inventory: another one may have its nodes."""
    for cluster, names in clusters_sharing(nodes, os.environ, context.path):
        if cluster.source:
            args = {"names": fold(names), "command": context.command("down", cluster.source)}
            return Message("cluster.ray-none-other", args)
    return Message("cluster.ray-none-hint")


def _stop_nodes(context: _Context, cluster: Cluster) -> dict[str, NodeRow]:
    """Stops what was started on each node; a row for each."""
    return {name: _stop_row(result) for name, result in ray.stop(cluster, context.transport).items()}


def _stop_row(result: ProbeResult) -> NodeRow:
    if result.answer is None:
        return NodeRow("not-down", result.why)
    left = int(result.answer["left"])
    line = Message("cluster.ray-processes-left", {"count": left}) if left else ""
    return NodeRow("not-down" if left else "down", line, ended=int(result.answer["ended"]))


def _joined_status(context: _Context, cluster: Cluster, started: Mapping[str, NodeRow]) -> RayResult:
    """The state as soon as Ray counts all that was started, or after a while. `started`: the outcome of each start."""
    deadline = time.monotonic() + _JOIN_S
    while True:
        status = _query(context, cluster)
        if ray_status.is_complete(status, cluster) or time.monotonic() > deadline:
            return _cluster_status(context, cluster, started, status)
        time.sleep(0.5)


def _query(context: _Context, cluster: Cluster) -> RayStatus:
    return ray_status.read(ray.query_ray(cluster, _STATUS_S, context.transport), _STATUS_S)


def _cluster_status(
    context: _Context, cluster: Cluster, rows: Mapping[str, NodeRow] | None = None, status: RayStatus | None = None
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
    if status is None and ray_status.serves(results.get(cluster.head)):
        status = _query(context, cluster)
    lost = [name for name in found if found[name].what == "up" and ray_status.is_lost(by_name.get(name), status)]
    found.update({name: replace(found[name], what="not-up", line=Message("cluster.ray-lost-here")) for name in lost})
    explained = ray_status.explain(status, cluster, gone) if status else []
    waiting = ray_status.waiting_demands(status, cluster) if status else []
    code = ExitCode.PROBLEMS if gone or explained else ExitCode.FINE
    word = (
        "stopped"
        if any(map(ray_status.stopped_servers, results.values()))
        else "lost"
        if lost
        else _next_word(cluster, found)
    )
    then = Message(f"cluster.ray-next-{word}", context.commands) if gone or lost else None
    title = Message("cluster.ray-title", {"address": cluster.address})
    ordered = {name: found[name] for name in sorted(found, key=lambda name: (name != cluster.head, natural(name)))}
    others = ray_status.foreign_nodes(status, cluster) if status else ()
    warned = [*_without_cann(context, results), *(ray_status.leftovers(status, cluster) if status else [])]
    picture = Picture(title, cluster.address, ordered, status, explained, warned, waiting, others, then)
    return RayResult(code, picture)


def _node_row(row: NodeRow, result: ProbeResult, started: StartedNode, *, is_head: bool) -> NodeRow:
    """The state of one node. `row`: what is known of it already."""
    stopped = ray_status.stopped_servers(result)
    if stopped:
        pids = " ".join(str(pid) for pid, _ in stopped)
        line = Message("cluster.ray-stopped", {"names": tuple(name for _, name in stopped), "pids": pids})
        return replace(row, what="not-up", line=line)
    if ray_status.runs(result, is_head=is_head):
        return replace(row, what="up")
    if row.what == "not-up":  # it holds why the start failed
        return row
    word = "no-gcs" if ray_status.runs(result) else "gone" if started.processes else "not-started"
    return replace(row, what="not-up", line=result.why or Message(f"cluster.ray-{word}"))


def _without_cann(context: _Context, results: Mapping[str, ProbeResult]) -> list[Message]:
    """The nodes with cards on which all that Ray starts lacks CANN's environment; [] where there are none."""
    names = [name for name, result in results.items() if result.fields.get("without_cann")]
    return [Message("cluster.ray-without-cann", {**context.commands, "names": fold(names)})] if names else []


def _next_word(cluster: Cluster, rows: Mapping[str, NodeRow]) -> str:
    """Which sentence says what to do where nodes are not up."""
    up = [name for name, row in rows.items() if row.what == "up"]
    return "again" if not up else "missing" if cluster.head in up else "headless"


def _foreign(context: _Context, nodes: Sequence[Node]) -> RayResult:
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
