"""A text of tables of which each carries a seal, so that an edit can be seen and its table named.

A block is the head of the file or one `[[table]]` with its lines, without blank lines at the end. Its last line is
`seal = "..."` over the lines before it; the head also holds a digest over the whole file, because a table that was
taken away or moved leaves all other seals whole. This guards against slips (a hand edit, a bad merge, a damaged disk),
not against somebody who wants to deceive.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SEAL_DIGITS = 8  # one slip in four thousand million goes unseen by a seal, and none by the digest
_SEAL = "seal"
_DIGEST = "digest"


@dataclass(frozen=True, slots=True)
class Block:
    """One table as it stands in the file."""

    line: int  # of its first line, from 1
    kind: str  # "package"; "" for the head
    name: str  # the value of its `name` or `requirement`; "" where there is none
    lines: tuple[str, ...]  # with the seal, without the empty line that ends the block
    is_ended: bool  # the empty line is there


def join_blocks(head: Sequence[str], tables: Sequence[Sequence[str]]) -> str:
    """The text of a file, with a seal at the end of each block and the digest in the head."""
    sealed = [_with_seal(lines) for lines in tables]
    told = _text([list(head), *sealed])
    return _text([_with_seal([*head, f'{_DIGEST} = "{_hex(told)}"']), *sealed])


def split_blocks(text: str) -> tuple[Block, ...]:
    """The blocks of a text, the head first."""
    lines = text.split("\n")
    starts = [0, *(number for number, line in enumerate(lines) if number and line.lstrip().startswith("[["))]
    return tuple(_block(start, lines[start:end]) for start, end in zip(starts, [*starts[1:], len(lines)], strict=True))


def first_flaw(blocks: Sequence[Block]) -> Block | None:
    """The first block that is not as it was sealed; the head where only the file as a whole is not."""
    for block in blocks:
        if not is_sealed(block):
            return block
    head, *tables = blocks
    body = [line for line in head.lines[:-1] if not line.startswith(f"{_DIGEST} = ")]
    whole = _text([body, *(list(block.lines) for block in tables)])
    return None if f'{_DIGEST} = "{_hex(whole)}"' in head.lines else head


def is_sealed(block: Block) -> bool:
    """True when the block is as it was written, whatever became of the others."""
    return block.is_ended and list(block.lines) == _with_seal(block.lines[:-1])


def _with_seal(lines: Sequence[str]) -> list[str]:
    return [*lines, f'{_SEAL} = "{_hex(_text([lines]))[:SEAL_DIGITS]}"']


def _text(blocks: Sequence[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"


def _hex(text: str) -> str:
    # A lone surrogate cannot come out of a file that was read as UTF-8, but may come out of a resolver's words.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _block(start: int, lines: Sequence[str]) -> Block:
    kind = re.match(r"\s*\[\[(.*?)\]\]", lines[0])
    named = next((match for line in lines if (match := re.match(r'(?:name|requirement) = "(.*)"$', line))), None)
    is_ended = lines[-1] == ""
    return Block(
        line=start + 1,
        kind=kind[1] if kind else "",
        name=named[1] if named else "",
        lines=tuple(lines[:-1] if is_ended else lines),
        is_ended=is_ended,
    )
