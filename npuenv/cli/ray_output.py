"""What `npuenv cluster up|status|down` print about Ray on the nodes."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.cluster import ray, ray_status
from npuenv.cluster.nodeset import fold, natural
from npuenv.cluster.ray_state import Cluster, StartedNode, clusters_sharing
from npuenv.core.errors import ExitCode
from npuenv.core.messages import Message
from npuenv.report.ray_cluster import Picture, Row, document, lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from npuenv.cli.common import Ui
    from npuenv.cluster.inventory import Node
    from npuenv.cluster.ray_status import RayStatus
    from npuenv.cluster.transport import ProbeResult, Transport

STATUS_S = 45.0  # how long Ray has to say how it is


@dataclass(frozen=True, slots=True)
class RayContext:
    """What every step of a command needs."""

    ui: Ui
    way: Transport
    place: Path  # where it is written down what was started
    source: str  # the inventory
    ssh_config: str | None
    ray: str = ""  # the program on the nodes, where one was named

    def command(self, verb: str, source: str = "") -> str:
        """The command line of another command on the same nodes."""
        words = ["npuenv", "cluster", verb, "--hosts", source or self.source]
        words += ["--ray", self.ray] if self.ray and verb == "up" else []
        return shlex.join([*words, *(["--ssh-config", self.ssh_config] if self.ssh_config else [])])

    @property
    def commands(self) -> dict[str, object]:
        """For the sentences that name them."""
        return {"up": self.command("up"), "down": self.command("down"), "place": str(self.place)}


def print_status(
    context: RayContext, cluster: Cluster, told: Mapping[str, Row] | None = None, seen: RayStatus | None = None
) -> ExitCode:
    """What every node and Ray itself say. What Ray says alone can be stale: the nodes are asked too."""
    found = dict(told or {})
    by_name = {each.node.name: each for each in cluster.started}
    alive = ray.query_processes(cluster, context.way)
    for name, heard in alive.items():
        row = replace(found.get(name, Row("up")), address=by_name[name].address)
        if _stopped(heard):
            found[name] = replace(row, what="not-up", line=_says_stopped(heard))
        elif runs(heard, is_head=name == cluster.head):
            found[name] = replace(row, what="up")
        elif row.what == "not-up":  # it was told what came of its start
            found[name] = row
        else:
            word = "no-gcs" if runs(heard) else "gone" if by_name[name].processes else "not-started"
            found[name] = replace(row, what="not-up", line=heard.why or Message(f"cluster.ray-{word}"))
    gone = [name for name, row in found.items() if row.what == "not-up"]
    if seen is None and _serves(alive.get(cluster.head)):
        seen = ray_status.read(ray.query_ray(cluster, STATUS_S, context.way), STATUS_S)
    lost = [name for name in found if found[name].what == "up" and _is_lost(by_name.get(name), seen)]
    found.update({name: replace(found[name], what="not-up", line=Message("cluster.ray-lost-here")) for name in lost})
    explained = ray_status.explain(seen, cluster, gone) if seen else []
    waiting = ray_status.waiting_demands(seen, cluster) if seen else []
    code = ExitCode.PROBLEMS if gone or explained else ExitCode.FINE
    word = "stopped" if any(map(_stopped, alive.values())) else "lost" if lost else _next_word(cluster, found)
    then = Message(f"cluster.ray-next-{word}", context.commands) if gone or lost else None
    title = Message("cluster.ray-title", {"address": cluster.address})
    rows = {name: found[name] for name in sorted(found, key=lambda name: (name != cluster.head, natural(name)))}
    others = ray_status.foreign_nodes(seen, cluster) if seen else ()
    warned = [*_without_cann(context, alive), *(ray_status.leftovers(seen, cluster) if seen else [])]
    tell(context.ui, Picture(title, cluster.address, rows, seen, explained, warned, waiting, others, then), code)
    return code


def _without_cann(context: RayContext, alive: Mapping[str, ProbeResult]) -> list[Message]:
    """The nodes with cards on which all that Ray starts lacks CANN's environment; [] where there are none."""
    names = [name for name, heard in alive.items() if heard.answer is not None and heard.answer.get("without_cann")]
    return [Message("cluster.ray-without-cann", {**context.commands, "names": fold(names)})] if names else []


def _next_word(cluster: Cluster, rows: Mapping[str, Row]) -> str:
    """Which sentence says what to do where nodes are not up."""
    up = [name for name, row in rows.items() if row.what == "up"]
    return "again" if not up else "missing" if cluster.head in up else "headless"


def print_foreign(context: RayContext, nodes: Sequence[Node]) -> ExitCode:
    """Whether a Ray runs on nodes on which none was started from here. It is not touched."""
    owners = {
        name: other.source
        for other, names in clusters_sharing(nodes, os.environ, context.place)
        for name in names
        if other.source
    }
    rows = {}
    for here in ray.survey(nodes, "", context.way):
        name = here.node.name
        if here.why_not:
            rows[name] = Row("not-up", here.why_not)
        elif here.running and name in owners:
            line = Message("cluster.ray-of-other", {"command": context.command("status", owners[name])})
            rows[name] = Row("shared", line, joined=here.joined)
        else:
            rows[name] = Row("other" if here.running else "free", joined=here.joined)
    kinds = {row.what for row in rows.values()}
    word = "other" if "other" in kinds else "" if "shared" in kinds else "none"
    then = Message(f"cluster.ray-next-{word}", context.commands) if word else None
    title = Message("cluster.ray-none-for", {"source": context.source})
    tell(context.ui, Picture(title, "", rows, then=then), ExitCode.PROBLEMS)
    return ExitCode.PROBLEMS


def runs(heard: ProbeResult, *, is_head: bool = False) -> bool:
    """Whether the raylet lives, without which nothing is scheduled there; of a head also what all others need."""
    needed = {"raylet", "gcs_server"} if is_head else {"raylet"}
    return heard.answer is not None and needed <= set(heard.answer["running"])


def _serves(heard: ProbeResult | None) -> bool:
    """Whether the head has somebody to ask, so that nobody waits for a Ray that is gone."""
    is_there = heard is not None and heard.answer is not None and "gcs_server" in heard.answer["running"]
    return is_there and heard is not None and "gcs_server" not in (name for _, name in _stopped(heard))


def _stopped(heard: ProbeResult) -> list[tuple[int, str]]:
    """The servers of Ray there that a signal holds, by number and name."""
    return [(int(pid), str(name)) for pid, name in (heard.answer or {}).get("stopped", ())]


def _says_stopped(heard: ProbeResult) -> Message:
    rows = _stopped(heard)
    pids = " ".join(str(pid) for pid, _ in rows)
    return Message("cluster.ray-stopped", {"names": tuple(name for _, name in rows), "pids": pids})


def _is_lost(each: StartedNode | None, seen: RayStatus | None) -> bool:
    """Whether Ray has given up a node, which it does not take back, or has never heard of it."""
    if seen is None or seen.nodes is None or each is None or not each.address:
        return False
    row = seen.at(each.address)
    return row is None or not row.is_alive


def tell(ui: Ui, picture: Picture, code: ExitCode) -> None:
    if ui.is_json:
        ui.print_json(document(picture, int(code), ui.lang))
    elif not (ui.is_quiet and code is ExitCode.FINE and not picture.warned):
        print("\n".join(lines(picture, ui.lang)))
