"""Checks of the machine: libraries, limits, clock, account, remains of an earlier run; its folders, its container."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import FRAMEWORKS, Check, card_check, fail, fix_for, given, ok, skip, unknown, warn
from npuenv.core.fact import Evidence, State
from npuenv.core.versions import numbers_in
from npuenv.facts.machine import DRIVER_GROUP, UNLIMITED, line_of

if TYPE_CHECKING:
    from npuenv.checks.base import CheckResult, Context
    from npuenv.core.fact import Fact
    from npuenv.facts.machine import Account, Process, Processes
    from npuenv.facts.machine.hardware import FolderUsage, MountRow

_GIB_KIB = 1 << 20
_ARCHES = ("x86_64", "aarch64")
_GLIBC = (2, 28)  # the floor of torch_npu's and most other wheels: manylinux_2_28
# Docker's default is 64 MiB; torch and Ray exchange tensors there. The thresholds are npuenv's own.
_SHM_LEAST_KIB, _SHM_GOOD_KIB = 512 << 10, 8 * _GIB_KIB
_FILES_GOOD = 65536  # what ROLL's Ascend samples give the container
_LOCKED_OLD_DEFAULT = 64 << 10  # bytes; what kernels before 5.16 allow by default
_UNLIMITED = ("ulimit", "-l", "unlimited")
_FILES_CPU = 1024  # a run without cards opens few files
_CXX_LEVEL = 24  # the newest GLIBCXX_3.4.N that a manylinux_2_28 wheel may need
# Every rank, worker and compiler starts dozens of threads; podman's default is 2048. The threshold is npuenv's own.
_TASKS_GOOD = 4096
_FREE_MEMORY_LEAST_KIB = 2 * _GIB_KIB
_SHM_LEFT = "raylet: System memory request exceeds memory available in /dev/shm"
_USER = "vllm-ascend documentation: ra init fails for a uid without entry; torch: getpwuid(): uid not found"
_LEFT = "vllm-project/vllm-ascend: the engine outlives its server and keeps its memory"
_YEARS = range(2024, 2038)  # outside of these years the certificates of every index are invalid
_INITS = (
    "systemd", "init", "tini", "docker-init", "dumb-init", "catatonit", "s6-svscan", "bash", "sh", "sleep", "tail",
)  # fmt: skip
_ZOMBIES_MANY = 8
_RAY_SERVERS = ("raylet", "gcs_server")
# Python programs that `ray start` runs beside its servers; they survive when those are killed (seen with Ray 2.60.0).
_PARTS_OF_RAY = ("/ray/_private/log_monitor", "/ray/autoscaler/_private/monitor", "/ray/dashboard/")
_DISK_LEAST_KIB, _DISK_GOOD_KIB = 5 * _GIB_KIB, 20 * _GIB_KIB  # a stack takes 2 to 10 GiB, its caches the same again
# For Ray's session folders, pip's builds and compilers' scratch files. The thresholds are npuenv's own.
_TMP_LEAST_KIB, _TMP_GOOD_KIB = 256 << 10, 2 * _GIB_KIB
_CACHE_GOOD_KIB = 1 * _GIB_KIB
_INODES_LEAST, _INODES_GOOD = 5_000, 50_000  # an environment has 20,000 to 60,000 files
_INODES_OF_TMP = 10  # temporary files are a tenth of those at most
_MODELS = ("HF_HOME", "HF_HUB_CACHE", "MODELSCOPE_CACHE")  # these are also read from, so read-only may be intended
_LUSTRE_LOCKS = ("flock", "localflock")
_MEMORY_OF_A_CHIP_KIB = 8 * _GIB_KIB  # weights pass through host memory; the threshold is npuenv's own
_PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


def _size_of(kib: int) -> str:
    """A size for people: `8.0 GiB`, `512 MiB`."""
    return f"{kib / _GIB_KIB:.1f} GiB" if kib >= _GIB_KIB else f"{kib >> 10} MiB"


def _arch(context: Context) -> CheckResult:
    arch = context.facts.machine.arch.value
    if arch in _ARCHES:
        return ok("machine.arch-ok", arch=arch)
    return fail("machine.arch-fail", arch=arch or "-", offered=_ARCHES)


def _glibc(context: Context) -> CheckResult:
    glibc = context.facts.machine.glibc.value
    if glibc is None:
        return fail("machine.glibc-other", fix="machine.glibc")
    if _is_old_glibc(glibc):
        return fail("machine.glibc-fail", fix="machine.glibc", glibc=glibc)
    return ok("machine.glibc-ok", glibc=glibc)


def _is_old_glibc(version: str) -> bool:
    return numbers_in(version)[:2] < _GLIBC


def _shm(context: Context) -> CheckResult:
    space = context.facts.machine.shared_memory.value
    if space is None:
        return warn("machine.shm-absent", fix="machine.shm")
    size = _size_of(space.size_kib)
    if space.size_kib >= _SHM_GOOD_KIB:
        return ok("machine.shm-ok", size=size)
    verdict = fail if space.size_kib < _SHM_LEAST_KIB and context.framework != "cpu" else warn
    return verdict("machine.shm-small", fix="machine.shm", size=size)


def _shm_free(context: Context) -> CheckResult:
    """Files of dead processes in /dev/shm reduce the space for the next run."""
    space = context.facts.machine.shared_memory.value
    if space is None or space.size_kib < _SHM_GOOD_KIB:
        return skip("machine.because-shm")
    free, size = _size_of(space.free_kib), _size_of(space.size_kib)
    if space.free_kib >= _SHM_LEAST_KIB and space.free_kib * 10 >= space.size_kib:
        return ok("machine.shm-free-ok", free=free)
    verdict = fail if space.free_kib < _SHM_LEAST_KIB else warn
    return verdict("machine.shm-full", fix=fix_for("machine.shm-free", ("ls", "-l", "/dev/shm")), free=free, size=size)


@given(lambda context: context.facts.machine.open_files.value, "no-limit")
def _files(context: Context, limit: int) -> CheckResult:
    good = _FILES_CPU if context.framework == "cpu" else _FILES_GOOD
    if limit == UNLIMITED or limit >= good:
        return ok("machine.files-ok")
    hard, fix = _hard_limit(context.facts.machine.open_files), fix_for("machine.files", ("ulimit", "-n", str(good)))
    if hard is not None and hard < good:
        fix = fix_for("machine.files-hard", hard=hard, good=good)
    return warn("machine.files-warn", fix=fix, limit=limit, good=good)


def _hard_limit(fact: Fact[int]) -> int | None:
    """The maximum to which a shell can raise the soft limit, from /proc/self/limits; None: unlimited, or not stated.

    Example: "Max open files 1024 20000 files" gives 20000
    """
    match = re.search(r"(?:[0-9]+|unlimited) ([0-9]+)(?: [a-z]+)?$", fact.evidence[0].line if fact.evidence else "")
    return int(match[1]) if match else None


@given(lambda context: context.facts.machine.locked_memory.value, "no-limit")
def _locked(context: Context, limit: int) -> CheckResult:
    if limit == UNLIMITED or limit > _LOCKED_OLD_DEFAULT:
        return ok("machine.locked-ok")
    hard, fix = _hard_limit(context.facts.machine.locked_memory), fix_for("machine.locked", _UNLIMITED)
    if hard is not None:
        fix = fix_for("machine.locked-hard", hard=hard >> 10)
    return warn("machine.locked-warn", fix=fix, limit=limit >> 10)


def _disk(context: Context) -> CheckResult:
    space = context.facts.machine.disk.value
    if space is None:
        return unknown("machine.disk-absent")
    size = _size_of(space.free_kib)
    if space.free_kib >= _DISK_GOOD_KIB:
        return ok("machine.disk-ok", size=size)
    return (fail if space.free_kib < _DISK_LEAST_KIB else warn)("machine.disk-small", fix="machine.disk", size=size)


def _libstdcxx(context: Context) -> CheckResult:
    machine = context.facts.machine
    library, glibc = machine.libstdcxx.value, machine.glibc.value
    if library is None:
        return skip("machine.cxx-absent")
    if library.level is None:
        return unknown("machine.cxx-unnamed", *machine.libstdcxx.evidence, path=library.path)
    if library.level >= _CXX_LEVEL:
        return ok("machine.cxx-ok", level=library.level)
    if not library.is_from_path and glibc and _is_old_glibc(glibc):
        return skip("machine.because-glibc")
    name = "machine.cxx-path" if library.is_from_path else "machine.cxx-system"
    folder = library.path.rpartition("/")[0]
    return fail("machine.cxx-fail", fix=fix_for(name, folder=folder), path=library.path, level=library.level)


def _tasks(context: Context) -> CheckResult:
    """The kernel does not apply this limit to root."""
    limit = (context.facts.machine.limits.value or {}).get("Max processes")
    account = context.facts.machine.account.value
    if limit is None:
        return skip("no-limit")
    if limit == UNLIMITED or limit >= _TASKS_GOOD or (account is not None and account.is_root):
        return ok("machine.tasks-ok")
    # No command: the hard limit, often equal, is unknown here.
    return warn("machine.tasks-warn", fix=fix_for("machine.tasks", good=_TASKS_GOOD), limit=limit, good=_TASKS_GOOD)


def _memory(context: Context) -> CheckResult:
    memory = context.facts.machine.memory.value
    if memory is None or memory.available_kib is None:
        return skip("machine.memory-absent")
    free, total = _size_of(memory.available_kib), _size_of(memory.total_kib)
    if memory.available_kib >= min(max(_FREE_MEMORY_LEAST_KIB, memory.total_kib // 100), memory.total_kib // 4):
        return ok("machine.memory-ok", free=free)
    swap = _size_of((memory.swap_kib or 0) - (memory.swap_free_kib or 0))
    fix = fix_for("machine.memory", ("ps", "-eo", "pid,user,rss,comm", "--sort=-rss"))
    return warn("machine.memory-warn", fix=fix, free=free, total=total, swap=swap)


def _clock(context: Context) -> CheckResult:
    time = context.facts.machine.time.value
    if time is None or not time[:4].isdecimal():
        return skip("machine.clock-absent")
    if int(time[:4]) in _YEARS:
        return ok("machine.clock-ok", time=time)
    return fail("machine.clock-fail", fix=fix_for("machine.clock", ("date", "-u"), needs_root=True), time=time)


def _encoding(context: Context) -> CheckResult:
    encoding = context.facts.machine.encoding.value
    if encoding in (None, "utf-8") or context.environment.get("PYTHONUTF8") == "1":
        return ok("machine.encoding-ok", encoding=encoding or "utf-8")
    fix = fix_for("machine.encoding", ("export", "LC_ALL=C.UTF-8"))
    return warn("machine.encoding-warn", fix=fix, encoding=encoding or "-")


@given(lambda context: context.facts.machine.account.value, "machine.account-absent")
def _user_entry(_: Context, account: Account) -> CheckResult:
    if account.name is not None:
        return ok("machine.user-ok", uid=account.uid)
    return fail("machine.user-fail", fix=fix_for("machine.user", uid=account.uid, gid=account.gid), uid=account.uid)


def _driver_group(context: Context) -> CheckResult:
    """The driver gives its devices to this group; a container needs only its number."""
    facts = context.facts
    info = facts.npu.install_info.value or {}
    if facts.machine.container.is_known or not facts.npu.driver.is_known:
        return skip("machine.group-elsewhere")
    if facts.machine.driver_group.is_known or info.get("UserGroup", DRIVER_GROUP) != DRIVER_GROUP:
        return ok("machine.group-ok")
    commands = (("groupadd", DRIVER_GROUP), ("useradd", "-m", "-g", DRIVER_GROUP, "-s", "/bin/bash", DRIVER_GROUP))
    return warn("machine.group-warn", fix=fix_for("machine.group", *commands, needs_root=True), group=DRIVER_GROUP)


@given(lambda context: context.facts.machine.processes.value, "machine.no-processes")
def _leftovers(context: Context, found: Processes) -> CheckResult:
    """Only processes that cannot be part of a running job: workers without a raylet, engines without a server."""
    is_noted = context.facts.ray.address.state is not State.ABSENT
    stale = [process for process in found.ours if _is_stale(process, found, is_noted)]
    if not stale:
        return ok("machine.leftovers-ok")
    pids = tuple(process.pid for process in stale)
    fix = fix_for("machine.leftovers", ("kill", *map(str, pids)), is_dangerous=True)
    says = "machine.leftovers-warn" if len(pids) > 1 else "machine.leftover-warn"
    return warn(says, *map(line_of, stale[:6]), fix=fix, pids=pids, count=len(pids))


def _is_stale(process: Process, found: Processes, is_noted: bool) -> bool:
    """`is_noted`: the session knows of a cluster, so that a node of it may be needed."""
    if process.is_half_dead and process.parent != 1:  # a worker that exits is so for a moment, under a living parent
        return not any(each.pid == process.parent and not each.is_zombie for each in found.ours)
    if process.is_zombie or process.parent != 1:
        return False
    if process.name in _RAY_SERVERS:
        # `ray start` records the address; without it a new run finds neither the node nor a free port
        return not is_noted
    if process.name.startswith("ray::"):
        # a worker's parent is its raylet; process 1 inherits it when the raylet has ended
        return found.init != "raylet"
    if any(part in process.command for part in _PARTS_OF_RAY):
        return not any(other.name in _RAY_SERVERS for other in found.ours)
    return process.name.startswith("VLLM") and found.init in _INITS


@given(lambda context: context.facts.machine.processes.value, "machine.no-processes")
def _zombies(_: Context, found: Processes) -> CheckResult:
    dead = [process for process in found.ours if process.is_zombie]
    unreaped = [process for process in dead if process.parent == 1]
    if not unreaped and len(dead) < _ZOMBIES_MANY:
        return ok("machine.zombies-ok")
    shown = unreaped or dead
    args = {"count": len(shown), "parents": tuple(dict.fromkeys(process.parent for process in shown))}
    says = "machine.zombies-warn" if len(shown) > 1 else "machine.zombie-warn"
    return warn(says, *map(line_of, shown[:6]), fix="machine.zombies", **args)


def _home(context: Context) -> CheckResult:
    home = context.facts.machine.home.value
    if home is None:
        path = context.environment.get("HOME") or "/"
        return fail("machine.home-absent", fix="machine.home", path=path)
    if home.is_writable is None:
        return unknown("machine.writable-unknown", path=home.path)
    if home.is_writable:
        return ok("machine.home-ok", path=home.path)
    return fail("machine.home-fail", *_why_closed(home), fix="machine.home", path=home.path)


def _why_closed(folder: FolderUsage) -> tuple[Evidence, ...]:
    line = Evidence(f"test -w {folder.path}", "not writable")
    return (line, _mounted(folder.mount)) if folder.mount else (line,)


def _mounted(mount: MountRow, options: int | None = 6) -> Evidence:
    """The row of a mount with its first options; None: with all."""
    return Evidence("/proc/self/mountinfo", f"{mount.place} {mount.kind} {','.join(mount.options[:options])}")


def _tmp(context: Context) -> CheckResult:
    """Its space counts only if it has a disk of its own; else the check of the home folder's disk reports it."""
    tmp, home = context.facts.machine.tmp.value, context.facts.machine.home.value
    if tmp is None:
        path = context.environment.get("TMPDIR") or "/tmp"
        return fail("machine.tmp-absent", fix=fix_for("machine.tmp-absent", ("mkdir", "-p", path)), path=path)
    if tmp.is_writable is False:
        return fail("machine.tmp-closed", *_why_closed(tmp), fix="machine.tmp-closed", path=tmp.path)
    if not _is_same_disk(tmp, home) and tmp.free_kib < _TMP_GOOD_KIB:
        verdict = fail if tmp.free_kib < _TMP_LEAST_KIB else warn
        return verdict("machine.tmp-small", fix="machine.tmp-small", path=tmp.path, size=_size_of(tmp.free_kib))
    if tmp.mount is not None and tmp.mount.is_noexec:
        return warn("machine.tmp-noexec", _mounted(tmp.mount), fix="machine.tmp-noexec", path=tmp.path)
    return ok("machine.tmp-ok", path=tmp.path, size=_size_of(tmp.free_kib))


def _is_same_disk(one: FolderUsage, other: FolderUsage | None) -> bool:
    return other is not None and one.place == other.place


def _inodes(context: Context) -> CheckResult:
    """On disks full of small files the inodes run out before the space."""
    machine = context.facts.machine
    nearest = [machine.home.value, *(cache.nearest for cache in machine.caches.value or ())]
    counted = [(folder, 1) for folder in nearest if folder is not None]
    counted += [(machine.tmp.value, _INODES_OF_TMP)] if machine.tmp.value is not None else []
    rooms = [(folder.files_free * factor, folder) for folder, factor in counted if folder.files_free is not None]
    if not rooms:
        return skip("no-limit")
    weighed, folder = min(rooms, key=lambda item: item[0])
    left = folder.files_free
    if weighed >= _INODES_GOOD:
        return ok("machine.files-room-ok", left=left)
    verdict = fail if weighed < _INODES_LEAST else warn
    line = Evidence(f"df -iP {folder.path}", f"{left} of {folder.files} free")
    fix = fix_for("machine.files-room", ("df", "-i", folder.path))
    return verdict("machine.files-room-small", line, fix=fix, path=folder.path, left=left)


def _caches(context: Context) -> CheckResult:
    found, home = context.facts.machine.caches.value, context.facts.machine.home.value
    if not found:
        return skip("machine.no-caches")
    is_offline = context.environment.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    for cache in found:
        if cache.nearest.is_writable is False and not (is_offline and cache.variable in _MODELS):
            verdict = warn if cache.variable in _MODELS else fail
            fix = fix_for("machine.cache-closed", ("unset", cache.variable), variable=cache.variable)
            lines = (Evidence("environment", f"{cache.variable}={cache.path}"), *_why_closed(cache.nearest))
            return verdict("machine.cache-closed", *lines, fix=fix, variable=cache.variable, path=cache.path)
    for cache in found:
        if cache.nearest.free_kib < _CACHE_GOOD_KIB and not _is_same_disk(cache.nearest, home):
            size, fix = _size_of(cache.nearest.free_kib), fix_for("machine.cache-small", variable=cache.variable)
            return warn("machine.cache-small", fix=fix, variable=cache.variable, path=cache.path, size=size)
    return ok("machine.caches-ok", variables=tuple(cache.variable for cache in found))


def _locks(context: Context) -> CheckResult:
    """Lustre refuses flock() unless mounted with it; the downloaders of models lock every file."""
    machine = context.facts.machine
    folders = [machine.home.value, *(cache.nearest for cache in machine.caches.value or ())]
    for folder in filter(None, folders):
        mount = folder.mount
        if mount is not None and mount.kind == "lustre" and not any(word in mount.options for word in _LUSTRE_LOCKS):
            fix = fix_for("machine.locks", ("export", "HF_HOME=/tmp/hf"))
            return warn("machine.locks-warn", _mounted(mount, None), fix=fix, path=folder.path, place=mount.place)
    return ok("machine.locks-ok")


def _emulated(context: Context) -> CheckResult:
    """uname reports the image's architecture, /proc/cpuinfo the machine's."""
    arch, processor = context.facts.machine.arch.value, context.facts.machine.processor.value
    if arch not in _PLATFORMS or processor is None:
        return skip("machine.processor-absent")
    if processor.family == arch:
        return ok("machine.emulated-ok", family=processor.family)
    evidence = (*context.facts.machine.arch.evidence, *context.facts.machine.processor.evidence)
    fix = fix_for("machine.emulated", platform=_PLATFORMS[processor.family])
    return fail("machine.emulated-fail", *evidence, fix=fix, arch=arch, family=processor.family)


def _group_memory(context: Context) -> CheckResult:
    groups, nodes = context.facts.machine.cgroup.value, context.facts.npu.nodes.value
    if groups is None or groups.memory_kib is None:
        return skip("no-limit")
    chips = len(nodes.cards) if nodes else 0
    limit = f"{groups.memory_kib / _GIB_KIB:.1f} GiB"
    if groups.memory_kib >= chips * _MEMORY_OF_A_CHIP_KIB:
        return ok("machine.limit-ok", limit=limit)
    good = f"{chips * _MEMORY_OF_A_CHIP_KIB // _GIB_KIB} GiB"
    return warn("machine.limit-warn", fix=fix_for("machine.limit", good=good), limit=limit, chips=chips, good=good)


def _group_tasks(context: Context) -> CheckResult:
    groups = context.facts.machine.cgroup.value
    if groups is None or groups.tasks is None:
        return skip("no-limit")
    fix = fix_for("machine.group-tasks", good=_TASKS_GOOD)
    if groups.tasks_now is not None and groups.tasks_now >= groups.tasks * 0.95:
        return fail("machine.group-tasks-full", fix=fix, limit=groups.tasks, now=groups.tasks_now)
    if groups.tasks >= _TASKS_GOOD:
        return ok("machine.group-tasks-ok", limit=groups.tasks)
    return warn("machine.group-tasks-warn", fix=fix, limit=groups.tasks, good=_TASKS_GOOD)


def _oom(context: Context) -> CheckResult:
    groups = context.facts.machine.cgroup.value
    if groups is None or groups.oom_kills is None:
        return skip("machine.oom-absent")
    if groups.oom_kills == 0:
        return ok("machine.oom-ok")
    return warn("machine.oom-warn", fix="machine.oom", count=groups.oom_kills)


_ENCODING = "PEP 538, PEP 540: only a locale without encoding becomes UTF-8"
_DRIVER_GROUP = "the driver's installer: it needs the user and group HwHiAiUser"
_LIBSTDCXX = "PEP 600: manylinux_2_28 allows up to GLIBCXX_3.4.24"
_WRITES = "torch, triton, pip and Hugging Face keep caches and logs below HOME"
_LUSTRE = "huggingface/huggingface_hub#2399: OSError 38 on Lustre mounted without flock"
_EMULATED = "docker: platform linux/amd64 on linux/arm64"
_TASKS_LIMIT = "cgroups(7): pids.max; podman run --pids-limit 2048"
CHECKS = (
    Check("machine.arch", ("machine.arch",), "platforms of torch_npu wheels", _arch, required_for=FRAMEWORKS),
    Check("machine.glibc", ("machine.glibc",), "PEP 600: manylinux_2_28", _glibc, required_for=FRAMEWORKS),
    Check("machine.shared-memory", ("machine.shared_memory",), "docker run --shm-size defaults to 64 MiB", _shm),
    Check("machine.open-files", ("machine.open_files",), "ROLL Ascend samples: --ulimit nofile=65536:65536", _files),
    card_check("machine.locked-memory", ("machine.locked_memory",), "ulimit -l; RoCE memory registration", _locked),
    Check("machine.disk", ("machine.disk",), "sizes of measured installations", _disk),
    Check("machine.shared-memory-free", ("machine.shared_memory",), _SHM_LEFT, _shm_free),
    Check("machine.libstdcxx", ("machine.libstdcxx",), _LIBSTDCXX, _libstdcxx),
    card_check("machine.tasks", ("machine.limits",), "ulimit -u; getrlimit(2), RLIMIT_NPROC", _tasks),
    Check("machine.memory", ("machine.memory",), "/proc/meminfo, MemAvailable; proc_meminfo(5)", _memory),
    Check("machine.clock", ("machine.time",), "validity of TLS certificates (RFC 5280)", _clock),
    Check("machine.encoding", ("machine.encoding",), _ENCODING, _encoding),
    Check("machine.user-entry", ("machine.account",), _USER, _user_entry),
    card_check("machine.driver-group", ("machine.driver_group", "machine.container"), _DRIVER_GROUP, _driver_group),
    Check("machine.leftovers", ("machine.processes",), _LEFT, _leftovers, level=1),
    Check("machine.zombies", ("machine.processes",), "verl NPU AQN guide: many defunct processes", _zombies, level=1),
    Check("machine.home", ("machine.home",), _WRITES, _home),
    Check("machine.tmp", ("machine.tmp",), "Ray's temp-dir, torch inductor's cache and tempfile default to it", _tmp),
    Check("machine.inodes", ("machine.home", "machine.tmp"), "df -i; files of measured installations", _inodes),
    Check("machine.caches", ("machine.caches",), "cache variables of the libraries that are installed", _caches),
    Check("machine.file-locks", ("machine.mounts",), _LUSTRE, _locks),
    Check("container.emulated", ("machine.arch", "machine.processor"), _EMULATED, _emulated),
    card_check("container.memory-limit", ("machine.cgroup", "npu.nodes"), "cgroups(7): memory.max", _group_memory),
    card_check("container.tasks-limit", ("machine.cgroup",), _TASKS_LIMIT, _group_tasks),
    Check("container.oom-kills", ("machine.cgroup",), "cgroups(7): memory.events, oom_kill", _oom),
)
