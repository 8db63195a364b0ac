"""Whether every node reaches the ports of every other one, with large packets too.

All nodes listen and connect at the same time, for a few seconds; a port at which a service listens already is left to
it. Up to `ALL_AT_MOST` nodes each one tries all others; of more, a few of them, so that each port is tried from several
sides, and single broken links are not excluded. Only `probe_ports` reaches nodes; everything else is pure.
"""

from __future__ import annotations

import errno
import secrets
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npuenv.cluster.consistency.findings import alone, and_blind, chain, finding, message
from npuenv.cluster.localize import PortFault, PortProbe, connected_groups, fewest, localize_port_faults
from npuenv.cluster.nodeset import fold, fold_numbers
from npuenv.cluster.parallel_ssh import run_program
from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Status
from npuenv.facts.network import ports as hccl_ports
from npuenv.host.redact import Redactor
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from npuenv.cluster.consistency.values import NodeIdentity
    from npuenv.cluster.inventory import Node
    from npuenv.cluster.parallel_ssh import Transport
    from npuenv.core.messages import Message

ALL_AT_MOST = 32
RAY = (6379, 8265, 10001)  # GCS, dashboard, client
KNOCK_S = 8.0
_PORTS_PER_S = 280.0  # how many connections a small machine opens in a second, with room to spare
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
        answers = hccl_ports.told(session)
        found |= set(_usual() if answers is None else answers)
    return (*RAY, *sorted(found - set(RAY)))


def has_dynamic_ports(sessions: Iterable[Mapping[str, str]]) -> bool:
    """Whether in some session HCCL's ports are not known before a run: nobody can try those."""
    return any(hccl_ports.told(session) == () for session in sessions)


def sets_hccl_ports(session: Mapping[str, str]) -> bool:
    """Whether a session says where HCCL's ports are."""
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
    """The findings about ports and large packets between the identified nodes; `absent` says why others are missing.
    `has_dynamic`: HCCL's ports are not among these, the system gives them out.
    """
    # Two names of one machine have the same ports, which only one of them can open: `agree.machines` names them.
    machines: dict[object, str] = {}
    for name, each in identities.items():
        machines.setdefault((each.boot, each.addresses) if each.boot else name, name)
    nodes = [node for node in nodes if node.name not in identities.keys() - machines.values()]
    present = [node for node in nodes if address_of(identities, node.name)]
    away = {**(absent or {}), **{node.name: _NO_ADDRESS for node in nodes if node not in present}}
    asked_ports = tuple(ports) or usual_ports()
    if len(present) < 2:
        return alone("ports", away, _SOURCE), alone("packets", away, _PACKETS_SOURCE)
    plan = probe_schedule([node.name for node in present])
    callers = {name: sum(name in targets for targets in plan.values()) for name in plan}
    probe_s = KNOCK_S + len(present) * len(asked_ports) / _PORTS_PER_S
    word = secrets.token_hex(8)

    def request(node: Node) -> dict[str, Any]:
        targets = {name: address_of(identities, name) for name in plan[node.name]}
        said = {"me": node.name, "word": word, "ports": asked_ports, "targets": targets}
        return {**said, "callers": callers[node.name], "limit_s": probe_s}

    # All at once: whoever waits for a place would not be there when the others connect.
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
    # A host has several networks, and what is open in one need not be in that of the training.
    says = message(
        "ports-over", says=found.says, addresses=_shown([address_of(identities, node.name) for node in present])
    )
    return replace(found, says=message("ports-unfixed", says=says) if has_dynamic else says), large


def _shown(addresses: Iterable[str]) -> str:
    """The addresses in short, public ones as stand-ins: they are printed and saved."""
    redactor = Redactor()
    return fold(redactor.text(f"addr {address}").removeprefix("addr ") for address in addresses)


def address_of(identities: Mapping[str, NodeIdentity], name: str) -> str:
    """Where the others reach a node: the address by which we did, where that is its own; else its first one."""
    if name not in identities:
        return ""
    each = identities[name]
    return each.login if each.login in each.addresses else next(iter(each.addresses), each.login)


def probe_schedule(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The targets of each node: all others, or of many the ones 1, 2, 4 ... places further on in the circle."""
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
    """The finding, from what each node reports of its own listening and connecting."""
    unopened = _unopened(answers)
    untried = _untried(answers, plan, ports)
    tried, why = _tried(answers, unopened)
    withdrawn = {probe for probe, outcome in why.items() if _is_withdrawn(answers, probe, outcome)}
    tried = {probe: arrived for probe, arrived in tried.items() if probe not in withdrawn}
    # A node that began late, or was held up, has missed the others: neither of them is to blame.
    missed = {probe for probe, arrived in tried.items() if not arrived and not _has_met(answers, probe)}
    tried = {probe: arrived for probe, arrived in tried.items() if probe not in missed}
    late = _late(answers, missed)
    if not all(tried.values()):
        places = _places(tried)
        lines = [(probe.source, _line(probe, why[probe])) for _, failed in places for probe in failed]
        unseen = fold({*silent, *untried, *late})
        says = and_blind(message("ports-closed", places=tuple(says for says, _ in places)), unseen)
        return finding("ports", Status.FAIL, says, lines, source=_SOURCE, fix="ports", is_dangerous=True)
    open_ports = [port for port in ports if port not in {probe.port for probe in withdrawn}]
    if silent or unopened or missed or untried or not open_ports:
        lines = [(name, Evidence("python3 (knock)", line)) for name, line in silent.items()]
        lines += [(name, Evidence(f"listen {port}", said)) for (name, port), said in unopened.items()]
        lines += [(name, Evidence("python3 (knock)", f"began {by_s:.0f} s late")) for name, by_s in late.items()]
        lines += [(name, _line(probe, "no outcome")) for name, probe in untried.items()]
        lines += [(probe.source, _line(probe, why[probe])) for probe in withdrawn if not open_ports]
        blind = {*silent, *untried, *(name for name, _ in unopened), *late}
        blind |= {probe.target for probe in withdrawn if not open_ports}
        said = _who_is_blind(blind, late)
        others = {probe: arrived for probe, arrived in tried.items() if blind.isdisjoint(probe[:2])}
        if others:
            said = message("ports-open-else", says=said, elsewhere=_open(plan, others, open_ports))
        return finding("ports", Status.UNKNOWN, said, lines, source=_SOURCE)
    return finding("ports", Status.OK, _open(plan, tried, open_ports), source=_SOURCE)


def packets(answers: Mapping[str, Mapping[str, Any]], silent: Mapping[str, str]) -> Finding:
    """The finding about large packets, on the links on which small ones arrived."""
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
        lines = [
            (probe.source, Evidence(f"send 12000 bytes to {probe.target}", "not acknowledged within 5 s"))
            for _, lost in places
            for probe in lost
        ]
        says = and_blind(message("packets-lost", places=tuple(says for says, _ in places)), fold(unseen))
        return finding("packets", Status.FAIL, says, lines, source=_PACKETS_SOURCE, fix="packets")
    if unseen:
        lines = [(name, Evidence("python3 (knock)", silent.get(name, "no outcome"))) for name in sorted(unseen)]
        return finding("packets", Status.UNKNOWN, message("blind", who=fold(unseen)), lines, source=_PACKETS_SOURCE)
    if not tried:
        return finding("packets", Status.SKIP, message("packets-untried"), source=_PACKETS_SOURCE)
    return finding("packets", Status.OK, message("packets-arrive", tried=len(tried)), source=_PACKETS_SOURCE)


def _open(plan: Mapping[str, Sequence[str]], tried: Mapping[PortProbe, bool], ports: Sequence[int]) -> Message:
    """That all who take part in these attempts reach each other."""
    count = len({name for probe in tried for name in probe[:2]})
    is_whole = all(len(targets) == len(plan) - 1 for targets in plan.values())
    name = "ports-open" if is_whole else "ports-open-sampled"
    return message(name, count=count, ports=fold_numbers(ports), tried=len(tried))


def _who_is_blind(blind: Collection[str], late: Mapping[str, float]) -> Message:
    """The nodes of which nothing is known, those that were late with how late."""
    others = set(blind) - late.keys()
    parts = [message("blind", who=fold(others))] if others else []
    if late:
        args = {"who": fold(late), "seconds": f"{max(late.values()):.0f}"}
        parts.append(message("ports-late", **args))
    return chain(parts)


def _late(answers: Mapping[str, Mapping[str, Any]], missed: Collection[PortProbe]) -> dict[str, float]:
    """The fewest nodes whose absence explains these failed attempts, with the seconds by which they were late."""
    began = {name: each.get("ended", 0.0) - each.get("lasted", _ENOUGH_S) for name, each in answers.items()}
    explains: defaultdict[str, list[int]] = defaultdict(list)
    for at, probe in enumerate(missed):
        for name in probe[:2]:
            explains[name].append(at)
    late = fewest(explains, len(missed), lambda name: -began[name])
    return {name: began[name] - min(began.values()) for name in late}


def _untried(
    answers: Mapping[str, Mapping[str, Any]], plan: Mapping[str, Sequence[str]], ports: Sequence[int]
) -> dict[str, PortProbe]:
    """The nodes that did not come round to all that they were to try, each with the first attempt that is missing."""
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
    """The ports that a node could neither listen on nor finds taken, with the reason: nobody can judge those."""
    return {
        (name, int(port)): str(said)
        for name, each in answers.items()
        for port, said in each.get("listening", {}).items()
        if said not in ("opened", "taken")
    }


def _tried(
    answers: Mapping[str, Mapping[str, Any]], unopened: Mapping[tuple[str, int], str]
) -> tuple[dict[PortProbe, bool], dict[PortProbe, str]]:
    """Each attempt with whether it arrived, and the last reason of those that did not.

    A node that said nothing may not have listened: what was tried there is left out. At a port that was opened for
    this, only the word that comes back counts: something in between can take a connection too. Where the word came back
    from another node, the address is not the one of the node that was meant.
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
    """Whether a service holds the port there and refuses: it may listen on loopback alone, which is no closed port."""
    is_taken = answers[probe.target].get("listening", {}).get(str(probe.port)) == "taken"
    return is_taken and outcome == errno.errorcode[errno.ECONNREFUSED]


def _has_met(answers: Mapping[str, Mapping[str, Any]], probe: PortProbe) -> bool:
    """Whether both were there long enough at the same time, by when each one ended and how long it had been there."""
    ends = [answers[name].get("ended", 0.0) for name in (probe.source, probe.target)]
    begins = [end - answers[name].get("lasted", _ENOUGH_S) for end, name in zip(ends, (probe.source, probe.target))]
    return bool(min(ends) - max(begins) >= _ENOUGH_S)


def _line(probe: PortProbe, why: str) -> Evidence:
    return Evidence(f"connect {probe.target}:{probe.port}", why)


def _places(tried: Mapping[PortProbe, bool]) -> list[tuple[Message, list[PortProbe]]]:
    """What explains the attempts that failed, in words, each with some that show it: groups of nodes between which
    nothing gets through, then single culprits.
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
    """The culprits in words, those of one kind with the same ports together; each with attempts that show it."""
    groups: defaultdict[tuple[str, tuple[int, ...] | None], list[PortFault]] = defaultdict(list)
    for item in found:
        kinds = {(True, True): "way", (False, True): "target", (True, False): "source"}
        groups[kinds.get((item.source is not None, item.target is not None), "nowhere"), item.ports].append(item)
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
    """The groups of nodes between which nothing arrived, whatever was tried; [] if there are no two.

    A node all by itself is no group: its own faults say more.
    """
    names = (name for probe in tried for name in probe[:2])
    groups = [set(group) for group in connected_groups(names, working_links(tried, None))]
    return sorted(groups, key=min) if len(groups) > 1 else []


def working_links(tried: Mapping[PortProbe, bool], ports: Collection[int] | None) -> set[tuple[str, str]]:
    """From which node to which one something arrived, at one of these ports; None: at any."""
    return {probe[:2] for probe, arrived in tried.items() if arrived and (ports is None or probe.port in ports)}


def group_links(
    broken: Iterable[tuple[str, str]], working: Collection[tuple[str, str]]
) -> list[tuple[set[str], set[str]]]:
    """Broken links (source, target) as few blocks of sources and targets: no source of one reaches any of its targets.

    Only those with an end in common come together: where not every link was tried, nothing is known between others.
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
