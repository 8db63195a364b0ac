"""What a run asks of the cards, and how they are shared out: Job, Model, Placement, Estimate; models by their names."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from npuenv.core.documents import load_json
from npuenv.core.errors import BadInput, CannotTell
from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.matrix.rows import ModelShape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from npuenv.matrix import Matrix


Role = Literal["train", "infer", "reference"]
Layout = Literal["colocated", "split"]
Engine = Literal["fsdp", "fsdp2", "deepspeed-zero3"]
Verdict = Literal["feasible", "tight", "infeasible", "unknown"]

HCCL_BUFFER_MIB = 200  # where HCCL_BUFFSIZE is not set
_MOST_GIB = 4096  # of a card; more is a number of MB


@dataclass(frozen=True, slots=True)
class Model:
    """The shape of a decoder, as its published configuration has it."""

    id: str  # like "Qwen/Qwen2.5-7B-Instruct", or what the user calls it
    parameters: float  # all of them, in units (7.6e9)
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    is_tied: bool  # the output layer shares the embedding's weights
    latent: int = 0  # values that the cache keeps of a token and layer in latent attention; 0: keys and values


@dataclass(frozen=True, slots=True)
class Cards:
    """The cards of a run. A card's global number is node x `per_node` + its number on the node."""

    hardware: str  # id in matrix/hardware.toml
    per_node: int
    nodes: int = 1
    memory_gib: float = 64.0  # of one card: what a process can have of it when it is empty

    @property
    def count(self) -> int:
        """Cards of all nodes."""
        return self.per_node * self.nodes


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a step of the run holds. Lengths are tokens; a prompt gives `rollouts` answers."""

    prompt_length: int
    response_length: int
    prompts: int  # per step
    rollouts: int
    mini_batch: int  # prompts per update
    micro_batch: int  # sequences per card and backward pass
    log_prob_micro_batch: int  # sequences per card without gradients
    max_model_len: int | None = None  # of the generating engine; None: prompt + response
    micro_tokens: int | None = None  # tokens per card and backward pass in dynamic batches; None: `micro_batch` counts
    log_prob_tokens: int | None = None  # the same without gradients
    reference_micro_batch: int | None = None  # sequences per card of the reference; None: as `log_prob_micro_batch`
    reference_tokens: int | None = None  # tokens per card of the reference in dynamic batches; None: `log_prob_tokens`
    batched_tokens: int | None = None  # that the engine reads at once; None: 8192, or one longest sequence if longer


@dataclass(frozen=True, slots=True)
class Job:
    """One training run as far as cards and memory go. `release` decides what the framework allows."""

    framework: str  # verl | roll
    release: str
    model: Model
    cards: Cards
    sizes: Sizes
    engine: Engine
    gpu_memory_utilization: float  # share of a card that the generating engine takes; 0 where nothing is generated
    tensor_parallel: int = 1  # of the generating engine
    offloads_parameters: bool = False
    offloads_optimizer: bool = False
    offloads_reference: bool = False
    has_reference: bool = True
    has_critic: bool = False  # as large as the model, on the training cards
    checkpoints_gradients: bool = True  # gradient checkpointing: activations are computed again
    removes_padding: bool = False
    lora_rank: int = 0
    sequence_parallel: int = 1  # cards that share the tokens of one sequence in training (Ulysses)
    shard_cards: int | None = None  # cards that share one copy of the trained state (fsdp_size); None: all that train
    has_entropy_loss: bool = False
    chunks_entropy: bool = False  # entropy_from_logits_with_chunking
    engine_sleeps: bool = True  # the generating engine gives its memory back while others work
    replicates_reference: bool | None = None  # each of its cards has all of it (hf_infer); None: with DeepSpeed
    hccl_buffer_mib: int = HCCL_BUFFER_MIB  # HCCL_BUFFSIZE; a communicator takes it twice


@dataclass(frozen=True, slots=True)
class Placement:
    """Which global card numbers each role has. Colocated roles name the same cards."""

    train: tuple[int, ...]
    infer: tuple[int, ...]
    reference: tuple[int, ...]

    @property
    def layout(self) -> Layout:
        """Whether training and generation share cards."""
        return "colocated" if set(self.train) & set(self.infer) else "split"


@dataclass(frozen=True, slots=True)
class Share:
    """One part of the fullest card of a role at that card's worst moment. The parts of a role add up to the card."""

    role: Role
    # Stable: weights, gradients, optimizer, gathered, activations, logits, cache, engine, reference, trainer, critic,
    # sleeping, reserve, communication
    what: str
    gib: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """How full the fullest card of each role gets, and whether that fits. An estimate, never a measurement."""

    verdict: Verdict
    shares: tuple[Share, ...]
    peak_gib: float  # of the fullest card at the worst moment
    memory_gib: float
    says: tuple[Message, ...]  # the deciding reason first, then what was taken for granted
    advice: tuple[Message, ...] = ()  # what to change, in the order in which to try it


def ranges(cards: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of neighbours, in the order given.

    Example: (0, 1, 2, 8, 9) -> (0, 2), (8, 9)
    """
    for _, run in itertools.groupby(enumerate(cards), key=lambda pair: pair[1] - pair[0]):
        numbers = [card for _, card in run]
        yield numbers[0], numbers[-1]


def written_cards(cards: Iterable[int], separator: str = ",") -> str:
    """A card list as people write it: (0, 1, 2, 8) -> "0-2,8"."""
    return separator.join(str(first) if first == last else f"{first}-{last}" for first, last in ranges(cards))


def read_cards(text: str, most: int) -> list[int] | None:
    """The numbers of a list as `written_cards` writes it, in its order; None for what is none.

    Of a range beyond `most` the last number is there, so that it can be named.
    Example: "0-2, 8" -> [0, 1, 2, 8]
    """
    cards: list[int] = []
    for part in re.sub(r"\s", "", text).split(","):
        found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part, re.ASCII)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            return None
        cards += [*range(first, min(last, most) + 1), *([last] if last > most else [])]
    return cards


def read_memory(text: str) -> float:
    """GiB of a card, with or without a unit, which GB and G mean too.

    Raises: BadInput for what is no number, not above 0, or beyond every card.
    Example: "64", "64G", "64GB" and "64 GiB" -> 64.0
    """
    number = re.sub(r"\s*g(?:i?b)?$", "", text.strip(), flags=re.IGNORECASE)
    try:
        found = float(number)
    except ValueError:
        found = 0.0
    if not 0 < found <= _MOST_GIB:
        hint = Message("launch_roll.no-memory-hint", {"most": _MOST_GIB})
        raise BadInput(Message("launch_roll.no-memory", {"value": repr(text)}), hint)
    return found


_BIASED = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen2_5_vl_text")  # no key of theirs says so
_HEAD_NORMED = ("qwen3", "qwen3_moe", "qwen3_vl_text")


def find_model(name: str, matrix: Matrix | None = None) -> Model:
    """The model of that name, or in that folder. An unknown one has no layers, and estimates of it stay unknown.

    A path counts by its last part too: `/data/models/Qwen2.5-7B` without a config.json is taken for Qwen/Qwen2.5-7B.
    Raises: BadInput where the folder's config.json cannot be used.
    """
    if (Path(name) / "config.json").is_file():
        return model_from(Path(name))
    lowered = name.rstrip("/").casefold()
    for shape in (matrix or load_matrix()).models:
        names = [each.casefold() for each in (shape.id, *shape.also)]
        if lowered in names or lowered.rsplit("/", 1)[-1] in {each.split("/")[-1] for each in names}:
            return model_of(shape, name)
    return Model(name, 0.0, 0, 0, 0, 0, 0, 0, 0, False)


def model_of(shape: ModelShape, name: str = "") -> Model:
    """The model of a shape, under its own name or another."""
    return Model(
        id=name or shape.id,
        parameters=float(count(shape)),
        layers=shape.layers,
        hidden=shape.hidden,
        intermediate=_width(shape),
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocabulary=shape.vocabulary,
        is_tied=shape.is_tied,
        latent=shape.latent_rank + shape.rope_dim if shape.latent_rank else 0,
    )


def model_from(folder: Path) -> Model:
    """The model in a local folder, from its config.json; of a model that also sees, the text part.

    Raises: BadInput for a file that is no such configuration, CannotTell for a kind of layer that has no formula here.
    """
    path = folder / "config.json"
    try:
        raw = load_json(path)
    except (OSError, ValueError) as error:
        raise BadInput(Message("placement.config-unreadable", {"path": str(path), "what": str(error)})) from error
    if not isinstance(raw, dict):
        raise BadInput(Message("placement.config-unreadable", {"path": str(path), "what": type(raw).__name__}))
    text = raw["text_config"] if isinstance(raw.get("text_config"), dict) else {}
    config = {**raw, **text}
    kinds = config.get("layer_types") or ()
    if "linear_attention" in kinds or config.get("full_attention_interval"):
        raise CannotTell(Message("placement.config-mixed", {"path": str(path)}), Message("placement.hint-config-mixed"))
    return model_of(_shape(config, path), str(folder))


def _shape(config: Mapping[str, Any], path: Path) -> ModelShape:
    def number(*names: str, default: int | None = None) -> int:
        found = next((config[name] for name in names if config.get(name) is not None), default)
        if isinstance(found, bool) or not isinstance(found, int) or found < 0 or (found == 0 and default != 0):
            args = {"path": str(path), "key": names[0], "value": str(found)}
            raise BadInput(Message("placement.config-number", args))
        return found

    kind, heads, hidden = str(config.get("model_type")), number("num_attention_heads"), number("hidden_size")
    experts = number("num_experts", "n_routed_experts", "num_local_experts", default=0)
    return ModelShape(
        id=str(path.parent),
        source=path.name,
        seen="",
        parameters=0.0,
        layers=number("num_hidden_layers"),
        hidden=hidden,
        intermediate=number("intermediate_size"),
        heads=heads,
        kv_heads=number("num_key_value_heads", default=heads),
        head_dim=number("head_dim", "qk_nope_head_dim", default=hidden // heads),
        vocabulary=number("vocab_size"),
        is_tied=bool(config.get("tie_word_embeddings", False)),
        has_bias=bool(config.get("attention_bias", kind in _BIASED)),
        has_head_norm=kind in _HEAD_NORMED,
        experts=experts,
        experts_active=number("num_experts_per_tok") if experts else 0,
        expert_intermediate=number("moe_intermediate_size", "intermediate_size") if experts else 0,
        experts_shared=number("n_shared_experts", default=0),
        dense_layers=number("first_k_dense_replace", default=0),
        query_rank=number("q_lora_rank", default=0),
        latent_rank=number("kv_lora_rank", default=0),
        rope_dim=number("qk_rope_head_dim", default=0),
        value_dim=number("v_head_dim", default=0),
    )


def count(shape: ModelShape) -> int:
    """The parameters of a shape: embedding, layers, last norm, output layer unless it is tied, vision tower."""
    outer = shape.vocabulary * shape.hidden * (1 if shape.is_tied else 2) + shape.hidden
    sparse = shape.layers - shape.dense_layers if shape.experts else 0
    dense = (shape.layers - sparse) * 3 * shape.hidden * shape.intermediate
    layers = shape.layers * (_attention(shape) + 2 * shape.hidden)
    expert = 3 * shape.hidden * shape.expert_intermediate
    experts = sparse * (shape.experts * (shape.hidden + expert) + shape.experts_shared * expert)  # with their router
    return outer + layers + dense + experts + int(shape.vision)


def _attention(shape: ModelShape) -> int:
    """The parameters of a layer's attention; latent attention as in DeepSeek-V2 (arXiv 2405.04434, section 2.1)."""
    h, a, d = shape.hidden, shape.heads, shape.head_dim
    if shape.latent_rank:
        wide = a * (d + shape.rope_dim)
        query = h * shape.query_rank + shape.query_rank * (wide + 1) if shape.query_rank else h * wide
        latent = h * (shape.latent_rank + shape.rope_dim) + shape.latent_rank * (a * (d + shape.value_dim) + 1)
        return query + latent + a * shape.value_dim * h
    keys = shape.kv_heads * d
    bias = a * d + 2 * keys if shape.has_bias else 0
    return h * (2 * a * d + 2 * keys) + bias + (2 * d if shape.has_head_norm else 0)


def _width(shape: ModelShape) -> int:
    """The width of the feed-forward part that one token passes."""
    if not shape.experts:
        return shape.intermediate
    return (shape.experts_active + shape.experts_shared) * shape.expert_intermediate
