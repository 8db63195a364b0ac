"""Corrections put into a copy of what was written, until no rule has one left; all else stays byte for byte."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, unified_diff
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.errors import ExitCode
from npuenv.core.finding import STATUS_OF, Status
from npuenv.core.shellwords import UNKNOWN
from npuenv.matrix.keys import nearest_release
from npuenv.preflight.hydra import NotHydra, read_override, write_value
from npuenv.preflight.launch import Change, front
from npuenv.preflight.reading import JOB_VARIABLES, read_text, read_words
from npuenv.preflight.rules import examine
from npuenv.preflight.yaml_text import edit_yaml

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from npuenv.core.messages import Message
    from npuenv.preflight.composing import LaunchText, ReadOptions
    from npuenv.preflight.launch import Call, Launch, LaunchFinding
    from npuenv.preflight.rules.base import Rule
    from npuenv.preflight.script import ExportedVariable, Script, Word

_MOST_ROUNDS = 12  # one correction can call for the next; far fewer are needed


@dataclass(frozen=True, slots=True)
class Fixed:
    """A corrected copy."""

    before: str
    after: str  # of a command line: the line as it is typed
    changes: tuple[Change, ...]  # what was done, in order
    left: tuple[LaunchFinding, ...]  # what is still wrong: only the user can decide, or the text is not here

    @property
    def diff(self) -> tuple[str, ...]:
        """Lines of a unified diff without its two header lines."""
        lines = unified_diff(self.before.splitlines(), self.after.splitlines(), lineterm="", n=2)
        return tuple(lines)[2:]


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """A launch with its problems, in order."""

    launch: Launch
    path: str  # "" for a command line
    problems: tuple[LaunchFinding, ...]
    notes: tuple[Message, ...] = ()
    others: tuple[Launch, ...] = ()  # further launches of the same script, whose problems are among these
    fixed: Fixed | None = None  # the corrected copy; None: not asked for
    written: str = ""  # the file of the corrected copy; "": none was written

    @property
    def counts(self) -> dict[str, int]:
        return {name: sum(each.severity == name for each in self.problems) for name in STATUS_OF}

    @property
    def exit_code(self) -> ExitCode:
        """PROBLEMS where an error is left, UNKNOWN where most rules know nothing of the release."""
        left = self.problems if self.fixed is None else self.fixed.left
        if any(problem.status is Status.FAIL for problem in left):
            return ExitCode.PROBLEMS
        is_known = nearest_release(self.launch.framework, self.launch.release) is not None
        return ExitCode.FINE if is_known else ExitCode.UNKNOWN


def fix(reading: LaunchText, options: ReadOptions, rules: Sequence[Rule] | None = None) -> Fixed:
    """The corrected copy of a launch. Examining that copy gives no correction that could still be made."""
    now = reading
    done: list[Change] = []
    refused: list[tuple[Change, ...]] = []
    for _ in range(_MOST_ROUNDS):
        before = len(done)
        touched: set[tuple[str, bool]] = set()  # a second wish for the same key waits for the next look
        problems = _problems(now, rules)
        for problem in problems:
            keys = {(change.key, change.is_variable) for change in problem.changes}
            if not keys or problem.changes in refused or keys & touched:
                continue
            if any(change in done for change in problem.changes):
                continue  # it was done and undone: two rules want opposite things
            edited = apply(now, options, problem.changes)
            if edited is None:
                refused.append(problem.changes)
                continue
            now = edited
            touched |= keys
            done += problem.changes
        if len(done) == before:
            return Fixed(written(reading), written(now), tuple(done), problems)
    return Fixed(written(reading), written(now), tuple(done), _problems(now, rules))


def fix_all(readings: Sequence[LaunchText], options: ReadOptions) -> Fixed:
    """The corrected copy of a script with all its launches; those of another file are judged and left as they are."""
    first, *rest = readings
    fixed = fix(first, options)
    for reading in rest:
        if first.script is None or reading.path != first.path:
            fixed = replace(fixed, left=(*fixed.left, *_problems(reading, None)))
            continue
        again = fix(read_text(fixed.after, Path(reading.path), options, reading.arguments, reading.nth), options)
        changes, left = (*fixed.changes, *again.changes), (*fixed.left, *again.left)
        fixed = Fixed(fixed.before, again.after, changes, left)
    return fixed


def _problems(reading: LaunchText, rules: Sequence[Rule] | None) -> tuple[LaunchFinding, ...]:
    return examine(reading.launch, rules, refused=reading.refused)


def apply(reading: LaunchText, options: ReadOptions, changes: Sequence[Change]) -> LaunchText | None:
    """The same launch with all the changes, read again; None where one cannot be put in."""
    for change in changes:
        edited = _applied(reading, options, change)
        if edited is None or written(edited) == written(reading):
            return None
        reading = edited
    return reading


def _applied(reading: LaunchText, options: ReadOptions, change: Change) -> LaunchText | None:
    known = reading.launch.defaults
    placed = _placed(reading, change)
    if placed is None:
        return None
    change = placed
    if reading.script is not None:
        text = _edit_script(reading.script, change, known)
        if text is not None and not options.parses(text):
            return None  # the shell's word counts for more than ours: a script that starts beats a corrected one
    elif reading.call is not None:
        if any(UNKNOWN in word.value for word in reading.words):
            return None  # a variable that nobody knows here: there is no line to show
        words = _edit_command([word.value for word in reading.words], reading.call, change, known)
        return None if words is None else read_words(words, options)
    elif change.is_variable and not _can_hold(reading, change):
        return None
    else:
        text = edit_yaml(reading.text, change)
    return None if text is None else _read_again(text, reading, options)


def _placed(reading: LaunchText, change: Change) -> Change | None:
    """A change of a variable where that variable is written: Ray's settings can hold it; None for a text in JSON."""
    setting = reading.launch.environ.get(change.renames or change.key) if change.is_variable else None
    if setting is None or "." not in setting.key:
        return change
    if setting.key.startswith(JOB_VARIABLES):
        return None
    above = setting.key.rpartition(".")[0]
    renames = f"{above}.{change.renames}" if change.renames else None
    return Change(f"{above}.{change.key}", None if change.value is None else str(change.value), renames=renames)


def _read_again(text: str, reading: LaunchText, options: ReadOptions) -> LaunchText:
    """The launch of a changed text; variables that a script around it sets stay."""
    again = read_text(text, Path(reading.path), options, reading.arguments, reading.nth)
    outside = {name: each for name, each in reading.launch.environ.items() if each.place.path != reading.path}
    return replace(again, launch=replace(again.launch, environ={**outside, **again.launch.environ}))


def _can_hold(reading: LaunchText, change: Change) -> bool:
    """Whether a YAML can say this of a variable: ROLL's can, unless the variable comes from the script around it."""
    setting = reading.launch.environ.get(change.key) or reading.launch.environ.get(change.renames or "")
    return reading.launch.framework == "roll" and (setting is None or setting.place.path == reading.path)


def written(reading: LaunchText) -> str:
    """What a user would look at: the file's text, or the command line."""
    return reading.text if reading.path else f"{shlex.join(word.value for word in reading.words)}\n"


def corrected(reading: LaunchText, options: ReadOptions, problem: LaunchFinding) -> tuple[str, ...]:
    """The lines, or the words of a command, that mend one problem; empty where only the user can decide."""
    edited = apply(reading, options, problem.changes) if problem.changes else None
    if edited is None:
        return ()
    if not reading.path:
        return _new([word.value for word in reading.words], [word.value for word in edited.words])
    # A line whose end goes on with the next one, or no longer does, is the same line.
    before, after = ([line.removesuffix("\\").strip() for line in each.text.splitlines()] for each in (reading, edited))
    return tuple(line for line in _new(before, after) if line)


def _new(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """What the second has and the first has not, in order."""
    codes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return tuple(item for tag, _, _, start, end in codes if tag in ("replace", "insert") for item in after[start:end])


_OPENS = re.compile(r"(?:\b(?:then|else|do)|[{(]|\))[ \t]*(?:#.*)?\s*$")  # what a command has to follow


def _edit_command(words: Sequence[str], call: Call, change: Change, known: Collection[str]) -> list[str] | None:
    """The words with one change; `known` are the keys that the release has. None where it cannot be done."""
    if change.is_variable:
        return _with_variable(words, change)
    edited = list(words)
    old = [at for at in call.overrides if _key(words[at]) == (change.renames or change.key)]
    taken = [at for at in call.overrides if change.renames and _key(words[at]) == change.key]
    if change.value is None and not change.renames:
        return [word for at, word in enumerate(words) if at not in old] if old else None
    target = (taken or old)[-1:]
    if target:
        edited[target[0]] = _override(change, words[target[0]], known)
    else:
        last = call.overrides[-1] if call.overrides else len(words) - 1
        edited.insert(last + 1, _override(change, "", known))
    return [word for at, word in enumerate(edited) if at not in old or at in target]


def _key(word: str) -> str:
    try:
        return read_override(word).key
    except NotHydra:
        return word.partition("=")[0].lstrip("+~")


def _override(change: Change, old: str, known: Collection[str]) -> str:
    """The new word: Hydra's mark stays where the key stays; else `++` for a key that the release does not have."""
    marks = re.match(r"\+\+|\+|", old)
    mark = marks[0] if marks and old and not change.renames else ""
    if not mark and change.key not in known and (change.renames or not old):
        mark = "++"
    return f"{mark}{change.key}={write_value(change.value)}"


def _with_variable(words: Sequence[str], change: Change) -> list[str]:
    """The variable in front of the command changed, put in or taken out."""
    names = {change.key, change.renames} - {None}
    first = front(words)
    kept = [word for word in words[:first] if word.partition("=")[0] not in names]
    if change.value is not None:
        kept.append(f"{change.key}={change.value}")
    return [*kept, *words[first:]]


def _edit_script(script: Script, change: Change, known: Collection[str]) -> str | None:
    """The script's text with one change in its launch; None where the words come from a variable or an argument, and
    where the launch stands in a text for another shell."""
    if not script.written:
        return None
    if change.is_variable:
        return _variable_in(script, change)
    words = [script.words[at] for at in script.call.overrides]
    old = [word for word in words if _key(word.value) == (change.renames or change.key)]
    taken = [word for word in words if change.renames and _key(word.value) == change.key]
    if any(word.is_filled for word in (*old, *taken)):
        return None
    if change.value is None and not change.renames:
        return _without(script.text, old) if old else None
    target = (taken or old)[-1:]
    if not target:
        return _put_in(script, shlex.quote(_override(change, "", known)))
    new = shlex.quote(_override(change, target[0].value, known))
    text = script.text
    for word in sorted(old if taken else old[:-1], key=lambda each: -each.start):
        if word.start > target[0].start:
            text = _without(text, [word])
    text = text[: target[0].start] + new + text[target[0].end :]
    return _without(text, [word for word in old if word.start < target[0].start])


def _without(text: str, words: Sequence[Word]) -> str:
    """The text without some words, each with the blanks and line continuations in front of it."""
    for word in sorted(words, key=lambda each: -each.start):
        gap = re.search(r"(?:[ \t\r]|\\\n)*$", text[: word.start])
        start = gap.start() if gap else word.start
        end = word.end
        line = text.rfind("\n", 0, start) + 1
        following = text.find("\n", end)
        if not text[line:start].strip() and following >= 0 and not text[end:following].strip():
            start, end = line, following + 1
        text = text[:start] + text[end:]
    return text


def _put_in(script: Script, new: str) -> str | None:
    """A word behind the last override that stands in the text itself, on a line of its own where those have one.

    None where all words come out of variables, and there is no place for one more.
    """
    own = {word.start for word in script.written}
    overrides = [script.words[at] for at in script.call.overrides]
    behind = [word for word in overrides if word.start in own and not word.is_filled]
    behind = behind or [word for word in script.written if word.value == script.call.program and not word.is_filled]
    behind = behind or [word for word in (*script.words, *overrides) if not word.is_filled and word.start not in own]
    if not behind:
        return None
    word = behind[-1]
    line = script.text[script.text.rfind("\n", 0, word.start) + 1 : word.start]
    ends = "" if word.start not in own else " \\"  # the lines of an array go on by themselves
    gap = f"{ends}\n{line}" if line and not line.strip() else " "
    return script.text[: word.end] + gap + new + script.text[word.end :]


def _variable_in(script: Script, change: Change) -> str | None:
    named = [each for each in script.exports if each.name in (change.key, change.renames)]
    if any(each.word.is_filled for each in named):
        return None
    if change.value is None:
        return _unset(script.text, named) if named else None
    new = f"{change.key}={shlex.quote(str(change.value))}"
    if not named:
        return f"{script.text[: script.start]}export {new}\n{script.text[script.start :]}"
    word = named[0].word
    return script.text[: word.start] + new + script.text[word.end :]


def _unset(text: str, exports: Sequence[ExportedVariable]) -> str:
    """The text without the variables; an `export` of nothing else goes as a whole line, or becomes the `:` that does
    nothing, where it may be all that a block holds."""
    for each in sorted(exports, key=lambda each: -each.word.start):
        word = each.word
        if each.siblings == 1:
            start = text.rfind("\n", 0, word.start) + 1
            end = text.find("\n", word.end)
            end = len(text) if end < 0 else end + 1
            around = text[start : word.start] + "x" + text[word.end : end]
            found = re.search(r"(?:export|declare)[ \t]+$", text[: word.start])
            if found and re.fullmatch(r"\s*(?:export|declare)\s+\S+\s*(?:#.*)?\s*", around):
                opens = _OPENS.search(text[:start])
                text = text[: found.start()] + ":" + text[word.end :] if opens else text[:start] + text[end:]
                continue
            if found:
                text = text[: found.start()] + ":" + text[word.end :]
                continue
        tail = re.compile(r"[ \t]*").match(text, word.end)
        text = text[: word.start] + text[tail.end() if tail else word.end :]
    return text
