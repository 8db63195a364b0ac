"""Published launches as jobs, with the values that their scripts and guides print; not a test by itself.

`verl ...` are the scripts of verl v0.7.1's list of what runs on Ascend, with all values as they stand there. Lengths
count as if every answer reached its limit. What a script leaves out has the framework's default.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from npuenv.preflight.memory import find_model
from npuenv.preflight.memory.types import Cards, Job, Placement, Sizes


@dataclass(frozen=True, slots=True)
class Recipe:
    """A published launch: its job, and its cards where the guide gives them."""

    id: str
    job: Job
    placement: Placement


def cards(count: int, nodes: int = 1, hardware: str = "a2", memory_gib: float = 64.0) -> Cards:
    return Cards(hardware, count, nodes, memory_gib)


def colocated(count: int) -> Placement:
    every = tuple(range(count))
    return Placement(every, every, every)


def verl(model: str, on: Cards, sizes: Sizes, utilization: float, **options: Any) -> Job:
    return Job("verl", "0.7.1", find_model(model), on, sizes, options.pop("engine", "fsdp"), utilization, **options)


def roll(model: str, on: Cards, sizes: Sizes, utilization: float, **options: Any) -> Job:
    engine = options.pop("engine", "deepspeed-zero3")
    return Job("roll", options.pop("release", "0.2.1"), find_model(model), on, sizes, engine, utilization, **options)


def _recipe(id: str, job: Job, placement: Placement | None = None) -> Recipe:
    return Recipe(id, job, placement or colocated(job.cards.count))


def aqn(which: str) -> Job:
    """The three columns of the AQN guide on 8 cards; HCCL_BUFFSIZE is 512 there."""
    sizes = {
        "base": Sizes(512, 2048, 64, 4, 16, 2, 2),
        "4x": Sizes(512, 2048, 64, 4, 16, 8, 8),
        "tuned": Sizes(512, 1024, 128, 4, 32, 16, 16),
    }[which]
    utilization = 0.8 if which == "tuned" else 0.4
    return verl("Qwen/Qwen2.5-1.5B-Instruct", cards(8, hardware="a3"), sizes, utilization, hccl_buffer_mib=512)


QUICK_START = verl(
    "Qwen/Qwen2.5-0.5B-Instruct",
    cards(8),
    Sizes(512, 128, 128, 5, 64, 20, 40),
    0.6,
    tensor_parallel=2,
    offloads_reference=True,
    has_entropy_loss=True,
)
FROZEN_LAKE = roll("Qwen/Qwen2.5-0.5B-Instruct", cards(8), Sizes(8064, 128, 128, 8, 64, 2, 2), 0.8)
ROLL_8_CARDS = Placement((0, 1, 2, 3), (4, 5, 6, 7), (4, 5, 6, 7))
RLVR_MATH = roll(
    "Qwen/Qwen3-8B-Base",
    cards(16, hardware="a3"),
    Sizes(2048, 8192, 32, 8, 32, 1, 2, 8000, reference_micro_batch=1),
    0.8,
)
RLVR_PLACES = Placement(tuple(range(8)), (8, 9, 10, 11), (12, 13, 14, 15))
ROLL_8B = roll(
    "Qwen/Qwen3-8B-Base",
    cards(16, hardware="a3"),
    Sizes(2048, 8192, 16, 8, 8, 1, 1, 8000),
    0.6,
    offloads_parameters=True,
    offloads_optimizer=True,
)
TWO_NODES = roll(
    "/data/models/Qwen2.5-7B",
    cards(8, 2),
    Sizes(2048, 4096, 64, 8, 32, 1, 4, 8000, reference_micro_batch=8),
    0.8,
    offloads_parameters=True,
    offloads_optimizer=True,
)
TWO_NODES_PLACES = Placement(tuple(range(8)), tuple(range(8, 16)), tuple(range(8, 16)))
_OFF = {"offloads_parameters": True, "offloads_optimizer": True, "offloads_reference": True}
_DAPO: dict[str, Any] = {**_OFF, "removes_padding": True, "has_reference": False}


def dapo(model: str, on: Cards, prompts: int, mini: int, utilization: float, split: int, **options: Any) -> Job:
    """A DAPO script: 2048 + 20480 tokens, dynamic batches of one sequence's part."""
    per_card = 22528 // split
    sizes = Sizes(
        2048, 20480, prompts, 16, mini, 1, 1, micro_tokens=options.pop("micro", per_card), batched_tokens=22528
    )
    return verl(model, on, sizes, utilization, sequence_parallel=split, **{**_DAPO, **options})


_REMOVES = {"removes_padding": True, "offloads_reference": True}

RECIPES = [
    _recipe("quick start", QUICK_START),
    _recipe("AQN base", aqn("base")),
    _recipe("AQN 4x micro batch", aqn("4x")),
    _recipe("AQN tuned", aqn("tuned")),
    _recipe("ROLL FrozenLake 0.5B, 4+4", FROZEN_LAKE, ROLL_8_CARDS),
    _recipe("ROLL RLVR 8B, 8+4+4", RLVR_MATH, RLVR_PLACES),
    _recipe("ROLL two nodes 7B, 8+8", TWO_NODES, TWO_NODES_PLACES),
    _recipe("ROLL example 8B DeepSpeed, 8+4+4", ROLL_8B, RLVR_PLACES),
    _recipe(
        "ROLL example 8B FSDP2, 8+4+4",
        replace(
            ROLL_8B,
            release="0.3.0",
            engine="fsdp2",
            offloads_parameters=False,
            offloads_optimizer=False,
            replicates_reference=True,
        ),
        RLVR_PLACES,
    ),
    _recipe(
        "ROLL example 30B-A3B FSDP2, colocated",
        roll(
            "Qwen/Qwen3-30B-A3B",
            cards(16, hardware="a3"),
            Sizes(2048, 4096, 32, 8, 32, 2, 2, 6144),
            0.8,
            release="0.3.0",
            engine="fsdp2",
            tensor_parallel=2,
            offloads_parameters=True,
            offloads_optimizer=True,
            offloads_reference=True,
            removes_padding=True,
        ),
    ),
    _recipe(
        "verl GRPO Qwen2.5-7B",
        verl(
            "Qwen/Qwen2.5-7B-Instruct",
            cards(16),
            Sizes(1024, 1024, 1024, 5, 32, 2, 2),
            0.3,
            tensor_parallel=4,
            offloads_reference=True,
        ),
    ),
    _recipe(
        "verl GRPO Qwen2.5-32B",
        verl(
            "Qwen/Qwen2.5-32B-Instruct",
            cards(16, 2),
            Sizes(1024, 1024, 1024, 5, 128, 2, 2),
            0.4,
            tensor_parallel=8,
            offloads_reference=True,
        ),
    ),
    _recipe(
        "verl GRPO Qwen2.5-VL-3B",
        verl(
            "Qwen/Qwen2.5-VL-3B-Instruct",
            cards(8),
            Sizes(1024, 2048, 512, 5, 16, 2, 4),
            0.6,
            tensor_parallel=2,
            **_REMOVES,
        ),
    ),
    _recipe(
        "verl GRPO Qwen2.5-VL-7B",
        verl(
            "Qwen/Qwen2.5-VL-7B-Instruct",
            cards(16),
            Sizes(1024, 2048, 512, 5, 32, 2, 4),
            0.5,
            tensor_parallel=4,
            **_REMOVES,
        ),
    ),
    _recipe(
        "verl GRPO Qwen2.5-VL-32B",
        verl(
            "Qwen/Qwen2.5-VL-32B-Instruct",
            cards(16, 2),
            Sizes(1024, 2048, 512, 5, 32, 1, 1),
            0.3,
            tensor_parallel=8,
            **_REMOVES,
        ),
    ),
    _recipe(
        "verl GRPO Qwen3-4B",
        verl(
            "Qwen/Qwen3-4B",
            cards(16, hardware="a3"),
            Sizes(1024, 1024, 512, 5, 256, 1, 1, micro_tokens=3000, log_prob_tokens=8192),
            0.9,
            tensor_parallel=2,
            has_entropy_loss=True,
            removes_padding=True,
            **_OFF,
        ),
    ),
    _recipe(
        "verl GRPO Qwen3-8B",
        verl(
            "Qwen/Qwen3-8B",
            cards(8),
            Sizes(512, 1024, 256, 5, 64, 10, 32),
            0.6,
            tensor_parallel=2,
            chunks_entropy=True,
            **_REMOVES,
        ),
    ),
    _recipe(
        "verl GRPO Qwen3-8B sglang 32k",
        verl(
            "Qwen/Qwen3-8B",
            cards(8),
            Sizes(2048, 32768, 16, 5, 16, 1, 1),
            0.3,
            tensor_parallel=4,
            sequence_parallel=4,
            removes_padding=True,
            **_OFF,
        ),
    ),
    _recipe(
        "verl GRPO Qwen3-32B",
        verl(
            "Qwen/Qwen3-32B",
            cards(8, 4),
            Sizes(2048, 2048, 1024, 4, 64, 8, 8, batched_tokens=32768),
            0.7,
            tensor_parallel=4,
            sequence_parallel=4,
            offloads_parameters=True,
            **_REMOVES,
        ),
    ),
    _recipe("verl DAPO Qwen2.5-7B", dapo("Qwen/Qwen2.5-7B-Instruct", cards(16), 16, 1, 0.5, 4, chunks_entropy=True)),
    _recipe("verl DAPO Qwen2.5-32B", dapo("Qwen/Qwen2.5-32B", cards(16, 2), 128, 32, 0.9, 8, tensor_parallel=4)),
    _recipe("verl DAPO Qwen3-8B", dapo("Qwen/Qwen3-8B-Base", cards(8), 16, 1, 0.9, 2, tensor_parallel=2)),
    _recipe(
        "verl DAPO Qwen3-14B",
        dapo("Qwen/Qwen3-14B-Base", cards(16, 2), 16, 1, 0.8, 2, tensor_parallel=2, shard_cards=8),
    ),
    _recipe(
        "verl DAPO Qwen3-30B-A3B FSDP",
        dapo("Qwen/Qwen3-30B-A3B-Base", cards(16, 8), 512, 32, 0.8, 16, micro=11264, tensor_parallel=2),
    ),
    _recipe(
        "verl PPO Qwen3-8B",
        verl(
            "Qwen/Qwen3-8B",
            cards(8),
            Sizes(2000, 12000, 256, 1, 64, 1, 1, micro_tokens=16384, batched_tokens=14000),
            0.9,
            sequence_parallel=2,
            removes_padding=True,
            has_reference=False,
            has_critic=True,
            offloads_parameters=True,
            offloads_optimizer=True,
        ),
    ),
    _recipe(
        "verl one step off Qwen3-8B, 8+8",
        verl(
            "Qwen/Qwen3-8B",
            cards(16, hardware="a3"),
            Sizes(2048, 32768, 32, 8, 32, 1, 1, micro_tokens=4352, batched_tokens=34816),
            0.8,
            engine="fsdp2",
            tensor_parallel=4,
            sequence_parallel=8,
            removes_padding=True,
            has_reference=False,
            offloads_parameters=True,
            offloads_optimizer=True,
        ),
        Placement(tuple(range(8)), tuple(range(8, 16)), ()),
    ),
]

# 7B on four cards, with the first sample's settings: the case of the ROLL guide's own list of troubles.
SEVEN_ON_FOUR = replace(FROZEN_LAKE, model=find_model("Qwen/Qwen2.5-7B-Instruct"))
# A ROLL worker with 57 of 61 GiB its own, 8 sequences a card and no offload. The report names no model and no length:
# those of the two-node sample stand in.
EIGHT_A_CARD = replace(
    TWO_NODES,
    sizes=replace(TWO_NODES.sizes, micro_batch=8, prompts=512),
    offloads_parameters=False,
    offloads_optimizer=False,
)


def serve_72b(max_model_len: int) -> Job:
    """Qwen2.5-VL-72B behind vllm serve on eight cards of 32 GiB, at vLLM's own utilization; prompts in one piece."""
    sizes = Sizes(1024, max_model_len - 1024, 1, 1, 1, 1, 1, max_model_len)
    on = cards(8, memory_gib=32.0)
    return verl("Qwen/Qwen2.5-VL-72B-Instruct", on, sizes, 0.9, tensor_parallel=8, has_reference=False)


SERVE_PLACES = Placement((), tuple(range(8)), ())
