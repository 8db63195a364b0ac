"""Findings of the trainer's stages: about the machine (packages, import, device, arithmetic, memory, ranks, first use),
and those of the second opinion. Pure.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from npuenv.core.finding import Finding, Status
from npuenv.smoke.reading import Reading, finding, number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npuenv.smoke.run import Record


# The largest error of a product in units of its deviation: rounding of float32 and of 16 bits, with room.
_ARITHMETIC = {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2, "bfloat16": 6e-2}


def packages(run: Reading) -> Finding:
    """Ray, tensordict and vllm, if installed."""
    stage = run.stage("packages") or {}
    args = _versions(stage)
    skipped = stage.get("skipped")
    if stage.get("passed") is None and isinstance(skipped, list) and skipped:
        args = {"names": ", ".join(map(str, skipped))}
        return finding("training.packages", Status.SKIP, "packages-skipped", args)
    return _stage_finding(run, "packages", "training.packages", "packages-failed", args, when_null="packages-none")


def imported(run: Reading) -> Finding:
    """torch and, on an NPU, torch_npu."""
    stage = run.stage("import") or {}
    args = {"torch": stage.get("torch"), "seconds": f"{number(stage, 'seconds'):.1f}", "reason": stage.get("reason")}
    return _stage_finding(run, "import", "training.imports", "import-failed", args)


def device(run: Reading) -> Finding:
    """Whether the device exists, and tensors come back from it unchanged."""
    stage = run.stage("device") or {}
    args = {"device": stage.get("card") if stage.get("type") != "cpu" else "cpu", "reason": stage.get("reason")}
    cpu = {"threads": stage.get("num_threads"), "cores": stage.get("cores"), "precision": stage.get("matmul_precision")}
    found = _stage_finding(run, "device", "training.device", "device-failed", args)
    if found.status is Status.OK and stage.get("type") == "cpu":
        return finding(found.check, Status.OK, "device-cpu", cpu, evidence=stage)
    return found


def arithmetic(run: Reading) -> Finding:
    """Products against float64: the record's own result and its errors, each against this file's limits."""
    check, stage = "training.arithmetic", run.stage("matmul")
    if stage is None:
        return finding(check, Status.UNKNOWN, "not-measured", {"name": "matmul"})
    args = {"device": stage.get("device"), "reason": stage.get("reason"), "error": _worst(stage)}
    if stage.get("passed") is not True or not _is_small(stage):
        return finding(check, Status.FAIL, "arithmetic-wrong", args, evidence=stage)
    return finding(check, Status.OK, "arithmetic", args, evidence=stage)


def decoder(run: Reading) -> Finding:
    """A small decoder's log-probabilities and gradient, on the device and on the CPU."""
    stage = run.stage("decoder") or {}
    args = {"forward": f"{number(stage, 'logprob_error'):.1e}", "backward": f"{number(stage, 'gradient_error'):.1e}"}
    return _stage_finding(run, "decoder", "training.gradients", "decoder-wrong", args)


def memory(run: Reading) -> Finding:
    """The memory that the run still needs against the free memory."""
    stage = run.stage("memory") or {}
    args = {
        "needed": f"{number(stage, 'needed_bytes') / (1 << 20):.0f}",
        "free": f"{number(stage, 'free_bytes') / (1 << 20):.0f}",
        "reason": stage.get("reason"),
    }
    failed = "out-of-memory" if stage.get("cause") == "out-of-memory" else "memory-short"
    return _stage_finding(run, "memory", "training.memory", failed, args, when_null="memory-unsaid")


def collective(run: Reading) -> Finding:
    """Whether the ranks' sums are correct."""
    stage = run.stage("collective") or {}
    args = {"ranks": stage.get("ranks"), "reason": stage.get("reason")}
    failed = "collective-failed" if stage.get("cause") is None else "collective-broken"  # during the run
    return _stage_finding(run, "collective", "training.collective", failed, args, when_null="collective-none")


def first_use(run: Reading) -> Finding:
    """The duration of the first generation and the first gradient, if operators are compiled for them."""
    stage = run.stage("warm-up") or {}
    args = {"seconds": f"{number(stage, 'seconds'):.0f}", "reason": stage.get("reason")}
    return _stage_finding(run, "warm-up", "training.first-use", "first-use-failed", args, when_null="nothing-compiled")


def _stage_finding(
    run: Reading, name: str, check: str, failed: str, args: Mapping[str, object], *, when_null: str = ""
) -> Finding:
    """The finding of a stage with the result yes, no or, if `when_null` is a message, not applicable."""
    stage = run.stage(name)
    if stage is None:
        return finding(check, Status.UNKNOWN, "not-measured", {"name": name})
    if stage.get("passed") is True:
        return finding(check, Status.OK, f"{name}-fine", args, evidence=stage)
    if stage.get("passed") is None:
        if when_null:
            return finding(check, Status.SKIP, when_null, args)
        return finding(check, Status.UNKNOWN, "not-measured", {"name": name})
    return finding(check, Status.FAIL, failed, args, evidence=stage)


def _versions(stage: Record) -> dict[str, object]:
    installed = [
        f"{name} {found.get('version')}"
        for name, found in stage.items()
        if isinstance(found, dict) and found.get("version")
    ]
    return {"names": ", ".join(installed), "reason": stage.get("reason")}


def _errors(stage: Record) -> dict[str, float]:
    errors = stage.get("errors")
    return {str(name): number(errors, name) for name in errors} if isinstance(errors, dict) else {}


def _is_small(stage: Record) -> bool:
    errors = _errors(stage)
    is_exact = stage.get("precision") == "highest"
    limits = {**_ARITHMETIC, "float32": _ARITHMETIC["float32"] if is_exact else _ARITHMETIC["bfloat16"]}
    return bool(errors) and all(error <= limits.get(name, 0.0) for name, error in errors.items())


def _worst(stage: Record) -> str:
    return ", ".join(f"{name} {error:.1e}" for name, error in _errors(stage).items()) or "-"


MACHINE: Sequence[Callable[[Reading], Finding]] = (
    packages,
    imported,
    device,
    arithmetic,
    decoder,
    memory,
    collective,
    first_use,
)


# What the trainer recomputed or drew again, and holds against its own steps. Each stage names what is wrong on that
# link's own evidence (`wrong`); what follows from it is not blamed.

# Causes first. The arithmetic of a step is wrong in the trainer's code or on the device; all else can only be the code.
_BY_ARITHMETIC = (
    "learner-logprobs-wrong",
    "reference-logprobs-wrong",
    "advantages-wrong",
    "loss-wrong",
    "gradients-not-summed",
    "gradient-missing",
    "gradient-wrong",
    "clip-wrong",
    "optimizer-wrong",
    "critic-wrong",
    "sampler-logprobs-wrong",
)
WRONG = (
    "prompts-repeat",
    "prompts-differ",
    "heldout-overlaps",
    "batch-differs",
    "rewards-wrong",
    "mini-batches-differ",
    "order-differs",
    "reference-not-start",
    "reference-moved",
    "state-changed",
    "lr-off-schedule",
    "noise-off-schedule",
    "noise-repeats",
    "kl-coef-off",
    "answers-cut",
    "rows-repeat",
    "samples-repeat",
    "mask-on-observations",
    "answers-misplaced",
    "sampler-weights-failed",
    *_BY_ARITHMETIC,
    "metrics-wrong",
    "restore-incomplete",
)
# The trainer's stages, each a check `training.NAME`.
STAGES = ("prompts", "samples", "heldout", "batch", "mini-batches", "schedules", "reference", "state", "recomputed")


def _second_opinion(run: Reading, name: str) -> Finding:
    check, stage = f"training.{name}", run.stage(name) or {}
    if stage.get("passed") is True:
        return finding(check, Status.OK, f"{name}-fine", {"steps": stage.get("steps")}, evidence=stage)
    if stage.get("passed") is None and stage.get("skipped"):
        return finding(check, Status.SKIP, "no-second-opinion", {"reason": str(stage["skipped"])}, evidence=stage)
    wrong = str(stage.get("wrong"))
    if stage.get("passed") is None or wrong not in WRONG:
        return finding(check, Status.UNKNOWN, "not-measured", {"name": name}, evidence=stage)
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in stage.items()}
    is_code = wrong not in _BY_ARITHMETIC or (run.header or {}).get("device") == "cpu"
    fix_key = "trainer-wrong" if is_code else "step-wrong"
    return finding(check, Status.FAIL, wrong, shown, evidence=stage, fix_key=fix_key)


SECOND_OPINION: Sequence[Callable[[Reading], Finding]] = tuple(
    functools.partial(_second_opinion, name=name) for name in STAGES
)
