"""Checks of the folders that training writes to, and of the container: processor and room for a training run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks.base import Check, CheckResult, Context, card_check, fail, fix_for, ok, skip, unknown, warn
from npuenv.core.fact import Evidence

if TYPE_CHECKING:
    from npuenv.facts.machine.hardware import FolderUsage


_GIB_KIB = 1 << 20
# For Ray's session folders, pip's builds and compilers' scratch files. The thresholds are npuenv's own.
_TMP_LEAST_KIB, _TMP_GOOD_KIB = 256 << 10, 2 * _GIB_KIB
_CACHE_GOOD_KIB = 1 * _GIB_KIB
_FILES_LEAST, _FILES_GOOD = 5_000, 50_000  # an environment has 20,000 to 60,000 files
_FILES_OF_TMP = 10  # temporary files are a tenth of those at most
_MODELS = ("HF_HOME", "HF_HUB_CACHE", "MODELSCOPE_CACHE")  # these are also read from, so read-only may be intended
_LUSTRE_LOCKS = ("flock", "localflock")


def size_of(kib: int) -> str:
    """A size for people: `8.0 GiB`, `512 MiB`."""
    return f"{kib / _GIB_KIB:.1f} GiB" if kib >= _GIB_KIB else f"{kib >> 10} MiB"


def _home(context: Context) -> CheckResult:
    home = context.facts.machine.home.value
    if home is None:
        path = context.environment.get("HOME") or "/"
        return fail("machine.home-absent", fix=fix_for("machine.home"), path=path)
    if home.is_writable is None:
        return unknown("machine.writable-unknown", path=home.path)
    if home.is_writable:
        return ok("machine.home-ok", path=home.path)
    fix = fix_for("machine.home")
    return fail("machine.home-fail", *_why_closed(home), fix=fix, path=home.path)


def _why_closed(folder: FolderUsage) -> tuple[Evidence, ...]:
    line = Evidence(f"test -w {folder.path}", "not writable")
    if folder.mount is None:
        return (line,)
    return (line, Evidence("/proc/self/mountinfo", f"{folder.mount.place} {folder.mount.kind} {_flags(folder)}"))


def _flags(folder: FolderUsage) -> str:
    return ",".join((folder.mount.options if folder.mount else ())[:6])


def _tmp(context: Context) -> CheckResult:
    """Its space counts only if it has a disk of its own; else the check of the home folder's disk reports it."""
    tmp, home = context.facts.machine.tmp.value, context.facts.machine.home.value
    if tmp is None:
        path = context.environment.get("TMPDIR") or "/tmp"
        return fail("machine.tmp-absent", fix=fix_for("machine.tmp-absent", ("mkdir", "-p", path)), path=path)
    if tmp.is_writable is False:
        return fail("machine.tmp-closed", *_why_closed(tmp), fix=fix_for("machine.tmp-closed"), path=tmp.path)
    if not _is_same_disk(tmp, home) and tmp.free_kib < _TMP_GOOD_KIB:
        verdict = fail if tmp.free_kib < _TMP_LEAST_KIB else warn
        return verdict("machine.tmp-small", fix=fix_for("machine.tmp-small"), path=tmp.path, size=size_of(tmp.free_kib))
    if tmp.mount is not None and tmp.mount.is_noexec:
        line = Evidence("/proc/self/mountinfo", f"{tmp.mount.place} {tmp.mount.kind} {_flags(tmp)}")
        return warn("machine.tmp-noexec", line, fix=fix_for("machine.tmp-noexec"), path=tmp.path)
    return ok("machine.tmp-ok", path=tmp.path, size=size_of(tmp.free_kib))


def _is_same_disk(one: FolderUsage, other: FolderUsage | None) -> bool:
    return other is not None and one.place == other.place


def _files(context: Context) -> CheckResult:
    """On disks full of small files the inodes run out before the space."""
    machine = context.facts.machine
    nearest = [machine.home.value, *(cache.nearest for cache in machine.caches.value or ())]
    counted = [(folder, 1) for folder in nearest if folder is not None]
    counted += [(machine.tmp.value, _FILES_OF_TMP)] if machine.tmp.value is not None else []
    rooms = [(folder.files_free * factor, folder) for folder, factor in counted if folder.files_free is not None]
    if not rooms:
        return skip("no-limit")
    weighed, folder = min(rooms, key=lambda item: item[0])
    left = folder.files_free
    if weighed >= _FILES_GOOD:
        return ok("machine.files-room-ok", left=left)
    verdict = fail if weighed < _FILES_LEAST else warn
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
            size, fix = size_of(cache.nearest.free_kib), fix_for("machine.cache-small", variable=cache.variable)
            return warn("machine.cache-small", fix=fix, variable=cache.variable, path=cache.path, size=size)
    return ok("machine.caches-ok", variables=tuple(cache.variable for cache in found))


def _locks(context: Context) -> CheckResult:
    """Lustre refuses flock() unless mounted with it; the downloaders of models lock every file."""
    machine = context.facts.machine
    folders = [machine.home.value, *(cache.nearest for cache in machine.caches.value or ())]
    for folder in filter(None, folders):
        mount = folder.mount
        if mount is not None and mount.kind == "lustre" and not any(word in mount.options for word in _LUSTRE_LOCKS):
            line = Evidence("/proc/self/mountinfo", f"{mount.place} {mount.kind} {','.join(mount.options)}")
            fix = fix_for("machine.locks", ("export", "HF_HOME=/tmp/hf"))
            return warn("machine.locks-warn", line, fix=fix, path=folder.path, place=mount.place)
    return ok("machine.locks-ok")


_WRITES = "torch, triton, pip and Hugging Face keep caches and logs below HOME"
_LUSTRE = "huggingface/huggingface_hub#2399: OSError 38 on Lustre mounted without flock"


_KIB_PER_GIB = 1 << 20
_MEMORY_OF_A_CHIP_KIB = 8 * _KIB_PER_GIB  # weights pass through host memory; the threshold is npuenv's own
_TASKS_GOOD = 4096  # podman's default is 2048; every rank, worker and compiler starts dozens of threads
_PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


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


def _memory(context: Context) -> CheckResult:
    groups, nodes = context.facts.machine.cgroup.value, context.facts.npu.nodes.value
    if groups is None or groups.memory_kib is None:
        return skip("no-limit")
    chips = len(nodes.cards) if nodes else 0
    limit = f"{groups.memory_kib / _KIB_PER_GIB:.1f} GiB"
    if groups.memory_kib >= chips * _MEMORY_OF_A_CHIP_KIB:
        return ok("machine.limit-ok", limit=limit)
    good = f"{chips * _MEMORY_OF_A_CHIP_KIB // _KIB_PER_GIB} GiB"
    return warn("machine.limit-warn", fix=fix_for("machine.limit", good=good), limit=limit, chips=chips, good=good)


def _tasks(context: Context) -> CheckResult:
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
    return warn("machine.oom-warn", fix=fix_for("machine.oom"), count=groups.oom_kills)


_EMULATED = "docker: platform linux/amd64 on linux/arm64"
_TASKS_LIMIT = "cgroups(7): pids.max; podman run --pids-limit 2048"
CHECKS = (
    Check("machine.home", ("machine.home",), _WRITES, _home),
    Check("machine.tmp", ("machine.tmp",), "Ray's temp-dir, torch inductor's cache and tempfile default to it", _tmp),
    Check("machine.inodes", ("machine.home", "machine.tmp"), "df -i; files of measured installations", _files),
    Check("machine.caches", ("machine.caches",), "cache variables of the libraries that are installed", _caches),
    Check("machine.file-locks", ("machine.mounts",), _LUSTRE, _locks),
    Check("container.emulated", ("machine.arch", "machine.processor"), _EMULATED, _emulated),
    card_check("container.memory-limit", ("machine.cgroup", "npu.nodes"), "cgroups(7): memory.max", _memory),
    card_check("container.tasks-limit", ("machine.cgroup",), _TASKS_LIMIT, _tasks),
    Check("container.oom-kills", ("machine.cgroup",), "cgroups(7): memory.events, oom_kill", _oom),
)
