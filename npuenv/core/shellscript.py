"""Shell text as commands with their offsets: variables and arrays as far as the text decides them, branches.

Nothing is run. Functions, loops and `case` are read, but what stands in them counts as undecided.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npuenv.core.shellwords import ARCH, ARCHES, LONGEST, UNKNOWN, Token, expand, with_arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence

    from npuenv.core.shellwords import LineMap

Blocks = tuple[tuple[int, int], ...]  # (offset of a block, number of its branch) from the outside in
_REDIRECTIONS = ("<<<", ">>", ">&", "&>", "<(", ">", "<")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_MORE = re.compile(r"([A-Za-z_]\w*)\+=(.*)", re.DOTALL)
_ARCH_NAMES = {"aarch64": "aarch64", "arm64": "aarch64", "x86_64": "x86_64", "amd64": "x86_64"}
_TESTS = ("[", "[[", "test")
_ASKING = ("grep", "command", "which", "type", "!")


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
                self.arch = self.test if isinstance(self.test, str) else self.arch
                self.certain = self.certain and self.test is not None
                self.dead = self.dead or self.test is False
        self.is_test = False


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
