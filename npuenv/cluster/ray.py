"""Ray on the nodes of an inventory: started one after another, looked at, and ended again. Start from `raise_up`.

What is started is written down (`npuenv.cluster.ray_state`), and only that is ever ended. A Ray that is there already
is left alone. The scripts that start a node are those of `npuenv.render.launch.ray`.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from npuenv.cluster.probing.transport import Heard, run
from npuenv.cluster.ray_state import Cluster, Started
from npuenv.core.messages import Message
from npuenv.preflight.memory.types import Cards
from npuenv.render.launch.ray import FILES, render_ray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npuenv.cluster.probing.transport import Way
    from npuenv.cluster.types import Node
    from npuenv.resolve.types import Stack

_PROGRAM = "ray_node"
_AROUND_S = 30.0  # beside what is asked for: connecting, and ending what hangs
_AUTH = "RAY_AUTH_MODE"


@dataclass(frozen=True, slots=True)
class Here:
    """What one node has, before anything is started."""

    node: Node
    why_not: str = ""  # why it said nothing; "" where it did
    ray: str = ""  # the program there; "": there is none
    version: str = ""
    python: str = ""
    cards: int = 0  # that Ray would see by itself
    running: tuple[str, ...] = ()  # servers of a Ray that is there already
    joined: tuple[str, ...] = ()  # the addresses of its head
    login: str = ""  # its own address by which it was reached; "": not known
    is_own: bool = False  # the address of the inventory is one of its own
    boot: str = ""  # the kernel's number of this start; "" where it could not be read
    network: str = ""  # the kernel's number of the node's network; "" as above


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be started. `port` and `dashboard_port` are the head's."""

    nodes: tuple[Node, ...]  # the head first
    ray: str = ""  # the program or its environment's folder on the nodes; "": the one on PATH there
    port: int = 6379
    dashboard_port: int = 8265
    framework: str = "verl"
    stack: Stack | None = None
    limit_s: float = 120.0  # for each node
    address: str = ""  # by which the nodes reach the head; "": the inventory's


@dataclass(frozen=True, slots=True)
class Failed:
    """A node that did not come up, with the last words of what was tried there."""

    node: Node
    said: str
    is_clean: bool = True  # it is known that nothing was left running there


@dataclass(frozen=True, slots=True)
class Clash:
    """Why nothing is started: what is wrong with which nodes."""

    says: Message
    nodes: tuple[str, ...]
    lines: tuple[str, ...] = field(default=())


def survey(nodes: Sequence[Node], ray: str, way: Way) -> list[Here]:
    """What each node has, in their order."""

    def asked(node: Node) -> dict[str, Any]:
        return {"do": "look", "ray": ray, "address": node.address}

    found = {heard.node.name: _here(heard) for heard in _run(nodes, asked, 60.0, way)}
    return [found[node.name] for node in nodes]


def clashes(found: Sequence[Here], others: Mapping[str, str] = MappingProxyType({})) -> list[Clash]:
    """What keeps Ray from being started on these nodes; [] where nothing does. Versions are compared before a start:
    a node with another Ray fails late, and some of them without a word.

    `others`: the nodes on which Ray was started for another inventory, with the command that ends it.
    """
    silent = [here for here in found if here.why_not]
    heard = [here for here in found if not here.why_not]
    absent = [here.node.name for here in heard if not here.ray]
    busy = [here for here in heard if here.running]
    wrong = []
    if silent:
        lines = tuple(f"{here.node.name}: {here.why_not}" for here in silent)
        wrong.append(Clash(Message("cluster.ray-silent"), tuple(here.node.name for here in silent), lines))
    if absent:
        wrong.append(Clash(Message("cluster.ray-absent"), tuple(absent)))
    for command in sorted({others.get(here.node.name, "") for here in busy}):
        these = [here for here in busy if others.get(here.node.name, "") == command]
        says = Message("cluster.ray-runs-for", {"command": command}) if command else Message("cluster.ray-runs-already")
        lines = tuple(f"{here.node.name}: {', '.join((*here.running, *here.joined))}" for here in these)
        wrong.append(Clash(says, tuple(here.node.name for here in these), lines))
    return [*wrong, *_twice(heard), *_other_cards(heard), *_other_versions([here for here in heard if here.ray])]


def _twice(found: Sequence[Here]) -> list[Clash]:
    """The nodes that are one and the same, on which two raylets would count the same cards."""
    same: dict[tuple[str, str], list[str]] = {}
    for here in found:
        if here.boot and here.network:
            same.setdefault((here.boot, here.network), []).append(here.node.name)
    return [Clash(Message("cluster.ray-one-machine"), tuple(names)) for names in same.values() if len(names) > 1]


def _other_cards(found: Sequence[Here]) -> list[Clash]:
    """The nodes that see some cards, and not as many as the inventory says: a run would wait for the others for ever,
    or take those that are not meant for it.
    """
    kinds: dict[tuple[int, int], list[str]] = {}
    for here in found:
        if here.cards and here.node.cards is not None and here.cards != here.node.cards:
            kinds.setdefault((here.cards, here.node.cards), []).append(here.node.name)
    return [
        Clash(Message("cluster.ray-cards-other", {"found": seen, "expected": wanted}), tuple(names))
        for (seen, wanted), names in kinds.items()
    ]


def _other_versions(found: Sequence[Here]) -> list[Clash]:
    """The nodes whose Ray or Python is not the common one; by themselves those whose versions could not be read."""
    if len(found) < 2:
        return []
    is_python_told = any(here.python for here in found)  # by none where `ray` is a script of another kind
    unread = [here.node.name for here in found if not here.version or (is_python_told and not here.python)]
    wrong = [Clash(Message("cluster.ray-version-unknown"), tuple(unread))] if unread else []
    kinds: dict[tuple[str, str], list[str]] = {}
    for here in found:
        if here.node.name not in unread:
            kinds.setdefault((here.version, here.python), []).append(here.node.name)
    common = max(kinds, key=lambda kind: len(kinds[kind]), default=None)
    for kind, names in kinds.items():
        if common is not None and kind != common:
            args = {"ray": kind[0], "python": kind[1] or "?", "common_ray": common[0]}
            args["common_python"] = common[1] or "?"
            wrong.append(Clash(Message("cluster.ray-versions", args), tuple(names)))
    return wrong


def raise_up(
    plan: Plan, found: Sequence[Here], way: Way, note: Callable[[Started], object]
) -> Iterator[Started | Failed]:
    """Starts Ray on the nodes that were found, one after another, each as it is done; ends after a failed head.

    One at a time: several raylets that start at once on a small machine abort each other. Cards that Ray sees by itself
    are counted by it; else it is told how many the inventory names. `note` is called before each start with what finds
    its processes, whatever becomes of it.
    """
    for here in found:
        begun = Started(here.node, cards=here.cards or here.node.cards or 0, mark=secrets.token_hex(8))
        note(begun)
        result = _start(plan, begun, way)
        yield result
        if here.node == plan.nodes[0] and isinstance(result, Failed):
            return


def ask_ray(cluster: Cluster, limit_s: float, way: Way) -> Heard:
    """What Ray says of itself on the head, for `npuenv.cluster.ray_status.read`."""
    head = cluster.head_node
    if head is None:  # it was ended
        return Heard(cluster.started[0].node, None, 0.0, 0.0, f"{cluster.head}: -")
    asked = {"do": "status", "what": ("nodes", "table"), "ray": cluster.ray, "address": cluster.address}
    (heard,) = _run([head], lambda _: {**asked, "limit_s": limit_s, "environ": _environ()}, limit_s, way)
    return heard


def ask_alive(cluster: Cluster, way: Way) -> dict[str, Heard]:
    """Which of the started processes still run, by node. `ray status` alone can be stale."""
    return _each(cluster, "alive", way)


def take_down(cluster: Cluster, way: Way) -> dict[str, Heard]:
    """Ends what was started, the head last, so that no worker tries to join it again meanwhile."""
    workers = tuple(each for each in cluster.started if each.node.name != cluster.head)
    head = tuple(each for each in cluster.started if each.node.name == cluster.head)
    ended = {}
    for part in (workers, head):
        ended.update(_each(replace(cluster, started=part), "stop", way) if part else {})
    return {each.node.name: ended[each.node.name] for each in (*head, *workers)}


def _start(plan: Plan, begun: Started, way: Way) -> Started | Failed:
    shape = Cards("", begun.cards, len(plan.nodes))
    files = render_ray(
        shape,
        head=None,
        port=plan.port,
        dashboard_port=plan.dashboard_port,
        framework=plan.framework,
        stack=plan.stack,
    )
    script = "ray_head.sh" if begun.node == plan.nodes[0] else "ray_worker.sh"
    asked = {
        **{"do": "start", "ray": plan.ray, "script": script, "mark": begun.mark},
        **{"address": plan.address or plan.nodes[0].address, "is_multi_node": len(plan.nodes) > 1},
        **{"files": {name: files[name] for name in FILES}, "limit_s": plan.limit_s, "environ": _environ()},
    }
    (heard,) = _run([begun.node], lambda _: asked, plan.limit_s, way)
    told = heard.told
    if told is None:
        return Failed(begun.node, heard.why, is_clean=False)
    if not told["processes"]:
        return Failed(begun.node, str(told["said"]).strip(), is_clean=not told["left"])
    rows = tuple((int(pid), int(began), str(name)) for pid, began, name in told["processes"])
    boot, session, address = str(told["boot"]), int(told["session"]), str(told["address"])
    return replace(begun, boot=boot, session=session, processes=rows, address=address)


def _each(cluster: Cluster, what: str, way: Way) -> dict[str, Heard]:
    by_name = {each.node.name: each for each in cluster.started}

    def asked(node: Node) -> dict[str, Any]:
        each = by_name[node.name]
        known = {"boot": each.boot, "session": each.session, "processes": each.processes, "mark": each.mark}
        return {"do": what, **known}

    nodes = [each.node for each in cluster.started]
    found = {heard.node.name: heard for heard in _run(nodes, asked, 30.0, way)}
    return {node.name: found[node.name] for node in nodes}


def _run(
    nodes: Sequence[Node], asked: Callable[[Node], Mapping[str, Any]], limit_s: float, way: Way
) -> Iterator[Heard]:
    return run(nodes, _PROGRAM, asked, limit_s=limit_s + _AROUND_S, way=way)


def _here(heard: Heard) -> Here:
    told = heard.told
    if told is None:
        return Here(heard.node, why_not=heard.why)
    texts: dict[str, Any] = {key: str(told[key]) for key in ("ray", "version", "python", "login", "boot", "network")}
    running, joined = (tuple(map(str, told[key])) for key in ("running", "joined"))
    more: dict[str, Any] = {"running": running, "joined": joined, "is_own": bool(told["is_own"])}
    return Here(heard.node, **texts, cards=int(told["cards"]), **more)


def _environ() -> dict[str, str]:
    """What all of Ray's commands need alike. A token that a plain `ray.init()` left on one node lets no other one in;
    who wants tokens says so by the same variable here.
    """
    return {_AUTH: os.environ.get(_AUTH, "disabled")}
