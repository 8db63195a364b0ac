"""The rule about memory: whether the cards hold what the launch puts on them, by the planner's estimate.

It speaks only where model, cards and their memory are all known.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuenv.core.errors import BadInput
from npuenv.core.finding import Location
from npuenv.preflight.memory import estimate, find_model
from npuenv.preflight.memory.advice import fit
from npuenv.preflight.memory.feasibility import judge
from npuenv.preflight.memory.types import Cards, Job, Placement
from npuenv.preflight.rules.base import generates_apart, is_true, number, problem, rule, value, verl_cards, whole
from npuenv.preflight.rules.cards import cards_of
from npuenv.preflight.rules.jobs import ROLL_ENGINES, ROLL_OFFLOAD, ROLL_SHARDS, roll_job, roll_lengths, verl_job
from npuenv.preflight.types import Change, Setting

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
            reason=outcome.says[0],
            advice=outcome.advice or "-",
        )


def _relief(launch: Launch, job: Job, placement: Placement) -> tuple[Change, ...]:
    """The advice as corrections; empty where no advice helps, or only the user can decide, as about shorter answers.

    The launch is estimated again with them. What follows another key by itself is not written.
    """
    advised = fit(job, placement)
    cards = len(placement.train)
    changes: list[Change] = []
    for key, new in _values(launch, advised[-1].job, cards).items() if advised else ():
        found = job_of(launch)
        if found is not None and _values(launch, found[0], cards)[key] != new:
            changes.append(Change(key, new))
            setting = Setting(key, new, str(new), Location("", 0))
            launch = replace(launch, settings={**launch.settings, key: setting})
    found = job_of(launch)
    return tuple(changes) if found is not None and judge(found[0], placement).verdict != "infeasible" else ()


def _values(launch: Launch, job: Job, cards: int) -> dict[str, Any]:
    """What the keys that the advice is about say of a job with so many cards that train; others follow the first."""
    sizes = job.sizes
    if launch.framework == "roll":
        train = "actor_train.training_args"
        shards = {ROLL_SHARDS: job.shard_cards or cards, ROLL_OFFLOAD: job.offloads_parameters}
        return {
            **(shards if job.engine == "fsdp2" else {}),
            f"{train}.per_device_train_batch_size": sizes.micro_batch,
            f"{train}.gradient_accumulation_steps": sizes.mini_batch * sizes.rollouts // (sizes.micro_batch * cards),
            "actor_train.infer_batch_size": sizes.log_prob_micro_batch,
            "reference.infer_batch_size": sizes.reference_micro_batch,
        }
    found: dict[str, Any] = {f"{_ACTOR}.fsdp_config.fsdp_size": job.shard_cards or -1}
    if sizes.micro_tokens:
        found[f"{_ACTOR}.ppo_max_token_len_per_gpu"] = sizes.micro_tokens
    else:
        found[f"{_ACTOR}.ppo_micro_batch_size_per_gpu"] = sizes.micro_batch
    longest = -(-(sizes.prompt_length + sizes.response_length) // job.sequence_parallel)
    for role, batch, tokens in (
        (_ROLLOUT, sizes.log_prob_micro_batch, sizes.log_prob_tokens),
        *([(_REF, sizes.reference_micro_batch, sizes.reference_tokens)] if job.has_reference else []),
    ):
        if is_true(launch, f"{role}.log_prob_use_dynamic_bsz"):
            found[f"{role}.log_prob_max_token_len_per_gpu"] = tokens
        else:  # beside a dynamic update the job counts the tokens of whole sequences
            found[f"{role}.log_prob_micro_batch_size_per_gpu"] = max(1, tokens // longest) if tokens else batch
    return {
        **found,
        f"{_ROLLOUT}.gpu_memory_utilization": job.gpu_memory_utilization,
        f"{_ROLLOUT}.tensor_model_parallel_size": job.tensor_parallel,
        f"{_ACTOR}.fsdp_config.param_offload": job.offloads_parameters,
        f"{_ACTOR}.fsdp_config.optimizer_offload": job.offloads_optimizer,
        **({f"{_REF}.fsdp_config.param_offload": job.offloads_reference} if job.has_reference else {}),
    }


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
