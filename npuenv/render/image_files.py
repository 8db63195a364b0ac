"""The scripts that an image carries beside its packages: activation, entry point, health check. Pure texts."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npuenv.core.messages import Message
from npuenv.install.plan.cann import cann_scripts, compiler_scripts
from npuenv.render import layers
from npuenv.render.template import fill
from npuenv.render.words import plain

if TYPE_CHECKING:
    from npuenv.render.layers import Recipe

IMAGE_FILES = ("activate.sh", "entrypoint.sh", "healthcheck.py")
DOCTOR = "npuenv-doctor.pyz"  # the doctor as one file, where the image is to hold it


def image_files(recipe: Recipe) -> dict[str, str]:
    """File name -> text of each of IMAGE_FILES.

    The health check runs on every Python of every stack; it reads metadata only, so it needs no CANN and no card; with
    `--doctor` it asks DOCTOR beside it, too, and takes what that says of the image itself. The
    activation is for `.` and sets no shell options: the shell that reads it keeps its own.
    """
    stack, say = recipe.stack, recipe.say
    trees = [layers.source_folder(source) for source in stack.git_sources if source.how == "pythonpath"]
    on_path = [shlex.quote(plain(path, "activate.sh")) for path in trees]
    cann, nnal = (plain(path, "activate.sh") for path in cann_scripts(stack))
    compiler = [shlex.quote(plain(path, "activate.sh")) for path in compiler_scripts(stack)]
    args = {"stack": stack.name}
    return {
        "activate.sh": fill(
            "image_activate.sh.j2",
            head=say(Message("render.activate-head", args)),
            stack=plain(stack.name, "activate.sh"),
            cann=cann,
            compiler="".join(f"    if [ -r {path} ]; then . {path}; fi\n" for path in compiler),
            nnal=nnal,
            # An empty entry would put the working folder on the path: CANN's scripts leave one at the end of an empty
            # variable, which is why the script takes a colon off before these.
            preload="".join(
                f'    if [ -r "{path}" ]; then export LD_PRELOAD="{path}${{LD_PRELOAD:+:${{LD_PRELOAD}}}}"; fi\n'
                for path in layers.preloaded(stack)
            ),
            more_path="".join(f'    export PYTHONPATH={path}"${{PYTHONPATH:+:${{PYTHONPATH}}}}"\n' for path in on_path),
        ),
        "entrypoint.sh": fill(
            "image_entrypoint.sh.j2", head=say(Message("render.entrypoint-head", args)), home=layers.HOME
        ),
        "healthcheck.py": fill("image_healthcheck.py.j2", head=say(Message("render.healthcheck-head"))),
    }
