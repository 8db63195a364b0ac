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
from npuenv.preflight.memory.types import Cards, Job, Placement, Sizes
from npuenv.preflight.rules.base import generates_apart, is_true, number, problem, rule, value, verl_cards, whole
from npuenv.preflight.rules.cards import cards_of
from npuenv.preflight.rules.jobs import ROLL_ENGINES, ROLL_SHARDS, roll_job, roll_lengths, verl_job
from npuenv.preflight.types import Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.memory.types import Model
    from npuenv.preflight.types import Launch, LaunchFinding

_ACTOR, _ROLLOUT, _REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
# Keys whose values decide about memory.
_WEIGHS = re.compile(
    r"offload|batch_size|bsz|length|max_(?:model|token)_len|parallel_size|lora_rank|gradient_checkpointing|fsdp_size"
    r"|use_kl|adv_estimator|remove_padding|free_cache|gpu_memory|\.strategy(?:_name)?$|rollout\.n$|device_mapping"
    r"|n_gpus_per_node|nnodes|num_return_sequences|entropy_coeff|chunk|batched_tokens"
)


def job_of(launch: Launch) -> tuple[Job, Placement] | None:
    """What the planner needs; None where one of the deciding values is not known."""
    if launch.machine.memory_gib is None or launch.machine.hardware is None or launch.release is None:
        return None
    if launch.is_partial or any(each.is_open and _WEIGHS.search(each.key) for each in launch.settings.values()):
        return None
    return _verl(launch) if launch.framework == "verl" else _roll(launch)


def _verl(launch: Launch) -> tuple[Job, Placement] | None:
    model, count = _model(launch, "actor_rollout_ref.model.path"), verl_cards(launch)
    is_dynamic = is_true(launch, f"{_ACTOR}.use_dynamic_bsz")
    is_known = (
        model is not None
        and value(launch, f"{_ACTOR}.strategy", "fsdp") in ("fsdp", "fsdp2")
        and value(launch, f"{_ROLLOUT}.name") == "vllm"
        and (is_dynamic or whole(launch, f"{_ACTOR}.ppo_micro_batch_size_per_gpu"))
        and number(launch, f"{_ROLLOUT}.gpu_memory_utilization", 0.5)
        and not generates_apart(launch)  # the planner knows training and generation on the same cards
    )
    if not (model and count and is_known):
        return None
    per_node, every = whole(launch, "trainer.n_gpus_per_node", 8) or count, tuple(range(count))
    return verl_job(launch, model, _cards(launch, per_node, count // per_node)), Placement(every, every, every)


def _roll(launch: Launch) -> tuple[Job, Placement] | None:
    model = _model(launch, "pretrain")
    train, infer, reference = (cards_of(launch, role) for role in ("actor_train", "actor_infer", "reference"))
    is_known = (
        value(launch, "actor_train.strategy_args.strategy_name") in ROLL_ENGINES
        and number(launch, "actor_infer.strategy_args.strategy_config.gpu_memory_utilization")
        and whole(launch, "actor_train.training_args.per_device_train_batch_size", 1)
        and roll_lengths(launch)
    )
    if not (model and train and infer and is_known):
        return None
    per_node = launch.machine.cards_per_node or max(train + infer) + 1
    nodes = max(train + infer + (reference or ())) // per_node + 1
    job = roll_job(launch, model, _cards(launch, per_node, nodes), num_train=len(train))
    return job, Placement(train, infer, reference or ())


def _model(launch: Launch, key: str) -> Model | None:
    """The model of a name that was written; None where its shape is not known."""
    name = value(launch, key) if key in launch.settings else None
    model = find_model(name) if isinstance(name, str) else None
    return model if model and model.layers else None


def _cards(launch: Launch, per_node: int, nodes: int) -> Cards:
    return Cards(launch.machine.hardware or "", per_node, nodes, launch.machine.memory_gib or 0.0)


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
        return (Change(ROLL_SHARDS, len(placement.train)),) if is_enough else ()
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
