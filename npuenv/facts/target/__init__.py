"""Small programs that run inside the target's interpreter, on any Python from 3.9 on, with the standard library alone.

They are never imported by npuenv: `text` gives their source, which travels to the target with the question.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Programs of more than one file: their parts in order, sent as one text.
_PARTS = {"inventory": ("records", "inventory"), "hashes": ("records", "hashes")}
_LEFT_OUT = ("from __future__", "from npuenv")


def text(name: str) -> str:
    """The source of a program, also from inside a zip archive."""
    return joined(__name__, _PARTS.get(name, (name,)))


def joined(package: str, parts: Sequence[str]) -> str:
    """The modules of a package as the source of one program; what they import of each other is there already."""
    texts = [_source(package, part) for part in parts]
    if len(texts) == 1:
        return texts[0]
    # One `from __future__` may stand, and only at the start.
    lines = [line for each in texts for line in each.splitlines() if not line.startswith(_LEFT_OUT)]
    return "from __future__ import annotations\n" + "\n".join(lines) + "\n"


def _source(package: str, name: str) -> str:
    data = pkgutil.get_data(package, f"{name}.py")
    assert data is not None, name
    return data.decode("utf-8")
