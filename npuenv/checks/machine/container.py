"""Checks of the container: built for this processor, and with room for a training run."""

from __future__ import annotations

from npuenv.checks.base import Check, CheckResult, Context, card_check, fail, fix_for, ok, skip, warn

_GIB_KIB = 1 << 20
_MEMORY_OF_A_CHIP_KIB = 8 * _GIB_KIB  # weights pass through host memory; the threshold is npuenv's own
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
    limit = f"{groups.memory_kib / _GIB_KIB:.1f} GiB"
    if groups.memory_kib >= chips * _MEMORY_OF_A_CHIP_KIB:
        return ok("machine.limit-ok", limit=limit)
    good = f"{chips * _MEMORY_OF_A_CHIP_KIB // _GIB_KIB} GiB"
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
    Check("container.emulated", ("machine.arch", "machine.processor"), _EMULATED, _emulated),
    card_check("container.memory-limit", ("machine.cgroup", "npu.nodes"), "cgroups(7): memory.max", _memory),
    card_check("container.tasks-limit", ("machine.cgroup",), _TASKS_LIMIT, _tasks),
    Check("container.oom-kills", ("machine.cgroup",), "cgroups(7): memory.events, oom_kill", _oom),
)
