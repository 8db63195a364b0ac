"""How long it takes to plan a mesh of pings and to reduce its failures, and how well nodes keep in step. Run it:

python -m tests.benchmarks.mesh_times [NODES [CARDS]]
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from npuenv.cluster.localize import localize_faults
from npuenv.cluster.mesh import Device, PingPlan
from npuenv.cluster.mesh.planning import full, sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from npuenv.cluster.mesh import Pair

PING_S, DEAD_S, BATCH_S = 0.1, 3.0, 20.0  # of a ping that is answered, of one that is not, and of a batch


def timed(call: Callable[[], object]) -> float:
    """The least of three, in seconds."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def out_of_step(plan: PingPlan, dead: int | None, pace: float, seed: int = 0) -> tuple[float, float]:
    """The share of pings during which one of both devices takes part in another one, and the hours of the whole.

    Simulated: nodes make their pings one after another, no round before its time (`pace` times what an answer takes),
    and each batch begins when all have ended the last one.
    """
    rng = random.Random(seed)
    step_s = pace * PING_S
    size = max(1, int(BATCH_S / max(step_s, PING_S)))
    begin_s, num_met = 0.0, 0
    for start in range(0, len(plan.rounds), size):
        free_at = dict.fromkeys((device.node for device in plan.devices), begin_s)
        spans: defaultdict[int, list[tuple[float, float, Pair]]] = defaultdict(list)
        for step, pings in enumerate(plan.rounds[start : start + size]):
            for pair in pings:
                node = plan.devices[pair[0]].node
                begins = max(free_at[node], begin_s + step * step_s)
                free_at[node] = begins + (DEAD_S if dead in pair else PING_S * rng.uniform(0.8, 1.2))
                for place in pair:
                    spans[place].append((begins, free_at[node], pair))
        num_met += len(set(met(spans.values())))
        begin_s = max(free_at.values())
    return num_met / plan.num_pings, begin_s / 3600


def met(spans: Iterable[list[tuple[float, float, Pair]]]) -> Iterator[Pair]:
    """The pings that are under way at a device while another one is."""
    for each in spans:
        for (_, end, one), (begin, _, other) in pairwise(sorted(each)):
            if begin < end:
                yield from (one, other)


def devices_of(num_nodes: int, num_cards: int) -> list[Device]:
    return [
        Device(f"node{at:03}", card, f"10.{at // 250}.{at % 250}.{card + 1}", "255.0.0.0")
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
    for label, dead in (("no dead card", None), ("one dead card", 77)):
        for pace in (0.0, 1.25):
            share, hours = out_of_step(plan, dead, pace)
            print(f"  {label}, pace {pace}: {share:.1%} of pings met another one at a device; {hours:.2f} h in all")


if __name__ == "__main__":
    main()
