"""A container as a unit of Podman Quadlet, which systemd starts.

Source: podman-systemd.unit(5), "Container units [Container]".
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from npuenv.render.container.header import head, left_open

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.render.container.description import Container, Mount
    from npuenv.render.container.header import Say


def render(container: Container, version: str, say: Say) -> str:
    """The unit's text."""
    notes = [say("note-quadlet"), *([say("note-each-node")] if container.nodes > 1 else [])]
    lines = [*head(container, version, say, *notes, *left_open(container, say)), "[Container]", *_settings(container)]
    return "\n".join(lines).replace("%", "%%") + "\n"


def _settings(container: Container) -> Iterator[str]:
    yield f"Image={container.image}"
    yield f"ContainerName={container.name}"
    if container.is_host_network:
        yield "Network=host"
    yield "PodmanArgs=" + ("--ipc=host" if container.has_host_ipc else f"--ipc=private --shm-size={container.shm_gib}g")
    yield f"Ulimit=nofile={container.nofile}:{container.nofile}"
    if container.has_init:
        yield "RunInit=true"
    if container.user is not None:
        yield f"User={container.user.partition(':')[0]}"
    for name, value in container.environment_of_user.items():
        yield f"Environment={shlex.quote(f'{name}={value}')}"
    yield from (f"AddDevice={item.path}" for item in container.devices)
    yield from (_mount(mount) for mount in container.mounts)
    if container.command:
        yield f"Exec={shlex.join(container.command)}"


def _mount(mount: Mount) -> str:
    return f"Mount=type=bind,source={mount.source},target={mount.target}" + ",readonly" * mount.is_read_only
