"""The forms of run file by their name: `render_container`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import npuenv
from npuenv.core.messages import Message, say
from npuenv.render.container import apptainer, compose, docker_run, kubernetes, slurm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npuenv.render.container.description import Container, Say

_RENDERERS: dict[str, tuple[str, Callable[[Container, str, Say], str]]] = {
    "run": ("docker-run.sh", docker_run.render),
    "compose": ("compose.yaml", compose.render),
    "k8s": ("kubernetes.yaml", kubernetes.render),
    "slurm": ("slurm.sh", slurm.render),
    "apptainer": ("apptainer.sh", apptainer.render),
}
FORMS = tuple(_RENDERERS)


def render_container(
    container: Container, forms: Iterable[str] = FORMS, *, version: str = npuenv.__version__, lang: str = "en"
) -> dict[str, str]:
    """File name -> text of each of the forms. The same values give the same bytes."""

    def speak(key: str, **args: object) -> str:
        return say(Message(f"container.{key}", args), lang)

    files = {}
    for form in forms:
        name, render = _RENDERERS[form]
        files[name] = render(container, version, speak)
    return files
