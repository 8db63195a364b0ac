"""Rules about batch sizes: what must divide what, so that each card gets the same number of sequences."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from npuenv.preflight.rules.base import (
    divisor_below,
    is_agentic,
    is_at_least,
    is_off,
    is_set,
    is_true,
    matching,
    number,
    problem,
    rule,
    sequence_parallel,
    value,
    verl_cards,
    whole,
    written,
)
from npuenv.preflight.rules.cards import cards_of
from npuenv.preflight.types import Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.core.finding import Severity
    from npuenv.preflight.rules.base import Problem
    from npuenv.preflight.types import Launch

_ACTOR = "actor_rollout_ref.actor"
_TRAIN, _MINI = "data.train_batch_size", f"{_ACTOR}.ppo_mini_batch_size"
_MICRO = f"{_ACTOR}.ppo_micro_batch_size_per_gpu"
_VALIDATE = "verl wheels 0.7.1, 0.9.1: verl/utils/config.py, validate_config"
_ROLL = "alibaba/ROLL roll/configs/base_config.py"
_AGENTIC = "alibaba/ROLL roll/pipeline/agentic/agentic_config.py"


def data_parallel(launch: Launch) -> int | None:
    """How many cards or groups of cards share a mini batch among them."""
    cards = verl_cards(launch)
    if _is_megatron(launch):
        names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        sizes = [whole(launch, f"{_ACTOR}.megatron.{name}", 1) for name in names]
    else:
        sizes = [sequence_parallel(launch)[1]]
    group = math.prod(size or 0 for size in sizes)  # 0: a size is not known
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
    args: dict[str, Any] = {"batch": batch, "n": n, "total": batch * n}
    least = _least(launch, cards) if cards else 1
    if batch * n % least:
        keys = (_TRAIN, "actor_rollout_ref.rollout.n", "trainer.n_gpus_per_node")
        yield problem(*keys, changes=fitting(launch), cards=least, **args)
        return
    micro = whole(launch, _MICRO)
    if micro and _is_megatron(launch) and batch * n % (least * micro):
        keys = (_MICRO, _TRAIN, "actor_rollout_ref.rollout.n")
        says = "train-batch-micro" if cards else "train-batch-micro-any"
        yield problem(*keys, says=says, changes=fitting(launch), cards=least, micro=micro, **args)


def _rollouts(launch: Launch) -> int | None:
    return whole(launch, "actor_rollout_ref.rollout.n", 1)


@rule("mini-batch", "verl", source=_VALIDATE, is_trainers=True)
def _mini_batch(launch: Launch) -> Iterator[Problem]:
    batch, mini = whole(launch, _TRAIN, 1024), whole(launch, _MINI, 256)
    if batch and mini and mini > batch:
        yield problem(_MINI, _TRAIN, changes=fitting(launch), mini=mini, batch=batch)


def _share_of_mini(launch: Launch) -> tuple[int, int, int, int] | None:
    """(prompts of a mini batch, rollouts, parts it is cut into, what is left over)."""
    mini, n, parts = whole(launch, _MINI, 256), _rollouts(launch), data_parallel(launch)
    return (mini, n, parts, mini * n % parts) if mini and n and parts else None


@rule(
    "mini-batch-uneven",
    "verl",
    source="verl wheels: verl/workers/fsdp_workers.py divides and rounds down",
    severity="warning",
)
def _mini_uneven(launch: Launch) -> Iterator[Problem]:
    share = _share_of_mini(launch)
    if share and share[3]:
        mini, n, parts, _ = share
        changes = fitting(launch)
        yield problem(
            _MINI,
            "trainer.n_gpus_per_node",
            changes=changes if any(change.key == _MINI for change in changes) else (),
            mini=mini,
            n=n,
            cards=parts,
        )


@rule("micro-batch", "verl", source="verl wheels 0.5.0 to 0.7.1: verl/workers/fsdp_workers.py", is_trainers=True)
def _micro_batch(launch: Launch) -> Iterator[Problem]:
    micro, share = whole(launch, _MICRO), _share_of_mini(launch)
    if not share or share[3] or not micro or not is_off(launch, f"{_ACTOR}.use_dynamic_bsz"):
        return
    mini, n, parts, _ = share
    per_card = mini * n // parts
    if per_card % micro:
        # From 0.8.0 on the last part of a mini batch may be smaller; before, the worker stops.
        severity: Severity = "error" if is_at_least(launch, "0.8.0") is False else "warning"
        yield problem(
            _MICRO,
            _MINI,
            "trainer.n_gpus_per_node",
            changes=fitting(launch),
            micro=micro,
            mini=mini,
            n=n,
            cards=parts,
            share=per_card,
            severity=severity,
        )


def _micro_keys(launch: Launch) -> Iterator[tuple[str, str, str]]:
    """(old key, key per card, switch of dynamic sizes) of each part that the launch really has."""
    yield f"{_ACTOR}.ppo_micro_batch_size", f"{_ACTOR}.ppo_micro_batch_size_per_gpu", f"{_ACTOR}.use_dynamic_bsz"
    roll, ref = "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
    old, new, switch = "log_prob_micro_batch_size", "log_prob_micro_batch_size_per_gpu", "log_prob_use_dynamic_bsz"
    yield f"{roll}.{old}", f"{roll}.{new}", f"{roll}.{switch}"
    if is_true(launch, f"{_ACTOR}.use_kl_loss") or is_true(launch, "algorithm.use_kl_in_reward"):
        yield f"{ref}.{old}", f"{ref}.{new}", f"{ref}.{switch}"
    if value(launch, "algorithm.adv_estimator", "gae") == "gae":
        yield "critic.ppo_micro_batch_size", "critic.ppo_micro_batch_size_per_gpu", "critic.use_dynamic_bsz"


@rule("micro-batch-both", "verl", source=_VALIDATE, is_trainers=True)
def _micro_both(launch: Launch) -> Iterator[Problem]:
    for old, new, _ in _micro_keys(launch):
        if is_set(launch, old) and is_set(launch, new):
            yield problem(old, new, changes=(Change(old, None),), old=old, new=new)


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
    if estimator in grouped and number(launch, "actor_rollout_ref.rollout.n", 1) == 1:
        yield problem("actor_rollout_ref.rollout.n", "algorithm.adv_estimator", estimator=estimator)


@rule("group-of-one", "roll", source=_ROLL, severity="warning")
def _roll_group(launch: Launch) -> Iterator[Problem]:
    key = "num_return_sequences_in_group"
    if (
        not is_agentic(launch)
        and value(launch, "adv_estimator") == "grpo"
        and number(launch, key, 1) == 1
        and "actor_train.strategy_args.strategy_name" in launch.settings
    ):
        yield problem(key, "adv_estimator", estimator="grpo")


@rule("roll-batch", "roll", source=_ROLL)
def _roll_batch(launch: Launch) -> Iterator[Problem]:
    base = "actor_train.training_args"
    device, steps = (
        whole(launch, f"{base}.per_device_train_batch_size"),
        whole(launch, f"{base}.gradient_accumulation_steps"),
    )
    cards, batch = cards_of(launch, "actor_train"), whole(launch, "rollout_batch_size")
    if not (device and steps and cards and batch):
        return
    n = 1 if is_agentic(launch) else whole(launch, "num_return_sequences_in_group", 1)
    parts = _roll_parts(launch, len(cards))
    if not (n and parts):
        return
    update = device * steps * parts
    if batch * n % update:
        fit = batch * n // (device * parts) if batch * n % (device * parts) == 0 else None
        changes = (Change(f"{base}.gradient_accumulation_steps", divisor_below(fit, steps)),) if fit else ()
        yield problem(
            f"{base}.gradient_accumulation_steps",
            f"{base}.per_device_train_batch_size",
            "rollout_batch_size",
            changes=changes,
            device=device,
            steps=steps,
            cards=parts,
            update=update,
            total=batch * n,
        )


def _roll_parts(launch: Launch, cards: int) -> int | None:
    """Data parallel parts of ROLL's training role; None where a size is not known."""
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    keys = [f"actor_train.strategy_args.strategy_config.{name}" for name in names]
    sizes = [whole(launch, key, 1) for key in ("actor_train.model_args.ulysses_size", *keys)]
    group = math.prod(size or 0 for size in sizes)
    return max(cards // group, 1) if group else None


@rule("env-groups", "roll", source=_AGENTIC)
def _env_groups(launch: Launch) -> Iterator[Problem]:
    for manager, batch_key in (("train_env_manager", "rollout_batch_size"), ("val_env_manager", "val_batch_size")):
        key = f"{manager}.num_env_groups"
        groups, size, batch = whole(launch, key), whole(launch, f"{manager}.group_size", 1), whole(launch, batch_key)
        if groups and size and batch and batch % (groups * size):
            changes = (Change(key, batch // size),) if batch % size == 0 and not _partition(launch, manager) else ()
            yield problem(
                key,
                f"{manager}.group_size",
                batch_key,
                changes=changes,
                manager=manager,
                groups=groups,
                size=size,
                total=groups * size,
                key=batch_key,
                batch=batch,
            )


def _partition(launch: Launch, manager: str) -> list[int] | None:
    found = value(launch, f"{manager}.num_groups_partition")
    return found if isinstance(found, list) and all(type(part) is int for part in found) else None


@rule("env-partition", "roll", source=_AGENTIC)
def _env_partition(launch: Launch) -> Iterator[Problem]:
    for manager in ("train_env_manager", "val_env_manager"):
        parts, tags = _partition(launch, manager), value(launch, f"{manager}.tags")
        groups, key = whole(launch, f"{manager}.num_env_groups"), f"{manager}.num_groups_partition"
        if not parts or not groups or not isinstance(tags, list):
            continue
        if sum(parts) != groups or len(parts) != len(tags):
            change = (Change(key, [groups]),) if len(tags) == 1 else ()
            yield problem(
                key,
                f"{manager}.num_env_groups",
                f"{manager}.tags",
                changes=change,
                manager=manager,
                total=sum(parts),
                groups=groups,
                parts=len(parts),
                tags=len(tags),
            )


@rule("env-tag", "roll", source=_AGENTIC)
def _env_tags(launch: Launch) -> Iterator[Problem]:
    known = {key.split(".")[1] for key in launch.settings if key.startswith("custom_envs.")}
    for manager in ("train_env_manager", "val_env_manager") if known else ():
        tags = value(launch, f"{manager}.tags")
        for tag in tags if isinstance(tags, list) else ():
            if tag not in known:
                yield problem(f"{manager}.tags", tag=tag, known=tuple(sorted(known)))


@rule("domain-probabilities", "roll")
def _domains(launch: Launch) -> Iterator[Problem]:
    prefix = "actor_train.data_args.domain_interleave_probs."
    shares = {s.key.removeprefix(prefix): number(launch, s.key) for s in matching(launch, prefix + "*")}
    if not shares or None in shares.values():
        return
    keys, total = tuple(prefix + name for name in shares), sum(filter(None, shares.values()))
    if abs(total - 1) > 1e-6:
        yield problem(
            *keys,
            total=round(total, 6),
            source="ROLL Ascend samples (2026-04): probabilities of the domains add up to 1",
        )
    rewards = {match.group(1) for key in launch.settings if (match := re.match(r"rewards\.([^.]+)\.", key))}
    for name in sorted(set(shares) - rewards) if rewards else ():
        yield problem(
            prefix + name,
            rule="domain-reward",
            says="domain-reward",
            domain=name,
            rewards=tuple(sorted(rewards)),
            source="alibaba/ROLL roll/pipeline/rlvr/rlvr_config.py: a domain is a reward of the same name",
        )


@rule("ulysses-padding", "verl", source=_VALIDATE)
def _ulysses_padding(launch: Launch) -> Iterator[Problem]:
    key, size = sequence_parallel(launch)
    padding = "actor_rollout_ref.model.use_remove_padding"
    if (size or 1) > 1 and value(launch, padding) is not None and not is_true(launch, padding):
        keys = (key, padding) if written(launch, padding) else (key,)
        yield problem(*keys, changes=(Change(padding, True),))
