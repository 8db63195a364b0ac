"""Whether every node reaches the ports of every other one, with large packets too.

All nodes listen and connect at the same time, for a few seconds; ports of running services are tested through these. Up
to `ALL_AT_MOST` nodes each one tests all others; beyond that a few, so that every port is tested from several nodes but
single broken links may be missed. Only `probe_ports` reaches nodes; everything else is pure.
"""

from __future__ import annotations

import errno
import secrets
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuenv.cluster.consistency.findings import finding, join, message, too_few_nodes, with_unknown
from npuenv.cluster.inventory import fold, fold_numbers, grouped
from npuenv.cluster.localize import PortFault, PortProbe, connected_groups, fewest, localize_port_faults
from npuenv.cluster.node_programs import run_program
from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Status
from npuenv.facts.network import interfaces as hccl_ports
from npuenv.host.redact import Redactor
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from npuenv.cluster.consistency.findings import NodeIdentity
    from npuenv.cluster.inventory import Node
    from npuenv.cluster.parallel_ssh import Transport
    from npuenv.core.messages import Message

ALL_AT_MOST = 32
RAY = (6379, 8265, 10001)  # GCS, dashboard, client
KNOCK_S = 8.0
_PORTS_PER_S = 280.0  # connections that a small machine opens in a second, at least
_ENOUGH_S = 4.0  # for two nodes to connect, with one retry
_START_S = 25.0  # to reach the nodes, and to return the results
_LINES_OF_A_PLACE = 6
_LARGE = 0  # as a port: a message of many bytes, see `npuenv.facts.target.knock`
_NO_ADDRESS = "ip -o addr: -"
_SOURCE = "Ray, ports configuration; hicann/hccl user guide, HCCL_IF_BASE_PORT and HCCL_HOST_SOCKET_PORT_RANGE"
_PACKETS_SOURCE = "ip(7), IP_PMTUDISC; RFC 2923, TCP problems with path MTU discovery"


def usual_ports() -> tuple[int, ...]:
    """The ports of Ray's head, and HCCL's from its default base and from the base of launch files."""
    return ports_of([{}])


def ports_of(sessions: Iterable[Mapping[str, str]]) -> tuple[int, ...]:
    """The ports of Ray's head, and HCCL's by the variables of these sessions; the usual ones if a session sets none.

    None for a session with ports that the system chooses: see `has_dynamic_ports`.
    """
    found: set[int] = set()
    for session in sessions:
        given = hccl_ports.told(session)
        found |= set(_usual() if given is None else given)
    return (*RAY, *sorted(found - set(RAY)))


def has_dynamic_ports(sessions: Iterable[Mapping[str, str]]) -> bool:
    """Whether in some session the system chooses HCCL's ports, which cannot be probed."""
    return any(hccl_ports.told(session) == () for session in sessions)


def sets_hccl_ports(session: Mapping[str, str]) -> bool:
    """Whether a session sets HCCL's ports."""
    return bool(session.get(hccl_ports.BASE) or session.get(hccl_ports.RANGE))


def _usual() -> set[int]:
    rows = load_matrix().settings
    launch = {int(row.value) for row in rows if row.name == hccl_ports.BASE and row.value.isdecimal()}
    return {port for base in {hccl_ports.FIRST, *launch} for port in hccl_ports.from_base(base)}


def probe_ports(
    nodes: Sequence[Node],
    identities: Mapping[str, NodeIdentity],
    transport: Transport,
    ports: Sequence[int] = (),
    *,
    absent: Mapping[str, str] | None = None,
    has_dynamic: bool = False,
) -> tuple[Finding, Finding]:
    """The findings about ports and large packets between the identified nodes.

    `absent`: why other nodes are missing. `has_dynamic`: the system chooses HCCL's ports.
    """
    # Of two names of one machine only one can open the ports: `agree.machines` names them.
    machines: dict[object, str] = {}
    for name, each in identities.items():
        machines.setdefault((each.boot, each.addresses) if each.boot else name, name)
    nodes = [node for node in nodes if node.name not in identities.keys() - machines.values()]
    present = [node for node in nodes if address_of(identities, node.name)]
    away = {**(absent or {}), **{node.name: _NO_ADDRESS for node in nodes if node not in present}}
    asked_ports = tuple(ports) or usual_ports()
    if len(present) < 2:
        return too_few_nodes("ports", away, _SOURCE), too_few_nodes("packets", away, _PACKETS_SOURCE)
    plan = probe_schedule([node.name for node in present])
    callers = {name: sum(name in targets for targets in plan.values()) for name in plan}
    probe_s = KNOCK_S + len(present) * len(asked_ports) / _PORTS_PER_S
    word = secrets.token_hex(8)

    def request(node: Node) -> dict[str, Any]:
        targets = {name: address_of(identities, name) for name in plan[node.name]}
        more = {"callers": callers[node.name], "limit_s": probe_s}
        return {"me": node.name, "word": word, "ports": asked_ports, "targets": targets, **more}

    # All at once: a node that waits would not listen when the others connect.
    rounds = run_program(
        present, "knock", request, limit_s=probe_s + _START_S, transport=transport, parallel=len(present)
    )
    results = {result.node.name: result for result in rounds}
    answers = {
        name: {**result.answer, "ended": result.ended} for name, result in results.items() if result.answer is not None
    }
    silent = {name: result.why for name, result in results.items() if result.answer is None}
    found, large = judge(answers, plan, asked_ports, {**away, **silent}), packets(answers, {**away, **silent})
    if found.status is not Status.OK:
        return found, large
    # A host may have several networks: state which one was tested.
    addresses = _shown(address_of(identities, node.name) for node in present)
    says = message("ports-over", says=found.says, addresses=addresses)
    return replace(found, says=message("ports-unfixed", says=says) if has_dynamic else says), large


def _shown(addresses: Iterable[str]) -> str:
    """The addresses, folded, public ones as stand-ins: they are printed and saved."""
    redactor = Redactor()
    return fold(redactor.text(f"addr {address}").removeprefix("addr ") for address in addresses)


def address_of(identities: Mapping[str, NodeIdentity], name: str) -> str:
    """The address of a node for the others: that of the login if it is its own, else its first one."""
    if name not in identities:
        return ""
    each = identities[name]
    return each.login if each.login in each.addresses else next(iter(each.addresses), each.login)


def probe_schedule(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The targets of each node: all others; for many nodes those at distances 1, 2, 4 ... on a circle."""
    count = len(names)
    steps: Sequence[int] = range(1, count)
    if count > ALL_AT_MOST:
        steps = [1 << power for power in range((count - 1).bit_length())]
    return {name: tuple(names[(at + step) % count] for step in steps) for at, name in enumerate(names)}


def judge(
    answers: Mapping[str, Mapping[str, Any]],
    plan: Mapping[str, Sequence[str]],
    ports: Sequence[int],
    silent: Mapping[str, str],
) -> Finding:
    """The finding about ports, from each node's report on its listening and connecting."""
    unopened = _unopened(answers)
    untried = _untried(answers, plan, ports)
    tried, why = _tried(answers, unopened)
    withdrawn = {probe for probe, outcome in why.items() if _is_withdrawn(answers, probe, outcome)}
    tried = {probe: arrived for probe, arrived in tried.items() if probe not in withdrawn}
    # Two nodes that were not active at the same time say nothing about the link.
    missed = {probe for probe, arrived in tried.items() if not arrived and not _overlaps(answers, probe)}
    tried = {probe: arrived for probe, arrived in tried.items() if probe not in missed}
    late = _late(answers, missed)
    if not all(tried.values()):
        places = _places(tried)
        lines = [(probe.source, _line(probe, why[probe])) for _, failed in places for probe in failed]
        unseen = fold({*silent, *untried, *late})
        says = with_unknown(message("ports-closed", places=tuple(says for says, _ in places)), unseen)
        return finding("ports", Status.FAIL, says, lines, source=_SOURCE, fix="ports", is_dangerous=True)
    open_ports = [port for port in ports if port not in {probe.port for probe in withdrawn}]
    if silent or unopened or missed or untried or not open_ports:
        lines = [(name, Evidence("python3 (knock)", line)) for name, line in silent.items()]
        lines += [(name, Evidence(f"listen {port}", why_not)) for (name, port), why_not in unopened.items()]
        lines += [(name, Evidence("python3 (knock)", f"began {by_s:.0f} s late")) for name, by_s in late.items()]
        lines += [(name, _line(probe, "no outcome")) for name, probe in untried.items()]
        lines += [(probe.source, _line(probe, why[probe])) for probe in withdrawn if not open_ports]
        unknown = {*silent, *untried, *(name for name, _ in unopened), *late}
        unknown |= {probe.target for probe in withdrawn if not open_ports}
        says = _unknown_nodes(unknown, late)
        others = {probe: arrived for probe, arrived in tried.items() if unknown.isdisjoint(probe[:2])}
        if others:
            says = message("ports-open-else", says=says, elsewhere=_open(plan, others, open_ports))
        return finding("ports", Status.UNKNOWN, says, lines, source=_SOURCE)
    return finding("ports", Status.OK, _open(plan, tried, open_ports), source=_SOURCE)


def packets(answers: Mapping[str, Mapping[str, Any]], silent: Mapping[str, str]) -> Finding:
    """The finding about large packets, on links where small ones arrived."""
    outcomes = {
        PortProbe(source, target, _LARGE): each.get("large", {}).get(target)
        for source, each in answers.items()
        for target, reached in each.get("reached", {}).items()
        if target in answers and "ok" in reached.values()
    }
    tried = {probe: outcome == "ok" for probe, outcome in outcomes.items() if outcome in ("ok", "lost")}
    unseen = {*silent, *(probe.source for probe in outcomes.keys() - tried.keys())}
    if not all(tried.values()):
        places = _places(tried)
        lost = [probe for _, failed in places for probe in failed]
        why = "not acknowledged within 5 s"
        lines = [(probe.source, Evidence(f"send 12000 bytes to {probe.target}", why)) for probe in lost]
        says = with_unknown(message("packets-lost", places=tuple(says for says, _ in places)), fold(unseen))
        return finding("packets", Status.FAIL, says, lines, source=_PACKETS_SOURCE, fix="packets")
    if unseen:
        lines = [(name, Evidence("python3 (knock)", silent.get(name, "no outcome"))) for name in sorted(unseen)]
        return finding("packets", Status.UNKNOWN, message("blind", who=fold(unseen)), lines, source=_PACKETS_SOURCE)
    if not tried:
        return finding("packets", Status.SKIP, message("packets-untried"), source=_PACKETS_SOURCE)
    return finding("packets", Status.OK, message("packets-arrive", tried=len(tried)), source=_PACKETS_SOURCE)


def _open(plan: Mapping[str, Sequence[str]], tried: Mapping[PortProbe, bool], ports: Sequence[int]) -> Message:
    """The sentence that all nodes of these attempts reach each other."""
    count = len({name for probe in tried for name in probe[:2]})
    is_whole = all(len(targets) == len(plan) - 1 for targets in plan.values())
    name = "ports-open" if is_whole else "ports-open-sampled"
    return message(name, count=count, ports=fold_numbers(ports), tried=len(tried))


def _unknown_nodes(unknown: Collection[str], late: Mapping[str, float]) -> Message:
    """The nodes without a result, and those that were late, with how late."""
    others = set(unknown) - late.keys()
    parts = [message("blind", who=fold(others))] if others else []
    if late:
        args = {"who": fold(late), "seconds": f"{max(late.values()):.0f}"}
        parts.append(message("ports-late", **args))
    return join(parts)


def _late(answers: Mapping[str, Mapping[str, Any]], missed: Collection[PortProbe]) -> dict[str, float]:
    """The fewest nodes whose lateness explains these attempts, with the seconds."""
    began = {name: each.get("ended", 0.0) - each.get("lasted", _ENOUGH_S) for name, each in answers.items()}
    explains = grouped((name, at) for at, probe in enumerate(missed) for name in probe[:2])
    late = fewest(explains, len(missed), lambda name: -began[name])
    return {name: began[name] - min(began.values()) for name in late}


def _untried(
    answers: Mapping[str, Mapping[str, Any]], plan: Mapping[str, Sequence[str]], ports: Sequence[int]
) -> dict[str, PortProbe]:
    """The nodes with missing attempts, each with the first of them."""
    found = {}
    for source, each in answers.items():
        reached = each.get("reached", {})
        missing = (
            PortProbe(source, target, port)
            for target in plan.get(source, ())
            for port in ports
            if target in answers and str(port) not in reached.get(target, {})
        )
        first = next(missing, None)
        if first is not None:
            found[source] = first
    return found


def _unopened(answers: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, int], str]:
    """The ports that a node could not open, though they were free, with the reason."""
    return {
        (name, int(port)): str(state)
        for name, each in answers.items()
        for port, state in each.get("listening", {}).items()
        if state not in ("opened", "taken")
    }


def _tried(
    answers: Mapping[str, Mapping[str, Any]], unopened: Mapping[tuple[str, int], str]
) -> tuple[dict[PortProbe, bool], dict[PortProbe, str]]:
    """Each attempt with whether it arrived, and its outcome.

    Attempts at nodes without a report are left out: they may not have listened. At a port that the probe opened only
    the node's own word counts, because a proxy may accept the connection, or another node may have the address.
    """
    arrived, why = {}, {}
    for source, each in answers.items():
        for target, outcomes in each.get("reached", {}).items():
            if target not in answers:
                continue
            for port, outcome in outcomes.items():
                if (target, int(port)) in unopened:
                    continue
                probe = PortProbe(source, target, int(port))
                is_ours = answers[target].get("listening", {}).get(port) == "opened"
                arrived[probe] = outcome == "ok" or (outcome == "service" and not is_ours)
                why[probe] = str(outcome)
    return arrived, why


def _is_withdrawn(answers: Mapping[str, Mapping[str, Any]], probe: PortProbe, outcome: str) -> bool:
    """Whether a service holds the port and refuses: it may listen on loopback only, so the port is not closed."""
    is_taken = answers[probe.target].get("listening", {}).get(str(probe.port)) == "taken"
    return is_taken and outcome == errno.errorcode[errno.ECONNREFUSED]


def _overlaps(answers: Mapping[str, Mapping[str, Any]], probe: PortProbe) -> bool:
    """Whether both nodes were active at the same time for long enough."""
    ends = [answers[name].get("ended", 0.0) for name in (probe.source, probe.target)]
    begins = [end - answers[name].get("lasted", _ENOUGH_S) for end, name in zip(ends, (probe.source, probe.target))]
    return bool(min(ends) - max(begins) >= _ENOUGH_S)


def _line(probe: PortProbe, why: str) -> Evidence:
    return Evidence(f"connect {probe.target}:{probe.port}", why)


def _places(tried: Mapping[PortProbe, bool]) -> list[tuple[Message, list[PortProbe]]]:
    """The faults behind the failed attempts, each with some of them: groups of nodes without any connection between
    them, then single faults.
    """
    groups = isolated_groups(tried)
    number = {name: at for at, group in enumerate(groups) for name in group}
    torn = [probe for probe in tried if len({number.get(name, -1) for name in probe[:2]} - {-1}) > 1]
    cut = set(torn)
    rest = {probe: arrived for probe, arrived in tried.items() if probe not in cut}
    says = message("place-apart", groups=" | ".join(fold(group) for group in groups))
    apart = [(says, sorted(torn)[:_LINES_OF_A_PLACE])] if torn else []
    return [*apart, *_single(localize_port_faults(rest), rest)]


def _single(found: Sequence[PortFault], tried: Mapping[PortProbe, bool]) -> list[tuple[Message, list[PortProbe]]]:
    """The faults, those of one kind with the same ports together; each with some of its attempts."""
    kinds = {(True, True): "way", (False, True): "target", (True, False): "source", (False, False): "nowhere"}
    groups = grouped(((kinds[item.source is not None, item.target is not None], item.ports), item) for item in found)
    places = []
    for (kind, ports), items in groups.items():
        if kind == "way":
            pairs = [(item.source or "", item.target or "") for item in items]
            broken = group_links(pairs, working_links(tried, ports))
        else:
            broken = [({item.source for item in items if item.source}, {item.target for item in items if item.target})]
        for sources, targets in broken:
            explained = [item for item in items if kind != "way" or (item.source in sources and item.target in targets)]
            failed = [probe for item in explained for probe in item.failed[:2]]
            places.append((_place(kind, ports, sources, targets), failed[:_LINES_OF_A_PLACE]))
    return places


def _place(kind: str, ports: tuple[int, ...] | None, sources: Iterable[str], targets: Iterable[str]) -> Message:
    names = {"source": fold(sources), "target": fold(targets)}
    if ports is None or ports == (_LARGE,):
        return message(f"place-{kind}-all", **names)
    return message(f"place-{kind}", ports=fold_numbers(ports), **names)


def isolated_groups(tried: Mapping[PortProbe, bool]) -> list[set[str]]:
    """The groups of nodes without any connection between them; [] if there are fewer than two groups.

    A single node is no group: its own faults are more precise.
    """
    names = (name for probe in tried for name in probe[:2])
    groups = [set(group) for group in connected_groups(names, working_links(tried, None))]
    return sorted(groups, key=min) if len(groups) > 1 else []


def working_links(tried: Mapping[PortProbe, bool], ports: Collection[int] | None) -> set[tuple[str, str]]:
    """The links (source, target) on which an attempt arrived, at one of these ports; None: at any."""
    return {probe[:2] for probe, arrived in tried.items() if arrived and (ports is None or probe.port in ports)}


def group_links(
    broken: Iterable[tuple[str, str]], working: Collection[tuple[str, str]]
) -> list[tuple[set[str], set[str]]]:
    """Broken links (source, target) as few blocks of sources and targets without a working link between them.

    Only links with a common end are joined: between others nothing may have been tested.
    Example: a-c, a-d, b-c, b-d -> [({a, b}, {c, d})]
    """
    rows: defaultdict[str, set[str]] = defaultdict(set)
    for source, target in broken:
        rows[source].add(target)
    reached: defaultdict[str, set[str]] = defaultdict(set)
    for source, target in working:
        reached[source].add(target)

    def are_one(one: tuple[set[str], set[str]], other: tuple[set[str], set[str]]) -> bool:
        sources, targets = one[0] | other[0], one[1] | other[1]
        has_common = not one[0].isdisjoint(other[0]) or not one[1].isdisjoint(other[1])
        is_apart = sources.isdisjoint(targets) and all(targets.isdisjoint(reached[source]) for source in sources)
        return has_common and is_apart

    found = [({source}, targets) for source, targets in rows.items()]
    count = 0
    while len(found) != count:
        count, rest = len(found), found
        found = []
        for block in rest:
            one = next((one for one in found if are_one(one, block)), None)
            if one is None:
                found.append(block)
            else:
                one[0].update(block[0])
                one[1].update(block[1])
    return found
