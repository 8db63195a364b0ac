"""Rounds of small programs on all nodes at once: names and clocks, and whether a folder is shared.

Nothing is installed. Only if the user names a shared folder is a small file written there, and removed again. Ports are
probed in `npuenv.cluster.ports`.
"""

from __future__ import annotations

import posixpath
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from npuenv.cluster.consistency.findings import (
    ClockOffset,
    NodeIdentity,
    finding,
    message,
    names_to_resolve,
    too_few_nodes,
    with_unknown,
)
from npuenv.cluster.inventory import Node, fold
from npuenv.cluster.node_programs import ProbeResult, run_program
from npuenv.cluster.parallel_ssh import Transport
from npuenv.cluster.ports import probe_ports
from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.core.messages import Message


LIMIT_S = 30.0
LOOK_S = 8.0  # NFS clients keep an old listing for some seconds
_SHARE_LIMIT_S = 40.0
_WRITERS_AT_MOST = 3
_STORAGE_SOURCE = "checkpoints, data and ROLL's outputs are read by all nodes at one path"
_SOURCE = "npuenv"
_LOOK_UP_S = 6.0  # for all names of a node together
_CLOSE_S = 0.5  # a clock with a larger uncertainty is read again, on few nodes at once
_FEW = 4
_SLACK_S = 0.1  # between the end of an answer and the reading of the local clock


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The result of probing. `identities` is for `check_consistency`, which judges names and clocks."""

    identities: Mapping[str, NodeIdentity]
    findings: tuple[Finding, ...]  # about ports, packets and storage


def probe(
    nodes: Sequence[Node],
    transport: Transport | None = None,
    *,
    ports: Sequence[int] = (),
    has_dynamic: bool = False,
    shared: str | None = None,
) -> ProbeReport:
    """The results of all probes. `ports`: default Ray's and HCCL's; `has_dynamic` as for `probe_ports`; `shared`: a
    folder, None to write nothing.
    """
    transport = transport or Transport()
    identities, silent = identify_nodes(nodes, transport)
    present = [node for node in nodes if node.name in identities]
    if shared is None:
        storage = finding("storage", Status.SKIP, message("storage-unasked"), source=_SOURCE)
    else:
        storage = probe_shared_folder(present, shared, transport, absent=silent)
    reached = probe_ports(present, identities, transport, ports, absent=silent, has_dynamic=has_dynamic)
    return ProbeReport(identities, (*reached, storage))


def skipped_findings() -> tuple[Finding, ...]:
    """The findings without probes: how to have them made."""
    words = {"ports": "unprobed", "packets": "unprobed", "storage": "storage-unasked"}
    return tuple(finding(name, Status.SKIP, message(word), source=_SOURCE) for name, word in words.items())


def identify_nodes(nodes: Sequence[Node], transport: Transport) -> tuple[dict[str, NodeIdentity], dict[str, str]]:
    """The identities by the names of the inventory, and why the other nodes have none.

    Two rounds: host names and clocks, then what all names resolve to on each node. Clocks with a large uncertainty are
    read a third time, on few nodes at once.
    """
    first = {result.node.name: result for result in _round(nodes, (), transport)}
    silent = {name: result.why for name, result in first.items() if result.answer is None}
    present = [node for node in nodes if node.name not in silent]
    names = names_to_resolve(str(first[node.name].fields.get("hostname", "")) for node in present)
    second = {result.node.name: result for result in _round(present, names, transport)} if len(present) > 1 else {}
    rounds = {node.name: [each[node.name] for each in (first, second) if node.name in each] for node in present}
    found = {name: _identity(results) for name, results in rounds.items()}
    offsets = {node: found[node.name].offset for node in present}
    unsure = [node for node, offset in offsets.items() if offset is None or offset.within_s > _CLOSE_S]
    for result in _round(unsure, (), transport, parallel=_FEW):
        better, known = _offset(result), found[result.node.name]
        if better is not None and (known.offset is None or better.within_s < known.offset.within_s):
            found[result.node.name] = replace(known, offset=better)
    return found, silent


def _round(
    nodes: Sequence[Node], names: Sequence[str], transport: Transport, parallel: int | None = None
) -> list[ProbeResult]:
    request = {"names": list(names), "limit_s": _LOOK_UP_S}
    results = run_program(
        nodes, "introduce", lambda _: request, limit_s=LIMIT_S, transport=transport, parallel=parallel
    )
    return list(results)


def _identity(rounds: Sequence[ProbeResult]) -> NodeIdentity:
    """The identity from several rounds: the last names, and the best clock."""
    answer = rounds[0].fields
    resolved: Mapping[str, Any] = next(
        (result.fields["sees"] for result in reversed(rounds) if result.fields.get("sees")), {}
    )
    offsets = [offset for result in rounds if (offset := _offset(result)) is not None]
    return NodeIdentity(
        hostname=str(answer.get("hostname", "")),
        boot=str(answer.get("boot", "")),
        offset=min(offsets, key=lambda offset: offset.within_s, default=None),
        resolved={str(name): tuple(map(str, found)) for name, found in resolved.items()},
        addresses=tuple(map(str, answer.get("addresses", ()))),
        login=str(answer.get("login", "")),
    )


def _offset(result: ProbeResult) -> ClockOffset | None:
    """How far the clock of a node is ahead. The node reads it twice, between the two local times."""
    began, ended = result.fields.get("began"), result.fields.get("ended")
    if not isinstance(began, float) or not isinstance(ended, float):
        return None
    low, high = ended - result.ended, began - result.began + _SLACK_S
    if high < low:  # the clock was set between the two readings
        return None
    line = f"its clock {began:.2f} to {ended:.2f}, asked {result.began:.2f} to {result.ended:.2f}"
    return ClockOffset((low + high) / 2, (high - low) / 2, line)


def probe_shared_folder(
    nodes: Sequence[Node],
    folder: str,
    transport: Transport,
    *,
    look_s: float = LOOK_S,
    absent: Mapping[str, str] | None = None,
) -> Finding:
    """The finding about the folder: one node writes a file, the others look for it, up to `look_s`; then it is removed.

    `absent`: why other nodes take no part.
    """
    absent = absent or {}
    if len(nodes) < 2:
        return too_few_nodes("storage", absent, _STORAGE_SOURCE)
    refused: dict[str, ProbeResult] = {}
    for node in nodes[:_WRITERS_AT_MOST]:
        others = [other for other in nodes if other is not node and other.name not in refused]
        trial = _try(node, others, folder, transport, look_s)
        if trial.found is None:
            refused[node.name] = trial.written
            continue
        trials = [trial]
        astray = [other for other in others if _result(trial.found[other.name]) not in ("found", "")]
        if len(others) > 1 and 2 * len(astray) > len(others):
            # The writer may be the odd one, without the mount that the others have: have one of them write, too.
            rest = [node, *(other for other in others if other is not astray[0])]
            again = _try(astray[0], rest, folder, transport, look_s)
            trials += [again] if again.found is not None else []
        best = max(trials, key=lambda each: each.num_found)
        away = {name: ProbeResult(Node(name, name), None, 0.0, 0.0, why) for name, why in absent.items()}
        results = {**refused, **(best.found or {}), **away}
        verdict = judge(folder, best.writer, results, len(nodes) + len(away), mount=best.mount)
        for each in trials:
            verdict = _with_rest(verdict, each) if each.is_left else verdict
        return verdict
    return _unwritten(folder, refused)


@dataclass(frozen=True, slots=True)
class _Trial:
    """The result of one node's file."""

    writer: str
    path: str
    written: ProbeResult
    found: Mapping[str, ProbeResult] | None  # results of the others; None: it was not written
    left: ProbeResult  # of the removal; `written` if there was nothing to remove

    @property
    def mount(self) -> str:
        """The file system of the folder on the writer."""
        return str(self.written.fields.get("mount", ""))

    @property
    def num_found(self) -> int:
        """The number of nodes that found it."""
        return sum(_result(result) == "found" for result in (self.found or {}).values())

    @property
    def is_left(self) -> bool:
        return self.left.fields.get("said") != "removed"


def _try(writer: Node, others: Sequence[Node], folder: str, transport: Transport, look_s: float) -> _Trial:
    """Has one node write a file with a new name, the others look for it, and the one remove it."""
    path = posixpath.join(folder, f".npuenv-{secrets.token_hex(8)}")
    word = secrets.token_hex(32)
    written: ProbeResult | None = None
    found: Mapping[str, ProbeResult] | None = None
    try:
        written = _share([writer], "write", path, word, transport)[0]
        if written.fields.get("said") == "written":
            found = {result.node.name: result for result in _share(others, "find", path, word, transport, look_s)}
    finally:
        # Also after an interrupt or without an answer: the file may have been written.
        left = written
        if written is None or written.answer is None or written.answer.get("said") == "written":
            left = _share([writer], "remove", path, word, transport)[0]
    return _Trial(writer.name, path, written, found, left or written)


def judge(folder: str, writer: str, results: Mapping[str, ProbeResult], count: int, *, mount: str = "") -> Finding:
    """The finding from the results of the nodes other than `writer`; `mount` is the writer's file system."""
    states = {name: _result(each) for name, each in results.items() if each.answer is not None}
    silent = {name: each.why for name, each in results.items() if each.answer is None}
    astray = {name: word for name, word in states.items() if word != "found"}
    lines = [(writer, Evidence(f"{folder} (written here)", f"({mount})"))] if mount else []
    lines += [(name, Evidence(f"{folder} (written on {writer})", _shown(results[name]))) for name in astray]
    if astray:
        groups = [
            message("said", who=fold([name for name in astray if astray[name] == word]), value=_word(word))
            for word in dict.fromkeys(astray.values())
        ]
        args = {"folder": folder, "writer": writer, "groups": tuple(groups), "count": count - len(astray) - len(silent)}
        says = with_unknown(message("storage-apart", **args), fold(silent))
        return finding("storage", Status.FAIL, says, lines, source=_STORAGE_SOURCE, fix="storage", folder=folder)
    if silent:
        lines = [(name, Evidence(folder, why)) for name, why in silent.items()]
        return finding("storage", Status.UNKNOWN, message("blind", who=fold(silent)), lines, source=_STORAGE_SOURCE)
    says = message("storage-same", folder=folder, count=count)
    return finding("storage", Status.OK, says, source=_STORAGE_SOURCE)


def _unwritten(folder: str, refused: Mapping[str, ProbeResult]) -> Finding:
    lines = [
        (name, Evidence(f"write {folder}", _shown(result) if result.answer else result.why))
        for name, result in refused.items()
    ]
    says = message("storage-unwritten", folder=folder, who=fold(refused), why=lines[0][1].line)
    status = Status.FAIL if any(result.answer is not None for result in refused.values()) else Status.UNKNOWN
    return finding("storage", status, says, lines, source=_STORAGE_SOURCE, fix="storage", folder=folder)


def _with_rest(result: Finding, trial: _Trial) -> Finding:
    """The finding, with the file that could not be removed."""
    line = Evidence(f"{trial.writer}: rm {trial.path}", trial.left.why or _shown(trial.left))
    status = Status.WARN if result.status is Status.OK else result.status
    says = message("storage-left", says=result.says, writer=trial.writer, path=trial.path)
    return Finding(result.check, status, says, (line, *result.evidence), result.source, result.fix)


def _result(result: ProbeResult) -> str:
    return str(result.fields.get("said", ""))


def _shown(result: ProbeResult) -> str:
    mount = f"({result.fields['mount']})" if result.fields.get("mount") else ""
    return " ".join(filter(None, (_result(result), mount)))


def _word(state: str) -> Message | str:
    """A result for a sentence: in the user's language if it is one of the program's own."""
    return message(f"word-storage-{state}") if state in ("missing", "no-folder", "other") else state


def _share(
    nodes: Sequence[Node], do: str, path: str, word: str, transport: Transport, look_s: float = LOOK_S
) -> list[ProbeResult]:
    request = {"do": do, "path": path, "word": word, "limit_s": look_s}
    return list(run_program(nodes, "share", lambda _: request, limit_s=_SHARE_LIMIT_S, transport=transport))
