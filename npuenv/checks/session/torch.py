"""Checks of the settings of torch_npu, and of those above it: vllm and vllm-ascend, Ray, ranks, threads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, Check, card_check, fail, fix_for, ok, warn
from npuenv.checks.python.installed import accepts
from npuenv.checks.session.variables import unread

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
    value, evidence = context.setting(_ALLOCATOR), context.line(_ALLOCATOR)
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
    return "vllm-ascend" in context.installed or context.framework in NPU_FRAMEWORKS


def _allocator_twice(context: Context) -> CheckResult:
    """Two names for one setting: torch_npu fails if both are set, and before 2.10 reads only its own."""
    own, shared = context.setting(_ALLOCATOR), context.setting("PYTORCH_ALLOC_CONF")
    if not shared:
        return ok("session.allocator-twice-ok")
    lines = (*((context.line(_ALLOCATOR),) if own else ()), context.line("PYTORCH_ALLOC_CONF"))
    torch = context.installed.get("torch", "")
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
    value, evidence = context.setting("TASK_QUEUE_ENABLE"), context.line("TASK_QUEUE_ENABLE")
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
    if context.setting("ASCEND_LAUNCH_BLOCKING") != "1":
        return ok("session.blocking-ok")
    evidence = context.line("ASCEND_LAUNCH_BLOCKING")
    fix = fix_for("session.blocking", ("unset", "ASCEND_LAUNCH_BLOCKING"))
    have = context.installed.get("vllm-ascend", "")
    if have and accepts(f">={_NO_CAPTURE_SINCE}", have) is not False:
        return fail("session.blocking-refused", evidence, fix=fix, version=have)
    return warn("session.blocking-slow", evidence, fix=fix)


def _affinity(context: Context) -> CheckResult:
    """CPU_AFFINITY_CONF: a mode, then `force:`, `npu_affine:` and `npuN:first-last` in any order."""
    value = context.setting("CPU_AFFINITY_CONF")
    if not value:
        return ok("session.affinity-unset")
    evidence = context.line("CPU_AFFINITY_CONF")
    fix = fix_for("session.affinity", ("unset", "CPU_AFFINITY_CONF"))
    mode, *options = [part.strip() for part in value.split(",")]
    mode = mode.rpartition("mode:")[2].strip()  # older documents have `mode:1`
    wrong = [option for option in options if not _is_affinity(option)]
    if mode not in ("0", "1", "2") or wrong:
        return warn("session.affinity-misread", evidence, fix=fix, part=wrong[0] if wrong else mode)
    if "npu_affine:1" in options and context.generation not in ("", "a2"):
        return warn("session.affinity-chip", evidence, fix=fix)
    return ok("session.affinity-ok", evidence)


def _is_affinity(option: str) -> bool:
    if re.fullmatch(r"(?:force|npu_affine):[01]", option):
        return True
    match = re.fullmatch(r"npu[0-9]+:([0-9]+)-([0-9]+)", option)
    return match is not None and int(match[1]) <= int(match[2])


def _saturation(context: Context) -> CheckResult:
    """INF_NAN_MODE_ENABLE=0: A2 and A3 reject it unless forced, and then infinities become ordinary numbers."""
    if context.setting("INF_NAN_MODE_ENABLE") != "0" or context.generation not in ("a2", "a3"):
        return ok("session.saturation-ok")
    evidence = context.line("INF_NAN_MODE_ENABLE")
    fix = fix_for("session.saturation", ("unset", "INF_NAN_MODE_ENABLE"))
    if context.setting("INF_NAN_MODE_FORCE_DISABLE") == "1":
        return warn("session.saturation-forced", evidence, context.line("INF_NAN_MODE_FORCE_DISABLE"), fix=fix)
    return fail("session.saturation-refused", evidence, fix=fix)


def _autoload(context: Context) -> CheckResult:
    """TORCH_DEVICE_BACKEND_AUTOLOAD=0 is for builds: at run time torch has no `npu` until torch_npu is imported."""
    if context.setting("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0" or "torch-npu" not in context.installed:
        return ok("session.autoload-ok")
    fix = fix_for("session.autoload", ("unset", "TORCH_DEVICE_BACKEND_AUTOLOAD"))
    return warn("session.autoload-off", context.line("TORCH_DEVICE_BACKEND_AUTOLOAD"), fix=fix)


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


NOSET = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"
_NO_V0_SINCE = "0.9.1"  # vllm-ascend has no V0 engine from here on


def _has(context: Context, name: str, since: str = "0") -> bool:
    """Whether a distribution is installed, at this version or a newer one."""
    have = context.installed.get(name, "")
    return bool(have) and accepts(f">={since}", have) is not False  # a custom version counts as new


def _trains(context: Context, *names: str) -> bool:
    """Whether this session is for one of these frameworks, given or installed."""
    return context.framework in names or (
        context.framework is None and any(name in context.installed for name in names)
    )


def _nz(context: Context) -> CheckResult:
    """Weights in FRACTAL_NZ cannot be reloaded: reinforcement learning needs 0."""
    value = context.setting("VLLM_ASCEND_ENABLE_NZ")
    if value in ("", "0") or not _trains(context, "verl", "roll") or unread(context, "VLLM_ASCEND_ENABLE_NZ"):
        return ok("session.nz-ok")
    fix = fix_for("session.nz", ("export", "VLLM_ASCEND_ENABLE_NZ=0"))
    return fail("session.nz-on", context.line("VLLM_ASCEND_ENABLE_NZ"), fix=fix, value=value)


def _engine(context: Context) -> CheckResult:
    if context.setting("VLLM_USE_V1") != "0" or not _has(context, "vllm-ascend", _NO_V0_SINCE):
        return ok("session.engine-ok")
    fix = fix_for("session.engine", ("unset", "VLLM_USE_V1"))
    return fail("session.engine-v0", context.line("VLLM_USE_V1"), fix=fix, version=context.installed["vllm-ascend"])


def _fork(context: Context) -> CheckResult:
    """A forked process cannot use a card that its parent has opened."""
    value = context.setting("VLLM_WORKER_MULTIPROC_METHOD").lower()
    if value in ("", "spawn") or "vllm-ascend" not in context.installed:
        return ok("session.fork-ok")
    evidence = context.line("VLLM_WORKER_MULTIPROC_METHOD")
    fix = fix_for("session.fork", ("export", "VLLM_WORKER_MULTIPROC_METHOD=spawn"))
    if value == "fork":
        return warn("session.fork-on", evidence, fix=fix)
    return fail("session.fork-unread", evidence, fix=fix, value=value)


def _noset(context: Context) -> CheckResult:
    """With this switch Ray does not assign cards to workers. verl then takes physical numbers for logical ones."""
    if not context.setting(NOSET) or not _trains(context, "verl"):
        return ok("session.noset-ok")
    visible = [part.strip() for part in context.setting("ASCEND_RT_VISIBLE_DEVICES").split(",") if part.strip()]
    fix = fix_for("session.noset", ("unset", NOSET))
    if visible and visible != [str(number) for number in range(len(visible))]:
        lines = (context.line(NOSET), context.line("ASCEND_RT_VISIBLE_DEVICES"))
        return fail("session.noset-numbers", *lines, fix=fix, visible=",".join(visible))
    return ok("session.noset-all", context.line(NOSET))


def _ranks(context: Context) -> CheckResult:
    """Stale or wrong RANK and WORLD_SIZE: the run waits for nodes that never join."""
    rank, size = context.setting("RANK"), context.setting("WORLD_SIZE")
    if not (rank or size):
        return ok("session.ranks-unset")
    lines = [context.line(name) for name in ("RANK", "WORLD_SIZE")]
    fix = fix_for("session.ranks", ("unset", "RANK", "WORLD_SIZE"))
    wrong = next((text for text in (rank, size) if text and not text.isdigit()), None)
    if wrong is not None:
        return fail("session.ranks-unread", *lines, fix=fix, value=wrong)
    if rank and size and int(rank) >= int(size):
        return fail("session.ranks-beyond", *lines, fix=fix, rank=rank, size=size)
    return ok("session.ranks-ok", *lines)


def _threads(context: Context) -> CheckResult:
    """OMP_NUM_THREADS: whole numbers above 0, separated by commas; OpenMP ignores anything else with a warning."""
    value = context.setting("OMP_NUM_THREADS")
    if not value or re.fullmatch(r"[1-9][0-9]*(?:\s*,\s*[1-9][0-9]*)*", value):
        return ok("session.threads-ok")
    fix = fix_for("session.threads", ("unset", "OMP_NUM_THREADS"))
    return warn("session.threads-unread", context.line("OMP_NUM_THREADS"), fix=fix, value=value)


def _hub(context: Context) -> CheckResult:
    """HF_ENDPOINT needs a scheme: without one, every download fails with `Invalid URL`."""
    value = context.setting("HF_ENDPOINT")
    if not value or re.match(r"https?://[^/\s]", value):
        return ok("session.hub-ok")
    fix = fix_for("session.hub", ("export", f"HF_ENDPOINT=https://{value.lstrip('/')}"))
    return fail("session.hub-no-scheme", context.line("HF_ENDPOINT"), fix=fix, value=value)


def _docker_devices(context: Context) -> CheckResult:
    """ASCEND_VISIBLE_DEVICES is read only by the container runtime, at the start of a container."""
    variables = context.environment
    container = context.facts.machine.container
    if "ASCEND_VISIBLE_DEVICES" not in variables or "ASCEND_RT_VISIBLE_DEVICES" in variables or container.is_known:
        return ok("session.docker-devices-ok")
    value = variables["ASCEND_VISIBLE_DEVICES"]
    fix = fix_for("session.docker-devices", ("export", f"ASCEND_RT_VISIBLE_DEVICES={value}"))
    return warn("session.docker-devices-lost", context.line("ASCEND_VISIBLE_DEVICES"), fix=fix, value=value)


def _soc_version(context: Context) -> CheckResult:
    """SOC_VERSION is the target of builds and takes precedence over npu-smi."""
    value, own = context.setting("SOC_VERSION").casefold(), context.generation
    meant = [row for row in context.matrix.hardware if row.accepted and value in row.socs]
    if not value or not own or not meant or own in {row.id for row in meant}:
        return ok("session.soc-version-ok")
    mine = next(row for row in context.matrix.hardware if row.id == own)
    fix = fix_for("session.soc-version", ("unset", "SOC_VERSION"))
    says = {"value": value, "meant": meant[0].title, "own": mine.title}
    return warn("session.soc-version-other", context.line("SOC_VERSION"), fix=fix, **says)


def _cuda_devices(context: Context) -> CheckResult:
    """CUDA_VISIBLE_DEVICES has no effect on NPUs."""
    value = context.setting("CUDA_VISIBLE_DEVICES")
    is_choice = re.fullmatch(r"[0-9]+(?:\s*,\s*[0-9]+)*", value) is not None
    if not is_choice or "ASCEND_RT_VISIBLE_DEVICES" in context.environment:
        return ok("session.cuda-devices-ok")
    fix = fix_for(
        "session.cuda-devices", ("unset", "CUDA_VISIBLE_DEVICES"), ("export", f"ASCEND_RT_VISIBLE_DEVICES={value}")
    )
    return warn("session.cuda-devices-lost", context.line("CUDA_VISIBLE_DEVICES"), fix=fix, value=value)


_NZ = "alibaba/ROLL ascend_npu_faq.md @8eb27cc2; vllm-project/vllm-ascend vllm_ascend/envs.py"
_VLLM_FORK = "hiyouga/LlamaFactory#7447; vllm-project/vllm-ascend#7256 #3133"
_DOCKER_DEVICES = "ray-project/ray#42030; Ascend Docker Runtime"
_CUDA_DEVICES = "alibaba/ROLL docs_roll ascend_usage.md: CUDA_VISIBLE_DEVICES becomes ASCEND_RT_VISIBLE_DEVICES"
_VLLM_ENGINE = "vllm-project/vllm-ascend#2728 (release note of 0.9.1)"
_SOC_VERSION = "vllm-project/vllm-ascend setup.py, Dockerfile.a3: SOC_VERSION"
ENGINES = (
    card_check("session.nz", ("python.interpreter",), _NZ, _nz),
    card_check("session.vllm-engine", ("python.interpreter",), _VLLM_ENGINE, _engine),
    card_check("session.vllm-fork", ("python.interpreter",), _VLLM_FORK, _fork),
    card_check("session.ray-noset", ("python.interpreter",), "verl-project/verl#7507", _noset),
    Check("session.ranks", (), "alibaba/ROLL docs_roll ascend_npu_examples.md; torch.distributed env://", _ranks),
    Check("session.omp-threads", (), "OpenMP 5.2 OMP_NUM_THREADS; gcc libgomp", _threads),
    Check("session.hub", (), "huggingface_hub environment variables: HF_ENDPOINT", _hub),
    card_check("session.docker-devices", ("machine.container",), _DOCKER_DEVICES, _docker_devices),
    card_check("session.soc-version", (), _SOC_VERSION, _soc_version),
    card_check("session.cuda-devices", (), _CUDA_DEVICES, _cuda_devices),
)
