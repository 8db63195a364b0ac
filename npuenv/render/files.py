"""Rendered files: their text, from templates or as YAML, without values that could break out, and their place on disk.

`fill` puts values into a file of `templates/`; `plain` and its kin refuse what could break out. Texts that a parser of
YAML 1.1 or 1.2 could mistake stand in double quotes. On disk, files alike are left, others are replaced on request
only, and other files stay.
"""

from __future__ import annotations

import functools
import io
import os
import re
import shlex
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import jinja2


_FOLDER = Path(__file__).parent / "templates"
_VALUE = re.compile(r"\{\{ (\w+)( \| quote)? \}\}")
_MARKS = re.compile(r"\{[{%#]")


def fill(name: str, **values: object) -> str:
    """The text of a template. A name that is missing is our mistake and raises KeyError or jinja2's UndefinedError."""
    text = (_FOLDER / name).read_text(encoding="utf-8")
    if len(_MARKS.findall(text)) != len(_VALUE.findall(text)):
        return _environment().get_template(name).render(values)
    # Values and nothing else. To load jinja2 takes as long as to make a whole image.
    return _VALUE.sub(lambda found: shlex.quote(str(values[found[1]])) if found[2] else str(values[found[1]]), text)


@functools.cache
def _environment() -> jinja2.Environment:
    # Imported here: most commands fill no template.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell and Python, not HTML: `quote` is the escape here
    )
    environment.filters["quote"] = shlex.quote
    return environment


_SIGNS = r"""['"`\\\x00-\x1f\x7f\x85\u2028\u2029]"""
UNSAFE = re.compile(rf"{_SIGNS}|\$")
UNSAFE_OR_BLANK = re.compile(rf"\A\s*\Z|{UNSAFE.pattern}")
# `${...}` is an interpolation of the frameworks' own and stays.
UNSAFE_IN_YAML = re.compile(rf"{_SIGNS}|\$\(")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def plain(value: str, what: str, unsafe: re.Pattern[str] = UNSAFE) -> str:
    """The value itself, when it can stand in a shell word, a YAML scalar or an instruction as it is.

    `what` names it for the user. Raises BadInput for quotes, backslashes, backticks, `$`, line ends and other control
    characters.
    """
    found = unsafe.search(value)
    if found:
        raise BadInput(
            Message("render.unsafe-value", {"what": what, "value": repr(value), "character": repr(found.group())}),
            Message("render.unsafe-value-hint"),
        )
    return value


def one_word(value: str, what: str) -> str:
    """The value itself, when it is plain, holds no blank and cannot be taken for an option. Raises BadInput."""
    if not plain(value, what) or " " in value or value.startswith("-"):
        raise BadInput(
            Message("render.unsafe-word", {"what": what, "value": repr(value)}), Message("render.unsafe-word-hint")
        )
    return value


def identifier(value: str, what: str) -> str:
    """The value itself, when it is a name that a shell variable can have. Raises BadInput."""
    if not _NAME.fullmatch(value):
        raise BadInput(
            Message("render.unsafe-name", {"what": what, "value": repr(value)}), Message("render.unsafe-value-hint")
        )
    return value


# What no parser takes for a number, a truth value or a time.
_UNMISTAKABLE = re.compile(r"[A-Za-z/_][\w./@ -]*[\w./]|[A-Za-z]", re.ASCII)
_YAML_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def dump_yaml(head: Sequence[str], documents: Sequence[Any]) -> str:
    """The comment lines, then each document; mappings keep their order, so the same data give the same bytes."""
    return "".join(f"{line}\n" for line in head) + yaml_text([_yaml_quoted(document) for document in documents])


def yaml_text(documents: Sequence[Any]) -> str:
    """Documents of ruamel's types, as they are; no value is broken over lines."""
    # 60 ms to load: only what writes YAML pays for it.
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 4096
    yaml.representer.add_representer(type(None), _yaml_null)
    stream = io.StringIO()
    for place, document in enumerate(documents):
        if place:
            stream.write("---\n")
        yaml.dump(document, stream)
    return stream.getvalue()


def _yaml_null(representer: Any, value: None) -> Any:
    """A tilde, as in ROLL's samples; nothing at all reads like a forgotten value."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "~")


def _yaml_quoted(data: Any) -> Any:
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

    if isinstance(data, dict):
        return {key: _yaml_quoted(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_yaml_quoted(item) for item in data]
    if not isinstance(data, str):
        return data
    if "\n" in data:
        return LiteralScalarString(data)
    is_plain = _UNMISTAKABLE.fullmatch(data) and data.lower() not in _YAML_WORDS
    return data if is_plain else DoubleQuotedScalarString(data)


_MODE, _SCRIPT_MODE = 0o644, 0o755


class WrittenFiles(NamedTuple):
    """The names of files: what was written, and what was left there by an earlier run on several nodes."""

    files: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def write_files(
    files: Mapping[str, str | bytes], folder: Path, *, is_forced: bool = False, stale: Sequence[str] = ()
) -> tuple[str, ...]:
    """The names of the files that were written; programs are executable.

    `stale` are files of an earlier rendering, which go. All are looked at, and the new ones are written beside their
    places, before the first is replaced: a failure until then leaves the old ones.

    Raises BadInput for files that differ and stale ones unless `is_forced`, for a link or folder in the place of one,
    and where writing is not allowed.
    """
    changed = changed_files(files, folder, is_forced=is_forced, stale=stale)
    with _as_bad_input(folder):
        fresh: dict[str, Path] = {}
        try:
            for name, content in changed.items():
                fresh[name] = _written_beside(folder / name, content.encode() if isinstance(content, str) else content)
            for name, path in fresh.items():
                path.replace(folder / name)
        finally:
            for path in fresh.values():
                path.unlink(missing_ok=True)
        for name in stale:
            (folder / name).unlink()
    return tuple(changed)


def changed_files(
    files: Mapping[str, str | bytes], folder: Path, *, is_forced: bool = False, stale: Sequence[str] = ()
) -> dict[str, str | bytes]:
    """Those that `write_files` would write. Raises BadInput as it does, and writes nothing."""
    with _as_bad_input(folder):
        changed = {name: content for name, content in files.items() if not _is_same(folder / name, content)}
        there = [name for name in (*changed, *stale) if os.path.lexists(folder / name)]
        for path in (folder / name for name in there):
            if path.is_symlink() or not path.is_file():
                args: dict[str, object] = {"path": str(path)}
                raise BadInput(Message("render.not-a-file", args), Message("render.not-a-file-hint"))
    if there and not is_forced:
        args = {"path": str(folder), "files": tuple(there)}
        raise BadInput(Message("render.exists", args), Message("render.exists-hint"))
    return changed


@contextmanager
def _as_bad_input(folder: Path) -> Iterator[None]:
    """What the system refuses as a sentence."""
    try:
        yield
    except OSError as error:
        args = {"path": str(error.filename2 or error.filename or folder), "reason": error.strerror or str(error)}
        raise BadInput(Message("render.cannot-write", args), Message("render.cannot-write-hint")) from error


def _is_same(path: Path, content: str | bytes) -> bool:
    return path.is_file() and path.read_bytes() == (content.encode() if isinstance(content, str) else content)


def _written_beside(path: Path, content: bytes) -> Path:
    """The file under another name in the folder where it will stand, which is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".npuenv-", dir=path.parent)
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        beside.chmod(_SCRIPT_MODE if content.startswith(b"#!") else _MODE)
    except BaseException:
        beside.unlink()
        raise
    return beside
