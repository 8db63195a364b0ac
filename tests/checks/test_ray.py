"""Checks of Ray on a healthy host with one thing changed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.fact import Evidence
from npuenv.core.finding import Status
from npuenv.facts.machine import Process, Processes
from npuenv.facts.machine.hardware import FolderUsage, MountRow
from npuenv.facts.ray import ClusterStatus as Cluster
from npuenv.facts.ray import Demand, RaySession, Resource, ResourceDemand, StatusRefusal, StatusTrouble
from tests.support.changes import HEALTHY, both, expect, find, gone, lost, packages, put, variables

if TYPE_CHECKING:
    from tests.support.changes import Change

GIB = 1 << 20
OK, WARN, FAIL, SKIP, UNKNOWN = Status.OK, Status.WARN, Status.FAIL, Status.SKIP, Status.UNKNOWN
NOSET = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"


def cluster(nodes: int = 1, demands: tuple[Demand, ...] = (), *, used: float = 0.0, **totals: float) -> Change:
    rows = tuple(Resource(name, used, total) for name, total in totals.items())
    return put(status=Cluster(nodes, rows, demands))


def demand(bundles: int = 1, how: str = "", **needs: float) -> tuple[Demand, ...]:
    return (
        Demand(
            (ResourceDemand(tuple(sorted(needs.items())), bundles),), how, 1, f"{needs} * {bundles} ({how}): 1+ pending"
        ),
    )


def torn(change: Change) -> Change:
    """The same, of a status that is cut or damaged: only what it shows is known."""

    def edit(facts: Any) -> Any:
        changed = change(facts)
        status: Any = changed.ray.status.value
        damage = {"nodes": None, "has_all_resources": False, "has_all_demands": False}
        return put(status=status._replace(**damage))(changed)

    return edit


def refused(kind: StatusRefusal, line: str = "its line") -> Change:
    return put(status=StatusTrouble(kind, line), address="10.0.0.5:6379", processes=RAYLET)


RAYLET = Processes(9, "systemd", (Process(7, 1, "Sl", "raylet"),), ())
NO_RAY = Processes(9, "systemd", (Process(7, 1, "Sl", "python3"),), ())
NOTED = put(address="10.0.0.5:6379", processes=NO_RAY)


def disk(free: int, size: int = 1000 * GIB) -> Change:
    return put(session_disk=FolderUsage("/tmp/ray", True, free, size, None, None, "/", MountRow("/", "ext4", ("rw",))))


CASES: list[tuple[str, Change, Status, str]] = [
    ("ray.address", put(address="10.0.0.5:6379", processes=RAYLET), OK, "10.0.0.5"),
    ("ray.address", NOTED, WARN, "10.0.0.5"),
    ("ray.address", both(NOTED, cluster(NPU=8.0)), OK, "10.0.0.5"),  # it answers: its node runs out of our sight
    ("ray.address", put(address=None), SKIP, "no cluster"),
    ("ray.answers", cluster(NPU=8.0), OK, "1 nodes"),
    ("ray.answers", refused(StatusRefusal.TOKEN, "InvalidAuthToken"), FAIL, "InvalidAuthToken"),
    ("ray.answers", refused(StatusRefusal.VERSION), FAIL, "different Ray"),
    ("ray.answers", refused(StatusRefusal.UNREACHABLE), FAIL, "its line"),
    ("ray.answers", refused(StatusRefusal.TIMEOUT), FAIL, "not respond"),
    ("ray.answers", refused(StatusRefusal.NO_CLUSTER), FAIL, "its line"),
    ("ray.answers", refused(StatusRefusal.OTHER), FAIL, "its line"),
    ("ray.answers", both(refused(StatusRefusal.VERSION), NOTED), FAIL, "different Ray"),
    ("ray.answers", both(refused(StatusRefusal.TIMEOUT), NOTED), SKIP, "no Ray node"),
    ("ray.npu-resource", cluster(CPU=192.0, NPU=8.0), OK, "8 NPUs"),
    ("ray.npu-resource", cluster(CPU=192.0, GPU=8.0), FAIL, "8 GPU and no NPU"),
    ("ray.npu-resource", cluster(CPU=192.0), FAIL, "no NPU, but this machine has 8"),
    ("ray.npu-resource", put(status=None), SKIP, "no cluster status"),
    ("ray.gpu-declared", cluster(GPU=8.0, NPU=8.0), WARN, "8 GPU in addition to 8 NPU"),
    ("ray.gpu-declared", cluster(NPU=8.0), OK, "none"),
    ("ray.gpu-declared", cluster(GPU=8.0), SKIP, "no NPUs"),
    ("ray.npu-count", cluster(2, NPU=12.0), WARN, "12 NPUs on 2 nodes, but 16"),
    ("ray.npu-count", cluster(2, NPU=16.0), OK, "16"),
    ("ray.npu-count", cluster(1, NPU=16.0), FAIL, "16 NPUs, but this machine has 8"),
    ("ray.npu-count", both(cluster(1, NPU=2.0), variables(ASCEND_RT_VISIBLE_DEVICES="0,1")), OK, "2"),
    ("ray.npu-count", cluster(CPU=8.0), SKIP, "no cluster status"),
    ("ray.demands", cluster(CPU=4.0, NPU=8.0, demands=demand(8, "STRICT_PACK", NPU=1.0, CPU=3.0)), FAIL, "CPUs"),
    (
        "ray.demands",
        cluster(CPU=32.0, NPU=8.0, used=5.0, demands=demand(8, "STRICT_PACK", NPU=1.0, CPU=3.0)),
        OK,
        "1 pending",
    ),
    ("ray.demands", cluster(CPU=192.0, NPU=8.0, demands=demand(NPU=1.0)), WARN, "are free"),
    ("ray.demands", cluster(2, CPU=40.0, NPU=16.0, demands=demand(8, "STRICT_PACK", NPU=1.0, CPU=3.0)), FAIL, "40"),
    ("ray.demands", cluster(2, CPU=40.0, NPU=16.0, used=16.0, demands=demand(8, "PACK", NPU=1.0, CPU=3.0)), OK, "1 p"),
    ("ray.demands", cluster(CPU=32.0, NPU=4.0, demands=demand(8, "PACK", NPU=1.0)), FAIL, "NPU"),
    ("ray.demands", cluster(CPU=32.0, GPU=8.0, demands=demand(NPU=1.0)), SKIP, "no NPUs"),
    ("ray.demands", cluster(NPU=8.0), OK, "0 pending"),
    ("ray.demands", cluster(CPU=32.0, NPU=16.0, demands=demand(2, "STRICT_SPREAD", NPU=8.0)), FAIL, "2 nodes"),
    ("ray.demands", cluster(2, used=9.0, NPU=16.0, demands=demand(2, "STRICT_SPREAD", NPU=8.0)), OK, "1 pending"),
    ("ray.demands", cluster(2, used=9.0, NPU=16.0, demands=demand(9, "STRICT_PACK", NPU=1.0)), FAIL, "NPU"),
    ("ray.demands", cluster(2, used=8.0, NPU=16.0, demands=demand(8, "STRICT_PACK", NPU=1.0)), OK, "1 pending"),
    ("ray.demands", cluster(2, NPU=16.0, demands=demand(8, "STRICT_PACK", NPU=1.0)), WARN, "are free"),
    ("ray.demands", cluster(2, used=9.0, NPU=16.0, demands=demand(3, "SPREAD", NPU=5.0)), FAIL, "NPU"),
    ("ray.demands", cluster(2, used=9.0, NPU=12.0, demands=demand(9, "STRICT_PACK", NPU=1.0)), OK, "1 pending"),
    ("ray.demands", torn(cluster(CPU=8.0, demands=demand(NPU=1.0))), UNKNOWN, "cannot tell"),
    ("ray.npu-resource", torn(cluster(CPU=8.0)), UNKNOWN, "NPU"),
    ("ray.npu-resource", torn(cluster(NPU=8.0)), OK, "8 NPUs"),
    ("ray.gpu-declared", torn(cluster(NPU=8.0)), UNKNOWN, "GPU"),
    ("ray.npu-count", torn(cluster(NPU=8.0)), UNKNOWN, "NPU"),
    ("ray.cpus", torn(cluster(NPU=8.0)), UNKNOWN, "CPU"),
    ("ray.answers", torn(cluster(NPU=8.0)), OK, "? nodes"),
    ("ray.cpus", put(cpus=4.0), WARN, "4 CPUs for 8"),
    ("ray.cpus", cluster(2, CPU=8.0, NPU=16.0), WARN, "8 CPUs for 16"),
    ("ray.cpus", both(put(cpus=16.0), packages(verl="0.7.1")), WARN, "3 per chip"),
    ("ray.cpus", both(put(cpus=16.0), packages(verl="0.5.0")), OK, "16"),
    ("ray.cpus", both(put(cpus=24.0), packages(verl="0.7.1")), OK, "24"),
    ("ray.cpus", both(put(cpus=16.0), packages(verl="of.mine")), OK, "16"),
    ("ray.folder", put(session=RaySession("/tmp/ray", True, 1, None, True)), OK, "/tmp/ray"),
    ("ray.folder", put(session=RaySession("/tmp/ray", False, 1, None, True)), FAIL, "another user"),
    ("ray.folder", put(session=RaySession("/tmp/ray", True, 1, "10.0.0.5:6379", False)), FAIL, "another user"),
    ("ray.folder", put(session=None), SKIP, "no Ray session"),
    ("ray.path-length", variables(RAY_TMPDIR="/net/projects/people/somebody/slurm_jobdir/1355700/tmp"), FAIL, "107"),
    ("ray.path-length", variables(RAY_TMPDIR="/scratch/bob"), OK, "/scratch/bob/ray"),
    ("ray.path-length", both(variables(TMPDIR="/x" * 40), packages(ray=None)), SKIP, "default"),
    ("ray.path-length", both(variables(TMPDIR="/x" * 40), packages(ray="2.50.1")), FAIL, "107"),
    ("ray.disk", disk(30 * GIB), WARN, "97%"),
    ("ray.disk", disk(500 * GIB), OK, "50%"),
    ("ray.disk", disk(GIB), SKIP, "is full"),
    ("ray.visible-devices", both(variables(**{NOSET: "0"}), packages(ray="2.41.0")), WARN, "2.41.0"),
    ("ray.visible-devices", both(variables(**{NOSET: "0"}), packages(ray="2.60.0")), OK, NOSET),
    ("ray.visible-devices", variables(**{NOSET: "1"}), OK, NOSET),
]


@pytest.mark.parametrize(("check", "change", "status", "words"), CASES)
def test_each_check_of_ray_finds_what_is_there(check: str, change: Change, status: Status, words: str) -> None:
    expect(change, check, status, words)


@pytest.mark.parametrize(
    ("check", "fact"),
    [
        ("ray.address", "address"),
        ("ray.answers", "status"),
        ("ray.npu-resource", "status"),
        ("ray.gpu-declared", "status"),
        ("ray.npu-count", "status"),
        ("ray.demands", "status"),
        ("ray.cpus", "cpus"),
        ("ray.folder", "session"),
        ("ray.disk", "session"),
    ],
)
def test_what_could_not_be_read_is_unknown(check: str, fact: str) -> None:
    assert find(lost(fact)(HEALTHY), check).status is UNKNOWN


def test_the_note_is_removed_where_it_lies_and_the_variable_is_unset() -> None:
    note = Evidence("/tmp/ray/ray_current_cluster", "10.0.0.5:6379")
    variable = Evidence("environment", "RAY_ADDRESS=10.0.0.5:6379")
    commands = [find(_addressed(line), "ray.address").fix for line in (note, variable)]
    assert [fix.commands for fix in commands if fix] == [
        (("rm", "/tmp/ray/ray_current_cluster"),),
        (("unset", "RAY_ADDRESS"),),
    ]


def _addressed(line: Evidence) -> Any:
    from npuenv.core.fact import known

    facts = put(processes=NO_RAY)(HEALTHY)
    return dataclasses.replace(facts, ray=dataclasses.replace(facts.ray, address=known("10.0.0.5:6379", line)))


def test_the_switch_is_only_wrong_where_vllm_starts_its_own_workers() -> None:
    facts = variables(**{NOSET: "1"})(HEALTHY)
    assert find(facts, "ray.visible-devices", framework="vllm-ascend").status is WARN
    assert find(facts, "ray.visible-devices", framework="roll").status is OK


def test_where_ray_was_never_asked_nothing_is_said() -> None:
    facts = gone("status", Evidence("not asked", "needs --level 2"))(HEALTHY)
    for check in ("ray.answers", "ray.npu-resource", "ray.demands", "ray.gpu-declared"):
        assert find(facts, check, level=1).status is SKIP


def test_a_demand_that_nothing_can_meet_is_shown_with_the_clusters_own_line() -> None:
    facts = cluster(CPU=32.0, NPU=4.0, demands=demand(8, "PACK", NPU=1.0))(HEALTHY)
    lines = [item.line for item in find(facts, "ray.demands").evidence]
    assert lines[0].startswith("{'NPU': 1.0} * 8") and lines[1:] == [facts.ray.status.evidence[0].line]


def test_the_number_of_processors_and_the_line_that_is_shown_have_one_source() -> None:
    told = cluster(2, CPU=8.0, NPU=16.0)(HEALTHY)
    found = find(told, "ray.cpus")
    assert (found.says.args["cpus"], found.says.args["chips"], found.evidence) == (
        "8",
        16,
        told.ray.status.evidence[:1],
    )
    alone = put(cpus=4.0)(HEALTHY)
    found = find(alone, "ray.cpus")
    assert found.says.args["cpus"] == "4" and found.evidence[0] == alone.machine.cpus.evidence[0]
