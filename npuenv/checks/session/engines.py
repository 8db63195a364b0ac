"""Checks of settings above torch_npu: vllm and vllm-ascend, Ray's handling of cards, ranks, threads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import Check, card_check, fail, fix_for, ok, warn
from npuenv.checks.python.installed import accepts
from npuenv.checks.session.variables import generation, installed, line, setting

if TYPE_CHECKING:
    from npuenv.checks.base import CheckResult, Context

NOSET = "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"
_NO_V0_SINCE = "0.9.1"  # vllm-ascend has no V0 engine from here on


def _has(context: Context, name: str, since: str = "0") -> bool:
    """Whether a distribution is installed, at this version or a newer one."""
    have = installed(context).get(name, "")
    return bool(have) and accepts(f">={since}", have) is not False  # a custom version counts as new


def _trains(context: Context, *names: str) -> bool:
    """Whether this session is for one of these frameworks, given or installed."""
    return context.framework in names or (
        context.framework is None and any(name in installed(context) for name in names)
    )


def _nz(context: Context) -> CheckResult:
    """Weights in FRACTAL_NZ cannot be reloaded: reinforcement learning needs 0."""
    value = setting(context, "VLLM_ASCEND_ENABLE_NZ")
    if value in ("", "0") or not _trains(context, "verl", "roll"):
        return ok("session.nz-ok")
    fix = fix_for("session.nz", ("export", "VLLM_ASCEND_ENABLE_NZ=0"))
    return fail("session.nz-on", line(context, "VLLM_ASCEND_ENABLE_NZ"), fix=fix, value=value)


def _engine(context: Context) -> CheckResult:
    if setting(context, "VLLM_USE_V1") != "0" or not _has(context, "vllm-ascend", _NO_V0_SINCE):
        return ok("session.engine-ok")
    fix = fix_for("session.engine", ("unset", "VLLM_USE_V1"))
    version = installed(context)["vllm-ascend"]
    return fail("session.engine-v0", line(context, "VLLM_USE_V1"), fix=fix, version=version)


def _fork(context: Context) -> CheckResult:
    """A forked process cannot use a card that its parent has opened."""
    value = setting(context, "VLLM_WORKER_MULTIPROC_METHOD").lower()
    if value in ("", "spawn") or "vllm-ascend" not in installed(context):
        return ok("session.fork-ok")
    evidence = line(context, "VLLM_WORKER_MULTIPROC_METHOD")
    fix = fix_for("session.fork", ("export", "VLLM_WORKER_MULTIPROC_METHOD=spawn"))
    if value == "fork":
        return warn("session.fork-on", evidence, fix=fix)
    return fail("session.fork-unread", evidence, fix=fix, value=value)


def _noset(context: Context) -> CheckResult:
    """With this switch Ray does not assign cards to workers. verl then takes physical numbers for logical ones."""
    if not setting(context, NOSET) or not _trains(context, "verl"):
        return ok("session.noset-ok")
    visible = [part.strip() for part in setting(context, "ASCEND_RT_VISIBLE_DEVICES").split(",") if part.strip()]
    fix = fix_for("session.noset", ("unset", NOSET))
    if visible and visible != [str(number) for number in range(len(visible))]:
        lines = (line(context, NOSET), line(context, "ASCEND_RT_VISIBLE_DEVICES"))
        return fail("session.noset-numbers", *lines, fix=fix, visible=",".join(visible))
    return ok("session.noset-all", line(context, NOSET))


def _ranks(context: Context) -> CheckResult:
    """Stale or wrong RANK and WORLD_SIZE: the run waits for nodes that never join."""
    rank, size = setting(context, "RANK"), setting(context, "WORLD_SIZE")
    if not (rank or size):
        return ok("session.ranks-unset")
    lines = [line(context, name) for name in ("RANK", "WORLD_SIZE")]
    fix = fix_for("session.ranks", ("unset", "RANK", "WORLD_SIZE"))
    wrong = next((text for text in (rank, size) if text and not text.isdigit()), None)
    if wrong is not None:
        return fail("session.ranks-unread", *lines, fix=fix, value=wrong)
    if rank and size and int(rank) >= int(size):
        return fail("session.ranks-beyond", *lines, fix=fix, rank=rank, size=size)
    return ok("session.ranks-ok", *lines)


def _threads(context: Context) -> CheckResult:
    """OMP_NUM_THREADS: whole numbers above 0, separated by commas; OpenMP ignores anything else with a warning."""
    value = setting(context, "OMP_NUM_THREADS")
    if not value or re.fullmatch(r"[1-9][0-9]*(?:\s*,\s*[1-9][0-9]*)*", value):
        return ok("session.threads-ok")
    fix = fix_for("session.threads", ("unset", "OMP_NUM_THREADS"))
    return warn("session.threads-unread", line(context, "OMP_NUM_THREADS"), fix=fix, value=value)


def _hub(context: Context) -> CheckResult:
    """HF_ENDPOINT needs a scheme: without one, every download fails with `Invalid URL`."""
    value = setting(context, "HF_ENDPOINT")
    if not value or re.match(r"https?://[^/\s]", value):
        return ok("session.hub-ok")
    fix = fix_for("session.hub", ("export", f"HF_ENDPOINT=https://{value.lstrip('/')}"))
    return fail("session.hub-no-scheme", line(context, "HF_ENDPOINT"), fix=fix, value=value)


def _docker_devices(context: Context) -> CheckResult:
    """ASCEND_VISIBLE_DEVICES is read only by the container runtime, at the start of a container."""
    variables = context.environment
    container = context.facts.machine.container
    if "ASCEND_VISIBLE_DEVICES" not in variables or "ASCEND_RT_VISIBLE_DEVICES" in variables or container.is_known:
        return ok("session.docker-devices-ok")
    value = variables["ASCEND_VISIBLE_DEVICES"]
    fix = fix_for("session.docker-devices", ("export", f"ASCEND_RT_VISIBLE_DEVICES={value}"))
    return warn("session.docker-devices-lost", line(context, "ASCEND_VISIBLE_DEVICES"), fix=fix, value=value)


def _soc_version(context: Context) -> CheckResult:
    """SOC_VERSION is the target of builds and takes precedence over npu-smi."""
    value, own = setting(context, "SOC_VERSION").casefold(), generation(context)
    meant = [row for row in context.matrix.hardware if row.accepted and value in row.socs]
    if not value or not own or not meant or own in {row.id for row in meant}:
        return ok("session.soc-version-ok")
    mine = next(row for row in context.matrix.hardware if row.id == own)
    fix = fix_for("session.soc-version", ("unset", "SOC_VERSION"))
    says = {"value": value, "meant": meant[0].title, "own": mine.title}
    return warn("session.soc-version-other", line(context, "SOC_VERSION"), fix=fix, **says)


def _cuda_devices(context: Context) -> CheckResult:
    """CUDA_VISIBLE_DEVICES has no effect on NPUs."""
    value = setting(context, "CUDA_VISIBLE_DEVICES")
    is_choice = re.fullmatch(r"[0-9]+(?:\s*,\s*[0-9]+)*", value) is not None
    if not is_choice or "ASCEND_RT_VISIBLE_DEVICES" in context.environment:
        return ok("session.cuda-devices-ok")
    fix = fix_for(
        "session.cuda-devices", ("unset", "CUDA_VISIBLE_DEVICES"), ("export", f"ASCEND_RT_VISIBLE_DEVICES={value}")
    )
    return warn("session.cuda-devices-lost", line(context, "CUDA_VISIBLE_DEVICES"), fix=fix, value=value)


_NZ = "alibaba/ROLL ascend_npu_faq.md @8eb27cc2; vllm-project/vllm-ascend vllm_ascend/envs.py"
_VLLM_FORK = "hiyouga/LlamaFactory#7447; vllm-project/vllm-ascend#7256 #3133"
_DOCKER_DEVICES = "ray-project/ray#42030; Ascend Docker Runtime"
_CUDA_DEVICES = "alibaba/ROLL docs_roll ascend_usage.md: CUDA_VISIBLE_DEVICES becomes ASCEND_RT_VISIBLE_DEVICES"
_VLLM_ENGINE = "vllm-project/vllm-ascend#2728 (release note of 0.9.1)"
_SOC_VERSION = "vllm-project/vllm-ascend setup.py, Dockerfile.a3: SOC_VERSION"
CHECKS = (
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
