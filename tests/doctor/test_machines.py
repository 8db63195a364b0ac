"""Simulated machines: healthy ones stay silent, and every single fault put into one is named by the right check.

The machines and the faults are data (`machines/`). Faults are edits of raw text, files, variables and packages; those
marked `blind` were written before the checks were seen.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.machines import composed, seeded

FAULTS = seeded.faults()
WANTED = 0.97
OF_A_MACHINE = {name: [fault for fault in FAULTS if fault["machine"] == name] for name in seeded.names()}


@pytest.mark.parametrize("name", seeded.names())
def test_a_healthy_machine_stays_silent(name: str) -> None:
    tolerated = composed.machine(name)["tolerated"]
    loud = {
        check: finding.status.value
        for check, finding in seeded.healthy(name).items()
        if finding.status.value not in ("ok", "skip")
    }
    assert loud == tolerated


# Every second machine is left to `.ci/run`: the same checks see faults of the same kinds on the others.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if at % 2 else ())
        for at, name in enumerate(name for name, faults in OF_A_MACHINE.items() if faults)
    ],
)
def test_every_fault_of_a_machine_is_named_by_the_right_check(name: str) -> None:
    faults = [fault for fault in OF_A_MACHINE[name] if "missed" not in fault]
    silent = {fault["id"]: sorted(seeded.moved(fault)) for fault in faults if not seeded.is_found(fault)}
    assert silent == {}


def test_a_fault_that_is_known_to_be_missed_is_still_missed() -> None:
    found = [fault["id"] for fault in FAULTS if "missed" in fault and seeded.is_found(fault)]
    assert found == [], "take the word `missed` away from these"


def test_recall_is_what_was_promised() -> None:
    """Those that are not known to be missed are each found, as the test of their machine shows."""
    found = sum("missed" not in fault for fault in FAULTS)
    assert len(FAULTS) >= 150
    assert found / len(FAULTS) >= WANTED


def test_at_least_half_of_the_faults_were_written_before_the_checks_were_seen() -> None:
    assert 2 * sum(fault.get("blind", False) for fault in FAULTS) >= len(FAULTS)


def test_the_machines_are_really_different() -> None:
    kinds = Counter(kind_of(composed.machine(name)) for name in seeded.names())
    assert len(kinds) >= 20
    assert max(kinds.values()) == 1


def kind_of(told: dict[str, Any]) -> tuple[str, ...]:
    """What tells machines apart: chip, cards, driver, CANN, system, architecture, container, main packages."""
    packages, files = told["python"]["packages"], told["files"]
    return (
        told["chip_name"],
        str(sum(path[len("/dev/davinci") :].isdigit() for path in told["devices"])),
        files.get("/usr/local/Ascend/driver/version.info", "").partition("\n")[0],
        told["environ"].get("ASCEND_HOME_PATH", ""),
        files["/etc/os-release"].splitlines()[0],
        told["commands"]["uname -m"],
        str("/.dockerenv" in files),
        *(packages.get(name, "") for name in ("torch", "torch-npu", "vllm-ascend", "verl", "sglang")),
    )


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault["id"]))
def test_a_fault_says_what_it_is_and_where_it_is_known_from(fault: dict[str, Any]) -> None:
    assert fault["machine"] in seeded.names()
    assert fault["level"] in (0, 1, 2)
    assert fault["means"] and fault["source"] and fault["edits"]
    assert fault["must"], "the check that has to speak"


def test_no_fault_stands_twice() -> None:
    assert max(Counter(fault["id"] for fault in FAULTS).values()) == 1
