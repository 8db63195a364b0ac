"""The processes of a placed run: reserves resources, starts an actor in each, and sets up the trainer and its
variables.

Errors occur here before any training, and are reported as a sentence (`PlacementError`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import signal
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trainer
from trainer import device as devices
from trainer import launch
from trainer.placement import CPU, PlacementError, list_nodes, lost_node, worker_actor
from trainer.placement.ray_nodes import holders, how_lost, ray_error_line
from trainer.placement.worker_actor import WorkerActor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trainer.placement import Placement, WorkerSlot
    from trainer.placement.cluster import Cluster

_ROOT = Path(trainer.__file__).parents[1]
# Ray's threads for an actor: one computes, the others answer meanwhile.
_GROUPS = {"work": 1, "watch": 2}
_SAID_AFTER_S = 5.0
_STOPPED_S = 5.0
# For what waits for Ray's head, which may be gone.
_QUIETLY_S = 5.0
# Between two looks at whether the nodes are all there while a process is waited for.
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Worker:
    """An actor at its place."""

    slot: WorkerSlot
    address: str
    pid: int
    handle: Any

    @property
    def name(self) -> str:
        """Example: `generator 1 on 10.0.0.2`."""
        return f"{self.slot.name} on {self.address}"

    def ask(self, name: str, *args: Any, is_beside: bool = False) -> Any:
        """Ray's reference to the result of a method of the process; in parallel to its computations, if requested."""
        if is_beside:
            return self.handle.watch.options(concurrency_group="watch").remote(name, *args)
        return self.handle.call.options(concurrency_group="work").remote(name, *args)


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The processes of one attempt."""

    placement: Placement
    ranks: tuple[Worker, ...]
    group: Any  # Ray's placement group, with the places of the generators too


@contextlib.contextmanager
def started(
    placement: Placement, cluster: Cluster, header: Mapping[str, Any], say: Callable[[str], object], *, limit_s: float
) -> Iterator[WorkerGroup]:
    """A process for every rank, with its variables, and reserved resources for the generators.

    Raises PlacementError, also if a node is lost meanwhile.
    """
    deadline = time.monotonic() + limit_s

    def look() -> None:
        if (lost := lost_node(placement, cluster.nodes())) is not None:
            raise PlacementError(lost[1])

    with contextlib.ExitStack() as stack:
        group = _reserve(placement, cluster, stack, say, deadline, look)
        handles = [actor(slot, placement.resource, group) for slot in placement.learners]
        for handle in handles:
            stack.callback(kill, handle)
        names = [slot.name for slot in placement.learners]
        asked = [settle(handle, slot, placement) for handle, slot in zip(handles, placement.learners, strict=True)]
        facts = collect(asked, names, deadline - time.monotonic(), look)
        _check_ids(placement, facts, is_own=cluster.is_own)
        answers = [
            handle.set_env.options(concurrency_group="work").remote(environ, interfaces(placement, each))
            for handle, environ, each in zip(handles, _environs(placement, facts, header), facts, strict=True)
        ]
        collect(answers, names, deadline - time.monotonic(), look)
        workers = [
            Worker(slot, placement.nodes[slot.node].address, each["pid"], handle)
            for slot, each, handle in zip(placement.learners, facts, handles, strict=True)
        ]
        yield WorkerGroup(placement, tuple(workers), group)


def _reserve(
    placement: Placement,
    cluster: Cluster,
    stack: contextlib.ExitStack,
    say: Callable[[str], object],
    deadline: float,
    look: Callable[[], None],
) -> Any:
    """The placement group. The nodes are known to be large enough, so it waits only for other users of them."""
    from ray.util.placement_group import placement_group, remove_placement_group

    bundles = placement.bundles()
    group = placement_group(bundles, strategy="STRICT_SPREAD" if len(bundles) > 1 else "STRICT_PACK")
    stack.callback(_quietly, remove_placement_group, group)
    if group.wait(_SAID_AFTER_S):
        return group
    reason = f"{_pending(placement, bundles)} not free in Ray: {_free(cluster)}"
    if others := holders([node.key for node in placement.nodes]):
        reason += f"; held by {others}"
    look()
    say(f"waits: {reason}")
    while (left_s := deadline - time.monotonic()) > 0:
        if group.wait(min(left_s, _LOOK_S)):
            return group
        look()
    raise PlacementError(f"{reason}. Wait for that to end, or ask for fewer cards; `ray status` tells what is pending")


def _pending(placement: Placement, bundles: Sequence[Mapping[str, float]]) -> str:
    parts = []
    for node, bundle in zip(placement.nodes, bundles, strict=True):
        requested = ", ".join(f"{count:g} {name}" for name, count in bundle.items() if not name.startswith("node:"))
        parts.append(f"{requested} on {node.address}")
    return f"{' and '.join(parts)} {'are' if len(parts) > 1 or ',' in parts[0] else 'is'}"


def _free(cluster: Cluster) -> str:
    """The free resources of each node, as far as Ray reports them."""
    from ray._private import state  # no public API gives them by node; ray.available_resources() is the sum

    by_node: Mapping[str, Any] = getattr(state, "available_resources_per_node", dict)()
    return list_nodes([replace(node, total=by_node.get(node.key, {})) for node in cluster.nodes()]) + " free"


def actor(slot: WorkerSlot, resource: str, group: Any, *, label: str | None = None) -> Any:
    """An actor bound to the reserved bundle of a slot; with a label the existing one, if there is one.

    Ray does not restart it: its state would be lost.
    """
    import ray
    from ray import cloudpickle
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    # Nodes need not have the trainer: what runs there first travels by value.
    cloudpickle.register_pickle_by_value(worker_actor)
    options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0}
    if resource == devices.RAY_GPU:
        options["num_gpus"] = len(slot.local)
    elif resource != CPU:
        options["resources"] = {resource: len(slot.local)}
    if resource in devices.RAY_KEEPS_OUT:
        options["runtime_env"] = {"env_vars": {devices.RAY_KEEPS_OUT[resource]: "1"}}
    if label is not None:
        options |= {"name": label, "get_if_exists": True}
    strategy = PlacementGroupSchedulingStrategy(group, slot.node)
    made = ray.remote(concurrency_groups=_GROUPS, **options)(WorkerActor)
    return made.options(scheduling_strategy=strategy).remote()


def settle(handle: Any, slot: WorkerSlot, placement: Placement) -> Any:
    """Has an actor take the trainer and its cards; Ray's reference to what `WorkerActor.settle` gives."""
    node = placement.nodes[slot.node]
    cards: dict[str, Any] = {}
    if placement.resource in devices.VISIBLE:
        held = [card for each in placement.slots if each.node == slot.node for card in each.local]
        cards = {"variable": devices.VISIBLE[placement.resource], "resource": placement.resource, "local": slot.local}
        cards["held"] = sorted(held)
    copy = None if node.is_home else _package()
    return handle.settle.options(concurrency_group="work").remote(str(_ROOT), copy, node.address, cards)


@functools.cache
def _package() -> bytes:
    return worker_actor.zipped(str(_ROOT / "trainer"))


def collect(
    asked: Sequence[Any], names: Sequence[str], limit_s: float, look: Callable[[], None] | None = None
) -> list[Any]:
    """What all of them answer. Raises PlacementError for the first that fails or does not answer in time.

    `look` is called now and then: it may raise for a reason why they cannot answer.
    """
    import ray

    deadline = time.monotonic() + limit_s
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=min(left_s, _LOOK_S) if look else left_s)
        if not late or not look or not left_s:
            break
        look()
    found = {each: _answer(each, names[asked.index(each)]) for each in done}
    if late:
        raise PlacementError(
            f"{', '.join(names[asked.index(each)] for each in late)} did not start within {limit_s:.0f} s"
        )
    return [found[each] for each in asked]


def _answer(asked: Any, name: str) -> Any:
    import ray

    try:
        return ray.get(asked)
    except ray.exceptions.RayActorError as error:
        raise PlacementError(f"{name} could not be started: it {how_lost(error)}") from error
    except Exception as error:  # any error that a process fails with before it has begun
        raise PlacementError(
            f"{name} could not be started: {ray_error_line(getattr(error, 'cause', None) or error)}"
        ) from error


def _check_ids(placement: Placement, facts: Sequence[Mapping[str, Any]], *, is_own: bool) -> None:
    """Raises PlacementError if the requested cards are not those that Ray has reserved, or do not exist.

    Ray's assignment of the run's cards to its processes does not matter: each process gets its own cards explicitly.
    """
    if placement.resource == CPU:
        return
    for index, node in enumerate(placement.nodes):
        own = [each for slot, each in zip(placement.learners, facts, strict=True) if slot.node == index]
        requested = {name for each in own for name in each["held"]}
        given = {name for each in own for name in each["given"]}
        variable = devices.VISIBLE[placement.resource]
        if "missing" in requested:
            raise PlacementError(
                f"{variable} on {node.address} leaves fewer cards than Ray counts there: start Ray anew"
            )
        holds_all = len(requested) >= int(node.total[placement.resource])
        if not (given <= requested or holds_all or is_own):
            raise PlacementError(
                f"Ray has set aside cards {','.join(sorted(given))} of {node.address} for this run, where "
                f"{','.join(sorted(requested))} are asked for, which it may give to others: ask for all cards of a node"
            )


def _environs(
    placement: Placement, facts: Sequence[Mapping[str, Any]], header: Mapping[str, Any]
) -> Iterator[dict[str, str]]:
    """The variables of each process: who it is among the ranks, and where these meet."""
    are_together = _are_together(placement)
    address = "127.0.0.1" if are_together else placement.nodes[placement.learners[0].node].address
    nodes = [slot.node for slot in placement.learners]
    for number, each in enumerate(facts):
        placed = {**header, "pids": [each["pid"] for each in facts]}
        # A process that has reserved cards sees these only.
        card = nodes[:number].count(nodes[number]) if placement.resource == CPU else 0
        environ = {launch.PLACED: json.dumps(placed), "LOCAL_RANK": str(card)}
        environ |= {"RANK": str(number), "WORLD_SIZE": str(len(placement.learners))}
        environ |= {"MASTER_ADDR": address, "MASTER_PORT": str(facts[0]["port"])}
        yield environ


def _are_together(placement: Placement) -> bool:
    return len({slot.node for slot in placement.learners}) == 1


def interfaces(placement: Placement, facts: Mapping[str, Any]) -> dict[str, str]:
    """The variables that select a rank's network interface, unless its node sets them itself."""
    if _are_together(placement):
        return {"GLOO_SOCKET_IFNAME": "lo"}
    if not (interface := facts["interface"]):
        return {}
    found = {"GLOO_SOCKET_IFNAME": interface}
    if placement.resource in devices.INTERFACE:
        found[devices.INTERFACE[placement.resource]] = devices.INTERFACE_EXACT.format(interface)
    return found


def check_folder(group: WorkerGroup, out: Path, limit_s: float) -> None:
    """Raises PlacementError if ranks on other nodes do not see the output folder, from which all of them resume."""
    others = [each for each in group.ranks if not group.placement.nodes[each.slot.node].is_home]
    if not others:
        return
    mark = out / f".{secrets.token_hex(8)}"
    out.mkdir(parents=True, exist_ok=True)
    mark.touch()
    try:
        asked = [each.handle.sees.options(concurrency_group="work").remote(str(mark)) for each in others]
        seen = collect(asked, [each.name for each in others], limit_s)
    finally:
        mark.unlink()
    blind = sorted({each.address for each, is_seen in zip(others, seen, strict=True) if not is_seen})
    if blind:
        raise PlacementError(
            f"--out {out} is not the same folder on {', '.join(blind)}: "
            "ranks on several nodes need one on shared storage"
        )


def stop(handles: Sequence[Any]) -> None:
    """Has processes end themselves; waits for that for some seconds. Works without Ray's head, unlike `kill`."""
    import ray

    asked = []
    for handle in handles:
        with contextlib.suppress(Exception):  # it is gone already
            asked.append(handle.quit.options(concurrency_group="watch").remote())
    if asked:
        _quietly(functools.partial(ray.wait, asked, num_returns=len(asked), timeout=_STOPPED_S))


def end(group: WorkerGroup) -> None:
    """Ends the ranks if Ray cannot: each is asked to exit; those on this node that do not respond are killed."""
    stop([each.handle for each in group.ranks])
    here = [each.pid for each in group.ranks if group.placement.nodes[each.slot.node].is_home and _is_there(each.pid)]
    for pid in here:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _STOPPED_S
    while any(_is_there(pid) for pid in here) and time.monotonic() < deadline:
        time.sleep(0.05)


def _is_there(pid: int) -> bool:
    """Whether a process of this node is one of a run's."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::WorkerActo")
    except OSError:
        return False


def kill(handle: Any) -> None:
    """Ends an actor, if it has not ended."""
    import ray

    _quietly(ray.kill, handle)


def _quietly(function: Callable[..., object], *args: Any) -> None:
    """Ends what may have ended before; is not waited for when Ray does not answer."""

    def work() -> None:
        with contextlib.suppress(Exception):
            function(*args)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(_QUIETLY_S)
