"""The record of what was started on which nodes: one file for each inventory."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.cluster.inventory import NO_JUMP, Node
from npuenv.core.errors import BadInput
from npuenv.core.json_input import load_file
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npuenv.cluster.inventory import Inventory

SCHEMA = "npuenv.ray-cluster/1"
_SSH_PORT = 22


@dataclass(frozen=True, slots=True)
class StartedNode:
    """Ray on one node, as it was started: enough to find exactly these processes again."""

    node: Node
    boot: str = ""  # of the node's kernel; "": the outcome of the start is not known
    session: int = 0  # 0: as above
    processes: tuple[tuple[int, int, str], ...] = ()  # number, time of start, name
    cards: int = 0
    mark: str = ""  # the word in the environment of its processes
    address: str = ""  # by which Ray calls the node; "": not known


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster that was started from here."""

    address: str  # host:port of the head
    ray: str  # the program, as it was asked for
    started: tuple[StartedNode, ...] = ()
    head: str = ""  # the name of the node
    source: str = ""  # the inventory

    @property
    def cards(self) -> int:
        """What Ray ought to count in all."""
        return sum(each.cards for each in self.started)

    @property
    def head_node(self) -> Node | None:
        """The head; None where it was ended, and others could not be."""
        return next((each.node for each in self.started if each.node.name == self.head), None)

    def with_started(self, more: StartedNode) -> Cluster:
        """With what is known about one node now, in place of what was known before."""
        others = self.without(more.node.name)
        return replace(others, started=(*others.started, more))

    def without(self, *names: str) -> Cluster:
        """Without some nodes."""
        return replace(self, started=tuple(each for each in self.started if each.node.name not in names))


def state_path(inventory: Inventory | str, environ: Mapping[str, str]) -> Path:
    """Where it is written down what was started on the nodes of an inventory: of a file, or of what stdin gave."""
    if isinstance(inventory, str):
        name = os.path.realpath(inventory)
    elif inventory.source != "-":
        name = os.path.realpath(inventory.source)
    else:
        name = "-" + "".join(f"\n{node}" for node in inventory.nodes)
    return state_folder(environ) / f"{hashlib.sha256(name.encode()).hexdigest()[:12]}.json"


def state_folder(environ: Mapping[str, str]) -> Path:
    """Where all of them lie."""
    from npuenv.install.locations import data_folder

    return Path(data_folder(environ), "clusters")


def clusters_sharing(
    nodes: Sequence[Node], environ: Mapping[str, str], own: Path
) -> Iterator[tuple[Cluster, tuple[str, ...]]]:
    """The clusters that other inventories have on the same nodes, with the names by which these are asked for here."""
    for path in sorted(state_folder(environ).glob("*.json")):
        cluster = load(path) if path != own else None
        if cluster is not None:
            theirs = {_endpoint(each.node) for each in cluster.started}
            common = tuple(node.name for node in nodes if _endpoint(node) in theirs)
            if common:
                yield cluster, common


def _endpoint(node: Node) -> tuple[str, int, str]:
    """What two inventories say alike where they mean one machine; a private address needs its jump host."""
    return node.address, node.port or _SSH_PORT, (node.jump or NO_JUMP)


def save(cluster: Cluster, path: Path) -> None:
    """Writes down what was started. Raises BadInput where that cannot be written."""
    from npuenv.host.writing import write_whole

    document: dict[str, Any] = {"schema": SCHEMA, "address": cluster.address, "ray": cluster.ray}
    document |= {"head": cluster.head, "source": cluster.source, "started": [asdict(each) for each in cluster.started]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(str(path), json.dumps(document, indent=1) + "\n")
    except OSError as error:
        args = {"path": str(path), "reason": error.strerror or str(error)}
        raise BadInput(Message("cli.cannot-save", args), Message("cli.cannot-save-hint")) from error


def load(path: Path) -> Cluster | None:
    """What was started; None where nothing is. Raises BadInput for a file that says something else."""
    try:
        document = load_file(path)
        if document["schema"] != SCHEMA:
            raise ValueError(document["schema"])
        started = tuple(_started(row) for row in document["started"])
        head = str(document.get("head") or (started[0].node.name if started else ""))
        source = str(document.get("source") or "")
        return Cluster(str(document["address"]), str(document["ray"]), started, head, source)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            Message("cluster.bad-state", {"path": str(path)}), Message("cluster.bad-state-hint", {"path": str(path)})
        ) from error


def _started(row: Mapping[str, Any]) -> StartedNode:
    rows = tuple((int(pid), int(began), str(name)) for pid, began, name in row["processes"])
    more = {key: str(row.get(key, "")) for key in ("mark", "address")}
    return StartedNode(Node(**row["node"]), str(row["boot"]), int(row["session"]), rows, int(row["cards"]), **more)
