"""The tables as they were when tests of resolve were written: a newer release changes none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.matrix import load_matrix
from npuenv.matrix.tables import Matrix

if TYPE_CHECKING:
    from npuenv.matrix.load import Row

WRITTEN = "2026-11-21"


class _Written(Matrix):
    """Without the rows of what was published later."""

    def _table(self, name: str, kind: type[Row]) -> tuple[Row, ...]:  # type: ignore[override]
        rows = super()._table(name, kind)
        return tuple(row for row in rows if all(getattr(row, key, "") <= WRITTEN for key in _DAYS))


_DAYS = ("published", "released", "date")
MATRIX = _Written(load_matrix().folder)
