"""Where the commands of a shell text stand: offsets of tokens, the blocks around a word, arrays, open quotes.

Nothing is run. Start from `placed`, `blocks_of`, `take_arrays` and `open_quote`.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.shellscript import source_of, tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.core.shellscript import Token

Placed = tuple["Token", int, int]  # a token with its offsets
Blocks = tuple[tuple[int, int], ...]  # (offset of a block, number of its branch) from the outside in
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_ENDS = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "{": "}"}
_PLACEHOLDERS = range(0xE000, 0xF8FF)  # the private use area of Unicode: no script has a word of these signs


def placed(text: str) -> Iterator[Placed]:
    """The tokens of a text with their offsets. A comment never matches: it stands behind its line's last token."""
    source, at = source_of(text), 0
    for token in tokens(source):
        lowest = max(at, source.starts[token.line - 1])
        start = text.find(token.text, lowest)
        at = start + len(token.text)
        if start < 0 or "\n" in text[lowest:start]:
            start, at = _continued(text, token, lowest)
        yield token, start, at


def _continued(text: str, token: Token, lowest: int) -> tuple[int, int]:
    """The place of a word that goes on behind a line continuation, not before `lowest`."""
    pattern = r"(?:\\\n)*".join(map(re.escape, token.text))
    found = re.compile(pattern).search(text, lowest)
    assert found is not None, token  # the token was cut out of this very text
    return found.start(), found.end()


def blocks_of(text: str) -> dict[int, Blocks]:
    """The blocks around each word of a text, by the word's offset: functions, branches, loops.

    What stands behind `&&` or `||` is in a block of its own: whether it runs depends on what stands before it.
    """
    found: dict[int, Blocks] = {}
    around: list[tuple[str, int, int]] = []  # the word that ends it, its offset, the branch
    chain: Blocks = ()
    words: list[str] = []  # of the command so far, keywords in front left out
    for token, start, _ in placed(text):
        if not token.is_word:
            if token.text in ("&&", "||"):
                chain = (*(chain if token.text == "&&" else ()), (start, 0))
            elif token.text not in ("|", "(", "<", ">"):
                chain = ()
            if token.text == ";;" and around:
                around[-1] = _next_branch(around[-1])
            words = []
            continue
        if not words and _is_keyword(token.text, start, around):
            continue
        if token.text == "{" and words[:1] == ["function"]:
            around.append(("}", start, 0))
            words = []
            continue
        words.append(token.text)
        found[start] = (*((offset, branch) for _, offset, branch in around), *chain)
    return found


def _is_keyword(word: str, start: int, around: list[tuple[str, int, int]]) -> bool:
    """Takes note of a word that opens or ends a block. True where a command may still follow it."""
    if around and word == around[-1][0]:
        around.pop()
    elif word in ("elif", "else") and around:
        around[-1] = _next_branch(around[-1])
    elif word in _ENDS:
        around.append((_ENDS[word], start, 0))
        return word not in ("for", "select", "case")
    return word in ("then", "do", "elif", "else", "!", "time") or word in _ENDS.values()


def _next_branch(block: tuple[str, int, int]) -> tuple[str, int, int]:
    return (block[0], block[1], block[2] + 1)


def holds(outer: Blocks, inner: Blocks) -> bool | None:
    """Whether what stands in `outer` has run where `inner` runs: yes, no (another branch), or not decided (None)."""
    for one, other in zip(outer, inner):
        if one != other:
            return False if one[0] == other[0] else None
    return True if len(outer) <= len(inner) else None


@dataclass(frozen=True, slots=True)
class Array:
    """What is put into an array in one place: `NAME=(...)` or `NAME+=(...)`."""

    name: str
    items: tuple[Placed, ...]
    is_more: bool  # +=


def take_arrays(text: str) -> tuple[dict[int, Array], str]:
    """The arrays of a script by the offset where each is written, and the text with one word in place of each.

    The shell reader takes `NAME=(` for a function; a word is a command to it, with the branch that it stands in.
    """
    arrays: dict[int, Array] = {}
    blanked = text
    source = list(placed(text))
    at = 0
    while at < len(source):
        found = _ARRAY.fullmatch(source[at][0].text)
        opened = found and at + 1 < len(source) and source[at + 1][0].text == "("
        if not (found and opened and source[at + 1][1] == source[at][2]):
            at += 1
            continue
        first = source[at][1]
        at += 2
        items = []
        while at < len(source) and source[at][0].text != ")":
            if source[at][0].is_word:
                items.append(source[at])
            at += 1
        end = source[at][2] if at < len(source) else len(text)
        word = chr(_PLACEHOLDERS[len(arrays) % len(_PLACEHOLDERS)])
        arrays[first] = Array(found[1], tuple(items), bool(found[2]))
        blanked = blanked[:first] + word + re.sub(r"[^\n]", " ", blanked[first + 1 : end]) + blanked[end:]
    return arrays, blanked


def open_quote(text: str) -> int:
    """The line of the word with a quote that nothing closes; 0 where there is none, or where a shell alone can tell."""
    last = deque(tokens(source_of(text)), maxlen=1)  # an open quote runs to the end of the text
    return _line_if_open(last[0]) if last else 0


def _line_if_open(last: Token) -> int:
    if not last.is_word or any(mark in last.text for mark in ("$(", "`", "$'", "${", "<<")):
        return 0
    rest = re.sub(r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"", "", last.text, flags=re.DOTALL)
    return last.line if rest.strip() and re.search(r"['\"]", rest) else 0
