"""How much of a card the generating engine takes, and what is left in it for the cache. All results are bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuenv.preflight.memory.types import Job

_BATCHED = 8192  # max_num_batched_tokens of vLLM and of verl's rollout configuration


@dataclass(frozen=True, slots=True)
class Room:
    """What the engine's share of one card is made of. `cache` may be negative: then even the weights do not fit."""

    share: float  # what it takes in all
    weights: float
    activations: float
    cache: float  # what is left for keys and values
    sequence: float  # what one sequence of the longest length needs of it


def room(job: Job, usable: float) -> Room:
    """The engine's share of a card with `usable` bytes: a fixed part of the whole card, used or not.

    vLLM takes utilization x card at its start, subtracts weights and the peak of one pass over its largest batch, and
    gives the rest to the cache; it refuses to start where less than that share is free, or where the cache does not
    hold one sequence of max_model_len.
    Source: vLLM v1 worker (determine_available_memory, request_memory) and check_enough_kv_cache_memory.
    """
    share = job.gpu_memory_utilization * usable
    weights, active = engine_weights(job), _activations(job)
    return Room(share, weights, active, share - weights - active, longest(job) * cache_per_token(job))


def longest(job: Job) -> int:
    """max_model_len: tokens of the longest sequence that the engine accepts."""
    return job.sizes.max_model_len or job.sizes.prompt_length + job.sizes.response_length


def engine_weights(job: Job) -> float:
    """bf16 weights on one card, over the tensor parallelism."""
    return 2 * job.model.parameters / job.tensor_parallel


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
