"""A text of tables that each carry a seal, so that an edit can be detected and its table named.

A block is the head of the file or one `[[table]]` with its lines, without blank lines at the end. Its last line is
`seal = "..."` over the lines before it. The head also holds a digest of the complete file, because removing or moving a
table leaves all other seals valid. This guards against accidents (a hand edit, a bad merge, a damaged disk), not
against forgery.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SEAL_DIGITS = 8  # one accidental change in four thousand million passes a seal, and none the digest
_SEAL = "seal"
_DIGEST = "digest"


@dataclass(frozen=True, slots=True)
class Block:
    """One table of the file."""

    line: int  # of its first line, from 1
    kind: str  # "package"; "" for the head
    name: str  # the value of its `name` or `requirement`; "" if there is none
    lines: tuple[str, ...]  # with the seal, without the empty line that ends the block
    is_ended: bool  # whether the empty line after it is there


def join_blocks(head: Sequence[str], tables: Sequence[Sequence[str]]) -> str:
    """The text of a file, with a seal at the end of each block and the digest in the head."""
    sealed = [_with_seal(lines) for lines in tables]
    unsigned = _text([list(head), *sealed])
    return _text([_with_seal([*head, f'{_DIGEST} = "{_hex(unsigned)}"']), *sealed])


def split_blocks(text: str) -> tuple[Block, ...]:
    """The blocks of a text, the head first."""
    lines = text.split("\n")
    starts = [0, *(number for number, line in enumerate(lines) if number and line.lstrip().startswith("[["))]
    return tuple(_block(start, lines[start:end]) for start, end in zip(starts, [*starts[1:], len(lines)], strict=True))


def first_flaw(blocks: Sequence[Block]) -> Block | None:
    """The first block whose seal does not match; the head if only the file's digest does not match."""
    for block in blocks:
        if not is_sealed(block):
            return block
    head, *tables = blocks
    body = [line for line in head.lines[:-1] if not line.startswith(f"{_DIGEST} = ")]
    content = _text([body, *(list(block.lines) for block in tables)])
    return None if f'{_DIGEST} = "{_hex(content)}"' in head.lines else head


def is_sealed(block: Block) -> bool:
    """Whether the block's own seal matches."""
    return block.is_ended and list(block.lines) == _with_seal(block.lines[:-1])


def _with_seal(lines: Sequence[str]) -> list[str]:
    return [*lines, f'{_SEAL} = "{_hex(_text([lines]))[:SEAL_DIGITS]}"']


def _text(blocks: Sequence[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(lines) for lines in blocks) + "\n"


def _hex(text: str) -> str:
    # A lone surrogate cannot come from a file read as UTF-8, but may come from a resolver's message.
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
