"""Whether what waits in Ray could ever be placed, were all nodes free. Pure."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.facts.ray.status import APART, TOGETHER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npuenv.facts.ray.status import Demand

_SLACK = 1e-6  # Ray counts in ten-thousandths


class Lack(enum.Enum):
    """What there is too little of."""

    TOTAL = "total"  # in the whole cluster
    ONE = "one"  # on each single node, for one bundle
    TOGETHER = "together"  # on each single node, for all bundles, which STRICT_PACK places on one
    APART = "apart"  # nodes, of which STRICT_SPREAD wants one for each bundle
    CUT = "cut"  # of what the nodes have left when no bundle is cut


@dataclass(frozen=True, slots=True)
class UnsatisfiableDemand:
    """Why a demand waits for ever."""

    lack: Lack
    name: str  # the resource of which there is least for what is asked
    total: float  # of it in the whole cluster
    most: float  # of it on one node
    nodes: int  # that have room for a bundle


def unsatisfiable_demand(
    demand: Demand,
    total: Callable[[str], float | None],
    nodes: Sequence[Mapping[str, float]],
    count: int | None = None,
) -> UnsatisfiableDemand | None:
    """Why a demand waits for ever; None where it only waits for others to end, or nobody can tell.

    `total`: how much of a resource the whole cluster has; None: not known. `nodes`: what each node has; a resource
    that none of them lists is not known by node, and then only the total counts. `count`: how many nodes there are
    where nobody knows what each has. A task, an actor and each bundle fit on one node, whatever the strategy.
    """
    known = {name for node in nodes for name in node}
    totals = {
        name: sum(node.get(name, 0.0) for node in nodes) if name in known else total(name) for name in demand.names
    }
    for name, there in totals.items():
        if there is not None and demand.of(name) > there + _SLACK:
            return UnsatisfiableDemand(Lack.TOTAL, name, there, _most(name, nodes), 0)
    lack, room = _lack(demand, known, nodes, len(nodes) or count)
    if lack is None:
        return None
    name = max(demand.names, key=lambda name: demand.largest(name) / (_most(name, nodes) or math.inf))
    return UnsatisfiableDemand(lack, name, totals[name] or 0.0, _most(name, nodes), room)


def _lack(
    demand: Demand, known: set[str], nodes: Sequence[Mapping[str, float]], count: int | None
) -> tuple[Lack | None, int]:
    """(what there is too little of, how many nodes have room for a bundle)."""
    if demand.how == APART and count is not None and demand.count > count:
        return Lack.APART, count
    for bundle in demand.bundles:
        needs = {name: need for name, need in bundle.needs if name in known and need > 0}
        rooms = [_room(needs, node) for node in nodes] if needs else []
        room = sum(each > 0 for each in rooms)
        if rooms and not room:
            return Lack.ONE, 0
        if rooms and demand.how == APART and room < bundle.count:
            return Lack.APART, room
        if rooms and demand.how != TOGETHER and sum(rooms) < bundle.count:
            return Lack.CUT, room
    whole = {name: demand.of(name) for name in demand.names if name in known}
    if demand.how == TOGETHER and whole and not any(_room(whole, node) for node in nodes):
        return Lack.TOGETHER, 0
    return None, 0


def _most(name: str, nodes: Sequence[Mapping[str, float]]) -> float:
    return max((node.get(name, 0.0) for node in nodes), default=0.0)


def _room(needs: Mapping[str, float], node: Mapping[str, float]) -> int:
    """How many bundles one node can take."""
    rooms = (math.floor((node.get(name, 0.0) + _SLACK) / need) for name, need in needs.items() if need > 0)
    return min(rooms, default=1)
