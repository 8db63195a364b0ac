"""How long it takes to plan a mesh of pings and to reduce its failures. Run it:

python -m tests.benchmarks.mesh_times [NODES [CARDS]]
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from npuenv.cluster.localize import localize_faults
from npuenv.cluster.mesh import MeshDevice, full, sampled

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.cluster.mesh import Pair


def timed(call: Callable[[], object]) -> float:
    """The least of three, in seconds."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def devices_of(num_nodes: int, num_cards: int) -> list[MeshDevice]:
    return [
        MeshDevice(f"node{at:03}", card, f"10.{at // 250}.{at % 250}.{card + 1}", "255.0.0.0")
        for at in range(num_nodes)
        for card in range(num_cards)
    ]


def main() -> None:
    num_nodes, num_cards = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (64, 8)
    for devices in (devices_of(num_nodes - 1, num_cards), devices_of(num_nodes, num_cards)):
        plan = full(devices)
        print(f"{len(devices)} devices: {plan.num_pings} pings in {len(plan.rounds)} rounds, busiest node", end=" ")
        print(plan.most_of_a_node)
        print(f"  full mesh planned in {timed(partial(full, devices)):.2f} s", end=", ")
        print(f"sample of {sampled(devices).num_pings} in {timed(partial(sampled, devices)):.3f} s")
    pairs = [pair for pings in plan.rounds for pair in pings]
    faults: dict[str, Callable[[Pair], bool]] = {
        "one dead card": lambda pair: 77 in pair,
        "one dead node": lambda pair: any(devices[at].node == "node007" for at in pair),
        "one dead side": lambda pair: any(devices[at].card == 3 for at in pair),
        "one pair": lambda pair: {*pair} == {3, 77},
        "a tenth at random": lambda pair: hash(pair) % 10 == 0,
        "everything": lambda pair: True,
    }
    for name, is_broken in faults.items():
        failed = [pair for pair in pairs if is_broken(pair)]
        works = [pair for pair in pairs if not is_broken(pair)]
        began = time.perf_counter()
        found = localize_faults(devices, failed, works)
        print(f"  {name}: {len(failed)} failed pings reduced to {len(found)} in {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
