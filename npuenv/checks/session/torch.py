"""Checks of torch_npu's settings: allocator, task queue, blocking launches, cores, number formats, autoload."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, card_check, fail, fix_for, ok, warn
from npuenv.checks.python.installed import accepts
from npuenv.checks.session.variables import generation, installed, line, setting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npuenv.checks.base import CheckResult, Context

_DOCS = "Ascend/pytorch docs/zh/api/environment_variable/{}.md"
_ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"
_NO_CAPTURE_SINCE = (
    "0.11.0"  # from here on vllm-ascend rejects graph capture with blocking launches (pull request 3574)
)


def _whole(least: int, most: int | None = None) -> Callable[[str], bool]:
    return lambda text: text.isdigit() and least <= int(text) and (most is None or int(text) <= most)


def _share(*, is_open: bool) -> Callable[[str], bool]:
    """Whether a text is a fraction of one; `is_open`: 0 and 1 themselves are excluded."""

    def is_share(text: str) -> bool:
        if re.fullmatch(r"[0-9]*\.?[0-9]+", text) is None:
            return False
        return 0.0 < float(text) < 1.0 if is_open else 0.0 <= float(text) <= 1.0

    return is_share


def _is_switch(text: str) -> bool:
    return text.lower() in ("true", "false")


# Key -> the test of a value, and a description of the accepted values. A value in brackets may contain commas and
# colons.
_KEYS: dict[str, tuple[Callable[[str], bool], str]] = {
    "max_split_size_mb": (_whole(21), "> 20"),
    "garbage_collection_threshold": (_share(is_open=True), "0.0 < x < 1.0"),
    "expandable_segments": (_is_switch, "True, False"),
    "base_addr_aligned_kb": (_whole(0, 16), "0..16"),
    "page_size": (lambda text: text.lower() in ("1g", "1gb"), "1g"),
    "segment_size_mb": (_whole(20, 512), "20..512"),
    "roundup_power2_divisions": (
        lambda text: re.fullmatch(r"[0-9]+|\[[0-9:,>\s]+\]", text) is not None,
        "4, [256:1,>:8]",
    ),
    "multi_stream_lazy_reclaim": (_is_switch, "True, False"),
    "pinned_use_background_threads": (_is_switch, "True, False"),
    "pin_memory_expandable_segments": (_is_switch, "True, False"),
    "pinned_mem_register": (_is_switch, "True, False"),
    "large_segment_size_mb": (_whole(11), "> 10"),
    "per_process_memory_fraction": (_share(is_open=False), "0.0..1.0"),
    "throw_on_npumalloc_oom": (_is_switch, "True, False"),
    "pinned_max_round_threshold_mb": (_whole(1), ">= 1"),
    "pinned_max_cached_size_mb": (_whole(1), ">= 1"),
}
# Settings that exclude each other in torch_npu.
_EXCLUDE = (
    ("expandable_segments", "max_split_size_mb"),
    ("expandable_segments", "garbage_collection_threshold"),
    ("pin_memory_expandable_segments", "pinned_mem_register"),
)


def _allocator(context: Context) -> CheckResult:
    """PYTORCH_NPU_ALLOC_CONF: `key:value,...`. Expandable segments suit training, not vllm-ascend's memory pool."""
    value, evidence = setting(context, _ALLOCATOR), line(context, _ALLOCATOR)
    unset = fix_for("session.allocator", ("unset", _ALLOCATOR))
    if not value:
        return ok("session.allocator-unset")
    parts = [part.strip().partition(":") for part in re.split(r",(?![^\[]*\])", value)]
    if not all(re.fullmatch(r"\w+", key.strip()) and text.strip() for key, _, text in parts):
        return fail("session.allocator-malformed", evidence, fix=unset, value=value)
    settings = {key.strip(): text.strip() for key, _, text in parts}
    pair = next((pair for pair in _EXCLUDE if all(_is_on(settings, key) for key in pair)), None)
    if pair is not None:
        return fail("session.allocator-conflict", evidence, fix=unset, first=pair[0], second=pair[1])
    wrong = next((key for key in settings if key in _KEYS and not _KEYS[key][0](settings[key])), None)
    if wrong is not None:
        takes = _KEYS[wrong][1]
        return fail("session.allocator-value", evidence, fix=unset, key=wrong, value=settings[wrong], takes=takes)
    unread = tuple(sorted(set(settings) - set(_KEYS)))
    if unread:
        return warn("session.allocator-unread", evidence, fix=unset, keys=unread)
    if _is_on(settings, "expandable_segments") and _generates(context):
        return warn("session.allocator-all-roles", evidence, fix=unset)
    return ok("session.allocator-ok", evidence)


def _is_on(settings: Mapping[str, str], key: str) -> bool:
    return key in settings and settings[key].lower() != "false"


def _generates(context: Context) -> bool:
    """Whether generation with vllm-ascend uses this session's variables."""
    return "vllm-ascend" in installed(context) or context.framework in NPU_FRAMEWORKS


def _allocator_twice(context: Context) -> CheckResult:
    """Two names for one setting: torch_npu fails if both are set, and before 2.10 reads only its own."""
    own, shared = setting(context, _ALLOCATOR), setting(context, "PYTORCH_ALLOC_CONF")
    if not shared:
        return ok("session.allocator-twice-ok")
    lines = (*((line(context, _ALLOCATOR),) if own else ()), line(context, "PYTORCH_ALLOC_CONF"))
    torch = installed(context).get("torch", "")
    if torch and accepts(">=2.10.0", torch) is False:
        fix = fix_for("session.allocator-name", ("export", f"{_ALLOCATOR}={shared}"))
        says = "session.allocator-twice-older"
        return ok(says, *lines, torch=torch) if own else warn(says, *lines, fix=fix, torch=torch)
    if not own:
        return ok("session.allocator-twice-ok")
    fix = fix_for("session.allocator-twice", ("unset", "PYTORCH_ALLOC_CONF"))
    return fail("session.allocator-twice-both", *lines, fix=fix)


def _task_queue(context: Context) -> CheckResult:
    """TASK_QUEUE_ENABLE=2 raises peak memory: it is for training processes; vllm-ascend's workers need 1."""
    value, evidence = setting(context, "TASK_QUEUE_ENABLE"), line(context, "TASK_QUEUE_ENABLE")
    fix = fix_for("session.queue", ("unset", "TASK_QUEUE_ENABLE"))
    if not value:
        return ok("session.queue-unset")
    if value not in ("0", "1", "2"):
        return fail("session.queue-unread", evidence, fix=fix, value=value)
    if value == "2" and _generates(context):
        return warn("session.queue-all-roles", evidence, fix=fix)
    return ok("session.queue-ok", evidence, value=value)


def _blocking(context: Context) -> CheckResult:
    """ASCEND_LAUNCH_BLOCKING=1 is for finding a failing operator: slow, and vllm-ascend's graph mode rejects it."""
    if setting(context, "ASCEND_LAUNCH_BLOCKING") != "1":
        return ok("session.blocking-ok")
    evidence = line(context, "ASCEND_LAUNCH_BLOCKING")
    fix = fix_for("session.blocking", ("unset", "ASCEND_LAUNCH_BLOCKING"))
    have = installed(context).get("vllm-ascend", "")
    if have and accepts(f">={_NO_CAPTURE_SINCE}", have) is not False:
        return fail("session.blocking-refused", evidence, fix=fix, version=have)
    return warn("session.blocking-slow", evidence, fix=fix)


def _affinity(context: Context) -> CheckResult:
    """CPU_AFFINITY_CONF: a mode, then `force:`, `npu_affine:` and `npuN:first-last` in any order."""
    value = setting(context, "CPU_AFFINITY_CONF")
    if not value:
        return ok("session.affinity-unset")
    evidence = line(context, "CPU_AFFINITY_CONF")
    fix = fix_for("session.affinity", ("unset", "CPU_AFFINITY_CONF"))
    mode, *options = [part.strip() for part in value.split(",")]
    mode = mode.rpartition("mode:")[2].strip()  # older documents have `mode:1`
    wrong = [option for option in options if not _is_affinity(option)]
    if mode not in ("0", "1", "2") or wrong:
        return warn("session.affinity-misread", evidence, fix=fix, part=wrong[0] if wrong else mode)
    if "npu_affine:1" in options and generation(context) not in ("", "a2"):
        return warn("session.affinity-chip", evidence, fix=fix)
    return ok("session.affinity-ok", evidence)


def _is_affinity(option: str) -> bool:
    if re.fullmatch(r"(?:force|npu_affine):[01]", option):
        return True
    match = re.fullmatch(r"npu[0-9]+:([0-9]+)-([0-9]+)", option)
    return match is not None and int(match[1]) <= int(match[2])


def _saturation(context: Context) -> CheckResult:
    """INF_NAN_MODE_ENABLE=0: A2 and A3 reject it unless forced, and then infinities become ordinary numbers."""
    if setting(context, "INF_NAN_MODE_ENABLE") != "0" or generation(context) not in ("a2", "a3"):
        return ok("session.saturation-ok")
    evidence = line(context, "INF_NAN_MODE_ENABLE")
    fix = fix_for("session.saturation", ("unset", "INF_NAN_MODE_ENABLE"))
    if setting(context, "INF_NAN_MODE_FORCE_DISABLE") == "1":
        return warn("session.saturation-forced", evidence, line(context, "INF_NAN_MODE_FORCE_DISABLE"), fix=fix)
    return fail("session.saturation-refused", evidence, fix=fix)


def _autoload(context: Context) -> CheckResult:
    """TORCH_DEVICE_BACKEND_AUTOLOAD=0 is for builds: at run time torch has no `npu` until torch_npu is imported."""
    if setting(context, "TORCH_DEVICE_BACKEND_AUTOLOAD") != "0" or "torch-npu" not in installed(context):
        return ok("session.autoload-ok")
    fix = fix_for("session.autoload", ("unset", "TORCH_DEVICE_BACKEND_AUTOLOAD"))
    return warn("session.autoload-off", line(context, "TORCH_DEVICE_BACKEND_AUTOLOAD"), fix=fix)


_SESSION_ALLOCATOR = f"{_DOCS.format('memory_management/PYTORCH_NPU_ALLOC_CONF')}; alibaba/ROLL roll/platforms/npu.py"
_ALLOCATOR_TWICE = _DOCS.format("memory_management/PYTORCH_ALLOC_CONF")
_TASK_QUEUE = f"vllm-project/vllm-ascend Dockerfile @v0.23.0; {_DOCS.format('op_execution/TASK_QUEUE_ENABLE')}"
_LAUNCH_BLOCKING = f"{_DOCS.format('op_execution/ASCEND_LAUNCH_BLOCKING')}; vllm-project/vllm-ascend#3574"
_AUTOLOAD = "measured: with it off, torch 2.13.0 has no npu before torch_npu is imported; matrix settings, role build"
CHECKS = (
    card_check("session.allocator", (), _SESSION_ALLOCATOR, _allocator),
    card_check("session.allocator-twice", ("python.interpreter",), _ALLOCATOR_TWICE, _allocator_twice),
    card_check("session.task-queue", (), _TASK_QUEUE, _task_queue),
    card_check("session.launch-blocking", ("python.interpreter",), _LAUNCH_BLOCKING, _blocking),
    card_check("session.cpu-affinity", (), _DOCS.format("performance_tuning/CPU_AFFINITY_CONF"), _affinity),
    card_check("session.saturation", (), _DOCS.format("op_execution/INF_NAN_MODE_ENABLE"), _saturation),
    card_check("session.autoload", ("python.interpreter",), _AUTOLOAD, _autoload),
)
