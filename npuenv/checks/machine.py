"""The machine and the session: architecture, C library, memory for processes, limits, disks, proxies, settings."""

from __future__ import annotations

import re

from npuenv.checks.base import FRAMEWORKS, NPU_FRAMEWORKS, Check, Context, Verdict, fail, fix, ok, skip, unsure, warn
from npuenv.facts.base import Evidence
from npuenv.facts.machine import UNLIMITED

_GIB_KIB = 1 << 20
_ARCHES = ("x86_64", "aarch64")
_GLIBC = (2, 28)  # the floor of torch_npu's and most other wheels: manylinux_2_28
# Docker gives 64 MiB unless told otherwise; torch and Ray exchange tensors there. Thresholds are ours.
_SHM_LEAST_KIB, _SHM_GOOD_KIB = 512 << 10, 8 * _GIB_KIB
_FILES_GOOD = 65536  # what ROLL's Ascend samples give the container
_FILES_CPU = 1024  # a trial without cards opens few
_DISK_LEAST_KIB, _DISK_GOOD_KIB = 5 * _GIB_KIB, 20 * _GIB_KIB  # a stack takes 2 to 10 GiB, its caches as much again
_ALLOCATOR_KEYS = frozenset(
    {
        "max_split_size_mb",
        "garbage_collection_threshold",
        "expandable_segments",
        "base_addr_aligned_kb",
        "page_size",
        "pinned_mem_register",
        "segment_size_mb",
    }
)


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
    if limit == UNLIMITED or limit >= 64 << 10:
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


def _proxy(context: Context) -> Verdict:
    proxies, listen = context.facts.proxies.value, context.facts.proxies_listen.value
    if not proxies:
        return ok("proxy-none")
    odd = [proxy for proxy in proxies if proxy.port is None]
    if odd:
        lines = (Evidence("environment", f"{proxy.variable}={proxy.address}") for proxy in odd)
        return warn("proxy-unreadable", *lines, variables=tuple(proxy.variable for proxy in odd))
    if listen is None:
        return ok("proxy-untried", count=len(proxies))
    dead = [name for name, is_there in listen.items() if not is_there]
    if dead:
        cure = fix("proxy", ("unset", *dead))
        return fail("proxy-dead", *context.facts.proxies_listen.evidence, fix=cure, variables=tuple(dead))
    return ok("proxy-ok", *context.facts.proxies_listen.evidence, count=len(proxies))


def _allocator(context: Context) -> Verdict:
    """PYTORCH_NPU_ALLOC_CONF: `key:value,...`. Expandable segments suit training, not vllm-ascend's memory pool."""
    environment = context.facts.environment.value or {}
    value = environment.get("PYTORCH_NPU_ALLOC_CONF", "").strip()
    line = Evidence("environment", f"PYTORCH_NPU_ALLOC_CONF={value}")
    unset = fix("allocator", ("unset", "PYTORCH_NPU_ALLOC_CONF"))
    if not value:
        return ok("allocator-unset")
    parts = [part.strip().partition(":") for part in value.split(",")]
    if not all(re.fullmatch(r"\w+", key.strip()) and setting.strip() for key, _, setting in parts):
        return fail("allocator-malformed", line, fix=unset, value=value)
    settings = {key.strip(): setting.strip().lower() for key, _, setting in parts}
    unread = sorted(set(settings) - _ALLOCATOR_KEYS)
    expands = settings.get("expandable_segments") == "true"
    if expands and "max_split_size_mb" in settings:
        return fail("allocator-conflict", line, fix=unset)
    if unread:
        return warn("allocator-unread", line, fix=unset, keys=tuple(unread))
    if expands and ("vllm-ascend" in _installed(context) or context.framework in NPU_FRAMEWORKS):
        return warn("allocator-all-roles", line, fix=unset)
    return ok("allocator-ok", line)


def _installed(context: Context) -> frozenset[str]:
    python = context.facts.python.value
    return frozenset(python.distributions) if python else frozenset()


def _interface(context: Context) -> Verdict:
    environment = context.facts.environment.value or {}
    if environment.get("NCCL_SOCKET_IFNAME") and not (
        environment.get("HCCL_SOCKET_IFNAME") or environment.get("HCCL_IF_IP")
    ):
        name = environment["NCCL_SOCKET_IFNAME"]
        line = Evidence("environment", f"NCCL_SOCKET_IFNAME={name}")
        return warn("interface-nccl", line, fix=fix("interface", ("export", f"HCCL_SOCKET_IFNAME={name}")))
    return ok("interface-ok")


def _tls(context: Context) -> Verdict:
    """The TLS entries of /etc/hccn.conf. A device without one has its default, which the file cannot tell."""
    conf = context.facts.hccn_conf.value
    if conf is None:
        return skip("tls-no-file")
    switches = {device: keys.get("tls_enable") for device, keys in sorted(conf.by_device.items())}
    lines = tuple(
        Evidence("/etc/hccn.conf", f"tls_enable_{device}={value}")
        for device, value in switches.items()
        if value is not None
    )
    if not lines:
        return skip("tls-no-entry")
    if any(value not in ("0", "1", None) for value in switches.values()):
        return unsure("tls-unreadable", *lines)
    on, off = ([device for device, value in switches.items() if value == wanted] for wanted in ("1", "0"))
    if on and off:
        cure = fix("tls", is_dangerous=True)
        return fail("tls-mixed", *lines, fix=cure, on=tuple(on), off=tuple(off))
    silent = [device for device, value in switches.items() if value is None]
    if silent:
        return unsure("tls-some", *lines, devices=tuple(silent))
    return ok("tls-on" if on else "tls-off", *lines[:1], count=len(switches))


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
SESSION_CHECKS = (
    Check("session.proxy", ("proxies",), "verl-qwen3.5 install guide, first aid", _proxy),
    Check(
        "session.allocator",
        (),
        "alibaba/ROLL roll/platforms/npu.py; torch_npu environment variables",
        _allocator,
        is_about_cards=True,
    ),
    Check("session.interface", (), "HCCL environment variables: HCCL_SOCKET_IFNAME", _interface, is_about_cards=True),
    Check(
        "network.tls-agrees",
        ("hccn_conf",),
        "hicann/hccl fault diagnosis, EI0016 and EI0006",
        _tls,
        is_about_cards=True,
    ),
)
