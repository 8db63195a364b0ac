"""The forms of run file by their name: `FORMS` and `render_container`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import npuenv
from npuenv.core.messages import Message, say
from npuenv.render.container import apptainer, compose, docker_run, kubernetes, slurm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npuenv.render.container.description import Container, Say


@dataclass(frozen=True, slots=True)
class Form:
    """One form of run file."""

    file: str  # its name
    render: Callable[[Container, str, Say], str]
    synonyms: tuple[str, ...]  # what people call it too


FORMS = {
    "run": Form("docker-run.sh", docker_run.render, ("docker", "podman")),
    "compose": Form("compose.yaml", compose.render, ("docker-compose",)),
    "k8s": Form("kubernetes.yaml", kubernetes.render, ("kubernetes", "volcano")),
    "slurm": Form("slurm.sh", slurm.render, ("sbatch", "pyxis")),
    "apptainer": Form("apptainer.sh", apptainer.render, ("singularity",)),
}


def render_container(
    container: Container, forms: Iterable[str] = FORMS, *, version: str = npuenv.__version__, lang: str = "en"
) -> dict[str, str]:
    """File name -> text of each of the forms. The same values give the same bytes."""

    def speak(key: str, **args: object) -> str:
        return say(Message(f"container.{key}", args), lang)

    return {FORMS[form].file: FORMS[form].render(container, version, speak) for form in forms}
