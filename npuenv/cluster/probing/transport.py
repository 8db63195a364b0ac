"""Sends one of the small programs of `npuenv.facts.target` to many nodes and reads what they say. Start from `run`."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.cluster import parallel_ssh as fanout
from npuenv.cluster.remote_agent import BOOT
from npuenv.cluster.ssh import last_words
from npuenv.core.json_input import JsonError, loads
from npuenv.facts.target import text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npuenv.cluster.ssh import Options
    from npuenv.cluster.types import Answer, Node

_MARK = "NPUENV-ANSWER "
_MOST_BYTES = 4 << 20
PYTHON = "python3"


@dataclass(frozen=True, slots=True)
class Way:
    """How nodes are reached; the same for all rounds."""

    client: Sequence[str] = ("ssh",)
    options: Options | None = None
    parallel: int = fanout.PARALLEL
    ask: Callable[..., Iterator[Answer]] = fanout.ask


@dataclass(frozen=True, slots=True)
class Heard:
    """What one node said in one round. `told` is None where it said nothing that can be read; `why` says why."""

    node: Node
    told: Mapping[str, Any] | None
    began: float  # by this machine's clock, seconds since 1970: not after the node began
    ended: float  # not before the node ended
    why: str = ""


def run(
    nodes: Sequence[Node],
    program: str,
    asked: Callable[[Node], Mapping[str, Any]],
    *,
    limit_s: float,
    way: Way,
    parallel: int | None = None,
) -> Iterator[Heard]:
    """What each node says as it comes in, every node once. The program's input stays open until its node has ended."""
    code = text(program).encode()
    # Reckoned back from the end it would be too late by as long as this machine was held up with other answers.
    began: dict[str, float] = {}

    def stdin(node: Node) -> bytes:
        began[node.name] = time.time()
        return b"%d\n" % len(code) + code + json.dumps(asked(node)).encode() + b"\n"

    answers = way.ask(
        nodes,
        lambda node: (node.python or PYTHON, "-c", BOOT),
        stdin=stdin,
        limit_s=limit_s,
        parallel=parallel or way.parallel,
        client=way.client,
        options=way.options,
        most_bytes=_MOST_BYTES,
        keeps_stdin=True,
    )
    for answer in answers:
        ended = time.time()
        told = _told(answer.out)
        at = began.get(answer.node.name, ended - answer.seconds)
        yield Heard(answer.node, told, at, ended, "" if told is not None else _why(answer))


def _told(out: bytes) -> Mapping[str, Any] | None:
    """The last marked line; a login shell may have said something before it."""
    for line in reversed(out.decode(errors="replace").splitlines()):
        if line.startswith(_MARK):
            try:
                found = loads(line[len(_MARK) :])
            except JsonError:
                return None
            return found if isinstance(found, dict) else None
    return None


def _why(answer: Answer) -> str:
    out = answer.out if _MARK.encode() not in answer.out else b""
    said = last_words(answer.err, out, answer.trouble)
    return said or (answer.trouble.value if answer.trouble else f"exit {answer.code}")
