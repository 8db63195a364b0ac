"""What must hold in a ROLL launch before it is written. ROLL's own loader accepts most of it when it does not.

Every refusal is BadInput with the numbers in it and what would fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.preflight.memory.types import written_cards
from npuenv.render.launch.job import parse_cards, unknown
from npuenv.render.launch.roll_recipe import (
    ACCUMULATION,
    INFER_CONFIG,
    LOCAL_CODE,
    TRAIN,
    Filled,
    update_sequences,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.preflight.memory.types import Job, Placement

_ROUNDING = 1e-9  # of probabilities written in decimals


def refuse_unfit(job: Job, placement: Placement, recipe: Filled, tree: Mapping[str, Any]) -> None:
    """Refuses cards, sizes and settings that do not fit together. `tree` is the file's content as plain values.

    Raises: BadInput.
    """
    _refuse_cards(job, placement, recipe)
    _refuse_update(job, placement, recipe)
    _refuse_length(job)
    if recipe.row.pipeline == "agentic":
        _refuse_environments(recipe, tree)
    else:
        _refuse_domains(tree)
        _refuse_local_code(recipe, tree)


def accumulation(recipe: Filled, num_train: int) -> int:
    """Accumulation steps on so many cards, the sequences of one update kept. Raises: BadInput where it is no number."""
    update = update_sequences(recipe, num_train)
    micro = recipe.number(TRAIN)
    if update % (micro * num_train):
        near = {"micro": TRAIN, "accumulation": ACCUMULATION, "steps": max(1, round(update / num_train))}
        hint = Message("launch_roll.no-accumulation-hint", near)
        _refuse("no-accumulation", {"update": update, "micro": micro, "cards": num_train}, hint)
    return update // (micro * num_train)


def _refuse(what: str, args: Mapping[str, object], hint: Message | None) -> NoReturn:
    raise BadInput(Message(f"launch_roll.{what}", args), hint)


def _change(key: str) -> Message:
    return Message("launch_roll.change-key", {"key": key})


def _refuse_cards(job: Job, placement: Placement, recipe: Filled) -> None:
    for cards in (placement.train, placement.infer, placement.reference):
        # Once as text and back: the same rules as for what a user writes.
        parse_cards(written_cards(cards), job.cards)
    shared = sorted(set(placement.train) & set(placement.infer))
    named = {"cards": written_cards(shared), "release": recipe.release_name}
    if shared and not recipe.release.allows_colocated:
        _refuse("no-colocation", named, Message("launch_roll.no-colocation-hint"))
    if shared and set(placement.train) != set(placement.infer):
        _refuse("half-colocated", named, Message("launch_roll.half-colocated-hint"))
    if len(placement.infer) % job.tensor_parallel:
        sizes = {"size": job.tensor_parallel, "cards": len(placement.infer)}
        _refuse("no-tensor-parallel", sizes, _change(f"{INFER_CONFIG}.tensor_parallel_size"))


def _refuse_update(job: Job, placement: Placement, recipe: Filled) -> None:
    num_train, micro = len(placement.train), recipe.number(TRAIN)
    steps = accumulation(recipe, num_train)
    update, step = steps * micro * num_train, _sequences_of_a_step(job, recipe)
    if step % update:
        args = {"step": step, "update": update, "micro": micro, "accumulation": steps, "cards": num_train}
        _refuse("no-update", args, _change(ACCUMULATION))


def _sequences_of_a_step(job: Job, recipe: Filled) -> int:
    if recipe.row.pipeline == "agentic":
        return recipe.number("rollout_batch_size")
    return job.sizes.prompts * job.sizes.rollouts


def _refuse_length(job: Job) -> None:
    sizes = job.sizes
    prompt, response, limit = sizes.prompt_length, sizes.response_length, sizes.max_model_len
    whole = prompt + response
    if prompt < 1:
        _refuse("no-prompt", {"response": response, "whole": whole}, _change("sequence_length"))
    if limit is not None and limit < whole:
        hint = Message("launch_roll.short-model-len-hint", {"key": f"{INFER_CONFIG}.max_model_len", "whole": whole})
        _refuse("short-model-len", {"limit": limit, "prompt": prompt, "response": response}, hint)


def _refuse_environments(recipe: Filled, tree: Mapping[str, Any]) -> None:
    for manager, batch in (("train_env_manager", "rollout_batch_size"), ("val_env_manager", "val_batch_size")):
        groups, size = recipe.number(f"{manager}.num_env_groups"), recipe.number(f"{manager}.group_size")
        if groups * size != recipe.number(batch):
            args = {"manager": manager, "groups": groups, "size": size, "batch": batch, "is": recipe.number(batch)}
            _refuse("groups-differ", args, Message("launch_roll.set-key", {"key": batch, "value": groups * size}))
        _refuse_partition(manager, groups, tree)


def _refuse_partition(manager: str, groups: int, tree: Mapping[str, Any]) -> None:
    tags, partition = tree[manager]["tags"], tree[manager]["num_groups_partition"]
    args = {"manager": manager, "tags": str(tags), "partition": str(partition), "groups": groups}
    hint = _change(f"{manager}.num_groups_partition")
    if not isinstance(tags, list) or not isinstance(partition, list) or len(tags) != len(partition):
        _refuse("tags-differ", args, hint)
    if any(type(each) is not int or each < 1 for each in partition) or sum(partition) != groups:
        _refuse("partition-differs", args, hint)
    for tag in tags:
        if tag not in tree["custom_envs"]:
            raise unknown(str(tag), tree["custom_envs"], "environment")


def _refuse_domains(tree: Mapping[str, Any]) -> None:
    shares, rewards = tree["actor_train"]["data_args"]["domain_interleave_probs"], tree["rewards"]
    hint = _change("actor_train.data_args.domain_interleave_probs")
    if set(shares) != set(rewards):
        _refuse("domains-differ", {"domains": tuple(shares), "rewards": tuple(rewards)}, hint)
    numbers = [share for share in shares.values() if isinstance(share, (int, float)) and share >= 0]
    if len(numbers) < len(shares) or abs(sum(numbers) - 1) > _ROUNDING:
        _refuse("shares-differ", {"shares": tuple(f"{name}: {share}" for name, share in shares.items())}, hint)
    owners: dict[str, str] = {}
    for domain, reward in rewards.items():
        for tag in reward.get("tag_included", ()):
            if owners.setdefault(tag, domain) != domain:
                _refuse("tag-twice", {"tag": tag, "first": owners[tag], "second": domain}, None)


def _refuse_local_code(recipe: Filled, tree: Mapping[str, Any]) -> None:
    if recipe.allows_local_code:
        return
    for domain, reward in tree["rewards"].items():
        # Without a setting ROLL's workers run the code themselves: the default of `use_local` is true.
        if str(reward.get("worker_cls", "")).endswith(LOCAL_CODE) and reward.get("use_local", True) is not False:
            _refuse("local-code", {"domain": domain}, Message("launch_roll.local-code-hint"))
