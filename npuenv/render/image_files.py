"""The scripts that an image carries beside its packages: activation, entry point, health check. Pure texts."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npuenv.messages import Message
from npuenv.plan.cann import cann_scripts
from npuenv.render import layers
from npuenv.render.dockerfile import plain

if TYPE_CHECKING:
    from npuenv.render.layers import Recipe

IMAGE_FILES = ("activate.sh", "entrypoint.sh", "healthcheck.py")

# Runs on every Python of every stack, inside the image; reads metadata only, so it needs no CANN and no card.
_HEALTHCHECK = """\
import sys
from importlib.metadata import PackageNotFoundError, version

wrong = []
for wanted in sys.argv[1:]:
    name, _, number = wanted.partition("==")
    try:
        found = version(name)
    except PackageNotFoundError:
        found = ""
    if found.partition("+")[0] != number:
        wrong.append(f"{wanted} != {found}")
print("\\n".join(wrong) or "ok")
sys.exit(bool(wrong))
"""


def image_files(recipe: Recipe) -> dict[str, str]:
    """File name -> text of each of IMAGE_FILES."""
    return {
        "activate.sh": _activate(recipe),
        "entrypoint.sh": _entrypoint(recipe),
        "healthcheck.py": f"# {recipe.say(Message('render.healthcheck-head'))}\n{_HEALTHCHECK}",
    }


def _activate(recipe: Recipe) -> str:
    """A script for `.`: CANN, NNAL, trees on PYTHONPATH. No `set`: the shell that reads it keeps its own options."""
    stack = recipe.stack
    trees = [layers.source_folder(source) for source in stack.git_sources if source.how == "pythonpath"]
    cann, nnal = (_quoted(path) for path in cann_scripts(stack))
    lines = [
        f"# {recipe.say(Message('render.activate-head', {'stack': stack.name}))}",
        f'if [ "${{NPUENV_STACK-}}" != {_quoted(stack.name)} ]; then',
        f"    export NPUENV_STACK={_quoted(stack.name)}",
        f"    . {cann}",
        f"    if [ -r {nnal} ]; then . {nnal}; fi",
        # An empty entry would put the working folder on the path: CANN's scripts leave one at the end of an empty
        # variable, and nothing is appended to an empty one here.
        '    PYTHONPATH="${PYTHONPATH-}"',
        '    export PYTHONPATH="${PYTHONPATH%:}"',
        *(f'    export PYTHONPATH={_quoted(path)}"${{PYTHONPATH:+:${{PYTHONPATH}}}}"' for path in trees),
        "fi",
    ]
    return "".join(f"{line}\n" for line in lines)


def _entrypoint(recipe: Recipe) -> str:
    head = recipe.say(Message("render.entrypoint-head", {"stack": recipe.stack.name}))
    return f'#!/bin/bash\n# {head}\n. {layers.HOME}/activate.sh\nexec "$@"\n'


def _quoted(value: str) -> str:
    return shlex.quote(plain(value, "activate.sh"))
