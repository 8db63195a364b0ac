"""Values turned into what people and programs read: one module for each kind of result.

A module is imported when it is first used: a command that prints only its help loads none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npuenv.report import launch, lines, matrix, plan, resolution, shelf, smoke

__all__ = ["launch", "lines", "matrix", "plan", "resolution", "shelf", "smoke"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
