"""The weights that a run began with, those of its reference policy: what a checkpoint tells of them, and who gets them.

What a checkpoint holds as the reference is the reference, wherever it is kept from then on. Where it holds none, the
generators had made it from the settings; then it holds the fingerprint of those weights, whoever keeps the reference
now makes it from the same settings, and it must come to the same. So a run that goes on never takes for its reference
what it has learnt since, nor what stands by now in the folder of its model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.config import BadSetting
from trainer.saving.manifest import STORED
from trainer.weights import fingerprint, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from trainer.engines.remote import Remote
    from trainer.learner import Learner

# Where a state has the fingerprint, if the generators have the reference.
MARK = "reference_mark"


def begin(learner: Learner, remote: Remote) -> None:
    """Tells an engine by which fingerprint to know the reference of its generators; a collective where it is sharded.

    An engine that knows one already keeps it.
    """
    if remote.origin is None:
        remote.expect_reference(fingerprint(learner.base_weights()))


def added(state: dict[str, Any], remote: Remote | None) -> dict[str, Any]:
    """A state with what is to be known of the generators' reference; None: it is not there."""
    if remote is None or remote.origin is None:
        return state
    learner, origin = state["learner"], remote.origin
    if origin.buckets:
        learner = {**learner, "reference": unpack(origin.buckets)}
    return {**state, "learner": learner, MARK: origin.mark}


def is_stored(state: Mapping[str, Any]) -> bool:
    """Whether a sharded state has the reference among its shards."""
    return STORED in state and MARK not in state


def restore(learner: Learner, remote: Remote | None, state: Mapping[str, Any]) -> None:
    """Sees to it that the reference is that of the saved run; `remote` is None where the learner keeps it.

    Raises BadSetting where it can no longer be had.
    """
    if remote is not None and remote.origin is not None:
        held = _held(learner, state)
        if held is None:
            _check(state[MARK], remote.origin.mark)
        elif fingerprint(held.items()) != remote.origin.mark:
            remote.set_reference(held.items())
    elif MARK in state and "reference" not in state["learner"] and (own := learner.reference_weights()) is not None:
        _check(state[MARK], fingerprint(own))


def _held(learner: Learner, state: Mapping[str, Any]) -> Mapping[str, Tensor] | None:
    """The reference that a state holds, whole; None where it holds none."""
    if not is_stored(state):
        held: Mapping[str, Tensor] | None = state["learner"].get("reference")
        return held
    room = learner.room()
    state[STORED].into({f"learner/reference/{name}": each for name, each in room.items()})
    return room


def _check(saved: int, own: int) -> None:
    if saved != own:
        raise BadSetting(
            "resume: the reference policy of this run cannot be had again: it was made from the settings, and these "
            "make another one now. Does path still hold the model that the run began with?"
        )
