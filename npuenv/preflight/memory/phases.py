"""The moments of a step at which a card can run out, and what lies on it then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.preflight.memory import generation, training
from npuenv.preflight.memory.types import Share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.memory.types import Job, Placement, Role

GIB = 2.0**30
_CONTEXT_GIB = 0.5  # a further process on the card beside the engine's: a guess
_SLEEPING_GIB = 1.5  # what a sleeping engine keeps: buffers, graphs, its process; a guess


@dataclass(frozen=True, slots=True)
class Moment:
    """One card of a role at one moment of a step."""

    role: Role
    name: str  # update, log-probs, generation, reference
    shares: tuple[Share, ...]

    @property
    def gib(self) -> float:
        """All that lies on the card."""
        return sum(share.gib for share in self.shares)


def usable_gib(memory_gib: float) -> float:
    """What torch can have of an empty card of a nominal size: the driver keeps 2 GiB and 1/64 of it.

    Fitted to two cards: 60.96 of 64 GiB (910B3) and 29.50 of 32 GiB (910B4), as out-of-memory errors of torch_npu
    print the total capacity.
    """
    return memory_gib - reserve_gib(memory_gib)


def reserve_gib(memory_gib: float) -> float:
    """What the driver keeps of a card, which `npu-smi` counts as used. Source: as `usable_gib`."""
    return 2.0 + memory_gib / 64


def moments(job: Job, placement: Placement) -> tuple[Moment, ...]:
    """Every moment that can be the worst one, for one card of each role."""
    found = []
    if placement.train:
        found.append(_update(job, placement))
    if placement.train and placement.infer:  # without answers there is nothing to score
        found.append(_scoring(job, placement))
    if placement.reference and job.has_reference:
        found.append(_reference(job, placement))
    if placement.infer:
        found.append(_generation(job, placement))
    return tuple(found)


def _moment(role: Role, name: str, job: Job, parts: dict[str, float]) -> Moment:
    """A moment from bytes by what they are; the driver's part is added, and what is nothing is left out."""
    shares = [Share(role, what, size / GIB) for what, size in parts.items() if size > 0]
    return Moment(role, name, (*shares, Share(role, "reserve", reserve_gib(job.cards.memory_gib))))


def _update(job: Job, placement: Placement) -> Moment:
    """The backward pass: logits, or the layer that is worked on, over the states and the saved activations."""
    cards = len(placement.train)
    state = training.states(job, cards)
    micro = training.tokens(job, job.sizes.micro_batch, job.sizes.micro_tokens)
    saved, layer = training.activations(job, micro)
    logits = training.update_logits(job, micro)
    parts = {
        "weights": 0.0 if _streams(job, "parameters") else state.weights,
        "gradients": 0.0 if _streams(job, "parameters") else state.gradients,
        "optimizer": 0.0 if _streams(job, "optimizer") else state.optimizer,
        "gathered": training.gathered(job),
        "activations": saved + max(0.0, layer - logits),
        "logits": logits,
    }
    return _moment("train", "update", job, parts | _beside(job, placement, placement.train))


def _scoring(job: Job, placement: Placement) -> Moment:
    """The log-probabilities of the trained model: no gradients, one layer's activations, larger batches."""
    state = training.states(job, len(placement.train))
    num = training.tokens(job, job.sizes.log_prob_micro_batch, job.sizes.log_prob_tokens or job.sizes.micro_tokens)
    _, layer = training.activations(job, num)
    logits = training.scoring_logits(job, num, with_entropy=True)
    parts = {
        "weights": 0.0 if _streams(job, "parameters") else state.weights,
        "optimizer": 0.0 if job.offloads_optimizer else state.optimizer,
        "gathered": training.gathered(job),
        "activations": max(0.0, layer / 3 - logits),
        "logits": logits,
    }
    return _moment("train", "log-probs", job, parts | _beside(job, placement, placement.train))


def _reference(job: Job, placement: Placement) -> Moment:
    """The reference model at work. ROLL's hf_infer keeps a whole bf16 copy on each card; the others are sharded."""
    cards = placement.reference
    micro = job.sizes.reference_micro_batch or job.sizes.log_prob_micro_batch
    budget = job.sizes.reference_tokens or job.sizes.log_prob_tokens or job.sizes.micro_tokens
    num = training.tokens(job, micro, budget)
    _, layer = training.activations(job, num)
    logits = training.scoring_logits(job, num, with_entropy=job.framework == "roll")
    whole = job.engine == "deepspeed-zero3" if job.replicates_reference is None else job.replicates_reference
    parts = {
        "weights": 2 * job.model.parameters if whole else training.states(job, len(cards)).weights,
        "gathered": 0.0 if whole else training.gathered(job),
        "activations": max(0.0, layer / 3 - logits),
        "logits": logits,
    }
    return _moment("reference", "reference", job, parts | _beside(job, placement, cards, counts_reference=False))


def _generation(job: Job, placement: Placement) -> Moment:
    """Generation: the engine takes its whole share, beside whatever rests on the same card."""
    room = generation.room(job, usable_gib(job.cards.memory_gib) * GIB)
    fixed = min(room.share, room.weights + room.activations)
    parts = {"engine": fixed, "cache": room.share - fixed}
    if set(placement.infer) & set(placement.train):
        parts |= dict(_at_rest(job, placement)) | {"communication": _train_buffers(job)}
        parts["communication"] += _CONTEXT_GIB * GIB
    elif placement.train:
        parts["communication"] = 2.0 * job.hccl_buffer_mib * 2**20  # the group that carries new weights over
    if _shares_reference(job, placement, placement.infer):
        parts["reference"] = _resting_reference(job, placement)
    return _moment("infer", "generation", job, parts)


def _at_rest(job: Job, placement: Placement) -> Iterator[tuple[str, float]]:
    """What a training card keeps while others work: no gradients, and nothing of what is offloaded."""
    state = training.states(job, len(placement.train))
    resting = (0.0 if job.offloads_parameters else state.weights) + (0.0 if job.offloads_optimizer else state.optimizer)
    yield "trainer", resting
    yield "critic", resting if job.has_critic else 0.0


def _beside(
    job: Job, placement: Placement, cards: tuple[int, ...], *, counts_reference: bool = True
) -> dict[str, float]:
    """What else lies on a card of `cards` while training or the reference works there."""
    beside = {"communication": _train_buffers(job)}
    engine = generation.room(job, usable_gib(job.cards.memory_gib) * GIB).share
    if set(cards) & set(placement.infer):
        beside["sleeping"] = _SLEEPING_GIB * GIB if job.engine_sleeps else engine
    if counts_reference and _shares_reference(job, placement, cards):
        beside["reference"] = _resting_reference(job, placement)
    if set(cards) & set(placement.train):
        resting = dict(_at_rest(job, placement))
        beside["critic"] = resting["critic"]
        if not counts_reference:
            beside["trainer"] = resting["trainer"]
    return beside


def _shares_reference(job: Job, placement: Placement, cards: tuple[int, ...]) -> bool:
    return job.has_reference and bool(set(cards) & set(placement.reference))


def _resting_reference(job: Job, placement: Placement) -> float:
    """The reference between its turns. ROLL moves every model that is not at work to the host; verl only if told."""
    if job.offloads_reference or job.framework == "roll":
        return 0.0
    return training.states(job, len(placement.reference)).weights


def _streams(job: Job, what: str) -> bool:
    """Whether what is offloaded stays away in the update too: so with DeepSpeed and ROLL's offload policy. verl's FSDP
    workers load everything back for each update."""
    return job.framework == "roll" and (job.offloads_parameters if what == "parameters" else job.offloads_optimizer)


def _train_buffers(job: Job) -> float:
    """The buffers of the training side's communicators: each takes HCCL_BUFFSIZE twice, one per dimension in use.

    Source: HCCL documentation, HCCL_BUFFSIZE (MB, default 200, one buffer to send and one to receive).
    """
    return 2.0 * job.hccl_buffer_mib * 2**20 * (2 if job.sequence_parallel > 1 else 1)
