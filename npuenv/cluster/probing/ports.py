"""Whether every node reaches the ports of every other one, with large packets too. Start from `reach`; `judge` and
`packets` are pure.

All nodes listen and knock at the same time, for a few seconds; a port at which something listens already is left to it.
Up to `ALL_AT_MOST` nodes each one knocks at all others; of more, at a few of them, so that each port is tried from
several sides, and single broken ways are not excluded.
"""

from __future__ import annotations

import errno
import secrets
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuenv.cluster.consistency.findings import alone, chain, finding, message
from npuenv.cluster.nodeset import fold, fold_numbers
from npuenv.cluster.probing.localize import Culprit, Knock, blocks, culprits, groups_apart, open_ways
from npuenv.cluster.probing.transport import run
from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Status
from npuenv.facts.network import ports as hccl_ports
from npuenv.host.redact import Redactor
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from npuenv.cluster.consistency.identity import Met
    from npuenv.cluster.probing.transport import Way
    from npuenv.cluster.types import Node
    from npuenv.core.messages import Message

ALL_AT_MOST = 32
RAY = (6379, 8265, 10001)  # GCS, dashboard, client
KNOCK_S = 8.0
_PORTS_PER_S = 280.0  # how many ports a small machine knocks at in a second, with room to spare
_ENOUGH_S = 4.0  # for two nodes to find each other: an attempt, and another one
_START_S = 25.0  # to connect, and to say what came of it
_LINES_OF_A_PLACE = 6
_LARGE = 0  # in the place of a port: a message of many bytes, see `npuenv.facts.target.knock`
_NO_ADDRESS = "ip -o addr: -"
_SOURCE = "Ray, ports configuration; hicann/hccl user guide, HCCL_IF_BASE_PORT and HCCL_HOST_SOCKET_PORT_RANGE"
_PACKETS_SOURCE = "ip(7), IP_PMTUDISC; RFC 2923, TCP problems with path MTU discovery"


def usual_ports() -> tuple[int, ...]:
    """The ports of Ray's head, and those of HCCL from its own base on and from the one that launch files set."""
    return ports_of([{}])


def ports_of(sessions: Iterable[Mapping[str, str]]) -> tuple[int, ...]:
    """The ports of Ray's head, and those of HCCL in these sessions, by their variables.

    Where one names none: from HCCL's own base on, and from the one that launch files set. Of a session in which the
    system gives them out, none: see `has_unfixed`.
    """
    found: set[int] = set()
    for session in sessions:
        told = hccl_ports.told(session)
        found |= set(_usual() if told is None else told)
    return (*RAY, *sorted(found - set(RAY)))


def has_unfixed(sessions: Iterable[Mapping[str, str]]) -> bool:
    """Whether in some session HCCL's ports are not known before a run: nobody can knock at those."""
    return any(hccl_ports.told(session) == () for session in sessions)


def names_ports(session: Mapping[str, str]) -> bool:
    """Whether a session says where HCCL's ports are."""
    return bool(session.get(hccl_ports.BASE) or session.get(hccl_ports.RANGE))


def _usual() -> set[int]:
    rows = load_matrix().settings
    launch = {int(row.value) for row in rows if row.name == hccl_ports.BASE and row.value.isdecimal()}
    return {port for base in {hccl_ports.FIRST, *launch} for port in hccl_ports.from_base(base)}


def reach(
    nodes: Sequence[Node],
    met: Mapping[str, Met],
    way: Way,
    ports: Sequence[int] = (),
    *,
    absent: Mapping[str, str] | None = None,
    is_unfixed: bool = False,
) -> tuple[Finding, Finding]:
    """The findings about ports and large packets between the nodes that were met; `absent` says why others were not.
    `is_unfixed`: HCCL's ports are not among these, the system gives them out.
    """
    # Two names of one machine have the same ports, which only one of them can open: `agree.machines` names them.
    machines = {(each.boot, each.addresses) if each.boot else name: name for name, each in reversed(list(met.items()))}
    twins = met.keys() - machines.values()
    nodes = [node for node in nodes if node.name not in twins]
    here = [node for node in nodes if address_of(met, node.name)]
    away = {**(absent or {}), **{node.name: _NO_ADDRESS for node in nodes if node not in here}}
    asked_ports = tuple(ports) or usual_ports()
    if len(here) < 2:
        return alone("ports", away, _SOURCE), alone("packets", away, _PACKETS_SOURCE)
    plan = schedule([node.name for node in here])
    callers = {name: sum(name in targets for targets in plan.values()) for name in plan}
    knock_s = KNOCK_S + len(here) * len(asked_ports) / _PORTS_PER_S
    word = secrets.token_hex(8)

    def asked(node: Node) -> dict[str, Any]:
        targets = {name: address_of(met, name) for name in plan[node.name]}
        said = {"me": node.name, "word": word, "ports": asked_ports, "targets": targets}
        return {**said, "callers": callers[node.name], "limit_s": knock_s}

    # All at once: whoever waits for a place would not be there when the others knock.
    rounds = run(here, "knock", asked, limit_s=knock_s + _START_S, way=way, parallel=len(here))
    answers = {heard.node.name: heard for heard in rounds}
    told = {name: {**heard.told, "ended": heard.ended} for name, heard in answers.items() if heard.told is not None}
    silent = {name: heard.why for name, heard in answers.items() if heard.told is None}
    found, large = judge(told, plan, asked_ports, {**away, **silent}), packets(told, {**away, **silent})
    if found.status is not Status.OK:
        return found, large
    # A host has several networks, and what is open in one need not be in that of the training.
    says = message("ports-over", says=found.says, addresses=_shown([address_of(met, node.name) for node in here]))
    return replace(found, says=message("ports-unfixed", says=says) if is_unfixed else says), large


def _shown(addresses: Iterable[str]) -> str:
    """The addresses in short, public ones as stand-ins: they are told and written."""
    redactor = Redactor()
    return fold(redactor.text(f"addr {address}").removeprefix("addr ") for address in addresses)


def address_of(met: Mapping[str, Met], name: str) -> str:
    """Where the others reach a node: the address by which we did, where that is its own; else its first one."""
    if name not in met:
        return ""
    each = met[name]
    return each.login if each.login in each.addresses else next(iter(each.addresses), each.login)


def schedule(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Whom each node knocks at: all others, or of many the ones 1, 2, 4 ... places further on in the circle."""
    count = len(names)
    steps = range(1, count)
    if count > ALL_AT_MOST:
        steps = [1 << power for power in range((count - 1).bit_length())]  # type: ignore[assignment]
    return {name: tuple(names[(at + step) % count] for step in steps) for at, name in enumerate(names)}


def judge(
    told: Mapping[str, Mapping[str, Any]],
    plan: Mapping[str, Sequence[str]],
    ports: Sequence[int],
    silent: Mapping[str, str],
) -> Finding:
    """The finding, from what each node says of its own listening and knocking."""
    unopened = _unopened(told)
    untried = _untried(told, plan, ports)
    tried, why = _tried(told, unopened)
    withdrawn = {knock for knock, outcome in why.items() if _is_withdrawn(told, knock, outcome)}
    tried = {knock: arrived for knock, arrived in tried.items() if knock not in withdrawn}
    # A node that began late, or was held up, has missed the others: neither of them is to blame.
    missed = {knock for knock, arrived in tried.items() if not arrived and not _has_met(told, knock)}
    tried = {knock: arrived for knock, arrived in tried.items() if knock not in missed}
    late = _late(told, missed)
    if not all(tried.values()):
        places = _places(tried)
        lines = [(knock.source, _line(knock, why[knock])) for _, failed in places for knock in failed]
        says = message("ports-closed", places=tuple(says for says, _ in places))
        unseen = {*silent, *untried, *late}
        if unseen:
            says = message("and-blind", says=says, who=fold(unseen))
        return finding("ports", Status.FAIL, says, lines, source=_SOURCE, fix="ports", is_dangerous=True)
    open_ports = [port for port in ports if port not in {knock.port for knock in withdrawn}]
    if silent or unopened or missed or untried or not open_ports:
        lines = [(name, Evidence("python3 (knock)", line)) for name, line in silent.items()]
        lines += [(name, Evidence(f"listen {port}", said)) for (name, port), said in unopened.items()]
        lines += [(name, Evidence("python3 (knock)", f"began {by_s:.0f} s late")) for name, by_s in late.items()]
        lines += [(name, _line(knock, "no outcome")) for name, knock in untried.items()]
        lines += [(knock.source, _line(knock, why[knock])) for knock in withdrawn if not open_ports]
        blind = {*silent, *untried, *(name for name, _ in unopened), *late}
        blind |= {knock.target for knock in withdrawn if not open_ports}
        said = _who_is_blind(blind, late)
        met = {knock: arrived for knock, arrived in tried.items() if blind.isdisjoint(knock[:2])}
        if met:
            said = message("ports-open-else", says=said, elsewhere=_open(plan, met, open_ports))
        return finding("ports", Status.UNKNOWN, said, lines, source=_SOURCE)
    return finding("ports", Status.OK, _open(plan, tried, open_ports), source=_SOURCE)


def packets(told: Mapping[str, Mapping[str, Any]], silent: Mapping[str, str]) -> Finding:
    """The finding about large packets, on the ways on which small ones arrived."""
    outcomes = {
        Knock(source, target, _LARGE): each.get("large", {}).get(target)
        for source, each in told.items()
        for target, reached in each.get("reached", {}).items()
        if target in told and "ok" in reached.values()
    }
    tried = {knock: outcome == "ok" for knock, outcome in outcomes.items() if outcome in ("ok", "lost")}
    unseen = {*silent, *(knock.source for knock in outcomes.keys() - tried.keys())}
    if not all(tried.values()):
        places = _places(tried)
        lines = [
            (knock.source, Evidence(f"send 12000 bytes to {knock.target}", "not acknowledged within 5 s"))
            for _, lost in places
            for knock in lost
        ]
        says = message("packets-lost", places=tuple(says for says, _ in places))
        if unseen:
            says = message("and-blind", says=says, who=fold(unseen))
        return finding("packets", Status.FAIL, says, lines, source=_PACKETS_SOURCE, fix="packets")
    if unseen:
        lines = [(name, Evidence("python3 (knock)", silent.get(name, "no outcome"))) for name in sorted(unseen)]
        return finding("packets", Status.UNKNOWN, message("blind", who=fold(unseen)), lines, source=_PACKETS_SOURCE)
    if not tried:
        return finding("packets", Status.SKIP, message("packets-untried"), source=_PACKETS_SOURCE)
    return finding("packets", Status.OK, message("packets-arrive", tried=len(tried)), source=_PACKETS_SOURCE)


def _open(plan: Mapping[str, Sequence[str]], tried: Mapping[Knock, bool], ports: Sequence[int]) -> Message:
    """That all who take part in these attempts reach each other."""
    count = len({name for knock in tried for name in knock[:2]})
    is_whole = all(len(targets) == len(plan) - 1 for targets in plan.values())
    name = "ports-open" if is_whole else "ports-open-sampled"
    return message(name, count=count, ports=fold_numbers(ports), tried=len(tried))


def _who_is_blind(blind: Collection[str], late: Mapping[str, float]) -> Message:
    """Of whom nothing could be told, those that came late with how late."""
    others = set(blind) - late.keys()
    parts = [message("blind", who=fold(others))] if others else []
    if late:
        args = {"who": fold(late), "seconds": f"{max(late.values()):.0f}"}
        parts.append(message("ports-late", **args))
    return chain(parts)


def _late(told: Mapping[str, Mapping[str, Any]], missed: Collection[Knock]) -> dict[str, float]:
    """The fewest nodes by whose absence these attempts came to nothing, with the seconds by which they were late."""
    began = {name: each.get("ended", 0.0) - each.get("lasted", _ENOUGH_S) for name, each in told.items()}
    left, found = set(missed), {}
    while left:
        counts = Counter(name for knock in left for name in knock[:2])
        name = max(counts, key=lambda name: (counts[name], began[name], name))
        found[name] = began[name] - min(began.values())
        left = {knock for knock in left if name not in knock[:2]}
    return found


def _untried(
    told: Mapping[str, Mapping[str, Any]], plan: Mapping[str, Sequence[str]], ports: Sequence[int]
) -> dict[str, Knock]:
    """The nodes that did not come round to all that they were to try, each with the first attempt that is missing."""
    found = {}
    for source, each in told.items():
        reached = each.get("reached", {})
        missing = (
            Knock(source, target, port)
            for target in plan.get(source, ())
            for port in ports
            if target in told and str(port) not in reached.get(target, {})
        )
        first = next(missing, None)
        if first is not None:
            found[source] = first
    return found


def _unopened(told: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, int], str]:
    """The ports that a node could neither listen on nor finds taken, with the reason: nobody can judge those."""
    return {
        (name, int(port)): str(said)
        for name, each in told.items()
        for port, said in each.get("listening", {}).items()
        if said not in ("opened", "taken")
    }


def _tried(
    told: Mapping[str, Mapping[str, Any]], unopened: Mapping[tuple[str, int], str]
) -> tuple[dict[Knock, bool], dict[Knock, str]]:
    """Each attempt with whether it arrived, and the last reason of those that did not.

    A node that said nothing may not have listened: what was tried there is left out. At a port that was opened for
    this, only the word that comes back counts: something in between can take a connection too. Where the word came back
    from another node, the address is not the one of the node that was meant.
    """
    arrived, why = {}, {}
    for source, each in told.items():
        for target, outcomes in each.get("reached", {}).items():
            if target not in told:
                continue
            for port, outcome in outcomes.items():
                if (target, int(port)) in unopened:
                    continue
                knock = Knock(source, target, int(port))
                is_ours = told[target].get("listening", {}).get(port) == "opened"
                arrived[knock] = outcome == "ok" or (outcome == "service" and not is_ours)
                why[knock] = str(outcome)
    return arrived, why


def _is_withdrawn(told: Mapping[str, Mapping[str, Any]], knock: Knock, outcome: str) -> bool:
    """Whether a service holds the port there and refuses: it may listen on loopback alone, which is no closed port."""
    is_taken = told[knock.target].get("listening", {}).get(str(knock.port)) == "taken"
    return is_taken and outcome == errno.errorcode[errno.ECONNREFUSED]


def _has_met(told: Mapping[str, Mapping[str, Any]], knock: Knock) -> bool:
    """Whether both were there long enough at the same time, by when each one ended and how long it had been there."""
    ends = [told[name].get("ended", 0.0) for name in (knock.source, knock.target)]
    begins = [end - told[name].get("lasted", _ENOUGH_S) for end, name in zip(ends, (knock.source, knock.target))]
    return bool(min(ends) - max(begins) >= _ENOUGH_S)


def _line(knock: Knock, why: str) -> Evidence:
    return Evidence(f"connect {knock.target}:{knock.port}", why)


def _places(tried: Mapping[Knock, bool]) -> list[tuple[Message, list[Knock]]]:
    """What explains the attempts that failed, in words, each with some that show it: groups of nodes between which
    nothing gets through, then single culprits.
    """
    groups = groups_apart(tried)
    number = {name: at for at, group in enumerate(groups) for name in group}
    torn = [knock for knock in tried if len({number.get(name, -1) for name in knock[:2]} - {-1}) > 1]
    cut = set(torn)
    rest = {knock: arrived for knock, arrived in tried.items() if knock not in cut}
    says = message("place-apart", groups=" | ".join(fold(group) for group in groups))
    apart = [(says, sorted(torn)[:_LINES_OF_A_PLACE])] if torn else []
    return [*apart, *_single(culprits(rest), rest)]


def _single(found: Sequence[Culprit], tried: Mapping[Knock, bool]) -> list[tuple[Message, list[Knock]]]:
    """The culprits in words, those of one kind with the same ports together; each with attempts that show it."""
    groups: defaultdict[tuple[str, tuple[int, ...] | None], list[Culprit]] = defaultdict(list)
    for item in found:
        kinds = {(True, True): "way", (False, True): "target", (True, False): "source"}
        groups[kinds.get((item.source is not None, item.target is not None), "nowhere"), item.ports].append(item)
    places = []
    for (kind, ports), items in groups.items():
        if kind == "way":
            pairs = [(item.source or "", item.target or "") for item in items]
            broken = blocks(pairs, open_ways(tried, ports))
        else:
            broken = [({item.source for item in items if item.source}, {item.target for item in items if item.target})]
        for sources, targets in broken:
            explained = [item for item in items if kind != "way" or (item.source in sources and item.target in targets)]
            failed = [knock for item in explained for knock in item.failed[:2]]
            places.append((_place(kind, ports, sources, targets), failed[:_LINES_OF_A_PLACE]))
    return places


def _place(kind: str, ports: tuple[int, ...] | None, sources: Iterable[str], targets: Iterable[str]) -> Message:
    names = {"source": fold(sources), "target": fold(targets)}
    if ports is None or ports == (_LARGE,):
        return message(f"place-{kind}-all", **names)
    return message(f"place-{kind}", ports=fold_numbers(ports), **names)
