"""Rules about sizes: which batch must divide which, so that each card gets the same number of sequences, and lengths in
tokens against what the engines and the trainer hold."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from npuenv.preflight.launch import Change
from npuenv.preflight.rules.base import (
    KEEP,
    divisor_below,
    is_agentic,
    is_at_least,
    is_off,
    is_set,
    is_true,
    matching,
    megatron_sizes,
    number,
    problem,
    product,
    rule,
    sequence_parallel,
    value,
    verl_cards,
    whole,
    written,
)
from npuenv.preflight.rules.cards import cards_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.core.finding import Severity
    from npuenv.preflight.launch import Launch
    from npuenv.preflight.rules.base import Problem

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_TRAIN, _MINI = "data.train_batch_size", f"{_ACTOR}.ppo_mini_batch_size"
_MICRO = f"{_ACTOR}.ppo_micro_batch_size_per_gpu"
_VALIDATE = "verl wheels 0.7.1, 0.9.1: verl/utils/config.py, validate_config"
_WORKERS = "verl wheels: verl/workers/fsdp_workers.py"
_ROLL = "alibaba/ROLL roll/configs/base_config.py"
_ROLL_ENGINE = "actor_infer.strategy_args.strategy_config"
_MANAGERS = ("train_env_manager", "val_env_manager")
_DOMAINS = "alibaba/ROLL roll/pipeline/rlvr/rlvr_config.py: a domain is a reward of the same name"
_WHOLE = "vllm-project/vllm vllm/config: without chunked prefill a batch holds a whole sequence"
_AGENTIC = "alibaba/ROLL roll/pipeline/agentic/agentic_config.py"


def data_parallel(launch: Launch) -> int | None:
    """How many cards or groups of cards share a mini batch among them."""
    cards = verl_cards(launch)
    keys = megatron_sizes(f"{_ACTOR}.megatron") if _is_megatron(launch) else (sequence_parallel(launch)[0],)
    group = product(launch, *keys)
    return cards // group if cards and group and cards % group == 0 else None


def fitting(launch: Launch) -> tuple[Change, ...]:
    """What has to change in verl's train, mini and micro batch so that all three go together; empty where they do.

    One answer for every rule about them: corrected one by one, each would undo what another asked for. A batch grows
    to the next size that fits, a micro batch shrinks.
    """
    batch, mini = whole(launch, _TRAIN, 1024), whole(launch, _MINI, 256)
    n, parts = _rollouts(launch), data_parallel(launch)
    if not (batch and mini and n and parts):
        return (Change(_MINI, batch),) if batch and mini and mini > batch else ()
    is_dynamic = not is_off(launch, f"{_ACTOR}.use_dynamic_bsz")
    new_batch = batch if is_dynamic else _next(batch, batch + _least(launch, parts), n, _least(launch, parts)) or batch
    fits = mini <= new_batch and mini * n % parts == 0
    new_mini = mini if fits else new_batch if mini > batch else _next(mini, new_batch, n, parts, of=new_batch) or mini
    changes = [Change(_TRAIN, new_batch)] if new_batch != batch else []
    changes += [Change(_MINI, new_mini)] if new_mini != mini else []
    micro, share = whole(launch, _MICRO), new_mini * n // parts
    share = math.gcd(share, new_batch * n // parts) if _is_megatron(launch) else share
    if micro and not is_dynamic and new_mini * n % parts == 0 and share % micro:
        changes.append(Change(_MICRO, divisor_below(share, micro)))
    return tuple(changes)


def _next(least: int, most: int, n: int, parts: int, *, of: int = 0) -> int | None:
    """The first size whose n-fold can be cut into parts, and that divides `of`."""
    return next((size for size in range(least, most + 1) if size * n % parts == 0 and of % size == 0), None)


def _least(launch: Launch, parts: int) -> int:
    """What verl divides the sequences of a step by before it starts."""
    return parts if _is_megatron(launch) else verl_cards(launch) or parts


def _is_megatron(launch: Launch) -> bool:
    return bool(value(launch, f"{_ACTOR}.strategy") == "megatron")


@rule("train-batch", "verl", source=_VALIDATE, is_trainers=True)
def _train_batch(launch: Launch) -> Iterator[Problem]:
    cards, batch, n = data_parallel(launch), whole(launch, _TRAIN, 1024), _rollouts(launch)
    if not (batch and n and is_off(launch, f"{_ACTOR}.use_dynamic_bsz")):
        return
    args: dict[str, Any] = {"batch": batch, "n": n, "total": batch * n, "changes": fitting(launch)}
    least = _least(launch, cards) if cards else 1
    if batch * n % least:
        yield problem(_TRAIN, f"{_ROLLOUT}.n", "trainer.n_gpus_per_node", cards=least, **args)
        return
    micro = whole(launch, _MICRO)
    if micro and _is_megatron(launch) and batch * n % (least * micro):
        says = "train-batch-micro" if cards else "train-batch-micro-any"
        yield problem(_MICRO, _TRAIN, f"{_ROLLOUT}.n", says=says, cards=least, micro=micro, **args)


def _rollouts(launch: Launch) -> int | None:
    return whole(launch, f"{_ROLLOUT}.n", 1)


@rule("mini-batch", "verl", source=_VALIDATE, is_trainers=True)
def _mini_batch(launch: Launch) -> Iterator[Problem]:
    batch, mini = whole(launch, _TRAIN, 1024), whole(launch, _MINI, 256)
    if batch and mini and mini > batch:
        yield problem(_MINI, _TRAIN, changes=fitting(launch), mini=mini, batch=batch)


def _share_of_mini(launch: Launch) -> tuple[dict[str, Any], int, int] | None:
    """What sentences say of a mini batch; the sequences that a card gets of it, and what is left over."""
    mini, n, parts = whole(launch, _MINI, 256), _rollouts(launch), data_parallel(launch)
    return ({"mini": mini, "n": n, "cards": parts}, *divmod(mini * n, parts)) if mini and n and parts else None


@rule("mini-batch-uneven", "verl", source=f"{_WORKERS} divides and rounds down", severity="warning")
def _mini_uneven(launch: Launch) -> Iterator[Problem]:
    args, _, rest = _share_of_mini(launch) or ({}, 0, 0)
    if rest:
        changes = fitting(launch)
        is_fixed = any(change.key == _MINI for change in changes)
        yield problem(_MINI, "trainer.n_gpus_per_node", changes=changes if is_fixed else (), **args)


@rule("micro-batch", "verl", source="verl wheels 0.5.0 to 0.7.1: verl/workers/fsdp_workers.py", is_trainers=True)
def _micro_batch(launch: Launch) -> Iterator[Problem]:
    args, share, rest = _share_of_mini(launch) or ({}, 0, 1)
    micro = whole(launch, _MICRO)
    if micro and not rest and share % micro and is_off(launch, f"{_ACTOR}.use_dynamic_bsz"):
        # From 0.8.0 on the last part of a mini batch may be smaller; before, the worker stops.
        severity: Severity = "error" if is_at_least(launch, "0.8.0") is False else "warning"
        args |= {"severity": severity, "changes": fitting(launch), "micro": micro, "share": share}
        yield problem(_MICRO, _MINI, "trainer.n_gpus_per_node", **args)


def _micro_keys(launch: Launch) -> Iterator[tuple[str, str, str]]:
    """(old key, key per card, switch of dynamic sizes) of each part that the launch really has."""
    has_reference = is_true(launch, f"{_ACTOR}.use_kl_loss") or is_true(launch, "algorithm.use_kl_in_reward")
    for part, kind, is_there in (
        (_ACTOR, "ppo_", True),
        (_ROLLOUT, "log_prob_", True),
        ("actor_rollout_ref.ref", "log_prob_", has_reference),
        ("critic", "ppo_", value(launch, "algorithm.adv_estimator", "gae") == "gae"),
    ):
        if is_there:
            batch, switch = f"{part}.{kind}micro_batch_size", f"{part}.{kind.removeprefix('ppo_')}use_dynamic_bsz"
            yield batch, f"{batch}_per_gpu", switch


@rule("micro-batch-both", "verl", source=_VALIDATE, is_trainers=True)
def _micro_both(launch: Launch) -> Iterator[Problem]:
    for old, new, _ in _micro_keys(launch):
        if is_set(launch, old) and is_set(launch, new):
            yield problem(old, new, to=None, old=old, new=new)


@rule("micro-batch-none", "verl", source=_VALIDATE, is_trainers=True)
def _micro_none(launch: Launch) -> Iterator[Problem]:
    if not is_off(launch, f"{_ACTOR}.use_dynamic_bsz"):
        return
    for old, new, switch in _micro_keys(launch):
        if not (is_set(launch, old) or is_set(launch, new)) and is_off(launch, switch):
            yield problem(new=new)


@rule("group-of-one", "verl", source="verl wheels: verl/trainer/ppo/core_algos.py, a group of one", severity="warning")
def _group_of_one(launch: Launch) -> Iterator[Problem]:
    grouped = ("grpo", "grpo_passk", "rloo", "rloo_vectorized", "grpo_vectorized", "gdpo", "opo")
    estimator = value(launch, "algorithm.adv_estimator")
    if estimator in grouped and number(launch, f"{_ROLLOUT}.n", 1) == 1:
        yield problem(f"{_ROLLOUT}.n", "algorithm.adv_estimator", estimator=estimator)


@rule("group-of-one", "roll", source=_ROLL, severity="warning")
def _roll_group(launch: Launch) -> Iterator[Problem]:
    key, is_trained = "num_return_sequences_in_group", "actor_train.strategy_args.strategy_name" in launch.settings
    is_grouped = is_trained and not is_agentic(launch) and value(launch, "adv_estimator") == "grpo"
    if is_grouped and number(launch, key, 1) == 1:
        yield problem(key, "adv_estimator", estimator="grpo")


@rule("roll-batch", "roll", source=_ROLL)
def _roll_batch(launch: Launch) -> Iterator[Problem]:
    base = "actor_train.training_args"
    accumulation, per_device = f"{base}.gradient_accumulation_steps", f"{base}.per_device_train_batch_size"
    device, steps, batch = (whole(launch, key) for key in (per_device, accumulation, "rollout_batch_size"))
    cards = cards_of(launch, "actor_train")
    parts = _roll_parts(launch, len(cards)) if cards else None
    n = 1 if is_agentic(launch) else whole(launch, "num_return_sequences_in_group", 1)
    if not (device and steps and batch and n and parts):
        return
    update, total = device * steps * parts, batch * n
    if total % update:
        fit, rest = divmod(total, device * parts)
        args: dict[str, Any] = {"device": device, "steps": steps, "cards": parts, "update": update, "total": total}
        to = KEEP if rest else divisor_below(fit, steps)
        yield problem(accumulation, per_device, "rollout_batch_size", to=to, **args)


def _roll_parts(launch: Launch, cards: int) -> int | None:
    """Data parallel parts of ROLL's training role; None where a size is not known."""
    config = "actor_train.strategy_args.strategy_config"
    group = product(launch, "actor_train.model_args.ulysses_size", *megatron_sizes(config))
    return max(cards // group, 1) if group else None


@rule("env-groups", "roll", source=_AGENTIC)
def _env_groups(launch: Launch) -> Iterator[Problem]:
    for manager, batch_key in zip(_MANAGERS, ("rollout_batch_size", "val_batch_size")):
        keys = (f"{manager}.num_env_groups", f"{manager}.group_size", batch_key)
        groups, size, batch = (whole(launch, key, default) for key, default in zip(keys, (None, 1, None)))
        if groups and size and batch and batch % (groups * size):
            to = KEEP if batch % size or _partition(launch, manager) else batch // size
            args: dict[str, Any] = {"groups": groups, "size": size, "total": groups * size}
            yield problem(*keys, to=to, manager=manager, key=batch_key, batch=batch, **args)


def _partition(launch: Launch, manager: str) -> list[int] | None:
    found = value(launch, f"{manager}.num_groups_partition")
    return found if isinstance(found, list) and all(type(part) is int for part in found) else None


@rule("env-partition", "roll", source=_AGENTIC)
def _env_partition(launch: Launch) -> Iterator[Problem]:
    for manager in _MANAGERS:
        parts, tags = _partition(launch, manager), value(launch, f"{manager}.tags")
        groups = whole(launch, f"{manager}.num_env_groups")
        if not parts or not groups or not isinstance(tags, list):
            continue
        if sum(parts) != groups or len(parts) != len(tags):
            keys = (f"{manager}.{name}" for name in ("num_groups_partition", "num_env_groups", "tags"))
            args: dict[str, Any] = {"total": sum(parts), "groups": groups, "parts": len(parts), "tags": len(tags)}
            yield problem(*keys, to=[groups] if len(tags) == 1 else KEEP, manager=manager, **args)


@rule("env-tag", "roll", source=_AGENTIC)
def _env_tags(launch: Launch) -> Iterator[Problem]:
    known = {key.split(".")[1] for key in launch.settings if key.startswith("custom_envs.")}
    for manager in _MANAGERS if known else ():
        tags = value(launch, f"{manager}.tags")
        for tag in tags if isinstance(tags, list) else ():
            if tag not in known:
                yield problem(f"{manager}.tags", tag=tag, known=tuple(sorted(known)))


@rule("domain-probabilities", "roll", source="ROLL Ascend samples (2026-04): probabilities of the domains add up to 1")
def _domains(launch: Launch) -> Iterator[Problem]:
    prefix = "actor_train.data_args.domain_interleave_probs."
    shares = {s.key.removeprefix(prefix): number(launch, s.key) for s in matching(launch, prefix + "*")}
    if not shares or None in shares.values():
        return
    keys, total = tuple(prefix + name for name in shares), sum(filter(None, shares.values()))
    if abs(total - 1) > 1e-6:
        yield problem(*keys, total=round(total, 6))
    rewards = {match.group(1) for key in launch.settings if (match := re.match(r"rewards\.([^.]+)\.", key))}
    for name in sorted(set(shares) - rewards) if rewards else ():
        args: dict[str, Any] = {"domain": name, "rewards": tuple(sorted(rewards))}
        yield problem(prefix + name, rule="domain-reward", source=_DOMAINS, **args)


@rule("ulysses-padding", "verl", source=_VALIDATE)
def _ulysses_padding(launch: Launch) -> Iterator[Problem]:
    key, size = sequence_parallel(launch)
    padding = "actor_rollout_ref.model.use_remove_padding"
    if (size or 1) > 1 and value(launch, padding) is not None and not is_true(launch, padding):
        keys = (key, padding) if written(launch, padding) else (key,)
        yield problem(*keys, changes=(Change(padding, True),))


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
        lengths: tuple[str, ...] = ("data.max_prompt_length", "data.max_response_length")
        keys, total = (f"{_ROLLOUT}.max_model_len", *lengths), verl_length(launch)
        source = "verl wheels: verl/workers/rollout; an engine takes no more than max_model_len"
    else:
        lengths = ("sequence_length", "prompt_length", "response_length")
        keys, total = (f"{_ROLL_ENGINE}.max_model_len", *lengths), roll_length(launch)
        source = "ROLL Ascend samples (2026-04), sample 2: 2048 + 8192 tokens over 8000"
    most = whole(launch, keys[0])
    if total and most and total > most:
        yield problem(*keys, to=total, source=source, total=total, most=most)


@rule("batched-tokens", "verl", source=_WHOLE)
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
        yield problem(key, f"{_ACTOR}.use_dynamic_bsz", to=-(-total // parts), most=most * parts, total=total)


@rule("new-tokens", "roll", source="alibaba/ROLL roll/configs/base_config.py: a sequence holds prompt and answer")
def _new_tokens(launch: Launch) -> Iterator[Problem]:
    key = "actor_infer.generating_args.max_new_tokens"
    new, total = whole(launch, key), whole(launch, "sequence_length")
    if new and total and new >= total:
        yield problem(key, "sequence_length", new=new, total=total)
