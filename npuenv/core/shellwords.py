"""Shell text as words and operators with their lines and offsets; the text of a word with its variables filled in.

Nothing is run: what the text does not decide is UNKNOWN.
"""

from __future__ import annotations

import ast
import bisect
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ARCHES = ("aarch64", "x86_64")
UNKNOWN = "\x01"  # stands in a word for what the text does not decide
ARCH = "\x02"  # stands in a word for the architecture, such as the output of `uname -m`
# Linux passes no longer word to a program. A longer text counts as undecided: forty lines can double one forty times.
LONGEST = 131_072
_OPERATORS = ("&&", "||", ";;", "<<<", "<<-", "<<", ">>", ">&", "&>", "<(", ";", "|", "&", "(", ")", ">", "<", "\n")
_OPERATOR = re.compile("|".join(map(re.escape, _OPERATORS)))
_PLAIN = re.compile(r"[^\\'`\"$ \t\r\n;&|<>()]+")  # what neither ends a word nor holds one together
_SPECIAL = re.compile(r"['\"\\$`~]")  # a word with none of these stands for itself
_ORDINARY = re.compile(r"[^'\"\\$`~]+")
_ARRAY = re.compile(r"([A-Za-z_]\w*)\+?=")
_NAME = re.compile(r"\$([A-Za-z_]\w*)")
_PARAMETER = re.compile(r"([A-Za-z_]\w*|[1-9])(?::?-(.*))?", re.DOTALL)
_BEFORE_HOME = re.compile(r"(?:[A-Za-z_]\w*=)?")  # what may stand before a ~ that the shell replaces
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_DEEPEST = 40  # defaults inside of defaults
_ARITHMETIC: dict[type[ast.operator | ast.unaryop], Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_LARGEST = 10**15  # beyond this nobody means a number of tokens, and nothing has to be computed
_ARCH_COMMAND = re.compile(r"\$\(\s*(?:uname -[mi]|arch|dpkg --print-architecture)\s*\)|`\s*uname -[mi]\s*`")


@dataclass(frozen=True, slots=True)
class LineMap:
    """Text with the line each part of it came from: `starts[i]` is the offset where line `lines[i]` begins."""

    text: str
    starts: tuple[int, ...]
    lines: tuple[int, ...]

    def line_of(self, offset: int) -> int:
        return self.lines[max(bisect.bisect_right(self.starts, offset) - 1, 0)]


def source_of(text: str) -> LineMap:
    """A whole file."""
    starts = [0, *(found.end() for found in re.finditer("\n", text))]
    return LineMap(text, tuple(starts), tuple(range(1, len(starts) + 1)))


@dataclass(frozen=True, slots=True)
class Token:
    """A word, its quotes kept, or an operator."""

    text: str
    line: int
    is_word: bool
    start: int = 0  # offsets in the text
    end: int = 0
    array: str = ""  # the name, where it is NAME=(...) or NAME+=(...)
    items: tuple[Token, ...] = ()  # of that array

    @property
    def is_more(self) -> bool:
        """Whether the items go behind those that the array has."""
        return self.text.startswith(f"{self.array}+")


def tokens(source: LineMap) -> Iterator[Token]:
    """The words and operators of a text. Here-documents and comments are left out."""
    text, at, bodies = source.text, 0, list[str]()
    while at < len(text):
        char = text[at]
        if char in " \t\r":
            at += 1
        elif char == "\\" and text[at + 1 : at + 2] == "\n":
            at += 2
        elif char == "#":
            at = _until(text, "\n", at)
        elif found := _OPERATOR.match(text, at):
            start, sign, at = at, found[0], found.end()
            if sign in ("<<", "<<-"):
                while at < len(text) and text[at] in " \t":
                    at += 1
                end = _word_end(text, at)
                bodies.append(text[at:end].strip().strip("'\""))
                at = end
                continue
            if sign == "\n":
                at = _after_bodies(text, at, bodies)
            yield Token(sign, source.line_of(start), False, start, start + len(sign))
        else:
            end = _word_end(text, at)
            yield Token(text[at:end].replace("\\\n", ""), source.line_of(at), True, at, end)
            at = end


def with_arrays(source: LineMap) -> Iterator[Token]:
    """The tokens of a text, each `NAME=(...)` as one word."""
    found = list(tokens(source))
    at = 0
    while at < len(found):
        token = found[at]
        at += 1
        name = _ARRAY.fullmatch(token.text)
        if name is None or at == len(found) or (found[at].text, found[at].start) != ("(", token.end):
            yield token
            continue
        close = next((end for end in range(at, len(found)) if found[end].text == ")"), len(found))
        end = found[close].end if close < len(found) else len(source.text)
        items = tuple(each for each in found[at:close] if each.is_word)
        yield Token(source.text[token.start : end], token.line, True, token.start, end, name[1], items)
        at = close + 1


def open_quote(text: str) -> int:
    """The line of the word with a quote that nothing closes; 0 where there is none, or where a shell alone can tell."""
    last = next(reversed(list(tokens(source_of(text)))), None)  # an open quote runs to the end of the text
    if last is None or not last.is_word or any(mark in last.text for mark in ("$(", "`", "$'", "${", "<<")):
        return 0
    rest = re.sub(r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"", "", last.text, flags=re.DOTALL)
    return last.line if rest.strip() and re.search(r"['\"]", rest) else 0


def expand(word: str, env: Mapping[str, str]) -> str:
    """A word without its quotes, variables filled in. Example: `"v${X}"` with X = 1 gives v1; without X, v UNKNOWN.

    `${1:-x}` is decided only where `env` has "#", the number of the script's arguments.
    """
    return _expand(word, env) if _SPECIAL.search(word) else word


def _after_bodies(text: str, at: int, bodies: list[str]) -> int:
    """The offset behind the here-documents that begin at a line."""
    while bodies:
        delimiter = bodies.pop(0)
        while at < len(text):
            end = _until(text, "\n", at)
            line, at = text[at:end], end + 1
            if line.strip() == delimiter:
                break
    return min(at, len(text))


def _word_end(text: str, at: int) -> int:
    """The offset behind the word that begins here: quotes, `$(...)` and backquotes hold it together."""
    start = at
    while at < len(text):
        char = text[at]
        if plain := _PLAIN.match(text, at):
            at = plain.end()
        elif char == "\\":
            at += 2
        elif char in "'`":
            at = _until(text, char, at + 1) + 1
        elif char == '"':
            at = _quote_end(text, at + 1)
        elif text.startswith("$(", at):
            at = _bracket_end(text, at + 2)
        elif text.startswith("${", at):
            at = _brace_end(text, at + 2) or _until(text, "}", at) + 1
        elif char in " \t\r\n;&|<>()":
            break
        else:
            at += 1
    return min(max(at, start + 1), len(text))


def _quote_end(text: str, at: int) -> int:
    while at < len(text) and text[at] != '"':
        if text.startswith("$(", at):
            at = _bracket_end(text, at + 2)
        elif text.startswith("${", at):
            at = _brace_end(text, at + 2) or at + 2
        else:
            at += 2 if text[at] == "\\" else 1
    return at + 1


def _brace_end(text: str, at: int) -> int:
    """The offset behind the `}` that closes a `${`; 0 where none does nearby."""
    depth = 1
    for found in _BRACES.finditer(text, at, at + 2000):
        depth += (found[0] == "{") - (found[0] == "}")
        if depth == 0:
            return found.end()
    return 0


def _bracket_end(text: str, at: int) -> int:
    depth = 1
    while at < len(text) and depth:
        char = text[at]
        if char in "'`":
            at = _until(text, char, at + 1)
        elif char == "\\":
            at += 1
        depth += (char == "(") - (char == ")")
        at += 1
    return at


def _until(text: str, what: str, at: int) -> int:
    found = text.find(what, at)
    return len(text) if found < 0 else found


def _expand(text: str, env: Mapping[str, str], *, is_quoted: bool = False, depth: int = 0) -> str:
    parts, at, size = list[str](), 0, 0
    while at < len(text):
        char, start = text[at], at
        if plain := _ORDINARY.match(text, at):
            piece, at = plain[0], plain.end()
        elif char == '"':
            is_quoted, piece, at = not is_quoted, "", at + 1
        elif char == "'" and not is_quoted:
            at = _until(text, "'", at + 1) + 1
            piece = text[start + 1 : at - 1]
        elif char == "\\":
            at += 2
            piece = text[start if is_quoted and text[start + 1 : at] not in ('"', "$", "`", "\\") else start + 1 : at]
        elif char in "$`":
            piece, at = _substituted(text, at, env, is_quoted, depth)
        else:
            at += 1
            is_home = char == "~" and not is_quoted and text[at : at + 1] in ("", "/")
            is_home = is_home and _BEFORE_HOME.fullmatch(text, 0, start) is not None
            piece = env.get("HOME", UNKNOWN) if is_home else char
        parts.append(piece)
        size += len(piece)
        if size > LONGEST:
            return UNKNOWN
    return "".join(parts)


def _substituted(text: str, at: int, env: Mapping[str, str], is_quoted: bool, depth: int) -> tuple[str, int]:
    """What stands for the `$...` or the backquotes that begin here, and the offset behind them."""
    if text.startswith("$((", at):
        end = _bracket_end(text, at + 2)
        return (_number(text[at + 3 : end - 2], env) if text[end - 2 : end] == "))" else UNKNOWN), end
    if text[at] == "`" or text.startswith("$(", at):
        end = _bracket_end(text, at + 2) if text[at] == "$" else _until(text, "`", at + 1) + 1
        return (ARCH if _ARCH_COMMAND.fullmatch(text[at:end]) else UNKNOWN), end
    if text.startswith("${", at):
        end = _brace_end(text, at + 2) or _until(text, "}", at) + 1
        found = _PARAMETER.fullmatch(text[at + 2 : end - 1])
        return (_parameter(found, env, is_quoted, depth + 1) if found and depth < _DEEPEST else UNKNOWN), end
    if name := _NAME.match(text, at):
        return env.get(name[1], UNKNOWN), name.end()
    if text[at + 1 : at + 2] in tuple("0123456789@*#?!"):
        return UNKNOWN, at + 2
    return "$", at + 1


def _parameter(found: re.Match[str], env: Mapping[str, str], is_quoted: bool, depth: int) -> str:
    name, default = found.groups()
    if name.isdigit() and (default is None or "#" not in env):
        return UNKNOWN  # a function has arguments of its own
    if default is None:
        return env.get(name, UNKNOWN)
    return env.get(name, "") or _expand(default, env, is_quoted=is_quoted, depth=depth)


def _number(text: str, env: Mapping[str, str]) -> str:
    """A sum in whole numbers; UNKNOWN where it holds anything else."""
    try:
        return str(_computed(ast.parse(expand(text, env).strip().replace("/", "//"), mode="eval").body, env))
    except (SyntaxError, ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError, MemoryError):
        return UNKNOWN  # the text of a foreign script: whatever it is, it decides no number


def _computed(node: ast.expr, env: Mapping[str, str]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return int(env[node.id])
    if isinstance(node, ast.UnaryOp):
        return _ARITHMETIC[type(node.op)](_computed(node.operand, env))
    if not isinstance(node, ast.BinOp):
        raise ValueError(ast.dump(node))
    left, right = _computed(node.left, env), _computed(node.right, env)
    if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)  # as C does, towards zero
        return quotient if isinstance(node.op, ast.FloorDiv) else left - quotient * right
    value = _ARITHMETIC[type(node.op)](left, right)
    if abs(value) > _LARGEST:
        raise ValueError(value)
    return value
