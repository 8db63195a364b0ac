"""Scripts from templates: `fill` puts values into a file of `templates/`, each through the filter `quote`."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2


def fill(name: str, **values: object) -> str:
    """The text of a template. A name that is missing is our mistake and raises jinja2's UndefinedError."""
    return _environment().get_template(name).render(values)


@functools.cache
def _environment() -> jinja2.Environment:
    # Imported here: most commands fill no template.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell and Python, not HTML: `quote` is the escape here
    )
    environment.filters["quote"] = shlex.quote
    return environment
