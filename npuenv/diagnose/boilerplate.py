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
    patterns = [_compiled(text) for row in rows for text in row.texts]
    return tuple(_without(line, patterns) for line in lines)


def _without(line: PasteLine, patterns: Sequence[tuple[str, re.Pattern[str]]]) -> PasteLine:
    text, lower = line.text, line.text.lower()
    for anchor, pattern in patterns:
        if anchor in lower:
            text = pattern.sub(lambda match: " ".join(("", *match.groups(), "")), text)
    return line if text == line.text else replace(line, text=text.rstrip())


@functools.lru_cache(maxsize=1024)
def _compiled(text: str) -> tuple[str, re.Pattern[str]]:
    """A word that each match has, in lower case, and the pattern, in which each field is a group."""
    whole = text.removesuffix("**")
    parts = whole.split("*")
    fields = f"(.{{0,{_LONGEST_FIELD}}}?)".join(re.sub(r"(\\ )+", r"\\s+", re.escape(part)) for part in parts)
    rest = ".*" if text.endswith("**") else ""
    return max(whole.replace("*", " ").split(), key=len).lower(), re.compile(fields + rest, re.IGNORECASE)
