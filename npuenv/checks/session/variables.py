"""Checks of variables: settings of torch_npu and of what is above it (vllm and vllm-ascend, Ray, ranks, threads); all
against the documents of their readers: values out of range (rows of matrix/variables.toml), unknown names.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, Check, card_check, fail, fix_for, of_variable, ok, warn
from npuenv.checks.python.installed import accepts
from npuenv.facts.hccn.tool import is_address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npuenv.checks.base import CheckResult, Context
    from npuenv.matrix.rows import Variable


_ALIKE = 0.88  # of difflib: one or two letters differ in a name of usual length
# Name prefixes of Ascend software; other names are ignored.
_OURS = re.compile(r"(?:HCCL|ASCEND|PYTORCH_NPU|VLLM_ASCEND|TASK_QUEUE|RAY_EXPERIMENTAL_NOSET|MULTI_STREAM|ACL_OP)_\w+")
_PORT = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?")
# HCCL_RDMA_TIMEOUT is the one number whose range depends on the chip.
_RDMA_TIMEOUT = {"a2": (5, 20), "a3": (5, 20), "310p": (5, 24), "910": (5, 24)}
_DOCS = "Ascend/pytorch docs/zh/api/environment_variable/{}.md"
_ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"
NOSET = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"
_NO_V0_SINCE = "0.9.1"  # vllm-ascend has no V0 engine from here on
_NO_CAPTURE_SINCE = "0.11.0"  # from here on vllm-ascend rejects graph capture with blocking launches (its PR 3574)
_SWITCH = (re.compile(r"(?i)true|false"), "True, False")
_MANY = 10**18
# Key -> the accepted values, and their description. A value in brackets may contain commas and colons.
_KEYS: dict[str, tuple[range | re.Pattern[str] | Callable[[str], bool], str]] = {
    "max_split_size_mb": (range(21, _MANY), "> 20"),
    "garbage_collection_threshold": (lambda text: _is_decimal(text) and 0.0 < float(text) < 1.0, "0.0 < x < 1.0"),
    "expandable_segments": _SWITCH,
    "base_addr_aligned_kb": (range(17), "0..16"),
    "page_size": (re.compile("(?i)1gb?"), "1g"),
    "segment_size_mb": (range(20, 513), "20..512"),
    "roundup_power2_divisions": (re.compile(r"[0-9]+|\[[0-9:,>\s]+\]"), "4, [256:1,>:8]"),
    "multi_stream_lazy_reclaim": _SWITCH,
    "pinned_use_background_threads": _SWITCH,
    "pin_memory_expandable_segments": _SWITCH,
    "pinned_mem_register": _SWITCH,
    "large_segment_size_mb": (range(11, _MANY), "> 10"),
    "per_process_memory_fraction": (lambda text: _is_decimal(text) and float(text) <= 1.0, "0.0..1.0"),
    "throw_on_npumalloc_oom": _SWITCH,
    "pinned_max_round_threshold_mb": (range(1, _MANY), ">= 1"),
    "pinned_max_cached_size_mb": (range(1, _MANY), ">= 1"),
}
# Settings that exclude each other in torch_npu.
_EXCLUDE = (
    ("expandable_segments", "max_split_size_mb"),
    ("expandable_segments", "garbage_collection_threshold"),
    ("pin_memory_expandable_segments", "pinned_mem_register"),
)


@of_variable(_ALLOCATOR, "session.allocator", unset="session.allocator-unset")
def _allocator(context: Context, value: str) -> CheckResult:
    """PYTORCH_NPU_ALLOC_CONF: `key:value,...`. Expandable segments suit training, not vllm-ascend's memory pool."""
    parts = [part.strip().partition(":") for part in re.split(r",(?![^\[]*\])", value)]
    if not all(re.fullmatch(r"\w+", key.strip()) and text.strip() for key, _, text in parts):
        return fail("session.allocator-malformed", value=value)
    settings = {key.strip(): text.strip() for key, _, text in parts}
    pair = next((pair for pair in _EXCLUDE if all(_is_on(settings, key) for key in pair)), None)
    if pair is not None:
        return fail("session.allocator-conflict", first=pair[0], second=pair[1])
    wrong = next((key for key, text in settings.items() if key in _KEYS and not _accepts(_KEYS[key][0], text)), None)
    if wrong is not None:
        return fail("session.allocator-value", key=wrong, value=settings[wrong], takes=_KEYS[wrong][1])
    unread = tuple(sorted(set(settings) - set(_KEYS)))
    if unread:
        return warn("session.allocator-unread", keys=unread)
    if _is_on(settings, "expandable_segments") and _generates(context):
        return warn("session.allocator-all-roles")
    return ok("session.allocator-ok")


def _has(context: Context, name: str, since: str = "0") -> bool:
    """Whether a distribution is installed, at this version or a newer one."""
    have = context.installed.get(name, "")
    return bool(have) and accepts(f">={since}", have) is not False  # a custom version counts as new


def _trains(context: Context, *names: str) -> bool:
    """Whether this session is for one of these frameworks, given or installed."""
    is_given = context.framework is not None
    return context.framework in names if is_given else any(name in context.installed for name in names)


def _accepts(values: range | re.Pattern[str] | Callable[[str], bool], text: str) -> bool:
    if isinstance(values, range):
        return text.isdigit() and int(text) in values
    return values.fullmatch(text) is not None if isinstance(values, re.Pattern) else values(text)


def _is_decimal(text: str) -> bool:
    return re.fullmatch(r"[0-9]*\.?[0-9]+", text) is not None


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


@of_variable("TASK_QUEUE_ENABLE", "session.queue", unset="session.queue-unset")
def _task_queue(context: Context, value: str) -> CheckResult:
    """TASK_QUEUE_ENABLE=2 raises peak memory: it is for training processes; vllm-ascend's workers need 1."""
    if value not in ("0", "1", "2"):
        return fail("session.queue-unread", value=value)
    if value == "2" and _generates(context):
        return warn("session.queue-all-roles")
    return ok("session.queue-ok", value=value)


@of_variable("ASCEND_LAUNCH_BLOCKING", "session.blocking")
def _blocking(context: Context, value: str) -> CheckResult | None:
    """ASCEND_LAUNCH_BLOCKING=1 is for finding a failing operator: slow, and vllm-ascend's graph mode rejects it."""
    if value != "1":
        return None
    if _has(context, "vllm-ascend", _NO_CAPTURE_SINCE):
        return fail("session.blocking-refused", version=context.installed["vllm-ascend"])
    return warn("session.blocking-slow")


@of_variable("CPU_AFFINITY_CONF", "session.affinity", unset="session.affinity-unset")
def _affinity(context: Context, value: str) -> CheckResult:
    """CPU_AFFINITY_CONF: a mode, then `force:`, `npu_affine:` and `npuN:first-last` in any order."""
    mode, *options = [part.strip() for part in value.split(",")]
    mode = mode.rpartition("mode:")[2].strip()  # older documents have `mode:1`
    wrong = [option for option in options if not _is_affinity(option)]
    if mode not in ("0", "1", "2") or wrong:
        return warn("session.affinity-misread", part=wrong[0] if wrong else mode)
    if "npu_affine:1" in options and context.generation not in ("", "a2"):
        return warn("session.affinity-chip")
    return ok("session.affinity-ok")


def _is_affinity(option: str) -> bool:
    if re.fullmatch(r"(?:force|npu_affine):[01]", option):
        return True
    match = re.fullmatch(r"npu[0-9]+:([0-9]+)-([0-9]+)", option)
    return match is not None and int(match[1]) <= int(match[2])


@of_variable("INF_NAN_MODE_ENABLE", "session.saturation")
def _saturation(context: Context, value: str) -> CheckResult | None:
    """INF_NAN_MODE_ENABLE=0: A2 and A3 reject it unless forced, and then infinities become ordinary numbers."""
    if value != "0" or context.generation not in ("a2", "a3"):
        return None
    if context.setting("INF_NAN_MODE_FORCE_DISABLE") != "1":
        return fail("session.saturation-refused")
    return warn("session.saturation-forced", *map(context.line, ("INF_NAN_MODE_ENABLE", "INF_NAN_MODE_FORCE_DISABLE")))


@of_variable("TORCH_DEVICE_BACKEND_AUTOLOAD", "session.autoload")
def _autoload(context: Context, value: str) -> CheckResult | None:
    """TORCH_DEVICE_BACKEND_AUTOLOAD=0 is for builds: at run time torch has no `npu` until torch_npu is imported."""
    return warn("session.autoload-off") if value == "0" and "torch-npu" in context.installed else None


@of_variable("VLLM_ASCEND_ENABLE_NZ", "session.nz")
def _nz(context: Context, value: str) -> CheckResult | None:
    """Weights in FRACTAL_NZ cannot be reloaded: reinforcement learning needs 0."""
    if value == "0" or not _trains(context, "verl", "roll") or unread(context, "VLLM_ASCEND_ENABLE_NZ"):
        return None
    return fail("session.nz-on", fix=fix_for("session.nz", ("export", "VLLM_ASCEND_ENABLE_NZ=0")), value=value)


@of_variable("VLLM_USE_V1", "session.engine")
def _engine(context: Context, value: str) -> CheckResult | None:
    if value != "0" or not _has(context, "vllm-ascend", _NO_V0_SINCE) or unread(context, "VLLM_USE_V1"):
        return None
    return fail("session.engine-v0", version=context.installed["vllm-ascend"])


@of_variable("VLLM_WORKER_MULTIPROC_METHOD", "session.fork")
def _fork(context: Context, value: str) -> CheckResult | None:
    """A forked process cannot use a card that its parent has opened."""
    value = value.lower()
    if value == "spawn" or "vllm-ascend" not in context.installed:
        return None
    fix = fix_for("session.fork", ("export", "VLLM_WORKER_MULTIPROC_METHOD=spawn"))
    return warn("session.fork-on", fix=fix) if value == "fork" else fail("session.fork-unread", fix=fix, value=value)


@of_variable(NOSET, "session.noset")
def _noset(context: Context, _: str) -> CheckResult | None:
    """With this switch Ray does not assign cards to workers. verl then takes physical numbers for logical ones."""
    if not _trains(context, "verl"):
        return None
    visible = [part.strip() for part in context.setting("ASCEND_RT_VISIBLE_DEVICES").split(",") if part.strip()]
    if visible and visible != [str(number) for number in range(len(visible))]:
        lines = (context.line(NOSET), context.line("ASCEND_RT_VISIBLE_DEVICES"))
        return fail("session.noset-numbers", *lines, visible=",".join(visible))
    return ok("session.noset-all")


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


@of_variable("OMP_NUM_THREADS", "session.threads")
def _threads(_: Context, value: str) -> CheckResult | None:
    """OMP_NUM_THREADS: whole numbers above 0, separated by commas; OpenMP ignores anything else with a warning."""
    is_read = re.fullmatch(r"[1-9][0-9]*(?:\s*,\s*[1-9][0-9]*)*", value)
    return None if is_read else warn("session.threads-unread", value=value)


@of_variable("HF_ENDPOINT", "session.hub")
def _hub(_: Context, value: str) -> CheckResult | None:
    """HF_ENDPOINT needs a scheme: without one, every download fails with `Invalid URL`."""
    if re.match(r"https?://[^/\s]", value):
        return None
    fix = fix_for("session.hub", ("export", f"HF_ENDPOINT=https://{value.lstrip('/')}"))
    return fail("session.hub-no-scheme", fix=fix, value=value)


def _docker_devices(context: Context) -> CheckResult:
    """ASCEND_VISIBLE_DEVICES is read only by the container runtime, at the start of a container."""
    variables = context.environment
    if "ASCEND_VISIBLE_DEVICES" not in variables or "ASCEND_RT_VISIBLE_DEVICES" in variables or context.in_container:
        return ok("session.docker-devices-ok")
    value = variables["ASCEND_VISIBLE_DEVICES"]
    fix = fix_for("session.docker-devices", ("export", f"ASCEND_RT_VISIBLE_DEVICES={value}"))
    return warn("session.docker-devices-lost", context.line("ASCEND_VISIBLE_DEVICES"), fix=fix, value=value)


@of_variable("SOC_VERSION", "session.soc-version")
def _soc_version(context: Context, value: str) -> CheckResult | None:
    """SOC_VERSION is the target of builds and takes precedence over npu-smi."""
    value, own = value.casefold(), context.matrix.hardware_row(context.generation)
    meant = [row for row in context.matrix.hardware if row.accepted and value in row.socs]
    if own is None or not meant or own in meant:
        return None
    return warn("session.soc-version-other", value=value, meant=meant[0].title, own=own.title)


@of_variable("CUDA_VISIBLE_DEVICES", "session.cuda-devices")
def _cuda_devices(context: Context, value: str) -> CheckResult | None:
    """CUDA_VISIBLE_DEVICES has no effect on NPUs."""
    is_choice = re.fullmatch(r"[0-9]+(?:\s*,\s*[0-9]+)*", value) is not None
    if not is_choice or "ASCEND_RT_VISIBLE_DEVICES" in context.environment:
        return None
    commands = (("unset", "CUDA_VISIBLE_DEVICES"), ("export", f"ASCEND_RT_VISIBLE_DEVICES={value}"))
    return warn("session.cuda-devices-lost", fix=fix_for("session.cuda-devices", *commands), value=value)


def misread(row: Variable, value: str, chip: str = "") -> str:
    """The accepted values, as in the variable's row, if `value` is not one of them; else "".

    Example: HCCL_RDMA_SL with "1000" -> "0..7"
    """
    least, most = row.least, row.most
    if row.name == "HCCL_RDMA_TIMEOUT":
        least, most = _RDMA_TIMEOUT.get(chip, (least, most))
    judge: dict[str, Callable[[], bool]] = {
        "number": lambda: is_number(value, least, most) and int(value) % row.multiple == 0,
        "decimal": lambda: re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", value) is not None and least <= float(value) <= most,
        "choice": lambda: value.casefold() in {item.casefold() for item in row.values},
        "ports": lambda: value == "auto" or all(map(_is_port, value.split(","))),
        "address": lambda: is_address(value),
        "pattern": lambda: re.fullmatch(row.pattern, value) is not None,
        "any": lambda: True,
    }
    if judge[row.kind]():
        return ""
    if row.kind in ("number", "decimal"):
        steps = f", a multiple of {row.multiple}" if row.multiple > 1 else ""
        return f"{least}..{most}{' ' if row.unit else ''}{row.unit}{steps}"
    usual = {"ports": "auto, 61000-61050, 61000,61050-61100", "address": "192.0.2.10, 2001:db8::10"}
    return ", ".join(row.values) or row.example or usual[row.kind]


def is_number(text: str, least: int, most: int) -> bool:
    """Whether it is a whole number within these limits."""
    return re.fullmatch(r"[0-9]{1,12}", text) is not None and least <= int(text) <= most


def _is_port(text: str) -> bool:
    ends = [int(part) for part in text.strip().split("-")] if _PORT.fullmatch(text.strip()) else []
    return bool(ends) and all(1 <= port <= 65535 for port in ends) and ends == sorted(ends)


def misread_values(context: Context, *readers: str) -> list[tuple[Variable, str, str]]:
    """(row, value, accepted values) of each variable of these readers with an invalid value."""
    chip, found = context.generation, []
    for row in context.matrix.variables if _has_any(context) else ():
        value = context.setting(row.name) if row.reader in readers and row.kind != "any" else ""
        takes = misread(row, value, chip) if value else ""
        if takes:
            found.append((row, value, takes))
    return found


def _has_any(context: Context) -> bool:
    """Whether the session sets any Ascend variable besides the location of CANN; else the table is not read."""
    return any(_OURS.fullmatch(name) for name in context.environment) or any(
        name in context.environment for name in ("COMBINED_ENABLE", "PER_STREAM_QUEUE", "INF_NAN_MODE_ENABLE",
                                                  "STREAMS_PER_DEVICE", "P2P_HCCL_BUFFSIZE", "ACL_DEVICE_SYNC_TIMEOUT",
                                                  "PYTORCH_NO_NPU_MEMORY_CACHING", "INF_NAN_MODE_FORCE_DISABLE")
    )  # fmt: skip


def misread_result(
    context: Context, verdict: Callable[..., CheckResult], name: str, fix: str, wrong: list[tuple[Variable, str, str]]
) -> CheckResult:
    """The result for such variables, which names the first; the fix unsets all of them."""
    row, value, takes = wrong[0]
    lines = [context.line(each.name) for each, *_ in wrong]
    unset = fix_for(fix, *(("unset", each.name) for each, *_ in wrong))
    return verdict(name, *lines, fix=unset, name=row.name, value=value, takes=takes)


def _torch_npu(context: Context) -> CheckResult:
    """Variables of torch_npu and CANN. Most invalid values fall back to the default with a log line at best."""
    wrong = misread_values(context, "torch_npu", "cann")
    if not wrong:
        return ok("session.values-ok")
    return misread_result(context, warn, "session.values-misread", "session.values", wrong)


def _names(context: Context) -> CheckResult:
    """An unknown name that is almost a known one, if the known one is not set."""
    ours = {name for name in context.environment if _OURS.fullmatch(name)}
    known = {row.name for row in context.matrix.variables} if ours else set()
    for name in sorted(ours - known):
        near = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
        if near and near[0] not in context.environment and not _is_other_name(name, near[0]):
            fix = fix_for("session.names", ("unset", name), ("export", f"{near[0]}={context.environment[name]}"))
            return warn("session.names-near", context.line(name), fix=fix, name=name, near=near[0])
    return ok("session.names-ok")


def _is_other_name(name: str, near: str) -> bool:
    """Whether two names differ by a complete word or a number, so that neither is a misspelling of the other.

    HCCL_RDMA_SL and HCCL_RDMA_TC are two names; HCCL_SOCKET_IFNAMES is a misspelling of HCCL_SOCKET_IFNAME.
    """
    one, other = name.split("_"), near.split("_")
    if re.sub("[0-9]", "", name) == re.sub("[0-9]", "", near):
        return True
    if len(one) != len(other):
        return any(len(word) > 2 for word in set(one) ^ set(other))
    return any(a != b and difflib.SequenceMatcher(None, a, b).ratio() < 0.6 for a, b in zip(one, other))


def _unread(context: Context) -> CheckResult:
    """Variables that the installed vllm-ascend no longer reads, or not yet."""
    have = context.installed.get("vllm-ascend", "")
    lost = unread(context, *(name for name in context.environment if name.startswith("VLLM_ASCEND_")))
    if not lost:
        return ok("session.vllm-ascend-ok")
    names = tuple(row.name for row in lost)
    fix = fix_for("session.vllm-ascend", *(("unset", name) for name in names))
    return warn("session.vllm-ascend-unread", *map(context.line, names), fix=fix, names=names, version=have)


def unread(context: Context, *names: str) -> list[Variable]:
    """Those of the names that their reader, as installed, does not read; none of a reader that is not installed."""
    rows = [row for row in context.matrix.variables if row.name in names and row.reader in context.installed]
    return [row for row in rows if not _is_read(row, context.installed[row.reader])]


def _is_read(row: Variable, version: str) -> bool:
    """Whether this version reads the variable; a custom version may read anything."""
    is_early = bool(row.since) and accepts(f">={row.since}", version) is False
    return not is_early and (not row.until or accepts(f">={row.until}", version) is not True)


_SESSION_ALLOCATOR = f"{_DOCS.format('memory_management/PYTORCH_NPU_ALLOC_CONF')}; alibaba/ROLL roll/platforms/npu.py"
_ALLOCATOR_TWICE = _DOCS.format("memory_management/PYTORCH_ALLOC_CONF")
_TASK_QUEUE = f"vllm-project/vllm-ascend Dockerfile @v0.23.0; {_DOCS.format('op_execution/TASK_QUEUE_ENABLE')}"
_LAUNCH_BLOCKING = f"{_DOCS.format('op_execution/ASCEND_LAUNCH_BLOCKING')}; vllm-project/vllm-ascend#3574"
_AUTOLOAD = "measured: with it off, torch 2.13.0 has no npu before torch_npu is imported; matrix settings, role build"
TORCH_NPU = (
    card_check("session.allocator", (), _SESSION_ALLOCATOR, _allocator),
    card_check("session.allocator-twice", ("python.interpreter",), _ALLOCATOR_TWICE, _allocator_twice),
    card_check("session.task-queue", (), _TASK_QUEUE, _task_queue),
    card_check("session.launch-blocking", ("python.interpreter",), _LAUNCH_BLOCKING, _blocking),
    card_check("session.cpu-affinity", (), _DOCS.format("performance_tuning/CPU_AFFINITY_CONF"), _affinity),
    card_check("session.saturation", (), _DOCS.format("op_execution/INF_NAN_MODE_ENABLE"), _saturation),
    card_check("session.autoload", ("python.interpreter",), _AUTOLOAD, _autoload),
)
_NZ = "alibaba/ROLL ascend_npu_faq.md @8eb27cc2; vllm-project/vllm-ascend vllm_ascend/envs.py"
_VLLM_FORK = "hiyouga/LlamaFactory#7447; vllm-project/vllm-ascend#7256 #3133"
_DOCKER_DEVICES = "ray-project/ray#42030; Ascend Docker Runtime"
_CUDA_DEVICES = "alibaba/ROLL docs_roll ascend_usage.md: CUDA_VISIBLE_DEVICES becomes ASCEND_RT_VISIBLE_DEVICES"
_VLLM_ENGINE = "vllm-project/vllm-ascend#2728 (release note of 0.9.1)"
_SOC_VERSION = "vllm-project/vllm-ascend setup.py, Dockerfile.a3: SOC_VERSION"
_VLLM_ASCEND = "vllm-project/vllm-ascend vllm_ascend/envs.py of each release"
ABOVE = (
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
    card_check("session.torch-npu", (), "matrix variables: Ascend/pytorch environment variables", _torch_npu),
    card_check("session.names", (), "matrix variables: names in the readers' documents", _names),
    card_check("session.vllm-ascend", ("python.interpreter",), _VLLM_ASCEND, _unread),
)
