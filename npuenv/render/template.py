"""Scripts from templates: `fill` puts values into a file of `templates/`; `plain` refuses what could break out."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
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
