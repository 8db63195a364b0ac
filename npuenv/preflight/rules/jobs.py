"""The job that a launch describes, as far as cards and memory go: `verl_job`, `roll_job`.

`npuenv preflight` calls them with what was written, `npuenv render launch` with the values of a recipe. What is not
written has the release's own value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from npuenv.preflight.memory.types import HCCL_BUFFER_MIB, Job, Sizes
from npuenv.preflight.rules.base import (
    as_number,
    is_agentic,
    is_off,
    is_true,
    number,
    sequence_parallel,
    value,
    whole,
)

if TYPE_CHECKING:
    from npuenv.preflight.memory.types import Cards, Engine, Model
    from npuenv.preflight.types import Launch

_MODEL, _ACTOR, _ROLLOUT, _REF = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "rollout", "ref"))
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
    (scoring, scoring_tokens), (reference, reference_tokens) = (
        _scoring(launch, role, micro, longest) for role in (_ROLLOUT, _REF)
    )
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
    offloads = (
        is_true(launch, ROLL_OFFLOAD)
        or "offload" in str(value(launch, f"{train}.zero_optimization", ""))
        or "cpuoffload" in str(value(launch, train, ""))
    )
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
        sequence, response = (
            whole(launch, "sequence_length"),
            whole(launch, "actor_infer.generating_args.max_new_tokens"),
        )
        return (sequence - response, response) if sequence and response else None
    prompt, response = whole(launch, "prompt_length", 1024), whole(launch, "response_length")
    return (prompt, response) if prompt and response else None


def _roll_sizes(launch: Launch, num_train: int) -> Sizes:
    prompt, response = roll_lengths(launch) or (1024, 1)
    groups, rollouts = (
        ("train_env_manager.num_env_groups", "train_env_manager.group_size")
        if is_agentic(launch)
        else ("rollout_batch_size", "num_return_sequences_in_group")
    )
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
