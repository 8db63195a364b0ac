"""The forms of run file by their name: `FORMS` and `render_container`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

import npuenv
from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npuenv.render.container.description import Container


class Form(NamedTuple):
    """One form of run file."""

    file: str  # its name
    module: str  # beside this one, whose `render` writes it
    synonyms: tuple[str, ...]  # what people call it too


FORMS = {
    "run": Form("docker-run.sh", "docker_run", ("docker", "podman")),
    "compose": Form("compose.yaml", "compose", ("docker-compose",)),
    "k8s": Form("kubernetes.yaml", "kubernetes", ("kubernetes", "volcano")),
    "slurm": Form("slurm.sh", "slurm", ("sbatch", "pyxis")),
    "apptainer": Form("apptainer.sh", "apptainer", ("singularity",)),
}
DOCKERFILE = "dockerfile"  # no run file, but the image itself
FORMATS = (DOCKERFILE, *FORMS)


def render_container(
    container: Container, forms: Iterable[str] = FORMS, *, version: str = npuenv.__version__, lang: str = "en"
) -> dict[str, str]:
    """File name -> text of each of the forms. The same values give the same bytes."""

    def speak(key: str, **args: object) -> str:
        return say(Message(f"container.{key}", args), lang)

    rows = [FORMS[form] for form in forms]
    modules = {row.file: importlib.import_module(f"npuenv.render.container.{row.module}") for row in rows}
    return {file: module.render(container, version, speak) for file, module in modules.items()}
