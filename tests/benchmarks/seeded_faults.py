"""Recall of the doctor on the seeded faults, area by area, with its false alarms on the healthy machines.

    python -m tests.benchmarks.seeded_faults

`found now`: the right check speaks. `first run`: it did when the checks were run on the faults for the first time, the
faults having been written without sight of the checks. `others`: further checks that one fault moved, on average.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.support.machines import composed, seeded

ROOT = Path(__file__).resolve().parent.parent.parent


def main() -> None:
    started = time.perf_counter()
    _print_false_alarms()
    _print_recall()
    print(f"\n{time.perf_counter() - started:.1f} s")


def _print_false_alarms() -> None:
    machines = seeded.names()
    alarms = [
        f"{name}: {check} {finding.status.value}"
        for name in machines
        for check, finding in seeded.healthy(name).items()
        if finding.status in seeded.BAD
    ]
    unsure = [
        f"{name}: {check}"
        for name in machines
        for check, finding in seeded.healthy(name).items()
        if finding.status.value == "unknown"
    ]
    kinds = len({composed.machine(name)["says"] for name in machines})
    print(f"{len(machines)} healthy machines, {kinds} kinds: {len(alarms)} false alarms, {len(unsure)} unknown")
    print("".join(f"  {line}\n" for line in (*alarms, *unsure)), end="")


def _print_recall() -> None:
    areas: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for fault in seeded.faults():
        areas[fault["area"]].append(fault)
    print(f"\n{'area':<12} {'faults':>6} {'blind':>6} {'first run':>10} {'found now':>10} {'others':>7}")
    for area in sorted(areas):
        _print_row(area, areas[area])
    _print_row("all", list(seeded.faults()))
    missed = [fault for fault in seeded.faults() if not seeded.is_found(fault)]
    print("".join(f"missed: {fault['id']}: {fault['means']}\n" for fault in missed), end="")


def _print_row(area: str, faults: list[dict[str, Any]]) -> None:
    blind = [fault for fault in faults if fault.get("blind")]
    first = sum(fault["first"] == "found" for fault in blind)
    found = sum(map(seeded.is_found, faults))
    others = sum(len(set(seeded.moved(fault)) - set(fault["must"])) for fault in faults) / len(faults)
    share = f"{100 * first / len(blind):.1f} %" if blind else "-"
    now = f"{100 * found / len(faults):.1f} %"
    print(f"{area:<12} {len(faults):>6} {len(blind):>6} {share:>10} {now:>10} {others:>7.2f}")


if __name__ == "__main__":
    main()
