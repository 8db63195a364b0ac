"""Whether a text explains (a guide, a list of known problems, code) or reports what happened."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.host.report import PasteLine
    from npuenv.matrix.error_patterns import RoleRow

_READ = 400  # lines that are looked at
_DOCUMENT = 3.2  # weight from which on a text is a document
_CODE_SHARE, _CODE_LINES = 0.4, 6


def role_signs(lines: Sequence[PasteLine], rows: Sequence[RoleRow]) -> Iterator[tuple[str, PasteLine]]:
    """`is-document` for a guide or a list of problems, `is-code` for a source file, `nothing-happened` where no line of
    a log is in the text."""
    texts = [line.text[:500] for line in lines[:_READ] if line.text.strip()]
    if not texts:
        return
    counts = {row.id: sum(pattern.search(text) is not None for text in texts) for row, pattern in _compiled(rows)}
    if sum(row.weight * math.log1p(counts[row.id]) for row in rows) > _DOCUMENT:
        yield "is-document", lines[0]
    if counts["event"] or counts["error"]:
        return
    yield "nothing-happened", lines[0]
    if not counts["person"] and _CODE_LINES <= counts["code"] > _CODE_SHARE * len(texts):
        yield "is-code", lines[0]


def _compiled(rows: Sequence[RoleRow]) -> Iterator[tuple[RoleRow, re.Pattern[str]]]:
    for row in rows:
        yield row, re.compile("|".join(row.patterns), 0 if row.is_case_sensitive else re.IGNORECASE)
