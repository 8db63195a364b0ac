"""What a row of each matrix table holds. One dataclass per table; a field without a default must be in the row.

A row says where it comes from (`source`) and when that was read (`seen`). Texts for people are not here: a field named
`why` or `note` holds the key of a sentence in the message catalogues.

The rows of a subject are loaded when one of them is first asked for: to make all these classes takes 15 ms, and a
doctor that meets neither cards nor packages needs few of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuenv.matrix.rows.launch import *  # noqa: F403
    from npuenv.matrix.rows.machine import *  # noqa: F403
    from npuenv.matrix.rows.packages import *  # noqa: F403
    from npuenv.matrix.rows.recipes import *  # noqa: F403

_SUBJECTS = {
    "launch": "Bound Choice ContainerCards ContainerPlace LaunchKey LaunchRecipe MovedKey RefusedValue"
    " RollDeparture RollRecipe RollRelease",
    "machine": "Cann CannFile Hardware Image ImageDigest Index NpuFault Probe Setting System SystemPackage Variable",
    "packages": "Built ChipWheel Companion Contradiction Limit PublicRun ReleaseImage RequiresPython TorchNpu"
    " TritonAscend Unsupported VllmAscend WheelHash",
    "recipes": "Dispute ModelShape ModelType Recipe RecipeGit RecipeOverride RecipePin RecipeRange RecipeStep Upstream",
}


def __getattr__(name: str) -> object:
    """A row by its name."""
    for subject, names in _SUBJECTS.items():
        if name in names.split():
            found: object = getattr(importlib.import_module(f"{__name__}.{subject}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
