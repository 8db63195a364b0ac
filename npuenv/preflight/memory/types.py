"""What a training run asks of the cards, and how the cards are shared out: Job, Placement, Estimate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npuenv.core.messages import Message

Role = Literal["train", "infer", "reference"]
Layout = Literal["colocated", "split"]
Engine = Literal["fsdp", "fsdp2", "deepspeed-zero3"]
Verdict = Literal["feasible", "tight", "infeasible", "unknown"]

HCCL_BUFFER_MIB = 200  # where HCCL_BUFFSIZE is not set


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
    first = last = None
    for card in cards:
        if last is not None and card == last + 1:
            last = card
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = card
    if first is not None and last is not None:
        yield first, last


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
