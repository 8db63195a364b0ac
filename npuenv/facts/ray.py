"""What Ray left or keeps on this machine, what `ray status` says, and whether a demand can ever be placed.

The token itself is never read: its name in a folder is enough. The status is asked only where an address of a cluster
is known: with none it takes 35 seconds to say so (Ray 2.55).
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.collector import USE_LEVEL, Collector, FactGroup, fact, made_of, not_asked, not_here, why_failed
from npuenv.facts.machine.hardware import FolderUsage, folder, mounts
from npuenv.host import Host, PathState, Ran

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_COLOUR = r"\x1b\[[0-9;]*[A-Za-z]"
TOGETHER, APART = "STRICT_PACK", "STRICT_SPREAD"  # all bundles on one node, and each on another
_STRATEGIES = ("PACK", "SPREAD", TOGETHER, APART)
_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_USAGE = rf"\s*-?({_NUMBER})([A-Za-z]*)/({_NUMBER})([A-Za-z]*) (\w(?:[\w.:-]*\w)?)(?: \(.*\))?"
_NEED = rf"['\"]([\w.:-]+)['\"]: ({_NUMBER})"
_ONE_NEED = rf"['\"][\w.:-]+['\"]: {_NUMBER}"
_BUNDLE = rf"\{{({_ONE_NEED}(?:, {_ONE_NEED})*)\}}(?: \* ([0-9]+))?"
_DEMAND = (
    r"\s*(\{.*\}(?: \* [0-9]+)?)(?: \((\w+)\))?: ([0-9]+)\+? "
    r"(pending tasks/actors|pending placement groups|from request_resources\(\))"
    r"(?: \([0-9]+\+ using placement groups\))?"
)
_NODE = r"\s*([0-9]+) \S+"
# What stands between the rows: lines of Ray's other parts, and the rules below titles.
_BETWEEN = r"\[|-+$|[0-9]{4}-[0-9]{2}-[0-9]{2}[ T]|\((?:raylet|autoscaler|gcs_server|[\w.:]*\s?pid=)"
_LINE_AT_MOST = 240
_FACTORS = {"": 1.0, "B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_TITLES = {
    "Node status": "",
    "Healthy:": "active",  # up to Ray 2.6
    "Active:": "active",
    "Idle:": "idle",
    "Pending:": "pending",
    "Recent failures:": "failures",
    "Resources": "",
    "Usage:": "usage",
    "Total Usage:": "usage",
    "From request_resources:": "requests",
    "Demands:": "demands",
    "Total Demands:": "demands",
    "Pending Demands:": "demands",
}
_ENDS = ("\n", "\r")  # half a number reads like a whole one
_NO_NODES, _NO_DEMANDS = ("(no active nodes)", "(no idle nodes)"), "(no resource demands)"
_SLACK = 1e-6  # Ray counts in ten-thousandths
_STATUS_SHORT_S = 4.0
_STATUS_S = 45.0  # with nobody there Ray needs 35 s to say so (2.55.0)
_ADDRESS = r"(?:\[[0-9A-Fa-f:]+\]|[\w.-]+):[0-9]{1,5}"
_SESSION = r"session_[0-9]{4}-[0-9]{2}-[0-9]{2}_.*"


class Resource(NamedTuple):
    """One row of the resources: `0.0/16.0 NPU`. Memory is in bytes."""

    name: str
    used: float
    total: float


@dataclass(frozen=True, slots=True)
class ResourceDemand:
    """What must be free on one node at once, and how many times."""

    needs: tuple[tuple[str, float], ...]  # by name
    count: int


@dataclass(frozen=True, slots=True)
class Demand:
    """Work that waits: a task or an actor is one bundle, a placement group one or more."""

    bundles: tuple[ResourceDemand, ...]
    how: str  # PACK, SPREAD, STRICT_PACK, STRICT_SPREAD; "" for tasks and actors
    waiting: int
    line: str

    @property
    def names(self) -> tuple[str, ...]:
        """The resources that are asked for."""
        return tuple(sorted({name for bundle in self.bundles for name, need in bundle.needs if need > 0}))

    @property
    def count(self) -> int:
        """How many bundles there are."""
        return sum(bundle.count for bundle in self.bundles)

    def of(self, name: str) -> float:
        """How much of a resource all bundles need."""
        return sum(dict(bundle.needs).get(name, 0.0) * bundle.count for bundle in self.bundles)

    def largest(self, name: str) -> float:
        """How much of a resource the bundle needs that takes the most of it."""
        return max(dict(bundle.needs).get(name, 0.0) for bundle in self.bundles)


class ClusterStatus(NamedTuple):
    """The cluster at one moment. Node rows are ids, not addresses; a dead node can linger here for a while."""

    nodes: int | None  # None: the list of nodes is cut or damaged
    resources: tuple[Resource, ...]
    demands: tuple[Demand, ...]
    has_all_resources: bool = True  # False: rows of them are missing or cannot be read
    has_all_demands: bool = True

    def total(self, name: str) -> float | None:
        """What the whole cluster has of a resource; None where nobody knows: its row may be one that cannot be read."""
        totals = {item.name: item.total for item in self.resources}
        # A line that a terminal cut off at its edge ends in the beginning of a name.
        is_known = self.has_all_resources and ":" not in name and not any(name.startswith(other) for other in totals)
        return totals.get(name, 0.0 if is_known else None)


class StatusRefusal(enum.Enum):
    """Why there is no status."""

    TIMEOUT = "timeout"  # nobody answered in our time
    UNREACHABLE = "unreachable"  # Ray itself gave up waiting for the head
    NO_CLUSTER = "no-cluster"
    TOKEN = "token"  # the cluster asks for a token and this command sent none, or another one
    VERSION = "version"  # the cluster runs another Ray or Python
    OTHER = "other"


class StatusTrouble(NamedTuple):
    """A status that did not come, with the line that says why."""

    kind: StatusRefusal
    line: str


_REFUSALS = (
    (StatusRefusal.TOKEN, r"AuthenticationError|InvalidAuthToken|Authentication token is missing"),
    (StatusRefusal.VERSION, r"Version mismatch: The cluster was started with"),
    (StatusRefusal.UNREACHABLE, r"Timed out while waiting for GCS|Failed to get cluster ID from GCS"),
    (StatusRefusal.UNREACHABLE, r"Could not read 'temp_dir' from GCS"),
    (StatusRefusal.NO_CLUSTER, r"Could not find any running Ray instance"),
)


def status(host: Host, program: str, timeout_s: float) -> Fact[ClusterStatus | StatusTrouble]:
    """Asks the cluster that Ray knows. The trouble is a value too: it is what somebody running Ray would see."""
    return read_status(host.run((program, "status"), timeout_s=timeout_s), timeout_s)


def read_status(ran: Ran, timeout_s: float) -> Fact[ClusterStatus | StatusTrouble]:
    """What the command came to that had this long."""
    command = " ".join(ran.argv)
    if ran.is_absent:
        return absent(Evidence(command, ran.err or "no such program"))
    if ran.timed_out:
        return known(StatusTrouble(StatusRefusal.TIMEOUT, ""), Evidence(command, f"no answer within {timeout_s:g} s"))
    found = parse_status(ran.out)
    if found is not None:
        rows = [f"{item.used:g}/{item.total:g} {item.name}" for item in found.resources if "memory" not in item.name]
        line = f"{'?' if found.nodes is None else found.nodes} nodes: {', '.join(rows) or '-'}"
        return known(found, Evidence(command, line), *(Evidence(command, demand.line) for demand in found.demands[:3]))
    text = re.sub(_COLOUR, "", f"{ran.out}\n{ran.err}")
    for kind, pattern in _REFUSALS:
        # The last one: Ray's C++ parts say it first, among their times and numbers, the exception says it for people.
        lines = [line for line in text.splitlines() if re.search(pattern, line)]
        if lines:
            line = lines[-1].strip()[:_LINE_AT_MOST]
            return known(StatusTrouble(kind, line), Evidence(command, line))
    if ran.code == 0:
        return unknown(Evidence(command, why_failed(ran)))
    return known(StatusTrouble(StatusRefusal.OTHER, why_failed(ran)), Evidence(command, why_failed(ran)))


def parse_status(text: str) -> ClusterStatus | None:
    """The status in the text of `ray status`, both generations of titles; None where its resources are not there.

    Lines of Ray's C++ parts may stand between; the rows are found by their titles and shapes. Of several the last
    whole one counts: who prints it again wants to know what it has become.
    """
    found = [status for status in map(_status_of, _sections(text)) if status is not None]
    whole = [each for each in found if each.nodes is not None and each.has_all_resources and each.has_all_demands]
    return (whole or found)[-1] if found else None


def _sections(text: str) -> Iterator[dict[str, list[str]]]:
    """The rows below the titles of each status."""
    sections: dict[str, list[str]] = {}
    section = ""
    for raw in text.splitlines(keepends=True):
        line = re.sub(_COLOUR, "", raw)
        title = _TITLES.get(line.rstrip())
        if line.startswith("Node: "):  # `ray status -v` says it all once more for each node
            section = ""
        elif title is not None:
            if title in sections and (title or line.rstrip() == "Node status"):
                yield sections
                sections = {}
            section = title
            sections.setdefault(section, [])
        elif section and line.strip() and not re.match(_BETWEEN, line):
            sections[section].append(line)
    yield sections


def _status_of(sections: Mapping[str, list[str]]) -> ClusterStatus | None:
    names = list(sections)
    usage = [_resource(line) for line in sections.get("usage", ())]
    resources = {item.name: item for item in usage if item is not None}
    if not resources:
        return None
    has_all_resources = len(resources) == len(usage) and names[-1] != "usage"
    rows = [_demands(line) for line in sections.get("demands", ())]
    demands = tuple(demand for row in rows if row is not None for demand in row)
    nodes = _nodes(sections) if names[-1] not in ("active", "idle") else None
    return ClusterStatus(nodes, tuple(resources.values()), demands, has_all_resources, bool(rows) and None not in rows)


def _nodes(sections: Mapping[str, list[str]]) -> int | None:
    """How many nodes there are; None where a row of theirs cannot be read, or their title is missing."""
    if not sections.get("active"):
        return None
    count = 0
    for line in (*sections["active"], *sections.get("idle", ())):
        found = re.fullmatch(_NODE, line.rstrip())
        if found is None and line.strip() not in _NO_NODES:
            return None
        count += int(found[1]) if found else 0
    return count


def _resource(line: str) -> Resource | None:
    found = re.fullmatch(_USAGE, line.rstrip())
    if found is None or not line.endswith(_ENDS):
        return None
    used, unit, total, other, name = found.groups()
    if unit not in _FACTORS or other not in _FACTORS:
        return None
    return Resource(name, float(used) * _FACTORS[unit], float(total) * _FACTORS[other])


def _demands(line: str) -> tuple[Demand, ...] | None:
    """The demand of a row; () where it says that there is none, None where the row cannot be read.

    ` {'NPU': 1.0, 'CPU': 3.0} * 8 (STRICT_PACK): 1+ pending placement groups`; the order of the names varies.
    """
    if line.strip() == _NO_DEMANDS:
        return ()
    found = re.fullmatch(_DEMAND, line.rstrip())
    if found is None or not line.endswith(_ENDS):
        return None
    asked, how, waiting, what = found.groups()
    if what.startswith("from"):  # no work waits for it
        return ()
    read = [(re.findall(_NEED, found[1]), int(found[2] or 1)) for found in re.finditer(_BUNDLE, asked)]
    bundles = tuple(
        ResourceDemand(tuple(sorted((name, float(need)) for name, need in needs)), count) for needs, count in read
    )
    if re.sub(_BUNDLE, "", asked).strip(", ") or what.endswith("groups") != (how in _STRATEGIES):
        return None
    return (Demand(bundles, how or "", int(waiting), line.strip()),)


class Lack(enum.Enum):
    """What there is too little of."""

    TOTAL = "total"  # in the whole cluster
    ONE = "one"  # on each single node, for one bundle
    TOGETHER = "together"  # on each single node, for all bundles, which STRICT_PACK places on one
    APART = "apart"  # nodes, of which STRICT_SPREAD wants one for each bundle
    CUT = "cut"  # of what the nodes have left when no bundle is cut


class UnsatisfiableDemand(NamedTuple):
    """Why a demand waits for ever."""

    lack: Lack
    name: str  # the resource of which there is least for what is asked
    total: float  # of it in the whole cluster
    most: float  # of it on one node
    nodes: int  # that have room for a bundle


def unsatisfiable_demand(
    demand: Demand, total: Callable[[str], float | None], nodes: Sequence[Mapping[str, float]], count: int | None = None
) -> UnsatisfiableDemand | None:
    """Why a demand waits for ever; None where it only waits for others to end, or nobody can tell.

    `total`: how much of a resource the whole cluster has; None: not known. `nodes`: what each node has; a resource
    that none of them lists is not known by node, and then only the total counts. `count`: how many nodes there are
    where nobody knows what each has. A task, an actor and each bundle fit on one node, whatever the strategy.
    """
    known = {name for node in nodes for name in node}
    totals = {
        name: sum(node.get(name, 0.0) for node in nodes) if name in known else total(name) for name in demand.names
    }
    for name, there in totals.items():
        if there is not None and demand.of(name) > there + _SLACK:
            return UnsatisfiableDemand(Lack.TOTAL, name, there, _most(name, nodes), 0)
    lack, room = _lack(demand, known, nodes, len(nodes) or count)
    if lack is None:
        return None
    name = max(demand.names, key=lambda name: demand.largest(name) / (_most(name, nodes) or math.inf))
    return UnsatisfiableDemand(lack, name, totals[name] or 0.0, _most(name, nodes), room)


def _lack(
    demand: Demand, known: set[str], nodes: Sequence[Mapping[str, float]], count: int | None
) -> tuple[Lack | None, int]:
    """(what there is too little of, how many nodes have room for a bundle)."""
    if demand.how == APART and count is not None and demand.count > count:
        return Lack.APART, count
    for bundle in demand.bundles:
        needs = {name: need for name, need in bundle.needs if name in known and need > 0}
        rooms = [_room(needs, node) for node in nodes] if needs else []
        room = sum(each > 0 for each in rooms)
        if rooms and not room:
            return Lack.ONE, 0
        if rooms and demand.how == APART and room < bundle.count:
            return Lack.APART, room
        if rooms and demand.how != TOGETHER and sum(rooms) < bundle.count:
            return Lack.CUT, room
    whole = {name: demand.of(name) for name in demand.names if name in known}
    if demand.how == TOGETHER and whole and not any(_room(whole, node) for node in nodes):
        return Lack.TOGETHER, 0
    return None, 0


def _most(name: str, nodes: Sequence[Mapping[str, float]]) -> float:
    return max((node.get(name, 0.0) for node in nodes), default=0.0)


def _room(needs: Mapping[str, float], node: Mapping[str, float]) -> int:
    """How many bundles one node can take."""
    rooms = (math.floor((node.get(name, 0.0) + _SLACK) / need) for name, need in needs.items() if need > 0)
    return min(rooms, default=1)


class RaySession(NamedTuple):
    """Ray's folder of temporary files."""

    folder: str
    is_writable: bool
    sessions: int  # folders of clusters that ran or run
    address: str | None  # of the cluster that ran last, as Ray noted it; None: none noted
    is_note_writable: bool  # the note belongs to this session's user, or there is none


def folder_of(host: Host) -> str:
    """Where Ray keeps its files: RAY_TMPDIR, else TMPDIR, else /tmp, with `ray` below."""
    environ = host.environ()
    return f"{(environ.get('RAY_TMPDIR') or environ.get('TMPDIR') or '/tmp').rstrip('/')}/ray"


def session(host: Host) -> Fact[RaySession]:
    """Ray's folder; absent where Ray was never started."""
    folder = folder_of(host)
    looked = host.look(folder)
    if looked.state is PathState.UNREADABLE and "denied" in looked.error:
        return known(RaySession(folder, False, 0, None, False), Evidence(folder, looked.error))
    if looked.state is not PathState.FOLDER:
        return not_here(looked)
    note = host.look(f"{folder}/ray_current_cluster")
    address = note.text.strip() if re.fullmatch(_ADDRESS, note.text.strip()) else None
    is_mine = note.state is PathState.ABSENT or note.is_writable
    sessions = sum(1 for name in looked.names if re.fullmatch(_SESSION, name))
    value = RaySession(folder, looked.is_writable, sessions, address, is_mine)
    access = "writable" if looked.is_writable else "not writable"
    evidence = [Evidence(folder, f"{access}, {value.sessions} sessions")]
    if note.state is not PathState.ABSENT:
        words = note.error or address or "no address"
        evidence.append(Evidence(note.path, words if is_mine else f"{words} (not writable)"))
    return known(value, *evidence)


def address(host: Host) -> Fact[str]:
    """The address that Ray would join without being told one: RAY_ADDRESS, else the noted cluster; absent: none."""
    named = host.environ().get("RAY_ADDRESS", "").strip()
    if re.fullmatch(_ADDRESS, named):
        return known(named, Evidence("environment", f"RAY_ADDRESS={named}"))
    note = host.look(f"{folder_of(host)}/ray_current_cluster")
    if note.state is PathState.FILE and re.fullmatch(_ADDRESS, note.text.strip()):
        return known(note.text.strip(), Evidence(note.path, note.text.strip()))
    if note.state is PathState.UNREADABLE:
        return unknown(Evidence(note.path, note.error))
    return absent(Evidence(note.path, note.state.value if note.state is PathState.ABSENT else "no address"))


def token(host: Host) -> Fact[str]:
    """The path of Ray's token file; absent where there is none. Its content is left alone."""
    named = host.environ().get("RAY_AUTH_TOKEN_PATH")
    path = named or f"{host.environ().get('HOME') or '/root'}/.ray/auth_token"
    folder, _, name = path.rpartition("/")
    looked = host.look(folder or "/")
    if looked.state is PathState.FOLDER:
        return known(path, Evidence(path, "present")) if name in looked.names else absent(Evidence(path, "absent"))
    if looked.state is PathState.ABSENT:
        return absent(Evidence(path, "absent"))
    return unknown(Evidence(folder, looked.error or looked.state.value))


def _status(host: Collector, address: Fact[str]) -> Fact[ClusterStatus | StatusTrouble]:
    """A cluster that is there answers in two or three seconds; for one that is not, level 1 does not wait."""
    if address.value is None:
        return Fact(address.state, None, address.evidence)
    limit = host.timeout(_STATUS_SHORT_S, _STATUS_S)
    beside = f"{host.python.rpartition('/')[0]}/ray" if "/" in host.python else "ray"
    found = host.read(status, beside, limit)
    if found.state is State.ABSENT and beside != "ray":
        found = status(host, "ray", limit)
    is_late = isinstance(found.value, StatusTrouble) and found.value.kind is StatusRefusal.TIMEOUT
    return not_asked(USE_LEVEL) if is_late and host.level < USE_LEVEL else found


class RayFacts(FactGroup):
    session: Fact[RaySession] = fact(session)
    session_disk: Fact[FolderUsage] = fact(
        lambda host, session: made_of(session, lambda value: folder(host, value.folder, mounts(host).value or ())),
        "ray.session",
    )  # the file system of Ray's own folder
    address: Fact[str] = fact(address)
    token: Fact[str] = fact(token)  # the path of the token file
    status: Fact[ClusterStatus | StatusTrouble] = fact(_status, "ray.address", level=1)
