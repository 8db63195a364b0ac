"""A stack as an image, and as files that run its container: `render_docker`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npuenv.app import resolution
from npuenv.app.progress import SILENT, Progress
from npuenv.bundle.zipapp import content
from npuenv.lock.store import find_lock
from npuenv.matrix import load_matrix
from npuenv.render import docker, upstream
from npuenv.render.base import DOCTOR, IMAGE_FILES, unpinned
from npuenv.render.container.description import ContainerOptions, describe
from npuenv.render.container.formats import DOCKERFILE, render_container
from npuenv.render.files import write_files

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from npuenv.core.messages import Message
    from npuenv.resolve.types import Request, Stack

ROOT = "root"
_ARCHITECTURES = ("x86_64", "aarch64")
_OF_IMAGE = re.compile(rf"{'|'.join(map(re.escape, (*IMAGE_FILES, DOCTOR)))}|requirements\.[^/]+\.txt")


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
    """Files by name: those of the image, and those that run its container, in a folder each."""

    image: Mapping[str, str | bytes]
    image_folder: str
    container: Mapping[str, str]
    folder: str  # of those that run the container
    notes: tuple[Message, ...]  # what of the image is not pinned

    @property
    def names(self) -> list[str]:
        """The paths of all files below the parent folder."""
        image = [f"{self.image_folder}/{name}" for name in self.image]
        return [*image, *(f"{self.folder}/{name}" for name in self.container)]

    def write(self, out: Path, *, is_forced: bool = False) -> list[Path]:
        """Writes what differs below `out`; the image's folder where it changed, and the run files.

        Raises BadInput for files that are in the way, before the first is written.
        """
        image = out / self.image_folder
        files = {f"{self.image_folder}/{name}": content for name, content in self.image.items()}
        files |= {f"{self.folder}/{name}": text for name, text in self.container.items()}
        stale = [f"{self.image_folder}/{name}" for name in _stale_files(image, self.image)] if self.image else []
        written = [out / name for name in write_files(files, out, is_forced=is_forced, stale=stale)]
        is_new = bool(stale) or any(path.is_relative_to(image) for path in written)
        return [*([image] if is_new else []), *(path for path in written if not path.is_relative_to(image))]


def _stale_files(folder: Path, files: Collection[str]) -> list[str]:
    """What an earlier rendering left in an image's folder beside the files of this one."""
    dockerfile = folder / "Dockerfile"
    if not dockerfile.is_file() or not dockerfile.read_bytes().startswith(docker.MARK.encode()):
        return []
    return sorted(each.name for each in folder.iterdir() if _OF_IMAGE.fullmatch(each.name) and each.name not in files)


def render_docker(request: Request, options: ImageOptions | None = None, progress: Progress = SILENT) -> Rendered:
    """The files for both architectures, or for the one of the request. Raises ConflictError, BadInput, NothingFits."""
    options = options or ImageOptions()
    wanted = (request.arch,) if request.arch else _ARCHITECTURES
    resolved = [resolution.resolve(replace(request, arch=arch)) for arch in wanted]
    stacks = {stack.platform.arch: stack for stack in resolved}
    first, matrix = resolved[0], load_matrix()
    image = _image(stacks, options, progress) if DOCKERFILE in options.formats else {}
    container, folder = {}, ""
    if formats := [name for name in options.formats if name != DOCKERFILE]:
        about = describe(first, options.container, matrix, is_image_root=options.user == ROOT if image else None)
        container, folder = render_container(about, formats, lang=options.lang), f"{about.title}.run"
    notes = tuple(unpinned(first, options.digest)) if image else ()
    return Rendered(image, docker.folder_name(first), container, folder, notes)


def _image(stacks: dict[str, Stack], options: ImageOptions, progress: Progress) -> dict[str, str | bytes]:
    found = {arch: resolution.lock(stack, progress=progress) for arch, stack in stacks.items()}
    texts = docker.render_docker(
        stacks,
        found,
        indexes={row.label: row for row in load_matrix().indexes},
        lang=options.lang,
        digest=options.digest,
        user=options.user,
        has_doctor=options.has_doctor,
    )
    files: dict[str, str | bytes] = {path.partition("/")[2]: text for path, text in texts.items()}
    return files | ({DOCTOR: content()} if options.has_doctor else {})


def compare_image(request: Request) -> tuple[Stack, upstream.Comparison]:
    """The stack, and what the published Dockerfile has otherwise, for the request's architecture or x86_64."""
    stack = resolution.resolve(replace(request, arch=request.arch or _ARCHITECTURES[0]))
    return stack, upstream.compare(stack, load_matrix(), find_lock(stack, resolution.own_locks()))
