"""A capture of every node: the doctor as one file is sent, run there, and what it saw comes back. See `collect`.

One connection a node; nothing is left there. What a capture means is judged by the ordinary checks, elsewhere.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.cluster.parallel_ssh import MOST_BYTES, PARALLEL, ask
from npuenv.cluster.remote_agent import BOOT, MARK, PROGRAM, STOP_S
from npuenv.cluster.ssh import keeps_keys, last_words, stopped_at
from npuenv.cluster.types import Trouble
from npuenv.core.errors import BadInput
from npuenv.core.messages import say
from npuenv.host.recorded import parse_capture

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from npuenv.cluster.ssh import Options
    from npuenv.cluster.types import Answer, Node
    from npuenv.host.recorded import RecordedHost

PYTHON = "python3"
# Seconds that a node may take, by the level of the look: reading files, asking tools, cards and network, burning in.
LIMITS_S = (60.0, 120.0, 600.0, 1800.0)
_SPARE_S = STOP_S + 1.0  # of the limit, for the node to say itself that it is over, and to clean up
_OLDEST_THAT_MEETS = (3, 6)  # for the small programs by which nodes tell what there is between them


@dataclass(frozen=True, slots=True)
class Collected:
    """What one node gave: a capture, or why there is none."""

    node: Node
    seconds: float
    text: str = ""  # the capture, as `npuenv.capture/1`
    host: RecordedHost | None = None  # that answers from it; None: there is no capture
    trouble: Trouble | None = None
    line: str = ""  # the deciding line of ssh or of the node, or the command that was under way
    at: str = ""  # with a trouble of a host on the way there: that host

    @property
    def can_meet(self) -> bool:
        """Whether the node can take part where nodes try each other: its Python need not be one for the doctor."""
        found = re.fullmatch(r"Python (\d+)\.(\d+).*", self.line) if self.trouble is Trouble.TOO_OLD else None
        return self.host is not None or (found is not None and (int(found[1]), int(found[2])) >= _OLDEST_THAT_MEETS)


def collect(
    nodes: Sequence[Node],
    program: bytes,
    words: Sequence[str],
    *,
    limit_s: float,
    parallel: int = PARALLEL,
    client: Sequence[str] = ("ssh",),
    options: Options | None = None,
) -> Generator[Collected, None, None]:
    """Every node's capture as it comes in. Close the iterator to end all that still runs, there as well.

    `program` is the doctor as one file, `words` are its options.
    """
    there_s = max(limit_s - _SPARE_S, limit_s / 2)
    asked = json.dumps({"limit_s": there_s, "size": len(program), "words": list(words)}).encode() + b"\n"
    code = PROGRAM.encode()
    data = b"%d\n" % len(code) + code + asked + program
    answers = ask(
        nodes,
        lambda node: (node.python or PYTHON, "-c", BOOT),
        stdin=data,
        limit_s=limit_s,
        parallel=parallel,
        client=client,
        options=options,
        most_bytes=MOST_BYTES,
        keeps_stdin=True,
    )
    for answer in answers:
        got = _collected(answer)
        is_new = got.trouble is Trouble.HOST_KEY and "host key is known for" in got.line
        if is_new and not keeps_keys(got.node, client, options):
            got = replace(got, trouble=Trouble.NO_KEYS)
        yield got


def _collected(answer: Answer) -> Collected:
    """What the node's answer holds."""
    found = _told(answer.out)
    if found is None:
        trouble = answer.trouble or Trouble.BROKEN
        line = last_words(answer.err, answer.out if MARK not in answer.out else b"", trouble)
        at = stopped_at(answer.node, answer.err)
        return Collected(answer.node, answer.seconds, trouble=trouble, line=line, at=at)
    word, body = found
    if word == "capture":
        return _read(answer, body)
    line = body.decode(errors="replace").strip()
    if word == "too-old":
        return Collected(answer.node, answer.seconds, trouble=Trouble.TOO_OLD, line=f"Python {line}")
    trouble = Trouble.TIMED_OUT if word == "timed-out" else Trouble.BROKEN
    return Collected(answer.node, answer.seconds, trouble=trouble, line=_deciding(line))


def _deciding(text: str) -> str:
    """The line of a program's last words that says most: the end of a traceback, else the first one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    return lines[-1] if "Traceback" in text else lines[0]


def _read(answer: Answer, body: bytes) -> Collected:
    try:
        text = zlib.decompress(body).decode()
        host = parse_capture(text, Path(answer.node.name))
    except (zlib.error, UnicodeDecodeError, BadInput) as error:
        line = say(error.message) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
        return Collected(answer.node, answer.seconds, trouble=Trouble.BROKEN, line=line)
    return Collected(answer.node, answer.seconds, text, host)


def _told(out: bytes) -> tuple[str, bytes] | None:
    """The word of the answer and what belongs to it; None where it is not whole."""
    at = out.find(MARK)
    if at < 0:
        return None
    head, _, rest = out[at + len(MARK) :].partition(b"\n")
    match = re.fullmatch(rb"([a-z-]+) (\d+)", head)
    if match is None or len(rest) < int(match[2]):
        return None
    return match[1].decode(), rest[: int(match[2])]
