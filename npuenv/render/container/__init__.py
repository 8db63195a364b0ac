"""How a container of an image is run: docker, compose, Kubernetes, Slurm and Apptainer from one description.

`describe` makes the description, `render_container` the texts, `write_files` puts them into a folder. What is asked for
is loaded when it is asked for: most renderings are of an image alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuenv.render.container.description import Container as Container
    from npuenv.render.container.description import describe as describe
    from npuenv.render.container.forms import FORMS as FORMS
    from npuenv.render.container.forms import render_container as render_container
    from npuenv.render.container.wish import Wish as Wish
    from npuenv.render.container.writing import changed_files as changed_files
    from npuenv.render.container.writing import write_files as write_files

_PLACES = {
    "Container": "description",
    "FORMS": "forms",
    "Wish": "wish",
    "changed_files": "writing",
    "describe": "description",
    "render_container": "forms",
    "write_files": "writing",
}


def __getattr__(name: str) -> object:
    """One of the names above."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found
