"""A container as a compose file with one service; on several nodes the same file serves each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.render.container.parts import head, left_open
from npuenv.render.files import dump_yaml

if TYPE_CHECKING:
    from npuenv.render.container.description import Container, Mount
    from npuenv.render.container.parts import Say

_GROUP = "NPUENV_CARDS_GID"  # compose cannot look at the host; it stops where this variable is not set
_USERS = "users"


def render(container: Container, version: str, say: Say) -> str:
    """The file's text. Without a command the image's shell waits at a terminal of its own."""
    notes = [say("note-compose", name=container.name), *([say("note-each-node")] if container.nodes > 1 else [])]
    if container.is_root is False:
        notes.append(say("note-group-compose", how=f"export {_GROUP}=$(stat -c %g {container.devices[0].path})"))
    elif container.is_root is None:
        notes.append(say("note-group-image", add="group_add: [N]", below=container.name))
    if container.passwd:
        notes.append(say("note-users-compose"))
    lines = head(container, version, say, *notes, *left_open(container, say))
    file: dict[str, Any] = {"name": container.name, "services": {container.name: _service(container)}}
    if container.passwd:
        file["configs"] = {_USERS: {"content": "".join(f"{line}\n" for line in container.passwd)}}
    return dump_yaml(lines, [file])


def _service(container: Container) -> dict[str, Any]:
    service: dict[str, Any] = {
        "image": container.image,
        "container_name": container.name,
        "init": container.has_init,
        **({"network_mode": "host"} if container.is_host_network else {}),
        **({"ipc": "host"} if container.has_host_ipc else {"ipc": "private", "shm_size": f"{container.shm_gib}gb"}),
        "ulimits": {"nofile": {"soft": container.nofile, "hard": container.nofile}},
        "environment": container.environment_of_user,
        "devices": [f"{item.path}:{item.path}" for item in container.devices],
        "volumes": [_volume(mount) for mount in container.mounts],
        "restart": "no",
    }
    if container.user is not None:
        service["user"] = container.user
    if container.is_root is False:
        service["group_add"] = [f"${{{_GROUP}:?}}"]
    if container.passwd:
        service["configs"] = [{"source": _USERS, "target": "/etc/passwd"}]
    if container.command:
        service["command"] = list(container.command)
    else:
        service |= {"stdin_open": True, "tty": True}
    return service


def _volume(mount: Mount) -> dict[str, Any]:
    """A source that is missing stops the start; the short form would make an empty folder there."""
    return {
        "type": "bind",
        "source": mount.source,
        "target": mount.target,
        "read_only": mount.is_read_only,
        "bind": {"create_host_path": False},
    }
