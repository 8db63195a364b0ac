"""Simulated machines: healthy ones stay silent, and every single fault put into one is named by the right check.

The machines and the faults are data (`machines/`). Faults are edits of raw text, files, variables and packages; those
marked `blind` were written before the checks were seen.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.doctor import test_seeded_faults as seeded_faults
from tests.support.machines import composed, seeded
from tests.support.sentences import in_both_languages

FAULTS = seeded.faults()
WANTED = 0.97
OF_A_MACHINE = {name: [fault for fault in FAULTS if fault["machine"] == name] for name in seeded.names()}


@pytest.mark.parametrize("name", seeded.names())
@pytest.mark.one_in(3)
def test_a_healthy_machine_stays_silent(name: str) -> None:
    tolerated = composed.machine(name)["tolerated"]
    loud = {
        check: finding.status.value
        for check, finding in seeded.healthy(name).items()
        if finding.status.value not in ("ok", "skip")
    }
    assert loud == tolerated


def firsts() -> set[str]:
    """One fault for each check that the unmarked rows of `seeded_faults.toml` do not show at work."""
    shown = {check for row in seeded_faults.UNMARKED for check in row["must"]}
    found = set()
    for fault in FAULTS:
        if "missed" not in fault and not shown.issuperset(fault["must"]):
            found.add(fault["id"])
            shown.update(fault["must"])
    return found


FIRST = firsts()


# README's tests try one fault for each check; the others, of the same kinds on other machines, are tried by `.ci/run`.
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault["id"], marks=() if fault["id"] in FIRST else pytest.mark.slow)
        for fault in FAULTS
        if "missed" not in fault
    ],
)
def test_a_fault_is_named_by_the_right_check(fault: dict[str, Any]) -> None:
    moved = seeded.moved(fault)
    assert seeded.is_found(fault), sorted(moved)
    assert all(in_both_languages(finding) for finding in moved.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, faults in OF_A_MACHINE.items() if faults])
def test_a_recording_changes_no_finding(name: str) -> None:
    fault = OF_A_MACHINE[name][0]
    plain, recorded = seeded.faulty(fault), seeded.recorded(fault)
    assert {check: found.status for check, found in recorded.items()} == {
        check: found.status for check, found in plain.items()
    }


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


def test_a_fault_says_what_it_is_and_where_it_is_known_from() -> None:
    machines = seeded.names()
    for fault in FAULTS:
        assert fault["machine"] in machines, fault["id"]
        assert fault["level"] in (0, 1, 2), fault["id"]
        # `must`: the check that has to speak.
        assert fault["means"] and fault["source"] and fault["edits"] and fault["must"], fault["id"]


def test_no_fault_stands_twice() -> None:
    assert max(Counter(fault["id"] for fault in FAULTS).values()) == 1
