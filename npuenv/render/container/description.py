"""How a container of an image is to run, once for all forms of run file.

Cards are named by the number of their device node, `/dev/davinciN`, as the host counts them; a chip of a two-chip card
has a number of its own. Inside a container the runtime counts from 0 again.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.preflight.memory.types import read_cards
from npuenv.render.docker import folder_name
from npuenv.render.files import plain
from npuenv.render.layers import HOME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from npuenv.matrix.rows import ContainerCards, ContainerPlace
    from npuenv.matrix.tables import Matrix
    from npuenv.resolve.types import Stack


class ContainerOptions(NamedTuple):
    """What the user said about the container. None: not said."""

    cards: str | None = None  # "0-7", "0,2,4-5"
    nodes: int = 1
    image: str | None = None
    name: str | None = None
    data: Path | None = None
    models: Path | None = None
    shm_gib: int | None = None
    user: str | None = None
    command: str | None = None  # one line, split as a shell would
    has_add_ons: bool = False


# Where data and weights are inside: the published examples and the launch files name these.
DATA, MODELS = "/data", "/data/models"
# Of a user that the image may not know: a name, and a home that is writable in every image.
_USER, _HOME = "npuenv", "/tmp"
_NOFILE = 65536  # open files: one for each socket and worker; the published containers have this limit
_MOST_NODES = 4096


@dataclass(frozen=True, slots=True)
class Device:
    """A device node of the host, under the same path inside."""

    path: str
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the host inside the container."""

    source: str
    target: str
    kind: Literal["directory", "file"]
    is_read_only: bool = True
    is_required: bool = True
    why: Message | None = None  # what to do where it is missing; None: nothing is known


@dataclass(frozen=True, slots=True)
class Container:
    """One container on each of `nodes` nodes, alike on all of them."""

    title: str  # the image's folder, or the image where no stack is known
    name: str  # a label as DNS has them: lower-case letters, digits, inner dashes
    image: str
    hardware: str
    cards: tuple[int, ...]  # numbers on the host, ascending, the same on every node
    nodes: int
    node_cards: int  # cards of a node whose last card may be the last of `cards`
    resource: str  # of Kubernetes' device plugin
    label: str  # of Volcano's Ascend plugin; "": none is known
    node_type: str  # what Volcano's Ascend plugin calls such a node; "": it asks for none
    devices: tuple[Device, ...]  # the cards' nodes first
    mounts: tuple[Mount, ...]  # parents before what lies below them
    environment: Mapping[str, str]
    shm_gib: int | None  # None: IPC and /dev/shm are the host's
    user: str | None  # "UID" or "UID:GID"; None: the image's. Slurm and Apptainer run as the caller
    command: tuple[str, ...]  # empty: an interactive shell, where there is a terminal
    entrypoint: tuple[str, ...]  # the image's own; forms that skip it call it themselves
    is_image_root: bool | None = None  # whether the image's user is root; None: nobody said
    nofile: int = _NOFILE
    is_host_network: bool = True  # HCCL between nodes needs the host's; there is no reason to differ on one
    has_init: bool = True  # reaps what Ray leaves behind

    @property
    def has_host_ipc(self) -> bool:
        """Whether shared memory is the host's, whose size nothing here limits."""
        return self.shm_gib is None

    @property
    def is_root(self) -> bool | None:
        """Whether root runs inside; None: nobody said. The card's device nodes are open to root and a group alone."""
        return self.is_image_root if self.user is None else int(self.user.partition(":")[0]) == 0

    @property
    def environment_of_user(self) -> dict[str, str]:
        """`environment` for forms that take `user`, whose home would be `/` where the image does not know the id."""
        named = {"HOME": _HOME, "USER": _USER, "LOGNAME": _USER} if self.passwd else {}
        return {**self.environment, **named}

    @property
    def passwd(self) -> tuple[str, ...]:
        """Lines of /etc/passwd for a `user` that the image may not know; none for root and for the image's own user.

        Without an entry torch's compiler cache fails, and HCCL with more than one card does.
        Source: vllm-project/vllm#46734; vllm-project/vllm-ascend#9490.
        """
        if self.user is None or self.is_root:
            return ()
        owner, _, group = self.user.partition(":")
        return "root:x:0:0:root:/root:/bin/bash", f"{_USER}:x:{owner}:{group or 0}:{_USER}:{_HOME}:/bin/bash"

    @property
    def mount_points(self) -> tuple[str, ...]:
        """Folders of the host on which another mount lies: engines make a missing one as root, or do not start."""
        pairs = ((inner, outer) for inner in self.mounts for outer in self.mounts)
        nested = [
            (inner, outer.source + inner.target.removeprefix(outer.target))
            for inner, outer in pairs
            if inner.target.startswith(f"{outer.target}/")
        ]
        return tuple(place for inner, place in nested if place != inner.source)


def describe(
    stack: Stack | None,
    options: ContainerOptions,
    matrix: Matrix,
    *,
    hardware: str | None = None,
    is_image_root: bool | None = None,
) -> Container:
    """The container of a stack's image on its hardware; without a stack, of `options.image` on `hardware`.

    `is_image_root`: whether the image's own user is root; None: not known.

    Raises BadInput for a card that cannot be, a path that is not absolute, a value that could break out of its place
    in one of the files, and where neither the stack nor the options says what must be known.
    """
    chips = hardware or (stack.platform.hardware if stack else None)
    row = next((row for row in matrix.container_cards if row.hardware == chips), None)
    if chips is None or row is None:
        raise _bad("no-cards", stack=stack.name if stack else "-")
    cards = _cards(options.cards, row)
    if not 1 <= options.nodes <= _MOST_NODES:
        raise _bad("bad-nodes", nodes=options.nodes, most=_MOST_NODES)
    if options.shm_gib is not None and options.shm_gib < 1:
        raise _bad("bad-shm", gib=options.shm_gib)
    if options.image is None and stack is None:
        raise _bad("image-needed")
    default = f"{stack.name.lower()}:{chips}" if stack else ""  # as the Dockerfile's head says to build
    image = image_name(options.image if options.image is not None else default)
    places = [place for place in matrix.container_places if chips in place.hardware]
    return Container(
        title=folder_name(stack) if stack else image,
        name=object_name(
            near_name(f"{stack.name if stack else 'npuenv'}-{chips}") if options.name is None else options.name
        ),
        image=image,
        hardware=chips,
        cards=cards,
        nodes=options.nodes,
        node_cards=max(row.usual, cards[-1] + 1),
        resource=row.resource,
        label=row.label,
        node_type=row.large_node_type if cards[-1] >= row.usual and row.large_node_type else row.node_type,
        devices=(*(Device(f"/dev/davinci{card}") for card in cards), *_devices(places, options)),
        mounts=(*_mounts(places, options), *_own_folders(options)),
        environment={"ASCEND_RT_VISIBLE_DEVICES": ",".join(str(place) for place in range(len(cards)))},
        shm_gib=options.shm_gib,
        user=user_ids(options.user) if options.user is not None else None,
        command=_command(options.command),
        entrypoint=("/bin/bash", f"{HOME}/entrypoint.sh"),
        is_image_root=is_image_root,
    )


def _cards(words: str | None, row: ContainerCards) -> tuple[int, ...]:
    """The numbers of `0-3,5`, ascending. Raises BadInput for anything else, a number twice, and one that cannot be."""
    if words is None:
        if not row.usual:
            raise _bad("cards-needed", hardware=row.hardware)
        return tuple(range(row.usual))
    cards = read_cards(words, row.most)
    if cards is None:
        raise _bad("bad-cards", cards=repr(words))
    if max(cards) >= row.most:
        raise _bad("no-such-card", card=max(cards), hardware=row.hardware, last=row.most - 1)
    twice = sorted({card for card in cards if cards.count(card) > 1})
    if twice:
        raise _bad("card-twice", card=twice[0], cards=repr(words))
    return tuple(sorted(cards))


def _is_taken(place: ContainerPlace, options: ContainerOptions) -> bool:
    return place.need != "asked" or options.has_add_ons


def _is_required(place: ContainerPlace, options: ContainerOptions) -> bool:
    return place.need == "always" or (place.need == "several-nodes" and options.nodes > 1)


def _devices(places: list[ContainerPlace], options: ContainerOptions) -> list[Device]:
    return [Device(place.path, _is_required(place, options)) for place in places if place.kind == "device"]


def _mounts(places: list[ContainerPlace], options: ContainerOptions) -> list[Mount]:
    return [
        Mount(
            place.path,
            place.path,
            place.kind,
            is_required=_is_required(place, options),
            why=Message(place.why) if place.why else None,
        )
        for place in places
        if place.kind != "device" and _is_taken(place, options)
    ]


def _own_folders(options: ContainerOptions) -> list[Mount]:
    """Data and weights, both writable: the published examples keep checkpoints beside the weights."""
    asked = ((options.data, "--data", DATA), (options.models, "--models", MODELS))
    return [
        Mount(absolute_path(str(folder), option), target, "directory", is_read_only=False)
        for folder, option, target in asked
        if folder is not None
    ]


def _command(line: str | None) -> tuple[str, ...]:
    if line is None:
        return ()
    try:
        words = shlex.split(line)
    except ValueError:
        raise _bad("open-quote", command=repr(line)) from None
    return plain_words(words, "--command")


def _bad(key: str, **args: object) -> BadInput:
    return BadInput(Message(f"container.{key}", args), Message(f"container.{key}-hint", args))


_LISTED = re.compile(r"[,:]")  # they part the words of a list of mounts
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?", re.ASCII)
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::\d+)?/)?[a-z0-9][a-z0-9._-]*(?:/[a-z0-9][a-z0-9._-]*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_USER_NAME = re.compile(r"\d+(?::\d+)?", re.ASCII)


def plain_words(words: Sequence[str], what: str) -> tuple[str, ...]:
    """The words themselves, each plain. Raises BadInput for one that is not, and for none at all."""
    if not words or not words[0]:
        raise _bad("no-words", what=what)
    return tuple(plain(word, what) for word in words)


def absolute_path(path: str, what: str) -> str:
    """The path without trailing slashes or `..`. Raises BadInput for a relative one, and for what a list would part."""
    if not plain(path, what).startswith("/"):
        raise BadInput(
            Message("container.relative", {"what": what, "path": path}),
            Message("container.relative-hint", {"what": what, "path": path.removeprefix("./")}),
        )
    found = _LISTED.search(path)
    if found:
        args = {"what": what, "value": repr(path), "character": repr(found.group())}
        raise BadInput(Message("render.unsafe-value", args), Message("container.unsafe-path-hint"))
    clean = "/" + posixpath.normpath(path).lstrip("/")
    if clean == "/":
        raise _bad("whole-root", what=what)
    return clean


def object_name(name: str) -> str:
    """The name itself, when Kubernetes takes it and what is derived from it. Raises BadInput.

    Volcano makes a Service of that name, so it begins with a letter. Source: Kubernetes, object names (RFC 1035).
    """
    if not _NAME.fullmatch(name):
        near = near_name(name)
        raise BadInput(Message("container.bad-name", {"name": repr(name)}), Message("container.use", {"near": near}))
    return name


def near_name(words: str) -> str:
    """The nearest that `object_name` takes. Example: "7B_grpo" -> "npuenv-7b-grpo"."""
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    return (name if name[:1].isalpha() else f"npuenv-{name}")[:40].strip("-")


def image_name(name: str) -> str:
    """The reference itself, when it is one of an image. Raises BadInput."""
    if not _IMAGE.fullmatch(name):
        raise _bad("bad-image", image=repr(name))
    return name


def user_ids(user: str) -> str:
    """The ids themselves: UID or UID:GID in digits, which every engine understands. Raises BadInput."""
    if not _USER_NAME.fullmatch(user):
        raise _bad("bad-user", user=repr(user))
    return user
