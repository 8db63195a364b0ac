"""What must agree between the nodes of a cluster. Pure: facts in, findings out. Start from `agreement` and `title`.

What is wrong with a node by itself is for that node's own doctor; here it is said where nodes differ, and by how much.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import title as title_of_check
from npuenv.cluster.consistency import conflicts as clashes
from npuenv.cluster.consistency.cards import numbers
from npuenv.cluster.consistency.findings import AREA, finding, judge, message
from npuenv.cluster.consistency.head import ray_head
from npuenv.cluster.consistency.identity import UNMET
from npuenv.cluster.consistency.rules import aspects
from npuenv.cluster.consistency.session import variables
from npuenv.cluster.consistency.values import NONE, Told, divide, is_layout
from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from npuenv.cluster.consistency.identity import Met
    from npuenv.cluster.consistency.rules import Aspect
    from npuenv.cluster.consistency.values import Split
    from npuenv.core.messages import Message
    from npuenv.facts.collect import Facts

    Check = Callable[[Mapping[str, Facts], Mapping[str, Met]], Finding]

_FIRST = (clashes.machines, clashes.host_addresses, clashes.names, clashes.hostname, clashes.clock, clashes.health)
_LAST = (clashes.links, clashes.card_addresses, clashes.super_devices)
_OF_CARDS = (clashes.health, *_LAST)
# A finding that follows from another one -> those that it follows from.
_BECAUSE = {
    "card-devices": ("cards",),
    "visible-cards": ("cards", "card-devices"),
    "soc": ("chip",),
    "card-memory": ("chip",),
    "driver-in-use": ("driver",),
    "npu-smi": ("driver", "driver-in-use"),
    "card-firmware": ("firmware",),
    "cann-build": ("cann",),
    "cann-kernels": ("cann",),
    "kernel": ("arch", "system"),
    "glibc": ("system",),
    "libstdcxx": ("system",),
    "watch": ("links", "card-gatewayed", "gateways"),
    "card-gatewayed": ("card-addressed",),
    "card-subnets": ("netmasks",),
    "card-addresses": ("machines",),
    "host-addresses": ("machines",),
    "gateway-of-hosts": ("host-subnet",),
    "names": ("machines",),
}


def agreement(
    nodes: Mapping[str, Facts],
    *,
    met: Mapping[str, Met] | None = None,
    cardless: Collection[str] = (),
    head: str = "",
) -> list[Finding]:
    """One finding for each thing that is to agree, in the order of the table. [] for fewer than two nodes.

    `nodes` holds the facts of the nodes that answered, by their names in the inventory; `met` what they said when they
    were asked at one time (`npuenv.cluster.probing`): without it clocks and names are skipped. `cardless` are those
    that are to have no cards: what is about cards is not compared with them. `head` is the node on which Ray's head is
    to run; "": not known.
    """
    if len(nodes) < 2:
        return []
    meeting = UNMET if met is None else met
    carded = {name: facts for name, facts in nodes.items() if name not in cardless}
    found = [_look(check, carded if check in _OF_CARDS else nodes, meeting) for check in _FIRST]
    found += [_vote(aspect, carded if aspect.is_for_cards else nodes) for aspect in aspects()]
    found += [_look(check, carded, meeting) for check in _LAST]
    found += [_look(ray_head, {head: nodes[head]}, meeting)] if head in nodes else []
    return _without_consequences([_without_blind(item, nodes) for item in found])


def encounters(nodes: Mapping[str, Facts], met: Mapping[str, Met]) -> list[Finding]:
    """What asking nodes at one time tells where fewer than two of them gave facts: of names and clocks."""
    return [_look(check, nodes, met) for check in (clashes.names, clashes.clock)]


def title(check_id: str) -> Message:
    """The name of a finding of this package for people: of `agree.tls`, "TLS switch of the cards"."""
    return message(f"title-{check_id.partition('.')[2]}")


def _look(check: Check, nodes: Mapping[str, Facts], met: Mapping[str, Met]) -> Finding:
    """What a check says. It is our own code: its bug must not hide what the others find."""
    try:
        return check(nodes, met)
    except Exception as error:
        name, line = check.__name__.replace("_", "-"), Evidence("npuenv", f"{type(error).__name__}: {error}")
        return finding(name, Status.UNKNOWN, message("crashed"), [("npuenv", line)], source="npuenv")


def _vote(aspect: Aspect, nodes: Mapping[str, Facts]) -> Finding:
    if len(nodes) < 2:
        return finding(aspect.id, Status.SKIP, message("skip-one-carded"), source=aspect.source)
    if aspect.is_about_cards and not any(numbers(facts) or facts.npu.smi.value for facts in nodes.values()):
        return finding(aspect.id, Status.SKIP, message("skip-no-card"), source=aspect.source)
    told = {node: _read(aspect, facts) for node, facts in nodes.items()}
    splits = divide(told, tolerance=aspect.tolerance, wanted=aspect.wanted)
    if aspect.is_layout and not all(split.is_united for split in splits) and is_layout(told):
        return finding(aspect.id, Status.OK, message("layout-alike"), source=aspect.source)
    is_plan = aspect.layout is not None and any(_is_tied(split) for split in splits) and aspect.layout(nodes)
    return judge(aspect, told, splits, _meaning(aspect, splits, nodes), is_plan=is_plan)


def _is_tied(split: Split) -> bool:
    return not split.is_united and split.common is None


def _read(aspect: Aspect, facts: Facts) -> Told:
    """What a node says; a reader is our own code, and its bug must not cost the other rows."""
    try:
        return aspect.read(facts)
    except Exception as error:
        return Told(blind={None: Evidence("npuenv", f"{type(error).__name__}: {error}")})


def _meaning(aspect: Aspect, splits: Sequence[Split], nodes: Mapping[str, Facts]) -> Status:
    """What the differences between the nodes mean; see aspects.toml."""
    apart = [split for split in splits if not split.is_united]
    rule, _, number = aspect.differs.partition(":")
    is_grave = {
        "fail": True,
        "warn": False,
        "release": any(_releases_differ(split, int(number or 0), aspect.may_lack) for split in apart),
        "set": any(len([value for value in split.holders if value != ":default"]) > 1 for split in apart),
        "breaking": any(variables().breaking.fullmatch(split.topic) for split in apart),
        "with-ray": any(_has_ray(facts) for facts in nodes.values()),
    }[rule]
    return Status.FAIL if is_grave else Status.WARN


def _releases_differ(split: Split, count: int, may_lack: frozenset[str]) -> bool:
    if NONE in split.holders and split.topic not in may_lack:
        return True
    return len({tuple(re.findall(r"\d+", text)[:count]) for text in split.holders if text != NONE}) > 1


def _has_ray(facts: Facts) -> bool:
    python = facts.python.interpreter.value
    return python is not None and "ray" in python.distributions


def _without_blind(item: Finding, nodes: Mapping[str, Facts]) -> Finding:
    """What is unknown only because a tool does not work on a node steps back: the node's own finding says that."""
    owners = [_owner(line, nodes) for line in item.evidence] if item.status is Status.UNKNOWN else []
    if not owners or None in owners:
        return item
    causes = tuple(title_of_check(owner) for owner in dict.fromkeys(owners) if owner)
    return finding(item.check.partition(".")[2], Status.SKIP, message("because", cause=causes), source=item.source)


def _owner(line: Evidence, nodes: Mapping[str, Facts]) -> str | None:
    """The check of a node that says why this line holds no answer; None where none does."""
    node, _, command = line.command.partition(": ")
    facts = nodes.get(node)
    if facts is not None and command.startswith("npu-smi") and facts.npu.smi_trouble.is_known:
        return "driver.npu-smi"
    return "network.hccn-tool" if facts is not None and "hccn_tool" in command and facts.hccn.refused.is_known else None


def _without_consequences(found: Sequence[Finding]) -> list[Finding]:
    """The findings, with those that follow from another one stepping back."""
    bad = {item.check.partition(".")[2]: item.status for item in found if item.status in (Status.FAIL, Status.WARN)}
    subnet = next((item for item in found if item.check == f"{AREA}.host-subnet"), None)
    kept = []
    for item in found:
        name = item.check.partition(".")[2]
        # Never behind a lesser one: what is a failure stays one.
        graver = (Status.FAIL, item.status)
        cause = next((cause for cause in _BECAUSE.get(name, ()) if bad.get(cause) in graver), None)
        if cause and name in bad:
            item = finding(name, Status.SKIP, message("because", cause=title(f"{AREA}.{cause}")), source=item.source)
        elif name == "hccl-interface" and name in bad and subnet is not None and _is_one(subnet):
            # What an interface is called does not matter where all of them meet.
            says = message("names-in-one-subnet", says=item.says, subnet=subnet.says.args["value"])
            item = finding(name, Status.OK, says, source=item.source)
        kept.append(item)
    return kept


def _is_one(subnet: Finding) -> bool:
    """Whether all of them lie in one subnet."""
    return subnet.status is Status.OK and "value" in subnet.says.args
