"""Runs the pings of a plan on the nodes of a cluster, and saves their outcomes for a run that goes on later.

Every node gets the pings of a batch of rounds over one connection and makes them one after another, so hccn_tool never
runs twice at a time on a node, and no device is the source of two pings. The next batch begins when all nodes have
ended this one. Within a batch nodes do not keep in step: a device may be the target of two pings at a time.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from npuenv.cluster.mesh import FULL, SAMPLED, MeshDevice, NodeOutput, PingOutcome, Results, as_ran, refusal_of
from npuenv.cluster.parallel_ssh import Transport
from npuenv.cluster.ssh import describe_failure, failing_hop, failure_line
from npuenv.core.documents import JsonError, load_json, parse_json
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.facts.hccn.parsers import ping
from npuenv.facts.hccn.tool import DRIVER_TOOL, LINKED_TOOL, HccnRefusal, refused
from npuenv.facts.target import joined
from npuenv.host.writing import write_whole

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence
    from pathlib import Path

    from npuenv.cluster.inventory import Node
    from npuenv.cluster.mesh import Pair, PingPlan
    from npuenv.cluster.parallel_ssh import NodeAnswer
    from npuenv.host import Ran


PACKETS = 3
LIMIT_S = 15.0  # for one ping; three lost packets take some seconds
BATCH_S = 30.0  # of pings in a batch
_FIRST_ROUNDS = 4  # measured for the estimate of the time
_ASSUMED_PING_S = 1.25  # before anything was measured
_LEAST_BUDGET_S = 30.0
_AROUND_S = 60.0  # of a connection besides the pings: reaching the node, a busy tool
_SMI_S = 20.0
_KILL_S = 5.0  # for the end of a killed command, which is stuck otherwise
_START_S, _START_OF_A_NODE_S = 0.3, 0.03  # until a batch has begun on all nodes, as a rule
_MOST_VAIN = 2  # batches without a result after which a node is left out
_FINAL = ("stuck", "no-tool", "not-allowed")  # refusals after which the node is left out at once
_AGAIN = ("is busy, please try again", "traceroute is running")
# Output that holds for all further commands; see `HccnRefusal`.
_STOP = (
    *("permission denied", "command not found", "error while loading shared libraries"),
    *("get invalid major cmd type", "please specify a valid mode", "not supported on this product"),
)
_PING = ("-i", "{card}", "-ping", "-g", "address", "{ip}", "pkt", str(PACKETS))
_ADDRESS = ("-i", "{card}", "-ip", "-g")
_SCHEMA = "npuenv.mesh-state/1"
_MOST_BYTES = 256 << 20
_PENDING = str.maketrans(
    dict.fromkeys((PingOutcome.UNTRIED.value, PingOutcome.SILENT.value), PingOutcome.PENDING.value)
)
Line = Mapping[str, Any]
# Runs the remote program on nodes: see `SshRunner`.
Runner = Callable[..., Iterator[tuple[str, NodeOutput]]]


@dataclass(frozen=True, slots=True)
class SshRunner:
    """Runs the remote program over ssh, one connection a node, many nodes at once.

    Yields the output of each node as it ends; `on_line` gets each line as it comes.
    """

    nodes: Mapping[str, Node]
    transport: Transport = field(default_factory=Transport)

    def __call__(
        self, requests: Mapping[str, Line], *, limit_s: float, on_line: Callable[[str, Line], object] | None = None
    ) -> Iterator[tuple[str, NodeOutput]]:
        rests: defaultdict[str, bytes] = defaultdict(bytes)

        def receive(node: Node, chunk: bytes) -> None:
            *whole, rests[node.name] = (rests[node.name] + chunk).split(b"\n")
            for line in _lines(whole):
                if on_line:
                    on_line(node.name, line)

        answers = self.transport.run_python(
            [self.nodes[name] for name in requests],
            joined([f"{__package__}.remote"]),
            lambda node: json.dumps(requests[node.name]).encode() + b"\n",
            limit_s=limit_s,
            on_output=receive,
        )
        with contextlib.closing(answers):
            for answer in answers:
                yield answer.node.name, _output_of(answer)


@dataclass(slots=True)
class MeshRun:
    """A run of a plan. Mutable: results come in, and nodes drop out.

    Outcomes are noted at once. If a run is interrupted, each node has at most one ping under way, which is repeated. A
    ping that lost some of its packets is repeated once: the first packet to a new address is often lost while the
    address is resolved.
    """

    plan: PingPlan
    results: Results
    runner: Runner
    limit_s: float = LIMIT_S
    on_ping: Callable[[], object] | None = None  # called after every ping
    lost: dict[str, Message] = field(default_factory=dict)  # nodes that cannot ping -> why
    _vain: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    _doubted: set[Pair] = field(default_factory=set)  # pings that lost packets, and are repeated

    def measure(self) -> float | None:
        """Makes the pings of the first rounds and returns the seconds of a ping; None where none could be made."""
        if self.results.seconds_a_ping is None:
            self._batch(self.plan.rounds[:_FIRST_ROUNDS])
        return self.results.seconds_a_ping

    def run_remaining(self) -> Iterator[int]:
        """Makes the remaining pings and yields their number after every batch. Those that cannot be made are noted."""
        while True:
            left = [pings for pings in self.plan.rounds if any(map(self._is_left, pings))]
            if not left:
                break
            self._batch(left[: self._rounds_of_a_batch])
            yield sum(self._is_left(pair) for pings in left for pair in pings)
        for pings in self.plan.rounds:
            for pair in pings:
                if self.results.is_pending(pair):
                    self.results.note(pair, PingOutcome.UNTRIED)

    def expected_s(self, plan: PingPlan) -> float:
        """The time that a plan takes, by the pings measured so far, with the start of each batch."""
        start_s = _START_S + _START_OF_A_NODE_S * len({device.node for device in plan.devices})
        num_batches = -(-len(plan.rounds) // self._rounds_of_a_batch)
        return plan.seconds(self.results.seconds_a_ping or 0.0) + num_batches * start_s

    @property
    def _rounds_of_a_batch(self) -> int:
        return max(_FIRST_ROUNDS, int(BATCH_S / max(self.results.seconds_a_ping or _ASSUMED_PING_S, 0.01)))

    @property
    def left(self) -> PingPlan:
        """The plan of the remaining pings."""
        rounds = (tuple(filter(self._is_left, pings)) for pings in self.plan.rounds)
        return replace(self.plan, rounds=tuple(filter(None, rounds)))

    def _is_left(self, pair: Pair) -> bool:
        return self.results.is_pending(pair) and self.plan.devices[pair[0]].node not in self.lost

    def _batch(self, rounds: Sequence[Sequence[Pair]]) -> None:
        jobs: defaultdict[str, list[Pair]] = defaultdict(list)
        for pings in rounds:
            for pair in filter(self._is_left, pings):
                jobs[self.plan.devices[pair[0]].node].append(pair)
        if not jobs:
            return
        budget_s = max(_LEAST_BUDGET_S, 2 * len(rounds) * (self.results.seconds_a_ping or 0))
        common = {**_common(self.limit_s), "words": _PING, "budget_s": budget_s}
        devices = self.plan.devices
        requests = {
            node: {**common, "jobs": [[devices[source].card, devices[target].ip] for source, target in pairs]}
            for node, pairs in jobs.items()
        }
        num_new: Counter[str] = Counter()

        def take(node: str, line: Line) -> None:
            num_new[node] += self._take(node, jobs[node], line)

        for node, output in self.runner(requests, limit_s=budget_s + self.limit_s + _AROUND_S, on_line=take):
            self._vain[node] = 0 if num_new[node] else self._vain[node] + 1
            if (self._vain[node] >= _MOST_VAIN or output.refusal in _FINAL) and node not in self.lost:
                self.lost[node] = output.why or Message("mesh.why-nothing")

    def _take(self, node: str, pairs: Sequence[Pair], line: Line) -> bool:
        """Notes the outcome of a ping that a line states; whether it states one."""
        number = line.get("job")
        if not isinstance(number, int) or not 0 <= number < len(pairs):
            return False
        why = refusal_of(line)
        if why is not None:
            self.lost[node] = why
            return False
        pair = pairs[number]
        outcome, deciding = ping_outcome(as_ran(line, _PING), self.plan.devices[pair[1]].ip)
        if outcome in (PingOutcome.LOSSY, PingOutcome.WEAK) and pair not in self._doubted:
            self._doubted.add(pair)
            self.results.clock(float(line["s"]))
            return True
        self.results.note(pair, outcome, deciding, seconds=float(line["s"]))
        if self.on_ping:
            self.on_ping()
        return True


def survey(nodes: Sequence[Node], runner: Runner) -> dict[str, NodeOutput]:
    """The cards of every node and their addresses, as the tools print them."""
    common = {**_common(LIMIT_S), "words": _ADDRESS, "cards_in": "/dev", "smi_s": _SMI_S}
    requests = {node.name: {**common, "otherwise": list(range(node.cards or 0))} for node in nodes}
    most = max((node.cards or 16 for node in nodes), default=0)
    return dict(runner(requests, limit_s=_AROUND_S + _SMI_S + most * LIMIT_S))


def ping_outcome(ran: Ran, ip: str) -> tuple[PingOutcome, str]:
    """The outcome of a ping, and the deciding line if it is not OK. The exit code is meaningless."""
    found = ping(ran.out) or ping(ran.err)
    lines = [line.strip() for line in (ran.out + "\n" + ran.err).splitlines() if line.strip()]
    if found is None or (found.target and found.target != ip):
        failure = refused(ran)
        if failure is not None and failure.kind in (HccnRefusal.BUSY, HccnRefusal.DEVICE):
            return PingOutcome.UNTRIED, failure.line
        if failure is not None and failure.kind is HccnRefusal.NO_ANSWER and not ran.timed_out:
            return PingOutcome.UNTRIED, failure.line  # the source card does not respond
        return PingOutcome.SILENT, failure.line if failure else next(iter(lines), "")
    last = next((line for line in reversed(lines) if "packet" in line.lower()), lines[-1])
    if not found.received:
        return PingOutcome.FAILED, f"{found.trouble}: {last}" if found.trouble else last
    if not found.lost:
        return PingOutcome.OK, ""
    return (PingOutcome.LOSSY if found.received > found.lost else PingOutcome.WEAK), last


def _common(limit_s: float) -> dict[str, Any]:
    return {
        "tools": (DRIVER_TOOL, LINKED_TOOL, "hccn_tool"),
        "smi": ("npu-smi", "/usr/local/sbin/npu-smi", "/usr/local/bin/npu-smi"),
        "limit_s": limit_s,
        "kill_s": _KILL_S,
        "again": _AGAIN,
        "stop": _STOP,
    }


def _output_of(answer: NodeAnswer) -> NodeOutput:
    lines = tuple(_lines(answer.out.splitlines()))
    if any("end" in line or "refused" in line for line in lines):
        return NodeOutput(lines)
    if answer.failure is not None:
        says = describe_failure(answer.failure, answer.node.address, failing_hop(answer.node, answer.err))
        line = failure_line(answer.err, b"" if lines else answer.out, answer.failure)
        return NodeOutput(lines, Message("mesh.why-trouble", {"says": says, "line": line}) if line else says)
    errors = answer.err.strip().splitlines() or [""]
    return NodeOutput(lines, Message("mesh.why-died", {"code": answer.code or 0, "line": errors[-1]}))


def _lines(texts: Iterable[bytes]) -> Iterator[Line]:
    """The lines of the remote program; a login shell may print others, and the last one may be cut."""
    for text in texts:
        if not text.startswith(b'{"'):
            continue
        try:
            line = parse_json(text)
        except JsonError:
            continue
        yield line


def save_results(path: Path, results: Results, mode: str) -> None:
    """Writes the file atomically. Raises OSError."""
    document = {
        "schema": _SCHEMA,
        "mode": mode,
        "devices": [[each.node, each.card, each.ip, each.netmask, each.board] for each in results.devices],
        "rows": [row.decode("ascii").translate(_PENDING) for row in results.rows],
        "notes": [[*pair, line] for pair, line in results.notes.items() if results.of(pair).is_settled],
        "timed": [results.num_timed, round(results.timed_s, 4)],
    }
    write_whole(str(path), json.dumps(document, separators=(",", ":")))


def load_results(path: Path) -> tuple[Results, str]:
    """The outcomes and the mode. Raises BadInput for a missing or invalid file."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError
        document = load_json(path)
        return _results(document), document["mode"]
    except OSError as error:
        args = {"path": str(path), "reason": error.strerror or str(error)}
        raise BadInput(Message("mesh.no-state", args), Message("mesh.no-state-hint")) from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise BadInput(Message("mesh.bad-state", {"path": str(path)}), Message("mesh.no-state-hint")) from error


def require_same_devices(
    saved: Sequence[MeshDevice], current: Sequence[MeshDevice], nodes: Container[str], path: Path
) -> None:
    """Raises BadInput if the devices differ from those of the file: another address, another card, no such node.

    A device without an address now is accepted: it may have died since, and others can still ping it. `nodes` are those
    of the inventory.
    """
    found = {(device.node, device.card): device for device in current}
    for device in saved:
        other = found.pop((device.node, device.card), None)
        if device.node not in nodes or (other is not None and other.ip != device.ip):
            raise _differs(path, device, other)
    if found:
        raise _differs(path, None, next(iter(found.values())))


def _differs(path: Path, saved: MeshDevice | None, current: MeshDevice | None) -> BadInput:
    device = saved or current
    assert device is not None
    none = Message("mesh.none")
    args = {
        "path": str(path),
        "name": device.name,
        "kept": saved.ip if saved else none,
        "now": current.ip if current else none,
    }
    return BadInput(Message("mesh.other-devices", args), Message("mesh.other-devices-hint"))


def _results(document: dict[str, Any]) -> Results:
    if document["schema"] != _SCHEMA or document["mode"] not in (FULL, SAMPLED):
        raise ValueError
    devices = tuple(
        MeshDevice(str(node), int(card), str(ip), str(mask), None if board is None else int(board))
        for node, card, ip, mask, board in document["devices"]
    )
    fresh = Results.empty(devices)
    rows = [bytearray(row.translate(_PENDING), "ascii") for row in document["rows"]]
    letters = {ord(outcome.value) for outcome in PingOutcome if outcome.is_settled or outcome is PingOutcome.PENDING}
    barred = ord(PingOutcome.BARRED.value)
    is_sound = len(rows) == len(devices) and all(
        len(row) == len(devices)
        and all(letter == barred if free == barred else letter in letters for letter, free in zip(row, template))
        for row, template in zip(rows, fresh.rows)
    )
    if not is_sound:
        raise ValueError
    notes = {(int(source), int(target)): str(line) for source, target, line in document["notes"]}
    num_timed, timed_s = document["timed"][:2]
    return Results(devices, rows, notes, int(num_timed), float(timed_s))
