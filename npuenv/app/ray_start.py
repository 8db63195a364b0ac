"""Starts Ray on the nodes of an inventory, or those that are missing from a cluster that runs: `start_ray`."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.app import resolution
from npuenv.app.ray_cluster import (
    RayContext,
    RayOptions,
    RayResult,
    cluster_status,
    joined_status,
    runs,
    stop_nodes,
)
from npuenv.cluster import parallel_ssh, ray
from npuenv.cluster.inventory import fold, read
from npuenv.cluster.parallel_ssh import Ask, Transport
from npuenv.cluster.ray import StartConflict, StartFailure, StartPlan, clusters_sharing, state_path
from npuenv.cluster.ssh import Options, require_config
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, clean
from npuenv.report.ray_cluster import NodeRow, Picture

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npuenv.cluster.inventory import Inventory, Node
    from npuenv.cluster.ray import Cluster, NodeState, StartedNode


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


def start_ray(
    options: RayStartOptions, ask: Ask = parallel_ssh.ask, notify: Callable[[Message], object] = lambda message: None
) -> RayResult:
    """Starts what does not run yet: first the head, then the others one by one. Raises BadInput."""
    if options.hosts is None:
        raise BadInput(Message("cluster.ray-hosts"), Message("cluster.ray-hosts-hint"))
    inventory = read(options.hosts)
    require_config(options.ssh_config)
    transport = Transport(options=Options(config=options.ssh_config), ask=ask)
    path = state_path(inventory, os.environ)
    context = RayContext(transport, path, options.hosts, options.ssh_config, options.ray, notify)
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


def _start(context: RayContext, plan: StartPlan) -> RayResult:
    before = ray.load(context.path)
    if before is not None:
        results = ray.query_processes(before, context.transport)
        running = [name for name, result in results.items() if runs(result, is_head=name == before.head)]
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


def _start_missing(context: RayContext, plan: StartPlan, before: Cluster, running: Sequence[str]) -> RayResult:
    """Starts the nodes that are missing from a cluster that runs."""
    head = before.head_node
    if head is None or head.name not in running:
        args = {**context.commands, "head": before.head, "names": fold(running)}
        return _refuse([StartConflict(Message("cluster.ray-headless", args), (before.head,))])
    context.notify(Message("cluster.ray-is-up", {"address": before.address}))
    missing = [node for node in plan.nodes if node.name not in running]
    if not missing:
        return cluster_status(context, before)
    names = {node.name for node in missing}
    left = tuple(each for each in before.started if each.node.name in names)
    stuck = _stop_rest(context, replace(before, started=left)) if left else []
    if stuck:
        return _refuse(stuck)
    address, _, port = before.address.rpartition(":")
    plan = replace(plan, nodes=(head, *missing), address=address, port=int(port), ray=plan.ray or before.ray)
    return _start_nodes(context, plan, before, missing)


def _stop_rest(context: RayContext, cluster: Cluster) -> list[StartConflict]:
    """Stops what is left of an earlier start; what does not stop stays recorded, and nothing is started."""
    stuck = {name: row for name, row in stop_nodes(context, cluster).items() if not row.is_well}
    lines = tuple((name, row.line) for name, row in stuck.items())
    return [StartConflict(Message("cluster.ray-stuck", context.commands), tuple(stuck), lines)] if stuck else []


def _refuse(conflicts: Sequence[StartConflict]) -> RayResult:
    return RayResult(ExitCode.PROBLEMS, conflicts=tuple(conflicts))


def _start_nodes(context: RayContext, plan: StartPlan, cluster: Cluster, nodes: Sequence[Node]) -> RayResult:
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


def _address(context: RayContext, head: NodeState) -> str:
    """The address at which the nodes reach the head; "": the inventory's, which is one of the head's own.

    Else that of the login: a name may lead to it from this machine alone, as one of the ssh configuration does.
    """
    if head.is_own or not head.login:
        return ""
    if head.node.address != head.node.name:
        args = {"name": head.node.name, "address": head.node.address, "login": head.login}
        context.notify(Message("cluster.ray-other-address", args))
    return head.login


def _start_each(context: RayContext, plan: StartPlan, cluster: Cluster, states: Sequence[NodeState]) -> RayResult:
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


def _started(context: RayContext, cluster: Cluster, rows: Mapping[str, NodeRow]) -> RayResult:
    """The result of the starts."""
    head = next((each for each in cluster.started if each.node.name == cluster.head), None)
    if head is not None and head.processes:
        return joined_status(context, cluster, rows)
    title = Message("cluster.ray-title", {"address": cluster.address})
    then = Message("cluster.ray-next-failed" if not cluster.started else "cluster.ray-next-down", context.commands)
    return RayResult(ExitCode.PROBLEMS, Picture(title, cluster.address, rows, then=then))


def _note_running(context: RayContext, cluster: Cluster) -> None:
    """What an interrupt leaves on the nodes, and the command that stops it."""
    running = [each.node.name for each in cluster.started if each.processes]
    begun = [each.node.name for each in cluster.started if not each.processes]
    if running or begun:
        word = "begun" if not running else "running" if not begun else "both"
        args = {**context.commands, "names": fold(running), "begun": fold(begun)}
        context.notify(Message(f"cluster.ray-broken-{word}", args))
