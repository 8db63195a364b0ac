"""One correction of a YAML text, a command or a script; everything else stays byte for byte."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any

from npuenv.core.errors import BadInput
from npuenv.preflight.calls import front
from npuenv.preflight.hydra import NotHydra, read_override, write_value
from npuenv.preflight.yaml_text import read_yaml, write_scalar

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from npuenv.preflight.calls import Call
    from npuenv.preflight.script import ExportedVariable, Script, Word
    from npuenv.preflight.types import Change
    from npuenv.preflight.yaml_text import YamlEntry


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


def shown(words: Sequence[Any]) -> str:
    """A command line as it is typed."""
    return shlex.join(map(str, words))


_ANCHOR = re.compile(r"&[^\s,\[\]{}]+\s+")
_VARIABLES = "system_envs"  # where ROLL takes variables of its processes from


def edit_yaml(text: str, change: Change) -> str | None:
    """The text with one change; None where that cannot be done without touching something else."""
    key = f"{_VARIABLES}.{change.key}" if change.is_variable else change.key
    old = f"{_VARIABLES}.{change.renames}" if change.is_variable and change.renames else change.renames
    value = str(change.value) if change.is_variable and change.value is not None else change.value
    edited = _renamed(text, old, key, value) if old else _set(text, key, value)
    if edited is None or edited == text:
        return edited
    return edited if _is_sound(text, edited, {key, old or key}) else None


def _is_sound(before: str, after: str, keys: set[str]) -> bool:
    """Whether the new text reads, and only the values under the keys are different."""
    try:
        entries = read_yaml(after, "")
    except BadInput:
        return False
    return _others(read_yaml(before, ""), keys) == _others(entries, keys)


def _others(entries: Sequence[YamlEntry], keys: set[str]) -> dict[str, str]:
    found = {leaf.dotted: repr(leaf.value) for entry in entries for leaf in entry.leaves()}
    return {key: value for key, value in found.items() if not _touches(key, value, keys)}


def _touches(key: str, value: str, keys: set[str]) -> bool:
    """Whether a leaf is one of the keys, stands below one, or is an empty value that one was put into."""
    if key in keys or key.startswith(tuple(f"{each}." for each in keys)):
        return True
    return value in ("None", "{}") and any(each.startswith(f"{key}.") for each in keys)


def _set(text: str, key: str, value: Any) -> str | None:
    """The value under a key exchanged, put in, or taken out where it is None."""
    found = _find(read_yaml(text, ""), key)
    if value is None:
        return None if found is None or found.is_merged else _removed(text, found)
    if found is None or found.is_merged:
        return _added(text, key, value)
    return _exchanged(text, found, write_scalar(value, found.quote))


def _renamed(text: str, old: str, key: str, value: Any) -> str | None:
    entries = read_yaml(text, "")
    found, taken = _find(entries, old), _find(entries, key)
    if found is None or found.is_merged:
        return _set(text, key, value)
    if taken is not None or old.rpartition(".")[0] != key.rpartition(".")[0]:
        added = _set(text, key, value)
        return added and _set(added, old, None)
    if not found.children and value != found.value:
        text = _exchanged(text, found, write_scalar(value, found.quote))
    return text[: found.key.start] + write_scalar(key.rpartition(".")[2]) + text[found.key.end :]


def _walk(entries: Sequence[YamlEntry]) -> Iterator[YamlEntry]:
    for entry in entries:
        yield entry
        yield from _walk(entry.children)


def _find(entries: Sequence[YamlEntry], key: str) -> YamlEntry | None:
    return next((entry for entry in _walk(entries) if entry.dotted == key), None)


def _exchanged(text: str, entry: YamlEntry, new: str) -> str:
    """A value replaced. One that begins on a later line than its key moves up to the key."""
    span = entry.span
    between = text[entry.key.end : span.start]
    if "\n" in between or span.start == span.end:
        colon = text.index(":", entry.key.end) + 1
        return f"{text[:colon]} {new}{text[span.end :]}"
    anchor = _ANCHOR.match(text, span.start, span.end)
    start = anchor.end() if anchor else span.start
    return text[:start] + new + text[span.end :]


def _removed(text: str, entry: YamlEntry) -> str | None:
    """The text without a key; a mapping that becomes empty by it goes too."""
    entries = read_yaml(text, "")
    parent = _find(entries, ".".join(entry.path[:-1])) if len(entry.path) > 1 else None
    if parent is not None and len(parent.children) == 1 and "<<" not in parent.text:
        return _removed(text, parent)
    if parent is not None and parent.is_flow:
        return _without_pair(text, entry, parent)
    start, end = _lines(text, entry)
    if text[start : entry.key.start].strip():
        return None  # it shares its line with something else
    return text[:start] + text[end:]


def _without_pair(text: str, entry: YamlEntry, parent: YamlEntry) -> str:
    """The text without a pair of a mapping in braces, and without the comma on one side of it."""
    behind = re.compile(r"\s*,\s*").match(text, entry.span.end)
    if behind:
        return text[: entry.key.start] + text[behind.end() :]
    before = re.search(r"\s*,\s*$", text[parent.span.start : entry.key.start])
    start = parent.span.start + before.start() if before else entry.key.start
    return text[:start] + text[entry.span.end :]


def _lines(text: str, entry: YamlEntry) -> tuple[int, int]:
    """The whole lines from a key to the end of its value."""
    start = text.rfind("\n", 0, entry.key.start) + 1
    end = text.find("\n", _end(entry))
    return start, len(text) if end < 0 else end + 1


def _end(entry: YamlEntry) -> int:
    """The offset behind the last sign that belongs to an entry in the place where it stands."""
    own = [child for child in entry.children if not child.is_merged]
    return max([entry.key.end, entry.span.end, *map(_end, own)])


def _added(text: str, key: str, value: Any) -> str | None:
    """A key put in behind the last one of the deepest mapping that is there; at the end of the text where none is."""
    entries = read_yaml(text, "")
    parts = key.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        parent = _find(entries, ".".join(parts[:depth]))
        if parent is not None:
            return _added_to(text, parent, parts[depth:], value)
    end = max(map(_end, entries))
    return _line_behind(text, end, _block(parts, value, _indent(text, entries[0])))


def _added_to(text: str, parent: YamlEntry, parts: Sequence[str], value: Any) -> str | None:
    if parent.is_merged:
        return None
    if not parent.children:
        return _exchanged(text, parent, _flow(parts, value)) if parent.value in (None, {}) else None
    own = [child for child in parent.children if not child.is_merged]
    if parent.text.startswith("*"):
        return None
    if parent.is_flow:
        if not own:
            return None
        end = own[-1].span.end
        return f"{text[:end]}, {_flow(parts, value)[1:-1]}{text[end:]}"
    if not own:
        indent = _indent(text, parent) + "  "
        return _line_behind(text, text.find("\n", parent.key.end), _block(parts, value, indent))
    return _line_behind(text, max(map(_end, own)), _block(parts, value, _indent(text, own[0])))


def _indent(text: str, entry: YamlEntry) -> str:
    """The blanks in front of a key; a key behind something else on its line counts from the line's first column."""
    start = text.rfind("\n", 0, entry.key.start) + 1
    return " " * (entry.key.start - start)


def _block(parts: Sequence[str], value: Any, indent: str) -> str:
    """Nested keys line by line. Example: ("a", "b"), 1 gives "a:" and "  b: 1"."""
    lines = [f"{indent}{'  ' * depth}{write_scalar(part)}:" for depth, part in enumerate(parts)]
    return "\n".join(lines) + f" {write_scalar(value)}"


def _flow(parts: Sequence[str], value: Any) -> str:
    inner = write_scalar(value, ",")
    for part in reversed(parts):
        inner = f"{{{write_scalar(part, ',')}: {inner}}}"
    return inner


def _line_behind(text: str, at: int, line: str) -> str:
    end = text.find("\n", at)
    if end < 0:
        return f"{text}\n{line}\n"
    return f"{text[:end]}\n{line}{text[end:]}"
