"""What lies on a card in each phase of a step: weights and states, activations, logits, the engine and its cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.preflight.memory.types import Share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.memory.types import Job, Model, Placement, Role


_BATCHED = 8192  # max_num_batched_tokens of vLLM and of verl's rollout configuration


@dataclass(frozen=True, slots=True)
class Room:
    """What the engine's share of one card is made of. `cache` may be negative: then even the weights do not fit."""

    share: float  # what it takes in all
    weights: float
    activations: float
    cache: float  # what is left for keys and values
    sequence: float  # what one sequence of the longest length needs of it


def generation_room(job: Job, usable: float) -> Room:
    """The engine's share of a card with `usable` bytes: a fixed part of the whole card, used or not.

    vLLM takes utilization x card at its start, subtracts weights and the peak of one pass over its largest batch, and
    gives the rest to the cache; it refuses to start where less than that share is free, or where the cache does not
    hold one sequence of max_model_len.
    Source: vLLM v1 worker (determine_available_memory, request_memory) and check_enough_kv_cache_memory.
    """
    share = job.gpu_memory_utilization * usable
    weights, active = 2 * job.model.parameters / job.tensor_parallel, _activations(job)  # bf16
    return Room(share, weights, active, share - weights - active, longest(job) * cache_per_token(job))


def longest(job: Job) -> int:
    """max_model_len: tokens of the longest sequence that the engine accepts."""
    return job.sizes.max_model_len or job.sizes.prompt_length + job.sizes.response_length


def cache_per_token(job: Job) -> float:
    """Bytes of keys and values that one token leaves on one card, bf16.

    Tensor parallelism divides the heads of keys and values, but no finer than one a card; what latent attention keeps
    is not divided.
    Source: GQA (arXiv 2305.13245); DeepSeek-V2 (arXiv 2405.04434) section 2.1.3; vLLM's attention layers.
    """
    model = job.model
    if model.latent:
        return 2.0 * model.latent * model.layers
    return 4.0 * model.kv_heads * model.head_dim * model.layers / min(job.tensor_parallel, model.kv_heads)


def _activations(job: Job) -> float:
    """Bytes of one pass over the largest batch, without gradients: six widths of the residual stream, and the
    feed-forward part, which tensor parallelism divides. bf16."""
    model = job.model
    batched = job.sizes.batched_tokens or max(_BATCHED, longest(job))
    return 2.0 * batched * (6 * model.hidden + 3 * model.intermediate / job.tensor_parallel)


_LIVE = 1e9  # stage3_max_live_parameters of DeepSpeed: parameters that are gathered at once
_BUCKET = 5e8  # its reduce_bucket_size, elements
_ENTROPY_CHUNK = 2048  # rows that verl's entropy_from_logits_with_chunking turns into fp32 at once


@dataclass(frozen=True, slots=True)
class States:
    """Bytes of the trained model that one card keeps from step to step; gradients only while it updates."""

    weights: float
    gradients: float
    optimizer: float


def states(job: Job, cards: int) -> States:
    """The sharded weights, gradients and AdamW states of one card, as if nothing were offloaded.

    FSDP as verl runs it: fp32 weights, fp32 gradients, two fp32 moments (4 + 4 + 8 bytes a parameter, sharded).
    ZeRO-3: bf16 weights and gradients, fp32 copy and moments (2 + 2 + 12). With LoRA only the adapters have gradients
    and moments.
    Source: ZeRO (arXiv 1910.02054) sections 3.1 and 5; verl 0.7.1 workers/fsdp_workers.py (model_dtype fp32,
    MixedPrecision param bf16, reduce fp32).
    """
    model = job.model
    copies = min(cards, job.shard_cards or cards)
    weight, gradient, moment = (2, 2, 12) if job.engine == "deepspeed-zero3" else (4, 4, 8)
    trained = adapters(model, job.lora_rank) if job.lora_rank else model.parameters
    return States(weight * model.parameters / copies, gradient * trained / copies, moment * trained / copies)


def adapters(model: Model, rank: int) -> float:
    """The parameters of LoRA adapters of a rank on all linear layers: rank x (width in + width out) for each.

    Source: LoRA (arXiv 2106.09685) section 4.1.
    """
    h, i = model.hidden, model.intermediate
    query, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    widths = 2 * (h + query) + 2 * (h + keys) + 3 * (h + i)
    return float(rank * model.layers * widths)


def gathered(job: Job) -> float:
    """Bytes of weights that a card holds unsharded for a moment, and of the gradients before they are sharded.

    FSDP gathers one unit at a time and the next one ahead, in bf16; embedding and output layer form the root unit,
    which stays for the whole pass; a layer's gradient exists whole in fp32 before it is reduced. ZeRO-3 keeps up to
    1e9 live parameters and a bucket of 5e8 gradient elements, both bf16.
    Source: FSDP (arXiv 2304.11277) section 3.3; DeepSpeed configuration, stage3_max_live_parameters.
    """
    model = job.model
    if job.engine == "deepspeed-zero3":
        return 2 * min(_LIVE, model.parameters) + 2 * min(_BUCKET, model.parameters)
    root = model.vocabulary * model.hidden * (1 if model.is_tied else 2)
    layer = (model.parameters - root) / model.layers
    return 2 * (root + 2 * layer) + 4 * layer


def tokens(job: Job, micro: int, dynamic: int | None) -> float:
    """Tokens that one card works on at once: whole sequences at their longest, divided by the sequence parallelism.

    A dynamic batch holds `dynamic` tokens a card, or one longest sequence where that is more.
    """
    longest = (job.sizes.prompt_length + job.sizes.response_length) / job.sequence_parallel
    return max(float(dynamic), longest) if dynamic else micro * longest


def activations(job: Job, num_tokens: float) -> tuple[float, float]:
    """Bytes that stay until the backward pass reaches them, and those of the one layer that is worked on.

    A layer saves, in bf16 and with an attention that keeps no scores: the inputs of both norms with their fp32 copies
    (16 h), queries, keys, values and the attention's output (4 (a + k) d), and gate, up, their product and its input
    (8 i); 34 h in the paper's layer, which has no gated unit. With checkpoints only each layer's input stays (2 h).
    Source: Reducing Activation Recomputation (arXiv 2205.05198) equations 1 to 4 and section 5.
    """
    model = job.model
    width = 4 * (model.heads + model.kv_heads) * model.head_dim
    layer = num_tokens * (16 * model.hidden + width + 8 * model.intermediate)
    saved = num_tokens * 2 * model.hidden if job.checkpoints_gradients else layer
    return model.layers * saved, 1.5 * layer


def update_logits(job: Job, num_tokens: float) -> float:
    """Bytes of the logits and all that is made of them in one backward pass: where cards of this kind run out first.

    There is no fused loss that avoids them here. Bytes per token and vocabulary entry:
    verl: logits 2, log-probabilities that the fused operator saves 2, gradient 2; padded batches cut the answer out of
    the logits (a copy of 2 and a gradient of 2 for the answer's part); entropy in the loss 6 more.
    ROLL below 0.3.0, bf16: logits 2, log-probabilities 2, softmax of the entropy 2, three gradients 6. From 0.3.0 on
    it works in fp32: 2 + 4 + 8 + 8.
    Source: verl 0.7.1 utils/torch_functional.py (logprobs_from_logits_torch_npu), workers/actor/dp_actor.py;
    alibaba/ROLL utils/functionals.py and pipeline/base_worker.py (the entropy is always computed with a graph).
    """
    whole = num_tokens * job.model.vocabulary
    if job.framework == "roll":
        return (22 if _in_fp32(job) else 12) * whole
    answer = whole * _answer_part(job)
    padded = 0 if job.removes_padding else 4
    entropy = 6 if job.has_entropy_loss else 0
    return (2 + 2) * whole + (2 + padded + entropy) * answer


def scoring_logits(job: Job, num_tokens: float, *, with_entropy: bool) -> float:
    """Bytes of the logits and all that is made of them where log-probabilities are computed without gradients.

    Per token and vocabulary entry: logits 2, log-probabilities 2, or, with the entropy, its softmax and product 4
    instead; a padded batch's answer is copied once more. In chunks the entropy costs three fp32 copies of 2048 rows.
    ROLL from 0.3.0 on: 2 + 12 in fp32, and 2 + 8 without the entropy.
    Source: as `update_logits`.
    """
    whole = num_tokens * job.model.vocabulary
    if job.framework == "roll":
        return ((14 if with_entropy else 10) if _in_fp32(job) else (6 if with_entropy else 4)) * whole
    answer = whole * _answer_part(job)
    copied = 0 if job.removes_padding else 2
    made = 2.0 * answer
    if with_entropy:
        chunk = 12.0 * min(_ENTROPY_CHUNK, num_tokens) * job.model.vocabulary
        made = max(made, chunk) if job.chunks_entropy else 4 * answer
    return 2 * whole + copied * answer + made


def _answer_part(job: Job) -> float:
    """The part of a batch's logits that goes on: with padding removed all of them, else those of the answers."""
    if job.removes_padding:
        return 1.0
    return job.sizes.response_length / (job.sizes.prompt_length + job.sizes.response_length)


def _in_fp32(job: Job) -> bool:
    """Whether this release of ROLL turns logits into fp32 first."""
    return versions.python_version(job.release) >= versions.python_version("0.3.0")


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
    state = states(job, cards)
    micro = tokens(job, job.sizes.micro_batch, job.sizes.micro_tokens)
    saved, layer = activations(job, micro)
    logits = update_logits(job, micro)
    parts = {
        "weights": 0.0 if _streams(job, "parameters") else state.weights,
        "gradients": 0.0 if _streams(job, "parameters") else state.gradients,
        "optimizer": 0.0 if _streams(job, "optimizer") else state.optimizer,
        "gathered": gathered(job),
        "activations": saved + max(0.0, layer - logits),
        "logits": logits,
    }
    return _moment("train", "update", job, parts | _beside(job, placement, placement.train))


def _scoring(job: Job, placement: Placement) -> Moment:
    """The log-probabilities of the trained model: no gradients, one layer's activations, larger batches."""
    state = states(job, len(placement.train))
    num = tokens(job, job.sizes.log_prob_micro_batch, job.sizes.log_prob_tokens or job.sizes.micro_tokens)
    _, layer = activations(job, num)
    logits = scoring_logits(job, num, with_entropy=True)
    parts = {
        "weights": 0.0 if _streams(job, "parameters") else state.weights,
        "optimizer": 0.0 if job.offloads_optimizer else state.optimizer,
        "gathered": gathered(job),
        "activations": max(0.0, layer / 3 - logits),
        "logits": logits,
    }
    return _moment("train", "log-probs", job, parts | _beside(job, placement, placement.train))


def _reference(job: Job, placement: Placement) -> Moment:
    """The reference model at work. ROLL's hf_infer keeps a whole bf16 copy on each card; the others are sharded."""
    cards = placement.reference
    micro = job.sizes.reference_micro_batch or job.sizes.log_prob_micro_batch
    budget = job.sizes.reference_tokens or job.sizes.log_prob_tokens or job.sizes.micro_tokens
    num = tokens(job, micro, budget)
    _, layer = activations(job, num)
    logits = scoring_logits(job, num, with_entropy=job.framework == "roll")
    whole = job.engine == "deepspeed-zero3" if job.replicates_reference is None else job.replicates_reference
    parts = {
        "weights": 2 * job.model.parameters if whole else states(job, len(cards)).weights,
        "gathered": 0.0 if whole else gathered(job),
        "activations": max(0.0, layer / 3 - logits),
        "logits": logits,
    }
    return _moment("reference", "reference", job, parts | _beside(job, placement, cards, counts_reference=False))


def _generation(job: Job, placement: Placement) -> Moment:
    """Generation: the engine takes its whole share, beside whatever rests on the same card."""
    room = generation_room(job, usable_gib(job.cards.memory_gib) * GIB)
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
    state = states(job, len(placement.train))
    resting = (0.0 if job.offloads_parameters else state.weights) + (0.0 if job.offloads_optimizer else state.optimizer)
    yield "trainer", resting
    yield "critic", resting if job.has_critic else 0.0


def _beside(
    job: Job, placement: Placement, cards: tuple[int, ...], *, counts_reference: bool = True
) -> dict[str, float]:
    """What else lies on a card of `cards` while training or the reference works there."""
    beside = {"communication": _train_buffers(job)}
    engine = generation_room(job, usable_gib(job.cards.memory_gib) * GIB).share
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
    return states(job, len(placement.reference)).weights


def _streams(job: Job, what: str) -> bool:
    """Whether what is offloaded stays away in the update too: so with DeepSpeed and ROLL's offload policy. verl's FSDP
    workers load everything back for each update."""
    return job.framework == "roll" and (job.offloads_parameters if what == "parameters" else job.offloads_optimizer)


def _train_buffers(job: Job) -> float:
    """The buffers of the training side's communicators: each takes HCCL_BUFFSIZE twice, one per dimension in use.

    Source: HCCL documentation, HCCL_BUFFSIZE (MB, default 200, one buffer to send and one to receive).
    """
    return 2.0 * job.hccl_buffer_mib * 2**20 * (2 if job.sequence_parallel > 1 else 1)
