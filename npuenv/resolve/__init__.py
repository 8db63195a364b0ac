"""Request and matrix to a Stack, or a Conflict; with why, and why not newer, for each pin.

Start from `resolve`. It looks at the matrix alone: no network, no machine. The Python packages that follow from a stack
are the lock's business (`npuenv.lock`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.resolve.candidate import candidates
from npuenv.resolve.conflict import explain
from npuenv.resolve.names import checked, stack_names
from npuenv.resolve.rules import objections
from npuenv.resolve.stack import build

if TYPE_CHECKING:
    from npuenv.matrix import Matrix
    from npuenv.resolve.types import Conflict, Request, Stack

__all__ = ["resolve", "stack_names"]


def resolve(request: Request, matrix: Matrix) -> Stack | Conflict:
    """The preferred stack that meets a request, or why there is none.

    Preferred: the CANN that was asked for, else the newest; NPU stacks before CPU ones; then the published platform.
    Raises: BadInput for a name that does not exist, and for a request that says nothing to go by.
    """
    wanted = checked(request, matrix)
    judged = []
    for candidate in candidates(wanted, matrix):
        against = objections(candidate, wanted, matrix)
        if not against:
            return build(candidate, wanted, matrix)
        judged.append((candidate, against))
    return explain(judged, wanted, matrix, resolve)
