"""Rules about lengths in tokens: prompt and response against what the engines and the trainer hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.preflight.rules.base import is_at_least, is_off, is_true, problem, rule, sequence_parallel, value, whole
from npuenv.preflight.types import Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.rules.base import Problem
    from npuenv.preflight.types import Launch

_ROLLOUT, _ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
_VERL_PARTS: tuple[str, ...] = ("data.max_prompt_length", "data.max_response_length")
_ROLL_PARTS: tuple[str, ...] = ("sequence_length", "prompt_length", "response_length")


def verl_length(launch: Launch) -> int | None:
    """Tokens of the longest prompt with the longest response."""
    prompt, response = whole(launch, "data.max_prompt_length", 512), whole(launch, "data.max_response_length", 512)
    return prompt + response if prompt and response else None


def roll_length(launch: Launch) -> int | None:
    """Tokens of the longest sequence: `sequence_length`, else prompt and response."""
    sequence = whole(launch, "sequence_length")
    prompt, response = whole(launch, "prompt_length", 1024), whole(launch, "response_length")
    return sequence or (prompt + response if prompt and response else None)


@rule("length")
def _model_length(launch: Launch) -> Iterator[Problem]:
    """The longest sequence against what the engine takes."""
    if launch.framework == "verl":
        key, total, parts = f"{_ROLLOUT}.max_model_len", verl_length(launch), _VERL_PARTS
        source = "verl wheels: verl/workers/rollout; an engine takes no more than max_model_len"
    else:
        key, total, parts = "actor_infer.strategy_args.strategy_config.max_model_len", roll_length(launch), _ROLL_PARTS
        source = "ROLL Ascend samples (2026-04), sample 2: 2048 + 8192 tokens over 8000"
    most = whole(launch, key)
    if total and most and total > most:
        changes = (Change(key, total),)
        yield problem(key, *parts, changes=changes, source=source, key=key, total=total, most=most)


@rule(
    "batched-tokens",
    "verl",
    source="vllm-project/vllm vllm/config: without chunked prefill a batch holds a whole sequence",
)
def _batched_tokens(launch: Launch) -> Iterator[Problem]:
    if value(launch, f"{_ROLLOUT}.name", "vllm") != "vllm" or is_at_least(launch, "0.9.1"):
        return  # 0.9.1 raises the limit by itself
    key = f"{_ROLLOUT}.max_num_batched_tokens"
    total, most = whole(launch, f"{_ROLLOUT}.max_model_len") or verl_length(launch), whole(launch, key, 8192)
    if total and most and most < total and is_off(launch, f"{_ROLLOUT}.enable_chunked_prefill", default=True):
        yield problem(f"{_ROLLOUT}.enable_chunked_prefill", key, changes=(Change(key, total),), most=most, total=total)


@rule("dynamic-tokens", "verl", source="verl wheels: verl/utils/seqlen_balancing.py, max_token_len >= max_seq_len")
def _dynamic_tokens(launch: Launch) -> Iterator[Problem]:
    key, total = f"{_ACTOR}.ppo_max_token_len_per_gpu", verl_length(launch)
    most, parts = whole(launch, key, 16384), sequence_parallel(launch)[1]
    if total and most and parts and is_true(launch, f"{_ACTOR}.use_dynamic_bsz") and most * parts < total:
        yield problem(
            key,
            f"{_ACTOR}.use_dynamic_bsz",
            changes=(Change(key, -(-total // parts)),),
            key=key,
            most=most * parts,
            total=total,
        )


@rule("new-tokens", "roll", source="alibaba/ROLL roll/configs/base_config.py: a sequence holds prompt and answer")
def _new_tokens(launch: Launch) -> Iterator[Problem]:
    key = "actor_infer.generating_args.max_new_tokens"
    new, total = whole(launch, key), whole(launch, "sequence_length")
    if new and total and new >= total:
        yield problem(key, "sequence_length", new=new, total=total)
