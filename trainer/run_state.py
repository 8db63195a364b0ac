"""The state of a run that a checkpoint holds: policy, optimizer, random numbers, reference, prefetched rollouts.

`state_of` makes it and `restore` goes on from it. About the reference policy: if a checkpoint has its weights, they are
used, wherever the reference is held from then on. If it has none, the generators had made the reference from the
settings; then the checkpoint has the fingerprint of those weights, the reference is made from the same settings again,
and the fingerprints must match. So a resumed run never uses its trained weights as its reference, nor a changed model
folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trainer.algorithms.optimizer import copy_into
from trainer.config import BadSetting
from trainer.off_policy import prefetched_of_state, prefetched_state
from trainer.saving import STORED, flatten
from trainer.trainer import plain_weights
from trainer.weights import fingerprint, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from trainer.engines.remote import Remote
    from trainer.learner import Learner
    from trainer.saving import Saved, State
    from trainer.trainer import Trainer

# The key of the reference's fingerprint in a state, if the generators have the reference.
MARK = "reference_mark"


def state_of(trainer: Trainer, step: int) -> State:
    """All that the step after `step` depends on, on every rank; a collective."""
    world, engine = trainer.world, trainer.engine
    samplers = world.gather(engine.random_state().cpu())
    state = {
        "step": step,
        "settings": trainer.config.lasting(),
        "learner": learner_state(trainer.learner),
        "sampler_random": {str(rank): state for rank, state in enumerate(samplers)},
        **trainer.prompts.state(),
    }
    if trainer.prefetch is not None:  # the rollouts of every rank's next step
        ready = world.gather(prefetched_state(trainer.prefetch.ready, trainer.task.train))
        state["ready"] = {str(rank): each for rank, each in enumerate(ready)}
    return with_reference(state, trainer.reference_engine)


def save_checkpoint(trainer: Trainer, state: State, folder: Path) -> Saved:
    """Rank 0 saves the state, or all ranks their rows of it; what was saved. A collective."""
    saved = trainer.save(state, folder) if trainer.world.is_first or trainer.learner.is_sharded else None
    first: Saved = trainer.world.gather(saved)[0]
    return first


def restore(trainer: Trainer, state: Mapping[str, Any]) -> int:
    """Goes on from a state that `state_of` gave, on as many ranks or on others; gives back its step.

    On as many, every bit of what follows is the same. Prompts and the order of groups do not depend on the ranks.
    A rank that was there before goes on with its engine's random numbers. One that was not, or whose engine is of
    another kind than the one before, begins at its own seed; rollouts that lay ready in other shares are made anew.
    """
    restore_learner(trainer.learner, _saved_learner(trainer.learner, state))
    restore_reference(trainer.learner, trainer.reference_engine, state)
    samplers, own = state["sampler_random"], str(trainer.world.rank)
    if own in samplers and samplers[own].shape == trainer.engine.random_state().shape:
        trainer.engine.restore_random_state(samplers[own].cpu())
    trainer.prompts.restore(state)
    if trainer.prefetch is not None:
        # A state of shards holds no empty parts: of a run that was at its end nothing lay ready.
        ready = state.get("ready", {}).get(own, {}) if len(samplers) == trainer.world.size else {}
        trainer.prefetch.ready = prefetched_of_state(ready, trainer.task.train, trainer.device)
    step = int(state["step"])
    trainer.sync_weights(step)
    return step


# The learner.


def learner_state(learner: Learner) -> dict[str, Any]:
    """All that the learner's next update depends on, by reference."""
    state: dict[str, Any] = {
        "policy": {name: parameter.detach() for name, parameter in learner.model.named_parameters()},
        **learner.optimizer.moments(),
        "kl_coef": learner.kl_coef,
        "groups_random": learner.generator.get_state(),
    }
    if learner.reference is not None:
        state["reference"] = {name: each.detach() for name, each in learner.reference.named_parameters()}
    if learner.critic is not None:
        state["critic"] = learner.critic.state()
    return state


def restore_learner(learner: Learner, state: Mapping[str, Any]) -> None:
    """Continues from a state that `learner_state` gave; copies the values."""
    own = learner_state(learner)
    for part in ("policy", "reference"):
        if part not in state and part == "reference":
            continue  # it was elsewhere, and had what this one has been made with
        # The float32 copy of a complete bfloat16 model is the weight itself of a sharded one.
        wide = state.get("master", {}) if part == "policy" and learner.is_sharded else {}
        copy_into(own.get(part, {}), {**state.get(part, {}), **wide})
    learner.optimizer.restore_moments(state)
    learner.kl_coef = state["kl_coef"]
    learner.generator.set_state(state["groups_random"].cpu())
    if learner.critic is not None:
        learner.critic.restore(state["critic"])


def _saved_learner(learner: Learner, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The learner's part of a saved state; of a sharded one the tensors are read into the live ones."""
    stored = state.get(STORED)
    if stored is None:
        return state["learner"]  # type: ignore[no-any-return]
    own = learner_state(learner)
    if not is_stored(state):
        own.pop("reference", None)
    tensors = {name: each for name, each in flatten({"learner": own}).items() if isinstance(each, torch.Tensor)}
    stored.into({name: each for name, each in tensors.items() if each.is_floating_point()})
    return {**own, **state["learner"]}


# The reference policy.


def set_reference(trainer: Trainer) -> None:
    """The reference policy, wherever it is, becomes the present one; a collective where it is sharded."""
    trainer.learner.set_reference()
    if (remote := trainer.reference_engine) is not None:
        remote.set_reference(trainer.learner.full_weights())
        remote.barrier(trainer.world)


def with_reference(state: dict[str, Any], remote: Remote | None) -> dict[str, Any]:
    """A state with the data about the generators' reference; unchanged (None) without one."""
    if remote is None or remote.origin is None:
        return state
    learner, origin = state["learner"], remote.origin
    if origin.buckets:
        learner = {**learner, "reference": unpack(origin.buckets)}
    return {**state, "learner": learner, MARK: origin.mark}


def is_stored(state: Mapping[str, Any]) -> bool:
    """Whether a sharded state has the reference among its shards."""
    return STORED in state and MARK not in state


def restore_reference(learner: Learner, remote: Remote | None, state: Mapping[str, Any]) -> None:
    """Restores the reference of the saved run; `remote` is None if the learner holds it.

    Raises BadSetting if it is no longer available.
    """
    if remote is not None and remote.origin is not None:
        stored_reference = _stored_reference(learner, state)
        if stored_reference is None:
            _check(state[MARK], remote.origin.mark)
        elif fingerprint(stored_reference.items()) != remote.origin.mark:
            remote.set_reference(stored_reference.items())
    elif MARK in state and "reference" not in state["learner"] and learner.reference is not None:
        _check(state[MARK], fingerprint(plain_weights(learner.reference, learner.dtype)))


def _stored_reference(learner: Learner, state: Mapping[str, Any]) -> Mapping[str, Tensor] | None:
    """The complete reference of a state; None if it has none."""
    if not is_stored(state):
        stored_reference: Mapping[str, Tensor] | None = state["learner"].get("reference")
        return stored_reference
    own = ((name, each) for name, each in learner.model.named_parameters() if ".lora_" not in name)
    weights = {name: torch.empty(each.shape, dtype=learner.dtype) for name, each in own}
    state[STORED].into({f"learner/reference/{name}": each for name, each in weights.items()})
    return weights


def _check(saved: int, own: int) -> None:
    if saved != own:
        raise BadSetting(
            "resume: the reference policy of this run cannot be had again: it was made from the settings, and these "
            "make another one now. Does path still hold the model that the run began with?"
        )
