"""Small programs that run inside the target's interpreter, on any Python from 3.9 on, with the standard library alone.

They are never imported by npuenv: `text` gives their source, which travels to the target with the question.
"""

from __future__ import annotations

import pkgutil


def text(name: str) -> str:
    """The source of a program, also from inside a zip archive."""
    data = pkgutil.get_data(__name__, f"{name}.py")
    assert data is not None, name
    return data.decode("utf-8")
