"""The script that starts an installation from a bundle on a machine that has nothing but a Python."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import npuenv
from npuenv.bundle.offline.self_package import BOOTSTRAP, pythons_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import jinja2

    from npuenv.bundle.offline.self_package import Tool


def install_script(tools: Sequence[Tool], *, python: str, archive: str) -> str:
    """`install.sh`. `python`: the stack's, like "3.11"; `archive`: the path of one in the bundle, or ""."""
    pythons = pythons_of(tools)
    pip = next(tool.offer.file for tool in tools if tool.name == BOOTSTRAP)
    return _template().render(
        version=npuenv.__version__,
        pip=pip,
        pythons=", ".join(f"({version.replace('.', ', ')})" for version in pythons),
        pythons_said=", ".join(pythons),
        names=" ".join(f"python{version}" for version in reversed(pythons)),
        python=python,
        archive=archive,
    )


@functools.cache
def _template() -> jinja2.Template:
    import jinja2  # most commands fill no template

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell, not HTML: `quote` is the escape here
    )
    environment.filters["quote"] = shlex.quote
    return environment.from_string(Path(__file__).with_name("install.sh.j2").read_text(encoding="utf-8"))
