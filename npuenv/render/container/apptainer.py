"""A container as a POSIX shell script around `apptainer exec`.

Apptainer shows the host's whole /dev unless told otherwise; with `--contain` there are only the nodes that are bound.
It runs as the caller, in the host's network, and skips the image's entry point. That the driver counts from 0 in such
a /dev is known of Docker's; neither this form nor pyxis' was seen on a machine with cards.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npuenv.render.container import parts
from npuenv.render.container.parts import has_registry, is_of_podman

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.render.container.description import Container
    from npuenv.render.container.parts import Say


def render(container: Container, version: str, say: Say) -> str:
    """The script's text. What is given to the script is the command; without, a shell starts."""
    notes = [say("note-apptainer"), *([say("note-each-node")] if container.nodes > 1 else [])]
    if not container.has_host_ipc:
        notes.append(say("note-no-shm-limit"))
    text = [
        *parts.opening(container, version, say, *notes, shell="/bin/bash"),
        "set -eu",
        "",
        *parts.check(container, say),
        *parts.open_files(container, say),
        "",
        *_image(container, say),
        *(f"export APPTAINERENV_{name}={shlex.quote(value)}" for name, value in container.environment.items()),
        parts.default_command(container.command or ("/bin/bash",)),
        f'set -- "$image" {shlex.join(container.entrypoint)} "$@"',
        *_where_there(container),
        'scratch=$(mktemp -d "${TMPDIR:-/tmp}/npuenv.XXXXXX")',
        "trap 'rm -rf \"$scratch\"' EXIT",
        "trap 'exit 130' INT",
        "trap 'exit 143' TERM",
        *parts.lines("apptainer exec", [*_options(container), '"$@"']),
    ]
    return "\n".join(text) + "\n"


def _options(container: Container) -> Iterator[str]:
    yield "--contain"
    yield "--cleanenv"
    # Without a folder of its own, /tmp has 64 MiB there, and Ray keeps its logs and sockets in it.
    yield '--workdir "$scratch"'
    yield "--writable-tmpfs"
    if not container.has_host_ipc:
        yield "--ipc"
    yield from (f"--bind {shlex.quote(parts.triple(mount))}" for mount in parts.required(container))


def _where_there(container: Container) -> Iterator[str]:
    for mount in parts.optional(container):
        bind = shlex.quote(parts.triple(mount))
        yield f'if [ -e {shlex.quote(mount.source)} ]; then set -- --bind {bind} "$@"; fi'


def _image(container: Container, say: Say) -> list[str]:
    """From its registry where it has one, else a file beside the caller that Docker's image was made into."""
    if has_registry(container.image):
        return [f"image={shlex.quote(f'docker://{container.image}')}"]
    file = f"{container.name}.sif"
    how = f"apptainer build {file} docker-daemon:{container.image}"
    if is_of_podman(container.image):
        saved = f"{container.name}.tar"
        how = f"podman save -o {saved} {container.image} && apptainer build {file} docker-archive:{saved}"
    return file_image(file, say("no-image-file", file=file, how=how))


def file_image(file: str, sentence: str) -> list[str]:
    """Sets `image` to a file of the working folder, and ends with the sentence where it is missing."""
    return [
        f'image="$PWD"/{shlex.quote(file)}',
        'if [ ! -f "$image" ]; then',
        f"    printf '%s\\n' {shlex.quote(sentence)} >&2",
        "    exit 1",
        "fi",
    ]
