"""The file of records: one JSON object a line, each line flushed, so that another process can follow it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

FILE = "metrics.jsonl"
SCHEMA = "npuenv.metrics/1"


class Records:
    """An open record file; an older one in the same folder is replaced. Raises OSError where it cannot be written."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = (folder / FILE).open("w", encoding="utf-8")

    def write(self, kind: str, **values: Any) -> None:
        """Appends one record. Floats that JSON cannot hold become the texts `nan`, `inf` and `-inf`."""
        line = json.dumps({"kind": kind, **{key: plain(value) for key, value in values.items()}}, allow_nan=False)
        self._file.write(line + "\n")
        self._file.flush()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def plain(value: Any) -> Any:
    """The value with every float that is not finite as text, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
