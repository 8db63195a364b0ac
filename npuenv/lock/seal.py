"""A text of tables that each carry a seal, so that an edit can be detected and its table named.

A block is the head of the file or one `[[table]]` with its lines. Its last line is `seal = "..."` over the lines before
it. The head also holds a digest of the complete file, because removing or moving a table leaves all other seals valid.
This guards against accidents (a hand edit, a bad merge, a damaged disk), not against forgery.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

SEAL_DIGITS = 8  # one accidental change in four thousand million passes a seal, and none the digest


class Flaw(NamedTuple):
    """A block whose seal does not match, or the head if only the digest of the file does not."""

    line: int  # its first one, from 1
    kind: str  # "package"; "" for the head
    name: str  # the value of its `name` or `requirement`; "" if there is none
    is_sealed: bool  # its own seal matches: it is the head, and tables were moved or taken away


def join_blocks(head: Sequence[str], tables: Sequence[Sequence[str]]) -> str:
    """The text of a file, with a seal at the end of each block and the digest in the head."""
    sealed = [_with_seal(lines) for lines in tables]
    unsigned = _text([list(head), *sealed])
    return _text([_with_seal([*head, f'digest = "{_hex(unsigned)}"']), *sealed])


def first_flaw(text: str) -> Flaw | None:
    """The first block of a file that was edited; None if the file is as it was written."""
    lines = text.split("\n")
    starts = [0, *(number for number, line in enumerate(lines) if number and line.lstrip().startswith("[["))]
    blocks = [lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    for start, block in zip(starts, blocks, strict=True):
        if block != [*_with_seal(block[:-2]), ""]:
            kind = re.match(r"\s*\[\[(.*?)\]\]", block[0])
            name = re.search(r'^(?:name|requirement) = "(.*)"$', "\n".join(block), re.MULTILINE)
            return Flaw(start + 1, kind[1] if kind else "", name[1] if name else "", False)
    head, *tables = (block[:-1] for block in blocks)
    content = _text([[line for line in head[:-1] if not line.startswith("digest = ")], *tables])
    return None if f'digest = "{_hex(content)}"' in head else Flaw(1, "", "", True)


def _with_seal(lines: Sequence[str]) -> list[str]:
    return [*lines, f'seal = "{_hex(_text([lines]))[:SEAL_DIGITS]}"']


def _text(blocks: Sequence[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"


def _hex(text: str) -> str:
    # A lone surrogate cannot come from a file read as UTF-8, but may come from a resolver's message.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
