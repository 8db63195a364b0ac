"""The rule about memory: whether the cards hold what the launch puts on them, by the planner's estimate.

It judges only where model, cards and their memory are all known; elsewhere a note says why it did not.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from npuenv.core.errors import BadInput, CannotTell
from npuenv.core.finding import Location
from npuenv.core.messages import Message
from npuenv.preflight.launch import Change, LaunchSetting
from npuenv.preflight.memory import estimate, find_model
from npuenv.preflight.memory.feasibility import fit, judge, missing_cache_gib, tensor_parallel_fits
from npuenv.preflight.memory.types import HCCL_BUFFER_MIB, Cards, Job, Placement, Sizes
from npuenv.preflight.rules.base import (
    as_number,
    generates_apart,
    is_agentic,
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
from npuenv.preflight.rules.cards import cards_of, known_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.launch import Launch
    from npuenv.preflight.memory.types import Engine, Estimate, Model
    from npuenv.preflight.rules.base import Problem


_MODEL, _ACTOR, _ROLLOUT, _REF = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "rollout", "ref"))
_SOURCE = "npuenv's memory estimate"
_CHUNKS = "entropy_from_logits_with_chunking"
_BUDGET = 16384  # tokens of a dynamic batch where nothing is said
_MOST_BUFFER_MIB = 65536  # above it a number is taken for bytes
_ROLL_CONFIG = "actor_train.strategy_args.strategy_config"
ROLL_SHARDS, ROLL_OFFLOAD = f"{_ROLL_CONFIG}.fsdp_size", f"{_ROLL_CONFIG}.offload_policy"
ROLL_ENGINES: dict[str, Engine] = {"deepspeed_train": "deepspeed-zero3", "fsdp2_train": "fsdp2"}
ROLL_STRATEGIES = {engine: name for name, engine in ROLL_ENGINES.items()}


def verl_job(launch: Launch, model: Model, cards: Cards) -> Job:
    """The job of verl's own trainer. Numbers that cannot be stay: whoever checks sizes refuses them."""
    return Job(
        framework="verl",
        release=launch.release or "",
        model=model,
        cards=cards,
        sizes=_verl_sizes(launch),
        # A name that is none is refused elsewhere.
        engine=cast("Engine", value(launch, f"{_ACTOR}.strategy", "fsdp")),
        gpu_memory_utilization=float(number(launch, f"{_ROLLOUT}.gpu_memory_utilization", 0.5) or 0),
        tensor_parallel=_count(launch, f"{_ROLLOUT}.tensor_model_parallel_size", 2),
        offloads_parameters=is_true(launch, f"{_ACTOR}.fsdp_config.param_offload"),
        offloads_optimizer=is_true(launch, f"{_ACTOR}.fsdp_config.optimizer_offload"),
        offloads_reference=is_true(launch, f"{_REF}.fsdp_config.param_offload"),
        has_reference=is_true(launch, f"{_ACTOR}.use_kl_loss") or is_true(launch, "algorithm.use_kl_in_reward"),
        has_critic=value(launch, "algorithm.adv_estimator", "gae") == "gae",
        checkpoints_gradients=is_true(launch, f"{_MODEL}.enable_gradient_checkpointing", default=True),
        removes_padding=is_true(launch, f"{_MODEL}.use_remove_padding"),
        lora_rank=whole(launch, f"{_MODEL}.lora_rank", 0) or 0,
        sequence_parallel=_cut_over(launch),
        shard_cards=whole(launch, f"{_ACTOR}.fsdp_config.fsdp_size"),  # -1, all cards, is no whole number of cards
        engine_sleeps=is_true(launch, f"{_ROLLOUT}.free_cache_engine", default=True),
        has_entropy_loss=bool(number(launch, f"{_ACTOR}.entropy_coeff", 0)),
        # The key of older releases stands one level higher.
        chunks_entropy=is_true(launch, f"{_ACTOR}.{_CHUNKS}") or is_true(launch, f"{_ACTOR}.fsdp_config.{_CHUNKS}"),
        hccl_buffer_mib=_buffer_mib(launch),
    )


def _verl_sizes(launch: Launch) -> Sizes:
    """What a step holds. The log-probabilities follow the update's dynamic batch where nothing else is said.

    Source: verl wheels 0.5.0 to 0.9.1, verl/trainer/config/rollout/rollout.yaml and ref/ref.yaml.
    """
    prompt, response = (_count(launch, f"data.max_{part}_length", 512) for part in ("prompt", "response"))
    is_dynamic = is_true(launch, f"{_ACTOR}.use_dynamic_bsz")
    micro = _count(launch, f"{_ACTOR}.ppo_micro_batch_size_per_gpu", 1)  # a dynamic batch needs none
    longest = -(-(prompt + response) // max(1, _cut_over(launch)))
    scoring, scoring_tokens = _scoring(launch, _ROLLOUT, micro, longest)
    reference, reference_tokens = _scoring(launch, _REF, micro, longest)
    return Sizes(
        prompt_length=prompt,
        response_length=response,
        prompts=_count(launch, "data.train_batch_size", 1024),
        rollouts=_count(launch, f"{_ROLLOUT}.n", 1),
        mini_batch=_count(launch, f"{_ACTOR}.ppo_mini_batch_size", 256),
        micro_batch=micro,
        log_prob_micro_batch=scoring,
        max_model_len=whole(launch, f"{_ROLLOUT}.max_model_len"),
        micro_tokens=whole(launch, f"{_ACTOR}.ppo_max_token_len_per_gpu", _BUDGET) if is_dynamic else None,
        log_prob_tokens=scoring_tokens,
        reference_micro_batch=reference,
        reference_tokens=reference_tokens,
        batched_tokens=_batched(launch, prompt + response),
    )


def _count(launch: Launch, key: str, default: int) -> int:
    """The whole number in force, also one that cannot be, like 0; `default` where there is none."""
    found = number(launch, key, default)
    return int(found) if found is not None and found == int(found) else default


def _cut_over(launch: Launch) -> int:
    """The cards that share the tokens of one sequence."""
    key, _ = sequence_parallel(launch)
    return _count(launch, key, 1)


def _scoring(launch: Launch, role: str, micro: int, longest: int) -> tuple[int, int | None]:
    """Sequences of a role's log-probabilities on a card, and its tokens where the update or they are dynamic."""
    batch = _count(launch, f"{role}.log_prob_micro_batch_size_per_gpu", micro)
    if is_true(launch, f"{role}.log_prob_use_dynamic_bsz"):
        return batch, whole(launch, f"{role}.log_prob_max_token_len_per_gpu", _BUDGET)
    # Whole sequences beside a dynamic update.
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


def roll_job(launch: Launch, model: Model, cards: Cards, *, num_train: int) -> Job:
    """The job of a ROLL pipeline whose training role has so many cards."""
    train, infer = _ROLL_CONFIG, "actor_infer.strategy_args.strategy_config"
    engine = ROLL_ENGINES[str(value(launch, "actor_train.strategy_args.strategy_name"))]
    by_name = (("offload", f"{train}.zero_optimization"), ("cpuoffload", train))
    offloads = is_true(launch, ROLL_OFFLOAD) or any(word in str(value(launch, key, "")) for word, key in by_name)
    return Job(
        framework="roll",
        release=launch.release or "",
        model=model,
        cards=cards,
        sizes=_roll_sizes(launch, num_train),
        engine=engine,
        gpu_memory_utilization=float(number(launch, f"{infer}.gpu_memory_utilization") or 0),
        tensor_parallel=whole(launch, f"{infer}.tensor_parallel_size", 1) or 1,
        offloads_parameters=offloads,
        offloads_optimizer=offloads,
        offloads_reference=is_true(launch, "reference.strategy_args.strategy_config.offload_policy"),
        has_reference=bool(value(launch, "reference.device_mapping")),
        checkpoints_gradients=not is_true(launch, "actor_train.model_args.disable_gradient_checkpointing"),
        lora_rank=whole(launch, "actor_train.model_args.lora_rank", 0) or 0,
        shard_cards=_roll_shards(launch, num_train) if engine == "fsdp2" else None,
        replicates_reference=value(launch, "reference.strategy_args.strategy_name") == "hf_infer",
    )


def roll_lengths(launch: Launch) -> tuple[int, int] | None:
    """Tokens of the longest prompt and answer. A trajectory is one sequence of several turns: what is not the last
    answer counts as its prompt. None where a length is not known."""
    if is_agentic(launch):
        sequence = whole(launch, "sequence_length")
        response = whole(launch, "actor_infer.generating_args.max_new_tokens")
        return (sequence - response, response) if sequence and response else None
    prompt, response = whole(launch, "prompt_length", 1024), whole(launch, "response_length")
    return (prompt, response) if prompt and response else None


def _roll_sizes(launch: Launch, num_train: int) -> Sizes:
    prompt, response = roll_lengths(launch) or (1024, 1)
    groups, rollouts = "rollout_batch_size", "num_return_sequences_in_group"
    if is_agentic(launch):
        groups, rollouts = "train_env_manager.num_env_groups", "train_env_manager.group_size"
    prompts, rollout = whole(launch, groups, 128) or 128, whole(launch, rollouts, 1) or 1
    micro = whole(launch, "actor_train.training_args.per_device_train_batch_size", 1) or 1
    steps = whole(launch, "actor_train.training_args.gradient_accumulation_steps")
    return Sizes(
        prompt_length=prompt,
        response_length=response,
        prompts=prompts,
        rollouts=rollout,
        mini_batch=max(1, micro * steps * num_train // rollout) if steps else prompts,
        micro_batch=micro,
        log_prob_micro_batch=whole(launch, "actor_train.infer_batch_size", 1) or 1,
        max_model_len=whole(launch, "actor_infer.strategy_args.strategy_config.max_model_len"),
        reference_micro_batch=whole(launch, "reference.infer_batch_size"),
    )


def _roll_shards(launch: Launch, cards: int) -> int:
    """The cards that share one copy of the trained state: 1 where nothing is said.

    Source: alibaba/ROLL @3024714d roll/distributed/strategy/fsdp2_strategy.py: strategy_config.get("fsdp_size", 1), and
    a size of its own where a sequence is cut.
    """
    size = number(launch, ROLL_SHARDS, 1) or 1
    parts = whole(launch, "actor_train.model_args.ulysses_size", 1) or 1
    if parts > 1 and not 1 < size < cards:
        return max(cards // parts, 1)
    return int(size) if 0 < size < cards else cards


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
    model, count = known_model(launch, f"{_MODEL}.path"), verl_cards(launch)
    is_dynamic = is_true(launch, f"{_ACTOR}.use_dynamic_bsz")
    is_known = (
        value(launch, f"{_ACTOR}.strategy", "fsdp") in ("fsdp", "fsdp2")
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
    model = known_model(launch, "pretrain")
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


def _cards(launch: Launch, per_node: int, nodes: int) -> Cards:
    return Cards(launch.machine.hardware or "", per_node, nodes, launch.machine.memory_gib or 0.0)


@rule("memory", source=_SOURCE)
def _memory(launch: Launch) -> Iterator[Problem]:
    found = job_of(launch)
    outcome = found and _estimated(*found)
    if not found or not outcome:
        return
    job, placement = found
    # A size that the heads forbid, or a plan without a peak: the layout is impossible, not the amount.
    is_layout = not tensor_parallel_fits(job, job.tensor_parallel)
    is_short = outcome.peak_gib > outcome.memory_gib or missing_cache_gib(job, placement) > 0
    if outcome.verdict == "infeasible" and not is_layout and is_short:
        update = f"{_ACTOR}.ppo_{'max_token_len' if job.sizes.micro_tokens else 'micro_batch_size'}_per_gpu"
        verls = (update, f"{_ROLLOUT}.gpu_memory_utilization", f"{_MODEL}.path")
        keys = (*verls, "pretrain", "actor_train.training_args.per_device_train_batch_size")
        helps = not outcome.advice[0].key.startswith("placement.advice-more-")
        says, changes = "memory" if helps else "memory-no-settings", _relief(launch, job, placement)
        yield problem(*keys, says=says, changes=changes, reason=outcome.says[0], advice=outcome.advice)


def _estimated(job: Job, placement: Placement) -> Estimate | None:
    """The estimate; None where other rules speak: of cards that the release refuses to share, of wrong numbers."""
    if job.framework == "roll" and job.engine != "fsdp2" and placement.layout == "colocated":
        return None
    try:
        return estimate(job, placement)
    except BadInput:
        return None


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
            setting = LaunchSetting(key, new, str(new), Location("", 0))
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


# What the estimate knows of engines, by the keys that choose them.
_SUPPORTED = {
    "verl": {f"{_ACTOR}.strategy": ("fsdp", "fsdp2"), f"{_ROLLOUT}.name": ("vllm",)},
    "roll": {"actor_train.strategy_args.strategy_name": tuple(ROLL_ENGINES)},
}


@rule("memory-unjudged", severity="note", source=_SOURCE)
def _memory_unjudged(launch: Launch) -> Iterator[Problem]:
    """Says aloud that nothing was estimated, and why."""
    machine = launch.machine
    known = replace(machine, memory_gib=machine.memory_gib or 64.0, hardware=machine.hardware or "a2")
    found = job_of(replace(launch, machine=known))
    options = {"--hardware a2": machine.hardware, "--card-memory 64": machine.memory_gib}
    lacking = tuple(option for option, said in options.items() if said is None)
    if found is None:
        # Where the cards are not said either, only the model: nobody asked about memory.
        yield from (each for each in _unsupported(launch) if not lacking or each.says == "memory-unestimated")
    elif lacking:
        yield problem(options=lacking)
    elif not tensor_parallel_fits(found[0], found[0].tensor_parallel) and (outcome := _estimated(*found)):
        keys = (
            f"{_ROLLOUT}.tensor_model_parallel_size",
            "actor_infer.strategy_args.strategy_config.tensor_parallel_size",
        )
        yield problem(*keys, says="memory-unestimated", reason=outcome.says[0])


def _unsupported(launch: Launch) -> Iterator[Problem]:
    """Why there is no estimate, whatever the cards; nothing where another rule says what is wrong or not known."""
    supported, model = _SUPPORTED[launch.framework], f"{_MODEL}.path" if launch.framework == "verl" else "pretrain"
    names = {key: value(launch, key) for key in (*supported, model)}
    other = next((key for key in supported if isinstance(names[key], str) and names[key] not in supported[key]), None)
    weighing = [each.key for each in launch.settings.values() if each.is_open and _WEIGHS.search(each.key)]
    if launch.release is None:
        return
    if other is not None:
        yield problem(other, says="memory-unsupported", name=names[other], supported=supported[other])
    elif launch.framework == "verl" and generates_apart(launch):
        yield problem("rollout.n_gpus_per_node", says="memory-apart")
    elif weighing or any(launch.is_open(key) for key in names):
        yield problem(says="memory-open")
    elif model in launch.settings and (reason := _unknown_model(names[model])):
        yield problem(model, says="memory-unestimated", reason=reason)


def _unknown_model(name: object) -> Message | None:
    """Why the shape of a model is not known; None where it is, or where there is no name."""
    try:
        is_known = not isinstance(name, str) or find_model(name).layers
    except CannotTell as error:
        return error.message
    return None if is_known else Message("placement.unknown-model", {"model": name})
