"""What stands in the head of every run file: what it is, which cards it takes, what was left open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from npuenv.preflight.memory.types import written_cards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.render.container.description import Container, Mount

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
