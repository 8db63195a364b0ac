"""The machine: architecture, C library, memory for processes, limits, disks."""

from __future__ import annotations

from npuenv.checks.base import FRAMEWORKS, Check, Context, Verdict, fail, fix, ok, skip, unsure, warn
from npuenv.facts.machine import UNLIMITED

_GIB_KIB = 1 << 20
_ARCHES = ("x86_64", "aarch64")
_GLIBC = (2, 28)  # the floor of torch_npu's and most other wheels: manylinux_2_28
# Docker gives 64 MiB unless told otherwise; torch and Ray exchange tensors there. Thresholds are ours.
_SHM_LEAST_KIB, _SHM_GOOD_KIB = 512 << 10, 8 * _GIB_KIB
_FILES_GOOD = 65536  # what ROLL's Ascend samples give the container
_LOCKED_OLD_DEFAULT = 64 << 10  # bytes; what kernels before 5.16 allow unless told otherwise
_FILES_CPU = 1024  # a trial without cards opens few
_DISK_LEAST_KIB, _DISK_GOOD_KIB = 5 * _GIB_KIB, 20 * _GIB_KIB  # a stack takes 2 to 10 GiB, its caches as much again


def _arch(context: Context) -> Verdict:
    arch = context.facts.arch.value
    if arch in _ARCHES:
        return ok("arch-ok", arch=arch)
    return fail("arch-fail", arch=arch or "-", offered=_ARCHES)


def _glibc(context: Context) -> Verdict:
    glibc = context.facts.glibc.value
    if glibc is None:
        return fail("glibc-other", fix=fix("glibc"))
    if tuple(int(word) for word in glibc.split(".")[:2]) < _GLIBC:
        return fail("glibc-fail", fix=fix("glibc"), glibc=glibc)
    return ok("glibc-ok", glibc=glibc)


def _shm(context: Context) -> Verdict:
    space = context.facts.shared_memory.value
    if space is None:
        return warn("shm-absent", fix=fix("shm"))
    size = _size(space.size_kib)
    if space.size_kib < _SHM_LEAST_KIB and context.framework != "cpu":
        return fail("shm-small", fix=fix("shm"), size=size)
    if space.size_kib < _SHM_GOOD_KIB:
        return warn("shm-small", fix=fix("shm"), size=size)
    return ok("shm-ok", size=size)


def _size(kib: int) -> str:
    return f"{kib / _GIB_KIB:.1f} GiB" if kib >= _GIB_KIB else f"{kib >> 10} MiB"


def _files(context: Context) -> Verdict:
    limit = context.facts.open_files.value
    if limit is None:
        return skip("no-limit")
    good = _FILES_CPU if context.framework == "cpu" else _FILES_GOOD
    if limit == UNLIMITED or limit >= good:
        return ok("files-ok")
    return warn("files-warn", fix=fix("files", ("ulimit", "-n", str(good))), limit=limit, good=good)


def _locked(context: Context) -> Verdict:
    limit = context.facts.locked_memory.value
    if limit is None:
        return skip("no-limit")
    if limit == UNLIMITED or limit > _LOCKED_OLD_DEFAULT:
        return ok("locked-ok")
    return warn("locked-warn", fix=fix("locked", ("ulimit", "-l", "unlimited")), limit=limit >> 10)


def _disk(context: Context) -> Verdict:
    space = context.facts.disk.value
    if space is None:
        return unsure("disk-absent")
    size = _size(space.free_kib)
    if space.free_kib < _DISK_LEAST_KIB:
        return fail("disk-small", fix=fix("disk"), size=size)
    if space.free_kib < _DISK_GOOD_KIB:
        return warn("disk-small", fix=fix("disk"), size=size)
    return ok("disk-ok", size=size)


CHECKS = (
    Check("machine.arch", ("arch",), "platforms of torch_npu wheels", _arch, required_for=FRAMEWORKS),
    Check("machine.glibc", ("glibc",), "PEP 600: manylinux_2_28", _glibc, required_for=FRAMEWORKS),
    Check("machine.shared-memory", ("shared_memory",), "docker run --shm-size defaults to 64 MiB", _shm),
    Check("machine.open-files", ("open_files",), "ROLL Ascend samples: --ulimit nofile=65536:65536", _files),
    Check(
        "machine.locked-memory", ("locked_memory",), "ulimit -l; RoCE memory registration", _locked, is_about_cards=True
    ),
    Check("machine.disk", ("disk",), "sizes of measured installations", _disk),
)
