"""What the forms share: the comment lines at the top, and of the shell scripts the check of the host, the two sides of
a Ray cluster, and lines of options.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Protocol

from npuenv.preflight.memory.types import written_cards
from npuenv.render.container.description import Mount
from npuenv.render.files import fill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.render.container.description import Container

# The same in every language: by it a file is known to be rendered here.
MARK = "# npuenv.run/1 "


class Say(Protocol):
    """A sentence of the catalogue `container` by the last part of its key, in the reader's language."""

    def __call__(self, key: str, **args: object) -> str: ...


def head(container: Container, version: str, say: Say, *notes: str, chooses: bool = True) -> list[str]:
    """The comment lines of a file. `notes` are sentences of its form; `chooses` is off where others pick cards."""
    cards = written_cards(container.cards)
    inside = container.environment["ASCEND_RT_VISIBLE_DEVICES"]
    which = say("head-cards", cards=cards) if chooses else say("head-count", count=len(container.cards))
    lines = [
        say("head", title=container.title, hardware=container.hardware, version=version),
        which,
        say("head-inside", inside=inside),
        say("head-host-numbers"),
        *([say("head-nodes", nodes=container.nodes)] if container.nodes > 1 else []),
        *([say("head-mount-points", places=container.mount_points)] if container.mount_points else []),
        *notes,
    ]
    return [f"{MARK}{container.title}", *(f"# {line}" for line in lines)]


def left_open(container: Container, say: Say, *, names_devices: bool = True) -> list[str]:
    """For forms that cannot ask the host: places that it may not have, and that are to be taken out there."""
    helps = advice([mount for mount in container.mounts if not mount.is_required], say)
    places = [item.path for item in container.devices if names_devices and not item.is_required]
    places += [mount.source for mount in container.mounts if not mount.is_required]
    return [say("head-optional", places=tuple(places)), *helps] if places else []


def advice(mounts: Sequence[Mount], say: Say) -> list[str]:
    """What to do where one of the mounts is missing, each sentence once."""
    keys = dict.fromkeys(mount.why.key for mount in mounts if mount.why)
    return [say(key.partition(".")[2]) for key in keys]


RAY_PORT = 6379

# Arguments: what stands before and after the list of what is missing, then pairs of a test and a place.
_CHECK = fill("container_check.sh.j2").rstrip()
# Arguments of its function: the head's name, seconds to wait until it can be resolved, what to say where the interface
# is not found. As network.sh of render-launch does, by Python alone: an image may have no program ip. A name that leads
# to the loopback is the head's own, and the interface of the default route is taken, whose address Ray takes as well.
_NETWORK = fill("container_network.sh.j2")
# Arguments: this node's name, the port, how many nodes there are, what to say where they do not all come, what to say
# where the interface is not found, then the command, whose end is the end of the cluster. It waits as the scripts of
# render-launch do. ROLL reads the three variables to learn that it is on the head; they are set after Ray's start, or
# every worker of Ray would have them too. The interface is set before it: Ray's processes inherit what it starts with.
LEAD = _NETWORK + fill("container_lead.sh.j2").rstrip()
# Arguments: HOST:PORT of the head, which may come up later, what to say where it does not, what to say where the
# interface is not found. Whoever started this ends it.
FOLLOW = _NETWORK + fill("container_follow.sh.j2").rstrip()

_TESTS = {"device": "-e", "directory": "-d", "file": "-f"}


def opening(container: Container, version: str, say: Say, *notes: str, shell: str = "/bin/sh") -> list[str]:
    """The first lines of a script, with what helps where one of the mounts is missing."""
    return [f"#!{shell}", *head(container, version, say, *notes, *advice(container.mounts, say))]


def program(name: str, text: str) -> list[str]:
    """A variable that holds a program for another shell."""
    assert "'" not in text
    return ["# shellcheck disable=SC2016 # read by another shell", f"{name}='{text}'"]


_PLACES = "%places%"  # known only where the script runs


def check(container: Container, say: Say, *, runner: Sequence[str] = ()) -> list[str]:
    """Ends the script with one sentence where a required place is missing. `runner` starts it elsewhere."""
    before, after = say("missing", places=_PLACES).split(_PLACES)
    pairs = [f"-e {shlex.quote(item.path)}" for item in container.devices if item.is_required]
    pairs += [f"{_TESTS[mount.kind]} {shlex.quote(mount.source)}" for mount in container.mounts if mount.is_required]
    pairs += [f"-d {shlex.quote(place)}" for place in container.mount_points]
    start = " ".join((*runner, 'sh -c "$check" check'))
    return [*program("check", _CHECK), *lines(start, [f"{shlex.quote(before)} {shlex.quote(after)}", *pairs])]


def lines(start: str, rest: Sequence[str]) -> list[str]:
    """One command over several lines."""
    whole = [start, *(f"    {item}" for item in rest)]
    return [*(f"{line} \\" for line in whole[:-1]), whole[-1]]


def default_command(words: Sequence[str]) -> str:
    """Arguments of the script are the command; without any, these words are."""
    return f'if [ "$#" -eq 0 ]; then set -- {shlex.join(words)}; fi'


def open_files(container: Container, say: Say) -> list[str]:
    """Raises the limit where the caller may, else says so: the lack shows much later. For bash, which knows -n."""
    words = shlex.quote(say("few-open-files", limit=container.nofile))
    return [f"ulimit -n {container.nofile} 2>/dev/null || printf '%s\\n' {words} >&2"]


def lead(container: Container, say: Say, head: str) -> list[str]:
    """Arguments of `LEAD` before the command; `head` is the head's name."""
    return [head, str(RAY_PORT), str(container.nodes), say("no-nodes", nodes=container.nodes), say("no-interface")]


def follow(say: Say, head: str) -> list[str]:
    """Arguments of `FOLLOW`."""
    return [f"{head}:{RAY_PORT}", say("no-head"), say("no-interface")]


def required(container: Container) -> list[Mount]:
    """Devices and mounts that are always there, as mounts: for forms that know devices as paths only."""
    return [mount for mount in as_mounts(container) if mount.is_required]


def optional(container: Container) -> list[Mount]:
    """The rest of `required`."""
    return [mount for mount in as_mounts(container) if not mount.is_required]


def as_mounts(container: Container) -> list[Mount]:
    """Every device and mount, the devices writable."""
    devices = [
        Mount(item.path, item.path, "file", is_read_only=False, is_required=item.is_required)
        for item in container.devices
    ]
    return [*devices, *container.mounts]


def triple(mount: Mount) -> str:
    """`source:target`, with `:ro` where it is not to be written, as pyxis and Apptainer read it."""
    return f"{mount.source}:{mount.target}" + (":ro" if mount.is_read_only else "")


def has_registry(image: str) -> bool:
    """Whether the reference names a registry: as for Docker, a first part with a dot or a port.

    `localhost` alone is none: podman and buildah call their own images so.
    """
    first, slash, _ = image.partition("/")
    return bool(slash) and ("." in first or ":" in first)


def is_of_podman(image: str) -> bool:
    """Whether the reference is what podman and buildah call an image of their own, `localhost/...`."""
    return image.startswith("localhost/")
