"""The state of a Ray cluster, as text and as the `npuenv.ray/1` document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npuenv.cluster.inventory import fold
from npuenv.core.messages import Message, clean, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.cluster.ray import StartConflict
    from npuenv.cluster.ray_status import RayStatus

SCHEMA = "npuenv.ray/1"
_CARD = "NPU"


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node. `what` is up, not-up, down, not-down; or of nodes on which none was started: free (nothing runs there),
    other (somebody else's Ray does) or shared (one that was started for another inventory).
    """

    what: str
    line: Message | str = ""  # why it is not as it should be
    said: str = ""  # all that a start there has said
    ended: int = 0  # processes
    address: str = ""  # by which Ray calls it
    cards: int | None = None  # that a start there has told Ray
    joined: tuple[str, ...] = ()  # the heads of what somebody else started

    @property
    def is_well(self) -> bool:
        """Whether it is as the command wants it."""
        return self.what in ("up", "down")


@dataclass(frozen=True, slots=True)
class Picture:
    """All that a command tells about a cluster."""

    title: Message
    address: str  # of the head; "": there is none
    rows: Mapping[str, NodeRow]  # by node
    status: RayStatus | None = None  # what Ray says of itself; None: it was not asked
    explained: Sequence[Message] = field(default=())  # what is wrong
    warned: Sequence[Message] = field(default=())  # what is up, and will not do
    waiting: Sequence[Message] = field(default=())  # what waits for others to end
    strangers: tuple[str, ...] = ()  # the addresses of nodes that somebody else let join
    then: Message | None = None  # what to do next


def document(picture: Picture, code: int, lang: str) -> dict[str, Any]:
    """The JSON document; its keys do not depend on the language."""
    resources = picture.status.resources() if picture.status else {}
    return {
        "schema": SCHEMA,
        "exit": code,
        "address": picture.address,
        "nodes": {name: _row_json(row, picture.status, lang) for name, row in picture.rows.items()},
        "resources": {name: {"used": used, "total": total} for name, (used, total) in resources.items()},
        "strangers": list(picture.strangers),
        "explained": [say(message, lang) for message in picture.explained],
        "warnings": [say(message, lang) for message in picture.warned],
        "waiting": [say(message, lang) for message in picture.waiting],
        "next": say(picture.then, lang) if picture.then else None,
    }


def lines(picture: Picture, lang: str) -> list[str]:
    """The lines for people."""
    found = [clean(say(picture.title, lang))]
    found += ["  " + clean(say(_row_message(name, row, picture.status), lang)) for name, row in picture.rows.items()]
    for name, (used, total) in (picture.status.resources() if picture.status else {}).items():
        if "memory" not in name:
            args = {"name": name, "used": f"{used:g}", "total": f"{total:g}"}
            found.append("  " + clean(say(Message("cluster.ray-resource", args), lang)))
    found += ["  " + clean(say(message, lang)) for message in (*picture.explained, *picture.warned, *picture.waiting)]
    if picture.strangers:
        found.append("  " + clean(say(Message("cluster.ray-strangers", {"names": picture.strangers}), lang)))
    return [*found, *([clean(say(picture.then, lang))] if picture.then else [])]


def refused_document(wrong: Sequence[StartConflict], code: int, lang: str) -> dict[str, Any]:
    """Why nothing was started, as a document."""
    rows = [{"nodes": list(each.nodes), "says": say(each.says, lang), "lines": _lines_of(each, lang)} for each in wrong]
    return {"schema": SCHEMA, "exit": code, "refused": rows}


def refused_lines(wrong: Sequence[StartConflict], lang: str) -> list[str]:
    """Why nothing was started, for people."""
    found = []
    for each in wrong:
        args = {"names": fold(each.nodes), "says": each.says}
        found.append(clean(say(Message("cluster.ray-refused", args), lang)))
        found += [f"  {clean(line)}" for line in _lines_of(each, lang)]
    return found


def _lines_of(conflict: StartConflict, lang: str) -> list[str]:
    return [f"{name}: {_text(line, lang)}" for name, line in conflict.lines]


def _text(line: Message | str, lang: str) -> str:
    return say(line, lang) if isinstance(line, Message) else line


def _row_message(name: str, row: NodeRow, status: RayStatus | None) -> Message:
    at = status.at(row.address) if status and row.what == "up" else None
    args: dict[str, object] = {"name": name, "line": row.line, "ended": row.ended, "address": row.address}
    if at is not None and at.is_alive and at.total.get(_CARD):
        used = {"used": f"{at.used.get(_CARD, 0.0):g}", "total": f"{at.total[_CARD]:g}"}
        return Message("cluster.ray-node-up-cards", {**args, **used})
    if row.what == "other":
        return Message("cluster.ray-node-other", {"name": name, "address": row.joined or "?"})
    return Message(f"cluster.ray-node-{row.what}", args)


def _row_json(row: NodeRow, status: RayStatus | None, lang: str) -> dict[str, Any]:
    found: dict[str, Any] = {"is_down" if "down" in row.what else "is_up": row.is_well}
    line = _text(row.line, lang)
    found |= {"line": line} if line else {}
    found |= {"said": row.said} if row.said else {}
    found |= {"cards": row.cards} if row.cards is not None else {}
    found |= {"ended": row.ended} if "down" in row.what else {}
    found |= {"others": list(row.joined)} if row.what in ("other", "shared") else {}
    if row.address:
        found["address"] = row.address
        at = status.at(row.address) if status and status.nodes is not None else None
        is_told = status is not None and status.nodes is not None
        found["ray"] = None if not is_told else {"alive": bool(at and at.is_alive), "why": at.why if at else ""}
        if at is not None and at.is_alive:
            named = {name: total for name, total in at.total.items() if ":" not in name}
            found["resources"] = {name: {"used": at.used[name], "total": total} for name, total in named.items()}
    return found
