"""The rule about memory: whether the cards hold what the launch puts on them, by the planner's estimate.

It speaks only where model, cards and their memory are all known.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.preflight.memory import estimate, find_model
from npuenv.preflight.memory.feasibility import judge
from npuenv.preflight.memory.types import HCCL_BUFFER_MIB, Cards, Job, Placement, Sizes
from npuenv.preflight.rules.base import (
    as_number,
    generates_apart,
    is_off,
    is_true,
    number,
    problem,
    rule,
    sequence_parallel,
    value,
    verl_cards,
    whole,
)
from npuenv.preflight.rules.cards import cards_of
from npuenv.preflight.types import Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.memory.types import Engine
    from npuenv.preflight.types import Launch, LaunchFinding

_ACTOR, _ROLLOUT, _REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
# Keys whose values decide about memory.
_WEIGHS = re.compile(
    r"offload|batch_size|bsz|length|max_(?:model|token)_len|parallel_size|lora_rank|gradient_checkpointing|fsdp_size"
    r"|use_kl|adv_estimator|remove_padding|free_cache|gpu_memory|\.strategy(?:_name)?$|rollout\.n$|device_mapping"
    r"|n_gpus_per_node|nnodes|num_return_sequences|entropy_coeff|chunk|batched_tokens"
)
_CHUNKS = "entropy_from_logits_with_chunking"
_MOST_BUFFER_MIB = 65536  # above it a number is taken for bytes
_ROLL_SHARDS = "actor_train.strategy_args.strategy_config.fsdp_size"
_ENGINES: dict[str, Engine] = {"fsdp": "fsdp", "fsdp2": "fsdp2"}
_ROLL_ENGINES: dict[str, Engine] = {"deepspeed_train": "deepspeed-zero3", "fsdp2_train": "fsdp2"}


def job_of(launch: Launch) -> tuple[Job, Placement] | None:
    """What the planner needs; None where one of the deciding values is not known."""
    if launch.machine.memory_gib is None or launch.machine.hardware is None or launch.release is None:
        return None
    if launch.is_partial or any(each.is_open and _WEIGHS.search(each.key) for each in launch.settings.values()):
        return None
    return _verl_job(launch) if launch.framework == "verl" else _roll_job(launch)


def _verl_job(launch: Launch) -> tuple[Job, Placement] | None:

    name, engine = (
        value(launch, "actor_rollout_ref.model.path"),
        _ENGINES.get(str(value(launch, f"{_ACTOR}.strategy", "fsdp"))),
    )
    if generates_apart(launch):
        return None  # the planner knows training and generation on the same cards
    count, dynamic = verl_cards(launch), is_true(launch, f"{_ACTOR}.use_dynamic_bsz")
    # The release's own micro batch is null; a dynamic batch needs none.
    micro = whole(launch, f"{_ACTOR}.ppo_micro_batch_size_per_gpu") or (1 if dynamic else None)
    share = number(launch, f"{_ROLLOUT}.gpu_memory_utilization", 0.5)
    model = find_model(name) if isinstance(name, str) and "actor_rollout_ref.model.path" in launch.settings else None
    if (
        not (model and model.layers and engine and count and micro and share)
        or value(launch, f"{_ROLLOUT}.name") != "vllm"
    ):
        return None
    per_node = whole(launch, "trainer.n_gpus_per_node", 8) or count
    prompt, response = (whole(launch, f"data.max_{part}_length", 512) or 512 for part in ("prompt", "response"))
    parts = sequence_parallel(launch)[1] or 1
    (scoring, scoring_tokens), (reference, reference_tokens) = (
        _scoring(launch, role, micro, -(-(prompt + response) // parts)) for role in (_ROLLOUT, _REF)
    )
    sizes = Sizes(
        prompt_length=prompt,
        response_length=response,
        prompts=whole(launch, "data.train_batch_size", 1024) or 1024,
        rollouts=whole(launch, f"{_ROLLOUT}.n", 1) or 1,
        mini_batch=whole(launch, f"{_ACTOR}.ppo_mini_batch_size", 256) or 256,
        micro_batch=micro,
        log_prob_micro_batch=scoring,
        max_model_len=whole(launch, f"{_ROLLOUT}.max_model_len"),
        micro_tokens=whole(launch, f"{_ACTOR}.ppo_max_token_len_per_gpu", 16384) if dynamic else None,
        log_prob_tokens=scoring_tokens,
        reference_micro_batch=reference,
        reference_tokens=reference_tokens,
        batched_tokens=_batched(launch, prompt + response),
    )
    job = Job(
        framework="verl",
        release=launch.release or "",
        model=model,
        sizes=sizes,
        engine=engine,
        gpu_memory_utilization=float(share),
        cards=Cards(launch.machine.hardware or "", per_node, count // per_node, launch.machine.memory_gib or 0.0),
        tensor_parallel=whole(launch, f"{_ROLLOUT}.tensor_model_parallel_size", 2) or 2,
        offloads_parameters=is_true(launch, f"{_ACTOR}.fsdp_config.param_offload"),
        offloads_optimizer=is_true(launch, f"{_ACTOR}.fsdp_config.optimizer_offload"),
        offloads_reference=is_true(launch, f"{_REF}.fsdp_config.param_offload"),
        has_reference=is_true(launch, f"{_ACTOR}.use_kl_loss") or is_true(launch, "algorithm.use_kl_in_reward"),
        has_critic=value(launch, "algorithm.adv_estimator", "gae") == "gae",
        checkpoints_gradients=is_true(launch, "actor_rollout_ref.model.enable_gradient_checkpointing", default=True),
        removes_padding=is_true(launch, "actor_rollout_ref.model.use_remove_padding"),
        lora_rank=whole(launch, "actor_rollout_ref.model.lora_rank", 0) or 0,
        sequence_parallel=parts,
        shard_cards=whole(launch, f"{_ACTOR}.fsdp_config.fsdp_size"),  # -1, all cards, is no whole number of cards
        engine_sleeps=is_true(launch, f"{_ROLLOUT}.free_cache_engine", default=True),
        has_entropy_loss=bool(number(launch, f"{_ACTOR}.entropy_coeff", 0)),
        chunks_entropy=is_true(launch, f"{_ACTOR}.{_CHUNKS}") or is_true(launch, f"{_ACTOR}.fsdp_config.{_CHUNKS}"),
        hccl_buffer_mib=_buffer_mib(launch),
    )
    cards = tuple(range(count))
    return job, Placement(cards, cards, cards)


def _scoring(launch: Launch, role: str, micro: int, longest: int) -> tuple[int, int | None]:
    """Sequences of a role's log-probabilities on a card, and its tokens where the update or they are dynamic."""
    batch = whole(launch, f"{role}.log_prob_micro_batch_size_per_gpu", micro) or micro
    if is_true(launch, f"{role}.log_prob_use_dynamic_bsz"):
        return batch, whole(launch, f"{role}.log_prob_max_token_len_per_gpu", 16384)
    return batch, batch * longest if is_true(launch, f"{_ACTOR}.use_dynamic_bsz") else None


def _batched(launch: Launch, longest: int) -> int | None:
    """Tokens that the engine reads at once, where that is written; without chunks a whole sequence at least."""
    key = f"{_ROLLOUT}.max_num_batched_tokens"
    found = whole(launch, key) if key in launch.settings else None
    is_whole = found is not None and is_off(launch, f"{_ROLLOUT}.enable_chunked_prefill", default=True)
    return max(found, longest) if found is not None and is_whole else found


def _buffer_mib(launch: Launch) -> int:
    """HCCL_BUFFSIZE where the script says it. Bytes by mistake are another rule's matter."""

    text = launch.environ["HCCL_BUFFSIZE"].value if "HCCL_BUFFSIZE" in launch.environ else None
    found = as_number(text)
    return int(found) if found is not None and 1 <= found <= _MOST_BUFFER_MIB else HCCL_BUFFER_MIB


def _roll_job(launch: Launch) -> tuple[Job, Placement] | None:

    name, engine = (
        value(launch, "pretrain"),
        _ROLL_ENGINES.get(str(value(launch, "actor_train.strategy_args.strategy_name"))),
    )
    train, infer, reference = (cards_of(launch, role) for role in ("actor_train", "actor_infer", "reference"))
    prompt, response = whole(launch, "prompt_length", 1024), whole(launch, "response_length")
    base, device = (
        "actor_infer.strategy_args.strategy_config",
        whole(launch, "actor_train.training_args.per_device_train_batch_size", 1),
    )
    share = number(launch, f"{base}.gpu_memory_utilization")
    model = find_model(name) if isinstance(name, str) else None
    if not (model and model.layers and engine and train and infer and prompt and response and share and device):
        return None
    batch, config = whole(launch, "rollout_batch_size", 128) or 128, "actor_train.strategy_args.strategy_config"
    offloads = is_true(launch, f"{config}.offload_policy") or "offload" in str(
        value(launch, f"{config}.zero_optimization", "")
    )
    sizes = Sizes(
        prompt,
        response,
        batch,
        whole(launch, "num_return_sequences_in_group", 1) or 1,
        batch,
        device,
        whole(launch, "actor_train.infer_batch_size", 1) or 1,
        whole(launch, f"{base}.max_model_len"),
        reference_micro_batch=whole(launch, "reference.infer_batch_size"),
    )
    per_node = launch.machine.cards_per_node or max(train + infer) + 1
    nodes = max(train + infer + (reference or ())) // per_node + 1
    job = Job(
        framework="roll",
        release=launch.release or "",
        model=model,
        sizes=sizes,
        engine=engine,
        gpu_memory_utilization=float(share),
        cards=Cards(launch.machine.hardware or "", per_node, nodes, launch.machine.memory_gib or 0.0),
        tensor_parallel=whole(launch, f"{base}.tensor_parallel_size", 1) or 1,
        offloads_parameters=offloads,
        offloads_optimizer=offloads,
        has_reference=bool(reference),
        checkpoints_gradients=not is_true(launch, "actor_train.model_args.disable_gradient_checkpointing"),
        shard_cards=_roll_shards(launch, len(train)) if engine == "fsdp2" else None,
    )
    return job, Placement(train, infer, reference or ())


def _roll_shards(launch: Launch, cards: int) -> int:
    """The cards that share one copy of the trained state: 1 where nothing is said.

    Source: alibaba/ROLL @3024714d roll/distributed/strategy/fsdp2_strategy.py: strategy_config.get("fsdp_size", 1), and
    a size of its own where a sequence is cut.
    """
    size = number(launch, _ROLL_SHARDS, 1) or 1
    parts = whole(launch, "actor_train.model_args.ulysses_size", 1) or 1
    if parts > 1 and not 1 < size < cards:
        return max(cards // parts, 1)
    return int(size) if 0 < size < cards else cards


@rule("memory", source="npuenv.preflight.memory: an estimate")
def _memory(launch: Launch) -> Iterator[LaunchFinding]:
    found = job_of(launch)
    if found is None:
        return

    job, placement = found
    if launch.framework == "roll" and job.engine != "fsdp2" and set(placement.train) & set(placement.infer):
        return  # the release refuses to share cards at all
    try:
        outcome = estimate(job, placement)
    except BadInput:
        return  # a number that is none: the rules about values speak of it
    # Without a peak it is the layout that is impossible, not the amount.
    if outcome.verdict == "infeasible" and outcome.peak_gib > outcome.memory_gib:
        keys = (
            f"{_ACTOR}.ppo_max_token_len_per_gpu"
            if job.sizes.micro_tokens
            else f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
            f"{_ROLLOUT}.gpu_memory_utilization",
            "actor_rollout_ref.model.path",
            "pretrain",
            "actor_train.training_args.per_device_train_batch_size",
        )
        yield problem(
            launch,
            keys,
            changes=_relief(launch, job, placement),
            reason=outcome.says[0] if outcome.says else "-",
            advice=outcome.advice[0] if outcome.advice else "-",
        )


def _relief(launch: Launch, job: Job, placement: Placement) -> tuple[Change, ...]:
    """The first of small micro batches, offloading and one copy of the trained state over all cards, after which the
    job fits."""

    everywhere = replace(job, shard_cards=None)
    if launch.framework != "verl":
        is_enough = job.engine == "fsdp2" and judge(everywhere, placement).verdict != "infeasible"
        return (Change(_ROLL_SHARDS, len(placement.train)),) if is_enough else ()
    offload = (
        Change(f"{_ACTOR}.fsdp_config.param_offload", True),
        Change(f"{_ACTOR}.fsdp_config.optimizer_offload", True),
    )
    sizes, small = _smallest(launch, job)
    spread = (Change(f"{_ACTOR}.fsdp_config.fsdp_size", -1),)
    for whole_job, first in ((job, ()), (everywhere, spread)):
        light = replace(whole_job, offloads_parameters=True, offloads_optimizer=True)
        for job_then, changes in (
            (whole_job, ()),
            (replace(whole_job, sizes=sizes), small),
            (light, offload),
            (replace(light, sizes=sizes), (*offload, *small)),
        ):
            if judge(job_then, placement).verdict != "infeasible":
                return (*first, *changes)
    return ()


def _smallest(launch: Launch, job: Job) -> tuple[Sizes, tuple[Change, ...]]:
    """The smallest batches on a card, and what to write for them: one sequence, or the tokens of one."""
    sizes = job.sizes
    if not sizes.micro_tokens:
        keys = tuple(f"{role}.log_prob_micro_batch_size_per_gpu" for role in (_ROLLOUT, _REF))
        changes = [Change(key, 1) for key in keys if key == keys[0] or key in launch.settings]
        small = replace(sizes, micro_batch=1, log_prob_micro_batch=1, reference_micro_batch=1)
        return small, (Change(f"{_ACTOR}.ppo_micro_batch_size_per_gpu", 1), *changes)
    tokens = -(-(sizes.prompt_length + sizes.response_length) // job.sequence_parallel)
    changes = []
    for role in (_ROLLOUT, _REF):
        is_dynamic = is_true(launch, f"{role}.log_prob_use_dynamic_bsz")
        name, least = ("max_token_len", tokens) if is_dynamic else ("micro_batch_size", 1)
        key = f"{role}.log_prob_{name}_per_gpu"
        if key in launch.settings and (whole(launch, key) or 0) > least:
            changes.append(Change(key, least))
    small = replace(sizes, micro_tokens=tokens, log_prob_tokens=tokens, reference_tokens=tokens)
    return small, (Change(f"{_ACTOR}.ppo_max_token_len_per_gpu", tokens), *changes)


@rule("memory-unjudged")
def _memory_unjudged(launch: Launch) -> Iterator[LaunchFinding]:
    """Says aloud that nothing was estimated, where the cards are all that is missing."""
    machine = launch.machine
    if machine.memory_gib is not None and machine.hardware is not None:
        key = "actor_rollout_ref.actor.strategy"
        if launch.framework == "verl" and launch.release and value(launch, key) == "megatron":
            yield problem(
                launch,
                (key,),
                severity="note",
                says="memory-megatron",
                source="npuenv.preflight.memory: FSDP and DeepSpeed",
            )
        return
    known = replace(machine, memory_gib=machine.memory_gib or 64.0, hardware=machine.hardware or "a2")
    if job_of(replace(launch, machine=known)) is not None:
        yield problem(
            launch,
            (),
            severity="note",
            options=tuple(
                option
                for option, is_said in (
                    ("--hardware a2", machine.hardware is not None),
                    ("--card-memory 64", machine.memory_gib is not None),
                )
                if not is_said
            ),
            source="npuenv.preflight.memory: needs the cards' memory",
        )
