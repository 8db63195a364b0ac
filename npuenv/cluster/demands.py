"""Whether what waits in Ray could ever be placed, were all nodes free. Pure; start from `never`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from npuenv.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npuenv.facts.ray.status import Demand

_SLACK = 1e-6  # Ray counts in ten-thousandths
_TOGETHER, _APART = "STRICT_PACK", "STRICT_SPREAD"


def never(demand: Demand, total: Callable[[str], float], nodes: Sequence[Mapping[str, float]]) -> Message | None:
    """Why a demand waits for ever; None where it only waits for others to end.

    `total`: how much of a resource the whole cluster has. `nodes`: what each node has; a resource that none of them
    lists is not known by node, and then only the total counts. A task, an actor and each bundle fit on one node.
    """
    known = {name for node in nodes for name in node}
    for name, need in demand.needs:
        there = total(name) if name not in known else sum(node.get(name, 0.0) for node in nodes)
        if need * demand.bundles > there + _SLACK:
            return Message("cluster.ray-never", {"line": demand.line, "name": name, "total": f"{there:g}"})
    needs = {name: need for name, need in demand.needs if name in known and need > 0}
    rooms = [_room(needs, node) for node in nodes]
    if not needs or _fits(demand, rooms):
        return None
    name, need = max(needs.items(), key=lambda item: item[1] / max(node.get(item[0], 0.0) for node in nodes))
    args: dict[str, object] = {"line": demand.line, "name": name, "bundles": demand.bundles, "need": f"{need:g}"}
    args |= {"most": f"{max(node.get(name, 0.0) for node in nodes):g}", "nodes": sum(room > 0 for room in rooms)}
    word = "one" if not any(rooms) else {_TOGETHER: "together", _APART: "apart"}.get(demand.how, "cut")
    return Message(f"cluster.ray-never-{word}", args)


def _room(needs: Mapping[str, float], node: Mapping[str, float]) -> int:
    """How many bundles one node can take."""
    return min((math.floor((node.get(name, 0.0) + _SLACK) / need) for name, need in needs.items()), default=0)


def _fits(demand: Demand, rooms: Sequence[int]) -> bool:
    if demand.how == _TOGETHER:
        return max(rooms) >= demand.bundles
    if demand.how == _APART:
        return sum(room > 0 for room in rooms) >= demand.bundles
    return sum(rooms) >= demand.bundles
