"""Which Ascend software fits together, as data: tables of rows, each with its source and the date it was read.

Start from `load_matrix`. A table is read when it is first asked for; `npuenv.maintain.check` reads all and follows the
references between them. `release_stacks` derives stacks from single rows and tells how torch_npu pairs with CANN;
nothing here chooses, which `npuenv.resolve` does.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from npuenv.core.documents import folder_of
from npuenv.matrix.tables import Matrix

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Matrix", "load_matrix"]


@functools.cache
def load_matrix(folder: Path | None = None) -> Matrix:
    """The matrix that comes with npuenv, or one from a folder of the same tables. Tables are read when asked for."""
    return Matrix(folder or folder_of(__file__))
