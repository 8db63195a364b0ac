"""Small programs that run inside the target's interpreter, on any Python from 3.9 on, with the standard library alone.

They are never imported by npuenv: `text` gives their source, which travels to the target with the question.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Programs that are not one file of their name: each file after those that it imports, the program itself last.
_PARTS = {
    **dict.fromkeys(("inventory", "hashes"), ("dist_info", "records", "inventory")),
    **dict.fromkeys(("imports", "listens"), ("attempts",)),
    **dict.fromkeys(("introduce", "share"), ("node",)),
}
# The target has no npuenv: there each file becomes the module that the next ones import.
_MODULE = """
module = sys.modules[{name!r}] = types.ModuleType({name!r})
exec(compile(r'''{source}''', {name!r}, "exec"), module.__dict__)
"""
_MAIN = """
exec(compile(r'''{source}''', {name!r}, "exec"))
"""


def text(name: str) -> str:
    """The source of a program, also from inside a zip archive."""
    return joined([f"{__name__}.{part}" for part in _PARTS.get(name, (name,))])


def joined(modules: Sequence[str]) -> str:
    """Modules as the source of one program, each of them whole: the last one runs, the others are there to import."""
    *others, main = modules
    if not others:
        return _source(main)
    parts = [_MODULE.format(name=name, source=_source(name)) for name in others]
    return "import sys\nimport types\n" + "".join(parts) + _MAIN.format(name=main, source=_source(main))


def _source(module: str) -> str:
    package, _, name = module.rpartition(".")
    data = pkgutil.get_data(package, f"{name}.py")
    assert data is not None and b"'''" not in data, module
    return data.decode("utf-8")
