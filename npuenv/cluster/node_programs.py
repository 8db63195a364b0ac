"""Programs of `npuenv.facts.target` on many nodes, and the JSON answers that they print."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.cluster.ssh import failure_line
from npuenv.core.documents import JsonError, parse_json
from npuenv.facts.target import text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npuenv.cluster.inventory import Node
    from npuenv.cluster.parallel_ssh import NodeAnswer, Transport
    from npuenv.cluster.ssh import NodeFailure


_ANSWER_MARK = b"NPUENV-ANSWER "
_MAX_ANSWER_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The JSON answer of one node. `answer` is None if nothing could be read; `why` says why."""

    node: Node
    answer: Mapping[str, Any] | None
    began: float  # seconds since 1970 by the local clock, not after the program began
    ended: float  # not before the program ended
    why: str = ""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The answer; {} if there is none."""
        return self.answer or {}


def run_program(
    nodes: Sequence[Node],
    program: str,
    request: Callable[[Node], Mapping[str, Any]],
    *,
    limit_s: float,
    transport: Transport,
    parallel: int | None = None,
) -> Iterator[ProbeResult]:
    """The result of each node as it comes in, every node once. `program` is one of `npuenv.facts.target`."""
    # Computed from the end it would be too late by the time spent on other answers.
    began: dict[str, float] = {}

    def stdin(node: Node) -> bytes:
        began[node.name] = time.time()
        return json.dumps(request(node)).encode() + b"\n"

    limits = {"limit_s": limit_s, "max_bytes": _MAX_ANSWER_BYTES}
    for answer in transport.run_python(nodes, text(program), stdin, parallel=parallel, **limits):
        ended = time.time()
        found = parse_answer(answer.out)
        at = began.get(answer.node.name, ended - answer.seconds)
        yield ProbeResult(answer.node, found, at, ended, "" if found is not None else _why(answer))


def parse_answer(out: bytes) -> Mapping[str, Any] | None:
    """The last marked line, as JSON; a login shell may have printed something before it."""
    for line in reversed(out.splitlines()):
        if line.startswith(_ANSWER_MARK):
            try:
                found = parse_json(line[len(_ANSWER_MARK) :])
            except JsonError:
                return None
            return found if isinstance(found, dict) else None
    return None


def reason_line(answer: NodeAnswer, failure: NodeFailure | None) -> str:
    """The line of ssh or of the node that says why there is no JSON answer; "" if none does."""
    return failure_line(answer.err, answer.out if _ANSWER_MARK not in answer.out else b"", failure)


def _why(answer: NodeAnswer) -> str:
    line = reason_line(answer, answer.failure)
    return line or (answer.failure.value if answer.failure else f"exit {answer.code}")
