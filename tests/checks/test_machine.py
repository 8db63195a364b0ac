"""Checks of the machine and its folders on a healthy host with one thing changed: what they find, with which words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from npuenv.checks import CHECKS
from npuenv.core.fact import Evidence
from npuenv.core.finding import Status
from npuenv.core.messages import say
from npuenv.facts.machine import Account, CxxLibrary, Process, Processes, Space
from npuenv.facts.machine.hardware import Cache, FolderUsage, Memory, MountRow
from tests.support.changes import HEALTHY, both, expect, find, gone, lost, put, variables

if TYPE_CHECKING:
    from tests.support.changes import Change

GIB = 1 << 20
OK, WARN, FAIL, SKIP, UNKNOWN = Status.OK, Status.WARN, Status.FAIL, Status.SKIP, Status.UNKNOWN
ROOT = MountRow("/", "ext4", ("rw",))
BOB = Account(1000, 1000, "bob", (1000,), ("bob",))


def folder(
    path: str = "/tmp", free: int = 500 * GIB, *, mount: MountRow | None = ROOT, **values: object
) -> FolderUsage:
    whole = FolderUsage(path, True, free, 1000 * GIB, 60_000_000, 50_000_000, mount.place if mount else "/", mount)
    return whole._replace(**values)  # type: ignore[arg-type]  # fields by name


def memory(available: int, total: int = 512 * GIB) -> Memory:
    return Memory(total, available, 8 * GIB, 2 * GIB, 0, 2048)


def table(*rows: tuple[int, int, str, str], init: str = "systemd") -> Change:
    found = [Process(pid, parent, stat, name) for pid, parent, stat, name in rows]
    return put(processes=Processes(100, init, tuple(found), tuple(item for item in found if item.is_zombie)))


def cache(variable: str, **values: Any) -> Cache:
    return Cache(variable, "/data/cache", folder("/data/cache", mount=MountRow("/data", "nfs4", ("rw",)), **values))


LUSTRE = MountRow("/lustre", "lustre", ("rw", "lazystatfs"))
CASES: list[tuple[str, Change, Status, str]] = [
    ("machine.shared-memory-free", put(shared_memory=Space(64 * GIB, 100)), FAIL, "64.0 GiB"),
    ("machine.shared-memory-free", put(shared_memory=Space(64 * GIB, 3 * GIB)), WARN, "3.0 GiB"),
    ("machine.shared-memory-free", put(shared_memory=Space(64 * GIB, 30 * GIB)), OK, "30.0 GiB"),
    ("machine.shared-memory-free", put(shared_memory=Space(65536, 0)), SKIP, "too small"),
    ("machine.libstdcxx", put(libstdcxx=CxxLibrary("/opt/gcc7/lib64/libstdc++.so.6", 19, True)), FAIL, "3.4.19"),
    ("machine.libstdcxx", put(libstdcxx=CxxLibrary("/usr/lib64/libstdc++.so.6", 19, False)), FAIL, "/usr/lib64"),
    ("machine.libstdcxx", both(put(libstdcxx=CxxLibrary("/x", 19, False)), put(glibc="2.17")), SKIP, "C library"),
    ("machine.libstdcxx", put(libstdcxx=CxxLibrary("/x", 24, False)), OK, "3.4.24"),
    ("machine.libstdcxx", put(libstdcxx=CxxLibrary("/stray/libstdc++.so.6", None, True)), UNKNOWN, "/stray"),
    ("machine.libstdcxx", put(libstdcxx=None), SKIP, "no libstdc++"),
    ("machine.tasks", both(put(limits={"Max processes": 1024}), put(account=BOB)), WARN, "1024"),
    ("machine.tasks", both(put(limits={"Max processes": 1024}), put(account=None)), WARN, "1024"),
    ("machine.disk", put(disk=Space(1000 * GIB, 15 * GIB)), WARN, "15.0 GiB"),
    ("machine.glibc", put(glibc=None), FAIL, ""),
    ("machine.shared-memory", put(shared_memory=None), WARN, ""),
    ("machine.tasks", put(limits={"Max processes": 1024}), OK, "enough"),  # the superuser is not held to it
    ("machine.tasks", both(put(limits={"Max processes": -1}), put(account=BOB)), OK, "enough"),
    ("machine.tasks", put(limits={}), SKIP, "no such limit"),
    ("machine.memory", put(memory=memory(GIB)), WARN, "1.0 GiB of 512.0 GiB"),
    ("machine.memory", put(memory=memory(3 * GIB)), WARN, "3.0 GiB"),
    ("machine.memory", put(memory=memory(100 * GIB)), OK, "100.0 GiB"),
    ("machine.memory", put(memory=memory(GIB, 4 * GIB)), OK, "1.0 GiB"),  # a small machine that is idle
    ("machine.memory", put(memory=Memory(GIB, None, None, None, None, None)), SKIP, "does not report"),
    ("machine.clock", put(time="1970-01-01T00:03:00Z"), FAIL, "1970"),
    ("machine.clock", put(time="2106-02-07T06:28:15Z"), FAIL, "2106"),
    ("machine.clock", put(time="2026-11-21T10:00:00Z"), OK, "2026"),
    ("machine.encoding", put(encoding="gb18030"), WARN, "gb18030"),
    ("machine.encoding", put(encoding=None), OK, "utf-8"),
    ("machine.encoding", both(put(encoding="gb18030"), variables(PYTHONUTF8="1")), OK, ""),
    ("machine.user-entry", put(account=Account(1000, 1000, None, (1000,), ())), FAIL, "1000"),
    ("machine.user-entry", put(account=BOB), OK, "1000"),
    ("machine.user-entry", put(account=None), SKIP, "unknown"),
    ("machine.driver-group", both(put(driver_group=None), put(container=None)), WARN, "HwHiAiUser"),
    ("machine.driver-group", put(driver_group=1000, container=None), OK, "exists"),
    ("machine.driver-group", put(driver_group=None, container="docker"), SKIP, "host"),
    ("machine.leftovers", table((7, 1, "Sl", "VLLM::EngineCor")), WARN, "7"),
    ("machine.leftovers", table((7, 1, "Sl", "VLLM::EngineCor"), init="vllm"), OK, "none"),  # the server is process 1
    ("machine.leftovers", table((7, 1, "Sl", "ray::IDLE"), (8, 1, "Sl", "ray::WorkerDict")), WARN, "2 processes"),
    ("machine.leftovers", both(table((6, 1, "Sl", "raylet")), put(address="10.0.0.5:6379")), OK, "none"),
    ("machine.leftovers", table((6, 1, "Sl", "raylet"), (7, 6, "Sl", "ray::IDLE")), WARN, "a process of"),
    ("machine.leftovers", table((5, 3, "Sl", "python3"), (6, 5, "Sl", "raylet")), OK, "none"),  # of ray.init()
    # a worker that exits is a zombie with threads for a moment: its raylet lives
    ("machine.leftovers", table((6, 2, "Sl", "raylet"), (7, 6, "ZNl", "ray::Worker <defunct>")), OK, "none"),
    ("machine.leftovers", table((7, 1, "ZNl", "ray::Worker <defunct>"), init="sleep"), OK, "none"),
    ("machine.zombies", table((7, 1, "ZNl", "ray::Worker <defunct>"), init="sleep"), WARN, "parent (1) has not"),
    ("machine.zombies", table((6, 2, "Sl", "raylet"), (7, 6, "Zl", "ray::Worker <defunct>")), OK, "none"),
    ("machine.leftovers", table((7, 1, "Sl", "python3")), OK, "none"),  # started with nohup
    ("machine.leftovers", put(processes=None), SKIP, "be listed"),
    ("machine.zombies", table((7, 1, "Z", "python3 <defunct>"), init="sleep"), WARN, "a Python"),
    ("machine.zombies", table(*((n, 5, "Z", "python3 <defunct>") for n in range(10, 20))), WARN, "10 Python"),
    ("machine.zombies", table((7, 5, "Z", "python3 <defunct>")), OK, "none"),  # its parent may be about to look
    ("machine.home", put(home=folder("/home/npu", is_writable=False)), FAIL, "/home/npu"),
    ("machine.home", put(home=folder("/home/npu", is_writable=None)), UNKNOWN, "/home/npu"),
    ("machine.home", put(home=folder("/home/npu")), OK, "/home/npu"),
    ("machine.home", put(home=None), FAIL, "not exist"),
    ("machine.tmp", put(tmp=None), FAIL, "/tmp"),
    ("machine.tmp", put(tmp=folder(is_writable=False)), FAIL, "not writable"),
    ("machine.tmp", put(tmp=folder(free=100 << 10, mount=MountRow("/tmp", "tmpfs", ("rw",)))), FAIL, "100 MiB"),
    ("machine.tmp", put(tmp=folder(free=GIB, mount=MountRow("/tmp", "tmpfs", ("rw",)))), WARN, "1.0 GiB"),
    ("machine.tmp", both(put(tmp=folder(free=100)), put(home=folder("/root", free=100))), OK, "/tmp"),  # one disk
    ("machine.tmp", put(tmp=folder(mount=MountRow("/tmp", "tmpfs", ("rw", "noexec")))), WARN, "noexec"),
    ("machine.tmp", put(tmp=folder()), OK, "/tmp"),
    ("machine.inodes", put(home=folder("/root", files_free=100)), FAIL, "100 more files"),
    ("machine.inodes", put(tmp=folder(files_free=2_000)), WARN, "2000"),
    ("machine.inodes", put(tmp=folder(files_free=20_000)), OK, "20000"),
    ("machine.inodes", put(home=folder(files_free=None), tmp=folder(files_free=None)), SKIP, "no such limit"),
    ("machine.inodes", put(caches=(cache("HF_HOME", files_free=7),)), FAIL, "/data/cache"),
    ("machine.caches", put(caches=(cache("TRITON_CACHE_DIR", is_writable=False),)), FAIL, "TRITON_CACHE_DIR"),
    ("machine.caches", put(caches=(cache("HF_HOME", is_writable=False),)), WARN, "HF_HOME"),
    (
        "machine.caches",
        both(put(caches=(cache("HF_HOME", is_writable=False),)), variables(HF_HUB_OFFLINE="1")),
        OK,  # models that lie there ready, and are meant to be read only
        "HF_HOME",
    ),
    ("machine.caches", put(caches=(cache("VLLM_CACHE_ROOT", free=1000),)), WARN, "VLLM_CACHE_ROOT"),
    ("machine.caches", put(caches=None), SKIP, "no cache variable"),
    ("machine.file-locks", put(home=folder("/lustre/bob", mount=LUSTRE)), WARN, "/lustre"),
    (
        "machine.file-locks",
        put(home=folder("/lustre/bob", mount=MountRow("/lustre", "lustre", ("rw", "flock")))),
        OK,
        "no problem",
    ),
]


@pytest.mark.parametrize(("check", "change", "status", "words"), CASES)
def test_each_check_of_the_machine_finds_what_is_there(check: str, change: Change, status: Status, words: str) -> None:
    expect(change, check, status, words)


@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check.id.startswith("machine.")], ids=lambda check: check.id
)
def test_what_could_not_be_read_is_unknown_and_never_fine(check: object) -> None:
    from npuenv.checks.base import Check

    assert isinstance(check, Check)
    for name in check.reads:
        assert find(lost(name)(HEALTHY), check.id).status is UNKNOWN
    assert find(HEALTHY, check.id).status in (OK, SKIP)


def test_leftovers_are_ended_by_their_numbers_and_only_by_the_user() -> None:
    change = table(
        (88120, 1, "Sl", "VLLMEngineCor"), (88121, 87990, "Zl", "VLLMEngineCor"), (90010, 1, "Sl", "ray::IDLE")
    )
    cure = find(change(HEALTHY), "machine.leftovers").fix
    assert cure is not None and cure.is_dangerous and not cure.is_automatic
    assert cure.commands == (("kill", "88120", "88121", "90010"),)


def test_a_worker_that_exits_under_its_living_raylet_is_no_leftover() -> None:
    change = table((1382, 17792, "Sl", "raylet"), (1639, 1382, "ZNl", "ray::WorkerActo"))
    assert find(change(HEALTHY), "machine.leftovers").status is OK


@pytest.mark.parametrize(("server", "status"), [("raylet", OK), ("sshd", WARN)])
def test_the_rest_of_a_killed_ray_is_found_by_its_command_line(server: str, status: Status) -> None:
    monitor = "/opt/env/bin/python -u /opt/env/lib/python3.11/site-packages/ray/_private/log_monitor.py --logs-dir=/tmp"
    rows = (Process(5, 1, "Sl", server), Process(7, 1, "Sl", "python", monitor))
    change = both(put(processes=Processes(9, "systemd", rows, ())), put(address="10.0.0.5:6379"))
    assert find(change(HEALTHY), "machine.leftovers").status is status


def test_a_missing_temporary_folder_is_named_as_the_session_names_it() -> None:
    change = both(variables(TMPDIR="/scratch/gone"), gone("tmp", Evidence("df -kP /scratch/gone", "No such file")))
    finding = find(change(HEALTHY), "machine.tmp")
    assert "/scratch/gone" in say(finding.says)
    assert finding.fix is not None and finding.fix.commands == (("mkdir", "-p", "/scratch/gone"),)
