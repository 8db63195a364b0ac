"""Checks between nodes that no majority decides: duplicate addresses, unhealthy cards and links, host names, clocks.

Each function returns one finding from the facts of all nodes. `identities` are the results of probing; `NOT_PROBED`
without it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

from npuenv.checks.network.host import foreign_on_ray_ports
from npuenv.cluster.consistency import cards, readers
from npuenv.cluster.consistency.findings import (
    NOT_PROBED,
    Subject,
    finding,
    fold_subjects,
    join,
    message,
    names_to_resolve,
    shorten,
    unknown_finding,
    with_unknown,
)
from npuenv.cluster.consistency.readers import has_stand_in
from npuenv.cluster.inventory import fold, grouped
from npuenv.core.fact import Evidence, State
from npuenv.core.finding import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npuenv.cluster.consistency.findings import NodeIdentity
    from npuenv.core.messages import Message
    from npuenv.facts.collect import Facts

    Nodes = Mapping[str, Facts]
    Identities = Mapping[str, NodeIdentity]

Line = tuple[Subject, Evidence]
WARN_OFFSET_S, FAIL_OFFSET_S = 1.0, 300.0  # logs can be ordered; Kerberos tolerates five minutes
_LOOPBACK = ("127.", "::1")
_HCCL = "hicann/hccl fault diagnosis, EI0006"
_GCS = 6379
_GCS_SERVER = "gcs_server"
_RAY_PORTS = "Ray, ports configuration: all nodes join the head at its GCS port"


def machines(nodes: Nodes, identities: Identities) -> Finding:
    """Two names of the inventory for one machine, by the boot id and all addresses."""
    source = "a machine that is counted twice gives two ranks one card"
    marks: dict[str, tuple[str, Evidence]] = {}
    for node, facts in nodes.items():
        own = sorted(address for address in readers.addresses(facts) if not has_stand_in(address))
        of_cards = sorted(ip for ip, _ in _card_addresses(facts).values())
        if node in identities and identities[node].boot and identities[node].addresses:
            # Containers of one machine share the boot id, and may be nodes of their own.
            shown = f"{identities[node].boot} {', '.join(identities[node].addresses)}"
            marks[node] = shown, Evidence("/proc/sys/kernel/random/boot_id, ip -o addr", shown)
        elif own:
            marks[node] = f"{own} {of_cards}", Evidence("ip -o addr", ", ".join(own))
    groups = _groups({node: mark for node, (mark, _) in marks.items()})
    if groups:
        lines = [(node, marks[node][1]) for group in groups for node in group]
        says = message("machines-one", groups=tuple(fold(group) for group in groups))
        return finding("machines", Status.FAIL, says, lines, source=source, fix="machines")
    if not marks:
        return finding("machines", Status.SKIP, message("skip-nothing"), source=source)
    return finding("machines", Status.OK, message("machines-ok", count=len(marks)), source=source)


def host_addresses(nodes: Nodes, _: Identities) -> Finding:
    """An address that two hosts have."""
    owners: defaultdict[str, list[Line]] = defaultdict(list)
    places: defaultdict[str, list[str]] = defaultdict(list)
    unknown: dict[Subject, Evidence] = {}
    for node, facts in nodes.items():
        if facts.network.interfaces.state is State.UNKNOWN:
            unknown[Subject(node)] = facts.network.interfaces.evidence[0]
        for address, item in readers.addresses(facts).items():
            owners[address].append((Subject(node), readers.line_of(facts, item)))
            places[address].append(item.name)
    source = "RFC 5227: two hosts with one address take each other's packets"
    if not owners and not unknown:
        return finding("host-addresses", Status.SKIP, message("skip-nothing"), source=source)
    count = len(nodes) - len(unknown)
    outer = {address: lines for address, lines in owners.items() if not _is_inner(places[address], count)}
    return _duplicates("host-addresses", outer, unknown, source)


def _is_inner(names: Sequence[str], count: int) -> bool:
    """Whether an address is internal to each host: all nodes have it, on an interface of one name that is not the name
    of a network port.
    """
    return len(names) == count > 1 and len(set(names)) == 1 and not readers.CABLED.fullmatch(names[0])


def card_addresses(nodes: Nodes, _: Identities) -> Finding:
    """An address that two cards have, or a card and a host."""
    owners: defaultdict[str, list[Line]] = defaultdict(list)
    unknown: dict[Subject, Evidence] = {}
    for node, facts in nodes.items():
        for card, (ip, line) in _card_addresses(facts).items():
            if has_stand_in(ip):
                unknown[Subject(node, card)] = Evidence(line.command, ip)
            else:
                owners[ip].append((Subject(node, card), line))
    if not owners and not unknown:
        return finding("card-addresses", Status.SKIP, message("skip-nothing"), source=_HCCL)
    for node, facts in nodes.items():
        for address, item in readers.addresses(facts).items():
            if address in owners:
                owners[address].append((Subject(node), readers.line_of(facts, item)))
    return _duplicates("card-addresses", owners, unknown, _HCCL)


def super_devices(nodes: Nodes, _: Identities) -> Finding:
    """A number within a super pod that two cards have. In a pod of one server numbers are local."""
    owners: defaultdict[str, list[Line]] = defaultdict(list)
    for node, facts in nodes.items():
        line = next(iter(facts.npu.spods.evidence), Evidence("npu-smi info -t spod-info", ""))
        for row, item in enumerate(facts.npu.spods.value or ()):
            if item.sdid is not None and (item.size or 0) > len(facts.npu.spods.value or ()):
                shown = Evidence(line.command, f"SDID : {item.sdid}")
                owners[f"{item.pod}/{item.sdid}"].append((Subject(node, row), shown))
    source = "hicann/hccl fault diagnosis, EI0014: duplicate super-device id"
    if not owners:
        return finding("super-devices", Status.SKIP, message("skip-nothing"), source=source)
    return _duplicates("super-devices", owners, {}, source)


def health(nodes: Nodes, _: Identities) -> Finding:
    """Cards that npu-smi does not report as OK."""
    source = "npu-smi info, Health"
    unhealthy: defaultdict[str, list[Line]] = defaultdict(list)
    unknown: dict[Subject, Evidence] = {}
    count = 0
    for node, facts in nodes.items():
        smi = facts.npu.smi
        if smi.state is State.UNKNOWN or facts.npu.smi_trouble.is_known:
            lines = facts.npu.smi_trouble.evidence if facts.npu.smi_trouble.is_known else smi.evidence
            unknown[Subject(node)] = next(iter(lines), Evidence("npu-smi info", ""))
        for row, card in enumerate(smi.value.cards if smi.value else ()):
            number = card.physical if card.physical is not None else row
            count += card.health is not None
            if card.health not in ("OK", None):
                unhealthy[card.health].append((Subject(node, number), Evidence("npu-smi info", card.line)))
    return _unhealthy("health", unhealthy, unknown, count, source, "OK")


def links(nodes: Nodes, _: Identities) -> Finding:
    """Links that are down. If none is up on any node and no card has an address, that network is not in use."""
    source = "HCCN tool guide, link; vllm-ascend multi-node verification list"
    down: list[Line] = []
    unknown: dict[Subject, Evidence] = {}
    count, level = 0, 0
    for node, facts in nodes.items():
        fact = facts.hccn.links
        level = level or fact.needs_level
        for card, item in (fact.value or {}).items():
            count += 1
            if item.value == "DOWN":
                down.append((Subject(node, card), item.evidence[0]))
            elif item.value is None:
                unknown[Subject(node, card)] = next(iter(item.evidence), Evidence("hccn_tool -link -g", ""))
        if fact.state is State.UNKNOWN:
            unknown[Subject(node)] = next(iter(fact.evidence), Evidence("hccn_tool -link -g", ""))
    addressed = {card for facts in nodes.values() for card in _card_addresses(facts)}
    if not count and not unknown:
        says = message("skip-level", level=level) if level else message("skip-nothing")
        return finding("links", Status.SKIP, says, source=source)
    unused = _unused(nodes, addressed)
    cabled = [line for line in down if line[0].card not in unused]
    if unused and len(down) == count and not unknown and not cabled:
        return finding("links", Status.OK, message("links-unused", count=count), source=source)
    num_cabled = count - len(down) + len(cabled)
    return _unhealthy("links", {"DOWN": cabled} if cabled else {}, unknown, num_cabled, source, "UP")


def _unused(nodes: Nodes, addressed: set[int]) -> set[int]:
    """The numbers of the cards whose ports are not cabled: without an address and down on every node."""
    states: defaultdict[int, set[str | None]] = defaultdict(set)
    for facts in nodes.values():
        for card, item in (facts.hccn.links.value or {}).items():
            states[card].add(item.value)
    return {card for card, seen in states.items() if seen == {"DOWN"} and card not in addressed}


def hostname(nodes: Nodes, _: Identities) -> Finding:
    """Hosts whose own name resolves to loopback, to another host, or not at all; Ray and gloo announce that address."""
    source = "gloo and Ray take the address that the host's own name leads to; Debian writes 127.0.1.1"
    astray: defaultdict[str, list[Line]] = defaultdict(list)
    unknown: dict[Subject, Evidence] = {}
    for node, facts in nodes.items():
        fact = facts.network.hostname
        if fact.value is None:
            unknown[Subject(node)] = next(iter(fact.evidence), Evidence("/etc/hosts", ""))
            continue
        found = fact.value.resolved if fact.value.resolved is not None else fact.value.in_hosts
        where = _leads(found, fact.value.resolved is not None, set(readers.addresses(facts)))
        if where:
            shown = ", ".join(found or ()) or "-"
            astray[where].append((Subject(node), Evidence(fact.evidence[0].command, f"{fact.value.name}: {shown}")))
    if astray:
        places, lines = _said(astray, show=lambda where: message(f"hostname-{where}"))
        says = message("hostname-astray", places=places)
        return finding("hostname", Status.WARN, says, lines, source=source, fix="hostname")
    if unknown:
        return unknown_finding("hostname", unknown, source)
    return finding("hostname", Status.OK, message("hostname-ok", count=len(nodes)), source=source)


def _leads(found: Sequence[str] | None, is_asked: bool, own: set[str]) -> str:
    """How a name is wrong: it resolves to loopback, elsewhere or nowhere; "" if it is right, or unknown."""
    if found and all(address.startswith(_LOOPBACK) for address in found):
        return "loopback"
    if found and own and not own & set(found) and not any(has_stand_in(address) for address in found):
        return "elsewhere"
    return "nowhere" if is_asked and found is not None and not found else ""


def names(nodes: Nodes, identities: Identities) -> Finding:
    """Whether host names are unique, and resolve to the same and right address on every node."""
    source = "torch.distributed and Ray exchange host names; /etc/hosts is a file of each host"
    if identities is NOT_PROBED:
        return finding("names", Status.SKIP, message("skip-unmet"), source=source)
    same = _groups({node: each.hostname for node, each in identities.items() if each.hostname})
    if same:
        lines = [(node, Evidence("hostname", identities[node].hostname)) for group in same for node in group]
        groups = tuple(message("said", who=fold(group), value=identities[group[0]].hostname) for group in same)
        return finding("names", Status.FAIL, message("names-twice", groups=groups), lines, source=source, fix="names")
    every = names_to_resolve(each.hostname for each in identities.values())
    wrong = _wrong_views(identities, every)
    lines = [(node, Evidence(f"getent ahosts {of}", ", ".join(seen) or "not found")) for node, of, seen in wrong]
    # A node that resolved nothing at all may not have tried: this does not say that its resolver fails.
    absent = [node for node in nodes if node not in identities or not identities[node].hostname]
    absent += [node for node, each in identities.items() if each.hostname and not each.resolved and len(every) > 1]
    looking = {node: each for node, each in identities.items() if each.resolved}
    asked = ((node, each, name) for node, each in looking.items() for name in _others(every, each))
    unsaid = [(node, name) for node, each, name in asked if name not in each.resolved]
    lines += [(node, Evidence(f"getent ahosts {name}", "no answer")) for node, name in unsaid]
    unknown = [Subject(node) for node in dict.fromkeys([*absent, *(node for node, _ in unsaid)])]
    if wrong:
        says = message("names-astray", views=shorten(_folded(wrong)))
        says = with_unknown(says, unknown and fold_subjects(unknown))
        return finding("names", Status.WARN, says, lines, source=source, fix="names-hosts")
    if unknown:
        says = message("blind", who=fold_subjects(unknown))
        if unsaid:
            args = {"who": fold(node for node, _ in unsaid), "names": fold(name for _, name in unsaid)}
            says = join([*([message("blind", who=fold(absent))] if absent else []), message("names-unsaid", **args)])
        return finding("names", Status.UNKNOWN, says, lines, source=source)
    if not any(each.resolved.get(name) for each in identities.values() for name in _others(every, each)):
        return finding("names", Status.SKIP, message("names-unused"), source=source)
    return finding("names", Status.OK, message("names-ok", count=len(every)), source=source)


def clock(nodes: Nodes, identities: Identities) -> Finding:
    """How far the clocks are apart, within the uncertainty of the probes."""
    source = "RFC 5280, validity of certificates; file times on shared storage"
    offsets = {node: each.offset for node, each in identities.items() if each.offset is not None}
    unknown = [Subject(node) for node in nodes if node not in offsets]
    if identities is NOT_PROBED:
        return finding("clock", Status.SKIP, message("skip-unmet"), source=source)
    if len(offsets) < 2:
        return finding("clock", Status.UNKNOWN, message("blind", who=fold_subjects(unknown)), source=source)
    # The median: a wrong clock does not move it. Of two clocks it is the first.
    centre = statistics.median_low(item.seconds for item in offsets.values())
    surely = {node: max(0.0, abs(item.seconds - centre) - item.within_s) for node, item in offsets.items()}
    late = sorted((node for node, apart in surely.items() if apart > WARN_OFFSET_S), key=lambda node: -surely[node])
    within = max(item.within_s for item in offsets.values())
    if late:
        off = {node: f"{offsets[node].seconds - centre:+.1f} s ± {offsets[node].within_s:.1f} s" for node in late}
        groups = tuple(message("said", who=node, value=value) for node, value in off.items())
        status = Status.FAIL if surely[late[0]] > FAIL_OFFSET_S else Status.WARN
        lines = [(node, Evidence("clock", offsets[node].evidence)) for node in late]
        name = "clock-apart" if len(offsets) > 2 else "clock-two"
        says = message(name, said=groups, count=len(offsets) - len(late))
        return finding("clock", status, says, lines, source=source, fix="clock")
    if unknown or within > WARN_OFFSET_S:
        unsure = unknown or [Subject(node) for node, item in offsets.items() if item.within_s > WARN_OFFSET_S]
        says = message("clock-unsure", who=fold_subjects(unsure), within=f"{within:.1f}")
        return finding("clock", Status.UNKNOWN, says, source=source)
    spread = max(item.seconds for item in offsets.values()) - min(item.seconds for item in offsets.values())
    says = message("clock-ok", spread=f"{spread:.2f}", within=f"{within:.2f}", count=len(offsets))
    return finding("clock", Status.OK, says, source=source)


def _wrong_views(identities: Identities, every: Sequence[str]) -> list[tuple[str, str, tuple[str, ...]]]:
    """(node, name, addresses) where a node resolves the name of another one to none of its addresses."""
    own = {each.hostname: (node, set(each.addresses)) for node, each in identities.items()}
    wrong = []
    for node, each in identities.items():
        for name, found in each.resolved.items():
            target, addresses = own.get(name, ("", set()))
            if not target or target == node or not addresses:
                continue
            if found and not addresses & set(found):
                wrong.append((node, name, found))
    # A node's own name is in its own file; if no other name resolves anywhere, names are not used in this cluster.
    asked = ((node, each, name) for node, each in identities.items() for name in _others(every, each))
    views = [(node, name, each.resolved.get(name)) for node, each, name in asked]
    is_used = any(found for _, _, found in views)
    lost: list[tuple[str, str, tuple[str, ...]]] = [(node, name, ()) for node, name, found in views if found == ()]
    return [*wrong, *(lost if is_used else [])]


def _others(every: Sequence[str], of: NodeIdentity) -> list[str]:
    """All names but the node's own."""
    return [name for name in every if name != of.hostname]


def _folded(wrong: Sequence[tuple[str, str, tuple[str, ...]]]) -> list[Message]:
    """One message for all nodes with the same result, and for all names that the same nodes do not find."""
    by_outcome = grouped(((name, ", ".join(found)), node) for node, name, found in wrong)
    told = ((*outcome, nodes) for outcome, nodes in by_outcome.items() if outcome[1])
    seen = (message("view", nodes=fold(nodes), name=name, found=found) for name, found, nodes in told)
    lost = grouped((tuple(nodes), name) for (name, found), nodes in by_outcome.items() if not found)
    return [*seen, *(message("view-none", nodes=fold(nodes), name=fold(names)) for nodes, names in lost.items())]


def _card_addresses(facts: Facts) -> dict[int, tuple[str, Evidence]]:
    """Card -> its address and the line that says it."""
    return {card: (found.ip, found.evidence) for card, found in cards.addresses(facts).items()}


def _groups(marks: Mapping[str, str]) -> list[list[str]]:
    """The nodes that share a mark."""
    by_mark = grouped((mark, node) for node, mark in marks.items())
    return [group for group in by_mark.values() if len(group) > 1]


def _said(
    groups: Mapping[str, Sequence[Line]], word: str = "said", show: Callable[[str], object] = str
) -> tuple[tuple[Message, ...], list[tuple[str, Evidence]]]:
    """A sentence for each value with who has it, and all the lines."""
    whose = {value: fold_subjects(subject for subject, _ in lines) for value, lines in groups.items()}
    lines = [(subject.node, line) for each in groups.values() for subject, line in each]
    return tuple(message(word, value=show(value), who=who) for value, who in whose.items()), lines


def _duplicates(
    name: str, owners: Mapping[str, Sequence[Line]], unknown: Mapping[Subject, Evidence], source: str
) -> Finding:
    """A finding about what must be unique. Two cards of one node are left to that node's own doctor."""
    twice = {key: lines for key, lines in owners.items() if len({subject.node for subject, _ in lines}) > 1}
    if twice:
        groups, lines = _said(twice, "shared")
        return finding(name, Status.FAIL, message("clash", groups=groups), lines, source=source, fix=name)
    if unknown:
        return unknown_finding(name, unknown, source)
    return finding(name, Status.OK, message("unique", count=len(owners)), source=source)


def _unhealthy(
    name: str,
    unhealthy: Mapping[str, Sequence[Line]],
    unknown: Mapping[Subject, Evidence],
    count: int,
    source: str,
    expected: str,
) -> Finding:
    """A finding about what has one right state."""
    if unhealthy:
        groups, lines = _said(unhealthy)
        # `count` has no cards of nodes without an answer.
        rest = count - sum(map(len, unhealthy.values())) - sum(subject.card is not None for subject in unknown)
        says = with_unknown(message("odd", odd=groups, count=rest, common=expected), unknown and fold_subjects(unknown))
        return finding(name, Status.FAIL, says, lines, source=source, fix=name)
    if unknown:
        return unknown_finding(name, unknown, source)
    if not count:
        return finding(name, Status.SKIP, message("skip-nothing"), source=source)
    return finding(name, Status.OK, message("same", value=expected, count=count), source=source)


def ray_head(nodes: Nodes, _: Identities) -> Finding:
    """The programs that hold the ports of Ray's head. One without a name is foreign if no head can run there."""
    ((node, facts),) = nodes.items()
    listeners = facts.network.listeners
    if listeners.value is None:
        line = next(iter(listeners.evidence), Evidence("/proc/net/tcp", ""))
        return finding("ray-head", Status.UNKNOWN, message("blind", who=node), [(node, line)], source=_RAY_PORTS)
    held = {item.port: item.owner for item in foreign_on_ray_ports(facts)}
    is_nameless = any(item.port == _GCS and not item.owner for item in listeners.value)
    processes = facts.machine.processes.value
    # In a container the processes of other containers are not visible.
    if is_nameless and processes and processes.init and not facts.machine.container.is_known:
        held |= {} if any(item.name == _GCS_SERVER for item in processes.ours) else {_GCS: ""}
    if not held:
        return finding("ray-head", Status.OK, message("ray-head-free", node=node), source=_RAY_PORTS)
    lines = [(node, Evidence("ss -H -ltnp", f"{port} {owner or '?'}")) for port, owner in sorted(held.items())]
    port, owner = min(held.items())
    says = message("ray-head-held" if owner else "ray-head-held-unnamed", node=node, port=port, owner=owner)
    # The dashboard and Ray's client take another port if theirs is held.
    status = Status.FAIL if port == _GCS else Status.WARN
    return finding("ray-head", status, says, lines, source=_RAY_PORTS, fix="ray-head", node=node)
