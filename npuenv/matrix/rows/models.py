"""Rows about published models: their shapes, and what can load them."""

from __future__ import annotations

from dataclasses import dataclass

from npuenv.matrix.rows.base import Row


@dataclass(frozen=True, slots=True)
class ModelShape(Row):
    """The shape of a published decoder, as its config.json has it. `id` is the name on the hub."""

    parameters: float  # parameters as the publisher counts them, a vision tower and tied layers counted once
    layers: int
    hidden: int
    intermediate: int  # of a dense layer
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    is_tied: bool  # the output layer shares the embedding's weights
    also: tuple[str, ...] = ()  # other names with the same shape
    has_bias: bool = False  # on the query, key and value projections
    has_head_norm: bool = False  # queries and keys are normalized head by head
    experts: int = 0  # routed experts of a sparse layer; 0: a dense model
    experts_active: int = 0  # of them, for one token
    expert_intermediate: int = 0
    experts_shared: int = 0  # which every token passes
    dense_layers: int = 0  # first layers of a mixture that have no experts
    query_rank: int = 0  # latent attention: rank of the query's projection
    latent_rank: int = 0  # latent attention: rank of what the cache keeps of a token
    rope_dim: int = 0  # latent attention: the part of a head with positions, kept beside the latent
    value_dim: int = 0  # latent attention: of a head
    vision: float = 0.0  # parameters of the vision tower


@dataclass(frozen=True, slots=True)
class ModelType(Row):
    """A family of models and the first release of transformers that can load it."""

    family: str  # as its publisher writes it
    pattern: str  # found in names of its models, and of stacks for them
    since: str  # of transformers
