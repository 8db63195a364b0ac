"""Whether a folder is the same one on all nodes: one writes a small file there, the others look for it. See `share`.

It writes, so it is done only where the user names the folder. The file is removed again, whatever happens.
"""

from __future__ import annotations

import posixpath
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.cluster.consistency.findings import alone, finding, message
from npuenv.cluster.nodeset import fold
from npuenv.cluster.probing.transport import Heard, run
from npuenv.cluster.types import Node
from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.cluster.probing.transport import Way
    from npuenv.core.messages import Message

LOOK_S = 8.0  # NFS clients keep an old listing for some seconds
LIMIT_S = 40.0
_WRITERS_AT_MOST = 3
_SOURCE = "checkpoints, data and ROLL's outputs are read by all nodes at one path"


def share(
    nodes: Sequence[Node], folder: str, way: Way, *, look_s: float = LOOK_S, absent: Mapping[str, str] | None = None
) -> Finding:
    """One finding about the folder on these nodes. `look_s` is how long a new file may take to show; `absent` says why
    other nodes take no part.
    """
    away = {name: Heard(Node(name, name), None, 0.0, 0.0, why) for name, why in (absent or {}).items()}
    if len(nodes) < 2:
        return alone("storage", absent or {}, _SOURCE)
    refused: dict[str, Heard] = {}
    for node in nodes[:_WRITERS_AT_MOST]:
        others = [other for other in nodes if other is not node and other.name not in refused]
        tried = _try(node, others, folder, way, look_s)
        if tried.found is None:
            refused[node.name] = tried.written
            continue
        trials = [(node, tried), *_second(node, others, tried, folder, way, look_s)]
        writer, best = max(trials, key=lambda trial: trial[1].num_found)
        heard = {**refused, **(best.found or {}), **away}
        result = judge(folder, writer.name, heard, len(nodes) + len(away), mount=best.mount)
        for writer, each in trials:
            result = _with_rest(result, writer.name, each.path, each.left) if each.is_left else result
        return result
    return _unwritten(folder, refused)


def _second(
    first: Node, others: Sequence[Node], tried: _Tried, folder: str, way: Way, look_s: float
) -> list[tuple[Node, _Tried]]:
    """What comes of another node's file where most do not see the first one's: it may be the one that is apart, with
    an ordinary folder where the others have mounted theirs.
    """
    astray = [node for node in others if tried.found and _said(tried.found[node.name]) not in ("found", "")]
    if len(others) < 2 or 2 * len(astray) <= len(others):
        return []
    writer = astray[0]
    again = _try(writer, [first, *(node for node in others if node is not writer)], folder, way, look_s)
    return [(writer, again)] if again.found is not None else []


@dataclass(frozen=True, slots=True)
class _Tried:
    """What came of one node's file."""

    path: str
    written: Heard
    found: Mapping[str, Heard] | None  # what the others saw; None: it was not written
    left: Heard  # what came of removing it; `written` where nothing was there to remove

    @property
    def mount(self) -> str:
        """Where the file was written, by the file system that holds the folder there."""
        return str((self.written.told or {}).get("mount", ""))

    @property
    def num_found(self) -> int:
        """How many others saw it."""
        return sum(_said(heard) == "found" for heard in (self.found or {}).values())

    @property
    def is_left(self) -> bool:
        return self.left.told is None or self.left.told.get("said") != "removed"


def _try(writer: Node, others: Sequence[Node], folder: str, way: Way, look_s: float) -> _Tried:
    """Lets one node write, the others look, and the one remove it again. The path is new: no other file can have it."""
    path = posixpath.join(folder, f".npuenv-{secrets.token_hex(8)}")
    word = secrets.token_hex(32)
    written: Heard | None = None
    found: Mapping[str, Heard] | None = None
    try:
        written = _round([writer], "write", path, word, way)[0]
        if written.told is not None and written.told.get("said") == "written":
            found = {heard.node.name: heard for heard in _round(others, "find", path, word, way, look_s)}
    finally:
        # Also where the user breaks off, or no answer came: what we may have put there is ours to take away.
        left = written
        if written is None or written.told is None or written.told.get("said") == "written":
            left = _round([writer], "remove", path, word, way)[0]
    return _Tried(path, written, found, left or written)


def judge(folder: str, writer: str, heard: Mapping[str, Heard], count: int, *, mount: str = "") -> Finding:
    """The finding, from what the others saw of the file that `writer` had written; `mount` is the writer's."""
    said = {name: _said(each) for name, each in heard.items() if each.told is not None}
    silent = {name: each.why for name, each in heard.items() if each.told is None}
    astray = {name: word for name, word in said.items() if word != "found"}
    lines = [(writer, Evidence(f"{folder} (written here)", f"({mount})"))] if mount else []
    lines += [(name, Evidence(f"{folder} (written on {writer})", _shown(heard[name]))) for name in astray]
    if astray:
        groups = [
            message("said", who=fold([name for name in astray if astray[name] == word]), value=_word(word))
            for word in dict.fromkeys(astray.values())
        ]
        args = {"folder": folder, "writer": writer, "groups": tuple(groups), "count": count - len(astray) - len(silent)}
        says = message("storage-apart", **args)
        if silent:
            says = message("and-blind", says=says, who=fold(silent))
        return finding("storage", Status.FAIL, says, lines, source=_SOURCE, fix="storage", folder=folder)
    if silent:
        lines = [(name, Evidence(folder, why)) for name, why in silent.items()]
        return finding("storage", Status.UNKNOWN, message("blind", who=fold(silent)), lines, source=_SOURCE)
    says = message("storage-same", folder=folder, count=count)
    return finding("storage", Status.OK, says, source=_SOURCE)


def _unwritten(folder: str, refused: Mapping[str, Heard]) -> Finding:
    lines = [
        (name, Evidence(f"write {folder}", _shown(heard) if heard.told else heard.why))
        for name, heard in refused.items()
    ]
    says = message("storage-unwritten", folder=folder, who=fold(refused), why=lines[0][1].line)
    status = Status.FAIL if any(heard.told is not None for heard in refused.values()) else Status.UNKNOWN
    return finding("storage", status, says, lines, source=_SOURCE, fix="storage", folder=folder)


def _with_rest(result: Finding, writer: str, path: str, left: Heard) -> Finding:
    """The finding with a word about the file that could not be removed."""
    line = Evidence(f"{writer}: rm {path}", left.why or _shown(left))
    status = Status.WARN if result.status is Status.OK else result.status
    says = message("storage-left", says=result.says, writer=writer, path=path)
    return Finding(result.check, status, says, (line, *result.evidence), result.source, result.fix)


def _said(heard: Heard) -> str:
    return str((heard.told or {}).get("said", ""))


def _shown(heard: Heard) -> str:
    told = heard.told or {}
    return " ".join(filter(None, (str(told.get("said", "")), f"({told['mount']})" if told.get("mount") else "")))


def _word(said: str) -> Message | str:
    """What a node said, in the user's language where it is one of our own words."""
    return message(f"word-storage-{said}") if said in ("missing", "no-folder", "other") else said


def _round(nodes: Sequence[Node], do: str, path: str, word: str, way: Way, look_s: float = LOOK_S) -> list[Heard]:
    asked = {"do": do, "path": path, "word": word, "limit_s": look_s}
    return list(run(nodes, "share", lambda _: asked, limit_s=LIMIT_S, way=way)) if nodes else []
