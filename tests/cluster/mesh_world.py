"""A cluster of nodes for the ping mesh: a scripted ssh that runs commands here, and a scripted hccn_tool.

`World` plants faults in what the tool says. Where neither ssh nor the program on the nodes is what is looked at,
`Direct` has the nodes answer without any process.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.cluster.mesh import NodeOutput, remote
from npuenv.cluster.mesh.running import Line, SshRunner
from tests.cluster import mesh_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_SSH = """#!/bin/sh
# The words before the command line end with the name of the node.
for word; do name=$command; command=$word; done
[ -e "$WORLD/down.$name" ] && { echo "ssh: connect to host $name port 22: No route to host" >&2; exit 255; }
[ -e "$WORLD/banner" ] && printf "Welcome to $name. "
# On a real node nothing dies with the client here: what runs there only sees that its input ends.
NODE=$name PATH="$WORLD/$name:$WORLD:$PATH" exec setsid --wait sh -c "$command"
"""

# This very interpreter and no site: what is first on PATH may be a script that looks for one.
_PYTHON = """#!/bin/sh
exec "{python}" -IS "$@"
"""
_TOOL = "#!{python} -IS\n"


@dataclass(frozen=True, slots=True)
class Ping:
    """One ping that was really made."""

    node: str
    source: str
    target: str
    began_s: float
    ended_s: float
    was_second: bool  # another one ran for the same node


class World:
    """The folder in which the cluster lives; faults are planted before a run."""

    def __init__(self, folder: Path, shape: Sequence[int], names: Sequence[str] | None = None) -> None:
        self.folder = folder
        self.nodes = list(names or (f"node{number:02}" for number in range(1, len(shape) + 1)))
        self.addresses = {
            f"{node}:{card}": f"10.{at}.0.{card + 1}"
            for at, (node, count) in enumerate(zip(self.nodes, shape))
            for card in range(count)
        }
        self.pings: dict[str, str] = {}  # "source target" -> lossy, cold (at first), weak, failed, silent
        self.refusals: dict[str, str] = {}
        self.seconds: dict[str, float] = {}  # how long a ping takes, by how it goes
        lines = [f"{node} cards={count}" for node, count in zip(self.nodes, shape)]
        self.hosts = folder / "hosts"
        self.hosts.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._program("ssh", _SSH)
        python = os.path.realpath(sys.executable)
        self._program("python3", _PYTHON.format(python=python))
        text = Path(mesh_tool.__file__).read_text(encoding="utf-8")
        tool = self._program("hccn_tool", _TOOL.format(python=python) + text)
        for node in self.nodes:  # each has its own, as machines do
            (folder / node).mkdir(exist_ok=True)
            (folder / node / "hccn_tool").unlink(missing_ok=True)
            (folder / node / "hccn_tool").symlink_to(tool)
        self.plant()

    @property
    def environ(self) -> dict[str, str]:
        """What a run needs to find the scripted programs."""
        return {"WORLD": str(self.folder), "PATH": f"{self.folder}:{os.environ['PATH']}"}

    def plant(self, how: str = "failed", pairs: Iterable[tuple[str, str]] = ()) -> None:
        """Lets these pings, given by names like node01:3, go that way from now on."""
        for source, target in pairs:
            self.pings[f"{self.addresses[source]} {self.addresses[target]}"] = how
        faults = {
            "addresses": self.addresses,
            "netmask": "255.0.0.0",
            "pings": self.pings,
            "refusals": self.refusals,
            "seconds": self.seconds,
        }
        (self.folder / "faults.json").write_text(json.dumps(faults), encoding="utf-8")

    def hold_after(self, count: int) -> None:
        """When this many pings were made none comes to an end any more, until `let_go`."""
        (self.folder / "hold").write_text(str(count), encoding="utf-8")

    def let_go(self) -> None:
        """Lets all pings come to an end again."""
        (self.folder / "hold").unlink()

    def kill_card(self, name: str) -> None:
        """Nothing gets through to a card or from it."""
        others = [other for other in self.addresses if other != name]
        self.plant("failed", [pair for other in others for pair in ((name, other), (other, name))])

    def made(self) -> list[Ping]:
        """All pings that were made, in the order of their ends."""
        return list(self._log())

    def _log(self) -> Iterator[Ping]:
        log = self.folder / "log"
        for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
            yield Ping(*json.loads(line))

    def _program(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path


class Direct(SshRunner):
    """Has the nodes answer in this process, as the program there would: the same tool says the same."""

    def __call__(
        self, questions: Mapping[str, Line], *, limit_s: float, on_line: Callable[[str, Line], object] | None = None
    ) -> Iterator[tuple[str, NodeOutput]]:
        heard: dict[str, list[dict[str, Any]]] = {node: [] for node in questions}
        stopped = set[str]()
        for node, number, card, ip in _calls(questions):
            if node in stopped:
                continue
            question = questions[node]
            is_ping = "jobs" in question
            line = _answer(node, [word.format(card=card, ip=ip) for word in question["words"]])
            line["job" if is_ping else "card"] = number
            heard[node].append(line)
            if on_line:
                on_line(node, line)
            if is_ping and remote.has_any(line, list(question["stop"])):
                stopped.add(node)
        for node, lines in heard.items():
            yield node, NodeOutput((*lines, {"end": True}))


def _calls(questions: Mapping[str, Line]) -> Iterator[tuple[str, int, int, str]]:
    """The node of each call of the tool, its number there, its card and its target."""
    for node, question in questions.items():
        for number, (card, ip) in enumerate(question.get("jobs", ())):
            yield node, number, card, ip
        for card in question.get("otherwise", ()):
            yield node, card, card, ""


def _answer(node: str, words: list[str]) -> dict[str, Any]:
    out, err, began_s = StringIO(), StringIO(), time.monotonic()
    code = mesh_tool.run(os.environ["WORLD"], node, words, out, err)
    said = {"out": out.getvalue(), "err": err.getvalue(), "s": round(time.monotonic() - began_s, 4)}
    return {"code": code, "late": False, "stuck": False, **said}
