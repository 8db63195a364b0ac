"""Runs Python programs on many nodes: how nodes are reached, and the answers of `npuenv.facts.target`'s programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.cluster import parallel_ssh
from npuenv.cluster.parallel_ssh import Answer
from npuenv.cluster.ssh import failure_line
from npuenv.core.json_input import JsonError, loads
from npuenv.facts.target import text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npuenv.cluster.inventory import Node
    from npuenv.cluster.ssh import Options

_MARK = "NPUENV-ANSWER "
_MAX_BYTES = 4 << 20
Ask = Callable[..., Generator[Answer, None, None]]  # as `parallel_ssh.ask`
PYTHON = "python3"
# The command line: it reads the program from its input, of which the rest is the program's.
BOOTSTRAP = "import sys; r = getattr(sys.stdin, 'buffer', sys.stdin); exec(r.read(int(r.readline())))"


@dataclass(frozen=True, slots=True)
class Transport:
    """How nodes are reached; the same for all rounds."""

    client: Sequence[str] = ("ssh",)
    options: Options | None = None
    parallel: int = parallel_ssh.PARALLEL
    ask: Ask = parallel_ssh.ask

    def run_python(
        self,
        nodes: Sequence[Node],
        program: str,
        stdin: Callable[[Node], bytes],
        *,
        parallel: int | None = None,
        **settings: Any,
    ) -> Generator[Answer, None, None]:
        """Runs a program in the Python of each node; `settings` are those of `ask`.

        `stdin` follows the program on its input, which stays open: the program sees its end when nobody waits any more.
        """
        code = b"%d\n" % len(program.encode()) + program.encode()
        return self.ask(
            nodes,
            lambda node: (node.python or PYTHON, "-c", BOOTSTRAP),
            stdin=lambda node: code + stdin(node),
            parallel=parallel or self.parallel,
            client=self.client,
            options=self.options,
            keeps_stdin=True,
            **settings,
        )


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one node answered in one round. `answer` is None if nothing could be read; `why` says why."""

    node: Node
    answer: Mapping[str, Any] | None
    began: float  # by this machine's clock, seconds since 1970: not after the node began
    ended: float  # not before the node ended
    why: str = ""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The answer; {} where there is none."""
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
    # Reckoned back from the end it would be too late by as long as this machine was held up with other answers.
    began: dict[str, float] = {}

    def stdin(node: Node) -> bytes:
        began[node.name] = time.time()
        return json.dumps(request(node)).encode() + b"\n"

    answers = transport.run_python(
        nodes, text(program), stdin, parallel=parallel, limit_s=limit_s, max_bytes=_MAX_BYTES
    )
    for answer in answers:
        ended = time.time()
        found = _parse_answer(answer.out)
        at = began.get(answer.node.name, ended - answer.seconds)
        yield ProbeResult(answer.node, found, at, ended, "" if found is not None else _why(answer))


def _parse_answer(out: bytes) -> Mapping[str, Any] | None:
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
    said = failure_line(answer.err, out, answer.failure)
    return said or (answer.failure.value if answer.failure else f"exit {answer.code}")
