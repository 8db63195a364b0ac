"""Shell text as commands with their lines: words, variables as far as the text decides them, and the branch.

Not a shell: functions, loops and `case` are read, but what stands in them counts as undecided.
Start from `Source` and `commands`.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping, Sequence

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
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|\{([A-Za-z_]\w*):?-([^}]*)\}|([A-Za-z_]\w*))")
# A home folder that the shell puts in: at the start of a word, of an assigned value, or of a default outside quotes.
_HOME = re.compile(r"(^|^[A-Za-z_]\w*=|\$\{[A-Za-z_]\w*:?-)~(?=[/}]|$)")
_ARCH_COMMAND = re.compile(r"\$\(\s*(?:uname -[mi]|arch|dpkg --print-architecture)\s*\)|`\s*uname -[mi]\s*`")
_ARCH_NAMES = {"aarch64": "aarch64", "arm64": "aarch64", "x86_64": "x86_64", "amd64": "x86_64"}
_TESTS = ("[", "[[", "test")
_ASKING = ("grep", "command", "which", "type", "!")


@dataclass(frozen=True, slots=True)
class Source:
    """Text with the line each part of it came from: `starts[i]` is the offset where line `lines[i]` begins."""

    text: str
    starts: tuple[int, ...]
    lines: tuple[int, ...]

    def line_of(self, offset: int) -> int:
        return self.lines[max(bisect.bisect_right(self.starts, offset) - 1, 0)]


def source_of(text: str) -> Source:
    """A whole file."""
    starts = [0, *(found.end() for found in re.finditer("\n", text))]
    return Source(text, tuple(starts), tuple(range(1, len(starts) + 1)))


@dataclass(frozen=True, slots=True)
class Token:
    """A word, its quotes kept, or an operator."""

    text: str
    line: int
    is_word: bool


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command with its variables filled in."""

    words: tuple[str, ...]
    env: Mapping[str, str]  # the variables in effect, those set in front of it included
    own: Mapping[str, str]  # those set in front of it
    line: int
    arch: str  # only on this architecture
    certain: bool  # False: in a branch that the text does not decide


@dataclass(slots=True)
class _Branch:
    """An `if` with what is known of the branch that is being read. `certain` False: undecided."""

    end: str
    arch: str = ""
    certain: bool = True
    dead: bool = False
    tests: list[str | bool | None] = field(default_factory=list)  # the outcome of each test so far in this condition
    arches: list[str] = field(default_factory=list)  # architectures that earlier branches took
    undecided: bool = False  # an earlier branch was
    taken: bool = False  # an earlier branch is always taken
    in_test: bool = True
    outside: tuple[bool, bool, str] = (False, True, "")  # dead, certain and arch of what it stands in

    @property
    def state(self) -> tuple[bool, bool, str]:
        """Dead, certain and arch, those around it included. A branch does not change while one inside it is read."""
        dead, certain, arch = self.outside
        return dead or self.dead, certain and self.certain, self.arch or arch


def expand(word: str, env: Mapping[str, str]) -> str:
    """A word without its quotes, variables filled in. Example: `"v${X}"` with X = 1 gives v1; without X, v UNKNOWN."""
    if not _SPECIAL.search(word):
        return word
    parts, size = list[str](), 0
    for piece in re.findall(r"'[^']*'?|\"(?:\\.|[^\"\\])*\"?|\\.|[^'\"\\]+|\\", _without_commands(word), re.DOTALL):
        if piece.startswith("'"):
            parts.append(piece.strip("'"))
        elif piece.startswith("\\"):
            parts.append(piece[1:])
        else:
            parts.append(_fill(piece.strip('"') if piece.startswith('"') else _HOME.sub(r"\1$HOME", piece), env))
        size += len(parts[-1])
        if size > LONGEST:
            return UNKNOWN
    return "".join(parts)


def _without_commands(word: str) -> str:
    """A word with ARCH or UNKNOWN for each `$(...)` and backquoted command outside single quotes."""
    if "$(" not in word and "`" not in word:
        return word
    parts, at, quoted = list[str](), 0, False
    while at < len(word):
        start = at
        quoted ^= word[at] == '"'
        if word.startswith("$(", at):
            at = _bracket_end(word, at + 2)
        elif word[at] == "`" or (word[at] == "'" and not quoted):
            at = _until(word, word[at], at + 1) + 1
        else:
            at += 2 if word[at] == "\\" else 1
        piece = word[start:at]
        is_command = piece.startswith(("$(", "`"))
        parts.append((ARCH if _ARCH_COMMAND.fullmatch(piece) else UNKNOWN) if is_command else piece)
    return "".join(parts)


def _fill(text: str, env: Mapping[str, str]) -> str:
    parts, at, size = list[str](), 0, 0
    for found in _VARIABLE.finditer(text):
        parts += (text[at : found.start()], _value(found, env))
        at, size = found.end(), size + len(parts[-1])
        if size > LONGEST:
            return UNKNOWN
    text = "".join((*parts, text[at:]))
    return re.sub(r"\$\{[^}]*\}?|\$[0-9@*#?!]", UNKNOWN, text)


def _value(found: re.Match[str], env: Mapping[str, str]) -> str:
    name = found[1] or found[2] or found[4]
    if found[3] is not None:
        value = env.get(name, "")
        return value or _fill(found[3], env)
    return env.get(name, UNKNOWN)


def tokens(source: Source) -> Iterator[Token]:
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
            operator = found[0]
            line, at = source.line_of(at), at + len(operator)
            if operator in ("<<", "<<-"):
                while at < len(text) and text[at] in " \t":
                    at += 1
                end = _word_end(text, at)
                bodies.append(text[at:end].strip().strip("'\""))
                at = end
                continue
            if operator == "\n":
                at = _after_bodies(text, at, bodies)
            yield Token(operator, line, False)
        else:
            end = _word_end(text, at)
            yield Token(text[at:end].replace("\\\n", ""), source.line_of(at), True)
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
            at = _until(text, "}", at) + 1
        elif char in " \t\r\n;&|<>()":
            break
        else:
            at += 1
    return min(max(at, start + 1), len(text))


def _quote_end(text: str, at: int) -> int:
    while at < len(text) and text[at] != '"':
        at = _bracket_end(text, at + 2) if text.startswith("$(", at) else at + (2 if text[at] == "\\" else 1)
    return at + 1


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


def commands(source: Source, env: MutableMapping[str, str]) -> Iterator[Command]:
    """The commands of a text in order. `env` is filled with what the text sets and exports."""
    branches: list[_Branch] = []
    words: list[Token] = []
    chain = _Chain()
    skip = False
    for token in (*tokens(source), Token("\n", source.lines[-1] if source.lines else 1, False)):
        if token.is_word:
            if not skip:
                words.append(token)
            skip = False
            continue
        if token.text in _REDIRECTIONS:
            skip = True
            continue
        skip = False
        if token.text == "(" and len(words) == 1:
            _open(branches, _Branch("}", certain=False, in_test=False))
        yield from _simple(words, env, branches, chain)
        words = []
        chain.after(token.text)


@dataclass(slots=True)
class _Chain:
    """Commands joined by `&&` and `||`: what the ones before say about the next."""

    arch: str = ""
    certain: bool = True
    dead: bool = False
    test: str | bool | None = True
    is_test: bool = False

    def after(self, operator: str) -> None:
        if operator in (";", "\n", ";;", "&", "(", ")"):
            self.arch, self.certain, self.dead = "", True, False
        elif operator == "||":
            self.certain = False
        elif self.is_test and operator == "&&":
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
    while rest and _keyword(rest[0].text, branches):
        rest.pop(0)
    if not rest:
        return
    own: dict[str, str] = {}
    while rest and _ASSIGNMENT.match(rest[0].text):
        name, _, value = rest.pop(0).text.partition("=")
        own[name] = expand(value, {**env, **own})
    words = tuple(expand(each.text, env) for each in rest)
    dead, certain, arch = branches[-1].state if branches else (False, True, "")
    dead, certain, arch = dead or chain.dead, certain and chain.certain, chain.arch or arch
    if not words or words[0] in ("export", "declare", "local", "readonly"):
        own |= dict(each.split("=", 1) for each in words[1:] if _ASSIGNMENT.match(each))
        if not dead:
            env.update(own if certain else dict.fromkeys(own, UNKNOWN))
    testing = bool(words) and words[0] in (*_TESTS, *_ASKING)
    if testing:
        chain.is_test, chain.test = True, _outcome(words)
    if branches and branches[-1].in_test and branches[-1].end == "fi":
        branches[-1].tests.append(_outcome(words) if testing else None)
        return
    if not dead:
        in_env = not own or (certain and (not words or words[0] == "export"))
        yield Command(words, env if in_env else {**env, **own}, own, tokens[0].line, arch, certain)


def _keyword(word: str, branches: list[_Branch]) -> bool:
    """Takes note of a word of the shell's grammar. False where it is an ordinary one."""
    top = branches[-1] if branches else None
    if word == "if":
        _open(branches, _Branch("fi"))
    elif word in ("for", "while", "until", "select"):
        _open(branches, _Branch("done", certain=False, in_test=False))
    elif word == "case":
        _open(branches, _Branch("esac", certain=False, in_test=False))
    elif word in ("fi", "done", "esac", "}") and top and top.end == word:
        branches.pop()
    elif word == "then" and top and top.end == "fi":
        _enter(top)
    elif word in ("elif", "else") and top and top.end == "fi":
        _leave(top)
        if word == "else":
            top.tests = [True]
            _enter(top)
    elif word not in ("do", "{", "}", "fi", "done", "esac", "time", "in"):
        return False
    return True


def _open(branches: list[_Branch], branch: _Branch) -> None:
    branch.outside = branches[-1].state if branches else branch.outside
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
