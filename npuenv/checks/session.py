"""The settings of the session and of the cards' network: proxies, allocator, HCCL variables, TLS entries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, Check, Context, Verdict, fail, fix, ok, skip, unsure, warn
from npuenv.facts.base import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable

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
# Name -> least and most that HCCL takes, and the unit. The most for the buffer is ours: it counts MB, and a value above
# 64 GB is a number of bytes.
_HCCL_RANGES = {
    "HCCL_BUFFSIZE": (1, 65536, "MB"),
    "HCCL_CONNECT_TIMEOUT": (120, 7200, "s"),
    "HCCL_IF_BASE_PORT": (1024, 65520, "port"),
}
_AIV_EXEC_TIMEOUT_S = 1091  # with AIV, larger values and 0 count as this on A2, A3 and 950


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
    silent = sorted({*(device for device, value in switches.items() if value is None), *_unnamed(context, switches)})
    if silent:
        return unsure("tls-some", *lines, devices=tuple(silent))
    return ok("tls-on" if on else "tls-off", *lines[:1], count=len(switches))


def _unnamed(context: Context, named: Iterable[int]) -> set[int]:
    """The cards of this machine that the file has no line for. A container may see fewer cards than the file names."""
    nodes = context.facts.nodes.value
    numbers = (re.fullmatch(r"/dev/davinci([0-9]+)", node.path) for node in nodes.cards) if nodes else ()
    return {int(match[1]) for match in numbers if match} - set(named)


def _hccl(context: Context) -> Verdict:
    """HCCL's numbers against their ranges, and the waiting time that AIV cuts."""
    environment = context.facts.environment.value or {}
    outside = [
        (name, environment[name], least, most, unit)
        for name, (least, most, unit) in _HCCL_RANGES.items()
        if environment.get(name) and not _is_within(environment[name], least, most)
    ]
    if outside:
        name, value, least, most, unit = outside[0]
        lines = (Evidence("environment", f"{name}={text}") for name, text, *_ in outside)
        cure = fix("hccl", *(("unset", name) for name, *_ in outside))
        return warn("hccl-range", *lines, fix=cure, name=name, value=value, least=least, most=most, unit=unit)
    timeout = environment.get("HCCL_EXEC_TIMEOUT", "")
    uses_aiv = environment.get("HCCL_OP_EXPANSION_MODE") == "AIV"
    if uses_aiv and timeout and not _is_within(timeout, 1, _AIV_EXEC_TIMEOUT_S):
        line = Evidence("environment", f"HCCL_OP_EXPANSION_MODE=AIV, HCCL_EXEC_TIMEOUT={timeout}")
        return warn("hccl-aiv", line, value=timeout, most=_AIV_EXEC_TIMEOUT_S)
    return ok("hccl-ok")


def _is_within(text: str, least: int, most: int) -> bool:
    return re.fullmatch(r"[0-9]+", text.strip()) is not None and least <= int(text) <= most


def _task_queue(context: Context) -> Verdict:
    """TASK_QUEUE_ENABLE=2 raises peak memory: for training processes; vllm-ascend's workers want 1."""
    value = (context.facts.environment.value or {}).get("TASK_QUEUE_ENABLE", "").strip()
    line = Evidence("environment", f"TASK_QUEUE_ENABLE={value}")
    if not value:
        return ok("queue-unset")
    if value not in ("0", "1", "2"):
        return fail("queue-unread", line, fix=fix("queue", ("unset", "TASK_QUEUE_ENABLE")), value=value)
    if value == "2" and ("vllm-ascend" in _installed(context) or context.framework in NPU_FRAMEWORKS):
        return warn("queue-all-roles", line, fix=fix("queue", ("unset", "TASK_QUEUE_ENABLE")))
    return ok("queue-ok", line, value=value)


CHECKS = (
    Check("session.proxy", ("proxies",), "verl-qwen3.5 install guide, first aid", _proxy),
    Check(
        "session.allocator",
        (),
        "alibaba/ROLL roll/platforms/npu.py; torch_npu environment variables",
        _allocator,
        is_about_cards=True,
    ),
    Check("session.hccl", (), "HCCL environment variables (hicann/hccl)", _hccl, is_about_cards=True),
    Check(
        "session.task-queue",
        (),
        "vllm-project/vllm-ascend Dockerfile @v0.23.0; torch_npu environment variables",
        _task_queue,
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
