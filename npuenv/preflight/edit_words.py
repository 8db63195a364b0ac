"""One correction of a command line or of a script's launch; only the words at fault change."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from npuenv.preflight.calls import front
from npuenv.preflight.hydra import NotHydra, read_override, write_value

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from npuenv.preflight.calls import Call
    from npuenv.preflight.script import Export, Script, Word
    from npuenv.preflight.types import Change

_OPENS = re.compile(r"(?:\b(?:then|else|do)|[{(]|\))[ \t]*(?:#.*)?\s*$")  # what a command has to follow


def edit_command(words: Sequence[str], call: Call, change: Change, known: Collection[str]) -> list[str] | None:
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


def edit_script(script: Script, change: Change, known: Collection[str]) -> str | None:
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


def _unset(text: str, exports: Sequence[Export]) -> str:
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


def shown(words: Sequence[Any]) -> str:
    """A command line as it is typed."""
    return shlex.join(map(str, words))
