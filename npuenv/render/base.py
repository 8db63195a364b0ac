"""What an image stands on and who runs it: the base image with its digest, the user."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.install.cann import cann_scripts, compiler_scripts
from npuenv.render import layers
from npuenv.render.dockerfile import BLANK, Instruction, arg
from npuenv.render.files import fill, one_word, plain

if TYPE_CHECKING:
    from npuenv.render.layers import ImageRecipe
    from npuenv.resolve.types import Stack


_TAG = re.compile(r":[^/]*\Z")  # not the port of a registry
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# What useradd takes on Ubuntu and on openEuler.
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def digest(value: str | None) -> str | None:
    """The digest itself when it is one, None when none was given. Raises BadInput."""
    if value is None or _DIGEST.fullmatch(value):
        return value
    raise BadInput(Message("render.bad-digest", {"value": repr(value)}), Message("render.bad-digest-hint"))


def user(value: str) -> str:
    """The name itself when a user can have it. Raises BadInput."""
    if _USER.fullmatch(value):
        return value
    raise BadInput(Message("render.bad-user", {"value": repr(value)}), Message("render.bad-user-hint"))


def base(recipe: ImageRecipe) -> list[Instruction]:
    """The base image as a build argument, and FROM. With a digest the tag stands in the comment alone: buildah refuses
    a name that has both.

    Example: quay.io/ascend/cann:9.1.0-910b -> quay.io/ascend/cann@sha256:... with a digest, itself without.
    """
    image = one_word(recipe.stack.image or "", "base image")
    comment, name = recipe.comment("base"), image
    if recipe.digest:
        comment, name = recipe.comment("base-pinned", image=image), f"{_TAG.sub('', image)}@{recipe.digest}"
    return [comment, arg("NPUENV_BASE_IMAGE", name), Instruction("FROM ${NPUENV_BASE_IMAGE}"), BLANK]


def unpinned(stack: Stack, digest: str | None) -> tuple[Message, ...]:
    """What is to be said where the base image is named by its tag alone; nothing where its digest is given."""
    return () if digest else (Message("render.base-unpinned", {"image": stack.image or ""}),)


IMAGE_FILES = ("activate.sh", "entrypoint.sh", "healthcheck.py")
DOCTOR = "npuenv-doctor.pyz"  # the doctor as one file, where the image is to hold it


def image_files(recipe: ImageRecipe) -> dict[str, str]:
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
