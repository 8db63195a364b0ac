"""Whether a job fits onto its cards, from the fullest card at its worst moment.

What to change is not decided here, but in `npuenv.preflight.memory.advice`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.preflight.memory import generation
from npuenv.preflight.memory.phases import GIB, Moment, moments, reserve_gib, usable_gib
from npuenv.preflight.memory.types import Estimate, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.memory.types import Job, Placement

TIGHT = 0.92  # of a card: what an estimate can be off by, and fragmentation, may take the rest


def judge(job: Job, placement: Placement) -> Estimate:
    """The estimate without advice: the deciding reason, then what was taken for granted."""
    memory = job.cards.memory_gib
    if not job.model.layers:
        return Estimate("unknown", (), 0.0, memory, (Message("placement.unknown-model", {"model": job.model.id}),))
    found = moments(job, placement)
    worst = {role: max((m for m in found if m.role == role), key=lambda m: m.gib) for role in _roles(found)}
    fullest = max(worst.values(), key=lambda m: m.gib)
    verdict, reason = _verdict(job, placement, fullest)
    shares = tuple(share for moment in worst.values() for share in moment.shares)
    says = (reason, *_assumptions(job, placement))
    return Estimate(verdict, shares, fullest.gib, memory, says)


def missing_cache_gib(job: Job, placement: Placement) -> float:
    """What the cache lacks to hold one longest sequence; 0 where it does, or where nothing is generated."""
    if not placement.infer or not job.model.layers:
        return 0.0
    room = generation.room(job, usable_gib(job.cards.memory_gib) * GIB)
    return max(0.0, room.sequence - room.cache) / GIB


def tensor_parallel_fits(job: Job, size: int) -> bool:
    """Whether a tensor-parallel size divides the attention heads, and the heads of keys and values or the other way.

    Source: vLLM, "Total number of attention heads must be divisible by tensor parallel size"; fewer heads of keys and
    values than cards are copied, which needs a whole number of copies.
    """
    heads, keys = job.model.heads, job.model.kv_heads
    return size > 0 and heads % size == 0 and (keys % size == 0 or size % keys == 0)


def _roles(found: tuple[Moment, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(moment.role for moment in found))


def _verdict(job: Job, placement: Placement, fullest: Moment) -> tuple[Verdict, Message]:
    """The verdict with its deciding reason: what no memory cures first, then the engine's cache, then the peak."""
    size = job.tensor_parallel
    if placement.infer and not tensor_parallel_fits(job, size):
        heads = {"size": size, "heads": job.model.heads, "kv_heads": job.model.kv_heads}
        return "infeasible", Message("placement.heads", heads)
    if missing_cache_gib(job, placement) > 0:
        return "infeasible", _small_cache(job)
    ratio = fullest.gib / job.cards.memory_gib
    verdict: Verdict = "infeasible" if ratio > 1 else "tight" if ratio > TIGHT else "feasible"
    return verdict, _peak(f"placement.{verdict}", fullest, job.cards.memory_gib)


def _small_cache(job: Job) -> Message:
    room = generation.room(job, usable_gib(job.cards.memory_gib) * GIB)
    fixed = room.weights + room.activations
    return Message(
        "placement.small-cache",
        {
            "length": generation.longest(job),
            "needs": _gib(room.sequence / GIB),
            "share": _gib(room.share / GIB),
            "fixed": _gib(fixed / GIB),
            "utilization": f"{job.gpu_memory_utilization:g}",
        },
    )


def _peak(key: str, moment: Moment, memory_gib: float) -> Message:
    """The fullest card, the moment, and its largest part."""
    largest = max(moment.shares, key=lambda share: share.gib)
    args = {
        "peak": _gib(moment.gib),
        "memory": f"{memory_gib:g}",
        "percent": f"{100 * moment.gib / memory_gib:.0f}",
        "when": Message(f"placement.when-{moment.name}"),
        "what": Message(f"placement.what-{largest.what}"),
        "gib": _gib(largest.gib),
    }
    return Message(key, args)


def _assumptions(job: Job, placement: Placement) -> Iterator[Message]:
    """What the numbers rest on, as far as it matters for this job."""
    yield Message("placement.assumes-length", {"length": job.sizes.prompt_length + job.sizes.response_length})
    reserve = reserve_gib(job.cards.memory_gib)
    yield Message("placement.assumes-reserve", {"reserve": _gib(reserve), "buffer": job.hccl_buffer_mib})
    longest = generation.longest(job)
    if placement.infer and longest < job.sizes.prompt_length + job.sizes.response_length:
        requested = job.sizes.prompt_length + job.sizes.response_length
        yield Message("placement.short-model-len", {"longest": longest, "asked": requested})
    if set(placement.infer) & {*placement.train, *placement.reference}:
        left = usable_gib(job.cards.memory_gib) * (1 - job.gpu_memory_utilization)
        key = "placement.assumes-sleep" if job.engine_sleeps else "placement.assumes-awake"
        yield Message(key, {"left": _gib(left)})
    if placement.train:
        yield Message("placement.assumes-shards", {"cards": min(len(placement.train), job.shard_cards or 10**9)})


def _gib(value: float) -> str:
    return f"{value:.1f}"
