"""What came back from the nodes: the capture of each, its findings, and the report on all with its exit code.

The doctor is sent to each node as one file, runs there and leaves nothing behind; the capture is written to a folder
and read again. In a folder each node has one file, a capture like any other for `npuenv doctor --from FILE`;
`nodes.json` lists the nodes that were asked, also those without one. Exit codes follow from the findings of each node
and between nodes.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv import __version__
from npuenv.checks import exit_code
from npuenv.cluster.inventory import Inventory, Node
from npuenv.cluster.node_programs import parse_answer, reason_line
from npuenv.cluster.parallel_ssh import MAX_BYTES
from npuenv.cluster.ssh import NodeFailure, failing_hop, keeps_host_keys
from npuenv.core.documents import load_json
from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.finding import Status
from npuenv.core.messages import Message, say
from npuenv.facts.target import joined
from npuenv.host.recorded import load_capture, parse_capture
from npuenv.host.redact import Redactor
from npuenv.host.writing import cannot_save, write_whole

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from types import TracebackType

    from npuenv.checks import Finding
    from npuenv.cluster.parallel_ssh import NodeAnswer, Transport
    from npuenv.host.recorded import RecordedHost


# Limits of a node by the doctor's level: files, tools, cards and network, burn-in.
LIMITS_S = (60.0, 120.0, 600.0, 1800.0)
_SPARE_S = 5.0  # of the limit, for the node to report a timeout itself, and to clean up
_OLDEST_FOR_PROBES = (3, 6)  # for the programs of `npuenv.cluster.probing`

SCHEMA = "npuenv.nodes/1"
LIST = "nodes.json"
_USER = re.compile(r"(?P<user>[^\s@]+)@(?P<host>[^\s:]+): ")  # "ops@bastion: Permission denied (publickey)."
_OTHER_SCHEMA = re.compile(rb'\s*\{\s*"schema":\s*"npuenv\.(?!capture/)[^"]*"')
_HEAD_BYTES = 200  # of a document, with its schema
_APART = "+"  # after the name of a node whose capture would overwrite the list; no host name has it


@dataclass(frozen=True, slots=True)
class NodeCapture:
    """The capture of one node, or why there is none."""

    node: Node
    seconds: float
    text: str = ""  # the capture, as `npuenv.capture/1`
    host: RecordedHost | None = None  # reads from it; None: there is no capture
    failure: NodeFailure | None = None
    line: str = ""  # the deciding line of ssh or of the node, or the command that timed out
    at: str = ""  # the jump host that failed; "": the node itself

    @property
    def can_probe(self) -> bool:
        """Whether the node's Python can run the probes, which need less than the doctor."""
        found = re.fullmatch(r"Python (\d+)\.(\d+).*", self.line) if self.failure is NodeFailure.TOO_OLD else None
        return self.host is not None or (found is not None and (int(found[1]), int(found[2])) >= _OLDEST_FOR_PROBES)


def collect_captures(
    nodes: Sequence[Node], program: bytes, words: Sequence[str], *, limit_s: float, transport: Transport
) -> Generator[NodeCapture, None, None]:
    """Every node's capture as it comes in. Closing the iterator ends all that runs, on the nodes too.

    `program`: the doctor as one file; `words`: its options.
    """
    remote_s = max(limit_s - _SPARE_S, limit_s / 2)
    request = {"limit_s": remote_s, "size": len(program), "words": list(words)}
    data = json.dumps(request).encode() + b"\n" + program
    agent = joined([f"{__package__}.remote_agent"])
    answers = transport.run_python(nodes, agent, lambda _: data, limit_s=limit_s, max_bytes=MAX_BYTES)
    for answer in answers:
        capture = _capture_of(answer)
        is_new = capture.failure is NodeFailure.HOST_KEY and "host key is known for" in capture.line
        if is_new and not keeps_host_keys(capture.node, transport.client, transport.options):
            capture = replace(capture, failure=NodeFailure.NO_KEYS)
        yield capture


def _capture_of(answer: NodeAnswer) -> NodeCapture:
    """The capture in a node's answer."""
    found = parse_answer(answer.out)
    if found is None:
        failure = answer.failure or NodeFailure.BROKEN
        at = failing_hop(answer.node, answer.err)
        return NodeCapture(answer.node, answer.seconds, failure=failure, line=reason_line(answer, failure), at=at)
    result, body = found["result"], base64.b64decode(found["body"])
    if result == "capture":
        return _read(answer, body)
    line = body.decode(errors="replace").strip()
    if result == "too-old":
        return NodeCapture(answer.node, answer.seconds, failure=NodeFailure.TOO_OLD, line=f"Python {line}")
    failure = NodeFailure.TIMED_OUT if result == "timed-out" else NodeFailure.BROKEN
    lines = [each.strip() for each in line.splitlines() if each.strip()] or [""]
    line = lines[-1] if "Traceback" in line else lines[0]
    return NodeCapture(answer.node, answer.seconds, failure=failure, line=line)


def _read(answer: NodeAnswer, body: bytes) -> NodeCapture:
    try:
        text = zlib.decompress(body).decode()
        host = parse_capture(text, Path(answer.node.name))
    except (zlib.error, UnicodeDecodeError, BadInput) as error:
        line = say(error.message) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
        return NodeCapture(answer.node, answer.seconds, failure=NodeFailure.BROKEN, line=line)
    return NodeCapture(answer.node, answer.seconds, text, host)


class CaptureWriter:
    """Writes captures as they come in, and the list of nodes at the end, also after an interrupt."""

    def __init__(self, folder: Path, inventory: Inventory) -> None:
        """Raises BadInput for a folder that cannot be used."""
        self._folder, self._inventory = folder, inventory
        self._redactor = Redactor()
        self._rows: dict[str, dict[str, Any]] = {}
        self.count = 0
        hint = Message("cluster.save-no-folder-hint")
        if folder.exists() and not folder.is_dir():
            raise BadInput(Message("cluster.save-no-folder", {"path": str(folder)}), hint)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_empty = not any(folder.iterdir())
        except OSError as error:
            raise cannot_save(folder, error) from error
        if not is_empty:
            raise BadInput(Message("cluster.save-not-empty", {"path": str(folder)}), hint)

    def add(self, capture: NodeCapture) -> None:
        """Writes the capture of one node. Raises BadInput if it cannot be written."""
        failure = capture.failure.value if capture.failure else None
        line, at = self._redacted(capture)
        self._rows[capture.node.name] = {"trouble": failure, "line": line, "at": at, "seconds": capture.seconds}
        if capture.host is not None:
            self._write(_file_of(capture.node.name), capture.text)
            self.count += 1

    def __enter__(self) -> CaptureWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        collected = [node for node in self._inventory.nodes if node.name in self._rows]
        nodes = [{**self._node_row(node), **self._rows[node.name]} for node in collected]
        source = self._redactor.text(self._inventory.source)
        document = {"schema": SCHEMA, "npuenv": __version__, "source": source, "nodes": nodes}
        self._write(LIST, json.dumps(document, ensure_ascii=False, indent=1) + "\n")

    def _node_row(self, node: Node) -> dict[str, Any]:
        """What later checks need of a node: neither user nor jump host."""
        address = node.address
        if address != node.name:  # alone it could be a version number for the redactor
            address = self._redactor.text(f"addr {address}").removeprefix("addr ")
        return {"name": node.name, "address": address, "port": node.port, "cards": node.cards}

    def _redacted(self, capture: NodeCapture) -> tuple[str, str]:
        """The line and the jump host of a failure, with stand-ins for users and hosts."""
        login = _USER.match(capture.line)
        for user in (capture.node.user, login["user"] if login else None):
            self._redactor.learn_user(user or "")
        if capture.at:
            self._redactor.learn_host(capture.at)
        return self._redactor.text(capture.line), self._redactor.text(capture.at)

    def _write(self, name: str, text: str) -> None:
        try:
            write_whole(str(self._folder / name), text)
        except OSError as error:
            raise cannot_save(self._folder / name, error) from error


def load_captures(folder: Path) -> tuple[Inventory, Iterator[NodeCapture]]:
    """The nodes of a folder and their captures: those that are listed, then one for each further file.

    Raises BadInput for a folder without captures and, after the last one, if none of its files is a capture.
    """
    listed = folder / LIST
    rows = _rows(listed) if listed.is_file() else []
    files = {row["name"]: folder / _file_of(row["name"]) for row in rows}
    further = sorted(path for path in folder.glob("*.json") if path not in (listed, *files.values()))
    rows += [{"name": path.stem.removesuffix(_APART)} for path in further if not _is_other_document(path)]
    if not rows:
        args = {"path": str(folder)}
        raise BadInput(Message("cluster.no-captures", args), Message("cluster.no-captures-hint", args))
    found = [(_node(row), row) for row in rows]
    return Inventory(tuple(node for node, _ in found), str(folder)), _load_each(folder, found)


def _load_each(folder: Path, found: Sequence[tuple[Node, dict[str, Any]]]) -> Iterator[NodeCapture]:
    errors: list[BadInput] = []
    has_read = False
    for node, row in found:
        try:
            capture = _load_capture(folder, node, row)
        except BadInput as error:
            errors.append(error)
            capture = NodeCapture(node, 0.0, failure=NodeFailure.BROKEN, line=say(error.message))
        has_read = has_read or capture.host is not None
        yield capture
    if errors and not has_read:
        raise errors[0]


def _is_other_document(path: Path) -> bool:
    """Whether it is, by its first key, another document of npuenv, such as a report that was written beside."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return _OTHER_SCHEMA.match(file.read(_HEAD_BYTES)) is not None
    return False


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        document = load_json(path)
        rows = document["nodes"] if document["schema"] == SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError):
        rows = None
    names = [row.get("name") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    # A name is part of a path.
    has_names = all(isinstance(name, str) and re.fullmatch(r"[^./][^/]*", name) for name in names)
    if not isinstance(rows, list) or len(names) < len(rows) or not has_names:
        why = Message("host.wrong-schema", {"found": path.name, "expected": SCHEMA})
        args = {"file": str(path), "why": why}
        raise BadInput(Message("host.bad-capture", args), Message("host.bad-capture-hint"))
    return rows


def _node(row: dict[str, Any]) -> Node:
    """The node of a row, without values of a wrong type."""
    texts = {key: row[key] for key in ("user", "jump", "python") if isinstance(row.get(key), str)}
    numbers = {key: row[key] for key in ("port", "cards") if isinstance(row.get(key), int)}
    return Node(row["name"], str(row.get("address") or row["name"]), **texts, **numbers)


def _load_capture(folder: Path, node: Node, row: dict[str, Any]) -> NodeCapture:
    seconds = float(row["seconds"]) if isinstance(row.get("seconds"), (int, float)) else 0.0
    file, kind = folder / _file_of(node.name), row.get("trouble")
    if kind is not None and file.is_file():  # made on the node itself, and put there later
        return NodeCapture(node, 0.0, host=load_capture(file))
    if kind is not None:
        known = {failure.value: failure for failure in NodeFailure}
        line, at = (str(row.get(key) or "") for key in ("line", "at"))
        return NodeCapture(node, seconds, failure=known.get(str(kind), NodeFailure.BROKEN), line=line, at=at)
    return NodeCapture(node, seconds, host=load_capture(file))


def _file_of(name: str) -> str:
    return f"{name}{_APART}.json" if f"{name}.json" == LIST else f"{name}.json"


_PRECEDENCE = (ExitCode.INPUT, ExitCode.NOTHING_FITS, ExitCode.PROBLEMS, ExitCode.UNKNOWN)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The findings of one node, or why there are none."""

    node: Node
    findings: tuple[Finding, ...] = ()
    framework: str | None = None  # that it was checked for; None: any
    failure: NodeFailure | None = None
    line: str = ""  # with a failure: the line that decides
    at: str = ""  # the jump host that failed; "": the node itself
    seconds: float = 0.0
    is_unfit: bool = False  # the requested stack does not fit the machine

    @classmethod
    def without(cls, lost: NodeCapture) -> NodeReport:
        """The report on a node that gave no capture."""
        return cls(lost.node, failure=lost.failure, line=lost.line, at=lost.at, seconds=lost.seconds)

    @property
    def code(self) -> ExitCode:
        """The exit code of this node alone."""
        if self.failure is not None:
            return ExitCode.UNKNOWN if self.failure.is_not_asked else ExitCode.PROBLEMS
        return ExitCode.NOTHING_FITS if self.is_unfit else exit_code(self.findings, framework=self.framework)


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """All nodes in the order of the inventory, and the findings between them."""

    nodes: tuple[NodeReport, ...]
    agreement: tuple[Finding, ...] = ()
    why_no_agreement: Message | None = None  # None: the nodes were compared
    source: str = ""  # the inventory
    asked: frozenset[str] = frozenset()  # ids of findings between nodes that the user requested

    @property
    def code(self) -> ExitCode:
        """The worst of all, in the order of precedence."""
        codes = {node.code for node in self.nodes} | {self._code_of(finding) for finding in self.agreement}
        return next((code for code in _PRECEDENCE if code in codes), ExitCode.FINE)

    @property
    def silent(self) -> tuple[NodeReport, ...]:
        """The nodes that gave no capture."""
        return tuple(node for node in self.nodes if node.failure is not None)

    def _code_of(self, finding: Finding) -> ExitCode:
        """Unknown between nodes counts only if the user requested it: nodes without an answer have their own code."""
        if finding.status is Status.UNKNOWN and finding.check in self.asked:
            return ExitCode.UNKNOWN
        return ExitCode.PROBLEMS if finding.status is Status.FAIL else ExitCode.FINE
