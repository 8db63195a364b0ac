"""`npuenv render-docker`."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuenv.cli.common import Command, Ui, common_options, request_options
from npuenv.cli.help import Command as HelpfulCommand
from npuenv.cli.machine import lock_at_hand, own_locks, resolve_or_stop
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from npuenv.resolve.types import Request, Stack

_ARCHITECTURES = ("x86_64", "aarch64")
_DOCKERFILE, _ALL = "dockerfile", "all"
_ROOT = "root"
# Other words for the forms, by which the nearest is found.
_ALSO = {
    "docker": "run",
    "podman": "run",
    "docker-compose": "compose",
    "kubernetes": "k8s",
    "volcano": "k8s",
    "sbatch": "slurm",
    "pyxis": "slurm",
    "singularity": "apptainer",
}


def container_options(command: Command) -> Command:
    """Adds what is said about a running container; each option is a field of `Wish`."""
    decorated: Any = command
    for option in (
        click.option("--add-ons", "has_add_ons", is_flag=True, help="Mount /usr/local/Ascend/add-ons if it exists."),
        click.option("--command", metavar="LINE", help="Command to run inside (default: a shell)."),
        click.option("--user", metavar="UID[:GID]", help="User inside (default: the image's user)."),
        click.option("--shm-gib", type=int, metavar="N", help="Private shared memory (default: share the host's)."),
        click.option(
            "--models", type=click.Path(path_type=Path), metavar="DIR", help="Weights; mounted at /data/models."
        ),
        click.option(
            "--data", type=click.Path(path_type=Path), metavar="DIR", help="Data and results; mounted at /data."
        ),
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
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="DIR", help="Parent folder of the output.")
@click.option(
    "--as",
    "forms",
    multiple=True,
    metavar="FORM",
    help="dockerfile, run, compose, k8s, slurm, apptainer or all; repeatable or comma-separated (default: dockerfile).",
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
    from npuenv.render.folder import write_folders

    about = {"--base-digest": digest is not None, "--image-user": image_user != _ROOT}
    if with_doctor is not None:
        about["--with-doctor" if with_doctor else "--without-doctor"] = True
    if is_check:
        _refuse_beside_check({"--as": bool(forms), **about, **_said(wish), "--force": force})
        return _compare(ui, request)
    if out is None:
        raise BadInput(Message("render.no-out"), Message("render.no-out-hint"))
    asked = _forms(forms)
    _refuse_unheard(asked, wish)
    _refuse_without_image(asked, about)
    wanted = (request.arch,) if request.arch else _ARCHITECTURES
    stacks = {arch: resolve_or_stop(ui, replace(request, arch=arch)) for arch in wanted}
    stacks = {stack.platform.arch: stack for stack in stacks.values()}
    image = _image(ui, stacks, digest, image_user, has_doctor=with_doctor is not False) if _DOCKERFILE in asked else {}
    is_image_root = image_user == _ROOT if image else None
    folder, texts = _run_files(next(iter(stacks.values())), asked, wish, ui.lang, is_image_root=is_image_root)
    if texts:
        from npuenv.render.container.writing import changed_files, write_files

        changed_files(texts, out / folder, is_forced=force)  # before the image's folder is replaced
    written = list(write_folders(image, out, is_forced=force)) if image else []
    if texts:
        written += write_files(texts, out / folder, is_forced=force)
    files = [*image, *(f"{folder}/{name}" for name in texts)]
    if ui.is_json:
        document = {
            "schema": "npuenv.render/1",
            "exit": 0,
            "files": sorted(files),
            "written": [str(path) for path in written],
        }
        ui.print_json(document)
    for folder in sorted({name.partition("/")[0] for name in files}):
        is_new = any(path in (out / folder, *(out / folder).iterdir()) for path in written)
        ui.say(Message("cli.rendered" if is_new else "cli.was-rendered", {"path": str(out / folder)}))
    if image:
        from npuenv.render.base import unpinned

        for note in unpinned(next(iter(stacks.values())), digest):
            ui.say(note)
    return int(ExitCode.FINE)


def _forms(words: tuple[str, ...]) -> tuple[str, ...]:
    """The forms asked for, each once. Raises BadInput for one that does not exist, with the nearest name."""
    if not words:
        return (_DOCKERFILE,)
    from npuenv.render.container.writing import FORMS

    known = (_DOCKERFILE, *FORMS)
    asked = [word.strip() for words_of_one in words for word in words_of_one.split(",")]
    for word in asked:
        if word not in (*known, _ALL):
            import difflib

            near = difflib.get_close_matches(word.lower(), (*known, _ALL, *_ALSO), n=1, cutoff=0.0)[0]
            raise BadInput(
                Message("container.unknown-form", {"form": repr(word), "known": (*known, _ALL)}),
                Message("container.unknown-form-hint", {"near": _ALSO.get(near, near)}),
            )
    return known if _ALL in asked else tuple(dict.fromkeys(asked))


def _refuse_unheard(asked: tuple[str, ...], wish: dict[str, Any]) -> None:
    """Options about the running container, where nothing is rendered that runs it. Raises BadInput."""
    unheard = _named(_said(wish)) if set(asked) == {_DOCKERFILE} else ()
    if unheard:
        raise BadInput(Message("container.needs-form", {"options": unheard}), Message("container.needs-form-hint"))


def _refuse_beside_check(said: dict[str, bool]) -> None:
    """Options about what is rendered, where nothing is; `said` tells which were given. Raises BadInput."""
    unheard = _named(said)
    if unheard:
        raise BadInput(Message("container.check-alone", {"options": unheard}), Message("container.check-alone-hint"))


def _said(wish: dict[str, Any]) -> dict[str, bool]:
    """Which options about the running container were given."""
    from npuenv.render.container.description import Wish

    names = {item.name: "--" + item.name.removeprefix("has_").replace("_", "-") for item in fields(Wish)}
    return {names[item.name]: wish[item.name] != item.default for item in fields(Wish)}


def _named(said: dict[str, bool]) -> tuple[str, ...]:
    return tuple(option for option, is_said in said.items() if is_said)


def _refuse_without_image(asked: tuple[str, ...], said: dict[str, bool]) -> None:
    """Options about the image, where none is rendered; `said` tells which were given. Raises BadInput."""
    options = _named(said)
    if options and _DOCKERFILE not in asked:
        args: dict[str, object] = {"options": options, "forms": ",".join(asked)}
        raise BadInput(
            Message("container.image-needs-dockerfile", args), Message("container.image-needs-dockerfile-hint", args)
        )


def _run_files(
    stack: Stack, asked: tuple[str, ...], wish: dict[str, Any], lang: str, *, is_image_root: bool | None
) -> tuple[str, dict[str, str]]:
    """The folder of the files that run a container, and their texts by name; none where none is asked for."""
    forms = [form for form in asked if form != _DOCKERFILE]
    if not forms:
        return "", {}
    from npuenv.matrix import load_matrix
    from npuenv.render.container.description import Wish, describe
    from npuenv.render.container.writing import render_container

    container = describe(stack, Wish(**wish), load_matrix(), is_image_root=is_image_root)
    return f"{container.title}.run", render_container(container, forms, lang=lang)


def _compare(ui: Ui, request: Request) -> int:
    """Says what the published Dockerfile has otherwise, for the architecture asked for or x86_64."""
    from npuenv.lock.store import find_lock
    from npuenv.matrix import load_matrix
    from npuenv.render.upstream import compare

    stack = resolve_or_stop(ui, replace(request, arch=request.arch or _ARCHITECTURES[0]))
    found = compare(stack, load_matrix(), find_lock(stack, own_locks()))
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


def _image(
    ui: Ui, stacks: dict[str, Stack], digest: str | None, user: str, *, has_doctor: bool
) -> dict[str, str | bytes]:
    """The files of the image's folder: path below the parent folder -> text, or bytes of the doctor."""
    from npuenv.matrix import load_matrix
    from npuenv.render.docker import render_docker

    locks = {arch: lock_at_hand(ui, stack) for arch, stack in stacks.items()}
    indexes = {row.label: row for row in load_matrix().indexes}
    texts = render_docker(stacks, locks, indexes=indexes, lang=ui.lang, digest=digest, user=user, has_doctor=has_doctor)
    files: dict[str, str | bytes] = dict(texts)
    if has_doctor:
        from npuenv.bundle.zipapp import content
        from npuenv.render.image_files import DOCTOR

        files[f"{next(iter(texts)).partition('/')[0]}/{DOCTOR}"] = content()
    return files
