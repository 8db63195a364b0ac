"""Faults planted in uniform clusters: each is named by its finding, and nothing is alarmed that does not follow."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from npuenv.cluster.consistency import check_consistency
from npuenv.core.documents import load_toml
from npuenv.core.finding import Finding, Status
from npuenv.core.messages import say
from tests.cluster.uniform import cluster, planted
from tests.cluster.voting import same, spoken, words
from tests.support.machines.composed import names

BAD = (Status.WARN, Status.FAIL)
PLANTED = Path(__file__).parent / "planted"
FAULTS = [row for name in ("faults", "held_out") for row in load_toml(PLANTED / f"{name}.toml")["fault"]]
USUAL = "a2-b3-host-roll"
# One machine of each hardware, and of each way to run there; the others are more of these.
KINDS = (
    *("310p-vnpu-pod", "950-x3-host-x86", "a2-b1-podman-va0221", "a2-b2-host-conda-cann", "a2-b3-pod-4-of-8"),
    *("a2-b3-ray-head", "a2-b4-docker-cann81", "a2-b4-kylin-roll", "a3-host-kylin-roll", "a3-docker-sglang"),
    "cpu-debian",
)


def found(fault: dict[str, Any]) -> dict[str, Finding]:
    """The findings of a cluster with the fault in it, by their ids."""
    faults = {int(number): edits for number, edits in fault["on"].items()}
    options = {"level": fault.get("level", 2), "tls": fault.get("tls", "off")}
    nodes = planted(fault.get("machine", USUAL), fault.get("nodes", 4), faults, **options)
    return {finding.check: finding for finding in check_consistency(nodes)}


@pytest.mark.parametrize("fault", FAULTS, ids=[fault["id"] for fault in FAULTS])
@pytest.mark.one_in(4)
def test_a_planted_fault_is_named_and_nothing_else_is(fault: dict[str, Any]) -> None:
    findings = found(fault)
    told = findings[fault["finds"]]
    said = say(told.says)
    missing = [word for word in fault["names"] if spoken(word) not in said]
    assert (told.status.value, missing) == (fault["status"], []), said
    nodes = {f"node{int(number):02}" for number in fault["on"]}
    assert any(line.command.partition(":")[0] in nodes for line in told.evidence), told.evidence
    assert told.fix is not None
    others = [name for name, finding in findings.items() if finding.status in BAD and name != fault["finds"]]
    assert [name for name in others if name not in fault.get("follows", [])] == []


@pytest.mark.parametrize(
    ("count", "level", "tls"),
    [
        *product((2, 4), (1, 2), ("off", "on")),
        pytest.param(16, 2, "on", marks=pytest.mark.slow),
    ],
)
def test_a_uniform_cluster_gives_no_alarm(count: int, level: int, tls: str) -> None:
    findings = check_consistency(cluster(USUAL, count, level=level, tls=tls))
    assert [finding for finding in findings if finding.status in (*BAD, Status.UNKNOWN)] == []
    switch = next(finding for finding in findings if finding.check == "agree.tls")
    assert say(switch.says) == same(words(f"word-tls-{tls}"), 8 * count)


@pytest.mark.parametrize(
    "machine", [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in names()]
)
def test_every_kind_of_machine_gives_no_alarm_when_two_are_alike(machine: str) -> None:
    level = 2 if machine in ("a3-host-kylin-roll", "950-x3-host-x86", "310p-vnpu-pod") else 1
    findings = check_consistency(cluster(machine, 2, level=level))
    assert [(finding.check, say(finding.says)) for finding in findings if finding.status in BAD] == []


def test_there_are_faults_enough_and_each_has_a_name_of_its_own() -> None:
    names = [fault["id"] for fault in FAULTS]
    assert len(names) == len(set(names)) >= 25


def test_other_names_for_the_interface_are_no_fault_where_all_meet_in_one_network() -> None:
    renamed: dict[str, Any] = {"replace_all": "enp189s0f0", "by": "eth0", "among": ["/proc/net/route", "ip "]}
    edits = [renamed, {"copy": "/sys/class/net/enp189s0f0", "to": "/sys/class/net/eth0", "replace": "@", "by": "@"}]
    settings = ({"set": name, "value": "eth0"} for name in ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"))
    nodes = planted(USUAL, 3, {2: [*edits, {"remove": "/sys/class/net/enp189s0f0"}, *settings]})
    finding = next(item for item in check_consistency(nodes) if item.check == "agree.hccl-interface")
    assert finding.status is Status.OK
    assert "node02: eth0" in say(finding.says)
