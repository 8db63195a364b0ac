"""A stack as an image, and as files that run its container: `render_docker`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npuenv.app import locks, resolution
from npuenv.app.job import SILENT, Progress
from npuenv.bundle.zipapp import content
from npuenv.lock.store import find_lock
from npuenv.matrix import load_matrix
from npuenv.render import docker, upstream
from npuenv.render.base import unpinned
from npuenv.render.container.description import ContainerOptions, describe
from npuenv.render.container.writing import FORMS, changed_files, render_container, write_files
from npuenv.render.folder import write_folders
from npuenv.render.image_files import DOCTOR

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from npuenv.core.messages import Message
    from npuenv.resolve.types import Request, Stack

DOCKERFILE = "dockerfile"
FORMATS = (DOCKERFILE, *FORMS)
ROOT = "root"
_ARCHITECTURES = ("x86_64", "aarch64")


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """What is rendered, for which container."""

    formats: tuple[str, ...] = (DOCKERFILE,)  # of FORMATS
    digest: str | None = None  # of the base image; None: it is not pinned
    user: str = ROOT  # who owns and runs the image
    has_doctor: bool = True  # for the image's health check
    container: ContainerOptions = field(default_factory=ContainerOptions)
    lang: str = "en"  # of the comments


@dataclass(frozen=True, slots=True)
class Rendered:
    """Files by their path below the parent folder: those of the image, and those that run its container."""

    image: Mapping[str, str | bytes]
    container: Mapping[str, str]
    folder: str  # of those that run the container
    notes: tuple[Message, ...]  # what of the image is not pinned

    @property
    def names(self) -> list[str]:
        """The paths of all files."""
        return [*self.image, *(f"{self.folder}/{name}" for name in self.container)]

    def write(self, out: Path, *, is_forced: bool = False) -> list[Path]:
        """Writes what differs below `out`; the paths. Raises BadInput for foreign files that are in the way."""
        if self.container:
            changed_files(self.container, out / self.folder, is_forced=is_forced)  # before the image is replaced
        written = list(write_folders(self.image, out, is_forced=is_forced)) if self.image else []
        if self.container:
            written += write_files(self.container, out / self.folder, is_forced=is_forced)
        return written


def render_docker(request: Request, options: ImageOptions | None = None, progress: Progress = SILENT) -> Rendered:
    """The files for both architectures, or for the one of the request. Raises ConflictError, BadInput, NothingFits."""
    options = options or ImageOptions()
    wanted = (request.arch,) if request.arch else _ARCHITECTURES
    resolved = [resolution.resolve(replace(request, arch=arch)) for arch in wanted]
    stacks = {stack.platform.arch: stack for stack in resolved}
    first, matrix = resolved[0], load_matrix()
    image: dict[str, str | bytes] = {}
    if DOCKERFILE in options.formats:
        image = _image(stacks, options, progress)
    container, folder = {}, ""
    if formats := [name for name in options.formats if name != DOCKERFILE]:
        about = describe(first, options.container, matrix, is_image_root=options.user == ROOT if image else None)
        container, folder = render_container(about, formats, lang=options.lang), f"{about.title}.run"
    return Rendered(image, container, folder, tuple(unpinned(first, options.digest)) if image else ())


def _image(stacks: dict[str, Stack], options: ImageOptions, progress: Progress) -> dict[str, str | bytes]:
    found = {arch: locks.lock(stack, progress=progress) for arch, stack in stacks.items()}
    texts = docker.render_docker(
        stacks,
        found,
        indexes={row.label: row for row in load_matrix().indexes},
        lang=options.lang,
        digest=options.digest,
        user=options.user,
        has_doctor=options.has_doctor,
    )
    doctor = {f"{next(iter(texts)).partition('/')[0]}/{DOCTOR}": content()} if options.has_doctor else {}
    return {**texts, **doctor}


def compare_image(request: Request) -> tuple[Stack, upstream.Comparison]:
    """The stack, and what the published Dockerfile has otherwise, for the request's architecture or x86_64."""
    stack = resolution.resolve(replace(request, arch=request.arch or _ARCHITECTURES[0]))
    return stack, upstream.compare(stack, load_matrix(), find_lock(stack, resolution.own_locks()))
