"""The doctor over simulated machines: what it says of a healthy one, and which findings a single fault moves.

`healthy(machine, level)` and `faulty(fault)` give findings by check id; `moved(fault)` those that a fault made worse.
Faulty machines are read without the recording host, which takes longer than all else; `recorded(fault)` reads one with
it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from npuenv.checks import check_all
from npuenv.core.finding import Finding, Status
from npuenv.facts.collect import collect
from npuenv.host.recorded import RecordingHost
from tests.support.machines.composed import faults, machine, names
from tests.support.machines.edits import edited
from tests.support.machines.simulated import SimulatedHost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.host import Host

__all__ = ["faults", "faulty", "healthy", "is_found", "moved", "names", "recorded"]

Findings = dict[str, Finding]
BAD = (Status.WARN, Status.FAIL)


@functools.cache
def healthy(name: str, level: int = 2) -> Findings:
    """What the doctor says of a machine as it is described, through the same recording host as the command uses."""
    description = machine(name)
    return examined(description, level, RecordingHost(SimulatedHost(description)))


def faulty(fault: Mapping[str, Any]) -> Findings:
    """What it says with the fault put in, at the level that the fault needs (1 at least: what a user runs)."""
    return _faulty(fault["id"])


@functools.cache
def _faulty(name: str) -> Findings:
    fault = next(fault for fault in faults() if fault["id"] == name)
    broken = edited(machine(fault["machine"]), fault["edits"])
    return examined(broken, level_of(fault), SimulatedHost(broken))


def recorded(fault: Mapping[str, Any]) -> Findings:
    """The same as `faulty`, through the recording host."""
    broken = edited(machine(fault["machine"]), fault["edits"])
    return examined(broken, level_of(fault), RecordingHost(SimulatedHost(broken)))


def level_of(fault: Mapping[str, Any]) -> int:
    """The doctor's level at which the fault has to be found."""
    return max(1, int(fault["level"]))


def examined(description: dict[str, Any], level: int, host: Host) -> Findings:
    """Findings by check id on the host of a description."""
    framework = description["framework"]
    facts = collect(host, python=description["python"]["executable"], level=level, framework=framework)
    return {finding.check: finding for finding in check_all(facts, framework=framework, level=level)}


def moved(fault: Mapping[str, Any]) -> Findings:
    """The findings that are worse than on the healthy machine: a warning or a failure that was none there."""
    before = healthy(fault["machine"], level_of(fault))
    return {
        check: finding
        for check, finding in faulty(fault).items()
        if finding.status in BAD and finding.status is not before[check].status
    }


def is_found(fault: Mapping[str, Any]) -> bool:
    """Whether the check that has to speak does so, in one of the states that it may have."""
    found, before = faulty(fault), healthy(fault["machine"], level_of(fault))
    return any(
        found[check].status.value in states and found[check].status is not before[check].status
        for check, states in fault["must"].items()
        if check in found
    )
