"""Runs the pings of a plan on the nodes of a cluster.

Every node gets the pings of some rounds at once, over one connection, and makes them one after another in the order of
the rounds: so hccn_tool never runs twice at a time on a node, and no device is the source of two pings. No node goes on
to later rounds before all have ended these. Within them the nodes keep in step: they begin together once all are ready,
and no round begins before its time. A node whose pings time out is out of step until the next rounds are given out, and
a device may meanwhile be the target of two pings.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from npuenv.cluster.mesh import Outcome
from npuenv.cluster.mesh.planning import NodeOutput, as_ran, refusal_of
from npuenv.cluster.parallel_ssh import room_for
from npuenv.cluster.ssh import describe_failure, failing_hop, failure_line
from npuenv.cluster.transport import Transport
from npuenv.core.json_input import JsonError, loads
from npuenv.core.messages import Message
from npuenv.facts.hccn.answers import Refusal, refused
from npuenv.facts.hccn.conf import DRIVER_TOOL, LINKED_TOOL
from npuenv.facts.hccn.parsers import ping
from npuenv.facts.target import joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npuenv.cluster.inventory import Node
    from npuenv.cluster.mesh import Device, Pair, PingPlan, Results
    from npuenv.cluster.parallel_ssh import Answer
    from npuenv.host.base import Ran


PACKETS = 3
LIMIT_S = 15.0  # for one ping; three packets that nobody answers take some seconds
BATCH_S = 30.0  # of pings that a node gets at a time
_FIRST_ROUNDS = 4  # measured before anything is said about the time; the first of them alone, with no pace yet
_LEAST_BUDGET_S = 30.0
_AROUND_S = 60.0  # of a connection besides the pings: reaching the node, the lock, a busy tool
_LOCK_MORE_S = 10.0  # than one ping of somebody else
_SMI_S = 20.0
_KILL_S = 5.0  # until a command that was killed has ended, or is stuck
_STEP = 1.25  # of the time that a ping takes in the mean: as long as a round lasts
_START_S, _START_OF_A_NODE_S, _MOST_START_S = 0.3, 0.03, 10.0  # until all nodes are ready, as a rule
_READY_S = 30.0  # until they have to be
_LEAD_S, _LEAD_OF_A_NODE_S = 0.1, 0.004  # until all nodes know when to begin
_MOST_VAIN = 2  # times that a node may come to nothing before it is left out
_FINAL = ("stuck", "no-tool", "not-allowed")  # refusals after which the node is left out at once
_AGAIN = ("is busy, please try again", "traceroute is running")
# Answers after which no other will be different; as `Refusal` reads them.
_STOP = (
    *("permission denied", "command not found", "error while loading shared libraries"),
    *("get invalid major cmd type", "please specify a valid mode", "not supported on this product"),
)
_PING = ("-i", "{card}", "-ping", "-g", "address", "{ip}", "pkt", str(PACKETS))
_ADDRESS = ("-i", "{card}", "-ip", "-g")
Line = Mapping[str, Any]
# Has nodes run the remote program: see `SshRunner`.
Runner = Callable[..., Iterator[tuple[str, NodeOutput]]]


class Barrier:
    """Holds nodes back until all of them are ready, and then lets them begin together.

    Nodes that have ended are not waited for. One that is not ready in time must not begin any more: out of step, it
    would ping devices that are busy with others. Mutable: nodes become ready, and the barrier opens once.
    """

    def __init__(self, names: Iterable[str], *, wait_s: float, lead_s: float) -> None:
        self._awaited = set(names)
        self._lows: dict[str, float] = {}  # of those that are ready and got no message yet
        self._closes = time.monotonic() + wait_s
        self._lead_s = lead_s  # in which the message reaches all of them
        self._is_open = False

    def receive(self, name: str, line: Mapping[str, Any]) -> None:
        """Takes any line of a node; one says that it is ready."""
        if isinstance(line.get("ready"), (int, float)):
            self._lows[name] = line["ready"] - time.time()
            self._awaited.discard(name)

    def remove(self, name: str) -> None:
        """Does not wait for a node any more."""
        self._awaited.discard(name)

    def messages(self) -> dict[str, bytes]:
        """What to send to nodes now: when to begin, or that the others have begun without them."""
        if self._is_open:
            return dict.fromkeys(self._taken(), b"{}\n")
        if self._awaited and time.monotonic() < self._closes:
            return {}
        self._is_open = True
        now = time.time()
        go = {"begin_at": now + self._lead_s, "sent": now}
        return {name: json.dumps({**go, "low": low}).encode() + b"\n" for name, low in self._taken().items()}

    def _taken(self) -> dict[str, float]:
        taken, self._lows = self._lows, {}
        return taken


@dataclass(frozen=True, slots=True)
class SshRunner:
    """Runs the remote program over ssh, one connection a node, many nodes at once.

    It gives what each node answers to its question, as they end, every node once; `on_line` gets each line as it comes.
    Nodes that ping begin together. If there are more than can run at once, the first have ended before others begin.
    """

    nodes: Mapping[str, Node]
    transport: Transport = field(default_factory=Transport)

    def __call__(
        self, questions: Mapping[str, Line], *, limit_s: float, on_line: Callable[[str, Line], object] | None = None
    ) -> Iterator[tuple[str, NodeOutput]]:
        names = list(questions)
        if not any("jobs" in question for question in questions.values()):
            yield from self._asked(names, questions, limit_s, on_line, None)
            return
        size = room_for(min(self.transport.parallel, len(names)))
        for start in range(0, len(names), size):
            some = names[start : start + size]
            barrier = Barrier(some, wait_s=_READY_S, lead_s=questions[some[0]]["lead_s"])
            yield from self._asked(some, questions, limit_s, on_line, barrier)

    def _asked(
        self,
        names: Sequence[str],
        questions: Mapping[str, Line],
        limit_s: float,
        on_line: Callable[[str, Line], object] | None,
        barrier: Barrier | None,
    ) -> Iterator[tuple[str, NodeOutput]]:
        program = joined([f"{__package__}.remote"])
        rests: defaultdict[str, bytes] = defaultdict(bytes)

        def receive(node: Node, chunk: bytes) -> None:
            *whole, rests[node.name] = (rests[node.name] + chunk).split(b"\n")
            for line in _lines(whole):
                if barrier:
                    barrier.receive(node.name, line)
                if on_line:
                    on_line(node.name, line)

        answers = self.transport.run_python(
            [self.nodes[name] for name in names],
            program,
            lambda node: json.dumps(questions[node.name]).encode() + b"\n",
            limit_s=limit_s,
            on_output=receive,
            more=barrier.messages if barrier else None,
        )
        with contextlib.closing(answers):
            for answer in answers:
                if barrier:
                    barrier.remove(answer.node.name)
                yield answer.node.name, _heard(answer)


@dataclass(frozen=True, slots=True)
class Tools:
    """Where things are on the nodes."""

    hccn: tuple[str, ...] = (DRIVER_TOOL, LINKED_TOOL, "hccn_tool")
    smi: tuple[str, ...] = ("npu-smi", "/usr/local/sbin/npu-smi", "/usr/local/bin/npu-smi")
    devices: str = "/dev"  # the folder of the cards' device nodes


@dataclass(slots=True)
class Run:
    """A run of a plan. Mutable: results come in, and nodes drop out.

    An outcome is noted as soon as it comes in. Where a run is broken off, each node has one ping under way at most: its
    outcome is not known, and it is made again. So is a ping of which some packets came back, once: the first packet to
    a new address is often lost while the address is resolved.
    """

    plan: PingPlan
    results: Results
    runner: Runner
    tools: Tools = field(default_factory=Tools)
    limit_s: float = LIMIT_S
    on_ping: Callable[[], object] | None = None  # called after every ping
    lost: dict[str, Message] = field(default_factory=dict)  # nodes that cannot ping, and why
    _vain: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    _doubted: set[Pair] = field(default_factory=set)  # pings of which packets were lost, and which are made again

    def measure(self) -> float | None:
        """Makes the pings of the first rounds, and gives the seconds of a ping; None where none could be made."""
        if self.results.seconds_a_ping is None:
            self._batch(self.plan.rounds[:1])
            self._batch(self.plan.rounds[1:_FIRST_ROUNDS])
        return self.results.seconds_a_ping

    def run_remaining(self) -> Iterator[int]:
        """Makes all pings that are left, and gives their number after every batch. What cannot be made is noted so."""
        while True:
            left = [pings for pings in self.plan.rounds if any(map(self._is_left, pings))]
            if not left:
                break
            self._batch(left[: self._rounds_of_a_batch])
            yield sum(self._is_left(pair) for pings in left for pair in pings)
        for pings in self.plan.rounds:
            for pair in pings:
                if self.results.is_pending(pair):
                    self.results.note(pair, Outcome.UNTRIED)

    def expected_s(self, plan: PingPlan) -> float:
        """How long a plan takes, by what was measured so far: its rounds, and the beginnings of its batches."""
        num_nodes = len({device.node for device in plan.devices})
        a_round_s = max(self._step_s * (num_nodes > 1), self.results.seconds_a_ping or 0)
        num_batches = -(-len(plan.rounds) // self._rounds_of_a_batch)
        return plan.seconds(a_round_s) + num_batches * _start_s(num_nodes)

    @property
    def _step_s(self) -> float:
        """How long a round lasts where nothing fails; 0 before anything was measured."""
        return _STEP * (self.results.seconds_an_answer or self.results.seconds_a_ping or 0.0)

    @property
    def _rounds_of_a_batch(self) -> int:
        return max(_FIRST_ROUNDS, int(BATCH_S / max(self._step_s or _STEP, 0.01)))

    @property
    def left(self) -> PingPlan:
        """The plan of what is not done yet."""
        rounds = (tuple(filter(self._is_left, pings)) for pings in self.plan.rounds)
        return replace(self.plan, rounds=tuple(filter(None, rounds)))

    def _is_left(self, pair: Pair) -> bool:
        return self.results.is_pending(pair) and self.plan.devices[pair[0]].node not in self.lost

    def _batch(self, rounds: Sequence[Sequence[Pair]]) -> None:
        jobs: defaultdict[str, list[tuple[int, Pair]]] = defaultdict(list)
        for step, pings in enumerate(rounds):
            for pair in filter(self._is_left, pings):
                jobs[self.plan.devices[pair[0]].node].append((step, pair))
        if not jobs:
            return
        step_s = self._step_s if len(jobs) > 1 else 0.0
        lead_s = _LEAD_S + _LEAD_OF_A_NODE_S * len(jobs) if len(jobs) > 1 else 0.0
        budget_s = max(_LEAST_BUDGET_S, 2 * len(rounds) * max(step_s, self.results.seconds_a_ping or 0))
        pace = {"ready_s": 2 * _READY_S, "lead_s": lead_s, "step_s": step_s, "budget_s": budget_s}
        questions = {node: {**pace, **self._question(steps)} for node, steps in jobs.items()}
        num_new: Counter[str] = Counter()

        def take(node: str, line: Line) -> None:
            num_new[node] += self._take(node, jobs[node], line)

        limit_s = _READY_S + lead_s + budget_s + self.limit_s + _AROUND_S
        answers = self.runner(questions, limit_s=limit_s, on_line=take)
        for node, output in answers:
            self._vain[node] = 0 if num_new[node] else self._vain[node] + 1
            if (self._vain[node] >= _MOST_VAIN or output.refusal in _FINAL) and node not in self.lost:
                self.lost[node] = output.why or Message("mesh.why-nothing")

    def _question(self, steps: Sequence[tuple[int, Pair]]) -> dict[str, Any]:
        devices: Sequence[Device] = self.plan.devices
        jobs = [[step, devices[source].card, devices[target].ip] for step, (source, target) in steps]
        return {**_common(self.tools, self.limit_s), "words": _PING, "jobs": jobs}

    def _take(self, node: str, steps: Sequence[tuple[int, Pair]], line: Line) -> bool:
        """Notes what a line says of a node's pings; whether it says something."""
        number = line.get("job")
        if not isinstance(number, int) or not 0 <= number < len(steps):
            return False
        why = refusal_of(line)
        if why is not None:
            self.lost[node] = why
            return False
        pair = steps[number][1]
        outcome, said = ping_outcome(as_ran(line, _PING), self.plan.devices[pair[1]].ip)
        if outcome in (Outcome.LOSSY, Outcome.WEAK) and pair not in self._doubted:
            self._doubted.add(pair)
            self.results.clock(float(line["s"]))
            return True
        self.results.note(pair, outcome, said, seconds=float(line["s"]))
        if self.on_ping:
            self.on_ping()
        return True


def survey(nodes: Sequence[Node], runner: Runner, tools: Tools | None = None) -> dict[str, NodeOutput]:
    """What every node says of its cards and their addresses."""
    tools = tools or Tools()
    common = {**_common(tools, LIMIT_S), "words": _ADDRESS, "cards_in": tools.devices, "smi_s": _SMI_S}
    questions = {node.name: {**common, "otherwise": list(range(node.cards or 0))} for node in nodes}
    most = max((node.cards or 16 for node in nodes), default=0)
    return dict(runner(questions, limit_s=_AROUND_S + _SMI_S + most * LIMIT_S))


def _start_s(num_nodes: int) -> float:
    """How long it takes until that many nodes are ready, in the rough."""
    return min(_MOST_START_S, _START_S + _START_OF_A_NODE_S * num_nodes)


def ping_outcome(ran: Ran, ip: str) -> tuple[Outcome, str]:
    """What a ping of an address came to, and the line that decides where it is not well. The exit code says nothing."""
    found = ping(ran.out) or ping(ran.err)
    lines = [line.strip() for line in (ran.out + "\n" + ran.err).splitlines() if line.strip()]
    if found is None or (found.target and found.target != ip):
        failure = refused(ran)
        if failure is not None and failure.kind in (Refusal.BUSY, Refusal.DEVICE):
            return Outcome.UNTRIED, failure.line
        if failure is not None and failure.kind is Refusal.NO_ANSWER and not ran.timed_out:
            return Outcome.UNTRIED, failure.line  # the card that was to ping does not answer itself
        return Outcome.SILENT, failure.line if failure else next(iter(lines), "")
    last = next((line for line in reversed(lines) if "packet" in line.lower()), lines[-1])
    if not found.received:
        return Outcome.FAILED, f"{found.trouble}: {last}" if found.trouble else last
    if not found.lost:
        return Outcome.OK, ""
    return (Outcome.LOSSY if found.received > found.lost else Outcome.WEAK), last


def _common(tools: Tools, limit_s: float) -> dict[str, Any]:
    return {
        "tools": tools.hccn,
        "smi": tools.smi,
        "limit_s": limit_s,
        "lock_s": limit_s + _LOCK_MORE_S,
        "kill_s": _KILL_S,
        "again": _AGAIN,
        "stop": _STOP,
    }


def _heard(answer: Answer) -> NodeOutput:
    lines = tuple(_lines(answer.out.splitlines()))
    if any("end" in line or "refused" in line for line in lines):
        return NodeOutput(lines)
    if answer.failure is not None:
        says = describe_failure(answer.failure, answer.node.address, failing_hop(answer.node, answer.err))
        line = failure_line(answer.err, b"" if lines else answer.out, answer.failure)
        return NodeOutput(lines, Message("mesh.why-trouble", {"says": says, "line": line}) if line else says)
    said = answer.err.strip().splitlines()
    return NodeOutput(lines, Message("mesh.why-died", {"code": answer.code or 0, "line": said[-1] if said else ""}))


def _lines(texts: Iterable[bytes]) -> Iterator[Line]:
    """The lines of the remote program; a login shell may say something of its own, and the last one may be cut."""
    for text in texts:
        if not text.startswith(b'{"'):
            continue
        try:
            line = loads(text)
        except JsonError:
            continue
        yield line
