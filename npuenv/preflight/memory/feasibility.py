"""Whether a job fits onto its cards, from the fullest card at its worst moment, and what to change if it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.preflight.memory.phases import GIB, Moment, generation_room, longest, moments, reserve_gib, usable_gib
from npuenv.preflight.memory.types import Estimate, Placement, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.memory.types import Job


TIGHT = 0.92  # of a card: what an estimate can be off by, and fragmentation, may take the rest


def judge(job: Job, placement: Placement) -> Estimate:
    """The estimate without advice: the deciding reason, then what was taken for granted."""
    memory = job.cards.memory_gib
    if not job.model.layers:
        return Estimate("unknown", (), 0.0, memory, (Message("placement.unknown-model", {"model": job.model.id}),))
    found = moments(job, placement)
    roles = dict.fromkeys(moment.role for moment in found)
    worst = {role: max((m for m in found if m.role == role), key=lambda m: m.gib) for role in roles}
    fullest = max(worst.values(), key=lambda m: m.gib)
    verdict, reason = _verdict(job, placement, fullest)
    shares = tuple(share for moment in worst.values() for share in moment.shares)
    says = (reason, *_assumptions(job, placement))
    return Estimate(verdict, shares, fullest.gib, memory, says)


def missing_cache_gib(job: Job, placement: Placement) -> float:
    """What the cache lacks to hold one longest sequence; 0 where it does, or where nothing is generated."""
    if not placement.infer or not job.model.layers:
        return 0.0
    room = generation_room(job, usable_gib(job.cards.memory_gib) * GIB)
    return max(0.0, room.sequence - room.cache) / GIB


def tensor_parallel_fits(job: Job, size: int) -> bool:
    """Whether a tensor-parallel size divides the attention heads, and the heads of keys and values or the other way.

    Source: vLLM, "Total number of attention heads must be divisible by tensor parallel size"; fewer heads of keys and
    values than cards are copied, which needs a whole number of copies.
    """
    heads, keys = job.model.heads, job.model.kv_heads
    return size > 0 and heads % size == 0 and (keys % size == 0 or size % keys == 0)


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
    room = generation_room(job, usable_gib(job.cards.memory_gib) * GIB)
    args = {
        "length": longest(job),
        "needs": f"{room.sequence / GIB:.1f}",
        "share": f"{room.share / GIB:.1f}",
        "fixed": f"{(room.weights + room.activations) / GIB:.1f}",
        "utilization": f"{job.gpu_memory_utilization:g}",
    }
    return Message("placement.small-cache", args)


def _peak(key: str, moment: Moment, memory_gib: float) -> Message:
    """The fullest card, the moment, and its largest part."""
    largest = max(moment.shares, key=lambda share: share.gib)
    args = {
        "peak": f"{moment.gib:.1f}",
        "memory": f"{memory_gib:g}",
        "percent": f"{100 * moment.gib / memory_gib:.0f}",
        "when": Message(f"placement.when-{moment.name}"),
        "what": Message(f"placement.what-{largest.what}"),
        "gib": f"{largest.gib:.1f}",
    }
    return Message(key, args)


def _assumptions(job: Job, placement: Placement) -> Iterator[Message]:
    """What the numbers rest on, as far as it matters for this job."""
    requested, length = job.sizes.prompt_length + job.sizes.response_length, longest(job)
    yield Message("placement.assumes-length", {"length": requested})
    reserve = f"{reserve_gib(job.cards.memory_gib):.1f}"
    yield Message("placement.assumes-reserve", {"reserve": reserve, "buffer": job.hccl_buffer_mib})
    if placement.infer and length < requested:
        yield Message("placement.short-model-len", {"longest": length, "asked": requested})
    if set(placement.infer) & {*placement.train, *placement.reference}:
        left = usable_gib(job.cards.memory_gib) * (1 - job.gpu_memory_utilization)
        key = "placement.assumes-sleep" if job.engine_sleeps else "placement.assumes-awake"
        yield Message(key, {"left": f"{left:.1f}"})
    if placement.train:
        yield Message("placement.assumes-shards", {"cards": min(len(placement.train), job.shard_cards or 10**9)})


LOW = 0.60  # of a card: below it there is room for larger batches
_LEAST_UTILIZATION, _MOST_UTILIZATION = 0.2, 0.9
_LEAST_RESPONSE = 256  # tokens
_MORE = (2, 4, 8, 16)  # times the nodes

Step = Callable[["Job", "Placement"], "Job | None"]


@dataclass(frozen=True, slots=True)
class Correction:
    """One step that helped: what it sets, and the estimate after it."""

    says: Message
    job: Job
    estimate: Estimate


def fit(job: Job, placement: Placement) -> tuple[Correction, ...]:
    """The changes that make the job fit, in the order in which to make them; empty where it fits as it is.

    First the trained state is spread over all cards, which costs the least. Source: verl, the AQN guide's order (micro
    batch, log-prob micro batch, utilization, answer length), with offload before the answers are cut; ROLL, its guide's
    order (offload, micro batch with more accumulation, lengths). Where the engine's cache is too small:
    tensor parallelism, its share, its lengths.
    """
    done: list[Correction] = []
    for name, step in (*_FOR_CACHE, *(_ROLL if job.framework == "roll" else _VERL)):
        while judge(job, placement).verdict in ("infeasible", "tight"):
            new = step(job, placement)
            if new is None or not _helps(job, new, placement):
                break
            done = _with(done, Correction(_says(name, job, new, placement), new, judge(new, placement)))
            job = new
    return tuple(done)


def advice(job: Job, placement: Placement, estimate: Estimate) -> tuple[Message, ...]:
    """What to change, with the numbers that fit and what the fullest card holds then; where much is free, how to use
    it; where nothing is enough, that."""
    if estimate.verdict == "unknown":
        return ()
    if estimate.verdict == "feasible":
        return _room(job, placement, estimate)
    changes = fit(job, placement)
    if not changes or (verdict := changes[-1].estimate.verdict) == "infeasible":
        return (_more_cards(job, placement, estimate),)
    after = changes[-1].estimate
    args = {"peak": f"{after.peak_gib:.1f}", "percent": f"{100 * after.peak_gib / after.memory_gib:.0f}"}
    return (*(change.says for change in changes), Message(f"placement.advice-then-{verdict}", args))


def _more_cards(job: Job, placement: Placement, estimate: Estimate) -> Message:
    """Where no setting is enough: the least number of nodes, doubling, with which a setting is."""
    args = {"cards": job.cards.count, "per_node": job.cards.per_node}
    if estimate.verdict == "tight":
        return Message("placement.advice-only-more", args)
    for times in _MORE:
        more, places = _times(job, placement, times)
        changes = fit(more, places)
        after = changes[-1].estimate if changes else judge(more, places)
        if after.verdict != "infeasible":
            return Message("placement.advice-more-nodes", {**args, "nodes": more.cards.nodes})
    return Message("placement.advice-more-cards", args)


def _times(job: Job, placement: Placement, times: int) -> tuple[Job, Placement]:
    """The same job with so many times the nodes, each divided like the first ones."""
    count = job.cards.count

    def repeated(cards: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(card + count * turn for turn in range(times) for card in cards)

    every = (repeated(cards) for cards in (placement.train, placement.infer, placement.reference))
    return replace(job, cards=replace(job.cards, nodes=times * job.cards.nodes)), Placement(*every)


def _per_card(job: Job, placement: Placement) -> int:
    """Sequences of one update that one card works on."""
    replicas = max(1, len(placement.train) // job.sequence_parallel)
    return max(1, job.sizes.mini_batch * job.sizes.rollouts // replicas)


def _with(done: list[Correction], change: Correction) -> list[Correction]:
    """The changes with one more; the same step taken twice is said once, from the first value to the last."""
    if done and done[-1].says.key == change.says.key:
        first = {name: value for name, value in done[-1].says.args.items() if name.startswith("from")}
        merged = Message(change.says.key, {**change.says.args, **first})
        return [*done[:-1], replace(change, says=merged)]
    return [*done, change]


def _helps(old: Job, new: Job, placement: Placement) -> bool:
    """Whether the cache lacks less; or, where nothing changes there, all moments together exceed a card by less."""
    lacked, lacks = missing_cache_gib(old, placement), missing_cache_gib(new, placement)
    if lacks != lacked:
        return lacks < lacked
    return not lacked and _excess(new, placement) < _excess(old, placement) - 0.05


def _excess(job: Job, placement: Placement) -> float:
    """By how much the moments of a step exceed what a card can safely hold, GiB, added up: so that of two moments
    that are too large each counts."""
    safe = TIGHT * job.cards.memory_gib
    return sum(max(0.0, moment.gib - safe) for moment in moments(job, placement))


def _says(name: str, old: Job, new: Job, placement: Placement) -> Message:
    """The change with its old and new values; a catalogue sentence takes those that it needs."""
    before = {f"from_{value}": number for value, number in _values(old, placement).items()}
    args = {**before, **_values(new, placement), "cards": len(placement.train)}
    return Message(f"placement.advice-{name}", args)


def _values(job: Job, placement: Placement) -> dict[str, object]:
    return {
        **{"micro": job.sizes.micro_batch, "tokens": job.sizes.micro_tokens or 0},
        # Backward passes of one card before each update.
        "accumulation": -(-_per_card(job, placement) // job.sizes.micro_batch),
        **{"scoring": _scoring(job), "scoring_tokens": _scoring_tokens(job)},
        "utilization": f"{job.gpu_memory_utilization:g}",
        **{"parallel": job.tensor_parallel, "response": job.sizes.response_length},
    }


def _room(job: Job, placement: Placement, estimate: Estimate) -> tuple[Message, ...]:
    """Where less than 60 % is used: larger micro batches first, then the engine's share; each only where the job
    divides and still fits after it. Source: verl, the AQN guide's section on unused memory."""
    if not estimate.peak_gib or estimate.peak_gib >= LOW * estimate.memory_gib:
        return ()
    steps: list[Message] = []
    grown = _grow_tokens(job, placement) if job.sizes.micro_tokens else _grow_micro(job, placement)
    if grown is not None and judge(grown[1], placement).verdict == "feasible":
        steps.append(grown[0])
        job = grown[1]
    raised = min(0.8, round(job.gpu_memory_utilization + 0.1, 2))
    more = replace(job, gpu_memory_utilization=raised)
    if 0 < job.gpu_memory_utilization < raised and judge(more, placement).verdict == "feasible":
        steps.append(Message("placement.room-utilization", {"utilization": f"{raised:g}"}))
    args = {"percent": f"{100 * estimate.peak_gib / estimate.memory_gib:.0f}", "steps": tuple(steps)}
    return (Message("placement.advice-room", args),) if steps else ()


def _grow_tokens(job: Job, placement: Placement) -> tuple[Message, Job] | None:
    """Twice the tokens of a dynamic batch, as long as an update has more."""
    now = job.sizes.micro_tokens or 0
    longest = job.sizes.prompt_length + job.sizes.response_length
    if now >= _per_card(job, placement) * longest / job.sequence_parallel:
        return None
    return Message("placement.room-tokens", {"tokens": 2 * now}), _sized(job, micro_tokens=2 * now)


def _grow_micro(job: Job, placement: Placement) -> tuple[Message, Job] | None:
    """About twice the micro batch: a number that divides a card's sequences. Where a micro batch holds all of them,
    the mini batch grows too; that makes fewer updates, so it is said."""
    sizes = job.sizes
    micro = _larger_divisor(_per_card(job, placement), sizes.micro_batch)
    if micro is not None:
        return Message("placement.room-micro", {"micro": micro}), _sized(job, micro_batch=micro)
    mini = 2 * sizes.mini_batch
    # ROLL has no mini batch: micro batch, accumulation and cards make the update.
    if job.framework != "verl" or sizes.prompts % mini:
        return None
    grown = _sized(job, mini_batch=mini)
    micro = _larger_divisor(_per_card(grown, placement), sizes.micro_batch)
    if micro is None:
        return None
    return Message("placement.room-mini", {"mini": mini, "micro": micro}), _sized(grown, micro_batch=micro)


def _sized(job: Job, **sizes: int | None) -> Job:
    """The job with other sizes."""
    return replace(job, sizes=replace(job.sizes, **sizes))  # type: ignore[arg-type]  # None only where a size takes it


def _larger_divisor(whole: int, size: int) -> int | None:
    """The largest divisor above `size` and not above its double, else the next one; None where there is none."""
    larger = [n for n in range(size + 1, whole + 1) if whole % n == 0]
    doubled = [n for n in larger if n <= 2 * size]
    return doubled[-1] if doubled else larger[0] if larger else None


def _halve_micro(job: Job, placement: Placement) -> Job | None:
    """Half the micro batch, or the next smaller number that divides a card's sequences."""
    if job.sizes.micro_tokens:
        return None
    per_card = _per_card(job, placement)
    smaller = [n for n in range(1, job.sizes.micro_batch // 2 + 1) if per_card % n == 0]
    return _sized(job, micro_batch=smaller[-1]) if smaller else None


def _halve_tokens(job: Job, placement: Placement) -> Job | None:
    """Half the tokens of a dynamic batch, but never less than one longest sequence.

    The budgets of the log-probabilities follow where they are the same number: verl takes them from the update's then.
    """
    least, now = _least_tokens(job), job.sizes.micro_tokens
    if not now or now <= least:
        return None
    less = max(least, now // 2)
    budgets = (job.sizes.log_prob_tokens, job.sizes.reference_tokens)
    scoring, reference = (less if each == now else each for each in budgets)
    return _sized(job, micro_tokens=less, log_prob_tokens=scoring, reference_tokens=reference)


def _halve_scoring(job: Job, placement: Placement) -> Job | None:
    half, reference = _scoring(job) // 2, job.sizes.reference_micro_batch
    if not half:
        return None
    smaller = min(reference, half) if reference else None
    return _sized(job, log_prob_micro_batch=min(job.sizes.log_prob_micro_batch, half), reference_micro_batch=smaller)


def _halve_scoring_tokens(job: Job, placement: Placement) -> Job | None:
    """The same where they are bounded by tokens: half of the larger budget, never less than one longest sequence."""
    least, now = _least_tokens(job), _scoring_tokens(job)
    if now <= least:
        return None
    less = max(least, now // 2)
    budgets = (job.sizes.log_prob_tokens, job.sizes.reference_tokens)
    scoring, reference = (each and min(each, less) for each in budgets)
    return _sized(job, log_prob_tokens=scoring, reference_tokens=reference)


def _scoring(job: Job) -> int:
    return max(job.sizes.log_prob_micro_batch, job.sizes.reference_micro_batch or 0)


def _scoring_tokens(job: Job) -> int:
    return max(job.sizes.log_prob_tokens or 0, job.sizes.reference_tokens or 0)


def _lower_utilization(job: Job, placement: Placement) -> Job | None:
    lower = round(job.gpu_memory_utilization - 0.1, 2)
    return replace(job, gpu_memory_utilization=lower) if lower >= _LEAST_UTILIZATION else None


def _raise_utilization(job: Job, placement: Placement) -> Job | None:
    """A tenth more for the engine, where that leaves enough for the rest."""
    higher = round(job.gpu_memory_utilization + 0.1, 2)
    new = replace(job, gpu_memory_utilization=higher)
    fits = higher <= _MOST_UTILIZATION and judge(new, placement).peak_gib <= job.cards.memory_gib
    return new if fits else None


def _raise_parallel(job: Job, placement: Placement) -> Job | None:
    """The next tensor-parallel size that divides heads and cards."""
    most = min(len(placement.infer), job.cards.per_node)
    sizes = (n for n in range(job.tensor_parallel + 1, most + 1) if parallel_fits_cards(job, placement, n))
    larger = next(sizes, None)
    return replace(job, tensor_parallel=larger) if larger else None


def parallel_fits_cards(job: Job, placement: Placement, size: int) -> bool:
    """Whether a tensor-parallel size divides heads and generating cards, on every node that has such cards."""
    if not tensor_parallel_fits(job, size):  # cheap, and most sizes end here
        return False
    per_node = Counter(card // job.cards.per_node for card in placement.infer)
    return all(count % size == 0 for count in per_node.values())


def _offload(job: Job, placement: Placement) -> Job | None:
    if job.offloads_parameters and job.offloads_optimizer and job.offloads_reference:
        return None
    return replace(job, offloads_parameters=True, offloads_optimizer=True, offloads_reference=True)


def _halve_response(job: Job, placement: Placement) -> Job | None:
    response = job.sizes.response_length // 2
    if response < _LEAST_RESPONSE:
        return None
    limit = job.sizes.max_model_len and min(job.sizes.max_model_len, job.sizes.prompt_length + response)
    shorter = _sized(job, response_length=response, max_model_len=limit)
    # A dynamic batch shrinks with the answers: else it would only hold more of them.
    budgets = (job.sizes.micro_tokens, job.sizes.log_prob_tokens, job.sizes.reference_tokens)
    micro, scoring, reference = (each and max(_least_tokens(shorter), each // 2) for each in budgets)
    return _sized(shorter, micro_tokens=micro, log_prob_tokens=scoring, reference_tokens=reference)


def _least_tokens(job: Job) -> int:
    """One longest sequence's part of a card: the least that a dynamic batch can hold."""
    return -(-(job.sizes.prompt_length + job.sizes.response_length) // job.sequence_parallel)


def _spread(job: Job, placement: Placement) -> Job | None:
    """One copy of the trained state over all cards, where each few cards hold one of their own."""
    is_spread = job.shard_cards is None or job.shard_cards >= len(placement.train)
    return None if is_spread else replace(job, shard_cards=None)


_FOR_CACHE: tuple[tuple[str, Step], ...] = (("parallel", _raise_parallel), ("raise-utilization", _raise_utilization))
_VERL: tuple[tuple[str, Step], ...] = (
    ("shards", _spread),
    ("micro", _halve_micro),
    ("tokens", _halve_tokens),
    ("scoring", _halve_scoring),
    ("scoring-tokens", _halve_scoring_tokens),
    ("utilization", _lower_utilization),
    ("offload", _offload),
    ("response", _halve_response),
)
_ROLL: tuple[tuple[str, Step], ...] = (
    ("shards", _spread),
    ("offload", _offload),
    ("micro", _halve_micro),
    ("scoring", _halve_scoring),
    ("response", _halve_response),
)
