"""A container as a POSIX shell script around `docker run`; podman understands the same words."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npuenv.render.container import parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.render.container.description import Container, Mount
    from npuenv.render.container.parts import Say


def render(container: Container, version: str, say: Say) -> str:
    """The script's text. What is given to the script is the command; without, the image's shell starts."""
    notes = [say("note-run"), say("note-engine"), *([say("note-each-node")] if container.nodes > 1 else [])]
    text = [
        *parts.opening(container, version, say, *notes),
        "set -eu",
        "",
        *parts.check(container, say),
        "",
        *([parts.default_command(container.command)] if container.command else []),
        f'set -- {shlex.quote(container.image)} "$@"',
        *_where_there(container),
        'if [ -t 0 ] && [ -t 1 ]; then set -- --interactive --tty "$@"; fi',
        *_users(container),
        *parts.lines(_run(container), [*_options(container), '"$@"']),
    ]
    return "\n".join(text) + "\n"


def _users(container: Container) -> Iterator[str]:
    """A file with the user's entry, which is gone when the container has ended."""
    if container.passwd:
        yield 'users=$(mktemp "${TMPDIR:-/tmp}/npuenv.XXXXXX")'
        yield "trap 'rm -f \"$users\"' EXIT"
        yield "trap 'exit 130' INT"
        yield "trap 'exit 143' TERM"
        yield f"printf '%s\\n' {shlex.join(container.passwd)} >\"$users\""
        yield 'chmod 644 "$users"'


def _run(container: Container) -> str:
    """Without `exec` where something is left to be done at the end."""
    return ("" if container.passwd else "exec ") + '"${NPUENV_ENGINE:-docker}" run'


def _options(container: Container) -> Iterator[str]:
    yield "--rm"
    if container.has_init:
        yield "--init"
    yield f"--name {shlex.quote(container.name)}"
    if container.is_host_network:
        yield "--network host"
    yield "--ipc host" if container.has_host_ipc else f"--ipc private --shm-size {container.shm_gib}g"
    yield f"--ulimit nofile={container.nofile}:{container.nofile}"
    if container.user is not None:
        yield f"--user {container.user}"
    if not container.is_root:
        yield f'--group-add "$(stat -c %g {shlex.quote(container.devices[0].path)})"'
    for name, value in container.environment_of_user.items():
        yield f"--env {shlex.quote(f'{name}={value}')}"
    yield from (_device(item.path) for item in container.devices if item.is_required)
    yield from (_mount(mount) for mount in container.mounts if mount.is_required)
    if container.passwd:
        yield '--mount "type=bind,source=$users,target=/etc/passwd,readonly"'


def _where_there(container: Container) -> Iterator[str]:
    """Options for places that not every host has."""
    for item in container.devices:
        if not item.is_required:
            yield f'if [ -e {shlex.quote(item.path)} ]; then set -- {_device(item.path)} "$@"; fi'
    for mount in container.mounts:
        if not mount.is_required:
            yield f'if [ -e {shlex.quote(mount.source)} ]; then set -- {_mount(mount)} "$@"; fi'


def _device(path: str) -> str:
    return f"--device {shlex.quote(f'{path}:{path}')}"


def _mount(mount: Mount) -> str:
    """Unlike `--volume`, this makes no folder on the host where the source is missing."""
    words = f"type=bind,source={mount.source},target={mount.target}" + (",readonly" if mount.is_read_only else "")
    return f"--mount {shlex.quote(words)}"
