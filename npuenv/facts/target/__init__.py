"""Small programs that run inside the target's interpreter, on any Python from 3.9 on, with the standard library alone.

They are never imported by npuenv: `text` gives their source, which travels to the target with the question.
"""

from __future__ import annotations

import pkgutil

# Programs of more than one file: their parts in order, sent as one text.
_PARTS = {"inventory": ("records", "inventory"), "hashes": ("records", "hashes")}


def text(name: str) -> str:
    """The source of a program, also from inside a zip archive."""
    parts = [_source(part) for part in _PARTS.get(name, (name,))]
    if len(parts) == 1:
        return parts[0]
    # One `from __future__` may stand, and only at the start; what the parts import of each other is there already.
    lines = [
        line for part in parts for line in part.splitlines() if not line.startswith(("from __future__", "from npuenv"))
    ]
    return "from __future__ import annotations\n" + "\n".join(lines) + "\n"


def _source(name: str) -> str:
    data = pkgutil.get_data(__name__, f"{name}.py")
    assert data is not None, name
    return data.decode("utf-8")
