"""Shell text as commands with their offsets: words, variables and arrays as far as the text decides them, branches.

Nothing is run. Functions, loops and `case` are read, but what stands in them counts as undecided.
"""

from __future__ import annotations

import ast
import bisect
import operator
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence

Blocks = tuple[tuple[int, int], ...]  # (offset of a block, number of its branch) from the outside in

ARCHES = ("aarch64", "x86_64")
UNKNOWN = "\x01"  # stands in a word for what the text does not decide
ARCH = "\x02"  # stands in a word for the architecture, such as the output of `uname -m`
# Linux passes no longer word to a program. A longer text counts as undecided: forty lines can double one forty times.
LONGEST = 131_072
_OPERATORS = ("&&", "||", ";;", "<<<", "<<-", "<<", ">>", ">&", "&>", "<(", ";", "|", "&", "(", ")", ">", "<", "\n")
_OPERATOR = re.compile("|".join(map(re.escape, _OPERATORS)))
_REDIRECTIONS = ("<<<", ">>", ">&", "&>", "<(", ">", "<")
_PLAIN = re.compile(r"[^\\'`\"$ \t\r\n;&|<>()]+")  # what neither ends a word nor holds one together
_SPECIAL = re.compile(r"['\"\\$`~]")  # a word with none of these stands for itself
_ORDINARY = re.compile(r"[^'\"\\$`~]+")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_MORE = re.compile(r"([A-Za-z_]\w*)\+=(.*)", re.DOTALL)
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
_ARCH_NAMES = {"aarch64": "aarch64", "arm64": "aarch64", "x86_64": "x86_64", "amd64": "x86_64"}
_TESTS = ("[", "[[", "test")
_ASKING = ("grep", "command", "which", "type", "!")


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


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command with its variables filled in."""

    words: tuple[str, ...]
    env: Mapping[str, str]  # the variables in effect, those set in front of it included
    own: Mapping[str, str]  # those set in front of it
    line: int
    arch: str  # only on this architecture
    certain: bool  # False: in a branch that the text does not decide
    tokens: tuple[Token, ...]  # all its words as written, keywords and variables in front of it included
    blocks: Blocks  # the functions, branches and loops around it; `&&` and `||` open one too


def holds(outer: Blocks, inner: Blocks) -> bool | None:
    """Whether what stands in `outer` has run where `inner` runs: yes, no (another branch), or not decided (None)."""
    for one, other in zip(outer, inner):
        if one != other:
            return False if one[0] == other[0] else None
    return True if len(outer) <= len(inner) else None


@dataclass(slots=True)
class _Branch:
    """A block with what is known of the branch that is being read. `certain` False: undecided."""

    end: str
    start: int
    arch: str = ""
    certain: bool = True
    dead: bool = False
    tests: list[str | bool | None] = field(default_factory=list)  # the outcome of each test so far in this condition
    arches: list[str] = field(default_factory=list)  # architectures that earlier branches took
    undecided: bool = False  # an earlier branch was
    taken: bool = False  # an earlier branch is always taken
    in_test: bool = False
    number: int = 0  # of the branch
    is_function: bool = False  # its opening brace is still to come
    outside: tuple[bool, bool, str] = (False, True, "")  # dead, certain and arch of what it stands in

    @property
    def state(self) -> tuple[bool, bool, str]:
        """Dead, certain and arch, those around it included. A branch does not change while one inside it is read."""
        dead, certain, arch = self.outside
        return dead or self.dead, certain and self.certain, self.arch or arch


def expand(word: str, env: Mapping[str, str]) -> str:
    """A word without its quotes, variables filled in. Example: `"v${X}"` with X = 1 gives v1; without X, v UNKNOWN.

    `${1:-x}` is decided only where `env` has "#", the number of the script's arguments.
    """
    return _expand(word, env) if _SPECIAL.search(word) else word


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


def _until(text: str, what: str, at: int) -> int:
    found = text.find(what, at)
    return len(text) if found < 0 else found


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


def commands(source: LineMap, env: MutableMapping[str, str]) -> Iterator[Command]:
    """The commands of a text in order. `env` is filled with what the text sets and exports."""
    branches: list[_Branch] = []
    words: list[Token] = []
    chain = _Chain()
    is_target = False  # of a redirection
    end = Token("\n", source.lines[-1] if source.lines else 1, False)
    found = [*with_arrays(source), end]
    for token, following in zip(found, [*found[1:], end]):
        if token.is_word:
            if token.text == "{" and len(words) == 2 and words[0].text == "function":
                _open(branches, _Branch("}", token.start))
                words = []
            elif not is_target:
                words.append(token)
            is_target = False
            continue
        is_target = token.text in _REDIRECTIONS
        if is_target:
            continue
        if token.text == "(" and following.text == ")" and len(words) == 1:
            _open(branches, _Branch("}", token.start, certain=False, is_function=True))
        else:
            yield from _simple(words, env, branches, chain)
        if token.text == ";;" and branches:
            branches[-1].number += 1
        words = []
        chain.after(token)


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


@dataclass(slots=True)
class _Chain:
    """Commands joined by `&&` and `||`: what the ones before say about the next."""

    arch: str = ""
    certain: bool = True
    dead: bool = False
    test: str | bool | None = True
    is_test: bool = False
    blocks: Blocks = ()

    def after(self, token: Token) -> None:
        sign = token.text
        if sign in (";", "\n", ";;", "&", "(", ")"):
            self.arch, self.certain, self.dead = "", True, False
            self.blocks = self.blocks if sign == "(" else ()
        elif sign == "||":
            self.certain = False
            self.blocks = ((token.start, 0),)
        elif sign == "&&":
            self.blocks = (*self.blocks, (token.start, 0))
            if self.is_test:
                self._narrow()
        self.is_test = False

    def _narrow(self) -> None:
        if isinstance(self.test, str):
            self.arch = self.test
        self.certain = self.certain and self.test is not None
        self.dead = self.dead or self.test is False


def _simple(
    tokens: Sequence[Token], env: MutableMapping[str, str], branches: list[_Branch], chain: _Chain
) -> Iterator[Command]:
    """The command that some words make, once keywords in front are dealt with."""
    rest = list(tokens)
    while rest and _keyword(rest[0], branches):
        rest.pop(0)
    if not rest:
        return
    dead, certain, arch = branches[-1].state if branches else (False, True, "")
    dead, certain, arch = dead or chain.dead, certain and chain.certain, chain.arch or arch
    own: dict[str, str] = {}
    while rest and not rest[0].array and _ASSIGNMENT.match(rest[0].text):
        name, _, value = rest.pop(0).text.partition("=")
        own[name] = expand(value, {**env, **own})
    words = tuple(UNKNOWN if each.array else expand(each.text, env) for each in rest)
    if words and all(map(_MORE.fullmatch, words)):
        if not dead:
            _append(words, env, certain)
        words = ()
    elif not words or words[0] in ("export", "declare", "local", "readonly"):
        own |= dict(each.split("=", 1) for each in words[1:] if _ASSIGNMENT.match(each))
        if not dead:
            env.update(own if certain else dict.fromkeys(own, UNKNOWN))
    testing = bool(words) and words[0] in (*_TESTS, *_ASKING)
    if testing:
        chain.is_test, chain.test = True, _outcome(words)
    if branches and branches[-1].in_test:
        branches[-1].tests.append(_outcome(words) if testing else None)
        return
    if not dead:
        in_env = not own or (certain and (not words or words[0] == "export"))
        around = (*((each.start, each.number) for each in branches), *chain.blocks)
        seen = env if in_env else {**env, **own}
        yield Command(words, seen, own, tokens[0].line, arch, certain, tuple(tokens), around)


def _append(words: Iterable[str], env: MutableMapping[str, str], certain: bool) -> None:
    """What `NAME+=text` does to the variables."""
    for found in filter(None, map(_MORE.fullmatch, words)):
        value = env.get(found[1], UNKNOWN) + (found[2] if certain else f" {UNKNOWN}")
        env[found[1]] = value if len(value) <= LONGEST else UNKNOWN


def _keyword(token: Token, branches: list[_Branch]) -> bool:
    """Takes note of a word of the shell's grammar. False where it is an ordinary one."""
    word, top = token.text, branches[-1] if branches else None
    if word == "if":
        _open(branches, _Branch("fi", token.start, in_test=True))
    elif word in ("for", "while", "until", "select", "case"):
        _open(branches, _Branch("esac" if word == "case" else "done", token.start, certain=False))
    elif word == "{" and not (top and top.is_function):
        _open(branches, _Branch("}", token.start))
    elif word == "{" and top:
        top.is_function = False
    elif top and top.end == word:
        branches.pop()
    elif word == "then" and top and top.end == "fi":
        _enter(top)
    elif word in ("elif", "else") and top and top.end == "fi":
        _leave(top)
        if word == "else":
            top.tests = [True]
            _enter(top)
    elif word not in ("do", "}", "fi", "done", "esac", "time", "in"):
        return False
    return True


def _open(branches: list[_Branch], branch: _Branch) -> None:
    if branches:
        branch.outside = branches[-1].state
        if branches[-1].in_test:
            branches[-1].tests.append(None)
    branches.append(branch)


def _enter(branch: _Branch) -> None:
    """From the condition into what it guards."""
    branch.in_test = False
    tests = branch.tests
    arches = [each for each in tests if isinstance(each, str)]
    branch.dead = branch.taken or False in tests
    branch.certain = None not in tests and not branch.undecided
    left = [each for each in ARCHES if each not in branch.arches]
    branch.arch = arches[0] if arches else (left[0] if branch.arches and len(left) == 1 else "")
    branch.dead = branch.dead or (bool(branch.arches) and not left) or branch.arch in branch.arches


def _leave(branch: _Branch) -> None:
    """To the next condition of the same `if`."""
    if not branch.dead:
        if not branch.certain:
            branch.undecided = True
        elif branch.arch:
            branch.arches.append(branch.arch)
        else:
            branch.taken = True
    branch.tests, branch.in_test, branch.dead, branch.certain, branch.arch = [], True, False, True, ""
    branch.number += 1


def _outcome(words: tuple[str, ...]) -> str | bool | None:
    """What a test says: True, False, the architecture it asks for, or None where the text does not decide it."""
    if words[0] not in _TESTS:
        return None
    inner = [each for each in words[1:] if each not in ("]", "]]")]
    if len(inner) == 2 and inner[0] in ("-n", "-z") and UNKNOWN not in inner[1]:
        return (inner[1] == "") == (inner[0] == "-z")
    if len(inner) != 3 or inner[1] not in ("=", "==", "!=") or UNKNOWN in inner[0] + inner[2]:
        return None
    one, sign, other = inner
    if ARCH in one + other:
        arch = _ARCH_NAMES.get(other if one == ARCH else one)
        if arch is None or ARCH not in (one, other):
            return None
        return arch if sign != "!=" else next(each for each in ARCHES if each != arch)
    return (one == other) == (sign != "!=")


def open_quote(text: str) -> int:
    """The line of the word with a quote that nothing closes; 0 where there is none, or where a shell alone can tell."""
    last = next(reversed(list(tokens(source_of(text)))), None)  # an open quote runs to the end of the text
    if last is None or not last.is_word or any(mark in last.text for mark in ("$(", "`", "$'", "${", "<<")):
        return 0
    rest = re.sub(r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"", "", last.text, flags=re.DOTALL)
    return last.line if rest.strip() and re.search(r"['\"]", rest) else 0
