"""A cluster of nodes for the ping mesh: a scripted ssh that runs commands here, and a scripted hccn_tool.

The tool prints what real ones print (success, loss, no answer, busy, no address), by files in which faults are planted.
It writes down when it began and ended, and it notices where it runs twice at once for a node.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_SSH = """#!/bin/sh
# The words before the command line end with the name of the node.
for word; do name=$command; command=$word; done
[ -e "$WORLD/down.$name" ] && { echo "ssh: connect to host $name port 22: No route to host" >&2; exit 255; }
[ -e "$WORLD/slow.$name" ] && { from=$(date +%s.%N); sleep 1.2; echo "$from $(date +%s.%N)" >> "$WORLD/slow.$name"; }
[ -e "$WORLD/banner" ] && printf "Welcome to $name. "
# On a real node nothing dies with the client here: what runs there only sees that its input ends.
NODE=$name PATH="$WORLD/$name:$WORLD:$PATH" exec setsid --wait sh -c "$command"
"""

# Real texts; X stands for the address that is asked.
_TOOL = """#!%(python)s -IS
import json, os, sys, time
world, words = os.environ["WORLD"], sys.argv[1:]
node = os.environ.get("NODE") or os.uname().nodename
faults = json.load(open(world + "/faults.json"))
card = words[words.index("-i") + 1]
own = faults["addresses"].get(node + ":" + card)
if node in faults["refusals"]:
    sys.exit(faults["refusals"][node])
if "-ip" in words:
    if own is None:
        sys.exit("Get ipconf failed, because no ip was preset there!")
    print("ipaddr:" + own + "\\nnetmask:" + faults["netmask"])
    sys.exit(0)
target, began = words[words.index("address") + 1], time.time()
mark = world + "/running." + node
try:
    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    twice = False
except FileExistsError:
    twice = True
how = faults["pings"].get(own + " " + target, "ok")
if how == "cold":  # the first packet of all is lost
    met = world + "/met." + own + "." + target
    how = "ok" if os.path.exists(met) else "lossy"
    open(met, "w").close()
print("device " + card + " PING " + target)
hold, log = world + "/hold", world + "/log"
while os.path.exists(hold) and os.path.exists(log) and open(log).read().count("\\n") >= int(open(hold).read()):
    time.sleep(0.02)
time.sleep(faults["seconds"].get(how, 0))
ok, lossy, weak = ["0.181", "0.055", "0.048"], ["out", "0.097", "0.066"], ["out", "out", "0.066"]
rows = {"ok": ok, "lossy": lossy, "weak": weak, "silent": []}.get(how, ["out"] * 3)
for number, row in enumerate(rows):
    print("recv time out seq=%%d" %% number if row == "out" else "recv seq=%%d,time=%%s000ms" %% (number, row))
count = sum(row != "out" for row in rows)
if rows:
    print("3 packets transmitted, %%d received, %%.2f%%%% packet loss" %% (count, 100 * (3 - count) / 3))
line = json.dumps([node, own, target, began, time.time(), twice])
with open(log, "a") as file:
    file.write(line + "\\n")
if not twice:
    os.remove(mark)
if how == "failed":
    print("Command execute failed!", file=sys.stderr)
"""


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
        tool = self._program("hccn_tool", _TOOL % {"python": os.path.realpath(sys.executable)})
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
