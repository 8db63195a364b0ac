"""A shell script as the launch that it holds: its words, the variables it exports, and where each stands exactly.

Nothing is run. What the text does not decide stays UNKNOWN in a word. Start from `survey`.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.lint.shell import UNKNOWN, expand, source_of, tokens
from npuenv.lint.shell import commands as shell_commands
from npuenv.preflight.calls import find_call, shell_text, unjudged
from npuenv.preflight.formulas import Variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npuenv.lint.shell import Command, Token
    from npuenv.preflight.calls import Call

Group = list["tuple[Token, int, int]"]  # the words of a command with their offsets
_REDIRECTIONS = ("<<<", ">>", ">&", "&>", "<(", ">", "<")
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_SPREAD = re.compile(r"\"?\$\{([A-Za-z_]\w*)\[[@*]\]\}\"?")
_BARE = re.compile(r"\$(?:\{[A-Za-z_]\w*(?::?-[^}]*)?\}|[A-Za-z_]\w*)")
_ALL_WORDS = ('"$@"', "$@", "$*", '"$*"', '"${@}"', '"${@:1}"', "${@}", "${*}")


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the text."""

    raw: str  # as it stands there, line continuations taken out
    value: str  # variables filled in, quotes removed
    line: int
    start: int
    end: int
    is_filled: bool = False  # it comes out of a variable or the script's arguments: there is no text to exchange


@dataclass(frozen=True, slots=True)
class Export:
    """A variable that reaches the launch. `word` is the text NAME=VALUE."""

    name: str
    word: Word
    siblings: int  # words of the command it stands in, itself included; 0: in front of the launch itself


@dataclass(frozen=True, slots=True)
class Script:
    """A script with one of its launches."""

    text: str
    words: tuple[Word, ...]  # of the launch: arrays spread out, the script's own arguments put in
    call: Call
    written: tuple[Word, ...]  # the same command as it stands in the text; empty: it stands in a text for another shell
    exports: tuple[Export, ...]
    start: int  # of the command in the text


@dataclass(frozen=True, slots=True)
class Survey:
    """What a script starts, in the order of its text."""

    launches: tuple[Script, ...]
    unjudged: tuple[tuple[int, str], ...]  # line and program of what trains in a way that no rule is about
    gpus: tuple[Word, ...]  # words of `ray start` that register GPUs
    installs: tuple[Word, ...]  # what `pip install` is told to install


def survey(text: str, arguments: Sequence[str], env: Mapping[str, str]) -> Survey:
    """All launches of verl and ROLL in a script, those in texts for another shell (`bash -c "..."`) included.

    `arguments` are what the script is called with; `env` holds variables that are known from outside.
    """
    places = {str(at): word for at, word in enumerate(arguments, 1)}
    known = Variables({**{name: value for name, value in env.items() if not name.isdigit()}, **places})
    arrays, rest = _arrays(known.take(text))
    groups: dict[int, list[Group]] = {}
    for each in _groups(rest):
        groups.setdefault(each[0][0].line, []).append(each)
    exports: dict[str, Export] = {}
    launches: list[Script] = []
    others: list[tuple[int, str]] = []
    gpus: list[Word] = []
    installs: list[Word] = []
    for command in shell_commands(source_of(rest), known):
        group = _group_of(command, groups.get(command.line, ()))
        if group is None:
            continue
        words = _words(group, command, text)
        spread = tuple(_spread(words, command, arrays, text, arguments))
        gpus += _gpus(spread)
        installs += _installs(spread)
        values = tuple(word.value for word in spread)
        call, other = find_call(values), unjudged(values)
        reach = {name: _as_launched(each, known) for name, each in exports.items()}
        reach.update({each.name: each for each in _own(words)})
        if call is not None:
            launches.append(Script(text, spread, call, words, tuple(reach.values()), _start(words, text)))
        elif other is not None:
            others.append((command.line, other))
        elif (at := shell_text(values)) is not None:
            inner = survey(values[at], values[at + 2 :], known)
            launches += [_inside(each, spread[at], reach) for each in inner.launches]
            others += [(command.line + line - 1, name) for line, name in inner.unjudged]
            gpus += [_moved(word, spread[at]) for word in inner.gpus]
            installs += [_moved(word, spread[at]) for word in inner.installs]
        else:
            _take_exports(exports, command, words)
    return Survey(tuple(launches), tuple(others), tuple(gpus), tuple(installs))


def _inside(inner: Script, outer: Word, reach: Mapping[str, Export]) -> Script:
    """A launch of a text for another shell, in the script that holds the text: nothing in there can be exchanged."""
    own = {each.name: Export(each.name, _moved(each.word, outer), 2) for each in inner.exports}
    words = tuple(_moved(word, outer) for word in inner.words)
    return Script(inner.text, words, inner.call, (), tuple({**reach, **own}.values()), outer.start)


def _moved(word: Word, outer: Word) -> Word:
    return Word(word.raw, word.value, outer.line + word.line - 1, outer.start, outer.end, True)


def _gpus(words: Sequence[Word]) -> Iterator[Word]:
    """The words of a `ray start` that say how many GPUs there are; none is a number that does no harm."""
    values = [word.value for word in words]
    starts = next((at for at in range(1, len(values)) if values[at - 1 : at + 1] == ["ray", "start"]), None)
    for at in range(len(values)) if starts else ():
        name, sign, count = values[at].partition("=")
        if name == "--num-gpus" and (count if sign else "".join(values[at + 1 : at + 2])) != "0":
            yield words[at]


def _installs(words: Sequence[Word]) -> Iterator[Word]:
    """The words behind `pip install` that are no options."""
    values = [word.value for word in words]
    at = next((at for at in range(1, len(values)) if re.fullmatch(r"(?:.*/)?pip3?", values[at - 1])), 0)
    if at and values[at] == "install":
        yield from (word for word in words[at + 1 :] if not word.value.startswith("-"))


def open_quote(text: str) -> int:
    """The line of the word with a quote that nothing closes; 0 where there is none, or where a shell alone can tell."""
    last = deque(tokens(source_of(text)), maxlen=1)  # an open quote runs to the end of the text
    return _line_if_open(last[0]) if last else 0


def _line_if_open(last: Token) -> int:
    if not last.is_word or any(mark in last.text for mark in ("$(", "`", "$'", "${", "<<")):
        return 0
    rest = re.sub(r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"", "", last.text, flags=re.DOTALL)
    return last.line if rest.strip() and re.search(r"['\"]", rest) else 0


def _start(words: Sequence[Word], text: str) -> int:
    """The offset of the line where a command begins."""
    return text.rfind("\n", 0, words[0].start) + 1


def _arrays(text: str) -> tuple[dict[str, list[Word]], str]:
    """The arrays of a script, and its text with blanks in their place (the shell reader takes them for functions)."""
    arrays: dict[str, list[Word]] = {}
    placed = list(_placed(text))
    blanked = text
    at = 0
    while at < len(placed):
        found = _ARRAY.fullmatch(placed[at][0].text)
        opened = found and at + 1 < len(placed) and placed[at + 1][0].text == "("
        if not (found and opened and placed[at + 1][1] == placed[at][2]):
            at += 1
            continue
        first = placed[at][1]
        at += 2
        items: list[Word] = []
        while at < len(placed) and placed[at][0].text != ")":
            token, start, end = placed[at]
            if token.is_word:
                items.append(Word(token.text, "", token.line, start, end))
            at += 1
        end = placed[at][2] if at < len(placed) else len(text)
        arrays[found[1]] = [*arrays.get(found[1], []), *items] if found[2] else items
        blanked = blanked[:first] + re.sub(r"[^\n]", " ", blanked[first:end]) + blanked[end:]
    return arrays, blanked


def _placed(text: str) -> Iterator[tuple[Token, int, int]]:
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


def _groups(text: str) -> Iterator[Group]:
    """The words between operators; targets of redirections are left out."""
    words: Group = []
    skip = False
    for placed in _placed(text):
        token = placed[0]
        if token.is_word:
            if not skip:
                words.append(placed)
            skip = False
        elif token.text in _REDIRECTIONS:
            skip = True
        else:
            skip = False
            if words:
                yield words
            words = []
    if words:
        yield words


def _group_of(command: Command, groups: Sequence[Group]) -> Group | None:
    """The words in the text that a command was made of."""
    for group in groups:
        last = group[len(group) - len(command.words) :] if command.words else []
        said = tuple(expand(token.text, command.env) for token, _, _ in last)
        if said == command.words and (command.words or all("=" in token.text for token, _, _ in group)):
            return group
    return None


def _words(group: Group, command: Command, text: str) -> tuple[Word, ...]:
    values = {id(token): expand(token.text, command.env) for token, _, _ in group}
    return tuple(Word(_raw(text, start, end), values[id(token)], token.line, start, end) for token, start, end in group)


def _raw(text: str, start: int, end: int) -> str:
    return text[start:end].replace("\\\n", "")


def _spread(
    words: Sequence[Word], command: Command, arrays: Mapping[str, Sequence[Word]], text: str, arguments: Sequence[str]
) -> Iterator[Word]:
    """The words as the program gets them: arrays item by item, `"$@"` as the arguments, unquoted variables split."""
    for word in words:
        if word.raw.isdigit() and text[word.end : word.end + 1] in ("<", ">"):
            continue  # the 2 of `2>&1`
        array = _SPREAD.fullmatch(word.raw)
        if word.raw in _ALL_WORDS:
            yield from (Word(each, each, word.line, word.start, word.end, True) for each in arguments)
        elif array and array[1] in arrays:
            items = [
                Word(_raw(text, item.start, item.end), expand(item.raw, command.env), item.line, item.start, item.end)
                for item in arrays[array[1]]
            ]
            yield from _spread(items, command, {}, text, arguments)
        elif _BARE.fullmatch(word.raw):
            yield from (Word(word.raw, each, word.line, word.start, word.end, True) for each in word.value.split())
        elif array is None:
            yield word


def _take_exports(exports: dict[str, Export], command: Command, words: Sequence[Word]) -> None:
    """Takes note of what `export` and `unset` do to the variables that programs see."""
    if not command.words or command.words[0] not in ("export", "declare", "unset"):
        return
    for word in words[len(words) - len(command.words) + 1 :]:
        name, sign, _ = word.raw.partition("=")
        if command.words[0] == "unset":
            exports.pop(name, None)
        elif sign and re.fullmatch(r"[A-Za-z_]\w*", name):
            value = word.value if command.certain else f"{name}={UNKNOWN}"
            exports[name] = Export(name, Word(word.raw, value, word.line, word.start, word.end), len(command.words) - 1)
        elif re.fullmatch(r"[A-Za-z_]\w*", name):
            exports[name] = Export(name, Word(word.raw, "", word.line, word.start, word.end, True), 2)


def _as_launched(export: Export, known: Mapping[str, str]) -> Export:
    """The variable with what it holds when the launch comes: it can be set again behind its export."""
    word = export.word
    value = f"{export.name}={known.get(export.name, UNKNOWN)}"
    if value == word.value or UNKNOWN in word.value:
        return export
    filled = Word(word.raw, value, word.line, word.start, word.end, True)
    return Export(export.name, filled, export.siblings)


def _own(words: Sequence[Word]) -> Iterator[Export]:
    """Variables set in front of the launch itself, `env` in front of them or not."""
    for word in words:
        name, sign, _ = word.raw.partition("=")
        if word.raw in ("env", "exec", "nohup", "time"):
            continue
        if not sign or not re.fullmatch(r"[A-Za-z_]\w*", name):
            return
        yield Export(name, word, 0)


def quoted(word: str) -> str:
    """A word for a shell, quoted only where it has to be."""
    return word if re.fullmatch(r"[\w@%+=:,./\-~]+", word, re.ASCII) and not word.startswith("~") else shlex.quote(word)
