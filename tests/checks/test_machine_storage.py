"""Checks of the container on a healthy host with one thing changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.checks.base import NPU_FRAMEWORKS
from npuenv.core.finding import Status
from npuenv.core.messages import say
from npuenv.facts.machine.hardware import Cgroup, Processor
from tests.support.changes import HEALTHY, expect, find, lost, put

if TYPE_CHECKING:
    from tests.support.changes import Change

GIB = 1 << 20
OK, WARN, FAIL, SKIP, UNKNOWN = Status.OK, Status.WARN, Status.FAIL, Status.SKIP, Status.UNKNOWN


def groups(
    memory: int | None = None, tasks: int | None = None, now: int | None = None, kills: int | None = 0
) -> Change:
    return put(cgroup=Cgroup(2, memory, None, tasks, now, None, kills))


CASES: list[tuple[str, Change, Status, str]] = [
    ("container.emulated", put(processor=Processor("x86_64", "GenuineIntel", "Xeon", True, True)), FAIL, "x86_64"),
    ("container.emulated", put(arch="riscv64"), SKIP, "not available"),
    ("container.emulated", put(processor=None), SKIP, "not available"),
    ("container.memory-limit", groups(memory=16 * GIB), WARN, "16.0 GiB"),
    ("container.memory-limit", groups(memory=512 * GIB), OK, "512.0 GiB"),
    ("container.memory-limit", groups(), SKIP, "no such limit"),
    ("container.tasks-limit", groups(tasks=2048), WARN, "2048"),
    ("container.tasks-limit", groups(tasks=8192, now=8190), FAIL, "8190"),
    ("container.tasks-limit", groups(tasks=8192, now=100), OK, "8192"),
    ("container.tasks-limit", put(cgroup=None), SKIP, "no such limit"),
    ("container.oom-kills", groups(kills=3), WARN, "3 processes"),
    ("container.oom-kills", groups(), OK, "none"),
    ("container.oom-kills", groups(kills=None), SKIP, "no counter"),
]


@pytest.mark.parametrize(("check", "change", "status", "words"), CASES)
def test_each_check_of_the_container_finds_what_is_there(
    check: str, change: Change, status: Status, words: str
) -> None:
    expect(change, check, status, words)


@pytest.mark.parametrize(
    ("check", "fact"),
    [
        ("container.emulated", "processor"),
        ("container.memory-limit", "cgroup"),
        ("container.tasks-limit", "cgroup"),
        ("container.oom-kills", "cgroup"),
    ],
)
def test_what_could_not_be_read_is_unknown(check: str, fact: str) -> None:
    assert find(lost(fact)(HEALTHY), check).status is UNKNOWN


def test_the_right_image_is_named() -> None:
    change = put(arch="x86_64", processor=Processor("aarch64", "HiSilicon", "part 0xd01", None, None))
    cure = find(change(HEALTHY), "container.emulated").fix
    assert cure is not None and "--platform linux/arm64" in say(cure.says)


def test_limits_do_not_matter_where_no_card_is_wanted() -> None:
    assert "cpu" not in NPU_FRAMEWORKS
    for check in ("container.memory-limit", "container.tasks-limit"):
        assert find(groups(memory=GIB, tasks=64)(HEALTHY), check, framework="cpu").status is SKIP
