"""What `ray status` says: nodes, resources, waiting demands, or why it cannot. Start from `status` and `parse`.

It is asked only where an address of a cluster is known: with none it takes 35 seconds to say so (Ray 2.55).
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.facts.base import Evidence, Fact, absent, known, unknown
from npuenv.facts.read import why_failed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npuenv.host.base import Host, Ran

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_USAGE = re.compile(r"^\s*([0-9.]+)([A-Za-z]*)/([0-9.]+)([A-Za-z]*) ([\w.:-]+)(?: \(.*\))?\s*$")
_DEMAND = re.compile(r"^\s*(\{[^{}]*\})(?: \* ([0-9]+))?(?: \((\w+)\))?: ([0-9]+)\+? pending")
_NEED = re.compile(r"['\"]([\w.:-]+)['\"]: ([0-9.]+)")
_NODE = re.compile(r"^\s*([0-9]+) (\S+)\s*$")
_LINE_AT_MOST = 240
_FACTORS = {"": 1.0, "B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_TITLES = {
    "Active:": "active",
    "Idle:": "active",
    "Pending:": "pending",
    "Recent failures:": "failures",
    "Usage:": "usage",
    "Total Usage:": "usage",
    "Demands:": "demands",
    "Total Demands:": "demands",
    "Pending Demands:": "demands",
    "From request_resources:": "requests",
    "Resources": "",
    "Node status": "",
}


@dataclass(frozen=True, slots=True)
class Resource:
    """One row of the resources: `0.0/16.0 NPU`. Memory is in bytes."""

    name: str
    used: float
    total: float


@dataclass(frozen=True, slots=True)
class Demand:
    """Work that waits. A placement group asks for `bundles` times `needs`; `how` places them (STRICT_PACK, ...)."""

    needs: tuple[tuple[str, float], ...]  # by name
    bundles: int
    how: str
    waiting: int
    line: str

    def of(self, name: str) -> float:
        """How much of a resource one bundle needs."""
        return dict(self.needs).get(name, 0.0)


@dataclass(frozen=True, slots=True)
class Status:
    """The cluster at one moment. Node rows are ids, not addresses; a dead node can linger here for a while."""

    nodes: int
    resources: tuple[Resource, ...]
    demands: tuple[Demand, ...]

    def total(self, name: str) -> float:
        """What the whole cluster has of a resource; 0 where it has no row."""
        return sum(item.total for item in self.resources if item.name == name)


class Refusal(enum.Enum):
    """Why there is no status."""

    TIMEOUT = "timeout"  # nobody answered in our time
    UNREACHABLE = "unreachable"  # Ray itself gave up waiting for the head
    NO_CLUSTER = "no-cluster"
    TOKEN = "token"  # the cluster asks for a token and this command sent none, or another one
    VERSION = "version"  # the cluster runs another Ray or Python
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A status that did not come, with the line that says why."""

    kind: Refusal
    line: str


_REFUSALS = (
    (Refusal.TOKEN, re.compile(r"AuthenticationError|InvalidAuthToken|Authentication token is missing")),
    (Refusal.VERSION, re.compile(r"Version mismatch: The cluster was started with")),
    (Refusal.UNREACHABLE, re.compile(r"Timed out while waiting for GCS|Failed to get cluster ID from GCS")),
    (Refusal.UNREACHABLE, re.compile(r"Could not read 'temp_dir' from GCS")),
    (Refusal.NO_CLUSTER, re.compile(r"Could not find any running Ray instance")),
)


def status(host: Host, program: str, timeout_s: float) -> Fact[Status | Trouble]:
    """Asks the cluster that Ray knows. The trouble is a value too: it is what somebody running Ray would see."""
    return read(host.run((program, "status"), timeout_s=timeout_s), timeout_s)


def read(ran: Ran, timeout_s: float) -> Fact[Status | Trouble]:
    """What the command came to that had this long."""
    command = " ".join(ran.argv)
    if ran.is_absent:
        return absent(Evidence(command, ran.err or "no such program"))
    if ran.timed_out:
        return known(Trouble(Refusal.TIMEOUT, ""), Evidence(command, f"no answer within {timeout_s:g} s"))
    found = parse(ran.out)
    if found is not None:
        rows = [f"{item.used:g}/{item.total:g} {item.name}" for item in found.resources if "memory" not in item.name]
        line = f"{found.nodes} nodes: {', '.join(rows) or '-'}"
        return known(found, Evidence(command, line), *_waiting(command, found))
    return _refused(command, ran)


def _waiting(command: str, found: Status) -> Iterable[Evidence]:
    return (Evidence(command, demand.line) for demand in found.demands[:3])


def _refused(command: str, ran: Ran) -> Fact[Status | Trouble]:
    text = _COLOUR.sub("", f"{ran.out}\n{ran.err}")
    for kind, pattern in _REFUSALS:
        # The last one: Ray's C++ parts say it first, among their times and numbers, the exception says it for people.
        line = next(
            (line.strip()[:_LINE_AT_MOST] for line in reversed(text.splitlines()) if pattern.search(line)), None
        )
        if line is not None:
            return known(Trouble(kind, line), Evidence(command, line))
    if ran.code == 0:
        return unknown(Evidence(command, why_failed(ran)))
    return known(Trouble(Refusal.OTHER, why_failed(ran)), Evidence(command, why_failed(ran)))


def parse(text: str) -> Status | None:
    """The status in the text of `ray status`, both generations of titles; None where its resources are not there.

    Lines of Ray's C++ parts may stand between; the rows are found by their titles and shapes.
    """
    sections: dict[str, list[str]] = {}
    section = ""
    for raw in text.splitlines():
        line = _COLOUR.sub("", raw).rstrip()
        if line.strip() in _TITLES:
            section = _TITLES[line.strip()]
            sections.setdefault(section, [])
        elif section and line.strip():
            sections[section].append(line)
    resources = tuple(item for item in map(_resource, sections.get("usage", ())) if item is not None)
    if not resources:
        return None
    nodes = sum(1 for line in sections.get("active", ()) if _NODE.match(line))
    return Status(nodes, resources, tuple(item for item in map(_demand, sections.get("demands", ())) if item))


def _resource(line: str) -> Resource | None:
    found = _USAGE.match(line)
    if found is None:
        return None
    used, unit, total, other, name = found.groups()
    try:
        return Resource(name, float(used) * _FACTORS[unit], float(total) * _FACTORS[other])
    except (KeyError, ValueError):
        return None  # a number or unit that is none: the row is not one


def _demand(line: str) -> Demand | None:
    """` {'NPU': 1.0, 'CPU': 3.0} * 8 (STRICT_PACK): 1+ pending placement groups`; the order of the names varies."""
    found = _DEMAND.match(line)
    if found is None:
        return None
    needs, bundles, how, waiting = found.groups()
    try:
        pairs = tuple(sorted((name, float(number)) for name, number in _NEED.findall(needs)))
    except ValueError:
        return None  # a number with two points
    return Demand(pairs, int(bundles or 1), how or "", int(waiting), line.strip()) if pairs else None
