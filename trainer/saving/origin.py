"""The reference policy's weights across checkpoints: what a checkpoint stores about them, and who gets them.

If a checkpoint has the reference's weights, they are used, wherever the reference is held from then on. If it has none,
the generators had made the reference from the settings; then the checkpoint has the fingerprint of those weights, the
reference is made from the same settings again, and the fingerprints must match. So a resumed run never uses its trained
weights as its reference, nor a changed model folder.
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

# The key of the fingerprint in a state, if the generators have the reference.
MARK = "reference_mark"


def begin(learner: Learner, remote: Remote) -> None:
    """Gives an engine the fingerprint of its generators' reference; a collective if it is sharded.

    An engine that has one already keeps it.
    """
    if remote.origin is None:
        remote.expect_reference(fingerprint(learner.base_weights()))


def added(state: dict[str, Any], remote: Remote | None) -> dict[str, Any]:
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


def restore(learner: Learner, remote: Remote | None, state: Mapping[str, Any]) -> None:
    """Restores the reference of the saved run; `remote` is None if the learner holds it.

    Raises BadSetting if it is no longer available.
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
    """The complete reference of a state; None if it has none."""
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
