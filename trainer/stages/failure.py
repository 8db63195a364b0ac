"""The stage of an error, so that a failed run still records where and why. Imports no torch."""

from __future__ import annotations

import errno
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# A part of a file's path, or of it and a function's name, and the stage that runs it; the innermost match decides.
_PLACES: Mapping[str, str] = {
    "trainer/saving/checkpoint.py": "checkpoint",
    "trainer/tasks/": "reward",
    "trainer/engines/": "generation",
    "trainer/rollouts.py collect": "generation",
    "trainer/episodes.py": "generation",
    "trainer/loop.py update_policy": "update",
    "trainer/learner.py": "update",
    "trainer/distributed.py": "collective",
}
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def of_error(error: BaseException) -> dict[str, Any] | None:
    """The values of the `stage` record for an error; None if its stage is recorded already or unknown.

    `cause` names the failure: import-failed, generator-lost, stale-weights, reward-hangs, reward-raises, out-of-memory,
    full-disk, cannot-save, or broken.
    """
    name, cause = _place(error)
    if name is None:
        return None
    reason = " ".join(str(error).split()) or type(error).__name__
    return {"name": name, "seconds": None, "passed": False, "cause": cause, "reason": reason}


def _place(error: BaseException) -> tuple[str | None, str]:
    kind = type(error).__name__
    if kind == "StageFailed":
        return None, ""
    if kind in ("GeneratorLost", "StaleWeights"):
        return "generation", "generator-lost" if kind == "GeneratorLost" else "stale-weights"
    if kind in ("RewardBroken", "RewardHung"):
        return "reward", "reward-hangs" if kind == "RewardHung" else "reward-raises"
    if isinstance(error, MemoryError) or kind == "OutOfMemoryError" or "out of memory" in str(error).lower():
        return "memory", "out-of-memory"
    if isinstance(error, ImportError):
        return "import", "import-failed"
    stage = _innermost(error)
    if stage == "checkpoint" and isinstance(error, OSError):
        return stage, "full-disk" if error.errno in _NO_ROOM else "cannot-save"
    return stage, "broken"


def _innermost(error: BaseException) -> str | None:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        place = f"{frame.filename} {frame.name}".replace("\\", "/")
        for part, stage in _PLACES.items():
            if part in place:
                return stage
    return None
