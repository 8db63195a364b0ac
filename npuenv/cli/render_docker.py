"""`npuenv render-docker`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from npuenv import app
from npuenv.cli.common import FILE, Command, HelpfulCommand, Ui, common_options, request_options
from npuenv.cli.progress import StepProgress
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, say
from npuenv.render.container.formats import DOCKERFILE, FORMATS, FORMS

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.resolve.types import Request

_ALL, _ROOT = "all", "root"
_SYNONYMS = {synonym: name for name, form in FORMS.items() for synonym in form.synonyms}


def container_options(command: Command) -> Command:
    """Adds what is said about a running container; each option is a field of `app.ContainerOptions`."""
    decorated: Any = command
    for option in (
        click.option("--add-ons", "has_add_ons", is_flag=True, help="Mount /usr/local/Ascend/add-ons if it exists."),
        click.option("--command", metavar="LINE", help="Command to run inside (default: a shell)."),
        click.option("--user", metavar="UID[:GID]", help="User inside (default: the image's user)."),
        click.option("--shm-gib", type=int, metavar="N", help="Private shared memory (default: share the host's)."),
        click.option("--models", type=FILE, metavar="DIR", help="Weights; mounted at /data/models."),
        click.option("--data", type=FILE, metavar="DIR", help="Data and results; mounted at /data."),
        click.option("--name", metavar="NAME", help="Container and job name (default: from the stack)."),
        click.option("--image", metavar="NAME:TAG", help="Built image (default: the tag in the Dockerfile's header)."),
        click.option(
            "--nodes", type=int, default=1, metavar="N", help="Number of identical machines.", show_default=True
        ),
        click.option("--cards", metavar="LIST", help="Cards per node, e.g. 0-7 or 4,7 (default for a2 and a3: all)."),
    ):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


@click.command("render-docker", cls=HelpfulCommand)
@request_options
@click.option("-o", "--out", type=FILE, metavar="DIR", help="Parent folder of the output.")
@click.option(
    "--as",
    "forms",
    multiple=True,
    metavar="FORM",
    help=f"{', '.join(FORMATS)} or all; repeatable or comma-separated (default: dockerfile).",
)
@click.option("--base-digest", "digest", metavar="sha256:...", help="Pin the base image to this digest.")
@click.option(
    "--image-user", metavar="NAME", default=_ROOT, show_default=True, help="User that owns and runs the image."
)
@click.option(
    "--with-doctor/--without-doctor",
    "with_doctor",
    default=None,
    help="Add the doctor for the image's health check; without it, the check only compares versions (default: with).",
)
@click.option("--check", "is_check", is_flag=True, help="Only compare with the published Dockerfile.")
@container_options
@click.option("--force", is_flag=True, help="Replace files that differ.")
@common_options
def command(
    ui: Ui,
    *,
    request: Request,
    out: Path | None,
    forms: tuple[str, ...],
    digest: str | None,
    image_user: str,
    with_doctor: bool | None,
    is_check: bool,
    force: bool,
    **wish: Any,
) -> int:
    """Render the environment as a Dockerfile with hashed requirements, and files to run its container.

    Writes one folder STACK.HARDWARE.OS for both architectures (--arch limits it to one), and the files to run it to
    STACK.HARDWARE.OS.run beside it. With --check, compares the image with the stack's published Dockerfile and lists
    every difference in base, packages, sources, order and settings.
    """
    about = {"--base-digest": digest is not None, "--image-user": image_user != _ROOT}
    if with_doctor is not None:
        about["--with-doctor" if with_doctor else "--without-doctor"] = True
    container, unsaid = app.ContainerOptions(**wish), app.ContainerOptions()
    names = ["--" + name.removeprefix("has_").replace("_", "-") for name in container._fields]
    of_container = {name: said != default for name, said, default in zip(names, container, unsaid)}
    if is_check:
        _refuse("container.check-alone", {"--as": bool(forms), **about, **of_container, "--force": force})
        return _compare(ui, request)
    if out is None:
        raise BadInput(Message("render.no-out"), Message("render.no-out-hint"))
    formats = _formats(forms)
    if set(formats) == {DOCKERFILE}:
        _refuse("container.needs-form", of_container, forms=tuple(FORMS))
    if DOCKERFILE not in formats:
        _refuse("container.image-needs-dockerfile", about, forms=",".join(formats))
    options = app.ImageOptions(formats, digest, image_user, with_doctor is not False, container, ui.lang)
    rendered = app.render_docker(request, options, StepProgress(ui))
    written = rendered.write(out, is_forced=force)
    if ui.is_json:
        paths = [str(path) for path in written]
        ui.print_json({"schema": "npuenv.render/1", "exit": 0, "files": sorted(rendered.names), "written": paths})
    for folder in sorted({name.partition("/")[0] for name in rendered.names}):
        is_new = any(path in (out / folder, *(out / folder).iterdir()) for path in written)
        ui.say(Message("cli.rendered" if is_new else "cli.was-rendered", {"path": str(out / folder)}))
    for note in rendered.notes:
        ui.say(note)
    return int(ExitCode.FINE)


def _refuse(key: str, given: dict[str, bool], **args: object) -> None:
    """Raises BadInput where options were given that have no meaning beside the others."""
    args["options"] = tuple(option for option, is_given in given.items() if is_given)
    if args["options"]:
        raise BadInput(Message(key, args), Message(f"{key}-hint", args))


def _formats(words: tuple[str, ...]) -> tuple[str, ...]:
    """The forms asked for, each once. Raises BadInput for one that does not exist, with the nearest name."""
    if not words:
        return (DOCKERFILE,)
    asked = [word.strip() for words_of_one in words for word in words_of_one.split(",")]
    for word in asked:
        if word not in (*FORMATS, _ALL):
            import difflib

            near = difflib.get_close_matches(word.lower(), (*FORMATS, _ALL, *_SYNONYMS), n=1, cutoff=0.0)[0]
            raise BadInput(
                Message("container.unknown-form", {"form": repr(word), "known": (*FORMATS, _ALL)}),
                Message("container.unknown-form-hint", {"near": _SYNONYMS.get(near, near)}),
            )
    return FORMATS if _ALL in asked else tuple(dict.fromkeys(asked))


def _compare(ui: Ui, request: Request) -> int:
    """Says what the published Dockerfile has otherwise, for the architecture asked for or x86_64."""
    stack, found = app.images.compare_image(request)
    if ui.is_json:
        differences = [
            {key: getattr(each, key) for key in ("kind", "name", "theirs", "ours")} for each in found.differences
        ]
        ui.print_json(
            {
                "schema": "npuenv.upstream/1",
                "exit": 0,
                "stack": stack.name,
                "arch": stack.platform.arch,
                "upstream": found.row.source if found.row else None,
                "differences": differences,
            }
        )
        return int(ExitCode.FINE)
    for message in () if ui.is_quiet else found.says:
        print(_folded(say(message, ui.lang)))
    return int(ExitCode.FINE)


def _folded(line: str) -> str:
    """A long line as a terminal shows it best: broken between words, what follows moved in. Whole where none looks."""
    import shutil
    import sys
    import textwrap

    if not sys.stdout.isatty():
        return line
    width = max(shutil.get_terminal_size().columns, 40)
    return textwrap.fill(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
