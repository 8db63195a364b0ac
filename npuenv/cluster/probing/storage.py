"""Whether a folder is the same one on all nodes: one node writes a small file there, the others look for it.

It writes, so it runs only if the user names the folder. The file is removed again, whatever happens.
"""

from __future__ import annotations

import posixpath
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.cluster.consistency.findings import alone, and_blind, finding, message
from npuenv.cluster.inventory import Node
from npuenv.cluster.nodeset import fold
from npuenv.cluster.transport import ProbeResult, run_program
from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.cluster.transport import Transport
    from npuenv.core.messages import Message

LOOK_S = 8.0  # NFS clients keep an old listing for some seconds
LIMIT_S = 40.0
_WRITERS_AT_MOST = 3
_SOURCE = "checkpoints, data and ROLL's outputs are read by all nodes at one path"


def probe_shared_folder(
    nodes: Sequence[Node],
    folder: str,
    transport: Transport,
    *,
    look_s: float = LOOK_S,
    absent: Mapping[str, str] | None = None,
) -> Finding:
    """One finding about the folder on these nodes. `look_s` is how long a new file may take to show; `absent` says why
    other nodes take no part.
    """
    away = {name: ProbeResult(Node(name, name), None, 0.0, 0.0, why) for name, why in (absent or {}).items()}
    if len(nodes) < 2:
        return alone("storage", absent or {}, _SOURCE)
    refused: dict[str, ProbeResult] = {}
    for node in nodes[:_WRITERS_AT_MOST]:
        others = [other for other in nodes if other is not node and other.name not in refused]
        tried = _try(node, others, folder, transport, look_s)
        if tried.found is None:
            refused[node.name] = tried.written
            continue
        trials = [(node, tried), *_second(node, others, tried, folder, transport, look_s)]
        writer, best = max(trials, key=lambda trial: trial[1].num_found)
        results = {**refused, **(best.found or {}), **away}
        verdict = judge(folder, writer.name, results, len(nodes) + len(away), mount=best.mount)
        for writer, each in trials:
            verdict = _with_rest(verdict, writer.name, each.path, each.left) if each.is_left else verdict
        return verdict
    return _unwritten(folder, refused)


def _second(
    first: Node, others: Sequence[Node], tried: _Trial, folder: str, transport: Transport, look_s: float
) -> list[tuple[Node, _Trial]]:
    """What comes of another node's file where most do not see the first one's: it may be the one that is apart, with
    an ordinary folder where the others have mounted theirs.
    """
    astray = [node for node in others if tried.found and _said(tried.found[node.name]) not in ("found", "")]
    if len(others) < 2 or 2 * len(astray) <= len(others):
        return []
    writer = astray[0]
    again = _try(writer, [first, *(node for node in others if node is not writer)], folder, transport, look_s)
    return [(writer, again)] if again.found is not None else []


@dataclass(frozen=True, slots=True)
class _Trial:
    """What came of one node's file."""

    path: str
    written: ProbeResult
    found: Mapping[str, ProbeResult] | None  # what the others saw; None: it was not written
    left: ProbeResult  # what came of removing it; `written` where nothing was there to remove

    @property
    def mount(self) -> str:
        """Where the file was written, by the file system that holds the folder there."""
        return str(self.written.fields.get("mount", ""))

    @property
    def num_found(self) -> int:
        """How many others saw it."""
        return sum(_said(result) == "found" for result in (self.found or {}).values())

    @property
    def is_left(self) -> bool:
        return self.left.fields.get("said") != "removed"


def _try(writer: Node, others: Sequence[Node], folder: str, transport: Transport, look_s: float) -> _Trial:
    """Lets one node write, the others look, and the one remove it again. The path is new: no other file can have it."""
    path = posixpath.join(folder, f".npuenv-{secrets.token_hex(8)}")
    word = secrets.token_hex(32)
    written: ProbeResult | None = None
    found: Mapping[str, ProbeResult] | None = None
    try:
        written = _round([writer], "write", path, word, transport)[0]
        if written.fields.get("said") == "written":
            found = {result.node.name: result for result in _round(others, "find", path, word, transport, look_s)}
    finally:
        # Also where the user breaks off, or no answer came: what we may have put there is ours to take away.
        left = written
        if written is None or written.answer is None or written.answer.get("said") == "written":
            left = _round([writer], "remove", path, word, transport)[0]
    return _Trial(path, written, found, left or written)


def judge(folder: str, writer: str, results: Mapping[str, ProbeResult], count: int, *, mount: str = "") -> Finding:
    """The finding, from what the others saw of the file that `writer` had written; `mount` is the writer's."""
    said = {name: _said(each) for name, each in results.items() if each.answer is not None}
    silent = {name: each.why for name, each in results.items() if each.answer is None}
    astray = {name: word for name, word in said.items() if word != "found"}
    lines = [(writer, Evidence(f"{folder} (written here)", f"({mount})"))] if mount else []
    lines += [(name, Evidence(f"{folder} (written on {writer})", _shown(results[name]))) for name in astray]
    if astray:
        groups = [
            message("said", who=fold([name for name in astray if astray[name] == word]), value=_word(word))
            for word in dict.fromkeys(astray.values())
        ]
        args = {"folder": folder, "writer": writer, "groups": tuple(groups), "count": count - len(astray) - len(silent)}
        says = and_blind(message("storage-apart", **args), fold(silent))
        return finding("storage", Status.FAIL, says, lines, source=_SOURCE, fix="storage", folder=folder)
    if silent:
        lines = [(name, Evidence(folder, why)) for name, why in silent.items()]
        return finding("storage", Status.UNKNOWN, message("blind", who=fold(silent)), lines, source=_SOURCE)
    says = message("storage-same", folder=folder, count=count)
    return finding("storage", Status.OK, says, source=_SOURCE)


def _unwritten(folder: str, refused: Mapping[str, ProbeResult]) -> Finding:
    lines = [
        (name, Evidence(f"write {folder}", _shown(result) if result.answer else result.why))
        for name, result in refused.items()
    ]
    says = message("storage-unwritten", folder=folder, who=fold(refused), why=lines[0][1].line)
    status = Status.FAIL if any(result.answer is not None for result in refused.values()) else Status.UNKNOWN
    return finding("storage", status, says, lines, source=_SOURCE, fix="storage", folder=folder)


def _with_rest(result: Finding, writer: str, path: str, left: ProbeResult) -> Finding:
    """The finding with a word about the file that could not be removed."""
    line = Evidence(f"{writer}: rm {path}", left.why or _shown(left))
    status = Status.WARN if result.status is Status.OK else result.status
    says = message("storage-left", says=result.says, writer=writer, path=path)
    return Finding(result.check, status, says, (line, *result.evidence), result.source, result.fix)


def _said(result: ProbeResult) -> str:
    return str(result.fields.get("said", ""))


def _shown(result: ProbeResult) -> str:
    mount = f"({result.fields['mount']})" if result.fields.get("mount") else ""
    return " ".join(filter(None, (_said(result), mount)))


def _word(said: str) -> Message | str:
    """What a node said, in the user's language where it is one of our own words."""
    return message(f"word-storage-{said}") if said in ("missing", "no-folder", "other") else said


def _round(
    nodes: Sequence[Node], do: str, path: str, word: str, transport: Transport, look_s: float = LOOK_S
) -> list[ProbeResult]:
    request = {"do": do, "path": path, "word": word, "limit_s": look_s}
    return list(run_program(nodes, "share", lambda _: request, limit_s=LIMIT_S, transport=transport))
