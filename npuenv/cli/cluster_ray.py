"""`npuenv cluster up|status|down`: Ray on the nodes of an inventory."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv import app
from npuenv.cli.common import Ui, common_options
from npuenv.cli.help import Command
from npuenv.cli.progress import report_pending
from npuenv.cli.ray_output import STATUS_S, RayContext, print_foreign, print_status, runs, tell
from npuenv.cluster import ray, ray_state, ray_status
from npuenv.cluster.inventory import Inventory, Node, read
from npuenv.cluster.nodeset import fold
from npuenv.cluster.ray import NodeState, Plan, StartConflict
from npuenv.cluster.ray_state import Cluster, StartedNode, clusters_sharing, save, state_path
from npuenv.cluster.ssh import Options
from npuenv.cluster.transport import ProbeResult, Transport
from npuenv.core.errors import BadInput, ExitCode, StepFailed
from npuenv.core.messages import Message
from npuenv.core.messages.visible import clean
from npuenv.host.writing import claimed
from npuenv.report.ray_cluster import Picture, Row, refused_document, refused_line, refused_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npuenv.cluster.ray_status import RayStatus

_JOIN_S = 60.0  # until Ray counts who has joined
_FRAMEWORKS = ("verl", "roll", "vllm-ascend")


def _reaching(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say which nodes, and how they are reached."""
    for option in (
        click.option("--ssh-config", metavar="FILE", help="ssh configuration to use instead of your own."),
        click.option("--hosts", metavar="FILE|-", help="Inventory file, as for `npuenv doctor --hosts`."),
    ):
        command = option(command)
    return command


@click.command("up", cls=Command)
@_reaching
@click.option("--head", metavar="NAME", help="Head node (default: the first in the inventory).")
@click.option(
    "--ray",
    metavar="PATH",
    default="",
    help="The ray program on the nodes, or its environment's folder (default: from PATH).",
)
@click.option("--port", type=click.IntRange(1, 65535), default=6379, show_default=True, help="Port of the head.")
@click.option(
    "--dashboard-port", type=click.IntRange(1, 65535), default=8265, show_default=True, help="Port of the dashboard."
)
@click.option(
    "--for", "framework", type=click.Choice(_FRAMEWORKS), default="verl", help="Framework that will run on it."
)
@click.option("--stack", metavar="NAME", help="Use the settings of a published stack.")
@click.option(
    "--limit", "limit_s", type=click.FloatRange(min=5), default=120.0, metavar="SECONDS", help="Time limit per node."
)
@common_options
def up(ui: Ui, *, hosts: str | None, ssh_config: str | None, **options: Any) -> int:
    """Start Ray on all nodes: first the head, then the others one by one.

    Versions and cards are compared before anything is started. Ray counts the cards it can detect; otherwise it gets
    the number from the inventory (cards=). If the environment of --ray has an activate.sh, as those made by npuenv do,
    Ray starts with its settings. A Ray that is already running is reported and left alone. Running the command again
    starts only the missing nodes.
    """
    if hosts is None:
        raise BadInput(Message("cluster.ray-hosts"), Message("cluster.ray-hosts-hint"))
    inventory = read(hosts)
    context = RayContext(ui, _way(ui, ssh_config), state_path(inventory, os.environ), hosts, ssh_config, options["ray"])
    plan = _plan(inventory, options)
    with _alone(context.place):
        return int(_up(context, plan))


@click.command("status", cls=Command)
@_reaching
@common_options
def status(ui: Ui, *, hosts: str | None, ssh_config: str | None) -> int:
    """Show the state of the cluster that `npuenv cluster up` started: each node, and Ray's own view.

    If it started none on these nodes, show whether someone else's Ray is running there.
    """
    context, cluster, nodes = _known_context(ui, hosts, ssh_config)
    if cluster is not None:
        return int(print_status(context, cluster, _not_started(nodes, cluster)))
    return int(print_foreign(context, nodes))


@click.command("down", cls=Command)
@_reaching
@common_options
def down(ui: Ui, *, hosts: str | None, ssh_config: str | None) -> int:
    """Stop what `npuenv cluster up` started, and nothing else."""
    context, cluster, nodes = _known_context(ui, hosts, ssh_config)
    if cluster is None:
        raise BadInput(Message("cluster.ray-none"), _hint_none(context, nodes))
    with _alone(context.place):
        rows = {name: _down_row(each) for name, each in ray.stop(cluster, context.way).items()}
        _keep(context, cluster.without(*(name for name, row in rows.items() if row.is_well)))
    code = ExitCode.FINE if all(row.is_well for row in rows.values()) else ExitCode.PROBLEMS
    then = Message("cluster.ray-next-down", context.commands) if code else None
    title = Message("cluster.ray-title", {"address": cluster.address})
    tell(ui, Picture(title, cluster.address, rows, then=then), code)
    return int(code)


def _known_context(
    ui: Ui, hosts: str | None, ssh_config: str | None
) -> tuple[RayContext, Cluster | None, Sequence[Node]]:
    """What the steps need, the cluster that was started (None: none was), and the inventory's nodes as far as known."""
    way = _way(ui, ssh_config)
    cluster, place, inventory = _known(hosts)
    source, program = (cluster.source, cluster.ray) if cluster else ("", "")
    context = RayContext(ui, way, place, hosts or source, ssh_config, program)
    return context, cluster, inventory.nodes if inventory else ()


def _way(ui: Ui, ssh_config: str | None) -> Transport:
    if ssh_config is not None and not Path(ssh_config).is_file():
        args = {"path": ssh_config}
        raise BadInput(Message("cluster.no-ssh-config", args), Message("cluster.no-ssh-config-hint"))
    return Transport(options=Options(config=ssh_config), ask=report_pending(ui))


def _known(hosts: str | None) -> tuple[Cluster | None, Path, Inventory | None]:
    """The cluster that was started (None: none was), where that is written down, and the inventory, which may be gone.

    Without an inventory it is the only cluster that there is.
    """
    if hosts is None:
        return _only_one()
    try:
        inventory = read(hosts)
    except BadInput:
        place = ray_state.state_path(hosts, os.environ)
        cluster = ray_state.load(place)
        if cluster is None:
            raise
        return cluster, place, None
    place = ray_state.state_path(inventory, os.environ)
    return ray_state.load(place), place, inventory


def _only_one() -> tuple[Cluster, Path, None]:
    places = sorted(ray_state.state_folder(os.environ).glob("*.json"))
    found = [(cluster, place) for place in places if (cluster := ray_state.load(place)) is not None]
    if not found:
        raise BadInput(Message("cluster.ray-none-at-all"), Message("cluster.ray-none-hint"))
    if len(found) > 1:
        sources = tuple(cluster.source or cluster.address for cluster, _ in found)
        args = {"count": len(found), "sources": sources}
        raise BadInput(Message("cluster.ray-several", {"count": len(found)}), Message("cluster.ray-several-hint", args))
    return found[0][0], found[0][1], None


def _hint_none(context: RayContext, nodes: Sequence[Node]) -> Message:
    """What to do where nothing was started for this inventory: another one may have its nodes."""
    for cluster, names in clusters_sharing(nodes, os.environ, context.place):
        if cluster.source:
            return Message(
                "cluster.ray-none-other", {"names": fold(names), "command": context.command("down", cluster.source)}
            )
    return Message("cluster.ray-none-hint")


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Only one command starts or ends on the same nodes at a time. Raises StepFailed where another one does."""
    with claimed(str(place.with_suffix(".lock"))) as is_mine:
        if not is_mine:
            raise StepFailed(Message("cluster.ray-busy"), Message("cluster.ray-busy-hint"))
        yield


def _plan(inventory: Inventory, options: dict[str, Any]) -> Plan:
    head, name = options.pop("head"), options.pop("stack")
    names = [node.name for node in inventory.nodes]
    if head is not None and head not in names:
        args = {"name": head, "source": inventory.source}
        raise BadInput(
            Message("cluster.ray-no-head", args), Message("cluster.ray-no-head-hint", {"names": tuple(names)})
        )
    nodes = sorted(inventory.nodes, key=lambda node: node.name != (head or names[0]))
    if ":" in nodes[0].address:
        args = {"name": nodes[0].name, "address": nodes[0].address}
        raise BadInput(Message("cluster.ray-head-six", args), Message("cluster.ray-head-six-hint"))
    return Plan(tuple(nodes), stack=app.resolution.published(name) if name else None, **options)


def _up(context: RayContext, plan: Plan) -> ExitCode:
    """Starts what does not run yet."""
    before = ray_state.load(context.place)
    if before is not None:
        heard = ray.query_processes(before, context.way)
        running = [name for name, each in heard.items() if runs(each, is_head=name == before.head)]
        if running:
            return _go_on(context, plan, before, running)
        silent = [(name, each.why) for name, each in heard.items() if each.answer is None]
        if silent:
            says = Message("cluster.ray-left", context.commands)
            lines = tuple(f"{name}: {why}" for name, why in silent)
            return _refuse(context.ui, [ray.StartConflict(says, tuple(name for name, _ in silent), lines)])
        stuck = _end_rest(context, before)  # where the raylets are gone
        if stuck:
            return _refuse(context.ui, stuck)
        _keep(context, before.without(*heard))
    source = os.path.realpath(context.source) if context.source != "-" else "-"
    cluster = ray_state.Cluster(
        f"{plan.nodes[0].address}:{plan.port}", plan.ray, head=plan.nodes[0].name, source=source
    )
    return _begin(context, plan, cluster, plan.nodes)


def _go_on(context: RayContext, plan: Plan, before: Cluster, running: Sequence[str]) -> ExitCode:
    """Starts the nodes that are missing from a cluster that runs."""
    head = before.head_node
    if head is None or head.name not in running:
        args = {**context.commands, "head": before.head, "names": fold(running)}
        return _refuse(context.ui, [ray.StartConflict(Message("cluster.ray-headless", args), (before.head,))])
    context.ui.say(Message("cluster.ray-is-up", {"address": before.address}), err=True)
    missing = [node for node in plan.nodes if node.name not in running]
    if not missing:
        return print_status(context, before)
    left = tuple(each for each in before.started if each.node.name in {node.name for node in missing})
    stuck = _end_rest(context, replace(before, started=left)) if left else []
    if stuck:
        return _refuse(context.ui, stuck)
    address, _, port = before.address.rpartition(":")
    plan = replace(plan, nodes=(head, *missing), address=address, port=int(port), ray=plan.ray or before.ray)
    return _begin(context, plan, before, missing)


def _end_rest(context: RayContext, cluster: Cluster) -> list[StartConflict]:
    """Ends what is left of an earlier start; what would not end there stays written down, and nothing is started."""
    rows = {name: _down_row(each) for name, each in ray.stop(cluster, context.way).items()}
    stuck = [name for name, row in rows.items() if not row.is_well]
    lines = tuple(refused_line(name, rows[name], context.ui.lang) for name in stuck)
    return [StartConflict(Message("cluster.ray-stuck", context.commands), tuple(stuck), lines)] if stuck else []


def _begin(context: RayContext, plan: Plan, cluster: Cluster, nodes: Sequence[Node]) -> ExitCode:
    """Looks at all nodes of the plan, and starts those that are named."""
    context.ui.say(Message("cluster.ray-asking", {"count": len(plan.nodes)}), err=True)
    found = ray.survey(plan.nodes, plan.ray, context.way)
    # The head of a cluster that is gone on with runs, and ought to.
    names = {node.name for node in nodes}
    found = [here if here.node.name in names else replace(here, running=()) for here in found]
    others = {
        name: context.command("down", other.source)
        for other, theirs in clusters_sharing(plan.nodes, os.environ, context.place)
        for name in theirs
    }
    wrong = ray.start_conflicts(found, others)
    if wrong:
        return _refuse(context.ui, wrong)
    if not cluster.started:
        plan = replace(
            plan, address=_address(context.ui, next(here for here in found if here.node.name == cluster.head))
        )
        cluster = replace(cluster, address=f"{plan.address or plan.nodes[0].address}:{plan.port}")
    return _raise(context, plan, cluster, [here for here in found if here.node.name in names])


def _address(ui: Ui, head: NodeState) -> str:
    """By which the nodes reach the head: as the inventory says where that is an address of its own; else the one of
    the login, for a name may lead to it from here alone, as one of the ssh configuration does. "": the inventory's.
    """
    if head.is_own or not head.login:
        return ""
    if head.node.address != head.node.name:
        args = {"name": head.node.name, "address": head.node.address, "login": head.login}
        ui.say(Message("cluster.ray-other-address", args), err=True)
    return head.login


def _refuse(ui: Ui, wrong: Sequence[StartConflict]) -> ExitCode:
    """Says why nothing is started."""
    if ui.is_json:
        ui.print_json(refused_document(wrong, int(ExitCode.PROBLEMS), ui.lang))
    else:
        print("\n".join(refused_lines(wrong, ui.lang)))
    return ExitCode.PROBLEMS


def _raise(context: RayContext, plan: Plan, cluster: Cluster, found: Sequence[NodeState]) -> ExitCode:
    """Starts nodes; each is written down before and after, so that an interrupt leaves nothing unknown."""
    rows: dict[str, Row] = {}

    def note(more: StartedNode) -> None:
        nonlocal cluster
        cluster = cluster.with_started(more)
        _keep(context, cluster)

    try:
        for number, result in enumerate(ray.start(plan, found, context.way, note), start=1):
            head: dict[str, object] = {"number": number, "total": len(found), "name": result.node.name}
            if isinstance(result, ray.StartFailure):
                line = result.said.splitlines()[-1] if result.said else ""
                rows[result.node.name] = Row("not-up", line, result.said)
                context.ui.say(Message("cluster.ray-failed", {**head, "line": clean(line)}), err=True)
                if result.is_clean:
                    cluster = cluster.without(result.node.name)
                    _keep(context, cluster)
                continue
            note(result)
            rows[result.node.name] = Row("up", cards=result.cards)
            context.ui.say(Message("cluster.ray-started", {**head, "cards": result.cards}), err=True)
        return _print_started(context, cluster, rows)
    except KeyboardInterrupt:
        _say_whatruns(context, cluster)
        raise


def _print_started(context: RayContext, cluster: Cluster, rows: Mapping[str, Row]) -> ExitCode:
    """What came of a start."""
    head = next((each for each in cluster.started if each.node.name == cluster.head), None)
    if head is not None and head.processes:
        return print_status(context, cluster, rows, _await_nodes(cluster, context.way))
    title = Message("cluster.ray-title", {"address": cluster.address})
    then = Message("cluster.ray-next-failed" if not cluster.started else "cluster.ray-next-down", context.commands)
    tell(context.ui, Picture(title, cluster.address, rows, then=then), ExitCode.PROBLEMS)
    return ExitCode.PROBLEMS


def _say_whatruns(context: RayContext, cluster: Cluster) -> None:
    """What an interrupt leaves on the nodes, and the command that ends it."""
    running = [each.node.name for each in cluster.started if each.processes]
    begun = [each.node.name for each in cluster.started if not each.processes]
    args = {**context.commands, "names": fold(running), "begun": fold(begun)}
    if running or begun:
        word = "begun" if not running else "running" if not begun else "both"
        context.ui.say(Message(f"cluster.ray-broken-{word}", args), err=True)


def _keep(context: RayContext, cluster: Cluster) -> None:
    """Writes down what there is now; nothing where there is nothing."""
    if cluster.started:
        save(cluster, context.place)
    else:
        context.place.unlink(missing_ok=True)


def _await_nodes(cluster: Cluster, way: Transport) -> RayStatus:
    """What Ray says as soon as it counts all that was started, or after a while."""
    deadline = time.monotonic() + _JOIN_S
    while True:
        seen = ray_status.read(ray.query_ray(cluster, STATUS_S, way), STATUS_S)
        if ray_status.is_complete(seen, cluster) or time.monotonic() > deadline:
            return seen
        time.sleep(0.5)


def _not_started(nodes: Sequence[Node], cluster: Cluster) -> dict[str, Row]:
    """A row for each node of the inventory that is no part of what was started."""
    started = {each.node.name for each in cluster.started}
    line = Message("cluster.ray-not-started")
    return {node.name: Row("not-up", line) for node in nodes if node.name not in started}


def _down_row(heard: ProbeResult) -> Row:
    if heard.answer is None:
        return Row("not-down", heard.why)
    left = int(heard.answer["left"])
    line = Message("cluster.ray-processes-left", {"count": left}) if left else ""
    return Row("not-down" if left else "down", line, ended=int(heard.answer["ended"]))
