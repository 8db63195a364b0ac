"""How much a training card holds: states, what is gathered, activations, logits. All results are bytes on one card.

Nothing here decides whether that fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core import versions

if TYPE_CHECKING:
    from npuenv.preflight.memory.types import Job, Model

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
