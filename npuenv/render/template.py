"""Scripts from templates: `fill` puts values into a file of `templates/`, each through the filter `quote`."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

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
