"""Fixed text of messages, which says the same whatever the cause, is removed; what is filled in stays."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npuenv.host.report import PasteLine
    from npuenv.matrix.error_patterns import BoilerplateRow

_LONGEST_FIELD = 200  # characters that a program fills in


def drop_boilerplate(lines: Iterable[PasteLine], rows: Sequence[BoilerplateRow]) -> tuple[PasteLine, ...]:
    """The same lines, the fixed text of some rows taken out of what is matched; what is shown stays."""
    fixed = [(_anchor(text), text) for row in rows for text in row.texts]
    return tuple(_without(line, fixed) for line in lines)


def _without(line: PasteLine, fixed: Sequence[tuple[str, str]]) -> PasteLine:
    text, lower = line.text, line.text.lower()
    for anchor, each in fixed:
        if anchor in lower:
            text = _pattern(each).sub(lambda match: " ".join(("", *match.groups(), "")), text)
    return line if text == line.text else replace(line, text=text.rstrip())


def _anchor(text: str) -> str:
    """A word that each match has, in lower case: most patterns are never needed, and many take long to compile."""
    return max(text.removesuffix("**").replace("*", " ").split(), key=len).lower()


@functools.lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    """The pattern of a fixed text, in which each field is a group."""
    whole = text.removesuffix("**")
    parts = whole.split("*")
    fields = f"(.{{0,{_LONGEST_FIELD}}}?)".join(re.sub(r"(\\ )+", r"\\s+", re.escape(part)) for part in parts)
    rest = ".*" if text.endswith("**") else ""
    return re.compile(fields + rest, re.IGNORECASE)
