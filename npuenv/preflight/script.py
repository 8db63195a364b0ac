"""A shell script as the launch that it holds: its words, the variables it exports, and where each stands exactly.

Nothing is run. What the text does not decide stays UNKNOWN in a word.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from npuenv.core.shellscript import commands, holds
from npuenv.core.shellwords import UNKNOWN, expand, source_of, with_arrays
from npuenv.preflight.launch import (
    MOST_INNER_SCRIPTS,
    MOST_WORDS,
    Call,
    TooLarge,
    find_call,
    front,
    is_override,
    script_of,
    shell_text,
    unjudged,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from npuenv.core.shellscript import Blocks, Command
    from npuenv.core.shellwords import Token

Break = Literal["comment", "blank-line", "no-backslash", "blank", "carriage-return"]
_SPREAD = re.compile(r"\"?\$\{([A-Za-z_]\w*)\[[@*]\]\}\"?")
_REST = re.compile(r"\"?\$\{@:(\d+)\}\"?")
# Files that set up a machine or an environment: what they set is no part of the launch.
_OF_THE_SYSTEM = re.compile(r"^[/~]|(?:set_?env\w*\.(?:sh|bash)|activate|conda\.sh|\.\w*(?:rc|profile))$")
_BARE = re.compile(r"\$(?:\{[A-Za-z_]\w*(?::?-[^}]*)?\}|[A-Za-z_]\w*)")
_MOST_SCRIPTS = 5  # that call each other
_ALL_WORDS = ('"$@"', "$@", "$*", '"$*"', '"${@}"', "${@}", "${*}")


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the text."""

    raw: str  # as it stands there, line continuations taken out
    value: str  # variables filled in, quotes removed
    line: int
    start: int
    end: int
    is_filled: bool = False  # it comes out of a variable or the script's arguments: there is no text to exchange
    is_sure: bool = True  # False: it stands in a branch that the text does not decide


@dataclass(frozen=True, slots=True)
class ExportedVariable:
    """A variable that reaches the launch. `word` is the text NAME=VALUE."""

    name: str
    word: Word
    siblings: int  # words of the command it stands in, itself included; 0: in front of the launch itself
    is_sure: bool = True  # False: it stands in a branch that the text does not decide


@dataclass(frozen=True, slots=True)
class Cut:
    """A place where the shell ends a command that goes on in the text."""

    line: int  # of the comment, the blank line, or what stands in the backslash's place
    why: Break
    lost: str  # the first word behind it; "" where there is none


@dataclass(frozen=True, slots=True)
class Script:
    """A script with one of its launches."""

    text: str
    words: tuple[Word, ...]  # of the launch: arrays spread out, the script's own arguments put in
    call: Call
    written: tuple[Word, ...]  # the same command as it stands in the text; empty: it stands in a text for another shell
    exports: tuple[ExportedVariable, ...]
    start: int  # of the line in which the command begins
    cuts: tuple[Cut, ...] = ()  # `words` holds what stands behind them too: the user means it


@dataclass(frozen=True, slots=True)
class StartedCommands:
    """What a script starts, in the order of its text."""

    launches: tuple[Script, ...]
    unjudged: tuple[tuple[int, str], ...]  # line and program of what trains in a way that no rule is about
    gpus: tuple[Word, ...]  # words of `ray start` that register GPUs
    installs: tuple[Word, ...]  # what `pip install` is told to install
    unread: tuple[tuple[int, str], ...] = ()  # line and name of files beside the script that are not there


def survey(
    text: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    sourced: Callable[[str], str | None] = lambda name: None,
    *,
    path: str = "command",
    depth: int = 0,
) -> StartedCommands:
    """All launches of verl and ROLL in a script, those in texts for another shell (`bash -c "..."`) included.

    `arguments` are what the script is called with; `env` holds variables that are known from outside; `sourced` gives
    the text of a file that the script reads with `source`. `path` is for messages, `depth` counts the shells around it.

    Raises: TooLarge.
    """
    if depth > MOST_INNER_SCRIPTS:
        raise TooLarge(path, MOST_INNER_SCRIPTS, "scripts")
    positional = {"#": str(len(arguments)), **{str(at): word for at, word in enumerate(arguments, 1)}}
    known = {**{name: value for name, value in env.items() if not name.isdigit()}, **positional}
    state = _State(text, path, tuple(arguments))
    is_launch = False  # the command before was one
    for command in commands(source_of(text), known):
        was_launch, is_launch = is_launch, False
        arrays = [each for each in command.tokens if each.array]
        if arrays:
            is_launch = was_launch
            for each in arrays:
                state.add_array(each, command)
            continue
        words = tuple(_words(command.tokens, command))
        spread = state.spread(words, command)
        state.gpus += _gpus(spread)
        state.installs += _installs(spread)
        values = tuple(word.value for word in spread)
        call, other = find_call(values), unjudged(values)
        if was_launch and spread and is_override(values[0]):
            state.launches[-1] = _joined(state.launches[-1], words, spread, state.launch_end)
            is_launch, state.launch_end = True, words[-1].end
        elif call is not None:
            exports = state.reach(words, known, command.blocks)
            start = text.rfind("\n", 0, words[0].start) + 1
            state.launches.append(_whole(Script(text, spread, call, words, exports, start)))
            is_launch, state.launch_end = True, words[-1].end
        elif other is not None:
            state.others.append((command.line, other))
        elif (at := shell_text(values)) is not None:
            inner = survey(values[at], values[at + 2 :], known, sourced, path=path, depth=depth + 1)
            state.add_inner(spread[at], inner, state.reach(words, known, command.blocks))
        elif (called := script_of(values)) is not None and values[0] not in ("source", "."):
            at, inside = values.index(called[0]), sourced(called[0]) if depth < _MOST_SCRIPTS else None
            if inside is not None:
                inner = survey(inside, called[1], known, sourced, path=called[0], depth=depth + 1)
                exports = state.reach(words, known, command.blocks)
                state.add_inner(spread[at], inner, exports, is_called=True)
            elif any(map(is_override, called[1])):
                state.unread.append((command.line, called[0]))
        else:
            state.add_exports(command, words)
            state.add_file(command, words, known, sourced)
    gpus, installs, unread = tuple(state.gpus), tuple(state.installs), tuple(state.unread)
    return StartedCommands(tuple(state.launches), tuple(state.others), gpus, installs, unread)


def _words(tokens: Iterable[Token], command: Command) -> Iterator[Word]:
    """Words as they stand in the text, with the variables of a command filled in."""
    for each in tokens:
        yield Word(each.text, expand(each.text, command.env), each.line, each.start, each.end)


def _whole(script: Script) -> Script:
    """The launch without a last word that is a backslash with a blank, or with the \\r of Windows, behind it."""
    last = script.words[-1]
    if last.value not in (" ", "\t", "\r") or not last.raw.startswith("\\"):
        return script
    why: Break = "carriage-return" if last.value == "\r" else "blank"
    words = script.words[:-1]
    call = find_call([word.value for word in words]) or script.call
    return replace(script, words=words, call=call, cuts=(*script.cuts, Cut(last.line, why, "")))


def _joined(script: Script, words: Sequence[Word], spread: Sequence[Word], end: int) -> Script:
    """The launch with a command behind it that is nothing but its further words. `end`: of the launch in the text."""
    cuts = script.cuts
    gap = script.text[end : words[0].start]
    lines = gap.split("\n")[1:-1]
    first = words[0].line - len(lines)
    found = next(((at, line) for at, line in enumerate(lines) if line.strip()), None)
    if cuts and not cuts[-1].lost:
        cuts = (*cuts[:-1], replace(cuts[-1], lost=spread[0].value))
    elif found is not None:
        cuts = (*cuts, Cut(first + found[0], "comment", spread[0].value))
    elif lines and "\\" in gap.partition("\n")[0] + lines[0]:
        cuts = (*cuts, Cut(first, "blank-line", spread[0].value))
    else:
        cuts = (*cuts, Cut(first - 1, "no-backslash", spread[0].value))
    more = tuple(range(len(script.words), len(script.words) + len(spread)))
    call = replace(script.call, overrides=(*script.call.overrides, *more))
    joined = (*script.words, *spread)
    return _whole(replace(script, words=joined, call=call, written=(*script.written, *words), cuts=cuts))


@dataclass(frozen=True, slots=True)
class _Event:
    """What one command does to a variable that programs see, or to an array."""

    certain: bool
    blocks: Blocks
    words: tuple[Word, ...] = ()  # of an array
    is_more: bool = False
    export: ExportedVariable | None = None  # None: `unset`

    def holds(self, around: Blocks) -> bool | None:
        """Whether it has happened for a command in some blocks; None: the text does not decide it."""
        found = holds(self.blocks, around)
        return True if self.certain and found is None else found


@dataclass(slots=True)
class _State:
    """A script as far as it has been read."""

    text: str
    path: str  # for messages
    arguments: tuple[str, ...]
    arrays: dict[str, list[_Event]] = field(default_factory=dict)
    exports: dict[str, list[_Event]] = field(default_factory=dict)
    launches: list[Script] = field(default_factory=list)
    launch_end: int = 0  # of the last launch in the text
    others: list[tuple[int, str]] = field(default_factory=list)
    gpus: list[Word] = field(default_factory=list)
    installs: list[Word] = field(default_factory=list)
    unread: list[tuple[int, str]] = field(default_factory=list)
    exports_all: bool = False  # `set -a`

    def add_array(self, array: Token, command: Command) -> None:
        words = self.spread(tuple(_words(array.items, command)), command)
        event = _Event(command.certain, command.blocks, words, array.is_more)
        self.arrays.setdefault(array.array, []).append(event)

    def array(self, name: str, at: int, command: Command) -> tuple[Word, ...] | None:
        """The items of an array where a command uses it, at an offset; None for one that nobody fills.

        A function may use what is only filled behind it, and before it is called.
        """
        events = self.arrays.get(name)
        if events is None:
            filled = [each for each in with_arrays(source_of(self.text)) if each.array == name]
            later = [each for each in filled if each.start > at]
            if filled and not later:
                return ()  # in branches that are not taken
            words = [word for each in later for word in _words(each.items, command)]
            return tuple(words if len(later) == 1 else map(_unsure, words)) if later else None
        found: list[Word] = []
        for event in events:
            is_sure = event.holds(command.blocks)
            if is_sure is False:
                continue
            if not event.is_more:
                found = [] if is_sure else list(map(_unsure, found))
            found += event.words if is_sure else map(_unsure, event.words)
        return tuple(found)

    def spread(self, words: Sequence[Word], command: Command) -> tuple[Word, ...]:
        """The words as the program gets them: arrays by item, `"$@"` as the arguments, unquoted variables split.

        Raises: TooLarge, since few lines are enough to double an array for ever.
        """
        found = tuple(itertools.islice(self._spread(words, command), MOST_WORDS + 1))
        if len(found) > MOST_WORDS:
            raise TooLarge(self.path, MOST_WORDS, "words")
        return found

    def _spread(self, words: Sequence[Word], command: Command) -> Iterator[Word]:
        for word in words:
            if word.raw.isdigit() and self.text[word.end : word.end + 1] in ("<", ">"):
                continue  # the 2 of `2>&1`
            array, rest = _SPREAD.fullmatch(word.raw), _REST.fullmatch(word.raw)
            if word.raw in _ALL_WORDS or rest:
                given = self.arguments[max(int(rest[1]) - 1, 0) :] if rest else self.arguments
                yield from (Word(each, each, word.line, word.start, word.end, True) for each in given)
            elif array:
                items = self.array(array[1], word.start, command)
                yield from (replace(word, value=UNKNOWN),) if items is None else items
            elif _BARE.fullmatch(word.raw):
                yield from (Word(word.raw, each, word.line, word.start, word.end, True) for each in word.value.split())
            else:
                yield word

    def add_exports(self, command: Command, words: Sequence[Word]) -> None:
        """Takes note of what `export` and `unset` do to the variables that programs see."""
        if not command.words or command.words[0] not in ("export", "declare", "unset"):
            return
        for word in words[len(words) - len(command.words) + 1 :]:
            name, sign, _ = word.raw.partition("=")
            if not re.fullmatch(r"[A-Za-z_]\w*", name):
                continue
            export = None
            if command.words[0] != "unset" and sign:
                value = word.value if command.certain else f"{name}={UNKNOWN}"
                export = ExportedVariable(name, replace(word, value=value), len(command.words) - 1)
            elif command.words[0] != "unset":
                export = ExportedVariable(name, replace(word, value="", is_filled=True), 2)
            self.exports.setdefault(name, []).append(_Event(command.certain, command.blocks, export=export))

    def add_file(
        self, command: Command, words: Sequence[Word], known: dict[str, str], sourced: Callable[[str], str | None]
    ) -> None:
        """Takes note of what a file sets that the script reads with `source`."""
        if command.words[:1] == ("set",):
            self.exports_all = command.words[1:2] == ("-a",) or (self.exports_all and command.words[1:2] != ("+a",))
        if len(command.words) < 2 or command.words[0] not in ("source", "."):
            return
        name, line = words[-len(command.words) + 1].value, words[-1]
        text = sourced(name)
        if text is None:
            if not _OF_THE_SYSTEM.search(name):
                self.unread.append((command.line, name))
            return
        outside = dict(known)
        for each in commands(source_of(text), known):
            is_export = each.words[:1] in (("export",), ("declare",)) or (self.exports_all and not each.words)
            for key, value in each.own.items() if is_export else ():
                word = replace(line, raw=f"{key}={value}", value=f"{key}={value}", is_filled=True)
                event = _Event(each.certain and command.certain, command.blocks, export=ExportedVariable(key, word, 2))
                self.exports.setdefault(key, []).append(event)
        for key in [] if command.certain else [key for key in known if known.get(key) != outside.get(key)]:
            known[key] = UNKNOWN

    def reach(self, words: Sequence[Word], known: Mapping[str, str], around: Blocks) -> tuple[ExportedVariable, ...]:
        """The variables that a command with these words gets to see."""
        found = {name: each for name in self.exports if (each := self._export(name, around)) is not None}
        launched = {name: _as_launched(each, known) for name, each in found.items()}
        return tuple({**launched, **{each.name: each for each in _own(words)}}.values())

    def _export(self, name: str, around: Blocks) -> ExportedVariable | None:
        found: ExportedVariable | None = None
        for event in self.exports[name]:
            is_sure = event.holds(around)
            if is_sure:
                found = event.export
            elif is_sure is None and (each := event.export or found) is not None:
                open_word = replace(each.word, value=f"{name}={UNKNOWN}", is_filled=True)
                is_set = found is not None and found.is_sure and event.export is not None
                found = ExportedVariable(name, open_word, each.siblings, is_set)
        return found

    def add_inner(
        self, outer: Word, inner: StartedCommands, exports: Iterable[ExportedVariable], *, is_called: bool = False
    ) -> None:
        """What a text for another shell or a script that is called holds; `exports` reach it."""
        reach = {each.name: each for each in exports}
        above = None if is_called else outer.line - 1
        self.launches += [_inside(each, outer, reach, above) for each in inner.launches]
        self.others += [(_below(line, outer, above), name) for line, name in inner.unjudged]
        self.gpus += [_moved(word, outer, above) for word in inner.gpus]
        self.installs += [_moved(word, outer, above) for word in inner.installs]


def _unsure(word: Word) -> Word:
    """A word of a branch that the text does not decide: nobody knows its value, and nobody may change it."""
    name, sign, _ = word.value.partition("=")
    return replace(word, value=f"{name}={UNKNOWN}" if sign else word.value, is_filled=True, is_sure=False)


def _inside(inner: Script, outer: Word, reach: Mapping[str, ExportedVariable], above: int | None) -> Script:
    """A launch of a text for another shell, in the script that holds the text: nothing in there can be exchanged.

    `above`: the lines of the script above the text; None: of another script, all of which stands in the line that calls
    it.
    """
    own = {each.name: replace(each, word=_moved(each.word, outer, above), siblings=2) for each in inner.exports}
    cuts = tuple(replace(each, line=_below(each.line, outer, above)) for each in inner.cuts)
    exports = tuple({**reach, **own}.values())
    words = tuple(_moved(each, outer, above) for each in inner.words)
    return Script(inner.text, words, inner.call, (), exports, outer.start, cuts)


def _moved(word: Word, outer: Word, above: int | None) -> Word:
    return Word(word.raw, word.value, _below(word.line, outer, above), outer.start, outer.end, True, word.is_sure)


def _below(line: int, outer: Word, above: int | None) -> int:
    return outer.line if above is None else above + line


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


def _as_launched(export: ExportedVariable, known: Mapping[str, str]) -> ExportedVariable:
    """The variable with what it holds when the launch comes: it can be set again behind its export."""
    word = export.word
    value = f"{export.name}={known.get(export.name, UNKNOWN)}"
    if value == word.value or UNKNOWN in word.value:
        return export
    filled = Word(word.raw, value, word.line, word.start, word.end, True)
    return replace(export, word=filled)


def _own(words: Sequence[Word]) -> Iterator[ExportedVariable]:
    """Variables set in front of the launch itself, `env` in front of them or not."""
    for word in words[: front([word.raw for word in words])]:
        name, sign, _ = word.raw.partition("=")
        if sign:
            yield ExportedVariable(name, word, 0)
