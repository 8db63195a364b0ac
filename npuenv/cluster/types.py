"""The nodes of a cluster as the user names them, and what each answers. No behaviour beyond that."""

from __future__ import annotations

import enum
from dataclasses import dataclass

NO_JUMP = "none"  # as in ssh's own configuration


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that is reached over ssh. None: as the user's ssh configuration says, or not known."""

    name: str  # how the user calls it, and ssh's name for it
    address: str  # where it answers; equal to the name unless the inventory says otherwise
    user: str | None = None
    port: int | None = None
    jump: str | None = None  # the hosts in between, as for `ssh -J`; NO_JUMP: none, whatever the configuration says
    cards: int | None = None  # how many NPUs it ought to have; 0: it takes part without any
    python: str | None = None  # the interpreter there that runs the doctor; None: python3


@dataclass(frozen=True, slots=True)
class Inventory:
    """The nodes in the order of the file, no name twice."""

    nodes: tuple[Node, ...]
    source: str  # the file, for sentences


class Trouble(enum.Enum):
    """Why a node gave no answer. What a command answers, be it an error, is no trouble."""

    UNREACHABLE = "unreachable"  # no way there, or nobody at the address
    REFUSED = "refused"  # somebody is there, but not listening at this port
    DENIED = "denied"  # neither the user nor the keys are let in
    HOST_KEY = "host-key"  # its key is not known here, or not one that ssh takes
    CHANGED_KEY = "host-key-changed"  # its key is another one than it was
    NO_KEYS = "no-keys"  # no key can be known: ssh's configuration keeps none
    FORBIDDEN = "forbidden"  # the jump host passes no connection on
    NOT_FOUND = "not-found"  # the name has no address
    NO_PYTHON = "no-python"  # no interpreter there
    TOO_OLD = "too-old"  # an interpreter that is too old for the doctor
    TIMED_OUT = "timed-out"  # not done within the limit
    BROKEN = "broken"  # the connection or the command died half way
    TOO_MUCH = "too-much"  # it never stopped talking
    CLIENT = "client"  # ssh itself did not begin: no such program, or a configuration that it cannot read


@dataclass(frozen=True, slots=True)
class Answer:
    """What asking one node came to."""

    node: Node
    code: int | None  # the exit code of the command; None: it never came to one
    out: bytes
    err: str  # the end of it where it was long
    seconds: float
    trouble: Trouble | None  # None: the command ran to its end
