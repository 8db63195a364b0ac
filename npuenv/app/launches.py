"""The files that start a training run of verl or ROLL: `render_launch`, and `write_launch` into a folder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.app import resolution
from npuenv.app.progress import SILENT, Progress
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.render.files import WrittenFiles, write_files
from npuenv.render.launch.generate import FRAMEWORKS, launch, refuse_contradiction
from npuenv.render.launch.job import LaunchOptions, unknown
from npuenv.render.launch.roll_recipe import release_of
from npuenv.render.variables import RAY_FILES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from npuenv.render.launch.job import LaunchFiles
    from npuenv.resolve.types import Request


def render_launch(
    request: Request,
    options: LaunchOptions | None = None,
    progress: Progress = SILENT,
    *,
    host: str | None = None,
    lang: str = "en",
) -> LaunchFiles:
    """The files of a run, whether or not it fits into memory. Nothing is written.

    `host`: `this` or a capture, whose cards count where the options give no number; None: this machine where it decided
    the request. `lang` is that of the comments. Raises BadInput, ConflictError.
    """
    options = options or LaunchOptions()
    request, release = _with_release(request, framework_of(request), options.release)
    # The files of a release that is named may be meant for wherever that runs.
    of_host = request if release else resolution.for_this_host(request)
    host = host or ("this" if of_host is not request else None)
    stack = resolution.resolve(of_host)
    for note in resolution.basis_of(of_host, stack):
        progress.note(note)
    cards = resolution.num_cards(host) if host and options.cards_per_node is None else None
    return launch(replace(options, release=release, cards_of_host=cards or None), stack, lang=lang)


def framework_of(request: Request) -> str:
    """verl or roll: that of the request, else of its stack. Raises BadInput."""
    _refuse_recipe(request.stack or "")
    if request.framework:
        name = request.framework.partition("==")[0].strip()
        if name not in FRAMEWORKS:
            raise unknown(name, FRAMEWORKS, "framework")
        return name
    rows = load_matrix().recipes
    row = next((row for row in rows if row.id == request.stack), None)
    if row is not None and row.framework in FRAMEWORKS:
        return row.framework
    if request.stack and row is None:
        raise unknown(request.stack, (row.id for row in rows), "stack")
    raise BadInput(Message("launch_roll.no-framework"), Message("launch_roll.no-framework-hint"))


def _refuse_recipe(stack: str) -> None:
    """Raises BadInput for the name of a recipe where that of a stack is expected."""
    matrix = load_matrix()
    names = {row.id: "verl" for row in matrix.launch_recipes} | {row.id: "roll" for row in matrix.roll_recipes}
    if stack in names:
        hint = Message("launch_roll.recipe-as-stack-hint", {"framework": names[stack], "recipe": stack})
        raise BadInput(Message("launch_roll.unknown-stack", {"name": stack}), hint)


def _with_release(request: Request, framework: str, release: str) -> tuple[Request, str]:
    """The request of a stack that goes with the release, and the release: of a launch it may be any commit."""
    matrix = load_matrix()
    name, _, named = (part.strip() for part in (request.framework or "").partition("=="))
    release = release or named
    if named and named != release:
        raise BadInput(
            Message("launch.two-releases", {"first": named, "second": release}), Message("launch.two-releases-hint")
        )
    row = next((row for row in matrix.recipes if row.id == request.stack), None)
    if row is not None:
        refuse_contradiction(row, name or None, release or None)
    if request.stack:
        return replace(request, framework=None), release
    request = replace(request, framework=framework)
    if release and framework == "roll":
        return replace(request, stack=release_of(release, matrix.roll_releases).stack), release
    # The stack of that release where one is published; else the newest stack, whose settings then serve.
    known = {row.release for row in matrix.recipes if row.framework == "verl"}
    is_published = framework == "verl" and release.removeprefix("v") in known
    return replace(request, release=release) if is_published else request, release


def write_launch(files: Mapping[str, str], out: Path, *, is_forced: bool = False) -> WrittenFiles:
    """Writes what differs into a folder, scripts executable. Raises BadInput for files in the way, before writing."""
    stale = tuple(name for name in RAY_FILES if name not in files and _is_ours(out / name))
    return WrittenFiles(write_files(files, out, is_forced=is_forced, stale=stale), stale)


def _is_ours(path: Path) -> bool:
    """Whether npuenv wrote a file: its second line says so."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b"\n# npuenv " in file.read(200)
